"""Replicas that are set aside: nobody wants them, and nobody has proven that they may go.

A stray is a log's folder under another name, `<topic>-<partition>.<topic id>-stray`, with a note in
it: since when, why, and what the checkpoint files of the data folder said of the log. So it can be
taken back as it was. It is kept for `stray.retention.ms`, counted from when it was set aside.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Final

from tailrace.errors import CorruptCheckpoint
from tailrace.log.checkpoints import PARTITION_METADATA, read_or_none, write_atomically
from tailrace.log.data_folder import STRAY_SUFFIX, DataFolder
from tailrace.log.files import Files
from tailrace.model import LOG_START_KINDS, LogStartCause, Offset, TopicId, TopicPartition
from tailrace.record.codec import crc32c

NOTE_FILE: Final = "set-aside"
NOTE_BYTES_MAX: Final = 64 << 10
# What a log that is set aside is called where its topic's id cannot be read.
UNKNOWN_ID: Final = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class StrayNote:
    """What was known of a log when it was set aside."""

    since_ms: int
    why: str
    log_start: int = 0
    recovery_point: int = 0
    high_watermark: int = 0
    # The cause of the log start: kind, epoch and offset.
    start_cause: tuple[str, int, int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stray:
    """A replica that was set aside. `note`: None where it has none, or one that cannot be read."""

    folder: DataFolder
    name: str
    partition: TopicPartition
    topic_id: TopicId | None
    note: StrayNote | None

    @property
    def path(self) -> str:
        return f"{self.folder.path}/{self.name}"


class Strays:
    """Sets logs aside, lists them, takes them back."""

    def __init__(self, files: Files, folders: Callable[[], Iterable[DataFolder]]) -> None:
        self._files = files
        self._folders = folders

    def add(
        self,
        folder: DataFolder,
        partition: TopicPartition,
        topic_id: TopicId | None,
        *,
        why: str,
        now_ms: int,
    ) -> str:
        """Rename the folder of a log that nobody uses any more; durable on return."""
        cause = folder.start_causes.get(partition)
        note = StrayNote(
            since_ms=now_ms,
            why=why,
            log_start=folder.log_starts.get(partition, 0),
            recovery_point=folder.recovery_points.get(partition, 0),
            high_watermark=folder.high_watermarks.get(partition, 0),
            start_cause=None if cause is None else (cause.kind, cause.leader_epoch, cause.offset),
        )
        path = f"{folder.path}/{partition}"
        write_atomically(self._files, f"{path}/{NOTE_FILE}", encode_note(note), durable=True)
        name = self._free_name(folder, f"{partition}.{topic_id or UNKNOWN_ID}")
        self._files.rename(path, f"{folder.path}/{name}")
        self._files.sync_folder(folder.path)
        return name

    def list(self, wanted: TopicPartition | None = None) -> list[Stray]:
        """All that there are, in every folder that is used, or those of one partition."""
        found = []
        for folder in self._folders():
            for name in sorted(self._files.list(folder.path)):
                partition = partition_of(name)
                if partition is None or (wanted is not None and partition != wanted):
                    continue
                if self._files.is_folder(f"{folder.path}/{name}"):
                    found.append(self._read(folder, name, partition))
        return found

    def find(self, partition: TopicPartition, topic_id: str) -> Stray | None:
        """The newest stray of this partition of this very topic."""
        fit = [
            each
            for each in self.list(partition)
            if each.topic_id == topic_id and each.note is not None
        ]
        return max(fit, key=_since_ms, default=None)

    def take_back(self, stray: Stray) -> None:
        """Give a stray its name, and its folder what was known of it; it can be opened then."""
        folder, partition, note = stray.folder, stray.partition, stray.note
        if note is None or stray.topic_id is None:
            raise CorruptCheckpoint(f"{stray.path}: nothing is known of this log")
        if folder.knows(partition):
            folder.forget([partition])
        if note.start_cause is not None:
            kind, epoch, offset = note.start_cause
            cause = LogStartCause(kind, epoch, offset)
        else:
            cause = None
        folder.set_log_start(partition, note.log_start, cause)
        folder.raise_recovery_point(partition, note.recovery_point)
        folder.set_high_watermarks({partition: Offset(note.high_watermark)})
        folder.topic_ids[partition] = stray.topic_id
        path = f"{folder.path}/{partition}"
        self._files.rename(stray.path, path)
        self._files.sync_folder(folder.path)
        self._files.remove(f"{path}/{NOTE_FILE}")

    def _free_name(self, folder: DataFolder, stem: str) -> str:
        """One that no other stray has: what is set aside never replaces what was set aside."""
        name, number = f"{stem}{STRAY_SUFFIX}", 1
        while self._files.exists(f"{folder.path}/{name}"):
            number += 1
            name = f"{stem}.{number}{STRAY_SUFFIX}"
        return name

    def _read(self, folder: DataFolder, name: str, partition: TopicPartition) -> Stray:
        path = f"{folder.path}/{name}"
        try:
            metadata = read_or_none(
                self._files, f"{path}/{PARTITION_METADATA.file_name}", PARTITION_METADATA
            )
        except CorruptCheckpoint:
            metadata = None
        return Stray(
            folder=folder,
            name=name,
            partition=partition,
            topic_id=None if metadata is None else metadata.topic_id,
            note=self._note(f"{path}/{NOTE_FILE}"),
        )

    def _note(self, path: str) -> StrayNote | None:
        try:
            if self._files.size(path) > NOTE_BYTES_MAX:
                return None
            return decode_note(self._files.read(path))
        except OSError:
            return None


_NUMBERS: Final = ("since_ms", "log_start", "recovery_point", "high_watermark")
_CAUSE_FIELDS: Final = 3


def encode_note(note: StrayNote) -> bytes:
    """One line of JSON, and one with its CRC-32C."""
    line = json.dumps(asdict(note)).encode("ascii") + b"\n"
    return line + _crc_line(line)


def decode_note(data: bytes) -> StrayNote | None:
    """What `encode_note` was given; None when anything at all is wrong: a note is never guessed."""
    line, end, crc = data.partition(b"\n")
    if not end or crc != _crc_line(line + end):
        return None
    try:
        fields = json.loads(line)
        cause = fields.pop("start_cause", None)
        note = StrayNote(**fields, start_cause=None if cause is None else tuple(cause))
    except (ValueError, TypeError, AttributeError, RecursionError):
        return None
    numbers = [getattr(note, each) for each in _NUMBERS]
    is_sound = type(note.why) is str
    if cause is not None:
        is_sound = is_sound and len(cause) == _CAUSE_FIELDS and cause[0] in LOG_START_KINDS
        numbers += cause[1:]
    is_sound = is_sound and all(type(each) is int and each >= 0 for each in numbers)
    return note if is_sound else None


def _crc_line(line: bytes) -> bytes:
    return b"crc32c %08x\n" % crc32c(line)


def partition_of(name: str) -> TopicPartition | None:
    """Which partition a stray's folder is of; None when it is no stray."""
    if not name.endswith(STRAY_SUFFIX):
        return None
    stem = name.removesuffix(STRAY_SUFFIX)
    while True:
        partition = TopicPartition.parse(stem)
        if partition is not None:
            return partition
        stem, dot, _ = stem.rpartition(".")
        if not dot:
            return None


def _since_ms(stray: Stray) -> int:
    return 0 if stray.note is None else stray.note.since_ms
