"""The log of a partition: flushing, closing, and a disk that says no."""

from __future__ import annotations

import threading

import pytest

from simulation.log_bench import (
    NOW_MS,
    PARTITION,
    LogBench,
    Producer,
    append,
    batch,
    contents,
    numbered,
    stored_bytes,
    values,
)
from simulation.proofs import DIVERGED, given_up
from simulation.storage import SimFiles
from tailrace.epochs import EpochEntry
from tailrace.errors import (
    LogClosed,
    StorageError,
)
from tailrace.log.log import PartitionLog
from tailrace.log.segment import segment_name
from tailrace.model import LeaderEpoch, Offset


def epochs_of(log: PartitionLog) -> list[tuple[int, int]]:
    return [(epoch, start) for epoch, start in log.epochs.entries]


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
    log.truncate_to(1, DIVERGED, now_ms=NOW_MS)
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
    log.advance_log_start(11, given_up(11))
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
        lambda: log.truncate_to(0, DIVERGED, now_ms=NOW_MS),
        lambda: log.start_over_at(0, DIVERGED),
        lambda: log.advance_log_start(1, given_up(1)),
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


def test_an_append_that_cannot_be_undone_stops_the_log(bench: LogBench, disk: SimFiles) -> None:
    log = bench.open()
    append(log, batch(b"a"))
    log.flush()
    disk.disk_bytes_max = disk._used_bytes + 100
    disk.fail_next_sync(".log")
    with pytest.raises(StorageError, match="sync failed"):
        append(log, batch(b"b" * 1000))
    assert not log.is_open
    disk.disk_bytes_max = None
    assert values(bench.open()) == [b"a"]


def test_a_full_disk_does_not_stop_a_flush_for_an_index(
    bench: LogBench, disk: SimFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tailrace.log.segment.INDEX_SAVE_ENTRIES", 1)
    log = bench.open()
    append(log, batch(b"a"))
    log.flush()
    assert len(bench.names("index")) == 2
    append(log, batch(b"b"))
    disk.disk_bytes_max = 0
    assert log.flush() == 2
    assert bench.names("index") == []


def test_epochs_that_cannot_be_stored_fail_the_flush(bench: LogBench, disk: SimFiles) -> None:
    log = bench.open()
    append(log, batch(b"a"), epoch=3)
    disk.disk_bytes_max = 0
    with pytest.raises(StorageError, match="epochs cannot be stored"):
        log.flush()
    assert log.is_open, "nothing is lost: the next flush may succeed"
    disk.disk_bytes_max = None
    assert log.flush() == 1


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
