"""The log of a partition: appending, reading, looking up by time, flushing, closing."""

from __future__ import annotations

import threading

import pytest

from simulation.log_bench import (
    NOW_MS,
    PARTITION,
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
from simulation.storage import SimFiles
from tailrace.config import LogConfig, TimestampType
from tailrace.epochs import EpochEntry
from tailrace.errors import (
    BatchTooLarge,
    CorruptBatch,
    InvariantViolation,
    LogClosed,
    NonContiguousAppend,
    OffsetOutOfRange,
    OutOfOrderSequence,
    ProducerFenced,
    StorageError,
    UnknownProducer,
)
from tailrace.log.log import BatchResult, PartitionLog, TimedOffset
from tailrace.log.segment import segment_name
from tailrace.model import LeaderEpoch, Offset
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
    log = LogBench(disk, LogConfig(index_interval_bytes=0, segment_index_bytes=1024)).open()
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
    log.advance_log_start(1)
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
    disk.cut(log.segments[1].path, 0)
    again = small.open()
    with pytest.raises(CorruptBatch):
        again.read(log.segments[1].base_offset, bytes_max=100)


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
    log.advance_log_start(4)
    assert log.offset_for_time(0) == TimedOffset(4, 40)
    assert log.offset_for_time(45) == TimedOffset(5, 60)
    log.advance_log_start(7)
    assert log.offset_for_time(0) == TimedOffset(7, 70)


def test_an_empty_log_has_no_time(bench: LogBench) -> None:
    log = bench.open()
    assert log.offset_for_time(0) is None
    append(log, batch(b"a"))
    assert log.offset_for_time(0, up_to=0) is None


# Flushing.


def test_a_flush_raises_the_recovery_point(small: LogBench, disk: SimFiles) -> None:
    log = small.open()
    disk.sync_folder("/data")
    disk.sync_folder("/")
    for value, _ in zip(numbered(), range(12), strict=False):
        append(log, batch(value), epoch=3)
    assert log.recovery_point == 0
    assert log.flush() == 12
    assert log.recovery_point == 12
    assert log.begin_flush() is None
    disk.crash(power_loss=True)
    again = small.open()
    assert [offset for offset, _ in contents(again)] == list(range(12))
    assert epochs_of(again) == [(3, 0)]


def test_only_what_may_be_dirty_is_synced(small: LogBench) -> None:
    log = small.open()
    for value, _ in zip(numbered(), range(12), strict=False):
        append(log, batch(value))
    work = log.begin_flush()
    assert work is not None
    assert len(work.paths) == len(log.segments) == 3
    work.run()
    log.end_flush(work)
    append(log, batch(b"x"))
    work = log.begin_flush()
    assert work is not None
    assert work.paths == (log.segments[-1].path,)
    assert (work.epochs, work.names) == (False, False)


def test_what_is_appended_during_a_flush_is_not_covered(bench: LogBench) -> None:
    log = bench.open()
    append(log, batch(b"a"))
    work = log.begin_flush()
    assert work is not None
    append(log, batch(b"b"))
    work.run()
    log.end_flush(work)
    assert (log.recovery_point, log.log_end) == (1, 2)


def test_a_flush_of_what_was_cut_meanwhile_covers_nothing(bench: LogBench) -> None:
    log = bench.open()
    append(log, batch(b"a"), batch(b"b"))
    work = log.begin_flush()
    assert work is not None
    log.truncate_to(1, now_ms=NOW_MS)
    append(log, batch(b"c"))
    work.run()
    log.end_flush(work)
    assert log.recovery_point == 0
    assert log.flush() == 2


def test_a_segment_that_went_away_needs_no_sync(small: LogBench) -> None:
    log = small.open()
    for value, _ in zip(numbered(), range(12), strict=False):
        append(log, batch(value))
    work = log.begin_flush()
    assert work is not None
    log.advance_log_start(11)
    work.run()
    log.end_flush(work)
    assert log.recovery_point == 12


def test_a_flush_syncs_epochs_that_its_owner_wrote(bench: LogBench, disk: SimFiles) -> None:
    """The owner may put a newer file in their place meanwhile; two writers would disturb it."""
    log = bench.open()
    append(log, batch(b"a"), epoch=1)
    work = log.begin_flush()
    assert work is not None
    assert work.epochs
    append(log, batch(b"b"), epoch=2)
    before = disk.operations
    work.run()
    assert disk.operations - before == 3, "two files and a folder are synced, nothing is written"
    log.end_flush(work)
    assert epochs_of(log) == epochs_of(bench.open()) == [(1, 0), (2, 1)]


def test_a_failed_sync_stops_the_log(bench: LogBench, disk: SimFiles) -> None:
    log = bench.open()
    append(log, batch(b"a"))
    log.flush()
    append(log, batch(b"b"))
    disk.fail_next_sync(".log")
    with pytest.raises(StorageError, match="sync failed"):
        log.flush()
    assert not log.is_open
    for call in (
        lambda: append(log, batch(b"c")),
        lambda: log.append_as_follower(b"", now_ms=NOW_MS),
        log.flush,
        log.roll,
        log.close,
        lambda: log.truncate_to(0, now_ms=NOW_MS),
        lambda: log.start_over_at(0),
        lambda: log.advance_log_start(1),
        lambda: log.enforce_retention(now_ms=NOW_MS, high_watermark=0),
    ):
        with pytest.raises(LogClosed, match="a sync failed"):
            call()
    assert values(log) == [b"a", b"b"], "reading goes on"
    again = bench.open()
    assert values(again) == [b"a"], "what was not durable counts as lost"


def test_a_failed_sync_is_not_forgotten_when_the_marker_fails_too(
    bench: LogBench, disk: SimFiles
) -> None:
    log = bench.open()
    append(log, batch(b"a"))
    disk.disk_bytes_max = 0
    error = OSError(5, "Input/output error")
    failure = log.fail_flush(error)
    assert isinstance(failure, StorageError)
    assert any("could not be written either" in note for note in error.__notes__)
    assert not log.is_open


def test_a_flush_ended_after_the_log_failed_changes_nothing(bench: LogBench) -> None:
    log = bench.open()
    append(log, batch(b"a"))
    work = log.begin_flush()
    assert work is not None
    log.abandon("for a test")
    log.end_flush(work)
    assert log.recovery_point == 0


def test_flush_work_runs_in_another_thread(bench: LogBench) -> None:
    log = bench.open()
    append(log, batch(b"a"))
    work = log.begin_flush()
    assert work is not None
    thread = threading.Thread(target=work.run)
    thread.start()
    thread.join()
    log.end_flush(work)
    assert log.recovery_point == 1


# Closing.


def test_a_closed_log_opens_without_reading_it(small: LogBench, disk: SimFiles) -> None:
    log = small.open()
    ann = Producer(1)
    for value, _ in zip(numbered(), range(12), strict=False):
        append(log, batch(value, producer=ann), epoch=2)
        ann = ann.after(1)
    small.close(log)
    with pytest.raises(LogClosed, match="it was closed"):
        append(log, batch(b"x"))
    read_before = disk.bytes_read
    again = small.open()
    assert small.report.clean
    assert small.report.scanned_bytes == 0
    assert disk.bytes_read - read_before < 400
    assert (again.log_end, again.recovery_point) == (12, 12)
    assert again.producers == log.producers
    assert again.epochs == log.epochs
    assert again.begin_flush() is None, "nothing waits for a flush"
    append(again, batch(b"x", producer=ann), epoch=2)
    assert [offset for offset, _ in contents(again)] == list(range(13))


def test_closing_an_untouched_log_writes_almost_nothing(bench: LogBench, disk: SimFiles) -> None:
    log = bench.open()
    append(log, batch(b"a"))
    bench.close(log)
    again = bench.open()
    before = disk.operations
    bench.close(again)
    assert disk.operations - before <= 4, disk.trace()


def test_abandoning_writes_nothing(bench: LogBench, disk: SimFiles) -> None:
    log = bench.open()
    append(log, batch(b"a"))
    before = disk.operations
    log.abandon("the test is over")
    log.abandon("again")
    assert disk.operations == before
    with pytest.raises(LogClosed, match="the test is over"):
        log.flush()


def test_the_size_is_that_of_all_segments(small: LogBench) -> None:
    log = small.open()
    for value, _ in zip(numbered(), range(12), strict=False):
        append(log, batch(value))
    assert log.size_bytes == len(stored_bytes(log))


# A disk that says no.


def test_an_append_that_fails_leaves_the_log_as_it_was(bench: LogBench, disk: SimFiles) -> None:
    log = bench.open()
    append(log, batch(b"a"))
    disk.disk_bytes_max = disk._used_bytes + 100
    with pytest.raises(StorageError, match=r"append failed.*No space"):
        append(log, batch(b"b" * 1000, producer=Producer(1)))
    assert (log.log_end, len(log.producers)) == (1, 0)
    disk.disk_bytes_max = None
    append(log, batch(b"c"))
    assert values(log) == [b"a", b"c"]


def test_a_full_disk_does_not_stop_an_epoch(bench: LogBench, disk: SimFiles) -> None:
    log = bench.open()
    disk.disk_bytes_max = 0
    log.assign_epoch(LeaderEpoch(3))
    assert log.epochs.entries == (EpochEntry(LeaderEpoch(3), Offset(0)),)
    disk.disk_bytes_max = None
    log.flush()
    again = bench.open()
    assert again.partition == PARTITION
    assert bench.names("-checkpoint") == ["leader-epoch-checkpoint"]


def test_a_roll_that_fails_leaves_no_segment_behind(
    bench: LogBench, disk: SimFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An empty file under the next base offset would hide what is then appended to the old one."""
    log = bench.open()
    append(log, batch(b"a"))
    opening = disk.open

    def failing(path: str, *, create: bool = False) -> object:
        file = opening(path, create=create)
        if path.endswith(segment_name(1, ".log")):
            raise OSError(28, "No space left on device")
        return file

    monkeypatch.setattr(disk, "open", failing)
    with pytest.raises(StorageError, match="no new segment"):
        log.roll()
    monkeypatch.undo()
    append(log, batch(b"b"))
    log.flush()
    bench.checkpoint(log)
    assert values(bench.open()) == [b"a", b"b"]
