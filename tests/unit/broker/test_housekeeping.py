"""Retention and compaction in brokers: on leaders and followers, bounded, and never too early."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from simulation.loop import LoopClock
from tailrace.broker.hosted import Hosted, StopOrder
from tailrace.broker.housekeeping import STEP_BYTES, Housekeeping
from tailrace.log.cleaning.compaction import CompactionWork
from tailrace.record.build import BatchBuilder
from tailrace.record.view import BatchView
from tailrace.v1 import broker_pb2
from unit.broker.trio import ALL, T0, TOPIC_ID, Trio, batch, mark_deleted, simulate

QUICK = {
    "retention_check_interval_ms": 500,
    "retention_clock_settle_ms": 1_000,
    "cleaner_backoff_ms": 500,
    "flush_interval_ms": 500,
    "checkpoint_interval_ms": 500,
}
COMPACTED = {
    "cleanup.policy": "compact",
    "segment.bytes": "2048",
    "min.cleanable.dirty.ratio": "0.1",
    "delete.retention.ms": "3000",
}


def keyed(*pairs: tuple[str, str | None], timestamp_ms: int = 1) -> bytes:
    builder = BatchBuilder()
    for key, value in pairs:
        data = None if value is None else value.encode()
        builder.append(data, key=key.encode(), timestamp_ms=timestamp_ms)
    return builder.build()


def housekeeping(trio: Trio, number: int = 0) -> Housekeeping:
    found = trio.brokers[number].housekeeping
    assert found is not None
    return found


def table(hosted: Hosted) -> dict[bytes | None, bytes | None]:
    """What a reader of the whole log knows of each key in the end."""
    found: dict[bytes | None, bytes | None] = {}
    offset = hosted.log.log_start
    while offset < hosted.log.log_end:
        view = BatchView(hosted.log.read(offset, bytes_max=1))
        view.verify()
        for record in view.records():
            found[record.key] = record.value
        offset = view.header.next_offset
    return found


def records(hosted: Hosted) -> int:
    return sum(each.record_count for each in hosted.log.headers(hosted.log.log_start))


async def fill(trio: Trio, count: int, *, keys: int = 5) -> dict[bytes | None, bytes | None]:
    """Write values of a few keys over and over; return the last ones."""
    rng = Random(count)
    last: dict[bytes | None, bytes | None] = {}
    for number in range(count):
        key = f"k{rng.randrange(keys)}"
        assert not (await trio.produce(keyed((key, f"v{number}" * 10)))).error
        last[key.encode()] = f"v{number}".encode() * 10
    return last


@simulate
async def test_retention_removes_old_segments_on_every_replica(trio: Trio) -> None:
    await trio.start(**QUICK)
    await trio.lead(0, 0, config={"retention.ms": "1500"})
    await trio.produce(batch(timestamp_ms=trio.clock.wall_ms()))
    trio.hosted(0).log.roll()
    await asyncio.sleep(1)
    await trio.produce(batch(timestamp_ms=trio.clock.wall_ms()))
    assert trio.hosted(0).log.log_start == 0
    await trio.until(lambda: [trio.hosted(each).log.log_start for each in ALL] == [3, 3, 3])
    assert trio.heard("b0: t-0: 1 segments gone")
    assert not trio.heard("b1: t-0: 1 segments gone"), "followers follow"
    names = trio.files[0].list("/data/t-0")
    assert not [name for name in names if name.endswith(".removed")]


@simulate
async def test_retention_by_bytes_needs_no_clock(trio: Trio) -> None:
    await trio.start(**QUICK | {"retention_clock_settle_ms": 10**9})
    config = {"retention.ms": "1", "retention.bytes": "3000", "segment.bytes": "1024"}
    await trio.lead(0, 0, config=config)
    for _ in range(40):
        await trio.produce()
    await trio.until(lambda: trio.hosted(0).log.size_bytes < 5000)
    assert trio.hosted(0).log.size_bytes >= 3000, "nothing is too old for a clock not yet believed"
    start = trio.hosted(0).log.log_start
    await trio.until(lambda: trio.hosted(2).log.log_start == start)


@simulate
async def test_a_clock_that_jumps_ahead_makes_nothing_old_f29(trio: Trio) -> None:
    await trio.start(**QUICK | {"retention_clock_settle_ms": 20_000})
    await trio.lead(0, 0, config={"retention.ms": "3600000"})
    for _ in range(3):
        await trio.produce(batch(timestamp_ms=trio.clock.wall_ms()))
        trio.hosted(0).log.roll()
    await asyncio.sleep(30)
    trio.clock.wall_skew_ms = 365 * 24 * 3_600_000
    await asyncio.sleep(15)
    assert trio.hosted(0).log.log_start == 0
    trio.clock.wall_skew_ms = 0
    await asyncio.sleep(30)
    assert trio.hosted(0).log.log_start == 0


@simulate
async def test_timestamps_of_producers_trick_nobody_f29(trio: Trio) -> None:
    await trio.start(**QUICK)
    await trio.lead(0, 0, config={"retention.ms": "3000"})
    year_ms = 365 * 24 * 3_600_000
    now_ms = trio.clock.wall_ms()
    for timestamp_ms in (now_ms - year_ms, now_ms + year_ms, now_ms):
        await trio.produce(batch(timestamp_ms=timestamp_ms))
        trio.hosted(0).log.roll()
    await asyncio.sleep(2)
    assert trio.hosted(0).log.log_start == 0, "the past of a producer does not delete"
    await trio.until(lambda: trio.hosted(0).log.log_start == 9)


@simulate
async def test_every_replica_compacts_its_log(trio: Trio) -> None:
    await trio.start(**QUICK)
    await trio.lead(0, 0, config=COMPACTED)
    last = await fill(trio, 200)
    before = trio.hosted(0).log.size_bytes
    await trio.until(lambda: all(records(trio.hosted(each)) < 60 for each in ALL))
    for each in ALL:
        hosted = trio.hosted(each)
        assert table(hosted) == last
        assert hosted.log.log_end == 200
        assert hosted.log.size_bytes < before
        assert trio.heard(f"b{each}: t-0: compacted to offset")
    assert not (await trio.produce(keyed(("k0", "after")))).error


@simulate
async def test_nothing_above_the_high_watermark_is_compacted(trio: Trio) -> None:
    await trio.start(0, 1, **QUICK)
    await trio.lead(0, 0, isr=(0, 1), replicas=(0, 1), config=COMPACTED)
    await fill(trio, 50)
    high = trio.hosted(0).machine.high_watermark
    trio.processes[1].pause()
    for _ in range(100):
        await trio.produce(keyed(("k0", "x" * 50)), acks=broker_pb2.ACKS_LEADER)
    await trio.until(lambda: trio.hosted(0).log.log_end > 120)
    await asyncio.sleep(2)
    assert trio.hosted(0).machine.high_watermark == high
    cleaned = housekeeping(trio)._cleaned_to(trio.hosted(0))
    assert 0 < cleaned <= high


@simulate
async def test_tombstones_go_when_their_time_has_come(trio: Trio) -> None:
    await trio.start(**QUICK)
    await trio.lead(0, 0, config=COMPACTED)
    await fill(trio, 50)
    await trio.produce(keyed(("k0", None)))
    await fill(trio, 60, keys=4)
    for number in range(20):
        await trio.produce(keyed((f"other{number}", "x" * 200)))
        await asyncio.sleep(0.5)
    await trio.until(lambda: b"k4" in table(trio.hosted(0)))
    await trio.produce(keyed(("k4", None)))
    assert table(trio.hosted(0))[b"k4"] is None
    for number in range(60):
        await trio.produce(keyed((f"other{number % 7}", "x" * 200)))
        await asyncio.sleep(0.5)
    assert b"k4" not in table(trio.hosted(0))


@simulate
async def test_an_old_segment_that_nobody_writes_to_is_closed_and_compacted(trio: Trio) -> None:
    await trio.start(**QUICK)
    await trio.lead(0, 0, config=COMPACTED | {"segment.bytes": "1000000", "segment.ms": "4000"})
    last = await fill(trio, 40)
    assert records(trio.hosted(0)) == 40
    await trio.until(lambda: records(trio.hosted(0)) == len(last))
    assert table(trio.hosted(0)) == last


@simulate
async def test_young_records_are_left_alone(trio: Trio) -> None:
    await trio.start(**QUICK)
    await trio.lead(0, 0, config=COMPACTED | {"min.compaction.lag.ms": "20000"})
    await fill(trio, 100)
    await asyncio.sleep(10)
    assert records(trio.hosted(0)) == 100
    await trio.until(lambda: records(trio.hosted(0)) < 60, within_s=60)


@simulate
async def test_compaction_rests_so_that_it_keeps_its_rate(trio: Trio) -> None:
    await trio.start(0, **QUICK | {"cleaner_io_bytes_per_s": 1_000_000})
    config = COMPACTED | {"segment.bytes": "1000000", "min.cleanable.dirty.ratio": "1"}
    await trio.lead(0, 0, isr=(0,), replicas=(0,), config=config)
    for number in range(40):
        value = f"{number}".zfill(500_000)
        assert not (await trio.produce(keyed((f"k{number % 30}", value)))).error
    keeping = housekeeping(trio)
    await trio.until(lambda: keeping.now_cleaning == T0)
    began_ms = trio.clock.monotonic_ms()
    await trio.until(lambda: keeping.passes == 1, within_s=100)
    took_s = (trio.clock.monotonic_ms() - began_ms) / 1000
    # 20 MB are read, 15 MB of them once more and written.
    assert 30 < took_s < 70
    assert took_s / 4 > STEP_BYTES / 1_000_000, "it rested more than once"


@simulate
async def test_a_disk_that_fails_makes_compaction_wait(trio: Trio) -> None:
    await trio.start(0, **QUICK)
    await trio.lead(0, 0, isr=(0,), replicas=(0,), config=COMPACTED | {"segment.ms": "3000"})
    last = await fill(trio, 100)
    keeping = housekeeping(trio)
    trio.files[0].fail_next_sync(".cleaned")
    await trio.until(lambda: trio.heard("not compacted, again in"))
    assert table(trio.hosted(0)) == last
    assert not (await trio.produce(keyed(("k0", "still")))).error
    await trio.until(lambda: trio.heard("compacted to offset"))
    assert keeping.passes >= 2


@simulate
async def test_bytes_that_nobody_foresaw_stop_one_compaction_and_no_broker(trio: Trio) -> None:
    """Arrow and numpy raise ValueError: once that ended the broker, and again at each start."""
    await trio.start(0, **QUICK)
    await trio.lead(0, 0, isr=(0,), replicas=(0,), config=COMPACTED | {"segment.ms": "3000"})
    last = await fill(trio, 100)
    advance, tries = CompactionWork.advance, iter(range(2))

    def fails_twice(work: CompactionWork, bytes_max: int) -> bool:
        if next(tries, None) is not None:
            raise ValueError("buffer size must be a multiple of element size")
        return advance(work, bytes_max)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CompactionWork, "advance", fails_twice)
        housekeeping(trio)
        await trio.until(lambda: trio.heard("not compacted, again in"))
        assert trio.heard("buffer size must be a multiple")
        await trio.until(lambda: trio.heard("compacted to offset"), within_s=100)
    assert table(trio.hosted(0)) == last


@simulate
async def test_a_partition_that_is_deleted_while_it_is_compacted(trio: Trio) -> None:
    await trio.start(0, **QUICK | {"cleaner_io_bytes_per_s": 10_000})
    await trio.lead(0, 0, isr=(0,), replicas=(0,), config=COMPACTED)
    await fill(trio, 100)
    keeping = housekeeping(trio)
    await trio.until(lambda: keeping.now_cleaning == T0)
    await mark_deleted(trio)
    order = StopOrder(T0, TOPIC_ID, delete=True)
    await trio.processes[0].spawn("stop", trio.replicas(0).stop([order]))
    await trio.until(lambda: keeping.passes == 1)
    assert "t-0" not in trio.files[0].list("/data")


@simulate
async def test_a_broker_that_stops_while_it_compacts_leaves_a_clean_log(trio: Trio) -> None:
    await trio.start(0, **QUICK | {"cleaner_io_bytes_per_s": 10_000})
    await trio.lead(0, 0, isr=(0,), replicas=(0,), config=COMPACTED)
    last = await fill(trio, 100)
    await trio.until(lambda: housekeeping(trio).now_cleaning == T0)
    await trio.stop_broker(0)
    names = trio.files[0].list("/data/t-0")
    assert not [name for name in names if name.endswith((".cleaned", ".swap"))]
    await trio.start_broker(0, **QUICK)
    await trio.until(lambda: trio.brokers[0].epoch)
    await trio.lead(0, 1, isr=(0,), replicas=(0,), config=COMPACTED)
    assert table(trio.hosted(0)) == last
    await trio.until(lambda: records(trio.hosted(0)) < 60)
    assert table(trio.hosted(0)) == last


@simulate
async def test_clocks_of_brokers_may_differ(trio: Trio) -> None:
    """The leader's time decides; what a follower thinks of ages does not matter."""
    await trio.start(0, 1, **QUICK)
    other = housekeeping(trio, 1)
    other._clock = LoopClock(trio.loop, wall_skew_ms=10**12)
    await trio.lead(0, 0, isr=(0, 1), replicas=(0, 1), config={"retention.ms": "60000"})
    await trio.produce(batch(timestamp_ms=trio.clock.wall_ms()))
    trio.hosted(1).log.roll()
    await asyncio.sleep(10)
    assert [trio.hosted(each).log.log_start for each in (0, 1)] == [0, 0]


@simulate
async def test_damage_that_compaction_finds_is_mended_from_the_leader_f15(trio: Trio) -> None:
    """A replica that cannot vouch for what it had says so; out of the ISR it is mended."""
    await trio.start(**QUICK)
    await trio.lead(0, 0, config=COMPACTED | {"min.cleanable.dirty.ratio": "0.9"})
    await fill(trio, 30)
    hosted = trio.hosted(1)
    path = hosted.log.segments[0].path
    trio.files[1].flip_bits(path, trio.files[1].size(path) // 2)
    last = await fill(trio, 200)
    await trio.until(lambda: T0 in trio.replicas(1).offline)
    assert trio.heard("b1: t-0: out of service")
    await trio.lead(0, 1, isr=(0, 2), config=COMPACTED)
    await trio.until(lambda: T0 not in trio.replicas(1).offline)
    await trio.until(lambda: trio.hosted(1).log.log_end == trio.hosted(0).log.log_end)
    assert table(trio.hosted(1)) == table(trio.hosted(0))
    assert table(trio.hosted(0)).items() >= last.items()


@simulate
async def test_damage_where_nobody_else_is_in_sync_stays_in_service_f15(trio: Trio) -> None:
    await trio.start(0, **QUICK)
    await trio.lead(0, 0, isr=(0,), replicas=(0,), config=COMPACTED)
    await fill(trio, 10)
    path = trio.hosted(0).log.segments[0].path
    trio.files[0].flip_bits(path, 300)
    await fill(trio, 40)
    await trio.until(lambda: trio.heard("not compacted, again in"))
    assert not trio.replicas(0).offline
    assert not (await trio.produce(keyed(("k0", "still")))).error
