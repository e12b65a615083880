"""The small text files beside the segments: offsets, leader epochs, metadata, the clean marker.

One frame holds them all: a first line with version and kind, a line with the number of lines that
follow, these, and last the CRC-32C of everything above. A kind adds how its value is written as
lines. Invariant: a file is read whole as it was written, or refused with CorruptCheckpoint; what
stands under a checkpoint's name is always one whole version of it, the old or the new.

This module does not know what the values mean to the log, nor when to write them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import PurePosixPath
from typing import Final, Generic, NamedTuple, NoReturn, TypeVar

from tailrace.epochs import EpochEntry, EpochHistory
from tailrace.errors import CorruptCheckpoint, InvariantViolation
from tailrace.log.files import Files
from tailrace.model import (
    LOG_START_KINDS,
    BrokerId,
    LeaderEpoch,
    LogStartCause,
    Offset,
    TopicId,
    TopicPartition,
    topic_name_problem,
)
from tailrace.record.codec import crc32c

T = TypeVar("T")

PARTITIONS_PER_FOLDER_MAX: Final = 50_000
EPOCHS_PER_PARTITION_MAX: Final = 50_000
TEMPORARY_SUFFIX: Final = ".tmp"


@dataclass(frozen=True)
class Kind(Generic[T]):
    """One kind of checkpoint: its name in the first line, its usual file name, its lines."""

    name: str
    file_name: str
    lines_max: int
    to_lines: Callable[[T], Iterable[str]]
    from_lines: Callable[[list[str]], T]

    @property
    def bytes_max(self) -> int:
        """No file of this kind is larger: a reader refuses a larger one unread."""
        return self.lines_max * _LINE_BYTES_MAX + _FRAME_BYTES_MAX


class CleanPartition(NamedTuple):
    """How a cleanly closed partition was left: enough to open it without reading it.

    `segments_crc`: over all its segments; None in a marker of an earlier release.
    """

    log_start: Offset
    log_end: Offset
    active_base: Offset
    active_size_bytes: int
    segments_crc: int | None = None


@dataclass(frozen=True, slots=True)
class CleanShutdown:
    """The marker that a data folder was closed in order, under which boot of the machine."""

    boot_id: str
    partitions: Mapping[TopicPartition, CleanPartition]


@dataclass(frozen=True, slots=True)
class PartitionMetadata:
    """Which topic the partition's folder belongs to: a name can be used again, an id cannot."""

    topic_id: TopicId


@dataclass(frozen=True, slots=True)
class MetaProperties:
    """Whose data folder this is, and under which boot it was last written."""

    cluster_id: str
    broker_id: BrokerId
    incarnation: str
    boot_id: str


def encode(kind: Kind[T], entries: T) -> bytes:
    """Return the bytes of a checkpoint; InvariantViolation for a value that could not be read."""
    lines = list(kind.to_lines(entries))
    if len(lines) > kind.lines_max:
        raise InvariantViolation(
            f"{kind.name}: {len(lines)} lines are more than its limit of {kind.lines_max}"
        )
    head = f"{_MAGIC} {_VERSION} {kind.name}\nlines {len(lines)}\n"
    body = (head + "".join(f"{line}\n" for line in lines)).encode("ascii")
    return body + _crc_line(body)


def decode(kind: Kind[T], data: bytes) -> T:
    """Return what `encode` was given; CorruptCheckpoint when anything at all is wrong."""
    if len(data) > kind.bytes_max:
        _corrupt(kind.name, f"{len(data)} bytes are more than its limit of {kind.bytes_max}")
    body = data[:-_CRC_LINE_BYTES]
    if len(data) <= _CRC_LINE_BYTES or data[-_CRC_LINE_BYTES:] != _crc_line(body):
        _corrupt(kind.name, "the CRC does not match or is missing")
    try:
        first, count, *lines, after_last = body.decode("ascii").split("\n")
    except ValueError:
        _corrupt(kind.name, "it is not made of lines of ASCII text")
    if first != f"{_MAGIC} {_VERSION} {kind.name}":
        _corrupt(kind.name, f"its first line is {first[:_LINE_BYTES_MAX]!r}")
    if count != f"lines {len(lines)}" or after_last:
        _corrupt(kind.name, f"it has {len(lines)} lines where it promises {count!r}")
    try:
        return kind.from_lines(lines)
    except (ValueError, InvariantViolation) as error:
        raise CorruptCheckpoint(f"{kind.name}: {error}") from error


def decode_named(data: bytes) -> tuple[str, object]:
    """Return the kind that the file itself names, and its value: for tools that look at any."""
    first = data[:_FRAME_BYTES_MAX].partition(b"\n")[0].decode("ascii", "replace")
    name = first.rpartition(" ")[2]
    if name not in _DECODERS:
        _corrupt("checkpoint", f"its first line is {first!r}")
    return name, _DECODERS[name](data)


def write_atomically(files: Files, path: str, data: bytes, *, durable: bool) -> None:
    """Replace the file at `path` by one that holds `data`; raise OSError and leave it as it was.

    When it returns after `durable`, the new file survives a power loss. Otherwise a power loss
    may leave the old file, the new one, or one that `decode` refuses; a process crash may not.
    Only one thread at a time may write the same path.
    """
    temporary = path + TEMPORARY_SUFFIX
    try:
        _write_new(files, temporary, data, durable=durable)
        files.rename(temporary, path)
    except OSError:
        # On a full disk half a file would make things worse; a leftover is harmless otherwise.
        with suppress(OSError):
            files.remove(temporary)
        raise
    if durable:
        files.sync_folder(str(PurePosixPath(path).parent))


def read_or_none(files: Files, path: str, kind: Kind[T]) -> T | None:
    """Return the checkpoint at `path`, None when there is none, CorruptCheckpoint when it is bad.

    A file beyond the limit of its kind is refused before it is read.
    """
    try:
        size = files.size(path)
        if size > kind.bytes_max:
            _corrupt(path, f"{size} bytes are more than its limit of {kind.bytes_max}")
        return decode(kind, files.read(path))
    except FileNotFoundError:
        return None
    except CorruptCheckpoint as error:
        raise CorruptCheckpoint(f"{path}: {error}") from error


_MAGIC: Final = "tailrace-checkpoint"
_VERSION: Final = 1
_CRC_LINE_BYTES: Final = len("crc32c 00000000\n")
_FRAME_BYTES_MAX: Final = 256
_LINE_BYTES_MAX: Final = 320

_NUMBER: Final = re.compile(r"0|[1-9][0-9]{0,18}")
_NUMBER_MAX: Final = 2**63 - 1
_TOKEN: Final = re.compile(r"[!-~]{1,128}")


def _write_new(files: Files, path: str, data: bytes, *, durable: bool) -> None:
    file = files.open(path, create=True)
    try:
        file.truncate(0)
        file.write_at(0, [data])
        if durable:
            file.sync()
    finally:
        file.close()


def _crc_line(body: bytes) -> bytes:
    return b"crc32c %08x\n" % crc32c(body)


def _corrupt(name: str, what: str) -> NoReturn:
    raise CorruptCheckpoint(f"{name}: {what}")


def _number(text: str) -> int:
    # int() would also take signs, spaces, underscores and digits of other scripts.
    if _NUMBER.fullmatch(text) is None or int(text) > _NUMBER_MAX:
        raise ValueError(f"{text!r} is not a number from 0 to {_NUMBER_MAX}")
    return int(text)


def _token(text: str) -> str:
    if _TOKEN.fullmatch(text) is None:
        raise ValueError(f"{text!r} is not one word of 1 to 128 ASCII characters")
    return text


def _words(line: str, count: int) -> list[str]:
    words = line.split(" ")
    if len(words) != count:
        raise ValueError(f"{line!r} has {len(words)} words instead of {count}")
    return words


def _require_writable(*numbers: int) -> None:
    for number in numbers:
        if not 0 <= number <= _NUMBER_MAX:
            raise InvariantViolation(f"{number} cannot stand in a checkpoint")


def _partition_line(partition: TopicPartition, *numbers: int) -> str:
    problem = topic_name_problem(partition.topic)
    if problem is not None:
        raise InvariantViolation(problem)
    _require_writable(partition.partition, *numbers)
    return " ".join((partition.topic, str(partition.partition), *map(str, numbers)))


def _partition_lines_in(
    lines: list[str], count: int, *, optional: int = 0
) -> dict[TopicPartition, list[int]]:
    """Lines of a partition and some numbers; an earlier release wrote none that is `optional`."""
    found: dict[TopicPartition, list[int]] = {}
    for line in lines:
        is_longer = len(line.split(" ")) > count + 2
        topic, *numbers = _words(line, count + 2 + (optional if is_longer else 0))
        problem = topic_name_problem(topic)
        if problem is not None:
            raise ValueError(problem)
        partition, *values = map(_number, numbers)
        key = TopicPartition(topic, partition)
        if key in found:
            raise ValueError(f"{key} is there twice")
        found[key] = values
    return found


def _offset_lines(offsets: Mapping[TopicPartition, Offset]) -> Iterable[str]:
    return (_partition_line(partition, offsets[partition]) for partition in sorted(offsets))


def _offsets_in(lines: list[str]) -> Mapping[TopicPartition, Offset]:
    return {
        partition: Offset(offset) for partition, (offset,) in _partition_lines_in(lines, 1).items()
    }


def _offsets_kind(name: str) -> Kind[Mapping[TopicPartition, Offset]]:
    return Kind(name, name, PARTITIONS_PER_FOLDER_MAX, _offset_lines, _offsets_in)


def _cause_lines(causes: Mapping[TopicPartition, LogStartCause]) -> Iterable[str]:
    for partition in sorted(causes):
        cause = causes[partition]
        if cause.kind not in LOG_START_KINDS:
            raise InvariantViolation(f"{cause.kind!r} is no cause for a log start")
        numbers = _partition_line(partition, cause.leader_epoch, cause.offset)
        yield f"{cause.kind} {numbers}"


def _causes_in(lines: list[str]) -> Mapping[TopicPartition, LogStartCause]:
    kinds, rest = [], []
    for line in lines:
        kind, _, numbers = line.partition(" ")
        if kind not in LOG_START_KINDS:
            raise ValueError(f"{kind!r} is no cause for a log start")
        kinds.append(kind)
        rest.append(numbers)
    found = _partition_lines_in(rest, 2)
    return {
        partition: LogStartCause(kind, epoch, offset)
        for kind, (partition, (epoch, offset)) in zip(kinds, found.items(), strict=True)
    }


def _topic_id_lines(ids: Mapping[TopicPartition, TopicId]) -> Iterable[str]:
    for partition in sorted(ids):
        if _TOKEN.fullmatch(ids[partition]) is None:
            raise InvariantViolation(f"{ids[partition]!r} cannot stand in a checkpoint")
        yield f"{ids[partition]} {_partition_line(partition)}"


def _topic_ids_in(lines: list[str]) -> Mapping[TopicPartition, TopicId]:
    ids = [_token(line.partition(" ")[0]) for line in lines]
    found = _partition_lines_in([line.partition(" ")[2] for line in lines], 0)
    return {partition: TopicId(each) for each, partition in zip(ids, found, strict=True)}


def _epoch_lines(entries: Iterable[EpochEntry]) -> Iterable[str]:
    return (f"{epoch} {start}" for epoch, start in EpochHistory(entries).entries)


def _epochs_in(lines: list[str]) -> Iterable[EpochEntry]:
    pairs = (_words(line, 2) for line in lines)
    # The history refuses entries that do not rise.
    return EpochHistory(
        EpochEntry(LeaderEpoch(_number(epoch)), Offset(_number(start))) for epoch, start in pairs
    ).entries


def _property_lines(properties: Mapping[str, str]) -> Iterable[str]:
    for name, value in properties.items():
        if _TOKEN.fullmatch(value) is None:
            raise InvariantViolation(f"{name}: {value!r} cannot stand in a checkpoint")
        yield f"{name} {value}"


def _properties_in(lines: list[str], *names: str) -> list[str]:
    pairs = [_words(line, 2) for line in lines]
    if [name for name, _ in pairs] != list(names):
        raise ValueError(f"its lines are not {', '.join(names)}")
    return [_token(value) for _, value in pairs]


def _partition_metadata_lines(metadata: PartitionMetadata) -> Iterable[str]:
    return _property_lines({"topic_id": metadata.topic_id})


def _partition_metadata_in(lines: list[str]) -> PartitionMetadata:
    (topic_id,) = _properties_in(lines, "topic_id")
    return PartitionMetadata(TopicId(topic_id))


def _meta_lines(meta: MetaProperties) -> Iterable[str]:
    _require_writable(meta.broker_id)
    return _property_lines(
        {
            "cluster_id": meta.cluster_id,
            "broker_id": str(meta.broker_id),
            "incarnation": meta.incarnation,
            "boot_id": meta.boot_id,
        }
    )


def _meta_in(lines: list[str]) -> MetaProperties:
    cluster_id, broker_id, incarnation, boot_id = _properties_in(
        lines, "cluster_id", "broker_id", "incarnation", "boot_id"
    )
    return MetaProperties(cluster_id, BrokerId(_number(broker_id)), incarnation, boot_id)


def _clean_lines(marker: CleanShutdown) -> Iterable[str]:
    yield from _property_lines({"boot_id": marker.boot_id})
    for partition in sorted(marker.partitions):
        numbers = [each for each in marker.partitions[partition] if each is not None]
        yield _partition_line(partition, *numbers)


def _clean_in(lines: list[str]) -> CleanShutdown:
    (boot_id,) = _properties_in(lines[:1], "boot_id")
    partitions: dict[TopicPartition, CleanPartition] = {}
    for partition, values in _partition_lines_in(lines[1:], 4, optional=1).items():
        log_start, log_end, active_base, active_size_bytes, *segments_crc = values
        if log_start > log_end or active_base > log_end:
            raise ValueError(f"{partition} ends at {log_end}, before it begins")
        partitions[partition] = CleanPartition(
            Offset(log_start),
            Offset(log_end),
            Offset(active_base),
            active_size_bytes,
            *segments_crc,
        )
    return CleanShutdown(boot_id, partitions)


HIGH_WATERMARKS: Final = _offsets_kind("replication-offset-checkpoint")
RECOVERY_POINTS: Final = _offsets_kind("recovery-point-offset-checkpoint")
LOG_STARTS: Final = _offsets_kind("log-start-offset-checkpoint")
CLEANED: Final = _offsets_kind("cleaner-offset-checkpoint")

LOG_START_CAUSES: Final = Kind[Mapping[TopicPartition, LogStartCause]](
    "log-start-cause-checkpoint",
    "log-start-cause-checkpoint",
    PARTITIONS_PER_FOLDER_MAX,
    _cause_lines,
    _causes_in,
)
TOPIC_IDS: Final = Kind[Mapping[TopicPartition, TopicId]](
    "topic-id-checkpoint",
    "topic-id-checkpoint",
    PARTITIONS_PER_FOLDER_MAX,
    _topic_id_lines,
    _topic_ids_in,
)
LEADER_EPOCHS: Final = Kind[Iterable[EpochEntry]](
    "leader-epoch-checkpoint",
    "leader-epoch-checkpoint",
    EPOCHS_PER_PARTITION_MAX,
    _epoch_lines,
    _epochs_in,
)
PARTITION_METADATA: Final = Kind[PartitionMetadata](
    "partition-metadata",
    "partition.metadata",
    1,
    _partition_metadata_lines,
    _partition_metadata_in,
)
META_PROPERTIES: Final = Kind[MetaProperties](
    "meta-properties", "meta.properties", 4, _meta_lines, _meta_in
)
CLEAN_SHUTDOWN: Final = Kind[CleanShutdown](
    "clean-shutdown", "clean-shutdown", PARTITIONS_PER_FOLDER_MAX + 1, _clean_lines, _clean_in
)
_DECODERS: Final[Mapping[str, Callable[[bytes], object]]] = {
    HIGH_WATERMARKS.name: partial(decode, HIGH_WATERMARKS),
    RECOVERY_POINTS.name: partial(decode, RECOVERY_POINTS),
    LOG_STARTS.name: partial(decode, LOG_STARTS),
    CLEANED.name: partial(decode, CLEANED),
    LOG_START_CAUSES.name: partial(decode, LOG_START_CAUSES),
    TOPIC_IDS.name: partial(decode, TOPIC_IDS),
    LEADER_EPOCHS.name: partial(decode, LEADER_EPOCHS),
    PARTITION_METADATA.name: partial(decode, PARTITION_METADATA),
    META_PROPERTIES.name: partial(decode, META_PROPERTIES),
    CLEAN_SHUTDOWN.name: partial(decode, CLEAN_SHUTDOWN),
}
