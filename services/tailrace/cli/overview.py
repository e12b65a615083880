"""An overview of the folder of a partition or of a whole data folder.

Reads only. Of segments in a partition's folder the headers of all batches are read, of those in a
data folder only names and sizes, so that an overview of thousands of partitions is quick.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tailrace.cli.dump import DumpOptions, NotOurs, damage_entry, dump_file, kind_of
from tailrace.cli.entries import (
    BatchEntry,
    DamageEntry,
    Entry,
    FileEntry,
    InsideEntry,
    PartitionEntry,
    PropertyEntry,
    RecordEntry,
    SegmentEntry,
)
from tailrace.cli.formatting import counted
from tailrace.errors import CorruptCheckpoint
from tailrace.log.audit.inspection import Damage, base_in_name, scan
from tailrace.log.audit.overlay import ReadOnlyFiles
from tailrace.log.audit.verification import is_data_folder, is_partition_folder, partition_names
from tailrace.log.checkpoints import (
    CLEAN_SHUTDOWN,
    HIGH_WATERMARKS,
    PARTITION_METADATA,
    RECOVERY_POINTS,
    CleanShutdown,
    PartitionMetadata,
    decode,
    decode_named,
)
from tailrace.log.checkpoints import Kind as CheckpointKind
from tailrace.log.segment import LOG_SUFFIX
from tailrace.model import Offset, TopicPartition


def dump(files: ReadOnlyFiles, path: str, options: DumpOptions) -> Iterator[Entry]:
    """Everything in a file, or an overview of a folder; raises NotOurs or OSError.

    Of the folder of a partition, records or what comes from an offset on is shown itself.
    """
    if not files.is_folder(path):
        yield from dump_file(files, path, options)
    elif is_partition_folder(files, path):
        if options.records or options.from_offset:
            yield from _all_segments(files, path, options)
        else:
            yield from _partition_folder(files, path, options)
    elif is_data_folder(files, path):
        yield from _data_folder(files, path, options)
    else:
        raise NotOurs(f"{path} is neither a data folder nor the folder of a partition")


def _all_segments(files: ReadOnlyFiles, path: str, options: DumpOptions) -> Iterator[Entry]:
    """The segments of a partition one after the other; those wholly below are not opened."""
    names = [name for name in files.list(path) if name.endswith(LOG_SUFFIX)]
    left = options.limit
    for number, name in enumerate(names):
        after = base_in_name(names[number + 1]) if number + 1 < len(names) else None
        if after is not None and after <= options.from_offset:
            continue
        now = DumpOptions(records=options.records, from_offset=options.from_offset, limit=left)
        shown = 0
        for entry in dump_file(files, f"{path}/{name}", now):
            shown += isinstance(entry, BatchEntry | RecordEntry)
            yield entry
        if left is not None:
            left -= shown
            if left <= 0:
                return


def _partition_folder(files: ReadOnlyFiles, path: str, options: DumpOptions) -> Iterator[Entry]:
    names = files.list(path)
    size_bytes = sum(files.size(f"{path}/{name}") for name in names)
    about = counted(sum(name.endswith(LOG_SUFFIX) for name in names), "segment")
    yield FileEntry(path=path, kind="partition", size_bytes=size_bytes, about=about)
    kinds = {name: _kind(files, f"{path}/{name}") for name in names}
    names.sort(key=lambda name: kinds[name] != "segment")
    for name in names[: options.limit]:
        if kinds[name] == "segment":
            yield from _segment_overview(files, f"{path}/{name}", name)
        else:
            yield _overview(files, f"{path}/{name}", name, kinds[name])


def _kind(files: ReadOnlyFiles, path: str) -> str:
    try:
        return kind_of(files, path)
    except (NotOurs, OSError):
        return "?"


def _segment_overview(files: ReadOnlyFiles, path: str, name: str) -> Iterator[Entry]:
    size = files.size(path)
    first, next_offset, batches, records, newest = -1, base_in_name(name) or 0, 0, 0, -1
    damage: Damage | None = None
    file = files.open(path)
    try:
        for found in scan(file, size, checksums=False):
            if isinstance(found, Damage):
                damage = damage or found
                continue
            header = found.header
            first = header.base_offset if first < 0 else first
            next_offset = header.next_offset
            batches += 1
            records += header.record_count
            newest = max(newest, header.max_timestamp_ms)
    finally:
        file.close()
    yield SegmentEntry(
        name=name,
        size_bytes=size,
        first_offset=first,
        next_offset=next_offset,
        batches=batches,
        records=records,
        max_timestamp_ms=newest,
    )
    if damage is not None:
        yield damage_entry(path, damage)


def _overview(files: ReadOnlyFiles, path: str, name: str, kind: str) -> Entry:
    """One line for a small file: how much it holds, or what is wrong with it."""
    if kind == "?":
        about = "not a file of a log"
        return InsideEntry(name=name, kind=kind, size_bytes=files.size(path), about=about)
    count, told = 0, ""
    for entry in dump_file(files, path, DumpOptions()):
        count += not isinstance(entry, FileEntry)
        if isinstance(entry, DamageEntry):
            told = f"damaged: {entry.reason}"
        elif isinstance(entry, PropertyEntry) and kind == "marker":
            told = entry.value
    about = told or counted(count, "line")
    return InsideEntry(name=name, kind=kind, size_bytes=files.size(path), about=about)


def _data_folder(files: ReadOnlyFiles, path: str, options: DumpOptions) -> Iterator[Entry]:
    names = partition_names(files, path)
    about = counted(len(names), "partition")
    yield FileEntry(path=path, kind="data", size_bytes=-1, about=about)
    for name in files.list(path):
        inside = f"{path}/{name}"
        if name not in names and not files.is_folder(inside):
            yield _overview(files, inside, name, _kind(files, inside))
    points = _offsets(files, path, RECOVERY_POINTS)
    watermarks = _offsets(files, path, HIGH_WATERMARKS)
    clean = _stored(files, f"{path}/{CLEAN_SHUTDOWN.file_name}")
    ends: Mapping[TopicPartition, Offset] = {}
    if isinstance(clean, CleanShutdown):
        ends = {partition: each.log_end for partition, each in clean.partitions.items()}
    for name in names[: options.limit]:
        yield _partition_entry(files, path, name, points=points, watermarks=watermarks, ends=ends)


def _partition_entry(
    files: ReadOnlyFiles,
    path: str,
    name: str,
    *,
    points: Mapping[TopicPartition, Offset],
    watermarks: Mapping[TopicPartition, Offset],
    ends: Mapping[TopicPartition, Offset],
) -> Entry:
    folder = f"{path}/{name}"
    segments = [each for each in files.list(folder) if each.endswith(LOG_SUFFIX)]
    partition = TopicPartition.parse(name) or TopicPartition(name, 0)
    metadata = _stored(files, f"{folder}/{PARTITION_METADATA.file_name}")
    first = base_in_name(segments[0]) if segments else None
    return PartitionEntry(
        name=name,
        segments=len(segments),
        size_bytes=sum(files.size(f"{folder}/{each}") for each in segments),
        first_offset=-1 if first is None else first,
        log_end=ends.get(partition, -1),
        recovery_point=points.get(partition, -1),
        high_watermark=watermarks.get(partition, -1),
        topic_id=metadata.topic_id if isinstance(metadata, PartitionMetadata) else "?",
    )


def _offsets(
    files: ReadOnlyFiles, path: str, kind: CheckpointKind[Mapping[TopicPartition, Offset]]
) -> Mapping[TopicPartition, Offset]:
    try:
        return decode(kind, files.read(f"{path}/{kind.file_name}"))
    except (OSError, CorruptCheckpoint):
        return {}


def _stored(files: ReadOnlyFiles, path: str) -> object:
    try:
        return decode_named(files.read(path))[1]
    except (OSError, CorruptCheckpoint):
        return None
