"""The data folders of a broker: locks, markers, checkpoints, and the logs in them."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from simulation.log_bench import NOW_MS, append, batch, contents, values
from simulation.proofs import DIVERGED, deleted, given_up, refilled
from simulation.storage import SimFiles, SimulatedCrash
from tailrace.config import FolderConfig, LogConfig
from tailrace.errors import (
    CorruptCheckpoint,
    DamagedLog,
    FolderLocked,
    FolderMismatch,
    InvariantViolation,
    LogClosed,
    StorageError,
)
from tailrace.log.checkpoints import (
    CLEAN_SHUTDOWN,
    CLEANED,
    HIGH_WATERMARKS,
    LOG_STARTS,
    META_PROPERTIES,
    PARTITION_METADATA,
    RECOVERY_POINTS,
    TOPIC_IDS,
    PartitionMetadata,
    encode,
    read_or_none,
    write_atomically,
)
from tailrace.log.data_folder import Identity
from tailrace.log.disk_faults import DiskFaults, Fault, FaultKind, FaultyFiles
from tailrace.log.files import Files, OsFiles
from tailrace.log.manager import LogManager
from tailrace.log.report import ManagerReport
from tailrace.log.segment import segment_name
from tailrace.model import BrokerId, LeaderEpoch, Offset, TopicId, TopicPartition

ROOT = "/data/a"
OTHER_ROOT = "/data/b"
ORDERS = TopicPartition("orders", 0)
BILLS = TopicPartition("bills", 1)
IDS = {ORDERS: TopicId("id-orders"), BILLS: TopicId("id-bills")}
ME = Identity("cluster", BrokerId(1), "incarnation-1")


def manager_of(
    files: Files,
    *roots: str,
    identity: Identity = ME,
    threads: int = 1,
    segment_bytes: int = 2048,
) -> LogManager:
    return LogManager(
        files,
        FolderConfig(
            log_dirs=roots or (ROOT,), open_files_max=16, num_recovery_threads_per_data_dir=threads
        ),
        identity=identity,
        log_config=lambda _: LogConfig(segment_bytes=segment_bytes),
    )


def opened(files: Files, *roots: str, threads: int = 1) -> tuple[LogManager, ManagerReport]:
    manager = manager_of(files, *roots, threads=threads)
    return manager, manager.open(now_ms=NOW_MS)


def filled(files: Files, *roots: str, count: int = 12) -> LogManager:
    """Two partitions with a record for each number."""
    manager, _ = opened(files, *roots)
    for partition, topic_id in IDS.items():
        log = manager.create(partition, topic_id)
        for at in range(count):
            append(log, batch(b"%s %d" % (partition.topic.encode(), at)))
    return manager


def path_of(manager: LogManager, partition: TopicPartition, name: str) -> str:
    return f"{manager.logs[partition].folder}/{name}"


def expected(partition: TopicPartition, count: int = 12) -> list[bytes | None]:
    return [b"%s %d" % (partition.topic.encode(), at) for at in range(count)]


# Opening and closing.


def test_a_new_folder_is_made_ours(disk: SimFiles) -> None:
    manager, report = opened(disk)
    assert (report.clean, report.same_boot, report.tail_may_be_lost) == (True, True, False)
    assert (report.opened, report.damaged, report.notes) == ([], {}, [])
    assert manager.incarnation == "incarnation-1"
    meta = read_or_none(disk, f"{ROOT}/meta.properties", META_PROPERTIES)
    assert meta is not None
    assert (meta.cluster_id, meta.broker_id, meta.boot_id) == ("cluster", 1, disk.boot_id())


def test_the_incarnation_is_known_once_open(disk: SimFiles) -> None:
    manager = manager_of(disk)
    with pytest.raises(InvariantViolation, match="not open"):
        assert manager.incarnation
    manager.open(now_ms=NOW_MS)
    manager.close()
    again = manager_of(disk, identity=Identity("cluster", BrokerId(1), "another"))
    again.open(now_ms=NOW_MS)
    assert again.incarnation == "incarnation-1", "that of the folder stays"


def test_after_a_clean_close_nothing_is_scanned(disk: SimFiles) -> None:
    filled(disk).close()
    assert disk.exists(f"{ROOT}/clean-shutdown")
    manager, report = opened(disk)
    assert not disk.exists(f"{ROOT}/clean-shutdown"), "gone before anything changes"
    assert report.clean
    assert [(each.clean, each.scanned_bytes) for each in report.opened] == [(True, 0)] * 2
    assert {each.partition for each in report.opened} == {ORDERS, BILLS}
    for partition, topic_id in IDS.items():
        assert values(manager.logs[partition]) == expected(partition)
        assert manager.topic_id(partition) == topic_id


def test_after_a_crash_everything_is_there(disk: SimFiles) -> None:
    filled(disk)
    disk.crash(power_loss=False)
    manager, report = opened(disk)
    assert (report.clean, report.same_boot, report.tail_may_be_lost) == (False, True, False)
    for partition in IDS:
        assert values(manager.logs[partition]) == expected(partition)
    assert manager.folders[0].recovery_points == {ORDERS: 12, BILLS: 12}


def test_after_a_power_loss_the_tail_may_be_gone(disk: SimFiles) -> None:
    manager = filled(disk)
    manager.logs[ORDERS].flush()
    manager.checkpoint()
    disk.crash(power_loss=True)
    manager, report = opened(disk)
    assert (report.clean, report.same_boot, report.tail_may_be_lost) == (False, False, True)
    assert values(manager.logs[ORDERS]) == expected(ORDERS)
    there = values(manager.logs[BILLS])
    assert there == expected(BILLS)[: len(there)]


def test_a_power_loss_after_a_clean_close_loses_nothing(disk: SimFiles) -> None:
    filled(disk).close()
    disk.crash(power_loss=True)
    manager, report = opened(disk)
    assert (report.clean, report.same_boot, report.tail_may_be_lost) == (True, False, False)
    for partition in IDS:
        assert values(manager.logs[partition]) == expected(partition)


def test_logs_are_recovered_in_parallel(tmp_path: Path) -> None:
    files = OsFiles()
    manager, _ = opened(files, str(tmp_path))
    partitions = [TopicPartition("t", number) for number in range(20)]
    for partition in partitions:
        append(manager.create(partition, TopicId("t")), batch(b"x"), batch(b"y"))
    manager.folders[0].release()
    manager.storage.cache.close()
    again, report = opened(files, str(tmp_path), threads=4)
    assert len(report.opened) == 20
    assert all(values(again.logs[partition]) == [b"x", b"y"] for partition in partitions)
    again.close()


def test_a_second_process_is_refused_and_does_no_harm(disk: SimFiles) -> None:
    manager = filled(disk)
    manager.checkpoint()
    stored = {name: disk.read(f"{ROOT}/{name}") for name in disk.list(ROOT) if "-point" in name}
    second = manager_of(disk)
    with pytest.raises(FolderLocked):
        second.open(now_ms=NOW_MS)
    second.close()
    assert not disk.exists(f"{ROOT}/clean-shutdown")
    assert {name: disk.read(f"{ROOT}/{name}") for name in stored} == stored
    append(manager.logs[ORDERS], batch(b"still mine"))
    manager.close()


def test_when_one_folder_is_locked_the_others_are_left_as_they_were(disk: SimFiles) -> None:
    filled(disk, ROOT, OTHER_ROOT).close()
    lock = disk.lock(f"{OTHER_ROOT}/.lock")
    with pytest.raises(FolderLocked):
        opened(disk, ROOT, OTHER_ROOT)
    lock.release()
    _, report = opened(disk, ROOT, OTHER_ROOT)
    assert report.clean


@pytest.mark.parametrize(
    "stranger",
    [Identity("cluster", BrokerId(2), "x"), Identity("another-cluster", BrokerId(1), "x")],
)
def test_a_folder_of_another_broker_is_left_alone(disk: SimFiles, stranger: Identity) -> None:
    filled(disk).close()
    disk.make_folder(f"{ROOT}/gone-0-delete")
    before = disk.list(ROOT)
    with pytest.raises(FolderMismatch, match="belongs to broker 1 of cluster cluster"):
        manager_of(disk, identity=stranger).open(now_ms=NOW_MS)
    assert disk.list(ROOT) == before
    _, report = opened(disk)
    assert report.clean


def test_a_corrupt_identity_stops_the_broker(disk: SimFiles) -> None:
    filled(disk).close()
    disk.flip_bits(f"{ROOT}/meta.properties", 30)
    with pytest.raises(CorruptCheckpoint, match="meta"):
        opened(disk)
    disk.flip_bits(f"{ROOT}/meta.properties", 30)
    _, report = opened(disk)
    assert report.clean, "the lock was released and nothing was changed"


def test_closing_twice_does_nothing_the_second_time(disk: SimFiles) -> None:
    manager = filled(disk)
    manager.close()
    before = disk.operations
    manager.close()
    assert disk.operations == before


def test_a_log_that_cannot_be_closed_is_not_called_clean(disk: SimFiles) -> None:
    manager = filled(disk)
    disk.fail_next_sync(f"{ORDERS}/{segment_name(10, '.log')}")
    with pytest.raises(StorageError, match="not closed cleanly: orders-0"):
        manager.close()
    again, report = opened(disk)
    assert not report.clean
    clean = {each.partition: each.clean for each in report.opened}
    assert clean == {ORDERS: False, BILLS: True}
    assert values(again.logs[BILLS]) == expected(BILLS)
    assert values(again.logs[ORDERS]) == [], "none of it was ever synced"


def test_a_full_disk_at_the_end_leaves_an_unclean_folder(disk: SimFiles) -> None:
    manager = filled(disk)
    disk.disk_bytes_max = 0
    with pytest.raises(StorageError):
        manager.close()
    disk.disk_bytes_max = None
    again, report = opened(disk)
    assert not report.clean
    assert values(again.logs[ORDERS]) == expected(ORDERS)


# Checkpoints.


def test_checkpoints_say_how_far_the_logs_are_durable(disk: SimFiles) -> None:
    manager = filled(disk)
    manager.logs[ORDERS].flush()
    manager.logs[BILLS].advance_log_start(5, given_up(5))
    manager.checkpoint()
    assert read_or_none(disk, f"{ROOT}/{RECOVERY_POINTS.file_name}", RECOVERY_POINTS) == {
        ORDERS: 12,
        BILLS: 5,
    }
    assert read_or_none(disk, f"{ROOT}/{LOG_STARTS.file_name}", LOG_STARTS) == {ORDERS: 0, BILLS: 5}


def test_a_recovery_point_is_lowered_before_a_cut(disk: SimFiles) -> None:
    manager = filled(disk)
    manager.logs[ORDERS].flush()
    manager.checkpoint()
    manager.logs[ORDERS].truncate_to(7, DIVERGED, now_ms=NOW_MS)
    disk.crash(power_loss=False)
    again, report = opened(disk)
    assert report.damaged == {}
    assert values(again.logs[ORDERS]) == expected(ORDERS, 7)


def test_a_log_start_is_durable_at_once(disk: SimFiles) -> None:
    manager = filled(disk)
    manager.logs[ORDERS].advance_log_start(7, given_up(7))
    disk.crash(power_loss=False)
    again, _ = opened(disk)
    assert contents(again.logs[ORDERS])[0] == (7, b"orders 7")


@pytest.mark.parametrize("kind", [RECOVERY_POINTS, LOG_STARTS, CLEANED])
def test_a_corrupt_checkpoint_costs_time_only(disk: SimFiles, kind: object) -> None:
    manager = filled(disk)
    manager.set_cleaned(ORDERS, 5)
    manager.checkpoint()
    name = getattr(kind, "file_name", "")
    disk.flip_bits(f"{ROOT}/{name}", 40)
    disk.crash(power_loss=False)
    again, report = opened(disk)
    assert any(name in note for note in report.notes)
    for partition in IDS:
        assert values(again.logs[partition]) == expected(partition)


def test_a_corrupt_marker_means_a_scan(disk: SimFiles) -> None:
    filled(disk).close()
    disk.flip_bits(f"{ROOT}/{CLEAN_SHUTDOWN.file_name}", 40)
    manager, report = opened(disk)
    assert not report.clean
    assert any("clean-shutdown" in note for note in report.notes)
    assert values(manager.logs[ORDERS]) == expected(ORDERS)


def test_high_watermarks_are_kept_in_the_folder_of_their_log(disk: SimFiles) -> None:
    manager = filled(disk, ROOT, OTHER_ROOT)
    offsets = {ORDERS: Offset(5), BILLS: Offset(7), TopicPartition("gone", 0): Offset(9)}
    manager.store_high_watermarks(offsets)
    assert manager.load_high_watermarks() == {ORDERS: 5, BILLS: 7}
    assert [len(folder.load(HIGH_WATERMARKS)) for folder in manager.folders] == [1, 1]
    manager.close()
    disk.flip_bits(f"{ROOT}/{HIGH_WATERMARKS.file_name}", 40)
    again, _ = opened(disk, ROOT, OTHER_ROOT)
    assert len(again.load_high_watermarks()) == 1


def test_f43_l3_a_log_whose_folder_is_missing_is_damaged(disk: SimFiles) -> None:
    manager = filled(disk)
    manager.close()
    disk.remove_folder(f"{ROOT}/{ORDERS}")
    again, report = opened(disk)
    assert isinstance(report.damaged[ORDERS], DamagedLog)
    assert (again.holds(ORDERS), ORDERS in again.logs) == (True, False)
    assert again.topic_id(ORDERS) == "id-orders"
    again.repair(ORDERS, refilled(again, ORDERS), now_ms=NOW_MS)
    assert again.logs[ORDERS].log_end == 0
    assert again.topic_id(ORDERS) == "id-orders"


def test_what_checkpoints_say_of_a_log_that_is_set_aside_is_dropped(disk: SimFiles) -> None:
    manager = filled(disk)
    manager.store_high_watermarks({ORDERS: Offset(1), BILLS: Offset(2)})
    manager.set_cleaned(ORDERS, 3)
    manager.close()
    disk.rename(f"{ROOT}/{ORDERS}", f"{ROOT}/{ORDERS}.id-orders-stray")
    again, report = opened(disk)
    assert not report.damaged
    assert again.load_high_watermarks() == {BILLS: 2}
    for kind in (RECOVERY_POINTS, LOG_STARTS, CLEANED):
        found = read_or_none(disk, f"{ROOT}/{kind.file_name}", kind)
        assert ORDERS not in (found or {})


def test_folders_above_that_cannot_be_synced_are_not_ours(
    disk: SimFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    syncing = disk.sync_folder

    def refusing(path: str) -> None:
        if path == "/":
            raise PermissionError(13, "Permission denied")
        syncing(path)

    monkeypatch.setattr(disk, "sync_folder", refusing)
    manager, report = opened(disk)
    assert report.clean
    manager.close()


def test_compaction_is_never_known_above_a_cut(disk: SimFiles) -> None:
    manager = filled(disk)
    assert manager.cleaned_to(ORDERS) == 0
    manager.set_cleaned(ORDERS, 10)
    manager.logs[ORDERS].flush()
    manager.logs[ORDERS].truncate_to(6, DIVERGED, now_ms=NOW_MS)
    assert manager.cleaned_to(ORDERS) == 6
    manager.close()
    again, _ = opened(disk)
    assert (again.cleaned_to(ORDERS), again.cleaned_to(BILLS)) == (6, 0)


# Creating and deleting.


def test_new_logs_go_where_the_fewest_are(disk: SimFiles) -> None:
    manager = filled(disk, ROOT, OTHER_ROOT)
    manager.create(TopicPartition("third", 0), TopicId("id-third"))
    assert sorted(len(folder.logs) for folder in manager.folders) == [1, 2]
    manager.close()
    again, report = opened(disk, ROOT, OTHER_ROOT)
    assert len(report.opened) == 3
    assert values(again.logs[BILLS]) == expected(BILLS)


def test_a_partition_is_created_once(disk: SimFiles) -> None:
    manager = filled(disk)
    with pytest.raises(InvariantViolation, match="orders-0 is there already"):
        manager.create(ORDERS, IDS[ORDERS])


# Several folders.


def faulty(disk: SimFiles, *faults: Fault) -> FaultyFiles:
    return FaultyFiles(disk, DiskFaults(faults))


def test_a_folder_that_cannot_be_opened_is_left_out(disk: SimFiles) -> None:
    filled(disk, ROOT, OTHER_ROOT).close()
    broken = faulty(disk, Fault(FaultKind.FAIL, OTHER_ROOT))
    manager, report = opened(broken, ROOT, OTHER_ROOT)
    assert list(report.failed) == [OTHER_ROOT]
    assert [each.path for each in manager.healthy] == [ROOT]
    assert len(report.opened) == 1
    # It is not the data that it was: whoever knew this broker must not count on it.
    whole, _ = opened(SimFiles(1), ROOT, OTHER_ROOT)
    assert manager.incarnation == f"{whole.incarnation}/without/1"
    new = manager.create(TopicPartition("new", 0), TopicId("new"))
    assert new.folder.startswith(ROOT)
    manager.checkpoint()
    manager.close()


def test_without_any_folder_there_is_nothing_to_open(disk: SimFiles) -> None:
    filled(disk).close()
    with pytest.raises(OSError, match="Input/output error"):
        opened(faulty(disk, Fault(FaultKind.FAIL, ROOT)))


def test_a_folder_that_fails_is_left_and_the_others_go_on(disk: SimFiles) -> None:
    manager = filled(disk, ROOT, OTHER_ROOT)
    folder = manager.folder_of(ORDERS)
    assert folder is not None
    log = manager.logs[ORDERS]
    manager.fail_folder(folder, "the disk is gone")
    with pytest.raises(LogClosed, match="the disk is gone"):
        append(log, batch(b"x"))
    assert ORDERS not in manager.logs
    assert manager.folder_of(ORDERS) is folder
    assert values(manager.logs[BILLS]) == expected(BILLS)
    for number in range(3):
        made = manager.create(TopicPartition("new", number), TopicId("new"))
        assert not made.folder.startswith(folder.path)
    manager.store_high_watermarks({BILLS: Offset(3)})
    manager.checkpoint()
    manager.close()
    # The folder was not closed in order, and so it is recovered when it is back.
    again, report = opened(disk, ROOT, OTHER_ROOT)
    assert not report.clean
    assert values(again.logs[ORDERS]) == expected(ORDERS)
    other = next(each for each in again.folders if each.path != folder.path)
    for each in again.folders:
        again.fail_folder(each, "gone too")
    with pytest.raises(StorageError, match="no data folder is left"):
        again.create(TopicPartition("last", 0), TopicId("last"))
    assert other.failure


class LateFaults(DiskFaults):
    """A disk that fails after so many calls."""

    def __init__(self, folder: str, calls: int) -> None:
        super().__init__()
        self._folder = folder
        self._calls = calls

    def check(self, path: str, *, grows: bool = False) -> None:
        if path.startswith(self._folder):
            self._calls -= 1
            if self._calls == 0:
                self.set(Fault(FaultKind.FAIL, self._folder))
        super().check(path, grows=grows)


@pytest.mark.parametrize("calls", [*range(1, 30), *range(30, 120, 10)])
def test_a_folder_that_fails_while_it_is_opened_harms_no_other(disk: SimFiles, calls: int) -> None:
    filled(disk, ROOT, OTHER_ROOT).close()
    manager, report = opened(FaultyFiles(disk, LateFaults(OTHER_ROOT, calls)), ROOT, OTHER_ROOT)
    here, there = manager.folders
    assert not here.failure
    kept = next(iter(here.logs))
    assert values(manager.logs[kept]) == expected(kept)
    # The other one is whole, or not used, or the log in it is known to be unreadable.
    assert there.failure or there.logs or report.damaged
    assert bool(there.failure) == (OTHER_ROOT in report.failed)


def test_new_logs_avoid_a_full_disk(disk: SimFiles) -> None:
    manager = filled(disk, ROOT, OTHER_ROOT)
    manager.folders[0].is_full = True
    for number in range(4):
        made = manager.create(TopicPartition("new", number), TopicId("new"))
        assert made.folder.startswith(OTHER_ROOT)
    manager.folders[1].is_full = True
    made = manager.create(TopicPartition("new", 9), TopicId("new"))
    assert made.folder.startswith(ROOT)


def test_of_two_copies_the_newer_is_kept(disk: SimFiles) -> None:
    """A folder was away, its logs were made anew elsewhere, and then it came back."""
    filled(disk, OTHER_ROOT).close()
    manager = filled(disk, ROOT, count=3)
    manager.logs[ORDERS].assign_epoch(LeaderEpoch(7))
    append(manager.logs[ORDERS], batch(b"newer"), epoch=7)
    manager.close()
    again, report = opened(disk, ROOT, OTHER_ROOT)
    assert values(again.logs[ORDERS])[-1] == b"newer"
    # Of equal epochs, the one with more.
    assert values(again.logs[BILLS]) == expected(BILLS)
    assert disk.exists(f"{OTHER_ROOT}/{ORDERS}.id-orders-stray")
    assert disk.exists(f"{ROOT}/{BILLS}.id-bills-stray")
    assert len([note for note in report.notes if "-stray" in note]) == 2
    assert {each.topic_id for each in again.strays()} == {*IDS.values()}
    again.close()
    assert len(opened(disk, ROOT, OTHER_ROOT)[1].opened) == 2


def test_a_deleted_partition_is_gone(disk: SimFiles) -> None:
    manager = filled(disk)
    manager.store_high_watermarks({ORDERS: Offset(5), BILLS: Offset(7)})
    manager.checkpoint()
    log = manager.logs[ORDERS]
    manager.delete(ORDERS, deleted(manager, ORDERS))
    with pytest.raises(LogClosed, match="it was deleted"):
        append(log, batch(b"x"))
    assert not any(name.startswith("orders") for name in disk.list(ROOT))
    assert manager.load_high_watermarks() == {BILLS: 7}
    assert manager.folders[0].recovery_points.keys() == {BILLS}
    new = manager.create(ORDERS, TopicId("another"))
    assert (new.log_start, new.log_end) == (0, 0)
    assert manager.topic_id(ORDERS) == "another"


def test_a_deletion_leaves_others_alone(disk: SimFiles) -> None:
    manager = filled(disk)
    manager.delete(ORDERS, deleted(manager, ORDERS))
    disk.crash(power_loss=False)
    again, _ = opened(disk)
    assert again.logs.keys() == {BILLS}
    assert values(again.logs[BILLS]) == expected(BILLS)


@pytest.mark.parametrize("power_loss", [False, True])
@pytest.mark.parametrize("operation", range(1, 40))
def test_a_deletion_killed_anywhere_is_done_or_not(
    disk: SimFiles, operation: int, power_loss: bool
) -> None:
    manager = filled(disk)
    manager.logs[ORDERS].flush()
    manager.checkpoint()
    disk.crash_at_operation(operation)
    with contextlib.suppress(SimulatedCrash):
        manager.delete(ORDERS, deleted(manager, ORDERS))
    disk.crash(power_loss=power_loss)
    again, report = opened(disk)
    assert report.damaged == {}
    if ORDERS in again.logs:
        assert values(again.logs[ORDERS]) == expected(ORDERS)
        again.delete(ORDERS, deleted(again, ORDERS))
    assert disk.list(f"{ROOT}/{BILLS}")
    new = again.create(ORDERS, TopicId("another"))
    assert (new.log_end, again.topic_id(ORDERS)) == (0, "another")


@pytest.mark.parametrize("power_loss", [False, True])
@pytest.mark.parametrize("operation", range(1, 30))
def test_a_creation_killed_anywhere_is_done_or_not(
    disk: SimFiles, operation: int, power_loss: bool
) -> None:
    manager, _ = opened(disk)
    disk.crash_at_operation(operation)
    with contextlib.suppress(SimulatedCrash):
        manager.create(ORDERS, IDS[ORDERS])
    disk.crash(power_loss=power_loss)
    again, report = opened(disk)
    assert report.damaged == {}
    if ORDERS in again.logs:
        assert again.topic_id(ORDERS) == IDS[ORDERS]
    else:
        again.create(ORDERS, IDS[ORDERS])
    append(again.logs[ORDERS], batch(b"x"))


def test_only_deleted_partitions_are_removed(disk: SimFiles) -> None:
    filled(disk).close()
    for name in ("gone-3-delete", "notes-delete", "lost+found"):
        disk.make_folder(f"{ROOT}/{name}")
    disk.open(f"{ROOT}/gone-3-delete/file", create=True).close()
    disk.open(f"{ROOT}/orders-7", create=True).close()
    manager, report = opened(disk)
    assert report.notes == ["finished the deletion of gone-3-delete"]
    assert not disk.exists(f"{ROOT}/gone-3-delete")
    assert disk.is_folder(f"{ROOT}/notes-delete")
    assert manager.logs.keys() == {ORDERS, BILLS}


def test_a_leftover_of_a_deletion_is_no_hindrance(disk: SimFiles) -> None:
    manager = filled(disk)
    disk.make_folder(f"{ROOT}/{ORDERS}-delete/inside")
    manager.delete(ORDERS, deleted(manager, ORDERS))
    assert not disk.exists(f"{ROOT}/{ORDERS}-delete")


# Damage and reopening.


def test_a_damaged_log_is_reported_and_the_others_opened(disk: SimFiles) -> None:
    manager = filled(disk)
    manager.logs[ORDERS].flush()
    manager.checkpoint()
    path = manager.logs[ORDERS].segments[-1].path
    disk.crash(power_loss=False)
    disk.flip_bits(path, 200)
    again, report = opened(disk)
    assert list(report.damaged) == [ORDERS]
    assert isinstance(report.damaged[ORDERS], DamagedLog)
    assert again.logs.keys() == {BILLS}
    with pytest.raises(InvariantViolation, match="is there already"):
        again.create(ORDERS, IDS[ORDERS])
    repaired = again.repair(ORDERS, refilled(again, ORDERS), now_ms=NOW_MS)
    assert repaired.mended
    assert values(again.logs[ORDERS]) == expected(ORDERS, 10)
    disk.crash(power_loss=False)
    again, report = opened(disk)
    assert report.damaged == {}
    assert values(again.logs[ORDERS]) == expected(ORDERS, 10)


def test_a_damaged_log_stays_damaged_over_a_clean_shutdown(disk: SimFiles) -> None:
    manager = filled(disk)
    manager.logs[ORDERS].flush()
    manager.checkpoint()
    path = manager.logs[ORDERS].segments[-1].path
    disk.crash(power_loss=False)
    disk.flip_bits(path, 200)
    again, _ = opened(disk)
    again.close()
    _, report = opened(disk)
    assert list(report.damaged) == [ORDERS]
    assert not report.clean


def test_a_damaged_log_may_be_deleted(disk: SimFiles) -> None:
    manager = filled(disk)
    path = manager.logs[ORDERS].segments[-1].path
    manager.close()
    disk.cut(path, 100)
    again, report = opened(disk)
    assert list(report.damaged) == [ORDERS]
    again.delete(ORDERS, deleted(again, ORDERS))
    assert not disk.exists(f"{ROOT}/{ORDERS}")


def test_an_open_log_may_be_repaired(disk: SimFiles) -> None:
    """A reader found damage where no opening looks."""
    manager = filled(disk)
    manager.logs[ORDERS].flush()
    log = manager.logs[ORDERS]
    disk.flip_bits(log.segments[0].path, 500)
    manager.repair(ORDERS, refilled(manager, ORDERS), now_ms=NOW_MS)
    assert not log.is_open
    assert values(manager.logs[ORDERS]) == expected(ORDERS, 1)


def test_a_stopped_log_is_opened_anew(disk: SimFiles) -> None:
    manager = filled(disk)
    log = manager.logs[ORDERS]
    log.flush()
    append(log, batch(b"lost"))
    disk.fail_next_sync(".log")
    with pytest.raises(StorageError):
        log.flush()
    manager.reopen(ORDERS, refilled(manager, ORDERS), now_ms=NOW_MS)
    assert values(manager.logs[ORDERS]) == expected(ORDERS)
    append(manager.logs[ORDERS], batch(b"new"))
    manager.close()
    again, report = opened(disk)
    assert report.clean
    assert values(again.logs[ORDERS]) == [*expected(ORDERS), b"new"]


def test_a_partition_without_metadata_but_with_data_is_damaged(disk: SimFiles) -> None:
    manager = filled(disk)
    metadata = path_of(manager, ORDERS, PARTITION_METADATA.file_name)
    manager.close()
    disk.remove(metadata)
    disk.remove(f"{ROOT}/{TOPIC_IDS.file_name}")
    again, report = opened(disk)
    assert isinstance(report.damaged[ORDERS], CorruptCheckpoint)
    assert again.logs.keys() == {BILLS}
    assert again.topic_id(ORDERS) is None
    again.set_aside(ORDERS, why="test", now_ms=NOW_MS)
    assert disk.exists(f"{ROOT}/{ORDERS}.unknown-stray")
    assert again.create(ORDERS, TopicId("id-orders")).log_end == 0


@pytest.mark.parametrize("fault", ["missing", "flipped"])
def test_f43_l5_a_topic_id_is_mended_from_its_second_copy(disk: SimFiles, fault: str) -> None:
    manager = filled(disk)
    metadata = path_of(manager, ORDERS, PARTITION_METADATA.file_name)
    manager.close()
    if fault == "missing":
        disk.remove(metadata)
    else:
        disk.flip_bits(metadata, 40)
    again, report = opened(disk)
    assert (report.damaged, again.topic_id(ORDERS)) == ({}, "id-orders")
    assert any("second copy" in note for note in report.notes)
    assert read_or_none(disk, metadata, PARTITION_METADATA) == PartitionMetadata(IDS[ORDERS])


def test_f43_l5_two_topic_ids_that_differ_are_none(disk: SimFiles) -> None:
    manager = filled(disk)
    metadata = path_of(manager, ORDERS, PARTITION_METADATA.file_name)
    manager.close()
    data = encode(PARTITION_METADATA, PartitionMetadata(TopicId("older")))
    write_atomically(disk, metadata, data, durable=True)
    again, report = opened(disk)
    assert isinstance(report.damaged[ORDERS], CorruptCheckpoint)
    assert again.topic_id(ORDERS) is None


def test_a_partition_that_was_never_finished_is_removed(disk: SimFiles) -> None:
    filled(disk).close()
    disk.make_folder(f"{ROOT}/half-0")
    manager, report = opened(disk)
    (note,) = report.notes
    assert note.startswith(f"removed half-0: {ROOT}/half-0 was never finished")
    assert not disk.exists(f"{ROOT}/half-0")
    manager.create(TopicPartition("half", 0), TopicId("half"))


def test_topic_id_of_a_folder_that_lost_it(disk: SimFiles) -> None:
    manager = filled(disk)
    disk.remove(path_of(manager, ORDERS, PARTITION_METADATA.file_name))
    assert manager.topic_id(ORDERS) == "id-orders"
    manager.folders[0].topic_ids.clear()
    assert manager.topic_id(ORDERS) is None


def test_an_open_that_fails_leaves_nothing_open(tmp_path: Path) -> None:
    files = OsFiles()
    filled(files, str(tmp_path)).close()
    other = manager_of(
        files, str(tmp_path / "extra"), identity=Identity("another", BrokerId(1), "i")
    )
    other.open(now_ms=NOW_MS)
    other.close()
    manager = manager_of(files, str(tmp_path), str(tmp_path / "extra"))
    with pytest.raises(FolderMismatch):
        manager.open(now_ms=NOW_MS)
    assert manager.storage.cache.counters().open_files == 0
    again, _ = opened(files, str(tmp_path))
    assert values(again.logs[ORDERS]) == expected(ORDERS)
    again.close()
