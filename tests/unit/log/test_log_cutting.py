"""The log of a partition when it is cut: truncation, a new start, the log start, retention."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

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
    values,
)
from simulation.proofs import DIVERGED, given_up
from simulation.storage import SimFiles, SimulatedCrash
from tailrace.config import CleanupPolicy, LogConfig
from tailrace.errors import InvariantViolation, LogClosed, OffsetOutOfRange, StorageError
from tailrace.log.log import PartitionLog
from tailrace.log.retention import ExpiryReason
from tailrace.log.segment import Segment, segment_name
from tailrace.log.snapshots import snapshot_offsets
from tailrace.log.swap import SwapRange, cleaned_path
from tailrace.model import RETENTION, LogStartCause

HOUR_MS = 3_600_000
NEVER = 10**9


def filled(bench: LogBench, count: int = 12, *, flush: bool = True) -> PartitionLog:
    """Batches of one record, an epoch for every three, all of one producer."""
    log = bench.open()
    ann = Producer(1)
    for at, value in zip(range(count), numbered(), strict=False):
        append(log, batch(value, timestamp_ms=NOW_MS + at, producer=ann), epoch=at // 3)
        ann = ann.after(1)
    if flush:
        log.flush()
        bench.checkpoint(log)
    return log


def epochs_of(log: PartitionLog) -> list[tuple[int, int]]:
    return [(epoch, start) for epoch, start in log.epochs.entries]


def state_of(log: PartitionLog) -> object:
    return (
        contents(log),
        (log.log_start, log.log_end),
        epochs_of(log),
        [(entry.producer_id, entry.batches) for entry in log.producers.entries()],
    )


# Truncation.


@pytest.mark.parametrize("offset", range(13))
def test_truncation_takes_everything_back(small: LogBench, disk: SimFiles, offset: int) -> None:
    log = filled(small)
    assert log.truncate_to(offset, DIVERGED, now_ms=NOW_MS) == (offset < 12)
    assert [at for at, _ in contents(log)] == list(range(offset))
    assert epochs_of(log) == [(at // 3, at) for at in range(0, offset, 3)]
    assert log.recovery_point == small.offsets.recovery_point == offset
    assert all(at <= offset for at in snapshot_offsets(small.storage, small.folder))
    # What follows is a new history.
    ann = Producer(1, sequence=offset)
    append(log, batch(b"new", producer=ann), epoch=9)
    log.flush()
    before = state_of(log)
    disk.crash(power_loss=False)
    assert state_of(small.open()) == before


@pytest.mark.parametrize("offset", range(1, 13))
def test_truncation_is_durable_on_return(small: LogBench, disk: SimFiles, offset: int) -> None:
    for folder in ("/data", "/"):
        disk.sync_folder(folder)
    log = filled(small)
    log.truncate_to(offset, DIVERGED, now_ms=NOW_MS)
    before = state_of(log)
    disk.crash(power_loss=True)
    assert state_of(small.open()) == before


def test_truncation_in_a_batch_takes_all_of_it(bench: LogBench, disk: SimFiles) -> None:
    log = bench.open()
    append(log, batch(b"a"), batch(b"b", b"c", b"d"))
    log.flush()
    bench.checkpoint(log)
    assert log.truncate_to(3, DIVERGED, now_ms=NOW_MS)
    assert (log.log_end, values(log)) == (1, [b"a"])
    assert bench.offsets.recovery_point == 1, "above it the next opening would find damage"
    disk.crash(power_loss=False)
    assert values(bench.open()) == [b"a"]


def test_truncation_in_a_batch_that_began_below_the_log_start(bench: LogBench) -> None:
    log = bench.open()
    append(log, batch(b"a", b"b", b"c", b"d"))
    log.advance_log_start(2, given_up(2))
    log.truncate_to(3, DIVERGED, now_ms=NOW_MS)
    assert (log.log_start, log.log_end) == (0, 0)
    assert bench.offsets.log_start == 0
    append(log, batch(b"e"))
    assert contents(log) == [(0, b"e")]
    assert contents(bench.open()) == [(0, b"e")]


def test_truncation_below_the_log_start_starts_over(bench: LogBench) -> None:
    log = filled(bench)
    log.advance_log_start(6, given_up(6))
    assert log.truncate_to(4, DIVERGED, now_ms=NOW_MS)
    assert (log.log_start, log.log_end, log.recovery_point) == (4, 4, 4)
    assert epochs_of(log) == []


def test_truncated_producers_may_send_again(small: LogBench) -> None:
    log = filled(small)
    log.truncate_to(7, DIVERGED, now_ms=NOW_MS)
    (gap,) = append_result(log, batch(b"x", producer=Producer(1, sequence=8)), epoch=9)
    assert gap.error is not None
    (again,) = append_result(log, batch(b"x", producer=Producer(1, sequence=7)), epoch=9)
    assert again.base_offset == 7
    (duplicate,) = append_result(log, batch(b"v6", producer=Producer(1, sequence=6)), epoch=9)
    assert (duplicate.duplicate, duplicate.base_offset) == (True, 6)


@pytest.mark.parametrize("power_loss", [False, True])
@pytest.mark.parametrize("operation", range(1, 22))
def test_truncation_killed_anywhere_is_done_or_not(
    small: LogBench, disk: SimFiles, operation: int, power_loss: bool
) -> None:
    for folder in ("/data", "/"):
        disk.sync_folder(folder)
    log = filled(small)
    ends = {segment.base_offset for segment in log.segments[1:]} | {12}
    disk.crash_at_operation(operation)
    try:
        log.truncate_to(4, DIVERGED, now_ms=NOW_MS)
    except SimulatedCrash:
        disk.crash(power_loss=power_loss)
    else:
        disk.crash_at_operation(NEVER)
        assert operation > 12, "the range of operations covers the whole truncation"
    again = small.open()
    assert again.log_end in ends | {4}
    assert [(at, b"v%d" % at) for at in range(again.log_end)] == contents(again)
    again.truncate_to(4, DIVERGED, now_ms=NOW_MS)
    assert [at for at, _ in contents(again)] == [0, 1, 2, 3]


# A new start.


@pytest.mark.parametrize("offset", [0, 5, 12, 100])
def test_starting_over_leaves_an_empty_log(small: LogBench, disk: SimFiles, offset: int) -> None:
    for folder in ("/data", "/"):
        disk.sync_folder(folder)
    log = filled(small)
    log.start_over_at(offset, DIVERGED)
    assert (log.log_start, log.log_end, log.recovery_point) == (offset, offset, offset)
    assert (epochs_of(log), len(log.producers), log.size_bytes) == ([], 0, 0)
    disk.crash(power_loss=True)
    again = small.open()
    assert (again.log_start, again.log_end) == (offset, offset)
    append(again, batch(b"new"), epoch=0)
    assert contents(again) == [(offset, b"new")]


@pytest.mark.parametrize("power_loss", [False, True])
@pytest.mark.parametrize("offset", [0, 5, 100])
@pytest.mark.parametrize("operation", range(1, 30))
def test_starting_over_killed_anywhere_leaves_a_log_that_opens(
    small: LogBench, disk: SimFiles, operation: int, offset: int, power_loss: bool
) -> None:
    for folder in ("/data", "/"):
        disk.sync_folder(folder)
    log = filled(small)
    disk.crash_at_operation(operation)
    try:
        log.start_over_at(offset, DIVERGED)
    except SimulatedCrash:
        disk.crash(power_loss=power_loss)
    else:
        assert operation > 15, "the range of operations covers the whole new start"
        disk.crash_at_operation(NEVER)
    # The offset comes into force when the checkpoint says so; before that a prefix is left.
    again = small.open()
    assert contents(again) == [(at, b"v%d" % at) for at in range(again.log_start, again.log_end)]
    again.start_over_at(offset, DIVERGED)
    append(again, batch(b"new"), epoch=9)
    assert contents(again) == [(offset, b"new")]


# The log start.


def test_the_log_start_rises_and_segments_go(small: LogBench) -> None:
    log = filled(small)
    bases = [segment.base_offset for segment in log.segments]
    assert log.advance_log_start(bases[1] + 1, given_up(bases[1] + 1)) == 1
    assert log.log_start == small.offsets.log_start == bases[1] + 1
    assert [segment.base_offset for segment in log.segments] == bases[1:]
    assert log.advance_log_start(2, given_up(2)) == 0, "it never falls"
    assert [at for at, _ in contents(log)] == list(range(bases[1] + 1, 12))
    assert all(at >= bases[1] for at in snapshot_offsets(small.storage, small.folder))
    with pytest.raises(OffsetOutOfRange):
        log.advance_log_start(13, given_up(13))


def test_epochs_begin_at_the_log_start(bench: LogBench) -> None:
    log = filled(bench)
    log.advance_log_start(4, given_up(4))
    assert epochs_of(log) == [(1, 4), (2, 6), (3, 9)]
    before = state_of(log)
    assert state_of(bench.open()) == before


def test_a_log_start_without_epochs(bench: LogBench) -> None:
    log = bench.open()
    for at in range(3):
        log.append_as_follower(batch(b"x", base_offset=at), now_ms=NOW_MS)
    assert log.advance_log_start(2, given_up(2)) == 0
    assert epochs_of(log) == []


def test_everything_may_be_given_up(small: LogBench) -> None:
    log = filled(small)
    log.advance_log_start(12, given_up(12))
    assert (contents(log), log.log_end) == ([], 12)
    append(log, batch(b"new"), epoch=9)
    assert contents(log) == [(12, b"new")]
    assert contents(small.open()) == [(12, b"new")]


def test_what_is_given_up_wholly_leaves_its_room_at_once(bench: LogBench, disk: SimFiles) -> None:
    """Also on a follower, where no retention looks at it, and though nothing more is written."""
    log = filled(bench)
    assert len(log.segments) == 1
    producers = state_of(log)[-1]  # type: ignore[index]
    assert log.advance_log_start(12, given_up(12)) == 1
    assert [(each.base_offset, each.size) for each in log.segments] == [(12, 0)]
    assert not disk.exists(f"{log.folder}/{segment_name(0, '.log')}")
    again = bench.open()
    assert (again.log_start, again.log_end) == (12, 12)
    assert state_of(again)[-1] == producers  # type: ignore[index]
    # A retry of what was given up is known for what it is.
    append(again, batch(b"new", producer=Producer(1).after(12)), epoch=9)
    assert contents(again) == [(12, b"new")]


def test_on_a_full_disk_everything_can_be_given_up(bench: LogBench, disk: SimFiles) -> None:
    log = filled(bench)
    full = disk.used_bytes
    disk.disk_bytes_max = full
    assert log.advance_log_start(12, given_up(12), durable=False) == 0
    assert (log.log_start, contents(log), log.has_given_up) == (12, [], True)
    assert log.drop_given_up() == 1
    assert disk.used_bytes < full
    disk.disk_bytes_max = None
    append(log, batch(b"new"), epoch=9)
    assert contents(log) == [(12, b"new")]


def test_a_lost_tail_below_the_log_start_is_no_damage(bench: LogBench, disk: SimFiles) -> None:
    """The log start is durable at once, the batches around it were not yet."""
    log = filled(bench, 4)
    append(log, batch(b"a"), batch(b"b"), batch(b"c"), epoch=9)
    log.advance_log_start(6, given_up(6))
    disk.cut(log.segments[-1].path, log.segments[-1].position_of(5))
    again = bench.open()
    assert (again.log_start, again.log_end) == (6, 6)
    assert any("begins anew, empty, at 6" in line for line in bench.report.mended)
    append(again, batch(b"d"), epoch=10)
    assert contents(bench.open()) == [(6, b"d")]


# Retention.


def aged(bench: LogBench, ages_ms: list[int], **settings: int) -> PartitionLog:
    """A closed segment for each age, and an active one that is empty."""
    bench.config = replace(bench.config, **settings)  # type: ignore[arg-type]
    log = bench.open()
    for age_ms in ages_ms:
        made_ms = NOW_MS - age_ms
        append(log, batch(b"x", timestamp_ms=made_ms), now_ms=made_ms)
        log.roll()
    return log


def test_old_segments_go(bench: LogBench) -> None:
    log = aged(bench, [5 * HOUR_MS, 4 * HOUR_MS, HOUR_MS], retention_ms=3 * HOUR_MS)
    verdict = log.enforce_retention(now_ms=NOW_MS, high_watermark=3)
    assert (verdict.count, verdict.reasons) == (2, (ExpiryReason.TIME,) * 2)
    assert (log.log_start, log.log_end, len(log.segments)) == (2, 3, 2)
    assert [at for at, _ in contents(log)] == [2]
    assert log.enforce_retention(now_ms=NOW_MS, high_watermark=3).count == 0


def test_without_a_time_only_bytes_count(bench: LogBench) -> None:
    log = aged(bench, [5 * HOUR_MS, 4 * HOUR_MS, HOUR_MS], retention_ms=HOUR_MS)
    assert log.enforce_retention(now_ms=None, high_watermark=3).count == 0
    log.config = replace(log.config, retention_bytes=800)
    assert log.enforce_retention(now_ms=None, high_watermark=3).reasons == (ExpiryReason.BYTES,)


def test_files_can_be_put_aside_instead_of_removed(bench: LogBench) -> None:
    log = aged(bench, [5 * HOUR_MS, 4 * HOUR_MS, HOUR_MS], retention_ms=3 * HOUR_MS)
    aside: list[str] = []
    log.enforce_retention(now_ms=NOW_MS, high_watermark=3, aside=aside)
    names = [segment_name(0, ".log.removed"), segment_name(1, ".log.removed")]
    assert aside == [f"{log.folder}/{name}" for name in names]
    assert bench.names(".removed") == names
    log.advance_log_start(3, given_up(3), aside=aside)
    assert len(aside) == 3
    # Killed before they were removed: the next opening does it.
    again = bench.open()
    assert (again.log_start, again.log_end, bench.names(".removed")) == (3, 3, [])


def test_a_log_start_that_will_be_told_again_is_not_stored(bench: LogBench) -> None:
    log = aged(bench, [3, 2, 1])
    cause = LogStartCause(RETENTION, 0, 2)
    assert log.advance_log_start(2, cause, durable=False) == 0
    assert (log.log_start, bench.offsets.log_start, log.has_given_up) == (2, 0, True)
    assert log.drop_given_up() == 2
    assert (bench.offsets.log_start, bench.offsets.cause, log.has_given_up) == (2, cause, False)
    assert bench.open().log_start == 2


def test_the_age_of_a_closed_segment_is_read_once(bench: LogBench) -> None:
    log = aged(bench, [5 * HOUR_MS, 4 * HOUR_MS])
    log.flush()
    bench.checkpoint(log)
    segment = bench.open().segments[0]
    known = [segment.is_age_known]
    segment.learn_age()
    assert [*known, segment.is_age_known] == [False, True]
    segment.remove_index_files()
    segment.forget()
    assert segment.created_ms == NOW_MS - 5 * HOUR_MS


def test_nothing_above_the_high_watermark_goes(bench: LogBench) -> None:
    log = aged(bench, [5 * HOUR_MS, 4 * HOUR_MS], retention_ms=HOUR_MS)
    assert log.enforce_retention(now_ms=NOW_MS, high_watermark=1).count == 1
    assert log.log_start == 1


def test_the_active_segment_is_rolled_when_it_is_old(bench: LogBench) -> None:
    bench.config = replace(bench.config, retention_ms=HOUR_MS)
    log = bench.open()
    append(log, batch(b"x", timestamp_ms=NOW_MS))
    verdict = log.enforce_retention(now_ms=NOW_MS + 2 * HOUR_MS, high_watermark=1)
    assert verdict.count == 1
    assert (log.log_start, log.log_end, [s.base_offset for s in log.segments]) == (1, 1, [1])
    append(log, batch(b"y"))
    assert contents(log) == [(1, b"y")]


def test_too_many_bytes_go(bench: LogBench) -> None:
    log = aged(bench, [3, 2, 1], retention_bytes=800)
    verdict = log.enforce_retention(now_ms=NOW_MS, high_watermark=3)
    assert verdict.reasons == (ExpiryReason.BYTES,)
    assert log.size_bytes == 800


def test_a_compacted_topic_keeps_old_records(bench: LogBench) -> None:
    bench.config = replace(bench.config, cleanup_policy=CleanupPolicy.COMPACT)
    log = aged(bench, [5 * HOUR_MS, 4 * HOUR_MS], retention_ms=HOUR_MS, retention_bytes=0)
    assert log.enforce_retention(now_ms=NOW_MS, high_watermark=2).count == 0


def test_producers_outlive_their_batches(bench: LogBench) -> None:
    bench.config = replace(bench.config, retention_ms=HOUR_MS)
    log = bench.open()
    append(log, batch(b"x", producer=Producer(1)))
    log.roll()
    append(log, batch(b"y"))
    log.enforce_retention(now_ms=NOW_MS + 2 * HOUR_MS, high_watermark=1)
    assert log.log_start == 1
    for each in (log, bench.open()):
        (again,) = append_result(each, batch(b"x", producer=Producer(1)))
        assert (again.duplicate, again.base_offset) == (True, 0)


# Compaction.


def test_only_whole_closed_segments_are_swapped(small: LogBench) -> None:
    log = filled(small)
    first = log.segments[0]
    for base, end in ((0, 7), (1, 5), (10, 12), (50, 60)):
        twin = Segment(
            small.storage,
            small.folder,
            base,
            next_offset=end,
            size=first.size,
            index_interval_bytes=0,
        )
        with pytest.raises(InvariantViolation, match="no segments for"):
            log.swap_segments(twin, SwapRange(base, end))


def test_a_swapped_segment_is_read_from_then_on(small: LogBench, disk: SimFiles) -> None:
    log = filled(small)
    generation = log.generation
    first, second, third = log.segments
    swap = SwapRange(first.base_offset, second.next_offset)
    twin = Segment(
        small.storage,
        small.folder,
        swap.base,
        next_offset=swap.end,
        size=first.size + second.size,
        index_interval_bytes=0,
    )
    twin.path = cleaned_path(small.folder, swap.base, 0)
    disk.open(twin.path, create=True).write_at(0, [disk.read(first.path), disk.read(second.path)])
    before = state_of(log)
    assert log.swap_segments(twin, swap) == [first, second]
    assert log.segments == [twin, third]
    assert state_of(log) == before
    assert log.generation == generation
    again = small.open()
    assert state_of(again) == before
    again.truncate_to(3, DIVERGED, now_ms=NOW_MS)
    assert again.generation != generation


# A disk that says no.


CUTS: dict[str, Callable[[PartitionLog], object]] = {
    "truncate": lambda log: log.truncate_to(2, DIVERGED, now_ms=NOW_MS),
    "start over": lambda log: log.start_over_at(50, DIVERGED),
    "log start": lambda log: log.advance_log_start(11, given_up(11)),
    "retention": lambda log: log.enforce_retention(now_ms=NOW_MS + 9 * HOUR_MS, high_watermark=12),
}


@pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS)
def test_a_cut_that_fails_stops_the_log(
    disk: SimFiles, monkeypatch: pytest.MonkeyPatch, cut: Callable[[PartitionLog], object]
) -> None:
    bench = LogBench(disk, LogConfig(segment_bytes=2048, retention_ms=HOUR_MS))
    log = filled(bench)
    removing = disk.remove

    def failing(path: str) -> None:
        if path.endswith(".log"):
            raise OSError(5, "Input/output error")
        removing(path)

    monkeypatch.setattr(disk, "remove", failing)
    with pytest.raises(StorageError, match="Input/output error"):
        cut(log)
    with pytest.raises(LogClosed, match="reopen it"):
        append(log, batch(b"x"), epoch=9)
    monkeypatch.undo()
    again = bench.open()
    assert contents(again) == [(at, b"v%d" % at) for at in range(again.log_start, again.log_end)]


def test_damage_found_while_cutting_stops_the_log(bench: LogBench, disk: SimFiles) -> None:
    log = filled(bench)
    path = log.segments[0].path
    for position in (3, 400 + 3):
        disk.flip_bits(path, position)
    log.segments[0].release_index()
    log.segments[0].forget()
    with pytest.raises(StorageError, match="corrupt batch"):
        log.truncate_to(8, DIVERGED, now_ms=NOW_MS)
    with pytest.raises(LogClosed, match="reopen it"):
        log.flush()


def test_a_roll_that_cannot_be_undone_stops_the_log(
    bench: LogBench, disk: SimFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = filled(bench, 1)
    opening = disk.open

    def failing(path: str, *, create: bool = False) -> object:
        opening(path, create=create).close()
        raise OSError(5, "Input/output error")

    def refusing(path: str) -> None:
        raise OSError(5, f"Input/output error: {path}")

    monkeypatch.setattr(disk, "open", failing)
    monkeypatch.setattr(disk, "remove", refusing)
    with pytest.raises(StorageError, match="no new segment"):
        log.roll()
    monkeypatch.undo()
    with pytest.raises(LogClosed, match="neither be used nor removed"):
        append(log, batch(b"x"), epoch=9)
