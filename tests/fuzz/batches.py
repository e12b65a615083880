"""Batches to test readers with: good ones, hostile ones, and good ones bent out of shape.

`arrow_message` writes the metadata of an Arrow message by hand, so that a test can say anything in
it; `resealed` and `reshaped` make checksums (and sizes) match again, so that damage gets past them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from struct import pack, pack_into, unpack_from
from typing import TypeAlias

import pyarrow as pa

from tailrace.errors import BatchFault
from tailrace.record.build import BatchBuilder, batch_from_columns, compacted_batch
from tailrace.record.codec import Compression, compress, crc32c
from tailrace.record.header import (
    CRC_START,
    HEADER_BYTES,
    HEADERS_BIT,
    PRODUCED_BODY_BYTES_MAX,
    BatchHeader,
    append_time,
    assemble,
    read_header,
)
from tailrace.record.view import BatchView

# By name: a batch, and the fault that a reader must find in it.
Attacks: TypeAlias = dict[str, tuple[bytes, BatchFault]]

# A header for bodies made by hand; the fields that tests do not care about are all "none".
BLANK = BatchHeader(0, 0, -1, 1, 0, 0, 0, 1, 0, 0, -1, 0, 0, -1, -1, 1, 0, -1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """What the metadata of an Arrow record-batch message says, true or not."""

    rows: int
    nodes: Sequence[tuple[int, int]]
    buffers: Sequence[tuple[int, int]]
    version: int = 4
    header_type: int = 3
    body_length: int | None = None
    has_compression: bool = False
    has_variadic_counts: bool = False
    has_custom_metadata: bool = False
    # Bytes of the metadata to overwrite at the end: position and what to put there.
    patches: Sequence[tuple[int, bytes]] = field(default=())


def arrow_message(message: Message, body: bytes) -> bytes:
    """Write the message in the encapsulated form: continuation, size, flatbuffer, body.

    At fixed places: Message vtable 4, table 24; RecordBatch vtable 48, table 64; nodes from 100.
    """
    body_length = len(body) if message.body_length is None else message.body_length
    out = bytearray(100)
    pack_into("<I", out, 0, 24)
    pack_into("<7H", out, 4, 14, 24, 4, 6, 8, 16, 12 if message.has_custom_metadata else 0)
    pack_into("<ihBxIIq", out, 24, 20, message.version, message.header_type, 32, 0, body_length)
    compression_slot = 20 if message.has_compression else 0
    variadic_slot = 24 if message.has_variadic_counts else 0
    pack_into("<7H", out, 48, 14, 28, 8, 4, 16, compression_slot, variadic_slot)
    pack_into("<i", out, 64, 16)
    pack_into("<q", out, 72, message.rows)
    for slot, pairs in ((68, message.nodes), (80, message.buffers)):
        pack_into("<I", out, slot, len(out) - slot)
        out += pack("<I", len(pairs)) + b"".join(pack("<qq", *pair) for pair in pairs) + bytes(4)
    # An empty vector serves as variadic counts and as custom metadata.
    for slot in (36, 88):
        pack_into("<I", out, slot, len(out) - slot)
    out += bytes(4)
    # An empty BodyCompression table has the defaults: lz4, each buffer by itself.
    pack_into("<I", out, 84, len(out) + 4 - 84)
    out += pack("<HHi", 4, 4, 4)
    out += bytes(-len(out) % 8)
    for at, patch in message.patches:
        out[at : at + len(patch)] = patch
    return pack("<Ii", 0xFFFFFFFF, len(out)) + bytes(out) + body


def laid_out(parts: Sequence[bytes], *, alignment: int = 8) -> tuple[list[tuple[int, int]], bytes]:
    """Put buffers one after the other, aligned; return their places and the whole."""
    places: list[tuple[int, int]] = []
    body = bytearray()
    for part in parts:
        places.append((len(body), len(part)))
        body += part + bytes(-len(part) % alignment)
    return places, bytes(body)


def one_row(
    *, value: bytes = b"value", value_offsets: bytes | None = None, timestamp: bytes = bytes(8)
) -> list[bytes]:
    """Return the eight buffers of a body with one row, an empty key and the value given."""
    offsets = pack("<ii", 0, len(value)) if value_offsets is None else value_offsets
    return [b"", bytes(8), b"", b"", offsets, value, b"", timestamp]


def with_body(body: bytes, header: BatchHeader = BLANK) -> bytes:
    """Return a batch whose checksums and sizes match, around any body."""
    padded = body + bytes(-len(body) % 8)
    return assemble(header._replace(body_bytes=len(padded)), padded)


def resealed(data: bytes) -> bytes:
    """Make magic, length and both checksums match, whatever the rest says."""
    out = bytearray(data.ljust(HEADER_BYTES + 8, b"\0"))
    out += bytes(-len(out) % 8)
    out[16:20] = pack("<I", 1)
    out[8:12] = pack("<I", len(out))
    out[20:24] = pack("<I", crc32c(bytes(out[:20])))
    out[24:28] = pack("<I", crc32c(bytes(out[CRC_START:])))
    return bytes(out)


def reshaped(data: bytes) -> bytes:
    """Take what follows the header as the body before compression, and make the sizes match too."""
    out = bytearray(data.ljust(HEADER_BYTES + 8, b"\0"))
    out += bytes(-len(out) % 8)
    body = bytes(out[HEADER_BYTES:])
    codec = Compression(out[28] & 7) if out[28] & 7 <= Compression.ZSTD else Compression.NONE
    stored = bytes(memoryview(compress(codec, body)))
    padding = -len(stored) % 8
    out[28] = out[28] & ~7 | codec
    out[30:32] = bytes([1, padding])
    out[72:76] = pack("<I", len(body))
    return resealed(bytes(out[:HEADER_BYTES]) + stored + bytes(padding))


def samples() -> dict[str, bytes]:
    """Return good batches, small, of every shape that the format has."""
    found: dict[str, bytes] = {}
    for codec in Compression:
        plain = BatchBuilder(codec)
        rich = BatchBuilder(codec)
        for row in range(9):
            plain.append(b"value %d " % row * 3, timestamp_ms=1_700_000_000_000 + row)
            headers = [("trace", b"%d" % row), ("größe", None)] if row % 3 else None
            key = None if row % 4 == 1 else b"key %d" % (row % 4)
            rich.append(None if row % 5 == 2 else b"v" * row * 4, key, row, headers)
        name = codec.name.lower()
        found[f"plain-{name}"] = plain.build(base_offset=1000, leader_epoch=3)
        full = rich.build(producer_id=7, producer_epoch=1, base_sequence=2**31 - 4)
        found[f"rich-{name}"] = full
        view = BatchView(full)
        columns = view.record_batch()
        kept = pa.array([1, 2, 5, 8])
        found[f"compacted-{name}"] = compacted_batch(
            view.header, columns.take(kept), kept, delete_horizon_ms=99
        )
        found[f"emptied-{name}"] = compacted_batch(view.header, columns.slice(0, 0), kept[:0])
    # A compacted batch with one record left was once refused.
    found["compacted-one"] = compacted_batch(
        read_header(found["rich-none"]),
        BatchView(found["rich-none"]).record_batch().slice(3, 1),
        pa.array([3]),
    )
    found["one"] = batch_from_columns(None, pa.array([b"x"]), 5)
    found["tombstone"] = batch_from_columns(pa.array([b"k"]), pa.array([None], pa.binary()), 5)
    found["control"] = batch_from_columns(
        pa.array([b"k"]), pa.array([b"v"]), 5, control=True, transactional=True
    )
    found["append-time"] = append_time(found["rich-none"], 123_456)
    return found


def attacks() -> Attacks:
    """Return batches that lie, checksums matching, and the fault that a reader must find."""
    parts = (_metadata_attacks, _table_attacks, _column_attacks, _buffer_attacks)
    found: Attacks = {}
    for part in parts:
        for name, (message, body) in part().items():
            found[name] = (with_body(arrow_message(message, body)), BatchFault.BAD_BODY)
    return found | _frame_attacks() | _header_list_attacks() | _compression_attacks()


def arrow_with_body_compression() -> bytes:
    """Return a body whose buffers Arrow itself compressed: a megabyte of zeros in a few bytes."""
    schema = BatchView(samples()["one"]).record_batch().schema
    columns = pa.record_batch(
        [pa.nulls(1, pa.binary()), pa.array([bytes(1 << 20)]), pa.array([5])], schema=schema
    )
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(sink, schema, options=options) as writer:
        writer.write_batch(columns)
    reader = pa.ipc.MessageReader.open_stream(sink.getvalue())
    reader.read_next_message()
    return reader.read_next_message().serialize().to_pybytes()


def _with(body: bytes | None = None, **changes: object) -> tuple[Message, bytes]:
    """Return an honest message of one row, but for what is changed."""
    places, whole = laid_out(one_row())
    fields: dict[str, object] = {"rows": 1, "nodes": [(1, 0)] * 3, "buffers": places}
    return Message(**fields | changes), whole if body is None else body  # type: ignore[arg-type]


def _metadata_attacks() -> dict[str, tuple[Message, bytes]]:
    _, body = _with()
    return {
        "version": _with(version=3),
        "schema-message": _with(header_type=1),
        "dictionary-message": _with(header_type=2),
        "body-length-short": _with(body_length=len(body) - 8),
        "body-length-long": _with(body_length=len(body) + 8),
        "hidden-compression": _with(has_compression=True),
        "variadic-counts": _with(has_variadic_counts=True),
        "custom-metadata": _with(has_custom_metadata=True),
        "trailing-garbage": _with(body + b"garbage!" * 8),
    }


def _table_attacks() -> dict[str, tuple[Message, bytes]]:
    """Lies in the flatbuffer itself, at the places that `arrow_message` names."""
    patches = {
        "vtable-outside": (24, pack("<i", 2**31 - 1)),
        "vtable-far": (24, pack("<i", -(2**31))),
        "vtable-odd": (4, pack("<H", 13)),
        "vtable-tiny": (4, pack("<H", 2)),
        "vtable-large": (4, pack("<H", 0xFFFE)),
        "vtable-short": (4, pack("<H", 4)),
        "no-batch": (12, pack("<H", 0)),
        "root-outside": (0, pack("<I", 2**32 - 8)),
        "table-outside": (32, pack("<I", 2**32 - 8)),
        "nodes-outside": (68, pack("<I", 2**31)),
        "nodes-missing": (54, pack("<H", 0)),
    }
    return {name: _with(patches=[patch]) for name, patch in patches.items()}


def _column_attacks() -> dict[str, tuple[Message, bytes]]:
    one = (1, 0)
    return {
        "rows-lie": _with(rows=2),
        "rows-negative": _with(rows=-1),
        "no-nodes": _with(nodes=[]),
        "many-nodes": _with(nodes=[one] * 120),
        "node-length-lies": _with(nodes=[one, (2, 0), one]),
        "node-length-negative": _with(nodes=[(-1, 0)] * 3),
        "null-count-negative": _with(nodes=[one, (1, -1), one]),
        "null-count-large": _with(nodes=[one, (1, 2), one]),
        "null-count-without-bitmap": _with(nodes=[one, (1, 1), one]),
        "null-timestamp": _with_parts({6: bytes(8)}, nodes=[one, one, (1, 1)]),
        "null-count-hides-nulls": _with_parts({3: bytes(8)}),
        "null-count-invents-nulls": _with_parts({3: b"\x01"}, nodes=[one, (1, 1), one]),
        "no-offsets": _with_parts({4: b""}),
        "offset-outside": _with_parts({4: pack("<ii", 0, 2**31 - 1)}),
        "offset-negative": _with_parts({4: pack("<ii", -1, 3)}),
        "offset-falls": _with_parts({4: pack("<ii", 3, 1)}),
    }


def _buffer_attacks() -> dict[str, tuple[Message, bytes]]:
    places, _ = laid_out(one_row())
    *others, (at, _) = places

    def last(offset: int, size: int) -> tuple[Message, bytes]:
        return _with(buffers=[*others, (offset, size)])

    return {
        "few-buffers": _with(buffers=others),
        "buffer-outside": last(at, 8 * 100),
        "buffer-offset-huge": last(2**62, 8),
        "buffer-offset-negative": last(-8, 8),
        "buffer-size-negative": last(at, -8),
        "buffer-size-overflows": last(at, 2**63 - 1),
        "buffers-overlap": last(*places[-3]),
        "buffer-unaligned": last(at - 1, 8),
        "buffer-far-away": _with_parts({}, gap_bytes=64),
        "buffer-short": _with_parts({7: bytes(4)}),
    }


def _frame_attacks() -> Attacks:
    """Lies in the eight bytes before the metadata."""
    good = arrow_message(*_with())
    found = {
        name: (with_body(pack("<Ii", *frame) + good[8:]), BatchFault.BAD_BODY)
        for name, frame in {
            "no-continuation": (0, unpack_from("<i", good, 4)[0]),
            "metadata-negative": (0xFFFFFFFF, -8),
            "metadata-none": (0xFFFFFFFF, 0),
            "metadata-unaligned": (0xFFFFFFFF, 252),
            "metadata-beyond": (0xFFFFFFFF, 4088),
            "metadata-huge": (0xFFFFFFFF, 2**31 - 8),
        }.items()
    }
    found["body-tiny"] = (with_body(bytes(16)), BatchFault.BAD_BODY)
    return found


def _with_parts(
    changed: dict[int, bytes], *, gap_bytes: int = 0, nodes: Sequence[tuple[int, int]] = ()
) -> tuple[Message, bytes]:
    parts = one_row()
    for index, part in changed.items():
        parts[index] = part
    places, body = laid_out(parts)
    if gap_bytes:
        places = [(at + gap_bytes, size) for at, size in places]
        body = bytes(gap_bytes) + body
    return Message(rows=1, nodes=nodes or [(1, 0)] * 3, buffers=places), body


def _header_list_attacks() -> Attacks:
    header = BLANK._replace(attributes=HEADERS_BIT)

    def batch(
        lists: bytes = pack("<ii", 0, 1),
        nodes: Sequence[tuple[int, int]] = ((1, 0), (1, 0), (1, 0), (1, 0)),
        **entry: bytes,
    ) -> tuple[bytes, BatchFault]:
        key = entry.get("key", b"k")
        struct_bitmap, key_bitmap = entry.get("struct_bitmap", b""), entry.get("key_bitmap", b"")
        key_offsets = entry.get("key_offsets", pack("<ii", 0, len(key)))
        value = [b"", pack("<ii", 0, 1), b"v"]
        parts = [
            *one_row(), entry.get("bitmap", b""), lists, struct_bitmap,
            key_bitmap, key_offsets, key, *value,
        ]  # fmt: skip
        places, body = laid_out(parts)
        message = Message(rows=1, nodes=[(1, 0)] * 3 + list(nodes), buffers=places)
        return with_body(arrow_message(message, body), header), BatchFault.BAD_BODY

    one = (1, 0)
    return {
        "header-list-outside": batch(pack("<ii", 0, 2)),
        "header-list-negative": batch(pack("<ii", -1, 1)),
        "header-list-falls": batch(pack("<ii", 1, 0)),
        "header-list-null": batch(nodes=((1, 1), one, one, one), bitmap=b"\0"),
        "header-entry-null": batch(nodes=(one, (1, 1), one, one), struct_bitmap=b"\0"),
        "header-key-null": batch(nodes=(one, one, (1, 1), one), key_bitmap=b"\0"),
        "header-key-not-utf8": batch(key=b"\xff\xfe"),
        "header-key-outside": batch(key_offsets=pack("<ii", 0, 2**30)),
        "header-entries-lie": batch(nodes=(one, (2, 0), one, one)),
        "header-entries-many": batch(nodes=(one, (2**40, 0), (2**40, 0), (2**40, 0))),
    }


def _compression_attacks() -> Attacks:
    """Return frames that hold more or less than the header says, or are no frames."""
    found: Attacks = {}
    good = read_header(samples()["plain-none"])
    body = bytes(samples()["plain-none"][HEADER_BYTES:])
    bad = BatchFault.BAD_COMPRESSION
    for codec in (Compression.LZ4, Compression.ZSTD):
        name = codec.name.lower()
        header = good._replace(attributes=int(codec))
        frame = bytes(memoryview(compress(codec, body)))
        bomb = bytes(memoryview(compress(codec, bytes(1 << 20))))

        def with_stored(
            stored: bytes, body_bytes: int, header: BatchHeader = header
        ) -> tuple[bytes, BatchFault]:
            return assemble(header._replace(body_bytes=body_bytes), stored), bad

        found[f"{name}-longer"] = with_stored(frame, len(body) - 8)
        found[f"{name}-shorter"] = with_stored(frame, len(body) + 8)
        found[f"{name}-bomb"] = with_stored(bomb, len(body))
        found[f"{name}-cut"] = with_stored(frame[:-3], len(body))
        found[f"{name}-garbage"] = with_stored(b"garbage!" * 9, len(body))
        found[f"{name}-trailing"] = with_stored(frame + b"garbage!", len(body))
        found[f"{name}-twice"] = with_stored(frame + frame, len(body))
        announced = bytearray(with_stored(frame, len(body))[0])
        announced[72:76] = pack("<I", PRODUCED_BODY_BYTES_MAX + 8)
        found[f"{name}-announced-bomb"] = (resealed(bytes(announced)), BatchFault.TOO_LARGE)
    body = arrow_with_body_compression()
    found["arrow-bomb"] = (with_body(body), BatchFault.BAD_BODY)
    return found
