"""Batches that are stored and cannot be decoded: named, never passed over unasked (A4, A5, F45)."""

from __future__ import annotations

import asyncio
import logging
import pickle
from typing import Any

import pytest

from tailrace.client.consumer import ConsumerCore
from tailrace.client.unreadable import (
    check_on_corrupt,
    may_differ_elsewhere,
    unreadable_body,
    unreadable_bytes,
)
from tailrace.errors import (
    BatchFault,
    CorruptBatch,
    InvalidConfig,
    TailraceError,
    UnreadableBatch,
)
from tailrace.model import TopicPartition
from tailrace.record.header import CONTROL_BIT, assemble, read_header
from unit.client.bad_batches import JUNK, batch, junk_body

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
BAD = (10, 14)


def store(world: Any, number: int, values: list[bytes], *, bad: bool = False) -> None:
    log = world.cluster.get("t", number)
    made = batch(values, base_offset=log.end, leader_epoch=log.leader_epoch)
    log.store(junk_body(made) if bad else made)
    log.commit(log.end)


def numbers(first: int, last: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, last)]


def with_junk(world: Any, partitions: int = 1) -> None:
    """Offsets 0 to 9 in two batches, 10 to 14 unreadable, 15 to 19; in partition 0."""
    world.cluster.create("t", partitions)
    store(world, 0, numbers(0, 5))
    store(world, 0, numbers(5, 10))
    store(world, 0, numbers(10, 15), bad=True)
    store(world, 0, numbers(15, 20))


async def reading(world: Any, **settings: Any) -> ConsumerCore:
    consumer: ConsumerCore = world.consumer(auto_offset_reset="earliest", **settings)
    if "group_id" in settings:
        await consumer.subscribe(["t"])
    else:
        await consumer.assign_topics(["t"])
    return consumer


async def polled(consumer: ConsumerCore, polls: int) -> list[tuple[int, int] | str]:
    """What so many polls gave: (partition, offset), or the name of an error."""
    found: list[tuple[int, int] | str] = []
    for _ in range(polls):
        try:
            records = await consumer.poll(timeout_ms=1_000)
        except TailraceError as error:
            found.append(type(error).__name__)
        else:
            found += [(each.partition, each.offset) for each in records]
    return found


async def offsets_of(consumer: ConsumerCore, *, arrow: bool) -> list[Any]:
    """The offsets of one poll or of one batch."""
    if not arrow:
        return [each.offset for each in await consumer.poll(timeout_ms=2_000)]
    found = await consumer.next_batch(timeout_ms=2_000)
    return [] if found is None else found.column("offset").to_pylist()


# What it is called.


def test_the_error_names_place_and_reason_and_says_what_to_do() -> None:
    cause = CorruptBatch(BatchFault.BAD_BODY, "not an Arrow message")
    error = unreadable_body(T1, read_header(batch(numbers(7, 9), base_offset=7)), cause)
    assert (error.topic, error.partition, error.first_offset, error.last_offset) == ("t", 1, 7, 8)
    assert error.retriable is False
    assert "not an Arrow message" in error.reason
    for advice in ("t-1", "7 to 8", "Seek to 9", 'on_corrupt="skip"', "log verify", "log dump"):
        assert advice in str(error)
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.last_offset, again.fault) == (str(error), 8, error.fault)
    assert isinstance(again, UnreadableBatch)


@pytest.mark.parametrize(
    ("data", "last"),
    [
        (b"", 3),
        (b"short", 3),
        # The next batch says where this one ends, whatever this one says.
        (batch(numbers(3, 6), base_offset=3) + batch([b""], base_offset=5), 4),
        (batch(numbers(3, 6), base_offset=3), 5),
        # What begins later than what is due: the gap.
        (batch([b""], base_offset=9), 8),
    ],
)
def test_bytes_that_are_damaged_say_only_what_can_be_believed(data: bytes, last: int) -> None:
    error = unreadable_bytes(T0, 3, data, CorruptBatch(BatchFault.BAD_CRC))
    assert (error.first_offset, error.last_offset) == (3, last)
    assert may_differ_elsewhere(error)


def test_another_replica_has_the_same_body() -> None:
    header = read_header(batch([b"1"]))
    cause = CorruptBatch(BatchFault.BAD_BODY)
    assert not may_differ_elsewhere(unreadable_body(T0, header, cause))
    assert not may_differ_elsewhere(unreadable_body(T0, header, ValueError("odd")))
    assert not may_differ_elsewhere(cause)
    assert not may_differ_elsewhere(None)


def test_on_corrupt_is_raise_or_skip() -> None:
    check_on_corrupt("on_corrupt", "skip")
    with pytest.raises(InvalidConfig, match="on_corrupt='ignore' must be one of raise, skip"):
        check_on_corrupt("on_corrupt", "ignore")


# How consumers meet it.


@pytest.mark.parametrize("arrow", [False, True])
def test_A5_a_retry_loop_never_passes_over_a_batch_that_cannot_be_read(  # noqa: N802
    simulate: Any, arrow: bool
) -> None:
    async def main(world: Any) -> None:
        with_junk(world)
        consumer = await reading(world, group_id="g")
        found: list[Any] = []
        while len(found) < 10:
            found += await offsets_of(consumer, arrow=arrow)
        assert found == list(range(10)), "what stands before comes first"
        for _ in range(5):
            with pytest.raises(UnreadableBatch) as caught:
                await offsets_of(consumer, arrow=arrow)
            assert (caught.value.first_offset, caught.value.last_offset) == BAD
            assert await consumer.position(T0) == 10
        await consumer.commit()
        assert (await consumer.committed([T0]))[T0].offset == 10
        await consumer.seek(T0, 15)
        assert await offsets_of(consumer, arrow=arrow) == list(range(15, 20))
        await consumer.close()

    simulate(main)


@pytest.mark.parametrize("arrow", [False, True])
def test_A4_stored_junk_is_skipped_counted_and_logged_when_told(  # noqa: N802
    simulate: Any, caplog: pytest.LogCaptureFixture, arrow: bool
) -> None:
    async def main(world: Any) -> None:
        with_junk(world)
        consumer = await reading(world, on_corrupt="skip", max_poll_records=4)
        found: list[Any] = []
        while len(found) < 15:
            found += await offsets_of(consumer, arrow=arrow)
        assert found == [*range(10), *range(15, 20)]
        assert consumer.metrics()["skipped_batches"] == 1
        await consumer.close()

    with caplog.at_level(logging.WARNING):
        simulate(main)
    (line,) = [each.message for each in caplog.records if "skipped" in each.message]
    assert "topic=t partition=0 first_offset=10 last_offset=14 reason=corrupt batch" in line


def test_A4_stored_junk_in_one_partition_does_not_stop_the_others(simulate: Any) -> None:  # noqa: N802
    async def main(world: Any) -> None:
        with_junk(world, 2)
        consumer = await reading(world, group_id="g", auto_commit_interval_ms=100)
        seen = await polled(consumer, 6)
        assert [each for each in seen if each != "UnreadableBatch"] == [(0, n) for n in range(10)]
        # A healthy partition that is never idle: both come, again and again.
        errors = 0
        for at in range(0, 40, 2):
            store(world, 1, numbers(at, at + 2))
            await asyncio.sleep(0.05)
            seen += (more := await polled(consumer, 2))
            errors += more.count("UnreadableBatch")
        healthy = [each for each in seen if each[0] == 1]
        assert healthy == [(1, n) for n in range(40)]
        assert errors >= 10, "the error is not hidden by what others bring"
        await consumer.close()
        after = world.consumer(group_id="g")
        await after.subscribe(["t"])
        stored = await after.committed([T0, T1])
        assert {each: at.offset for each, at in stored.items()} == {T0: 10, T1: 40}
        await after.close()

    simulate(main)


def test_F45_readers_that_poll_again_at_once_do_not_starve_the_loop(simulate: Any) -> None:  # noqa: N802
    async def main(world: Any) -> None:
        with_junk(world, 2)
        consumer = await reading(world)
        await polled(consumer, 4)
        turns: list[int] = []
        for number in range(5):
            asyncio.get_running_loop().call_soon(turns.append, number)
            with pytest.raises(UnreadableBatch):
                await consumer.poll(timeout_ms=0)
            assert turns == list(range(number + 1)), "others have had their turn"
        await consumer.close()

    simulate(main)


def test_F45_readers_keep_their_place_over_a_rebalance(simulate: Any) -> None:  # noqa: N802
    async def main(world: Any) -> None:
        with_junk(world, 2)
        store(world, 1, numbers(0, 4))
        first = await reading(world, group_id="g", auto_commit_interval_ms=100)
        seen = await polled(first, 6)
        assert "UnreadableBatch" in seen
        second = await reading(world, group_id="g", auto_commit_interval_ms=100)
        gathered: list[Any] = []
        for _ in range(60):
            gathered += await polled(first, 1)
            gathered += await polled(second, 1)
            await asyncio.sleep(0.1)
        assert len(first.assignment()) == len(second.assignment()) == 1
        assert "UnreadableBatch" in gathered[-6:]
        assert not [each for each in gathered if each[0] == 0 and each != "UnreadableBatch"]
        assert (await first.committed([T0]))[T0].offset == 10
        await first.close()
        await second.close()

    simulate(main)


def test_a_paused_partition_keeps_its_error_to_itself(simulate: Any) -> None:
    async def main(world: Any) -> None:
        with_junk(world, 2)
        consumer = await reading(world)
        assert "UnreadableBatch" in await polled(consumer, 4)
        await consumer.pause([T0])
        store(world, 1, numbers(0, 3))
        assert await polled(consumer, 3) == [(1, 0), (1, 1), (1, 2)]
        await consumer.resume([T0])
        assert await polled(consumer, 1) == ["UnreadableBatch"]
        await consumer.close()

    simulate(main)


def test_a_seek_into_the_batch_meets_the_same_error(simulate: Any) -> None:
    async def main(world: Any) -> None:
        with_junk(world)
        consumer = await reading(world)
        await consumer.seek(T0, 12)
        with pytest.raises(UnreadableBatch) as caught:
            await consumer.poll()
        assert (caught.value.first_offset, caught.value.last_offset) == BAD
        assert await consumer.position(T0) == 12
        await consumer.close()

    simulate(main)


def test_control_batches_are_not_mistaken_for_it(simulate: Any) -> None:
    async def main(world: Any) -> None:
        world.cluster.create("t", 1)
        store(world, 0, numbers(0, 2))
        log = world.cluster.get("t", 0)
        header = read_header(batch([b"marker"], base_offset=2))
        log.store(
            assemble(header._replace(attributes=CONTROL_BIT), JUNK * (header.body_bytes // 8))
        )
        log.commit(log.end)
        store(world, 0, numbers(3, 5))
        consumer = await reading(world)
        assert await polled(consumer, 3) == [(0, n) for n in (0, 1, 3, 4)]
        async with world.reader("t", 0, 0) as reader:
            assert [(await reader.next()).header.base_offset for _ in range(3)] == [0, 2, 3]
        await consumer.close()

    simulate(main)


def test_A5_a_reader_of_one_partition_stays_before_it(simulate: Any) -> None:  # noqa: N802
    async def main(world: Any) -> None:
        with_junk(world)
        async with world.reader("t", 0, 0) as reader:
            assert [(await reader.next()).header.base_offset for _ in range(2)] == [0, 5]
            for _ in range(3):
                with pytest.raises(UnreadableBatch) as caught:
                    await reader.next()
                assert (caught.value.first_offset, caught.value.last_offset) == BAD
                assert reader.position == 10
            with pytest.raises(UnreadableBatch):
                await anext(reader.records())
            reader.seek(15)
            assert (await reader.next()).header.base_offset == 15
        async with world.reader("t", 0, 0, on_corrupt="skip") as reader:
            found = [(await reader.next()).header.base_offset for _ in range(3)]
            assert (found, reader.skipped_batches, reader.position) == ([0, 5, 15], 1, 20)

    simulate(main)


@pytest.mark.parametrize("on_corrupt", ["raise", "skip"])
def test_F45_readers_of_bytes_that_come_damaged_each_time(simulate: Any, on_corrupt: str) -> None:  # noqa: N802
    async def main(world: Any) -> None:
        world.cluster.create("t", 1)
        store(world, 0, numbers(0, 5))
        log = world.cluster.get("t", 0)
        damaged = bytearray(batch(numbers(5, 8), base_offset=5))
        damaged[-1] ^= 1
        log.store(bytes(damaged))
        log.commit(log.end)
        store(world, 0, numbers(8, 10))
        consumer = await reading(world, on_corrupt=on_corrupt)
        assert await polled(consumer, 1) == [(0, n) for n in range(5)]
        if on_corrupt == "skip":
            seen = await polled(consumer, 10)
            assert seen == [(0, 8), (0, 9)]
            assert consumer.metrics()["skipped_batches"] == 1
        else:
            seen = await polled(consumer, 10)
            assert set(seen) == {"UnreadableBatch"}
            assert await consumer.position(T0) == 5
            with pytest.raises(UnreadableBatch, match=r"5 to 7 cannot be read.*CRC"):
                await consumer.poll()
        await consumer.close()
        async with world.reader("t", 0, 5, on_corrupt=on_corrupt) as reader:
            if on_corrupt == "skip":
                assert (await reader.next()).header.base_offset == 8
            else:
                for _ in range(2):
                    with pytest.raises(UnreadableBatch):
                        await reader.next()

    simulate(main)
