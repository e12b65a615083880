"""The raw reader of one partition, against a model cluster, in virtual time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from simulation.model_cluster import Entry, ModelPartition
from tailrace.client.reader import PartitionReader
from tailrace.errors import (
    ClientClosed,
    CorruptBatch,
    InvalidConfig,
    InvalidRequest,
    OffsetOutOfRange,
    Truncated,
    UnknownTopic,
    UnknownTopicId,
)
from tailrace.record.build import BatchBuilder
from tailrace.record.header import read_header


def _fill(log: ModelPartition, *values: bytes, records: int = 1) -> None:
    """One committed batch for each value, of so many equal records."""
    for value in values:
        builder = BatchBuilder()
        for _ in range(records):
            builder.append(value, timestamp_ms=5)
        log.store(builder.build(base_offset=log.end, leader_epoch=log.leader_epoch))
    log.commit(log.end)


async def _values(reader: PartitionReader, number: int) -> list[bytes | None]:
    found: list[bytes | None] = []
    async for record in reader.records():
        found.append(record.value)
        if len(found) == number:
            break
    return found


def test_batches_come_in_order_and_as_they_are_written(simulate: Any) -> None:
    async def main(world: Any) -> None:
        world.cluster.create("t")
        log = world.cluster.get("t")
        _fill(log, b"0", b"1")
        async with world.reader("t", 0, 0) as reader:
            first = await reader.next()
            assert first.header.base_offset == 0
            assert bytes(first.data) == log.entries[0].data
            assert (reader.position, reader.last_epoch) == (1, 0)
            view = await anext(aiter(reader))
            assert [record.value for record in view.records()] == [b"1"]
            assert (reader.high_watermark, reader.log_start, reader.trouble) == (2, 0, "")
            before_ms = world.loop.now_ms
            assert await reader.next(timeout_ms=300) is None
            assert world.loop.now_ms - before_ms == 300
            waiting = asyncio.ensure_future(reader.next())
            await asyncio.sleep(0.2)
            _fill(log, b"2")
            assert (await waiting).header.base_offset == 2
        with pytest.raises(ClientClosed):
            await reader.next()

    simulate(main)


def test_nothing_comes_from_beyond_the_end(simulate: Any) -> None:
    async def main(world: Any) -> None:
        world.cluster.create("t")
        log = world.cluster.get("t")
        _fill(log, *[b"x" * 1_000] * 50, records=2)
        size = log.entries[0].header.length
        # The end lies within the fifth batch, which therefore comes whole.
        async with world.reader("t", 0, 3, end=9) as reader:
            while reader.position < 9:
                await reader.next()
            assert reader.position == 10
            assert await reader.next(timeout_ms=3_000) is None
            assert reader.received_bytes == 4 * size

    simulate(main)


@pytest.mark.parametrize(("offset", "expected"), [("earliest", [b"0", b"1"]), (3, [b"1", b"1"])])
def test_where_to_begin(simulate: Any, offset: int | str, expected: list[bytes]) -> None:
    async def main(world: Any) -> None:
        world.cluster.create("t")
        _fill(world.cluster.get("t"), b"0", records=1)
        _fill(world.cluster.get("t"), b"1", records=4)
        async with world.reader("t", 0, offset) as reader:
            assert await _values(reader, 2) == expected

    simulate(main)


def test_from_the_end_only_what_is_new(simulate: Any) -> None:
    async def main(world: Any) -> None:
        world.cluster.create("t")
        _fill(world.cluster.get("t"), b"old")
        async with world.reader("t", 0, "latest") as reader:
            assert await reader.next(timeout_ms=500) is None
            assert reader.position == 1
            _fill(world.cluster.get("t"), b"new")
            assert await _values(reader, 1) == [b"new"]

    simulate(main)


def test_a_slow_program_bounds_what_is_read_ahead(simulate: Any) -> None:
    async def main(world: Any) -> None:
        world.cluster.create("t")
        log = world.cluster.get("t")
        _fill(log, *[bytes(10_000)] * 100)
        async with world.reader("t", 0, 0, credit_bytes=65_536) as reader:
            await asyncio.sleep(5)
            assert len(reader._plan.arrivals) <= 8, "the credit, and one batch beyond it"
            for number in range(100):
                assert (await reader.next()).header.base_offset == number
                await asyncio.sleep(0.01)
                held = sum(each.held for each in reader._plan.accounts.values())
                assert held <= 65_536 + 11_000

    simulate(main)


def test_leaders_come_and_go_and_nothing_is_missed_or_repeated(simulate: Any) -> None:
    async def main(world: Any) -> None:
        cluster, rng = world.cluster, world.loop.fork_rng("leaders")
        cluster.create("t")
        log = cluster.get("t")

        async def disturb() -> None:
            for number in range(300):
                _fill(log, b"%d" % number)
                await asyncio.sleep(rng.expovariate(1 / 0.02))
                if rng.random() < 0.1:
                    cluster.move(log, rng.choice([-1, 0, 1, 2]))
                if rng.random() < 0.05:
                    world.network.break_connections("client", f"b{rng.randrange(3)}")
            cluster.move(log, 1)

        disturbing = asyncio.ensure_future(disturb())
        async with world.reader("t", 0, 0) as reader:
            assert await _values(reader, 300) == [b"%d" % number for number in range(300)]
        await disturbing

    simulate(main)


def test_a_leader_that_hangs_is_left_when_another_leads(simulate: Any) -> None:
    async def main(world: Any) -> None:
        cluster = world.cluster
        cluster.create("t")
        log = cluster.get("t")
        _fill(log, b"0")
        async with world.reader("t", 0, 0) as reader:
            await reader.next()
            world.processes["b0"].pause()
            await asyncio.sleep(1)
            cluster.alive[0] = False
            cluster.move(log, 1)
            _fill(log, b"1")
            before_ms = world.loop.now_ms
            assert await _values(reader, 1) == [b"1"]
            assert world.loop.now_ms - before_ms < 5_000

    simulate(main)


def test_an_offset_that_is_not_there_is_told_and_seek_goes_on(simulate: Any) -> None:
    async def main(world: Any) -> None:
        world.cluster.create("t")
        log = world.cluster.get("t")
        _fill(log, b"0", b"1")
        async with world.reader("t", 0, 9) as reader:
            with pytest.raises(OffsetOutOfRange) as caught:
                await reader.next()
            assert (caught.value.offset, caught.value.log_start, caught.value.log_end) == (9, 0, 2)
            with pytest.raises(OffsetOutOfRange):
                await reader.next()
            reader.seek(1)
            assert await _values(reader, 1) == [b"1"]
            reader.seek("earliest")
            assert await _values(reader, 2) == [b"0", b"1"]

    simulate(main)


def test_F4_records_that_were_read_and_are_gone_are_told(simulate: Any) -> None:  # noqa: N802
    """An unclean election cut the log; other records have the offsets now."""

    async def main(world: Any) -> None:
        cluster = world.cluster
        cluster.create("t")
        log = cluster.get("t")
        _fill(log, b"0", b"1", b"2")
        async with world.reader("t", 0, 0) as reader:
            assert await _values(reader, 3) == [b"0", b"1", b"2"]
            log.truncate(1)
            cluster.move(log, 1)
            _fill(log, b"other 1", b"other 2", b"other 3")
            with pytest.raises(Truncated) as caught:
                await reader.next()
            assert caught.value.agreed_offset == 1
            reader.seek(1)
            assert await _values(reader, 1) == [b"other 1"]

    simulate(main)


def test_F34_a_topic_made_anew_is_not_the_one_that_was_read(simulate: Any) -> None:  # noqa: N802
    async def main(world: Any) -> None:
        cluster = world.cluster
        cluster.create("t")
        _fill(cluster.get("t"), b"0")
        async with world.reader("t", 0, 0) as reader:
            assert await _values(reader, 1) == [b"0"]
            old = reader.topic_id
            cluster.delete("t")
            cluster.create("t")
            _fill(cluster.get("t"), b"a", b"b")
            with pytest.raises(UnknownTopicId):
                await reader.next()
        async with world.reader("t", 0, 1, topic_id=old) as reader:
            with pytest.raises(UnknownTopicId):
                await reader.next()

    simulate(main)


def test_a_topic_that_is_deleted_or_never_was(simulate: Any) -> None:
    async def main(world: Any) -> None:
        world.cluster.create("t")
        _fill(world.cluster.get("t"), b"0")
        async with world.reader("t", 0, 0) as reader:
            await reader.next()
            world.cluster.delete("t")
            before_ms = world.loop.now_ms
            with pytest.raises(UnknownTopic):
                await reader.next()
            assert world.loop.now_ms - before_ms < 5_000
        async with world.reader("nowhere", 0, 0, topic_timeout_ms=500) as reader:
            with pytest.raises(UnknownTopic):
                await reader.next()
        world.cluster.create("t")
        async with world.reader("t", 5, 0) as reader:
            with pytest.raises(UnknownTopic, match="partitions 0 to 0"):
                await reader.next()

    simulate(main)


@pytest.mark.parametrize("is_healed", [True, False])
def test_damaged_bytes_are_asked_for_again_and_never_shown(simulate: Any, is_healed: bool) -> None:
    async def main(world: Any) -> None:
        world.cluster.create("t")
        log = world.cluster.get("t")
        _fill(log, b"0", b"1")
        good = log.entries[1]
        bad = bytearray(good.data)
        bad[-10] ^= 1
        log.entries[1] = Entry(good.header, bytes(bad))
        async with world.reader("t", 0, 0) as reader:
            assert (await reader.next()).header.base_offset == 0
            if is_healed:
                log.entries[1] = good
                assert await _values(reader, 1) == [b"1"]
            else:
                with pytest.raises(CorruptBatch):
                    await reader.next()

    simulate(main)


def test_a_hole_in_the_log_is_an_error(simulate: Any) -> None:
    async def main(world: Any) -> None:
        world.cluster.create("t")
        log = world.cluster.get("t")
        _fill(log, b"0", b"1", b"2")
        del log.entries[1]
        async with world.reader("t", 0, 0) as reader:
            await reader.next()
            with pytest.raises(CorruptBatch, match="offset 2 came where 1 was due"):
                await reader.next()

    simulate(main)


def test_batches_of_markers_are_not_shown_as_records(simulate: Any) -> None:
    async def main(world: Any) -> None:
        world.cluster.create("t")
        log = world.cluster.get("t")
        builder = BatchBuilder()
        builder.append(b"marker")
        log.store(builder.build(control=True, leader_epoch=0))
        _fill(log, b"1")
        async with world.reader("t", 0, 0) as reader:
            assert await _values(reader, 1) == [b"1"]
            reader.seek(0)
            assert read_header((await reader.next()).data).is_control

    simulate(main)


def test_what_stands_in_the_way_can_be_asked_for(simulate: Any) -> None:
    async def main(world: Any) -> None:
        cluster = world.cluster
        cluster.create("t")
        cluster.move(cluster.get("t"), -1)
        async with world.reader("t", 0, 0) as reader:
            assert await reader.next(timeout_ms=500) is None
            assert "no leader" in reader.trouble

    simulate(main)


def test_settings_that_cannot_be(simulate: Any) -> None:
    async def main(world: Any) -> None:
        with pytest.raises(InvalidRequest):
            world.reader("t", 0, "middle")
        with pytest.raises(InvalidConfig):
            world.reader("t", 0, 0, credit_bytes=10)

    simulate(main)
