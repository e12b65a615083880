"""The log of a partition: appending, producers, rolling, reading, looking up by time."""

from __future__ import annotations

import pytest

from simulation.log_bench import (
    NOW_MS,
    LogBench,
    Producer,
    append,
    append_result,
    batch,
    contents,
    numbered,
    stored_bytes,
    values,
)
from simulation.proofs import given_up
from simulation.storage import SimFiles
from tailrace.config import LogConfig, TimestampType
from tailrace.errors import (
    BatchTooLarge,
    CorruptBatch,
    InvariantViolation,
    LimitReached,
    NonContiguousAppend,
    OffsetOutOfRange,
    OutOfOrderSequence,
    ProducerFenced,
    UnknownProducer,
)
from tailrace.log.admission import BatchResult
from tailrace.log.log import PartitionLog
from tailrace.log.producers import ProducerStates
from tailrace.log.time_lookup import TimedOffset
from tailrace.model import LeaderEpoch
from tailrace.record.build import compacted_batch
from tailrace.record.header import read_header, split
from tailrace.record.view import BatchView


def epochs_of(log: PartitionLog) -> list[tuple[int, int]]:
    return [(epoch, start) for epoch, start in log.epochs.entries]


# Appending as leader.


def test_batches_get_offsets_and_epoch(bench: LogBench) -> None:
    log = bench.open()
    assert append_result(log, batch(b"a", b"b"), epoch=3) == [BatchResult(0, 1, NOW_MS)]
    assert append_result(log, batch(b"c", timestamp_ms=5), epoch=3) == [BatchResult(2, 2, 5)]
    assert contents(log) == [(0, b"a"), (1, b"b"), (2, b"c")]
    assert log.log_end == 3
    assert [header.leader_epoch for header in log.headers(0)] == [3, 3]


def test_several_batches_in_one_append(bench: LogBench) -> None:
    log = bench.open()
    results = append_result(log, batch(b"a") + batch(b"b", b"c") + batch(b"d"))
    assert [(result.base_offset, result.last_offset) for result in results] == [
        (0, 0),
        (1, 2),
        (3, 3),
    ]
    assert contents(log) == [(0, b"a"), (1, b"b"), (2, b"c"), (3, b"d")]


def test_stored_bytes_are_those_of_the_producer_but_for_the_place(bench: LogBench) -> None:
    log = bench.open()
    append(log, batch(b"first"))
    sent = batch(b"a", b"b", key=b"k")
    append(log, sent, epoch=7)
    stored = log.read(1, bytes_max=10**6)
    assert stored[24:] == sent[24:]
    assert read_header(stored)._replace(base_offset=0, leader_epoch=-1, prefix_crc=0) == (
        read_header(sent)._replace(prefix_crc=0)
    )


@pytest.mark.parametrize("cut", [0, 1, 50, 399])
def test_bad_bytes_store_nothing(bench: LogBench, cut: int) -> None:
    log = bench.open()
    append(log, batch(b"a"))
    good = batch(b"b")
    with pytest.raises(CorruptBatch, match="cut short"):
        append_result(log, good + good[:cut] if cut else b"")
    flipped = bytearray(good + good)
    flipped[-1] ^= 1
    with pytest.raises(CorruptBatch, match="CRC"):
        append_result(log, bytes(flipped))
    assert contents(log) == [(0, b"a")]
    assert log.segments[-1].size == bench.files.size(log.segments[-1].path)


def test_a_batch_above_the_topics_limit_is_refused(disk: SimFiles) -> None:
    log = LogBench(disk, LogConfig(max_message_bytes=500)).open()
    append(log, batch(b"fits"))
    with pytest.raises(BatchTooLarge, match=r"max\.message\.bytes=500 of orders"):
        append_result(log, batch(b"x" * 200))
    assert log.log_end == 1


def test_a_producer_cannot_send_compacted_batches(bench: LogBench) -> None:
    log = bench.open()
    view = BatchView(batch(b"a", b"b"))
    columns = view.record_batch()
    deltas = view.offsets().slice(1, 1)
    bent = compacted_batch(view.header, columns.slice(1, 1), deltas)
    with pytest.raises(CorruptBatch, match="only the broker compacts"):
        append_result(log, bent)


def test_the_logs_own_time_replaces_the_producers(disk: SimFiles) -> None:
    config = LogConfig(message_timestamp_type=TimestampType.LOG_APPEND_TIME)
    log = LogBench(disk, config).open()
    results = append_result(log, batch(b"a", timestamp_ms=5) + batch(b"b", timestamp_ms=7))
    assert [result.timestamp_ms for result in results] == [NOW_MS, NOW_MS]
    assert log.offset_for_time(NOW_MS) == TimedOffset(0, NOW_MS)
    assert contents(log) == [(0, b"a"), (1, b"b")]


def test_a_leader_of_the_past_is_our_own_bug(bench: LogBench) -> None:
    log = bench.open()
    append(log, batch(b"a"), epoch=5)
    with pytest.raises(InvariantViolation, match="append in epoch 4 after 5"):
        append(log, batch(b"b"), epoch=4)
    assert values(log) == [b"a"]


def test_epochs_are_noted_where_they_begin(bench: LogBench) -> None:
    log = bench.open()
    log.assign_epoch(LeaderEpoch(1))
    append(log, batch(b"a", b"b"), epoch=1)
    append(log, batch(b"c"), epoch=1)
    append(log, batch(b"d"), epoch=4)
    assert epochs_of(log) == [(1, 0), (4, 3)]
    assert log.epoch_end(LeaderEpoch(1)) == (1, 3)
    assert log.epoch_end(LeaderEpoch(2)) == (1, 3)
    assert log.epoch_end(LeaderEpoch(4)) == (4, 4)
    assert log.epoch_end(LeaderEpoch(5)) == (-1, -1)
    log.assign_epoch(LeaderEpoch(4))
    assert epochs_of(log) == [(1, 0), (4, 3)]
    log.assign_epoch(LeaderEpoch(6))
    assert (log.epochs.latest, log.last_epoch) == (6, 4)


# Producers.


def test_a_retry_is_answered_with_where_it_is(bench: LogBench) -> None:
    log = bench.open()
    ann = Producer(1)
    first, second = batch(b"a", b"b", producer=ann), batch(b"c", producer=ann.after(2))
    append(log, first, second)
    again = append_result(log, first + second + batch(b"d", producer=ann.after(3)))
    assert again == [
        BatchResult(0, 1, NOW_MS, duplicate=True),
        BatchResult(2, 2, NOW_MS, duplicate=True),
        BatchResult(3, 3, NOW_MS),
    ]
    assert values(log) == [b"a", b"b", b"c", b"d"]


def test_only_duplicates_write_nothing(bench: LogBench) -> None:
    log = bench.open()
    first = batch(b"a", producer=Producer(1))
    append(log, first, first, first)
    assert values(log) == [b"a"]


def test_a_refused_batch_stops_those_after_it(bench: LogBench) -> None:
    log = bench.open()
    ann = Producer(1)
    append(log, batch(b"a", producer=ann))
    results = append_result(
        log, batch(b"b") + batch(b"gap", producer=ann.after(5)) + batch(b"c") + batch(b"d")
    )
    assert results[0] == BatchResult(1, 1, NOW_MS)
    assert [type(result.error) for result in results[1:]] == [OutOfOrderSequence] * 3
    assert values(log) == [b"a", b"b"]


@pytest.mark.parametrize(
    ("producer", "error"),
    [
        (Producer(1, epoch=0, sequence=1), ProducerFenced),
        (Producer(1, epoch=2, sequence=1), OutOfOrderSequence),
        (Producer(9, sequence=1), UnknownProducer),
    ],
)
def test_the_producers_state_decides(
    bench: LogBench, producer: Producer, error: type[Exception]
) -> None:
    log = bench.open()
    append(log, batch(b"a", producer=Producer(1, epoch=1)))
    (result,) = append_result(log, batch(b"x", producer=producer))
    assert isinstance(result.error, error)
    assert values(log) == [b"a"]


def test_batches_of_one_producer_in_one_append_follow_each_other(bench: LogBench) -> None:
    log = bench.open()
    ann = Producer(1)
    one = batch(b"a", b"b", producer=ann)
    good = append_result(log, one + batch(b"c", producer=ann.after(2)))
    assert [result.error for result in good] == [None, None]
    twice = Producer(2)
    bad = append_result(log, batch(b"d", producer=twice) + batch(b"e", producer=twice))
    assert bad[0].error is None
    assert isinstance(bad[1].error, OutOfOrderSequence)
    newer = Producer(2, epoch=1)
    bad = append_result(
        log, batch(b"f", producer=twice.after(1)) + batch(b"g", producer=newer.after(2))
    )
    assert isinstance(bad[1].error, OutOfOrderSequence)
    assert values(log) == [b"a", b"b", b"c", b"d", b"f"]


def test_sequences_wrap(bench: LogBench) -> None:
    log = bench.open()
    near_end = Producer(1, sequence=2**31 - 2)
    log.append_as_follower(batch(b"a", b"b", b"c", producer=near_end), now_ms=NOW_MS)
    results = append_result(
        log,
        batch(b"d", producer=Producer(1, sequence=1))
        + batch(b"e", producer=Producer(1, sequence=2)),
    )
    assert [result.error for result in results] == [None, None]


def test_expired_producers_make_room(bench: LogBench) -> None:
    log = bench.open()
    log.producers = ProducerStates(producers_max=1)
    append(log, batch(b"a", producer=Producer(1)))
    newcomer = batch(b"b", producer=Producer(2))
    (full,) = append_result(log, newcomer)
    assert isinstance(full.error, LimitReached)
    later_ms = NOW_MS + bench.config.producer_id_expiration_ms + 1
    (result,) = append_result(log, newcomer, now_ms=later_ms)
    assert (result.error, result.base_offset) == (None, 1)


def test_producers_expire(bench: LogBench) -> None:
    log = bench.open()
    append(log, batch(b"a", producer=Producer(1)))
    log.expire_producers(now_ms=NOW_MS + bench.config.producer_id_expiration_ms)
    assert len(log.producers) == 1
    log.expire_producers(now_ms=NOW_MS + bench.config.producer_id_expiration_ms + 1)
    assert len(log.producers) == 0


# Appending as follower.


def test_a_follower_stores_the_same_bytes(disk: SimFiles) -> None:
    leader = LogBench(disk, LogConfig(segment_bytes=2048)).open()
    follower = LogBench(disk, folder="/other/orders-0").open()
    ann = Producer(1)
    for epoch, value in enumerate(numbered()):
        if epoch == 9:
            break
        append(leader, batch(value * 100, producer=ann), epoch=epoch // 3)
        ann = ann.after(1)
    offset = 0
    while offset < leader.log_end:
        offset = follower.append_as_follower(leader.read(offset, bytes_max=1000), now_ms=NOW_MS)
    assert stored_bytes(follower) == stored_bytes(leader)
    assert follower.epochs == leader.epochs
    assert follower.producers == leader.producers
    assert follower.append_as_follower(b"", now_ms=NOW_MS) == leader.log_end


@pytest.mark.parametrize(("base_offset", "epoch"), [(0, 5), (2, 5), (1, 4)])
def test_a_follower_takes_only_what_continues_its_log(
    bench: LogBench, base_offset: int, epoch: int
) -> None:
    log = bench.open()
    good = batch(b"a", base_offset=0, leader_epoch=5)
    log.append_as_follower(good, now_ms=NOW_MS)
    bad = batch(b"b", base_offset=base_offset, leader_epoch=epoch)
    with pytest.raises(NonContiguousAppend, match="does not continue 1 in epoch 5"):
        log.append_as_follower(bad, now_ms=NOW_MS)
    with pytest.raises(NonContiguousAppend):
        log.append_as_follower(
            batch(b"b", base_offset=1, leader_epoch=5) + batch(b"c", base_offset=1, leader_epoch=5),
            now_ms=NOW_MS,
        )
    assert values(log) == [b"a"]


def test_a_follower_refuses_bad_bytes(bench: LogBench) -> None:
    log = bench.open()
    flipped = bytearray(batch(b"a"))
    flipped[200] ^= 1
    with pytest.raises(CorruptBatch):
        log.append_as_follower(bytes(flipped), now_ms=NOW_MS)
    assert log.log_end == 0


# Rolling.


def test_a_full_segment_is_closed(small: LogBench) -> None:
    log = small.open()
    for value, _ in zip(numbered(), range(12), strict=False):
        append(log, batch(value))
    per_segment = 2048 // 400
    assert [segment.base_offset for segment in log.segments] == list(range(0, 12, per_segment))
    assert [offset for offset, _ in contents(log)] == list(range(12))
    assert len(small.names(".index")) == len(log.segments) - 1


def test_a_segment_is_closed_when_it_is_old(disk: SimFiles) -> None:
    log = LogBench(disk, LogConfig(segment_ms=1000)).open()
    append(log, batch(b"a"), now_ms=NOW_MS)
    append(log, batch(b"b"), now_ms=NOW_MS + 999)
    assert len(log.segments) == 1
    append(log, batch(b"c"), now_ms=NOW_MS + 1000)
    assert [segment.base_offset for segment in log.segments] == [0, 2]


def test_a_segment_is_closed_when_its_index_is_full(disk: SimFiles) -> None:
    log = LogBench(disk, LogConfig(index_interval_bytes=0, segment_index_bytes=512)).open()
    for value, _ in zip(numbered(), range(100), strict=False):
        append(log, batch(value))
    assert len(log.segments) > 1
    assert all(segment.index.memory_bytes <= 1024 + 32 for segment in log.segments)


def test_an_empty_segment_is_not_rolled(bench: LogBench) -> None:
    log = bench.open()
    log.roll()
    assert len(log.segments) == 1
    append(log, batch(b"a"))
    log.roll()
    log.roll()
    assert [segment.base_offset for segment in log.segments] == [0, 1]


def test_a_full_disk_does_not_stop_a_roll_for_derived_files(
    bench: LogBench, disk: SimFiles
) -> None:
    log = bench.open()
    append(log, batch(b"a"))
    disk.disk_bytes_max = 0
    log.roll()
    assert bench.names("index") == []
    disk.disk_bytes_max = None
    append(log, batch(b"b"))
    assert values(log) == [b"a", b"b"]


# Reading.


def test_reading_gives_whole_batches_that_hold_the_offset(small: LogBench) -> None:
    log = small.open()
    for value, _ in zip(numbered(), range(7), strict=False):
        append(log, batch(value, value))
    for offset in range(14):
        data = log.read(offset, bytes_max=1)
        (header,) = [header for _, header in split(data)]
        assert header.base_offset <= offset < header.next_offset
    assert log.read(0, bytes_max=1, min_one=False) == b""
    assert log.read(14, bytes_max=10**6) == b""
    assert log.locate(14, bytes_max=10**6) is None


def test_reading_stops_below_a_limit(bench: LogBench) -> None:
    log = bench.open()
    append(log, batch(b"a", b"b"), batch(b"c"), batch(b"d"))
    assert [h.base_offset for _, h in split(log.read(0, bytes_max=10**6, up_to=3))] == [0, 2]
    assert log.read(2, bytes_max=10**6, up_to=2) == b""
    assert log.read(0, bytes_max=10**6, up_to=1) == b"", "half a batch is not given"
    assert len(log.read(0, bytes_max=10**6, up_to=99)) == log.size_bytes


def test_reading_outside_the_log_is_refused(bench: LogBench) -> None:
    log = bench.open()
    append(log, batch(b"a", b"b"))
    log.advance_log_start(1, given_up(1))
    for offset in (0, 3, -1):
        with pytest.raises(OffsetOutOfRange, match=r"outside the log \[1, 2\)") as refused:
            log.locate(offset, bytes_max=10)
        assert (refused.value.log_start, refused.value.log_end) == (1, 2)


def test_headers_start_where_asked(small: LogBench) -> None:
    log = small.open()
    for value, _ in zip(numbered(), range(9), strict=False):
        append(log, batch(value, value))
    assert [header.base_offset for header in log.headers(0)] == list(range(0, 18, 2))
    assert [header.base_offset for header in log.headers(11)] == list(range(10, 18, 2))
    assert [header.base_offset for header in log.headers(18)] == []


def test_a_hole_in_a_log_is_not_read_as_its_end(small: LogBench, disk: SimFiles) -> None:
    """A segment in the middle is gone or short: a reader must not wait there forever."""
    log = small.open()
    for value, _ in zip(numbered(), range(12), strict=False):
        append(log, batch(value))
    small.close(log)
    middle = small.open().segments[1]
    disk.cut(middle.path, 0)
    for size in (middle.size, 0):
        middle.size = size
        with pytest.raises(CorruptBatch):
            middle.find(middle.base_offset, up_to=10, bytes_max=100, min_one=True)


# By time.


def test_the_first_record_at_or_after_a_time(small: LogBench) -> None:
    log = small.open()
    times = [10, 30, 20, 50, 40, 60, 5, 70, 65, 80]
    for at, (left, right) in enumerate(zip(times[::2], times[1::2], strict=True)):
        append(log, batch(b"%d" % at, b"%d" % at, timestamps=[left, right]))
        if at == 2:
            log.roll()
    for wanted in range(85):
        expected = next(
            (TimedOffset(at, time) for at, time in enumerate(times) if time >= wanted), None
        )
        assert log.offset_for_time(wanted) == expected
        limited = next(
            (TimedOffset(at, time) for at, time in enumerate(times[:4]) if time >= wanted), None
        )
        assert log.offset_for_time(wanted, up_to=4) == limited
    log.advance_log_start(4, given_up(4))
    assert log.offset_for_time(0) == TimedOffset(4, 40)
    assert log.offset_for_time(45) == TimedOffset(5, 60)
    log.advance_log_start(7, given_up(7))
    assert log.offset_for_time(0) == TimedOffset(7, 70)


def test_a_batch_whose_late_records_are_given_up_is_passed_over(bench: LogBench) -> None:
    log = bench.open()
    append(log, batch(b"a", b"b", timestamps=[90, 10]), batch(b"c", timestamp_ms=50))
    log.advance_log_start(1, given_up(1))
    assert log.offset_for_time(20) == TimedOffset(2, 50)
    assert log.offset_for_time(60) is None


def test_an_emptied_batch_has_no_time(bench: LogBench) -> None:
    log = bench.open()
    view = BatchView(batch(b"a", b"b", timestamp_ms=90, producer=Producer(1), leader_epoch=0))
    emptied = compacted_batch(
        view.header, view.record_batch().slice(0, 0), view.offsets().slice(0, 0)
    )
    log.append_as_follower(emptied, now_ms=NOW_MS)
    append(log, batch(b"c", timestamp_ms=50))
    assert log.offset_for_time(20) == TimedOffset(2, 50)


def test_an_empty_log_has_no_time(bench: LogBench) -> None:
    log = bench.open()
    assert log.offset_for_time(0) is None
    append(log, batch(b"a"))
    assert log.offset_for_time(0, up_to=0) is None
