"""The data folders of one broker: which logs are there, their checkpoints, how they are closed.

A data folder is locked by one process at a time. Its checkpoint files are small and rewritten
whole; a lost one costs time (more is scanned), never data. The clean-shutdown marker is removed,
durably, before anything in the folder can change, and written last of all.

Bounds: open descriptors by `open_files_max`, indexes of closed segments by `index_cache_bytes`,
both over all folders; a log that is not written to holds no index of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Lock
from typing import Final, TypeVar

from tailrace.config import FolderConfig, LogConfig
from tailrace.errors import (
    CorruptCheckpoint,
    DamagedLog,
    FolderMismatch,
    InvariantViolation,
    StorageError,
    TailraceError,
)
from tailrace.log.checkpoints import (
    CLEAN_SHUTDOWN,
    CLEANED,
    HIGH_WATERMARKS,
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
from tailrace.log.recovery import OpenReport, open_log
from tailrace.log.segment import IndexCache, Storage
from tailrace.model import BrokerId, Offset, TopicId, TopicPartition

LOCK_FILE: Final = ".lock"
DELETED_SUFFIX: Final = "-delete"

OffsetMap = Mapping[TopicPartition, Offset]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Identity:
    """Whose folders these are; `incarnation` is for folders that have none yet."""

    cluster_id: str
    broker_id: BrokerId
    incarnation: str


@dataclass(slots=True)
class ManagerReport:
    """How the folders were found."""

    clean: bool = True
    same_boot: bool = True
    opened: list[OpenReport] = field(default_factory=list)
    damaged: dict[TopicPartition, TailraceError] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def tail_may_be_lost(self) -> bool:
        """The machine went down under us: what was not synced may be gone."""
        return not self.clean and not self.same_boot


class DataFolder:
    """One data folder: its lock, its checkpoint files, and the logs that live in it."""

    def __init__(self, files: Files, path: str) -> None:
        self._files = files
        self._mutex = Lock()
        self._lock: FolderLock | None = None
        self.path = path
        self.logs: dict[TopicPartition, PartitionLog] = {}
        self.recovery_points: dict[TopicPartition, Offset] = {}
        self.log_starts: dict[TopicPartition, Offset] = {}
        self.clean: CleanShutdown | None = None
        self.meta: MetaProperties | None = None

    def open(self, report: ManagerReport) -> None:
        """Lock the folder and read what is beside the logs."""
        self._files.make_folder(self.path)
        self._lock = self._files.lock(f"{self.path}/{LOCK_FILE}")
        self.meta = self._load(META_PROPERTIES, report, must_be_good=True)
        self.clean = self._load(CLEAN_SHUTDOWN, report)
        recovery_points, log_starts = (
            self._load(RECOVERY_POINTS, report),
            self._load(LOG_STARTS, report),
        )
        self.recovery_points = dict(recovery_points) if recovery_points is not None else {}
        self.log_starts = dict(log_starts) if log_starts is not None else {}
        if self.clean is not None:
            self._files.remove(f"{self.path}/{CLEAN_SHUTDOWN.file_name}")
            self._files.sync_folder(self.path)
        elif self.meta is not None:
            report.clean = False
        if self.meta is not None and self.meta.boot_id != self._files.boot_id():
            report.same_boot = False
        self._remove_deleted(report)

    def claim(self, identity: Identity) -> None:
        """Make sure that the folder is ours, and note under which boot it is written now."""
        found = self.meta
        if found is not None and (found.cluster_id, found.broker_id) != (
            identity.cluster_id,
            identity.broker_id,
        ):
            raise FolderMismatch(
                f"{self.path} belongs to broker {found.broker_id} of cluster {found.cluster_id}, "
                f"not to broker {identity.broker_id} of cluster {identity.cluster_id}"
            )
        incarnation = identity.incarnation if found is None else found.incarnation
        self.meta = MetaProperties(
            identity.cluster_id, identity.broker_id, incarnation, self._files.boot_id()
        )
        self.store(META_PROPERTIES, self.meta)

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
        with self._mutex:
            if self.recovery_points.get(partition, 0) > offset:
                self.recovery_points[partition] = Offset(offset)
                self.store(RECOVERY_POINTS, self.recovery_points)

    def raise_recovery_point(self, partition: TopicPartition, offset: int) -> None:
        with self._mutex:
            if self.recovery_points.get(partition, 0) < offset:
                self.recovery_points[partition] = Offset(offset)
                self.store(RECOVERY_POINTS, self.recovery_points)

    def set_log_start(self, partition: TopicPartition, offset: int) -> None:
        with self._mutex:
            if self.log_starts.get(partition, 0) != offset:
                self.log_starts[partition] = Offset(offset)
                self.store(LOG_STARTS, self.log_starts)

    def checkpoint(self) -> None:
        """Store how far the logs are durable and where they start."""
        with self._mutex:
            for partition, log in self.logs.items():
                self.recovery_points[partition] = Offset(log.recovery_point)
                self.log_starts[partition] = Offset(log.log_start)
            self.store(RECOVERY_POINTS, self.recovery_points)
            self.store(LOG_STARTS, self.log_starts)

    def forget(self, partition: TopicPartition) -> None:
        with self._mutex:
            self.logs.pop(partition, None)
            self.recovery_points.pop(partition, None)
            self.log_starts.pop(partition, None)
            self.store(RECOVERY_POINTS, self.recovery_points)
            self.store(LOG_STARTS, self.log_starts)

    def close(self) -> None:
        """Close every log; only when all of them closed in order is the folder marked as clean."""
        entries: dict[TopicPartition, CleanPartition] = {}
        failures: list[str] = []
        for partition, log in self.logs.items():
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
        if len(entries) == len(self.partitions()):
            self.store(CLEAN_SHUTDOWN, CleanShutdown(self._files.boot_id(), entries))
        self.release()
        if failures:
            raise StorageError(f"{self.path} was not closed cleanly: " + "; ".join(failures))

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

    def _remove_deleted(self, report: ManagerReport) -> None:
        for name in self._files.list(self.path):
            if name.endswith(DELETED_SUFFIX):
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
    """All logs of one broker. Opening recovers them in parallel; everything else is one thread."""

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
        self._folder_of: dict[TopicPartition, DataFolder] = {}

    def open(self, *, now_ms: int) -> ManagerReport:
        """Lock the folders and open every log in them; damaged ones are reported, not opened."""
        report = ManagerReport()
        try:
            for folder in self.folders:
                folder.open(report)
            for folder in self.folders:
                folder.claim(self._identity)
            for folder in self.folders:
                self._open_logs(folder, report, now_ms)
        except BaseException:
            for folder in self.folders:
                folder.release()
            raise
        return report

    @property
    def incarnation(self) -> str:
        meta = self.folders[0].meta
        if meta is None:
            raise InvariantViolation("the data folders are not open")
        return meta.incarnation

    def create(self, partition: TopicPartition, topic_id: TopicId, *, now_ms: int) -> PartitionLog:
        """Make the log of a new partition, in the folder that has the fewest."""
        if partition in self._folder_of:
            raise InvariantViolation(f"{partition} is there already")
        folder = min(self.folders, key=lambda each: len(each.logs))
        path = f"{folder.path}/{partition}"
        self._files.make_folder(path)
        metadata = encode(PARTITION_METADATA, PartitionMetadata(topic_id))
        metadata_path = f"{path}/{PARTITION_METADATA.file_name}"
        write_atomically(self._files, metadata_path, metadata, durable=True)
        self._files.sync_folder(folder.path)
        log, _ = self._open_log(folder, partition, now_ms)
        return log

    def topic_id(self, partition: TopicPartition) -> TopicId | None:
        path = f"{self._folder_of[partition].path}/{partition}/{PARTITION_METADATA.file_name}"
        metadata = read_or_none(self._files, path, PARTITION_METADATA)
        return metadata.topic_id if metadata is not None else None

    def repair(self, partition: TopicPartition, *, now_ms: int) -> OpenReport:
        """Open a damaged log with what is whole of it; the rest must come from the leader."""
        folder = self._folder_of[partition]
        _, report = self._open_log(folder, partition, now_ms, accept_loss=True)
        return report

    def delete(self, partition: TopicPartition) -> None:
        """Remove a partition; the rename makes it final, the rest may finish at the next start."""
        folder = self._folder_of.pop(partition)
        log = self.logs.pop(partition, None)
        if log is not None:
            log.abandon("it was deleted")
        path = f"{folder.path}/{partition}"
        doomed = f"{folder.path}/{partition}{DELETED_SUFFIX}"
        if self._files.exists(doomed):
            self._files.remove_folder(doomed)
        self._files.rename(path, doomed)
        self._files.sync_folder(folder.path)
        self.storage.cache.forget_folder(path)
        folder.forget(partition)
        self._files.remove_folder(doomed)

    def load_high_watermarks(self) -> dict[TopicPartition, Offset]:
        return self._load_all(HIGH_WATERMARKS)

    def store_high_watermarks(self, offsets: OffsetMap) -> None:
        self._store_all(HIGH_WATERMARKS, offsets)

    def load_cleaned(self) -> dict[TopicPartition, Offset]:
        """Up to where each log was compacted."""
        return self._load_all(CLEANED)

    def store_cleaned(self, offsets: OffsetMap) -> None:
        self._store_all(CLEANED, offsets)

    def checkpoint(self) -> None:
        for folder in self.folders:
            folder.checkpoint()

    def close(self) -> None:
        """Close all logs and mark the folders as clean."""
        failures: list[str] = []
        for folder in self.folders:
            try:
                folder.close()
            except (StorageError, OSError) as error:
                failures.append(str(error))
                folder.release()
        self.storage.cache.close()
        if failures:
            raise StorageError("; ".join(failures))

    def _open_logs(self, folder: DataFolder, report: ManagerReport, now_ms: int) -> None:
        partitions = folder.partitions()
        for partition in partitions:
            if partition in self._folder_of:
                raise InvariantViolation(f"{partition} is in {folder.path} and in another folder")
            self._folder_of[partition] = folder
        threads = self._config.num_recovery_threads_per_data_dir
        with ThreadPoolExecutor(threads, thread_name_prefix="log-recovery") as pool:
            waiting = [
                (each, pool.submit(self._open_log, folder, each, now_ms)) for each in partitions
            ]
            for partition, opening in waiting:
                try:
                    report.opened.append(opening.result()[1])
                except DamagedLog as error:
                    report.damaged[partition] = error
        folder.clean = None

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
        if not report.clean:
            folder.raise_recovery_point(partition, log.recovery_point)
        self.logs[partition] = folder.logs[partition] = log
        self._folder_of[partition] = folder
        return log, report

    def _load_all(self, kind: Kind[OffsetMap]) -> dict[TopicPartition, Offset]:
        """The entries of all folders; a corrupt file counts as empty, which is always safe here."""
        found: dict[TopicPartition, Offset] = {}
        for folder in self.folders:
            try:
                found |= folder.load(kind)
            except CorruptCheckpoint:
                continue
        return found

    def _store_all(self, kind: Kind[OffsetMap], offsets: OffsetMap) -> None:
        for folder in self.folders:
            folder.store(kind, {each: offsets[each] for each in offsets if each in folder.logs})
