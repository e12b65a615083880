"""Replicas that are set aside: nobody wants them, and nobody has proven that they may go.

A stray is a log's folder under another name, `<topic>-<partition>.<topic id>-stray`, with a note in
it: since when, why, and what the checkpoint files of the data folder said of the log. So it can be
taken back as it was. It is kept for `stray.retention.ms`, counted from the first moment after that
at which the broker believed its clock: a clock that was wrong when the note was written makes
nothing old. One without a note that can be read is kept until a person decides.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from typing import Final, NamedTuple

from tailrace.errors import CorruptBatch, CorruptCheckpoint
from tailrace.log.checkpoints import PARTITION_METADATA, read_or_none, write_atomically
from tailrace.log.data_folder import STRAY_SUFFIX, DataFolder
from tailrace.log.evidence import StrayExpired
from tailrace.log.files import Files
from tailrace.log.segment import LOG_SUFFIX, Segment, Storage, segment_name
from tailrace.log.swap import segment_bases
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
    # From when on it is kept for so long: the first time after `since_ms` that was believed.
    kept_from_ms: int | None = None


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

    def kept_until_ms(self, retention_ms: int) -> int | None:
        """When it may go; None: nobody knows yet, or only a person says so."""
        if self.note is None or self.note.kept_from_ms is None or retention_ms < 0:
            return None
        return self.note.kept_from_ms + retention_ms

    def expiry(self, *, cluster_id: str, now_ms: int, retention_ms: int) -> StrayExpired | None:
        """What proves that it has been kept for long enough; None: it has not.

        `now_ms` is a time that is believed.
        """
        until_ms = self.kept_until_ms(retention_ms)
        if self.note is None or until_ms is None or now_ms < until_ms:
            return None
        return StrayExpired(
            cluster_id=cluster_id,
            topic_id=self.topic_id or "",
            set_aside_ms=self.note.since_ms,
            kept_from_ms=until_ms - retention_ms,
            now_ms=now_ms,
            retention_ms=retention_ms,
        )


class StrayExtent(NamedTuple):
    """What the segments of a stray hold; -1: no record can be read."""

    size_bytes: int
    log_end: int
    last_epoch: int


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
        self._write_note(path, note)
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

    def count_from(self, stray: Stray, now_ms: int) -> None:
        """Keep it for so long from this time on, which is believed; what was noted before stays."""
        if stray.note is None or stray.note.kept_from_ms is not None:
            return
        note = replace(stray.note, kept_from_ms=now_ms)
        self._write_note(stray.path, note)

    def remove(self, stray: Stray) -> None:
        """Remove all of it, for who has evidence that it may go; durable on return."""
        self._files.remove_folder(stray.path)
        self._files.sync_folder(stray.folder.path)

    def _write_note(self, path: str, note: StrayNote) -> None:
        write_atomically(self._files, f"{path}/{NOTE_FILE}", encode_note(note), durable=True)

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
    if note.kept_from_ms is not None:
        numbers.append(note.kept_from_ms)
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


def bytes_of(files: Files, stray: Stray) -> int:
    """Bytes of its segments."""
    bases = segment_bases(files, stray.path)
    return sum(files.size(f"{stray.path}/{segment_name(base, LOG_SUFFIX)}") for base in bases)


def extent_of(storage: Storage, stray: Stray) -> StrayExtent:
    """Read how far a stray goes; takes long where its indexes are gone, so not on the loop."""
    files, path = storage.files, stray.path
    bases = segment_bases(files, path)
    sizes = {base: files.size(f"{path}/{segment_name(base, LOG_SUFFIX)}") for base in bases}
    total = sum(sizes.values())
    end = bases[-1] if bases else -1
    try:
        for base in reversed(bases):
            found = _tail(storage, path, base, sizes[base])
            if found is not None:
                return StrayExtent(total, *found)
    finally:
        storage.cache.forget_folder(path)
    return StrayExtent(total, end, -1)


def _tail(storage: Storage, path: str, base: int, size: int) -> tuple[int, int] | None:
    """Where the whole batches of a segment end, and the epoch of the last one; None: none is."""
    segment = Segment(
        storage, path, base, next_offset=base, size=size, index_interval_bytes=_INDEX_INTERVAL_BYTES
    )
    # A jump to the last entry of an index that fits; else from the start.
    index = segment.load_index()
    starts = [index.floor(_ANY_OFFSET)[1]] if index is not None else []
    for start in dict.fromkeys([*starts, 0]):
        found: tuple[int, int] | None = None
        try:
            for _, header in segment.walk(start):
                found = header.next_offset, header.leader_epoch
        except CorruptBatch:
            pass
        if found is not None:
            return found
    return None


_INDEX_INTERVAL_BYTES: Final = 4096
_ANY_OFFSET: Final = (1 << 31) - 1
