"""What a dump is made of: one small value for each thing found in a file.

The names of these fields are the names in `--json` and never change; new ones may be added. Times
are milliseconds since 1970 in UTC, offsets and sizes whole numbers; -1 means "none".
Bytes become `{"utf8": "text"}` when they are text, else `{"base64": "..."}`.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass, fields
from typing import ClassVar, TypeAlias, cast

Json: TypeAlias = "str | int | bool | list[Json] | dict[str, Json] | None"
HeaderPairs: TypeAlias = tuple[tuple[str, bytes | None], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One line of a dump; `type` says which kind of line it is."""

    type: ClassVar[str] = "entry"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEntry(Entry):
    """The beginning of a file or folder: what follows is found in it."""

    type: ClassVar[str] = "file"
    path: str
    kind: str
    size_bytes: int
    about: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DamageEntry(Entry):
    """Bytes [position, end) that cannot be read; position -1 means the whole file."""

    type: ClassVar[str] = "damage"
    path: str
    position: int
    end: int
    reason: str
    base_offset: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchEntry(Entry):
    """A record batch. Its checksum was verified."""

    type: ClassVar[str] = "batch"
    position: int
    length: int
    base_offset: int
    last_offset: int
    record_count: int
    leader_epoch: int
    first_timestamp_ms: int
    max_timestamp_ms: int
    compression: str
    body_bytes: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    delete_horizon_ms: int
    flags: tuple[str, ...]
    crc: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordEntry(Entry):
    """A record. A value of null is a tombstone."""

    type: ClassVar[str] = "record"
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: HeaderPairs


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexEntry(Entry):
    """The batch with this base offset begins at this byte of the segment."""

    type: ClassVar[str] = "index"
    offset: int
    position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeIndexEntry(Entry):
    """Every record with a later timestamp comes after this offset."""

    type: ClassVar[str] = "timeindex"
    timestamp_ms: int
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducedEntry(Entry):
    """One of the last batches of an idempotent producer."""

    type: ClassVar[str] = "producer"
    producer_id: int
    producer_epoch: int
    last_update_ms: int
    base_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int
    timestamp_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetEntry(Entry):
    """An offset of a partition, in a checkpoint."""

    type: ClassVar[str] = "offset"
    topic: str
    partition: int
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochStartEntry(Entry):
    """Where a leader epoch began."""

    type: ClassVar[str] = "epoch"
    epoch: int
    start_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PropertyEntry(Entry):
    """A name and its value."""

    type: ClassVar[str] = "property"
    name: str
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedEntry(Entry):
    """How a partition was left by a clean shutdown."""

    type: ClassVar[str] = "closed"
    topic: str
    partition: int
    log_start: int
    log_end: int
    active_base: int
    active_size_bytes: int
    # Over all segments; None in a marker of an earlier release.
    segments_crc: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentEntry(Entry):
    """A segment in the folder of a partition; `next_offset` is where the one after it begins."""

    type: ClassVar[str] = "segment"
    name: str
    size_bytes: int
    first_offset: int
    next_offset: int
    batches: int
    records: int
    max_timestamp_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class InsideEntry(Entry):
    """Another file in a folder."""

    type: ClassVar[str] = "inside"
    name: str
    kind: str
    size_bytes: int
    about: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionEntry(Entry):
    """A partition in a data folder; -1 where no checkpoint says it."""

    type: ClassVar[str] = "partition"
    name: str
    segments: int
    size_bytes: int
    first_offset: int
    log_end: int
    recovery_point: int
    high_watermark: int
    topic_id: str


def as_json(entry: Entry) -> dict[str, Json]:
    """The entry as a JSON object, its type first."""
    found: dict[str, Json] = {"type": entry.type}
    for each in fields(entry):
        found[each.name] = _json(getattr(entry, each.name))
    return found


def _json(value: object) -> Json:
    if isinstance(value, bytes):
        return _bytes_json(value)
    if isinstance(value, tuple):
        return [_json(each) for each in value]
    return cast("Json", value)


def _bytes_json(data: bytes) -> Json:
    try:
        return {"utf8": data.decode("utf-8")}
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode("ascii")}
