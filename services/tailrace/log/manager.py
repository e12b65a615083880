"""The data folders of one broker: which logs are there, their checkpoints, how they are closed.

A broker may have several folders, on disks of their own: a new log goes to the one with the fewest.
One that fails, at the start or later, is left alone from then on, and the others go on.

A data folder is locked by one process at a time. Its checkpoint files are small and rewritten
whole; a lost one costs time (more is scanned), never data. The clean-shutdown marker is removed,
durably, before anything in the folder can change, and written last of all.

Bounds: open descriptors by `open_files_max`, indexes of closed segments by `index_cache_bytes`,
both over all folders; a log that is not written to holds no index of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from threading import Lock
from typing import Final, TypeVar

from tailrace.config import FolderConfig, LogConfig
from tailrace.errors import (
    CorruptCheckpoint,
    FolderMismatch,
    InvariantViolation,
    StorageError,
    TailraceError,
    is_no_room,
)
from tailrace.log.checkpoints import (
    CLEAN_SHUTDOWN,
    CLEANED,
    HIGH_WATERMARKS,
    LEADER_EPOCHS,
    LOG_STARTS,
    META_PROPERTIES,
    PARTITION_METADATA,
    RECOVERY_POINTS,
    CleanPartition,
    CleanShutdown,
    Kind,
    MetaProperties,
    PartitionMetadata,
    encode,
    read_or_none,
    write_atomically,
)
from tailrace.log.file_cache import FileCache
from tailrace.log.files import Files, FolderLock
from tailrace.log.log import PartitionLog
from tailrace.log.recovery import OpenReport, make_log, open_log
from tailrace.log.report import ManagerReport
from tailrace.log.segment import IndexCache, Storage
from tailrace.log.swap import segment_bases
from tailrace.model import BrokerId, Offset, TopicId, TopicPartition

LOCK_FILE: Final = ".lock"
DELETED_SUFFIX: Final = "-delete"
# Another copy of a log, in a folder that was away while the log was made anew: for people.
STRAY_SUFFIX: Final = "-stray"

OffsetMap = Mapping[TopicPartition, Offset]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Identity:
    """Whose folders these are; `incarnation` is for folders that have none yet."""

    cluster_id: str
    broker_id: BrokerId
    incarnation: str


class DataFolder:
    """One data folder: its lock, its checkpoint files, and the logs that live in it."""

    def __init__(self, files: Files, path: str) -> None:
        self._files = files
        self._mutex = Lock()
        self._lock: FolderLock | None = None
        self._boot_id = ""
        self.path = path
        # Why the folder is not used any more; empty: it is.
        self.failure = ""
        # Its disk has little room: new logs go elsewhere if they can.
        self.is_full = False
        self.logs: dict[TopicPartition, PartitionLog] = {}
        self.coming: set[TopicPartition] = set()
        self.recovery_points: dict[TopicPartition, Offset] = {}
        self.log_starts: dict[TopicPartition, Offset] = {}
        self.cleaned: dict[TopicPartition, Offset] = {}
        self.clean: CleanShutdown | None = None
        self.meta: MetaProperties | None = None

    def open(self, report: ManagerReport) -> None:
        """Lock the folder and read what is beside the logs; nothing else is changed."""
        self._files.make_folder(self.path)
        self._lock = self._files.lock(f"{self.path}/{LOCK_FILE}")
        self.meta = self._load(META_PROPERTIES, report, must_be_good=True)
        if self.meta is None:
            self._sync_folders_above()
        self.clean = self._load(CLEAN_SHUTDOWN, report)
        self.recovery_points = self._load_offsets(RECOVERY_POINTS, report)
        self.log_starts = self._load_offsets(LOG_STARTS, report)
        self.cleaned = self._load_offsets(CLEANED, report)
        self._boot_id = self._files.boot_id()
        if not self.is_boot_confirmed:
            report.same_boot = False

    def check(self, identity: Identity) -> None:
        """Make sure that the folder is ours."""
        found = self.meta
        if found is not None and (found.cluster_id, found.broker_id) != (
            identity.cluster_id,
            identity.broker_id,
        ):
            raise FolderMismatch(
                f"{self.path} belongs to broker {found.broker_id} of cluster {found.cluster_id}, "
                f"not to broker {identity.broker_id} of cluster {identity.cluster_id}"
            )

    def claim(self, identity: Identity, report: ManagerReport) -> None:
        """From here on the folder changes: take the marker away, note whose it is."""
        if self.clean is not None:
            self._files.remove(f"{self.path}/{CLEAN_SHUTDOWN.file_name}")
            self._files.sync_folder(self.path)
        self._remove_deleted(report)
        if self.meta is None:
            # One that is there names its boot until `confirm_boot`: a crash before hides nothing.
            self.meta = MetaProperties(
                identity.cluster_id, identity.broker_id, identity.incarnation, self._boot_id
            )
            self.store(META_PROPERTIES, self.meta)

    @property
    def is_boot_confirmed(self) -> bool:
        return self.meta is None or self.meta.boot_id == self._boot_id

    def confirm_boot(self) -> None:
        """Note the boot that the folder is used under; durable on return."""
        if self.meta is not None and not self.is_boot_confirmed:
            meta = replace(self.meta, boot_id=self._boot_id)
            self.store(META_PROPERTIES, meta)
            self.meta = meta

    def partitions(self) -> list[TopicPartition]:
        found = (TopicPartition.parse(name) for name in self._files.list(self.path))
        return [each for each in found if each and self._files.is_folder(f"{self.path}/{each}")]

    def load(self, kind: Kind[OffsetMap]) -> dict[TopicPartition, Offset]:
        found = read_or_none(self._files, f"{self.path}/{kind.file_name}", kind)
        return dict(found) if found is not None else {}

    def store(self, kind: Kind[T], value: T) -> None:
        """Replace a checkpoint file; durable on return."""
        path = f"{self.path}/{kind.file_name}"
        write_atomically(self._files, path, encode(kind, value), durable=True)

    def lower_recovery_point(self, partition: TopicPartition, offset: int) -> None:
        self.set_cleaned(partition, min(offset, self.cleaned.get(partition, Offset(0))))
        with self._mutex:
            if self.recovery_points.get(partition, 0) > offset:
                self._store_recovery_point(partition, offset)

    def raise_recovery_point(self, partition: TopicPartition, offset: int) -> None:
        """Store that recovery made a segment durable: the next one need not scan it again."""
        with self._mutex:
            if self.recovery_points.get(partition, 0) < offset:
                self._store_recovery_point(partition, offset)

    def set_log_start(self, partition: TopicPartition, offset: int) -> None:
        with self._mutex:
            if self.log_starts.get(partition, 0) != offset:
                # Stored first: a reopened log must not start where the next process would not.
                starts = {**self.log_starts, partition: Offset(offset)}
                self.store(LOG_STARTS, starts)
                self.log_starts = starts

    def set_cleaned(self, partition: TopicPartition, offset: int) -> None:
        with self._mutex:
            if self.cleaned.get(partition, 0) != offset:
                cleaned = {**self.cleaned, partition: Offset(offset)}
                self.store(CLEANED, cleaned)
                self.cleaned = cleaned

    def checkpoint(self) -> None:
        """Store how far the logs are durable and where they start."""
        with self._mutex:
            # Others are made and deleted meanwhile, by other threads.
            logs = list(self.logs.items())
            points = {each: Offset(log.recovery_point) for each, log in logs}
            starts = {each: Offset(log.log_start) for each, log in logs}
            points, starts = self.recovery_points | points, self.log_starts | starts
            # In this order: retention raises both, and what it removed may come back unsynced
            # after a power loss. The log start says that it does not count, the recovery point
            # alone would call it damage.
            self.store(LOG_STARTS, starts)
            self.log_starts = starts
            self.store(RECOVERY_POINTS, points)
            self.recovery_points = points

    def keep_only(self, partitions: list[TopicPartition]) -> None:
        """Drop what the checkpoints say of partitions that are gone; durable on return.

        A partition that is made anew under an old name must not find the old offsets.
        """
        known = set(partitions)
        for kind, offsets in (
            (RECOVERY_POINTS, self.recovery_points),
            (LOG_STARTS, self.log_starts),
            (CLEANED, self.cleaned),
        ):
            gone = [each for each in offsets if each not in known]
            for partition in gone:
                del offsets[partition]
            if gone:
                self.store(kind, offsets)
        watermarks = self._load_offsets(HIGH_WATERMARKS, ManagerReport())
        if not watermarks.keys() <= known:
            kept = {each: watermarks[each] for each in watermarks if each in known}
            self.store(HIGH_WATERMARKS, kept)

    def forget(self, partition: TopicPartition) -> None:
        with self._mutex:
            self.logs.pop(partition, None)
            self.recovery_points.pop(partition, None)
            self.log_starts.pop(partition, None)
            self.cleaned.pop(partition, None)
            watermarks = self._load_offsets(HIGH_WATERMARKS, ManagerReport())
            if watermarks.pop(partition, None) is not None:
                self.store(HIGH_WATERMARKS, watermarks)
            self.store(CLEANED, self.cleaned)
            self.store(RECOVERY_POINTS, self.recovery_points)
            self.store(LOG_STARTS, self.log_starts)

    def close(self) -> None:
        """Close every log; the marker names those that were closed in order.

        Does nothing when the folder is not open: it may be another process's by now.
        """
        if self._lock is None:
            return
        entries: dict[TopicPartition, CleanPartition] = {}
        failures: list[str] = []
        for partition, log in list(self.logs.items()):
            try:
                log.close()
            except (TailraceError, OSError) as error:
                failures.append(f"{partition}: {error}")
                continue
            active = log.segments[-1]
            entries[partition] = CleanPartition(
                Offset(log.log_start),
                Offset(log.log_end),
                Offset(active.base_offset),
                active.size,
            )
        self.checkpoint()
        if self.is_boot_confirmed:
            self.store(CLEAN_SHUTDOWN, CleanShutdown(self._files.boot_id(), entries))
        self.release()
        if failures:
            raise StorageError(f"{self.path} was not closed cleanly: " + "; ".join(failures))

    def _store_recovery_point(self, partition: TopicPartition, offset: int) -> None:
        # Stored first: what is lower in memory than in the file would never be stored.
        points = {**self.recovery_points, partition: Offset(offset)}
        self.store(RECOVERY_POINTS, points)
        self.recovery_points = points

    def release(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _load(
        self, kind: Kind[T], report: ManagerReport, *, must_be_good: bool = False
    ) -> T | None:
        try:
            return read_or_none(self._files, f"{self.path}/{kind.file_name}", kind)
        except CorruptCheckpoint as error:
            if must_be_good:
                raise
            report.notes.append(f"not used: {error}")
            return None

    def _load_offsets(
        self, kind: Kind[OffsetMap], report: ManagerReport
    ) -> dict[TopicPartition, Offset]:
        found = self._load(kind, report)
        return dict(found) if found is not None else {}

    def _sync_folders_above(self) -> None:
        """The folder may have been made just now: its name, and those above it, have to last."""
        for above in PurePosixPath(self.path).parents:
            try:
                self._files.sync_folder(str(above))
            except PermissionError:
                # A folder that we may not even read is not one that we made a name in.
                return

    def _remove_deleted(self, report: ManagerReport) -> None:
        for name in self._files.list(self.path):
            if name.endswith(DELETED_SUFFIX) and TopicPartition.parse(
                name.removesuffix(DELETED_SUFFIX)
            ):
                self._files.remove_folder(f"{self.path}/{name}")
                report.notes.append(f"finished the deletion of {name}")


@dataclass(frozen=True, slots=True)
class _PartitionCheckpoints:
    """The two durable offsets of one log, kept in the files of its folder."""

    folder: DataFolder
    partition: TopicPartition

    def lower_recovery_point(self, offset: int) -> None:
        self.folder.lower_recovery_point(self.partition, offset)

    def set_log_start(self, offset: int) -> None:
        self.folder.set_log_start(self.partition, offset)


class LogManager:
    """All logs of one broker. Opened, and made, by several threads; the rest is one thread."""

    def __init__(
        self,
        files: Files,
        config: FolderConfig,
        *,
        identity: Identity,
        log_config: Callable[[str], LogConfig] = lambda _: LogConfig(),
    ) -> None:
        self._files = files
        self._config = config
        self._identity = identity
        self._log_config = log_config
        self.storage = Storage(
            files=files,
            cache=FileCache(files, open_files_max=config.open_files_max),
            indexes=IndexCache(bytes_max=config.index_cache_bytes),
        )
        self.folders = [DataFolder(files, path) for path in config.log_dirs]
        self.logs: dict[TopicPartition, PartitionLog] = {}
        self.damaged: dict[TopicPartition, TailraceError] = {}
        self._folder_of: dict[TopicPartition, DataFolder] = {}
        self._placing = Lock()

    def open(self, *, now_ms: int) -> ManagerReport:
        """Open every log; damaged ones are reported. Without room: try with another manager."""
        report = ManagerReport()
        try:
            for folder in self.folders:
                self._attempt(folder, report, lambda each: each.open(report))
            for folder in self.healthy:
                folder.check(self._identity)
            for folder in self.healthy:
                self._attempt(folder, report, lambda each: each.claim(self._identity, report))
            self._part_copies(report)
            for folder in self.healthy:
                self._attempt(folder, report, lambda each: self._open_logs(each, report, now_ms))
            if not report.tail_may_be_lost:
                self.confirm_boot()
        except BaseException:
            for folder in self.folders:
                folder.release()
            self.storage.cache.close()
            raise
        return report

    @property
    def incarnation(self) -> str:
        """Names the data that is here: without one of the folders it is not what it was."""
        meta = self.healthy[0].meta if self.healthy else None
        if meta is None:
            raise InvariantViolation("the data folders are not open")
        lost = [str(at) for at, each in enumerate(self.folders) if each.failure]
        return "/".join([meta.incarnation, "without", *lost]) if lost else meta.incarnation

    @property
    def healthy(self) -> list[DataFolder]:
        """The folders that are used."""
        return [each for each in self.folders if not each.failure]

    def folder_of(self, partition: TopicPartition) -> DataFolder | None:
        """Where a log is, or was when its folder failed."""
        return self._folder_of.get(partition)

    def fail_folder(self, folder: DataFolder, reason: str) -> None:
        """Use a folder no longer; what is in it stays as it is. May wait for a sync that runs."""
        folder.failure = reason
        for partition, log in list(folder.logs.items()):
            log.abandon(reason)
            self.storage.cache.forget_folder(f"{folder.path}/{partition}")
            self.logs.pop(partition, None)
        folder.logs.clear()

    def create(self, partition: TopicPartition, topic_id: TopicId) -> PartitionLog:
        """Make the log of a new partition, in the folder that has the fewest; in any thread."""
        if partition in self._folder_of:
            raise InvariantViolation(f"{partition} is there already")
        for each in self.healthy:
            path = f"{each.path}/{partition}"
            if self._files.exists(path) or self._files.exists(path + DELETED_SUFFIX):
                # A creation or a removal that failed half-way left it there.
                self._discard(each, partition)
        with self._placing:
            if not self.healthy:
                raise StorageError("no data folder is left")
            folder = min(self.healthy, key=lambda it: (it.is_full, len(it.logs) + len(it.coming)))
            folder.coming.add(partition)
        try:
            return self._create_in(folder, partition, topic_id)
        finally:
            folder.coming.discard(partition)

    def confirm_boot(self) -> None:
        """The cluster knows what the last boot may have cost; until then each opening says it."""
        for folder in self.healthy:
            folder.confirm_boot()

    @property
    def is_boot_confirmed(self) -> bool:
        return all(each.is_boot_confirmed for each in self.healthy)

    def holds(self, partition: TopicPartition) -> bool:
        """Whether there is a log, be it that it is damaged or could not be opened again."""
        return partition in self._folder_of

    def topic_id(self, partition: TopicPartition) -> TopicId | None:
        path = f"{self._folder_of[partition].path}/{partition}/{PARTITION_METADATA.file_name}"
        metadata = read_or_none(self._files, path, PARTITION_METADATA)
        return metadata.topic_id if metadata is not None else None

    def repair(self, partition: TopicPartition, *, now_ms: int) -> OpenReport:
        """Open a damaged log with what is whole of it; the rest must come from the leader."""
        return self._open_again(partition, now_ms, accept_loss=True)

    def reopen(self, partition: TopicPartition, *, now_ms: int) -> OpenReport:
        """Open a log anew that a failed sync or cut has stopped: what was not durable goes."""
        return self._open_again(partition, now_ms, accept_loss=False)

    def delete(self, partition: TopicPartition) -> None:
        """Remove a partition; the rename makes it final, the rest may finish at the next start.

        After an error the log is closed and the call can be repeated.
        """
        folder = self._folder_of[partition]
        log = self.logs.pop(partition, None)
        folder.logs.pop(partition, None)
        if log is not None:
            log.abandon("it was deleted")
        self._discard(folder, partition)
        del self._folder_of[partition]

    def load_high_watermarks(self) -> dict[TopicPartition, Offset]:
        return self._load_all(HIGH_WATERMARKS)

    def store_high_watermarks(self, offsets: OffsetMap) -> None:
        self._store_all(HIGH_WATERMARKS, offsets)

    def cleaned_to(self, partition: TopicPartition) -> Offset:
        """Up to where a log was compacted; never above where it was cut off since."""
        return self._folder_of[partition].cleaned.get(partition, Offset(0))

    def set_cleaned(self, partition: TopicPartition, offset: int) -> None:
        """Note that a log was compacted up to here; durable on return."""
        self._folder_of[partition].set_cleaned(partition, offset)

    def checkpoint(self) -> None:
        """Of every folder that is used; the first error is raised after all had their turn."""
        first: OSError | StorageError | None = None
        for folder in self.healthy:
            try:
                folder.checkpoint()
            except (OSError, StorageError) as error:
                first = first or error
        if first is not None:
            raise first

    def close(self) -> None:
        """Close all logs and mark the folders as clean."""
        failures: list[str] = []
        for folder in self.folders:
            if folder.failure:
                folder.release()
                continue
            try:
                folder.close()
            except (StorageError, OSError) as error:
                failures.append(str(error))
                folder.release()
        self.storage.cache.close()
        if failures:
            raise StorageError("; ".join(failures))

    def _attempt(
        self, folder: DataFolder, report: ManagerReport, step: Callable[[DataFolder], None]
    ) -> None:
        """Take a step with a folder; one whose disk fails is left out while there are others."""
        if folder.failure:
            return
        try:
            step(folder)
        except OSError as error:
            if is_no_room(error):
                raise
            self.fail_folder(folder, str(error))
            folder.release()
            report.failed[folder.path] = folder.failure
            if not self.healthy:
                raise

    def _part_copies(self, report: ManagerReport) -> None:
        """A log that is in two folders was made anew while one of them was away: keep that one."""
        homes: dict[TopicPartition, DataFolder] = {}
        for folder in self.healthy:
            found: list[TopicPartition] = []
            self._attempt(folder, report, lambda each: found.extend(each.partitions()))  # noqa: B023
            for partition in found:
                other = homes.setdefault(partition, folder)
                if other is folder:
                    continue
                older = min((other, folder), key=lambda each: self._age(each, partition))
                homes[partition] = folder if older is other else other
                self._attempt(older, report, lambda each: self._set_aside(each, partition))  # noqa: B023
                report.notes.append(
                    f"{partition} is in {homes[partition].path} too, where it is newer: the copy "
                    f"in {older.path} was renamed to {partition}{STRAY_SUFFIX}"
                )

    def _age(self, folder: DataFolder, partition: TopicPartition) -> tuple[int, int]:
        """How far the log in a folder got: its last epoch, and how much of it is durable."""
        path = f"{folder.path}/{partition}/{LEADER_EPOCHS.file_name}"
        try:
            entries = read_or_none(self._files, path, LEADER_EPOCHS) or ()
        except CorruptCheckpoint:
            entries = ()
        latest = max((int(each.epoch) for each in entries), default=-1)
        return latest, folder.recovery_points.get(partition, 0)

    def _set_aside(self, folder: DataFolder, partition: TopicPartition) -> None:
        aside = f"{folder.path}/{partition}{STRAY_SUFFIX}"
        if self._files.exists(aside):
            self._files.remove_folder(aside)
        self._files.rename(f"{folder.path}/{partition}", aside)
        self._files.sync_folder(folder.path)

    def _open_again(
        self, partition: TopicPartition, now_ms: int, *, accept_loss: bool
    ) -> OpenReport:
        folder = self._folder_of[partition]
        log = self.logs.pop(partition, None)
        folder.logs.pop(partition, None)
        if log is not None:
            log.abandon("it is opened anew")
            # It knows better than the file, which is written now and then.
            folder.recovery_points[partition] = Offset(log.recovery_point)
        _, report = self._open_log(folder, partition, now_ms, accept_loss=accept_loss)
        with suppress(OSError):
            # The log is open. An older checkpoint costs the next opening time, no more.
            folder.checkpoint()
        return report

    def _discard(self, folder: DataFolder, partition: TopicPartition) -> None:
        path = f"{folder.path}/{partition}"
        doomed = f"{folder.path}/{partition}{DELETED_SUFFIX}"
        if self._files.exists(path):
            if self._files.exists(doomed):
                self._files.remove_folder(doomed)
            self._files.rename(path, doomed)
        self._files.sync_folder(folder.path)
        self.storage.cache.forget_folder(path)
        self.storage.failed_syncs.pop(path, None)
        folder.forget(partition)
        if self._files.exists(doomed):
            self._files.remove_folder(doomed)

    def _open_logs(self, folder: DataFolder, report: ManagerReport, now_ms: int) -> None:
        partitions = folder.partitions()
        folder.keep_only(partitions)
        for partition in partitions:
            if partition in self._folder_of:
                raise InvariantViolation(f"{partition} is in {folder.path} and in another folder")
            self._folder_of[partition] = folder
            if folder.clean is None or partition not in folder.clean.partitions:
                report.clean = False
        threads = self._config.num_recovery_threads_per_data_dir
        if threads == 1:
            for partition in partitions:
                self._open_found(folder, partition, report, now_ms)
        else:
            with ThreadPoolExecutor(threads, thread_name_prefix="log-recovery") as pool:
                waiting = [
                    pool.submit(self._open_found, folder, each, report, now_ms)
                    for each in partitions
                ]
                for opening in waiting:
                    opening.result()
        folder.clean = None
        if not report.clean:
            # Once for all of them: the files hold every partition of the folder.
            folder.checkpoint()

    def _open_found(
        self, folder: DataFolder, partition: TopicPartition, report: ManagerReport, now_ms: int
    ) -> None:
        try:
            if self._has_metadata(folder, partition):
                report.opened.append(self._open_log(folder, partition, now_ms)[1])
                return
        except (TailraceError, OSError, ValueError) as error:
            if is_no_room(error):
                raise
            # Whatever it is, it is the trouble of this partition: the others go on.
            other = StorageError(f"{partition} cannot be opened: {error}")
            other.__cause__ = error
            failure = error if isinstance(error, TailraceError) else other
            report.damaged[partition] = self.damaged[partition] = failure
            return
        # Its creation was interrupted before anyone could know of it.
        self._files.remove_folder(f"{folder.path}/{partition}")
        del self._folder_of[partition]
        report.notes.append(f"removed {partition}, which was never finished")

    def _has_metadata(self, folder: DataFolder, partition: TopicPartition) -> bool:
        path = f"{folder.path}/{partition}"
        metadata_path = f"{path}/{PARTITION_METADATA.file_name}"
        if read_or_none(self._files, metadata_path, PARTITION_METADATA) is not None:
            return True
        if segment_bases(self._files, path):
            raise CorruptCheckpoint(f"{metadata_path} is missing")
        return False

    def _create_in(
        self, folder: DataFolder, partition: TopicPartition, topic_id: TopicId
    ) -> PartitionLog:
        path = f"{folder.path}/{partition}"
        if partition in folder.recovery_points or partition in folder.log_starts:
            folder.forget(partition)
        self._files.make_folder(path)
        data = encode(PARTITION_METADATA, PartitionMetadata(topic_id))
        write_atomically(self._files, f"{path}/{PARTITION_METADATA.file_name}", data, durable=True)
        self._files.sync_folder(folder.path)
        config, notes = self._log_config(partition.topic), _PartitionCheckpoints(folder, partition)
        log = make_log(self.storage, path, partition, config=config, checkpoints=notes)
        self.logs[partition] = folder.logs[partition] = log
        self._folder_of[partition] = folder
        return log

    def _open_log(
        self,
        folder: DataFolder,
        partition: TopicPartition,
        now_ms: int,
        *,
        accept_loss: bool = False,
    ) -> tuple[PartitionLog, OpenReport]:
        clean = folder.clean.partitions.get(partition) if folder.clean is not None else None
        log, report = open_log(
            self.storage,
            f"{folder.path}/{partition}",
            partition,
            config=self._log_config(partition.topic),
            checkpoints=_PartitionCheckpoints(folder, partition),
            recovery_point=folder.recovery_points.get(partition, Offset(0)),
            log_start=folder.log_starts.get(partition, Offset(0)),
            clean=clean,
            now_ms=now_ms,
            accept_loss=accept_loss,
            progress=lambda offset: folder.raise_recovery_point(partition, offset),
        )
        if folder.cleaned.get(partition, 0) > log.log_end:
            # It was cut below that. What is appended there next was never compacted: taken for
            # clean, its tombstones would go before the records that they delete.
            folder.set_cleaned(partition, log.log_end)
        self.logs[partition] = folder.logs[partition] = log
        self._folder_of[partition] = folder
        self.damaged.pop(partition, None)
        return log, report

    def _load_all(self, kind: Kind[OffsetMap]) -> dict[TopicPartition, Offset]:
        """The entries of all folders; a corrupt file counts as empty, which is always safe here."""
        found: dict[TopicPartition, Offset] = {}
        for folder in self.healthy:
            try:
                found |= folder.load(kind)
            except CorruptCheckpoint:
                continue
        return found

    def _store_all(self, kind: Kind[OffsetMap], offsets: OffsetMap) -> None:
        for folder in self.healthy:
            folder.store(kind, {each: offsets[each] for each in offsets if each in folder.logs})
