"""Verifying a data folder or one partition: all that is wrong, and what opening does about it.

Read-only, and fine on a folder that a broker has open (`in_use`): the tail may then be in motion,
and what turned out to be an append under way is left out. The partitions come one by one, so that
the memory needed does not grow with their number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, TypeVar

from tailrace.errors import CorruptCheckpoint
from tailrace.log.audit.findings import Action, Finding, Kind, Recovery, Symptom
from tailrace.log.audit.overlay import OverlayFiles, ReadOnlyFiles
from tailrace.log.audit.partition_check import PartitionVerdict, StoredOffsets, check_partition
from tailrace.log.audit.rehearsal import FolderRehearsal, rehearse_folder
from tailrace.log.audit.remedies import as_finding
from tailrace.log.checkpoints import (
    CLEAN_SHUTDOWN,
    CLEANED,
    HIGH_WATERMARKS,
    LOG_START_CAUSES,
    LOG_STARTS,
    META_PROPERTIES,
    PARTITION_METADATA,
    RECOVERY_POINTS,
    TEMPORARY_SUFFIX,
    TOPIC_IDS,
    read_or_none,
)
from tailrace.log.checkpoints import (
    Kind as CheckpointKind,
)
from tailrace.log.data_folder import DELETED_SUFFIX, LOCK_FILE, METADATA_COPY_FILES
from tailrace.log.deletions import FILE_NAME as DELETIONS_FILE
from tailrace.log.facts import LogFacts
from tailrace.log.segment import LOG_SUFFIX
from tailrace.log.strays import partition_of
from tailrace.model import Offset, TopicId, TopicPartition

T = TypeVar("T")

_REFUSED: Final = Recovery(
    action=Action.REFUSE, text="the broker does not start; restore the file from its backup"
)
_MADE_ANEW: Final = Recovery(
    action=Action.REBUILD,
    text="made anew by whichever broker starts here, as that of a new disk; restore the file from "
    "its backup, if there is one",
)
_IGNORED: Final[Mapping[str, str]] = {
    RECOVERY_POINTS.name: "not used: every log is scanned from its start",
    LOG_STARTS.name: "not used: records below the log start that still exist can be read again",
    CLEAN_SHUTDOWN.name: "not used: every log is scanned above its recovery point",
    HIGH_WATERMARKS.name: "not used: high watermarks are learned from the leaders again",
    LOG_START_CAUSES.name: "not used: nobody follows these log starts until they move again",
    TOPIC_IDS.name: "not used: written anew with the next checkpoint",
    CLEANED.name: "not used: compaction starts from the beginning",
}


class NoLogFolder(ValueError):
    """The folder is neither a data folder nor that of a partition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderVerdict:
    """What was found in the data folder itself."""

    path: str
    partitions: int
    in_use: bool
    is_clean: bool
    findings: tuple[Finding, ...]


def is_partition_folder(files: ReadOnlyFiles, path: str) -> bool:
    names = files.list(path)
    return PARTITION_METADATA.file_name in names or any(each.endswith(LOG_SUFFIX) for each in names)


def is_data_folder(files: ReadOnlyFiles, path: str) -> bool:
    known = {kind.file_name for kind in (META_PROPERTIES, RECOVERY_POINTS, CLEAN_SHUTDOWN)}
    names = files.list(path)
    return bool(known.intersection(names)) or bool(partition_names(files, path))


def partition_names(files: ReadOnlyFiles, path: str) -> list[str]:
    """The names of the partition folders in a data folder."""
    return [
        name
        for name in files.list(path)
        if TopicPartition.parse(name) is not None and files.is_folder(f"{path}/{name}")
    ]


def bytes_to_read(files: ReadOnlyFiles, path: str) -> int:
    """How many bytes of segments a verification will read: for a progress bar."""
    if is_partition_folder(files, path):
        folders = [path]
    else:
        folders = [f"{path}/{name}" for name in partition_names(files, path)]
    total_bytes = 0
    for folder in folders:
        # What its owner removes meanwhile, and what cannot be read, is not read later either.
        with suppress(OSError):
            for name in files.list(folder):
                if name.endswith(LOG_SUFFIX):
                    total_bytes += files.size(f"{folder}/{name}")
    return total_bytes


def verify(
    files: ReadOnlyFiles,
    path: str,
    *,
    now_ms: int,
    deep: bool = False,
    in_use: bool = False,
    progress: Callable[[int], None] = lambda _: None,
) -> Iterator[FolderVerdict | PartitionVerdict]:
    """Verify a data folder (its own verdict comes first) or one partition; raises NoLogFolder."""
    if is_partition_folder(files, path):
        # The checkpoints of a partition stand in the folder above, when that is a data folder.
        parent, _, name = path.rpartition("/")
        check = _FolderCheck(files, parent or ".")
        names = [name]
    elif is_data_folder(files, path):
        check = _FolderCheck(files, path)
        names = partition_names(files, path)
        yield check.verdict(names, in_use=in_use)
    else:
        raise NoLogFolder(f"{path} is neither a data folder nor the folder of a partition")
    for name in names:
        folder = f"{check.path}/{name}"
        try:
            verdict = check_partition(
                files,
                folder,
                check.stored(name),
                now_ms=now_ms,
                deep=deep,
                in_use=in_use,
                progress=progress,
            )
        except FileNotFoundError:
            # Deleted by the broker that uses the folder: there is nothing left to judge.
            if not in_use or files.exists(folder):
                raise
            continue
        yield verdict


@dataclass(slots=True)
class _FolderCheck:
    files: ReadOnlyFiles
    path: str
    rehearsal: FolderRehearsal = field(init=False)
    high_watermarks: Mapping[TopicPartition, Offset] = field(init=False)
    cleaned: Mapping[TopicPartition, Offset] = field(init=False)
    topic_ids: Mapping[TopicPartition, TopicId] | None = field(init=False)
    _findings: list[Finding] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rehearsal = rehearse_folder(self.files, self.path)
        self.high_watermarks = self._load(HIGH_WATERMARKS) or {}
        self.cleaned = self._load(CLEANED) or {}
        self.topic_ids = self._load(TOPIC_IDS)

    def stored(self, name: str) -> StoredOffsets:
        """What the checkpoints say of one partition, as opening the folder would use it."""
        partition = TopicPartition.parse(name)
        if partition is None:
            return StoredOffsets()
        rehearsal = self.rehearsal
        others = ((HIGH_WATERMARKS, self.high_watermarks), (CLEANED, self.cleaned))
        return StoredOffsets(
            recovery_point=rehearsal.recovery_points.get(partition, 0),
            log_start=rehearsal.log_starts.get(partition, 0),
            clean=(rehearsal.clean or {}).get(partition),
            recovery_point_path=self._path(RECOVERY_POINTS.file_name),
            log_start_path=self._path(LOG_STARTS.file_name),
            clean_path=self._path(CLEAN_SHUTDOWN.file_name),
            others=tuple(
                (self._path(kind.file_name), offsets[partition])
                for kind, offsets in others
                if partition in offsets
            ),
            has_topic_id=partition in (self.topic_ids or {}),
            facts=rehearsal.facts.get(partition, LogFacts(start_is_known=rehearsal.has_causes)),
        )

    def verdict(self, names: list[str], *, in_use: bool) -> FolderVerdict:
        """Look at the files of the data folder itself."""
        self._load(META_PROPERTIES)
        if names and META_PROPERTIES.file_name not in self.files.list(self.path):
            what = "it is missing: nothing says whose partitions these are"
            self._add(Kind.METADATA_MISSING, META_PROPERTIES.file_name, what, _MADE_ANEW)
        self._load(CLEAN_SHUTDOWN)
        self._load(RECOVERY_POINTS)
        self._load(LOG_STARTS)
        self._load(LOG_START_CAUSES)
        self._missing()
        self._loose_names(names)
        self._closing(names, in_use=in_use)
        return FolderVerdict(
            path=self.path,
            partitions=len(names),
            in_use=in_use,
            is_clean=self.rehearsal.clean is not None,
            findings=tuple(self._findings),
        )

    def _load(self, kind: CheckpointKind[T]) -> T | None:
        path = self._path(kind.file_name)
        try:
            return read_or_none(OverlayFiles(self.files), path, kind)
        except CorruptCheckpoint as error:
            text = str(error).removeprefix(f"{path}: ")
            remedy = Recovery(action=Action.IGNORE, text=_IGNORED.get(kind.name, ""))
            if kind is META_PROPERTIES:
                remedy = _REFUSED
            self._add(Kind.CHECKPOINT_CORRUPT, kind.file_name, text, remedy)
        except OSError as error:
            what = f"it cannot be read: {error.strerror or error}"
            self._add(Kind.UNREADABLE_FILE, kind.file_name, what, _REFUSED)
        return None

    def _missing(self) -> None:
        """Logs that other files speak of, and that are not there at all."""
        text = "out of service until it is filled anew by its leader"
        for partition in self.rehearsal.missing:
            what = "its folder is missing, and checkpoint files say that it had records"
            remedy = Recovery(action=Action.REFUSE, text=text)
            self._add(Kind.FOLDER_MISSING, str(partition), what, remedy)

    def _loose_names(self, names: list[str]) -> None:
        kinds = (META_PROPERTIES, CLEAN_SHUTDOWN, RECOVERY_POINTS, LOG_STARTS)
        others = (HIGH_WATERMARKS, CLEANED, LOG_START_CAUSES, TOPIC_IDS)
        known = {kind.file_name for kind in (*kinds, *others)}
        known.update(names, {LOCK_FILE, DELETIONS_FILE, *METADATA_COPY_FILES})
        nothing = Recovery(action=Action.NOTHING, text="nothing: nobody reads it")
        for name in self.files.list(self.path):
            if name in known:
                continue
            if name.endswith(DELETED_SUFFIX) and self.files.is_folder(self._path(name)):
                remedy = Recovery(action=Action.REMOVE, text="removed")
                what = "a partition was deleted, but not all of its files"
                self._add(Kind.UNFINISHED_DELETE, name, what, remedy)
            elif partition_of(name) and self.files.is_folder(self._path(name)):
                what = "a replica that was set aside: `tailrace brokers strays` tells why"
                kept = Recovery(action=Action.NOTHING, text="kept for stray.retention.ms")
                self._add(Kind.STRAY_FILE, name, what, kept)
            elif name.removesuffix(TEMPORARY_SUFFIX) in known:
                what = "a crash left it half made"
                remedy = Recovery(action=Action.REMOVE, text="replaced by the next checkpoint")
                self._add(Kind.LEFTOVER, name, what, remedy)
            else:
                self._add(Kind.STRAY_FILE, name, "it is no part of a data folder", nothing)

    def _closing(self, names: list[str], *, in_use: bool) -> None:
        rehearsal = self.rehearsal
        if rehearsal.clean is not None:
            found = {TopicPartition.parse(name) for name in names}
            strangers = [str(each) for each in rehearsal.clean if each not in found]
            if strangers:
                what = f"it speaks of partitions that are not there: {', '.join(strangers[:3])}"
                remedy = Recovery(action=Action.IGNORE, text="not used for them")
                self._add(Kind.CLEAN_MARKER_WRONG, CLEAN_SHUTDOWN.file_name, what, remedy)
        elif rehearsal.meta is not None and not in_use:
            what = "the folder was not closed in order"
            if not rehearsal.report.same_boot:
                what += ", and the machine has started anew: what was not synced may be gone"
            text = "scans what is above the recovery points"
            remedy = Recovery(action=Action.NOTHING, text=text)
            self._add(Kind.NOT_CLOSED, CLEAN_SHUTDOWN.file_name, what, remedy)

    def _add(self, kind: Kind, name: str, what: str, remedy: Recovery) -> None:
        symptom = Symptom(kind=kind, path=self._path(name), what=what)
        self._findings.append(as_finding(symptom, remedy))

    def _path(self, name: str) -> str:
        return f"{self.path}/{name}"
