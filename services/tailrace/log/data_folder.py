"""One data folder of a broker: its lock, its checkpoint files, and the logs that live in it.

A data folder is locked by one process at a time. Its checkpoint files are small and rewritten
whole. One that is lost or old is not known, which is not the same as nothing: what it said is
taken from the others, and where they contradict the segments the log is damaged. The clean-shutdown
marker is removed, durably, before anything in the folder can change, and written last of all.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from threading import Lock
from typing import Any, Final, TypeVar

from tailrace.errors import (
    CorruptCheckpoint,
    FolderMismatch,
    StorageError,
    TailraceError,
    is_no_room,
)
from tailrace.log.checkpoints import (
    CLEAN_SHUTDOWN,
    CLEANED,
    HIGH_WATERMARKS,
    LOG_START_CAUSES,
    LOG_STARTS,
    META_PROPERTIES,
    RECOVERY_POINTS,
    TOPIC_IDS,
    CleanPartition,
    CleanShutdown,
    Kind,
    MetaProperties,
    encode,
    read_or_none,
    write_atomically,
)
from tailrace.log.continuity import segments_crc
from tailrace.log.deletions import DeletionJournal
from tailrace.log.facts import LogFacts
from tailrace.log.files import Files, FolderLock
from tailrace.log.log import PartitionLog
from tailrace.log.report import ManagerReport
from tailrace.model import BrokerId, LogStartCause, Offset, TopicId, TopicPartition

LOCK_FILE: Final = ".lock"
# The broker's copy of the cluster's metadata: not a file of a log, and written by others.
METADATA_COPY_FILES: Final = ("metadata-copy", "metadata-copy.former", "store-witness")
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
        self.start_causes: dict[TopicPartition, LogStartCause] = {}
        self.high_watermarks: dict[TopicPartition, Offset] = {}
        self.topic_ids: dict[TopicPartition, TopicId] = {}
        self._stored_ids: dict[TopicPartition, TopicId] = {}
        # False: written by an earlier release, which kept no causes, or that file is gone.
        self.has_causes = False
        self.cleaned: dict[TopicPartition, Offset] = {}
        self.clean: CleanShutdown | None = None
        self.meta: MetaProperties | None = None
        # What went from this folder, and why.
        self.deletions = DeletionJournal(files, path)
        # Deletions that a crash interrupted, and that are done now.
        self.finished: set[TopicPartition] = set()

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
        self.high_watermarks = self._load_offsets(HIGH_WATERMARKS, report)
        causes = self._load(LOG_START_CAUSES, report)
        self.has_causes = causes is not None or not self._is_used
        self.start_causes = dict(causes or {})
        ids = self._load(TOPIC_IDS, report)
        self.topic_ids = dict(ids or {})
        self._stored_ids = dict(self.topic_ids)
        self.cleaned = self._load_offsets(CLEANED, report)
        self.deletions.open()
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
            if self.has_causes:
                # From the first moment on: without it nobody knows why a log begins where it does.
                self.store(LOG_START_CAUSES, self.start_causes)
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
        self.lower_high_watermark(partition, offset)
        with self._mutex:
            if self.recovery_points.get(partition, 0) > offset:
                self._store_recovery_point(partition, offset)

    def raise_recovery_point(self, partition: TopicPartition, offset: int) -> None:
        """Store that recovery made a segment durable: the next one need not scan it again."""
        with self._mutex:
            if self.recovery_points.get(partition, 0) < offset:
                self._store_recovery_point(partition, offset)

    @property
    def _is_used(self) -> bool:
        """Whether anything but an empty folder was found."""
        return self.meta is not None or bool(self.log_starts or self.recovery_points)

    def set_log_start(
        self, partition: TopicPartition, offset: int, cause: LogStartCause | None = None
    ) -> None:
        self.set_log_starts({partition: (offset, cause)})

    def set_log_starts(
        self, moves: Mapping[TopicPartition, tuple[int, LogStartCause | None]]
    ) -> None:
        """Store where logs begin, and why, all in one go; durable on return.

        A cause is never ahead of its log start: who was not told that a log start has moved must
        not find it moved when the log is opened next.
        """
        with self._mutex:
            starts = dict(self.log_starts)
            for partition, (offset, _) in moves.items():
                if starts.get(partition, 0) != offset:
                    starts[partition] = Offset(offset)
            # One that begins lower again begins there for another reason.
            kept = {
                each: cause
                for each, cause in self.start_causes.items()
                if each not in moves or cause.offset <= moves[each][0]
            }
            self._store_causes(kept)
            # Stored first: a reopened log must not start where the next process would not.
            if starts != self.log_starts:
                self.store(LOG_STARTS, starts)
                self.log_starts = starts
            told = {each: cause for each, (_, cause) in moves.items() if cause is not None}
            fit = {each: why for each, why in told.items() if why.offset <= moves[each][0]}
            try:
                self._store_causes({**kept, **fit})
            except OSError as error:
                # The log start has moved already. The log knows why, and the next checkpoint says.
                if not is_no_room(error):
                    raise

    def _store_causes(self, causes: dict[TopicPartition, LogStartCause]) -> None:
        if causes != self.start_causes:
            self.store(LOG_START_CAUSES, causes)
            self.start_causes = causes

    def lower_high_watermark(self, partition: TopicPartition, offset: int) -> None:
        """Before a log is cut below what is known to be committed; durable on return."""
        if self.high_watermarks.get(partition, 0) > offset:
            self.set_high_watermarks({partition: Offset(offset)})

    def known(self) -> set[TopicPartition]:
        """Every partition that a checkpoint file says anything of."""
        known = {each for told in self._told() for each in told}
        return known | ({*self.clean.partitions} if self.clean is not None else set())

    def facts(self, partition: TopicPartition) -> LogFacts:
        """What the files of this folder say of one of its logs."""
        known = self.high_watermarks.get(partition, 0)
        return LogFacts(
            start_cause=self.start_causes.get(partition),
            start_is_known=self.has_causes,
            # After another boot it may have lost more than it knows: that is told otherwise.
            high_watermark=known if self.is_boot_confirmed else 0,
        )

    def knows(self, partition: TopicPartition) -> bool:
        """Whether a checkpoint file says anything of it: a new log must not find that."""
        return any(partition in told for told in self._told())

    def had_records(self, partition: TopicPartition) -> int:
        """Up to where there was a log, by the checkpoint files alone; 0: none of them says so."""
        clean = self.clean.partitions.get(partition) if self.clean is not None else None
        return max(
            self.recovery_points.get(partition, 0),
            self.high_watermarks.get(partition, 0),
            self.log_starts.get(partition, 0),
            0 if clean is None else clean.log_end,
        )

    def missing(self) -> list[TopicPartition]:
        """Logs that the checkpoint files know, and of which not even the folder is there.

        One that was put aside is not missing: that leaves a folder with another name.
        """
        names = self._files.list(self.path)
        there = {*self.partitions()}
        return [
            each
            for each in sorted(self.known() - there)
            if self.had_records(each)
            and each not in self.finished
            and not any(
                name.endswith(STRAY_SUFFIX) and name.startswith((f"{each}.", f"{each}-"))
                for name in names
            )
        ]

    def set_high_watermarks(self, offsets: OffsetMap) -> None:
        """Store the high watermarks of some logs; what is known of the others stays known."""
        with self._mutex:
            known = {**self.high_watermarks, **offsets}
            self.store(HIGH_WATERMARKS, known)
            self.high_watermarks = known

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
            causes = {each: log.start_cause for each, log in logs if log.start_cause is not None}
            points, starts = self.recovery_points | points, self.log_starts | starts
            # In this order: retention raises both, and what it removed may come back unsynced
            # after a power loss. The log start says that it does not count, the recovery point
            # alone would call it damage.
            self.store(LOG_STARTS, starts)
            self.log_starts = starts
            self.store(RECOVERY_POINTS, points)
            self.recovery_points = points
            causes = self.start_causes | causes
            if causes != self.start_causes or not self.has_causes:
                self.store(LOG_START_CAUSES, causes)
                self.start_causes, self.has_causes = causes, True
            self._store_topic_ids()
        self.deletions.store()

    def _store_topic_ids(self) -> None:
        """A second copy of each topic's id, for the day on which the first cannot be read."""
        if self.topic_ids != self._stored_ids:
            ids = dict(self.topic_ids)
            self.store(TOPIC_IDS, ids)
            self._stored_ids = ids

    def keep_only(self, partitions: list[TopicPartition]) -> None:
        """Drop what the checkpoints say of partitions that are gone; durable on return.

        A partition that is made anew under an old name must not find the old offsets.
        """
        known = set(partitions)
        gone = {each for told in self._told() for each in told if each not in known}
        if gone:
            self.forget(gone)

    def _told(self) -> tuple[dict[TopicPartition, Any], ...]:
        """All that the checkpoint files say of single partitions."""
        return (
            self.recovery_points,
            self.log_starts,
            self.start_causes,
            self.high_watermarks,
            self.topic_ids,
            self.cleaned,
        )

    def forget(self, partitions: Collection[TopicPartition]) -> None:
        """Once for all of them: the files hold every partition of the folder."""
        with self._mutex:
            causes, ids, marks = self.start_causes, self.topic_ids, self.high_watermarks
            changed = [not known.keys().isdisjoint(partitions) for known in (causes, ids, marks)]
            for partition in partitions:
                for known in (self.logs, *self._told()):
                    known.pop(partition, None)
            if changed[0]:
                self.store(LOG_START_CAUSES, causes)
            if changed[1]:
                self._store_topic_ids()
            if changed[2]:
                self.store(HIGH_WATERMARKS, marks)
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
                segments_crc(log.segments),
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
            partition = TopicPartition.parse(name.removesuffix(DELETED_SUFFIX))
            if name.endswith(DELETED_SUFFIX) and partition:
                self.finished.add(partition)
                self._files.remove_folder(f"{self.path}/{name}")
                report.notes.append(f"finished the deletion of {name}")


@dataclass(frozen=True, slots=True)
class PartitionCheckpoints:
    """The two durable offsets of one log, kept in the files of its folder."""

    folder: DataFolder
    partition: TopicPartition

    def lower_recovery_point(self, offset: int) -> None:
        self.folder.lower_recovery_point(self.partition, offset)

    def set_log_start(self, offset: int, cause: LogStartCause | None = None) -> None:
        self.folder.set_log_start(self.partition, offset, cause)
