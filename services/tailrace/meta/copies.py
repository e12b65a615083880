"""A broker's own copy of the cluster's metadata, as bytes: for the day on which the store is lost.

The copy has what the store said of itself when it was last believed (the witness), all keys of the
store but the histories, and the last order that the broker obeyed for each of its replicas. An
order may be newer than the keys: the keys are copied now and then, an order is noted at once.

The bytes are one line that names the format, one line of JSON, and a line with the CRC-32C of all
before it. What does not check is CorruptCheckpoint, never a part of a copy. This module is pure.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from tailrace.errors import CorruptCheckpoint
from tailrace.meta.fields import Fields, parse_json
from tailrace.meta.keys import Kind, PartitionState, decode, encode, place_of
from tailrace.meta.lineage import Witness
from tailrace.model import BrokerId, TopicId, TopicPartition
from tailrace.record.codec import crc32c

FILE_NAME: Final = "metadata-copy"
# The witness alone, in the same format: small, and newer than the copy.
WITNESS_NAME: Final = "store-witness"
# The last copy from before this broker followed others to a store that it did not believe.
FORMER_NAME: Final = "metadata-copy.former"
FORMAT: Final = b"tailrace-metadata-copy 1\n"
# A file beyond this is not read: 100,000 partitions take about 60 MB.
COPY_BYTES_MAX: Final = 256 << 20
_CRC_LINE: Final = "crc32c {:08x}\n"
_CRC_LINE_BYTES: Final = len(_CRC_LINE.format(0))


class CopiedEntry(NamedTuple):
    """One key of the store with its value and revisions."""

    key: str
    value: bytes
    create_revision: int
    mod_revision: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataCopy:
    """All keys of a store at `revision`, but the histories, and which store that was."""

    witness: Witness
    revision: int
    taken_ms: int
    entries: tuple[CopiedEntry, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaOrderRecord:
    """The last order that a broker obeyed for one of its replicas.

    `state` is what the broker knows now: a leader knows its ISR better than any order.
    `revision` is that of the state's key in the store.
    """

    partition: TopicPartition
    topic_id: TopicId
    state: PartitionState
    revision: int
    replicas: tuple[BrokerId, ...]
    config: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredMetadata:
    """What the file holds."""

    copy: MetadataCopy | None = None
    orders: Mapping[TopicPartition, ReplicaOrderRecord] = field(default_factory=dict)


def encode_copy(stored: StoredMetadata) -> bytes:
    """Return the bytes of the file."""
    fields: dict[str, object] = {"orders": [_write_order(each) for each in stored.orders.values()]}
    if stored.copy is not None:
        fields["copy"] = write_copy(stored.copy)
    body = FORMAT + json.dumps(fields, separators=(",", ":")).encode("ascii") + b"\n"
    return body + _CRC_LINE.format(crc32c(body)).encode("ascii")


def decode_copy(data: bytes, *, where: str = FILE_NAME) -> StoredMetadata:
    """Return what the bytes hold; CorruptCheckpoint when they are not what was written."""
    if len(data) > COPY_BYTES_MAX:
        raise CorruptCheckpoint(f"{where}: {len(data)} bytes are more than {COPY_BYTES_MAX}")
    body, line = data[:-_CRC_LINE_BYTES], data[-_CRC_LINE_BYTES:]
    if not body.startswith(FORMAT):
        raise CorruptCheckpoint(f"{where}: this is not a copy of metadata in a known format")
    if line != _CRC_LINE.format(crc32c(body)).encode("ascii"):
        raise CorruptCheckpoint(f"{where}: its checksum does not match")
    fields = Fields(where, parse_json(body[len(FORMAT) :], where))
    orders = [_read_order(each) for each in fields.objects("orders")]
    return StoredMetadata(
        copy=read_copy(fields.fields("copy")) if fields.has("copy") else None,
        orders={each.partition: each for each in orders},
    )


def brokers_of(stored: StoredMetadata) -> set[BrokerId]:
    """Return the brokers that were registered at the time of the copy, or have replicas."""
    known = {broker for order in stored.orders.values() for broker in order.replicas}
    for entry in () if stored.copy is None else stored.copy.entries:
        place = place_of(entry.key)
        if place is not None and place.kind is Kind.BROKER:
            known.add(BrokerId(place.number))
    return known


def write_copy(copy: MetadataCopy) -> dict[str, object]:
    """Return a copy as a JSON object."""
    witness = copy.witness
    return {
        "witness": {name: getattr(witness, name) for name in witness.__dataclass_fields__},
        "revision": copy.revision,
        "taken_ms": copy.taken_ms,
        "entries": [
            [key, value.decode("utf-8", "surrogateescape"), created, modified]
            for key, value, created, modified in copy.entries
        ],
    }


def read_copy(fields: Fields) -> MetadataCopy:
    """Return the copy that a JSON object holds."""
    return MetadataCopy(
        witness=_read_witness(fields.fields("witness")),
        revision=fields.integer("revision"),
        taken_ms=fields.integer("taken_ms"),
        entries=tuple(_read_entry(fields.where, each) for each in fields.lists("entries")),
    )


def _read_witness(fields: Fields) -> Witness:
    return Witness(
        cluster_id=fields.text("cluster_id"),
        store_id=fields.text("store_id"),
        generation=fields.integer("generation"),
        revision=fields.integer("revision"),
        controller_epoch=fields.integer("controller_epoch"),
        token=fields.text("token"),
        stamp=fields.integer("stamp") if fields.has("stamp") else 0,
    )


def _read_entry(where: str, found: list[object]) -> CopiedEntry:
    match found:
        case [str(key), str(value), int(created), int(modified)]:
            data = value.encode("utf-8", "surrogateescape")
            return CopiedEntry(key, data, created, modified)
    raise CorruptCheckpoint(f"{where}: {str(found)[:80]} is not an entry of a store")


def _write_order(order: ReplicaOrderRecord) -> dict[str, object]:
    return {
        "topic": order.partition.topic,
        "partition": order.partition.partition,
        "topic_id": order.topic_id,
        "state": encode(order.state).decode("ascii"),
        "revision": order.revision,
        "replicas": list(order.replicas),
        "config": dict(order.config),
    }


def _read_order(fields: Fields) -> ReplicaOrderRecord:
    state = fields.text("state").encode("utf-8", "surrogateescape")
    return ReplicaOrderRecord(
        partition=TopicPartition(fields.text("topic"), fields.integer("partition")),
        topic_id=TopicId(fields.text("topic_id")),
        state=decode(PartitionState, state, key=f"{fields.where}: state"),
        revision=fields.integer("revision"),
        replicas=fields.brokers("replicas"),
        config=fields.settings("config"),
    )
