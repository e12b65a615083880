"""Turning any file of a log, damaged or not, into the entries of a dump.

Reads only, and as little as it needs: a segment goes by a chunk at a time, and without `records`
no body is decoded. What is damaged becomes a `DamageEntry`, and the dump goes on behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from tailrace.cli.entries import (
    BatchEntry,
    ClosedEntry,
    DamageEntry,
    Entry,
    EpochStartEntry,
    FileEntry,
    IndexEntry,
    OffsetEntry,
    ProducedEntry,
    PropertyEntry,
    RecordEntry,
    TimeIndexEntry,
)
from tailrace.epochs import EpochEntry
from tailrace.errors import CorruptBatch, CorruptCheckpoint
from tailrace.log.audit.findings import NO_OFFSET
from tailrace.log.audit.index_check import read_offset_index, read_time_index
from tailrace.log.audit.inspection import Damage, base_in_name, scan
from tailrace.log.audit.overlay import ReadOnlyFiles, read_small
from tailrace.log.checkpoints import (
    CLEAN_SHUTDOWN,
    CLEANED,
    HIGH_WATERMARKS,
    LEADER_EPOCHS,
    LOG_STARTS,
    META_PROPERTIES,
    PARTITION_METADATA,
    RECOVERY_POINTS,
    TEMPORARY_SUFFIX,
    CleanShutdown,
    MetaProperties,
    PartitionMetadata,
    decode_named,
)
from tailrace.log.cuts import CUT_FILE, NOTE_BYTES_MAX
from tailrace.log.data_folder import LOCK_FILE
from tailrace.log.flushing import MARKER_BYTES_MAX, SYNC_FAILED_FILE, decode_marker
from tailrace.log.producers import SNAPSHOT_BYTES_MAX, ProducerStates
from tailrace.log.segment import INDEX_SUFFIX, LOG_SUFFIX, SNAPSHOT_SUFFIX, TIME_INDEX_SUFFIX
from tailrace.log.swap import CLEANED_SUFFIX, SWAP_SUFFIX
from tailrace.record.header import HEADER_BYTES, BatchHeader, read_header
from tailrace.record.view import BatchView

SMALL_FILE_BYTES_MAX: Final = 64 * 1024 * 1024
"""Checkpoints and indexes are read whole; a larger one is refused."""


class NotOurs(ValueError):
    """A file or folder that Tailrace did not write."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DumpOptions:
    """What to show: single records instead of batches, from where on, and how many lines."""

    records: bool = False
    from_offset: int = 0
    limit: int | None = None


def dump_file(files: ReadOnlyFiles, path: str, options: DumpOptions) -> Iterator[Entry]:
    """Everything in a file; raises NotOurs or OSError."""
    kind = kind_of(files, path)
    yield from _KINDS[kind](files, path, kind, options)


def kind_of(files: ReadOnlyFiles, path: str) -> str:
    """Which kind of file it is, by its name or, failing that, by its first bytes."""
    name = path.rpartition("/")[2].removesuffix(TEMPORARY_SUFFIX)
    for suffix, kind in _BY_SUFFIX.items():
        if name.endswith(suffix):
            return kind
    if name in {CUT_FILE, SYNC_FAILED_FILE, LOCK_FILE}:
        return "marker"
    file = files.open(path)
    try:
        start = file.read_at(0, HEADER_BYTES)
    finally:
        file.close()
    for magic, kind in _BY_MAGIC.items():
        if start.startswith(magic):
            return kind
    try:
        read_header(start)
    except CorruptBatch:
        if name in _CHECKPOINT_NAMES:
            return "checkpoint"
        raise NotOurs(f"{path} is no file of a Tailrace log") from None
    return "segment"


# Segments.


def _segment(files: ReadOnlyFiles, path: str, kind: str, options: DumpOptions) -> Iterator[Entry]:
    size = files.size(path)
    yield FileEntry(path=path, kind=kind, size_bytes=size)
    file = files.open(path)
    shown = 0
    try:
        for found in scan(file, size):
            if isinstance(found, Damage):
                yield damage_entry(path, found)
                continue
            header = found.header
            if header.last_offset < options.from_offset:
                continue
            if options.limit is not None and shown >= options.limit:
                return
            if not options.records:
                shown += 1
                yield _batch_entry(found.position, header)
                continue
            data = file.read_at(found.position, header.length)
            for entry in _records(path, found.position, data, options.from_offset):
                if options.limit is not None and shown >= options.limit:
                    return
                shown += isinstance(entry, RecordEntry)
                yield entry
    finally:
        file.close()


def _records(path: str, position: int, data: bytes, from_offset: int) -> Iterator[Entry]:
    view = BatchView(data)
    try:
        for record in view.records():
            if record.offset >= from_offset:
                yield RecordEntry(
                    offset=record.offset,
                    timestamp_ms=record.timestamp_ms,
                    key=record.key,
                    value=record.value,
                    headers=record.headers,
                )
    except CorruptBatch as error:
        yield DamageEntry(
            path=path,
            position=position,
            end=position + len(data),
            reason=_reason(error),
            base_offset=view.header.base_offset,
        )


def _batch_entry(position: int, header: BatchHeader) -> BatchEntry:
    flags = {
        "control": header.is_control,
        "transactional": header.is_transactional,
        "compacted": header.is_compacted,
        "headers": header.has_headers,
        "append-time": header.is_append_time,
    }
    return BatchEntry(
        position=position,
        length=header.length,
        base_offset=header.base_offset,
        last_offset=header.last_offset,
        record_count=header.record_count,
        leader_epoch=header.leader_epoch,
        first_timestamp_ms=header.first_timestamp_ms,
        max_timestamp_ms=header.max_timestamp_ms,
        compression=header.compression.name.lower(),
        body_bytes=header.body_bytes,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        delete_horizon_ms=header.delete_horizon_ms,
        flags=tuple(name for name, is_set in flags.items() if is_set),
        crc=f"{header.crc:08x}",
    )


def damage_entry(path: str, damage: Damage) -> DamageEntry:
    reason = "nothing but zeros" if damage.all_zeros else damage.reason
    return DamageEntry(
        path=path,
        position=damage.position,
        end=damage.end,
        reason=reason,
        base_offset=damage.base_offset,
    )


# Everything else.


def _whole(path: str, size: int, error: Exception) -> DamageEntry:
    return DamageEntry(path=path, position=-1, end=size, reason=_reason(error))


def _index(files: ReadOnlyFiles, path: str, kind: str, options: DumpOptions) -> Iterator[Entry]:
    base = base_in_name(path.rpartition("/")[2]) or 0
    size = files.size(path)
    try:
        data = read_small(files, path, SMALL_FILE_BYTES_MAX)
        index = read_offset_index(data) if kind == "index" else read_time_index(data)
    except CorruptCheckpoint as error:
        yield FileEntry(path=path, kind=kind, size_bytes=size)
        yield _whole(path, size, error)
        return
    about = f"covers {index.covered_bytes} bytes of its segment"
    yield FileEntry(path=path, kind=kind, size_bytes=size, about=about)
    entries: Iterator[Entry]
    if kind == "index":
        entries = (
            IndexEntry(offset=base + offset, position=position)
            for offset, position in zip(index.offsets, index.positions, strict=True)
            if base + offset >= options.from_offset
        )
    else:
        entries = (
            TimeIndexEntry(timestamp_ms=timestamp_ms, offset=base + offset)
            for timestamp_ms, offset in zip(index.timestamps, index.time_offsets, strict=True)
            if base + offset >= options.from_offset
        )
    yield from _first(entries, options.limit)


def _snapshot(files: ReadOnlyFiles, path: str, kind: str, options: DumpOptions) -> Iterator[Entry]:
    size = files.size(path)
    try:
        offset, states = ProducerStates.from_bytes(read_small(files, path, SNAPSHOT_BYTES_MAX))
    except CorruptCheckpoint as error:
        yield FileEntry(path=path, kind=kind, size_bytes=size)
        yield _whole(path, size, error)
        return
    about = f"{len(states)} producer{'s' if len(states) != 1 else ''} at offset {offset}"
    yield FileEntry(path=path, kind=kind, size_bytes=size, about=about)
    entries = (
        ProducedEntry(
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            last_update_ms=producer.last_update_ms,
            base_sequence=batch.base_sequence,
            last_sequence=batch.last_sequence,
            base_offset=batch.base_offset,
            last_offset=batch.last_offset,
            timestamp_ms=batch.timestamp_ms,
        )
        for producer in states.entries()
        for batch in producer.batches
    )
    yield from _first(entries, options.limit)


def _marker(files: ReadOnlyFiles, path: str, kind: str, options: DumpOptions) -> Iterator[Entry]:
    name, size = path.rpartition("/")[2], files.size(path)
    yield FileEntry(path=path, kind=kind, size_bytes=size)
    try:
        data = read_small(files, path, max(MARKER_BYTES_MAX, NOTE_BYTES_MAX))
    except CorruptCheckpoint as error:
        yield _whole(path, size, error)
        return
    if name == LOCK_FILE:
        holder = data.decode("ascii", "replace").strip()
        yield PropertyEntry(name="last holder", value=holder)
        return
    if name == CUT_FILE:
        yield PropertyEntry(name="cut off", value=data.decode("utf-8", "replace").strip())
        return
    offset = decode_marker(data, otherwise=NO_OFFSET)
    value = str(offset) if offset != NO_OFFSET else "the recovery point: the marker is damaged"
    yield PropertyEntry(name="trusted below offset", value=value)


def _checkpoint(
    files: ReadOnlyFiles, path: str, kind: str, options: DumpOptions
) -> Iterator[Entry]:
    size = files.size(path)
    try:
        name, value = decode_named(read_small(files, path, SMALL_FILE_BYTES_MAX))
    except CorruptCheckpoint as error:
        yield FileEntry(path=path, kind=kind, size_bytes=size)
        yield _whole(path, size, error)
        return
    yield FileEntry(path=path, kind=name, size_bytes=size)
    yield from _first(_checkpoint_entries(value), options.limit)


def _checkpoint_entries(value: object) -> Iterator[Entry]:
    if isinstance(value, CleanShutdown):
        yield PropertyEntry(name="boot_id", value=value.boot_id)
        for partition, left in value.partitions.items():
            yield ClosedEntry(
                topic=partition.topic, partition=partition.partition, **left._asdict()
            )
    elif isinstance(value, PartitionMetadata):
        yield PropertyEntry(name="topic_id", value=value.topic_id)
    elif isinstance(value, MetaProperties):
        for name in ("cluster_id", "broker_id", "incarnation", "boot_id"):
            yield PropertyEntry(name=name, value=str(getattr(value, name)))
    elif isinstance(value, Mapping):
        for partition, offset in value.items():
            yield OffsetEntry(topic=partition.topic, partition=partition.partition, offset=offset)
    elif isinstance(value, tuple):
        for epoch, start_offset in map(EpochEntry._make, value):
            yield EpochStartEntry(epoch=epoch, start_offset=start_offset)


def _first(entries: Iterator[Entry], limit: int | None) -> Iterator[Entry]:
    for shown, entry in enumerate(entries):
        if limit is not None and shown >= limit:
            return
        yield entry


def _reason(error: Exception) -> str:
    return str(error).removeprefix("corrupt batch: ")


_BY_SUFFIX: Final = {
    LOG_SUFFIX: "segment",
    SWAP_SUFFIX: "segment",
    CLEANED_SUFFIX: "segment",
    INDEX_SUFFIX: "index",
    TIME_INDEX_SUFFIX: "timeindex",
    SNAPSHOT_SUFFIX: "snapshot",
}
_BY_MAGIC: Final = {
    b"tailrace-checkpoint ": "checkpoint",
    b"TRIX": "index",
    b"TRTX": "timeindex",
    b"TRPS": "snapshot",
}
_CHECKPOINT_NAMES: Final = {
    kind.file_name
    for kind in (
        *(HIGH_WATERMARKS, RECOVERY_POINTS, LOG_STARTS, CLEANED),
        *(LEADER_EPOCHS, PARTITION_METADATA, META_PROPERTIES, CLEAN_SHUTDOWN),
    )
}
_KINDS: Final[dict[str, Callable[[ReadOnlyFiles, str, str, DumpOptions], Iterator[Entry]]]] = {
    "segment": _segment,
    "index": _index,
    "timeindex": _index,
    "snapshot": _snapshot,
    "checkpoint": _checkpoint,
    "marker": _marker,
}
