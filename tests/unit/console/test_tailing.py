from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest

from tailrace.client.records import ConsumerRecord
from tailrace.console import tailing
from tailrace.console.tailing import (
    PARTITIONS_MAX,
    SETTINGS,
    SHOWN_CHARACTERS,
    TAIL_BYTES_MAX,
    TAIL_RECORDS_MAX,
    Tail,
    record_shown,
)
from tailrace.errors import TailraceError, Truncated, UnreadableBatch
from tailrace.model import TopicPartition


def record(offset: int, value: bytes | None, key: bytes | None = None) -> ConsumerRecord:
    return ConsumerRecord(
        topic="t", partition=0, offset=offset, timestamp_ms=5, key=key, value=value, headers=()
    )


class Consumer:
    """Gives what it was given, raises what it was given, and then waits."""

    def __init__(self, *polls: list[ConsumerRecord] | TailraceError) -> None:
        self._polls = list(polls)
        self.assigned: list[TopicPartition] = []
        self.sought: list[TopicPartition] = []
        self.went: list[tuple[TopicPartition, int]] = []
        self.closed = False

    async def assign(self, partitions: Iterable[TopicPartition]) -> None:
        self.assigned = list(partitions)

    async def poll(self, *, timeout_ms: int | None) -> list[ConsumerRecord]:
        if not self._polls:
            assert timeout_ms
            await asyncio.sleep(timeout_ms / 1_000)
            return []
        found = self._polls.pop(0)
        if isinstance(found, TailraceError):
            raise found
        return found

    def stuck(self) -> list[TopicPartition]:
        return [TopicPartition("t", 1)]

    async def seek(self, partition: TopicPartition, offset: int) -> None:
        self.went.append((partition, offset))

    async def seek_to_end(self, partitions: Iterable[TopicPartition]) -> None:
        self.sought += list(partitions)

    async def close(self) -> None:
        self.closed = True


def shown(value: bytes | None) -> Any:
    return record_shown(record(1, value))["value"]


def test_text_is_text_and_other_bytes_are_hexadecimal() -> None:
    assert shown(None) is None
    assert shown(b"") == ""
    assert shown("Tee für 2".encode()) == "Tee für 2"
    assert shown(b"\xff\x00") == "0xff00"
    assert shown(b"x" * 10_000) == "x" * SHOWN_CHARACTERS + "…"
    # A character that is cut at the end of what is looked at is no reason to take it for bytes.
    assert shown("ü".encode() * 5_000 + b"x").startswith("ü" * 10)
    assert shown(b"a" + "ü".encode() * 5_000).endswith("…")


async def test_a_slow_browser_gets_the_newest_and_the_count() -> None:
    tail = Tail(Consumer, "t", 0, "tea")
    pushes = tail.pushes()
    assert (await anext(pushes))["records"] == []
    for offset in range(TAIL_RECORDS_MAX + 50):
        tail.take(record(offset, b"tea"))
        tail.take(record(offset, b"cake"))
    push = await anext(pushes)
    assert len(push["records"]) == TAIL_RECORDS_MAX
    assert push["records"][-1]["offset"] == TAIL_RECORDS_MAX + 49
    assert (push["found"], push["seen"]) == (TAIL_RECORDS_MAX + 50, 2 * (TAIL_RECORDS_MAX + 50))
    await pushes.aclose()  # type: ignore[attr-defined]


async def test_a_reader_that_fails_is_told() -> None:
    def fails() -> Consumer:
        raise OSError("no way")

    tail = Tail(fails, "t", 1, "")
    pushes = tail.pushes()
    await anext(pushes)
    assert "no way" in (await anext(pushes))["problem"]
    await pushes.aclose()  # type: ignore[attr-defined]


async def test_words_are_found_beyond_what_is_shown() -> None:
    tail = Tail(Consumer, "t", 0, "Needle")
    tail.take(record(0, b"x" * 5_000 + b" NEEDLE", key=b"k"))
    tail.take(record(1, b"k", key=b"\xff" * 5_000 + b"needle"))
    tail.take(record(2, b"x" * 5_000))
    pushes = tail.pushes()
    assert [each["offset"] for each in (await anext(pushes))["records"]] == [0, 1]
    await pushes.aclose()  # type: ignore[attr-defined]


async def test_partitions_that_are_not_read_are_told() -> None:
    consumer = Consumer()
    tail = Tail(lambda: consumer, "t", PARTITIONS_MAX + 1, "")
    pushes = tail.pushes()
    told = (await anext(pushes))["problem"]
    assert told == f"of {PARTITIONS_MAX + 1} partitions only the first {PARTITIONS_MAX} are read"
    await asyncio.sleep(0)
    assert consumer.assigned == [TopicPartition("t", each) for each in range(PARTITIONS_MAX)]
    await pushes.aclose()  # type: ignore[attr-defined]
    assert consumer.closed


async def test_a_tail_goes_on_at_the_end_after_what_it_cannot_go_on_from(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tailing, "AGAIN_MS", 1)
    consumer = Consumer([record(1, b"a")], Truncated("records are gone"), [record(2, b"b")])
    pushes = Tail(lambda: consumer, "t", 1, "").pushes()
    await anext(pushes)
    async with asyncio.timeout(10):
        told = await anext(pushes)
    assert [each["value"] for each in told["records"]] == ["a", "b"]
    assert told["problem"] == "records are gone"
    assert consumer.sought == [TopicPartition("t", 1)]
    await pushes.aclose()  # type: ignore[attr-defined]


async def test_F45_readers_in_the_console_go_on_behind_what_cannot_be_read() -> None:  # noqa: N802
    bad = UnreadableBatch("t", 3, 10, 14, "junk")
    consumer = Consumer([record(1, b"a")], bad, [record(2, b"b")])
    pushes = Tail(lambda: consumer, "t", 4, "").pushes()
    await anext(pushes)
    async with asyncio.timeout(10):
        told = await anext(pushes)
    assert [each["value"] for each in told["records"]] == ["a", "b"]
    assert "t-3: the batch of offsets 10 to 14 cannot be read" in told["problem"]
    assert (consumer.went, consumer.sought) == ([(TopicPartition("t", 3), 15)], [])
    await pushes.aclose()  # type: ignore[attr-defined]


def test_what_is_read_ahead_has_one_limit_for_all_partitions() -> None:
    assert SETTINGS.fetch_max_bytes == TAIL_BYTES_MAX
    assert SETTINGS.group_id is None
