"""The data folders of one broker: which logs are there, their checkpoints, how they are closed.

A broker may have several folders, on disks of their own: a new log goes to the one with the fewest.
One that fails, at the start or later, is left alone from then on, and the others go on.

Bounds: open descriptors by `open_files_max`, indexes of closed segments by `index_cache_bytes`,
both over all folders; a log that is not written to holds no index of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Lock

from tailrace.config import FolderConfig, LogConfig
from tailrace.errors import (
    CorruptCheckpoint,
    DamagedLog,
    InvalidRequest,
    InvariantViolation,
    StorageError,
    TailraceError,
    is_no_room,
)
from tailrace.log.checkpoints import (
    LEADER_EPOCHS,
    PARTITION_METADATA,
    PartitionMetadata,
    encode,
    read_or_none,
    write_atomically,
)
from tailrace.log.data_folder import (
    DELETED_SUFFIX,
    DataFolder,
    Identity,
    OffsetMap,
    PartitionCheckpoints,
)
from tailrace.log.deletions import Deletion, DeletionKind
from tailrace.log.evidence import (
    Evidence,
    FilledAnew,
    NeverDurable,
    NeverFinished,
    RemovalEvidence,
    SetAside,
    filling_problem,
    removal_problem,
)
from tailrace.log.file_cache import FileCache
from tailrace.log.files import Files
from tailrace.log.log import PartitionLog
from tailrace.log.recovery import OpenReport, make_log, open_log
from tailrace.log.report import ManagerReport
from tailrace.log.segment import IndexCache, Storage
from tailrace.log.strays import Stray, StrayExtent, Strays, bytes_of, extent_of
from tailrace.log.swap import segment_bases
from tailrace.log.unsynced import rewrite
from tailrace.model import LogStartCause, Offset, TopicId, TopicPartition


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
        self.taken_back: dict[TopicPartition, OpenReport] = {}
        """How logs that `create` found set aside were opened, for its caller to take."""
        self._folder_of: dict[TopicPartition, DataFolder] = {}
        self._placing = Lock()
        self._strays = Strays(files, lambda: self.healthy)

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
            self._part_copies(report, now_ms)
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

    def create(
        self, partition: TopicPartition, topic_id: TopicId, *, now_ms: int = 0
    ) -> PartitionLog:
        """Make the log of a new partition, in the folder that has the fewest; in any thread.

        A replica of this very topic that was set aside is taken back instead.
        """
        if partition in self._folder_of:
            raise InvariantViolation(f"{partition} is there already")
        for each in self.healthy:
            self._clear_way(each, partition, now_ms)
        stray = self._strays.find(partition, topic_id)
        if stray is not None:
            return self._take_back(stray, now_ms)
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
        """Which topic a log is of; None: that cannot be told, and must not be guessed.

        It is kept twice. Where one of the two is gone or cannot be read the other one counts;
        where they differ neither does.
        """
        folder = self._folder_of[partition]
        copy = folder.topic_ids.get(partition)
        path = f"{folder.path}/{partition}/{PARTITION_METADATA.file_name}"
        try:
            metadata = read_or_none(self._files, path, PARTITION_METADATA)
        except CorruptCheckpoint:
            metadata = None
        if metadata is None or copy is None:
            return copy if metadata is None else metadata.topic_id
        return copy if copy == metadata.topic_id else None

    def adopt(self, partition: TopicPartition, topic_id: TopicId) -> None:
        """A person has said that a log whose topic cannot be told is of this one."""
        folder = self._folder_of[partition]
        self._files.make_folder(f"{folder.path}/{partition}")
        self._write_metadata(folder, partition, topic_id)
        self._files.sync_folder(folder.path)
        folder.topic_ids[partition] = topic_id

    def set_aside(
        self, partition: TopicPartition, *, why: str, now_ms: int, high_watermark: int = 0
    ) -> str:
        """Serve a log no longer, and keep what there is of it, under another name.

        `high_watermark`: the one that is known now; the file of the folder may have an older one.
        """
        folder = self._folder_of[partition]
        topic_id = self.topic_id(partition)
        log = self.logs.pop(partition, None)
        if log is not None:
            log.abandon("it was set aside")
            # It knows better than the files, which are written now and then.
            folder.raise_recovery_point(partition, log.recovery_point)
            folder.set_log_start(partition, log.log_start, log.start_cause)
        if high_watermark > folder.high_watermarks.get(partition, 0):
            folder.set_high_watermarks({partition: Offset(high_watermark)})
        path, name = f"{folder.path}/{partition}", ""
        if self._files.exists(path):
            name = self._strays.add(folder, partition, topic_id, why=why, now_ms=now_ms)
        kept = SetAside(name=name, why=why)
        self.note(DeletionKind.SET_ASIDE, partition, kept, now_ms=now_ms, topic_id=topic_id)
        self.storage.cache.forget_folder(path)
        self.storage.failed_syncs.pop(path, None)
        folder.forget([partition])
        self.damaged.pop(partition, None)
        del self._folder_of[partition]
        return name

    def strays(self) -> list[Stray]:
        """The replicas that were set aside."""
        return self._strays.list()

    def stray_extent(self, stray: Stray) -> StrayExtent:
        """How far it goes; reads files, so not on a loop."""
        return extent_of(self.storage, stray)

    def stray_bytes(self, stray: Stray) -> int:
        """Bytes of its segments."""
        return bytes_of(self._files, stray)

    def keep_stray_from(self, stray: Stray, now_ms: int) -> None:
        """The time that it is kept begins now, unless it has begun before; `now_ms` is believed."""
        self._strays.count_from(stray, now_ms)

    def remove_stray(self, stray: Stray, evidence: RemovalEvidence, *, now_ms: int) -> str:
        """Remove a replica that was set aside; says what was done, and why.

        InvalidRequest when this is no evidence for it. What is removed is on record before it goes.
        """
        self._require(stray.partition, evidence, stray.topic_id)
        size_bytes = self.stray_bytes(stray)
        line = Deletion.of(
            DeletionKind.STRAY,
            stray.partition,
            evidence,
            now_ms=now_ms,
            topic_id=stray.topic_id or "",
        )
        stray.folder.deletions.note(line)
        stray.folder.deletions.store()
        self._strays.remove(stray)
        return f"removed {stray.path} of {size_bytes} bytes: {evidence}"

    def deletions(self, partitions: Iterable[TopicPartition] = ()) -> list[Deletion]:
        """What went of these partitions, of all when none is named, and why; the oldest first."""
        wanted = list(partitions)
        found = [line for each in self.healthy for line in each.deletions.entries(wanted)]
        return sorted(found, key=lambda line: line.at_ms)

    def note(
        self,
        kind: DeletionKind,
        partition: TopicPartition,
        evidence: Evidence,
        *,
        now_ms: int,
        topic_id: str | None = "",
        from_offset: int = -1,
        to_offset: int = -1,
    ) -> None:
        """Put a deletion on record; it lasts from the next checkpoint of its folder on."""
        folder = self._folder_of.get(partition)
        if folder is not None:
            line = Deletion.of(
                kind,
                partition,
                evidence,
                now_ms=now_ms,
                topic_id=topic_id or "",
                from_offset=from_offset,
                to_offset=to_offset,
            )
            folder.deletions.note(line)

    def is_of(self, partition: TopicPartition, topic_id: str) -> bool:
        """Whether there is a log of this topic (empty: of any), or a rest that `discard` left."""
        folder = self._folder_of.get(partition)
        if folder is None or not topic_id:
            return folder is not None
        is_rest = not self._files.exists(f"{folder.path}/{partition}")
        return is_rest or self.topic_id(partition) == topic_id

    def repair(
        self,
        partition: TopicPartition,
        evidence: FilledAnew,
        *,
        now_ms: int,
        anew: bool = True,
    ) -> OpenReport:
        """Open a damaged log with what is whole of it; the rest must come from the leader.

        `evidence` says that nobody counts on the rest; InvalidRequest when it does not. Not `anew`:
        nobody has the rest, so that a log without its beginning stays as it is.
        """
        self._require_filling(partition, evidence)
        return self._open_again(partition, now_ms, evidence, accept_loss=True, anew=anew)

    def reopen(self, partition: TopicPartition, evidence: FilledAnew, *, now_ms: int) -> OpenReport:
        """Open a log anew that a failed sync or cut has stopped: what was not durable goes.

        `evidence` says that nobody counts on that; InvalidRequest when it does not.
        """
        self._require_filling(partition, evidence)
        return self._open_again(partition, now_ms, evidence, accept_loss=False)

    def resync(self, partition: TopicPartition, *, now_ms: int) -> OpenReport:
        """Write anew what a failed sync may not have saved, and open the log with all that it had.

        DamagedLog when not all of it can be read any more; OSError or StorageError while the disk
        refuses: then it can be tried again.
        """
        folder, log = self._folder_of[partition], self.logs[partition]
        log.abandon("it is written anew")
        problem = rewrite(log)
        if problem:
            raise self._lost(log, problem)
        folder.recovery_points[partition] = Offset(log.recovery_point)
        try:
            again, report = self._open_log(folder, partition, now_ms)
        except (OSError, TailraceError):
            self.logs[partition] = folder.logs[partition] = log
            raise
        if (again.log_end, again.last_epoch) != (log.log_end, log.last_epoch):
            again.abandon("it is not all that there was")
            raise self._lost(log, f"it ends at {again.log_end} now")
        report.mended.append(
            f"what a failed sync may have lost was written anew up to {log.log_end}"
        )
        with suppress(OSError):
            folder.checkpoint()
        return report

    def _lost(self, log: PartitionLog, detail: str) -> DamagedLog:
        point = log.recovery_point
        return DamagedLog(
            str(log.partition), offset=point, recovery_point=log.log_end, detail=detail
        )

    def delete(
        self, partition: TopicPartition, evidence: RemovalEvidence, *, now_ms: int = 0
    ) -> None:
        """Remove a partition: all that `discard` begins."""
        self.remove(self.discard({partition: evidence}, now_ms=now_ms))

    def discard(
        self, partitions: Mapping[TopicPartition, RemovalEvidence], *, now_ms: int = 0
    ) -> list[str]:
        """Give partitions of one folder up for good; what is left on disk is for `remove`.

        Each with what proves that it may go; InvalidRequest, and nothing is given up, where it
        does not. What goes is on record before it does.

        After an error the call can be repeated; logs up to the one that failed are closed. What is
        not removed then goes at the next start.
        """
        folder = self._folder_of[next(iter(partitions))]
        ids = {each: self.topic_id(each) for each in partitions}
        for partition, evidence in partitions.items():
            self._require(partition, evidence, ids[partition])
        for partition, evidence in partitions.items():
            self._note_removal(folder, partition, evidence, ids[partition], now_ms)
        folder.deletions.store()
        left = self._discard(folder, partitions)
        for partition in partitions:
            del self._folder_of[partition]
        return left

    def remove(self, left: Iterable[str]) -> None:
        """Remove what was discarded."""
        for each in left:
            if self._files.exists(each):
                self._files.remove_folder(each)

    def high_watermark(self, partition: TopicPartition) -> Offset:
        """What the folder of a log says is committed of it: it may be a little old."""
        return self._folder_of[partition].high_watermarks.get(partition, Offset(0))

    def load_high_watermarks(self) -> dict[TopicPartition, Offset]:
        """What each log knew to be committed: it may be a little old, and is a floor all the same.

        One that cannot be read is not known: the log is then opened by what else is known of it.
        """
        return {
            partition: offset
            for folder in self.healthy
            for partition, offset in folder.high_watermarks.items()
        }

    def store_high_watermarks(self, offsets: OffsetMap) -> None:
        for folder in self.healthy:
            folder.set_high_watermarks(
                {
                    each: Offset(min(offsets[each], log.log_end))
                    for each, log in list(folder.logs.items())
                    # One that a failed cut has stopped ends where nobody knows yet.
                    if each in offsets and log.is_open
                }
            )

    def set_log_starts(
        self, moves: Mapping[TopicPartition, tuple[int, LogStartCause | None]]
    ) -> None:
        """Store where logs will begin, and why, before their first segments go."""
        by_folder: dict[DataFolder, dict[TopicPartition, tuple[int, LogStartCause | None]]] = {}
        for partition, move in moves.items():
            folder = self._folder_of.get(partition)
            if folder is not None and not folder.failure:
                by_folder.setdefault(folder, {})[partition] = move
        for folder, some in by_folder.items():
            folder.set_log_starts(some)

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

    def _require(
        self, partition: TopicPartition, evidence: RemovalEvidence, topic_id: TopicId | None
    ) -> None:
        cluster_id = self._identity.cluster_id
        problem = removal_problem(evidence, cluster_id=cluster_id, topic_id=topic_id)
        if problem:
            raise InvalidRequest(f"{partition} is not deleted: {problem} ({evidence})")

    def _note_removal(
        self,
        folder: DataFolder,
        partition: TopicPartition,
        evidence: RemovalEvidence,
        topic_id: TopicId | None,
        now_ms: int,
    ) -> None:
        log = self.logs.get(partition)
        start, end = (-1, -1) if log is None else (log.log_start, log.log_end)
        line = Deletion.of(
            DeletionKind.REPLICA,
            partition,
            evidence,
            now_ms=now_ms,
            topic_id=topic_id or "",
            from_offset=start,
            to_offset=end,
        )
        folder.deletions.note(line)

    def _clear_way(self, folder: DataFolder, partition: TopicPartition, now_ms: int) -> None:
        """A creation or a removal that failed half-way left a folder, or somebody put one there."""
        path = f"{folder.path}/{partition}"
        if self._files.exists(path) and self._has_records(path):
            why = "it was found where a new log was to be made"
            self._strays.add(folder, partition, self._id_in(path), why=why, now_ms=now_ms)
        elif self._files.exists(path) or self._files.exists(path + DELETED_SUFFIX):
            evidence = NeverFinished(folder=path)
            self._note_removal(folder, partition, evidence, None, now_ms)
            self.remove(self._discard(folder, [partition]))

    def _take_back(self, stray: Stray, now_ms: int) -> PartitionLog:
        """One that cannot be opened is a damaged log from here on, and mended as any other."""
        partition, folder = stray.partition, stray.folder
        self._strays.take_back(stray)
        try:
            log, opened = self._open_log(folder, partition, now_ms)
        except TailraceError as error:
            self._folder_of[partition], self.damaged[partition] = folder, error
            raise
        self._note_cut(log, opened, now_ms)
        self.taken_back[partition] = opened
        return log

    def _has_records(self, path: str) -> bool:
        return any(
            name.endswith(".log") and self._files.size(f"{path}/{name}") > 0
            for name in self._files.list(path)
        )

    def _id_in(self, path: str) -> TopicId | None:
        try:
            found = read_or_none(
                self._files, f"{path}/{PARTITION_METADATA.file_name}", PARTITION_METADATA
            )
        except CorruptCheckpoint:
            found = None
        return None if found is None else found.topic_id

    def _part_copies(self, report: ManagerReport, now_ms: int) -> None:
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
                why = f"{partition} is in {homes[partition].path} too, where it is newer"
                names: list[str] = []
                self._attempt(
                    older,
                    report,
                    lambda each: names.append(  # noqa: B023
                        self._strays.add(
                            each,
                            partition,  # noqa: B023
                            self._id_in(f"{each.path}/{partition}"),  # noqa: B023
                            why=why,  # noqa: B023
                            now_ms=now_ms,
                        )
                    ),
                )
                report.notes += [f"{why}: {older.path} has it as {name}" for name in names]

    def _age(self, folder: DataFolder, partition: TopicPartition) -> tuple[int, int]:
        """How far the log in a folder got: its last epoch, and how much of it is durable."""
        path = f"{folder.path}/{partition}/{LEADER_EPOCHS.file_name}"
        try:
            entries = read_or_none(self._files, path, LEADER_EPOCHS) or ()
        except CorruptCheckpoint:
            entries = ()
        latest = max((int(each.epoch) for each in entries), default=-1)
        return latest, folder.recovery_points.get(partition, 0)

    def _require_filling(self, partition: TopicPartition, evidence: FilledAnew) -> None:
        log, folder = self.logs.get(partition), self._folder_of[partition]
        problem = filling_problem(
            evidence,
            cluster_id=self._identity.cluster_id,
            topic_id=self.topic_id(partition),
            last_epoch=self._age(folder, partition)[0] if log is None else log.epochs.latest,
        )
        if problem:
            raise InvalidRequest(f"{partition} is not opened anew: {problem} ({evidence})")

    def _open_again(
        self,
        partition: TopicPartition,
        now_ms: int,
        evidence: FilledAnew,
        *,
        accept_loss: bool,
        anew: bool = False,
    ) -> OpenReport:
        folder = self._folder_of[partition]
        log = self.logs.pop(partition, None)
        folder.logs.pop(partition, None)
        if log is not None:
            log.abandon("it is opened anew")
            # It knows better than the file, which is written now and then.
            folder.recovery_points[partition] = Offset(log.recovery_point)
        topic_id = self.topic_id(partition)
        if topic_id is not None and not self._files.exists(f"{folder.path}/{partition}"):
            # Its folder is gone, and is made anew, empty.
            self.adopt(partition, topic_id)
        end = folder.had_records(partition) if log is None else log.log_end
        again, report = self._open_log(
            folder, partition, now_ms, accept_loss=accept_loss, anew=anew
        )
        if again.log_end < end or report.cut:
            self.note(
                DeletionKind.REPAIR,
                partition,
                evidence,
                now_ms=now_ms,
                topic_id=evidence.topic_id,
                from_offset=again.log_end,
                to_offset=max(end, again.log_end),
            )
        with suppress(OSError):
            # The log is open. An older checkpoint costs the next opening time, no more.
            folder.checkpoint()
        return report

    def _discard(self, folder: DataFolder, partitions: Collection[TopicPartition]) -> list[str]:
        left: list[str] = []
        for partition in partitions:
            log = self.logs.pop(partition, None)
            folder.logs.pop(partition, None)
            if log is not None:
                log.abandon("it was deleted")
            path = f"{folder.path}/{partition}"
            left.append(path + DELETED_SUFFIX)
            if self._files.exists(path):
                self.remove(left[-1:])
                self._files.rename(path, left[-1])
        self._files.sync_folder(folder.path)
        for partition in partitions:
            path = f"{folder.path}/{partition}"
            self.storage.cache.forget_folder(path)
            self.storage.failed_syncs.pop(path, None)
        folder.forget(partitions)
        return left

    def _open_logs(self, folder: DataFolder, report: ManagerReport, now_ms: int) -> None:
        partitions = folder.partitions()
        missing = [each for each in folder.missing() if each not in self._folder_of]
        missing = [each for each in missing if not self._is_elsewhere(folder, each)]
        for partition in missing:
            self._folder_of[partition] = folder
            end = folder.had_records(partition)
            report.damaged[partition] = self.damaged[partition] = DamagedLog(
                str(partition), offset=0, recovery_point=end, detail="its folder is missing"
            )
            report.clean = False
        folder.keep_only([*partitions, *missing])
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

    def _is_elsewhere(self, folder: DataFolder, partition: TopicPartition) -> bool:
        return any(
            self._files.exists(f"{each.path}/{partition}")
            for each in self.healthy
            if each is not folder
        )

    def _open_found(
        self, folder: DataFolder, partition: TopicPartition, report: ManagerReport, now_ms: int
    ) -> None:
        try:
            if self._is_finished(folder, partition, report):
                log, opened = self._open_log(folder, partition, now_ms)
                report.opened.append(opened)
                self._note_cut(log, opened, now_ms)
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
        evidence = NeverFinished(folder=f"{folder.path}/{partition}")
        self._note_removal(folder, partition, evidence, None, now_ms)
        self._files.remove_folder(evidence.folder)
        del self._folder_of[partition]
        report.notes.append(f"removed {partition}: {evidence}")

    def _note_cut(self, log: PartitionLog, opened: OpenReport, now_ms: int) -> None:
        """What an opening cut off was never synced, as far as this replica knows."""
        if opened.cut:
            point, problem = opened.recovery_point, opened.cut[-1]
            self.note(
                DeletionKind.LOG_END,
                log.partition,
                NeverDurable(recovery_point=point, problem=problem),
                now_ms=now_ms,
                topic_id=self.topic_id(log.partition),
                from_offset=log.log_end,
            )

    def _is_finished(
        self, folder: DataFolder, partition: TopicPartition, report: ManagerReport
    ) -> bool:
        """Whether the folder was ever a log's; its topic's id is mended where that is safe."""
        path = f"{folder.path}/{partition}"
        metadata_path = f"{path}/{PARTITION_METADATA.file_name}"
        problem = "it is missing"
        try:
            metadata = read_or_none(self._files, metadata_path, PARTITION_METADATA)
        except CorruptCheckpoint as error:
            metadata, problem = None, str(error)
        copy = folder.topic_ids.get(partition)
        if metadata is not None:
            if copy is not None and copy != metadata.topic_id:
                raise CorruptCheckpoint(
                    f"{metadata_path} says {metadata.topic_id}, another file says {copy}"
                )
            folder.topic_ids[partition] = metadata.topic_id
            return True
        had_log = bool(segment_bases(self._files, path)) or folder.had_records(partition) > 0
        if copy is not None and had_log:
            self._write_metadata(folder, partition, copy)
            report.notes.append(f"{metadata_path} was mended from a second copy: {problem}")
            return True
        if had_log or problem != "it is missing":
            raise CorruptCheckpoint(f"{metadata_path}: {problem}")
        return False

    def _write_metadata(
        self, folder: DataFolder, partition: TopicPartition, topic_id: TopicId
    ) -> None:
        path = f"{folder.path}/{partition}/{PARTITION_METADATA.file_name}"
        data = encode(PARTITION_METADATA, PartitionMetadata(topic_id))
        write_atomically(self._files, path, data, durable=True)

    def _create_in(
        self, folder: DataFolder, partition: TopicPartition, topic_id: TopicId
    ) -> PartitionLog:
        path = f"{folder.path}/{partition}"
        if folder.knows(partition):
            folder.forget([partition])
        self._files.make_folder(path)
        self._write_metadata(folder, partition, topic_id)
        folder.topic_ids[partition] = topic_id
        self._files.sync_folder(folder.path)
        config, notes = self._log_config(partition.topic), PartitionCheckpoints(folder, partition)
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
        anew: bool = False,
    ) -> tuple[PartitionLog, OpenReport]:
        clean = folder.clean.partitions.get(partition) if folder.clean is not None else None
        log, report = open_log(
            self.storage,
            f"{folder.path}/{partition}",
            partition,
            config=self._log_config(partition.topic),
            checkpoints=PartitionCheckpoints(folder, partition),
            recovery_point=folder.recovery_points.get(partition, Offset(0)),
            log_start=folder.log_starts.get(partition, Offset(0)),
            clean=clean,
            now_ms=now_ms,
            accept_loss=accept_loss,
            facts=folder.facts(partition)._replace(anew=anew),
            progress=lambda offset: folder.raise_recovery_point(partition, offset),
        )
        if folder.cleaned.get(partition, 0) > log.log_end:
            # It was cut below that. What is appended there next was never compacted: taken for
            # clean, its tombstones would go before the records that they delete.
            folder.set_cleaned(partition, log.log_end)
        folder.lower_high_watermark(partition, log.log_end)
        self.logs[partition] = folder.logs[partition] = log
        self._folder_of[partition] = folder
        self.damaged.pop(partition, None)
        return log, report
