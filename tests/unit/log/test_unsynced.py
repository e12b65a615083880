"""What a failed sync may have lost is written anew, or nothing is: L8."""

from __future__ import annotations

import errno

import pytest

from simulation.log_bench import NOW_MS, append, batch, values
from simulation.storage import SimFiles, SimulatedCrash
from tailrace.errors import DamagedLog, StorageError
from tailrace.log.disk_faults import DiskFaults, Fault, FaultKind, FaultyFiles
from tailrace.log.log import PartitionLog
from tailrace.log.manager import LogManager
from tailrace.model import TopicId
from unit.log.test_manager import ORDERS, ROOT, manager_of, opened

DURABLE = [b"durable %d" % number for number in range(5)]
UNSYNCED = [b"unsynced %d" % number for number in range(40)]


def failed(disk: SimFiles) -> tuple[LogManager, PartitionLog]:
    """A log of several segments, of which the last ones were never synced: their sync failed."""
    manager = manager_of(disk, segment_bytes=1_024)
    manager.open(now_ms=NOW_MS)
    log = manager.create(ORDERS, TopicId("id"), now_ms=NOW_MS)
    for value in DURABLE:
        append(log, batch(value))
    log.flush()
    manager.checkpoint()
    for value in UNSYNCED:
        append(log, batch(value))
    assert len(log.segments) > 3
    disk.fail_next_sync(".log")
    with pytest.raises(StorageError):
        log.flush()
    assert log.is_unsynced
    return manager, log


def test_all_of_it_is_there_and_durable(disk: SimFiles) -> None:
    manager, log = failed(disk)
    report = manager.resync(ORDERS, now_ms=NOW_MS)
    assert "written anew" in report.mended[-1]
    assert report.cut == []
    new = manager.logs[ORDERS]
    assert (new.log_end, new.recovery_point) == (log.log_end, log.log_end)
    assert values(new) == [*DURABLE, *UNSYNCED]
    assert not [each for each in disk.list(f"{ROOT}/{ORDERS}") if each.endswith(".tmp")]
    assert not disk.exists(f"{ROOT}/{ORDERS}/sync-failed")
    assert manager.deletions([ORDERS]) == [], "nothing went"
    disk.crash(power_loss=True)
    again, opening = opened(disk)
    assert opening.damaged == {}
    assert values(again.logs[ORDERS]) == [*DURABLE, *UNSYNCED]


@pytest.mark.parametrize("segment", [0, 1, -1])
@pytest.mark.parametrize("fault", ["flipped", "short", "missing"])
def test_what_cannot_be_read_any_more_replaces_nothing(
    disk: SimFiles, fault: str, segment: int
) -> None:
    manager, log = failed(disk)
    doubtful = [each for each in log.segments if each.next_offset >= log.recovery_point]
    bad = doubtful[segment]
    if fault == "flipped":
        disk.flip_bits(bad.path, bad.size - 1)
    elif fault == "short":
        disk.open(bad.path).truncate(bad.size - 1)
    else:
        disk.remove(bad.path)
    names = disk.list(log.folder)
    before = {name: disk.read(f"{log.folder}/{name}") for name in names}
    with pytest.raises((DamagedLog, FileNotFoundError)):
        manager.resync(ORDERS, now_ms=NOW_MS)
    assert {each: disk.read(f"{log.folder}/{each}") for each in disk.list(log.folder)} == before
    assert disk.exists(f"{log.folder}/sync-failed"), "so the next opening cuts it there"


def test_while_the_disk_refuses_it_can_be_tried_again(disk: SimFiles) -> None:
    faults = DiskFaults()
    files = FaultyFiles(disk, faults)
    manager = manager_of(files)
    manager.open(now_ms=NOW_MS)
    log = manager.create(ORDERS, TopicId("id"), now_ms=NOW_MS)
    for value in UNSYNCED:
        append(log, batch(value))
    faults.set(Fault(FaultKind.UNSYNCED, f"{ROOT}/{ORDERS}"))
    with pytest.raises(StorageError):
        log.flush()
    for _ in range(3):
        with pytest.raises(OSError, match="Input/output") as raised:
            manager.resync(ORDERS, now_ms=NOW_MS)
        assert raised.value.errno == errno.EIO
        assert manager.logs[ORDERS].log_end == len(UNSYNCED)
    faults.set()
    manager.resync(ORDERS, now_ms=NOW_MS)
    assert values(manager.logs[ORDERS]) == UNSYNCED


def test_killed_at_any_write_it_ends_where_a_failed_sync_leaves_it_or_whole() -> None:
    """Never in between, and never with what is not durable taken for good."""
    ends, done, crash_at = set(), False, 0
    whole = [*DURABLE, *UNSYNCED]
    while not done:
        crash_at += 1 + crash_at // 8
        disk = SimFiles(seed=crash_at)
        manager, _ = failed(disk)
        disk.crash_at_operation(crash_at)
        try:
            manager.resync(ORDERS, now_ms=NOW_MS)
            done = True
        except SimulatedCrash:
            pass
        disk.crash(power_loss=True)
        again, _ = opened(disk)
        found = values(again.logs[ORDERS])
        assert found == whole[: len(found)]
        assert len(found) >= len(DURABLE)
        assert not done or found == whole
        ends.add(len(found))
    assert ends >= {len(DURABLE), len(whole)}
    assert crash_at > 20
