from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

from tailrace.client.reader import PartitionReader
from tailrace.console.tailing import (
    PARTITIONS_MAX,
    SHOWN_CHARACTERS,
    TAIL_RECORDS_MAX,
    Tail,
    record_shown,
)
from tailrace.record.view import Record


def record(offset: int, value: bytes | None, key: bytes | None = None) -> Record:
    return Record(offset=offset, timestamp_ms=5, key=key, value=value, headers=())


def shown(value: bytes | None) -> Any:
    return record_shown(0, record(1, value))["value"]


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
    tail = Tail(lambda _: cast("PartitionReader", None), 0, "tea")
    pushes = tail.pushes()
    assert (await anext(pushes))["records"] == []
    for offset in range(TAIL_RECORDS_MAX + 50):
        tail.take(0, record(offset, b"tea"))
        tail.take(0, record(offset, b"cake"))
    push = await anext(pushes)
    assert len(push["records"]) == TAIL_RECORDS_MAX
    assert push["records"][-1]["offset"] == TAIL_RECORDS_MAX + 49
    assert (push["found"], push["seen"]) == (TAIL_RECORDS_MAX + 50, 2 * (TAIL_RECORDS_MAX + 50))
    await pushes.aclose()  # type: ignore[attr-defined]


async def test_a_reader_that_fails_is_told() -> None:
    def fails(_: int) -> PartitionReader:
        raise OSError("no way")

    tail = Tail(fails, 1, "")
    pushes = tail.pushes()
    await anext(pushes)
    assert "no way" in (await anext(pushes))["problem"]
    await pushes.aclose()  # type: ignore[attr-defined]


async def test_words_are_found_beyond_what_is_shown() -> None:
    tail = Tail(lambda _: cast("PartitionReader", None), 0, "Needle")
    tail.take(0, record(0, b"x" * 5_000 + b" NEEDLE", key=b"k"))
    tail.take(0, record(1, b"k", key=b"\xff" * 5_000 + b"needle"))
    tail.take(0, record(2, b"x" * 5_000))
    pushes = tail.pushes()
    assert [each["offset"] for each in (await anext(pushes))["records"]] == [0, 1]
    await pushes.aclose()  # type: ignore[attr-defined]


async def test_partitions_that_are_not_read_are_told() -> None:
    async def nothing() -> None: ...

    class Silent:
        """A reader of a partition to which nothing is written."""

        async def records(self) -> AsyncIterator[Record]:
            await asyncio.Event().wait()
            yield record(0, b"")

        close = staticmethod(nothing)

    tail = Tail(lambda _: cast("PartitionReader", Silent()), PARTITIONS_MAX + 1, "")
    pushes = tail.pushes()
    told = (await anext(pushes))["problem"]
    assert told == f"of {PARTITIONS_MAX + 1} partitions only the first {PARTITIONS_MAX} are read"
    await pushes.aclose()  # type: ignore[attr-defined]
