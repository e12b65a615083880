"""Flushes that overlap, come late, or fail where nobody hears of it at once."""

from __future__ import annotations

import threading

import pytest

from simulation.log_bench import NOW_MS, LogBench, append, batch, values
from simulation.proofs import deleted, refilled
from simulation.storage import SimFiles
from tailrace.config import FolderConfig, LogConfig
from tailrace.errors import InvariantViolation, LogClosed, StorageError
from tailrace.log.data_folder import Identity
from tailrace.log.flushing import SYNC_FAILED_FILE
from tailrace.log.manager import LogManager
from tailrace.model import BrokerId, TopicId, TopicPartition

ORDERS = TopicPartition("orders", 0)


def opened(disk: SimFiles) -> LogManager:
    manager = LogManager(
        disk,
        FolderConfig(log_dirs=("/data",), open_files_max=16),
        identity=Identity("cluster", BrokerId(1), "incarnation"),
        log_config=lambda _: LogConfig(index_interval_bytes=0),
    )
    manager.open(now_ms=NOW_MS)
    return manager


def test_a_flush_that_ran_late_does_not_cut_the_log_that_came_after(disk: SimFiles) -> None:
    manager = opened(disk)
    old = manager.create(ORDERS, TopicId("id"))
    append(old, batch(b"a"))
    old.flush()
    append(old, batch(b"b"))
    work = old.begin_flush()
    assert work is not None
    manager.reopen(ORDERS, refilled(manager, ORDERS), now_ms=NOW_MS)
    before = disk.operations
    work.run()
    old.end_flush(work)
    assert disk.operations == before, "its files are another log's now"
    old.fail_flush(OSError(5, "Input/output error"))
    log = manager.logs[ORDERS]
    assert not disk.exists(f"{log.folder}/{SYNC_FAILED_FILE}")
    append(log, batch(b"c"))
    manager.close()
    assert values(opened(disk).logs[ORDERS]) == [b"a", b"b", b"c"]


def test_a_late_flush_of_a_deleted_log_does_not_cut_its_successor(disk: SimFiles) -> None:
    manager = opened(disk)
    old = manager.create(ORDERS, TopicId("old"))
    append(old, batch(b"a"))
    work = old.begin_flush()
    assert work is not None
    manager.delete(ORDERS, deleted(manager, ORDERS))
    log = manager.create(ORDERS, TopicId("new"))
    append(log, batch(b"b"))
    work.run()
    old.fail_flush(OSError(5, "Input/output error"))
    manager.close()
    assert values(opened(disk).logs[ORDERS]) == [b"b"]


@pytest.mark.parametrize("seed", range(8))
def test_a_second_flush_covers_what_the_first_has_not_confirmed(seed: int) -> None:
    disk = SimFiles(seed)
    manager = opened(disk)
    log = manager.create(ORDERS, TopicId("id"))
    append(log, batch(b"a"))
    log.flush()
    log.roll()
    append(log, batch(b"b"))
    work = log.begin_flush()
    assert work is not None
    assert log.flush() == 2, "the first has not run yet"
    disk.crash(power_loss=True)
    assert values(opened(disk).logs[ORDERS]) == [b"a", b"b"]


def test_after_one_flush_failed_no_other_succeeds(bench: LogBench, disk: SimFiles) -> None:
    log = bench.open()
    append(log, batch(b"a"))
    log.flush()
    append(log, batch(b"b"))
    first, second = log.begin_flush(), log.begin_flush()
    assert first is not None
    assert second is not None
    disk.fail_next_sync(".log")
    with pytest.raises(OSError, match="Input/output"):
        first.run()
    with pytest.raises(OSError, match="Input/output"):
        second.run()
    with pytest.raises(StorageError, match="sync failed"):
        log.end_flush(second)
    assert log.recovery_point == 1
    with pytest.raises(LogClosed):
        log.close()
    assert values(bench.open()) == [b"a"]


def test_closing_hears_of_a_failure_that_nobody_reported(bench: LogBench, disk: SimFiles) -> None:
    log = bench.open()
    append(log, batch(b"a"))
    work = log.begin_flush()
    assert work is not None
    disk.fail_next_sync(".log")
    with pytest.raises(OSError, match="Input/output"):
        work.run()
    with pytest.raises(StorageError, match="sync failed"):
        log.close()


def test_a_flush_ends_in_its_own_log_only(disk: SimFiles) -> None:
    manager = opened(disk)
    log = manager.create(ORDERS, TopicId("id"))
    other = manager.create(TopicPartition("bills", 0), TopicId("other"))
    append(other, batch(b"a"))
    work = other.begin_flush()
    assert work is not None
    with pytest.raises(InvariantViolation, match="of another log"):
        log.end_flush(work)


def test_giving_a_log_up_waits_for_the_flush_that_runs(
    bench: LogBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = bench.open()
    append(log, batch(b"a"))
    work = log.begin_flush()
    assert work is not None
    running, go_on = threading.Event(), threading.Event()
    syncing = bench.files.sync_folder

    def slow(path: str) -> None:
        running.set()
        go_on.wait()
        syncing(path)

    monkeypatch.setattr(bench.files, "sync_folder", slow)
    runner = threading.Thread(target=work.run)
    runner.start()
    running.wait()
    ender = threading.Thread(target=log.abandon, args=("for a test",))
    ender.start()
    assert log.is_open
    go_on.set()
    ender.join()
    runner.join()
    assert not log.is_open


@pytest.mark.parametrize("reported", [True, False])
def test_a_failed_sync_without_a_marker_is_known_when_reopened(
    disk: SimFiles, *, reported: bool
) -> None:
    manager = opened(disk)
    log = manager.create(ORDERS, TopicId("id"))
    append(log, batch(b"a"))
    log.flush()
    append(log, batch(b"b"))
    disk.disk_bytes_max = disk.used_bytes
    disk.fail_next_sync(".log")
    work = log.begin_flush()
    assert work is not None
    with pytest.raises(OSError, match="Input/output") as failure:
        work.run()
    if reported:
        log.fail_flush(failure.value)
    assert not disk.exists(f"{log.folder}/{SYNC_FAILED_FILE}")
    disk.disk_bytes_max = None
    manager.reopen(ORDERS, refilled(manager, ORDERS), now_ms=NOW_MS)
    assert values(manager.logs[ORDERS]) == [b"a"], "what was not durable counts as lost"
    append(manager.logs[ORDERS], batch(b"c"))
    manager.close()
    assert values(opened(disk).logs[ORDERS]) == [b"a", b"c"]
