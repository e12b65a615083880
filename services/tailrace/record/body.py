"""The body of a record batch: one Arrow IPC record-batch message of a fixed schema.

Turns columns into the message and an untrusted message back into columns. Knows nothing of
headers of batches, checksums or compression.

Arrow's own reader trusts much of what a message says: it would decompress buffers to whatever
size they claim, and it never looks at offsets. So the metadata is first read here, by hand and
bounds-checked, and what this format does not use is refused; then Arrow reads the message, and
then Arrow checks every offset, null count and UTF-8 string of the columns.
Invariant: `decode` returns columns that are safe to touch in any way, or raises `CorruptBatch`.
It copies nothing and allocates a bounded number of small objects.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from functools import cache
from itertools import accumulate
from struct import Struct
from struct import error as StructError  # noqa: N812 - it is a class, named like a module.
from typing import Any, Final, NamedTuple, NoReturn, TypeAlias, cast

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.ipc

from tailrace.errors import BatchFault, CorruptBatch

# The stubs of pyarrow want an argument that a column of any type does not have.
Array: TypeAlias = "pa.Array[Any]"

HEADER_KEY: Final = pa.field("key", pa.utf8(), nullable=False)
HEADER_VALUE: Final = pa.field("value", pa.binary())
HEADER_ENTRY: Final = pa.struct([HEADER_KEY, HEADER_VALUE])
HEADERS_TYPE: Final = pa.list_(pa.field("item", HEADER_ENTRY, nullable=False))

# A message of all columns has 600 bytes of metadata; the rest is room for other writers.
METADATA_BYTES_MAX: Final = 4096
# Writers align buffers to 8 or to 64 bytes; a larger gap holds something that is not ours.
GAP_BYTES_MAX: Final = 63
# How Arrow's writer aligns the buffers of a message unless told otherwise.
_BUFFER_ALIGNMENT: Final = 8


@cache
def body_schema(*, headers: bool, compacted: bool) -> pa.Schema:
    """Return the schema of a body; the two attribute bits of the batch choose its columns."""
    fields: list[pa.Field[Any]] = [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("timestamp", pa.int64(), nullable=False),
    ]
    if headers:
        fields.append(pa.field("headers", HEADERS_TYPE, nullable=False))
    if compacted:
        fields.append(pa.field("offset_delta", pa.int32(), nullable=False))
    return pa.schema(fields)


def encode(columns: pa.RecordBatch) -> pa.Buffer:
    """Return the message of columns that have one of the schemas of `body_schema`."""
    return columns.serialize()


class Blobs(NamedTuple):
    """A binary column without nulls, as pieces to be joined: its offsets, and what is in it."""

    offsets: bytes | pa.Buffer
    parts: Sequence[bytes | pa.Buffer]
    size: int

    @classmethod
    def of_list(cls, values: Sequence[bytes]) -> Blobs:
        # By way of a list: `array` takes one twice as fast as what is worked out item by item.
        ends = array("i", [0, *accumulate(map(len, values))])
        return cls(ends.tobytes(), values, ends[-1])

    @classmethod
    def of_column(cls, column: Array) -> Blobs:
        """Of a binary column that has a row and no nulls."""
        _, offsets, data = column.buffers()
        ends: Array = pa.Array.from_buffers(
            pa.int32(), len(column) + 1, [None, offsets], offset=column.offset
        )
        first, last = ends[0].as_py(), ends[-1].as_py()
        if first:
            ends = pc.subtract(ends, pa.scalar(first, pa.int32()))
        parts = [data.slice(first, last - first)] if data is not None else []
        return cls(fixed_width(ends), parts, last - first)


def fixed_width(column: Array) -> pa.Buffer:
    """The bytes of an integer column without nulls."""
    width = column.type.bit_width // 8
    data = cast("pa.Buffer", column.buffers()[1])
    return data.slice(column.offset * width, len(column) * width)


def plain_message(
    count: int, keys: Blobs | None, values: Blobs, times: bytes | pa.Buffer
) -> list[bytes | pa.Buffer]:
    """Return the message of records without headers and nulls, as pieces to be joined.

    All of them have a key, or none (None). Joined the pieces are what `encode` returns for the same
    columns, byte for byte. Arrow would copy every value twice, into a column and into the message;
    here joining is the only copy.
    """
    key_bytes = keys.size if keys else 0
    head, places = _plain_head(count, key_bytes, values.size, has_keys=keys is not None)
    offsets_pad = bytes(-4 * (count + 1) % _BUFFER_ALIGNMENT)
    pieces: list[bytes | pa.Buffer] = [bytes(head)]
    if keys:
        pad = bytes(-key_bytes % _BUFFER_ALIGNMENT)
        pieces += (keys.offsets, offsets_pad, *keys.parts, pad)
    else:
        # A bitmap that says that there are none, and offsets that are all zero.
        pieces.append(bytes(places[8]))
    pieces += (values.offsets, offsets_pad, *values.parts)
    return [*pieces, bytes(-values.size % _BUFFER_ALIGNMENT), times]


def _plain_head(
    count: int, key_bytes: int, value_bytes: int, *, has_keys: bool
) -> tuple[bytearray, list[int]]:
    """Frame and metadata of a plain message, and place and size of each of its eight buffers."""
    bitmap_bytes, offsets_bytes = (0 if has_keys else (count + 7) // 8), 4 * (count + 1)
    # Bitmap, offsets and bytes of keys and of values, bitmap and times.
    sizes = (bitmap_bytes, offsets_bytes, key_bytes, 0, offsets_bytes, value_bytes, 0, 8 * count)
    places: list[int] = []
    end = 0
    for size in sizes:
        places += (end, size)
        end += size + -size % _BUFFER_ALIGNMENT
    template = _plain_template()
    head = bytearray(template.message)
    _I64.pack_into(head, template.body_bytes_at, end)
    _I64.pack_into(head, template.rows_at, count)
    nulls = 0 if has_keys else count
    _PLAIN_NODES.pack_into(head, template.nodes_at, count, nulls, count, 0, count, 0)
    _PLAIN_BUFFERS.pack_into(head, template.buffers_at, *places)
    return head, places


class PlainPlaces(NamedTuple):
    """Where the columns of a plain message are, in the buffer in which it was found."""

    # Bitmap and offsets of keys of which there are none, all zero, are before those of the values.
    has_keys: bool
    head: int
    key_offsets: int
    key_bytes: int
    value_offsets: int
    value_bytes: int
    times: int


def plain_places(data: memoryview, start: int, size: int, count: int) -> PlainPlaces | None:
    """Where the columns of a message are whose head is, byte for byte, what we would write.

    None for all others. What is in the columns is not looked at, but they lie inside.
    """
    parts = _plain_parts()
    if parts is None or size < parts.numbers.size:
        return None
    fixed, numbers = parts
    # fmt: off
    (
        constant_0, body_bytes, constant_1, rows, constant_2,
        p0, bitmap_bytes, p1, s1, p2, key_bytes, p3, s3, p4, s4, p5, value_bytes, p6, s6, p7, s7,
        constant_3, n0, nulls, n2, n3, n4, n5, constant_4,
    ) = numbers.unpack_from(data, start)
    # fmt: on
    if (constant_0, constant_1, constant_2, constant_3, constant_4) != fixed:
        return None
    has_keys = not bitmap_bytes
    offsets_bytes = 4 * count + 4
    offsets_room = offsets_bytes + 7 & ~7
    e1 = 0 if has_keys else (count + 63 >> 6) << 3
    e2 = e1 + offsets_room
    e4 = e2 + (key_bytes + 7 & ~7)
    e5 = e4 + offsets_room
    e7 = e5 + (value_bytes + 7 & ~7)
    if (
        key_bytes < 0
        or value_bytes < 0
        or (p0, p1, p2, p3, p4, p5, p6, p7) != (0, e1, e2, e4, e4, e5, e7, e7)
        or (s1, s3, s4, s6, s7) != (offsets_bytes, 0, offsets_bytes, 0, 8 * count)
        or (rows, n0, n2, n3, n4, n5) != (count, count, count, 0, count, 0)
        or not body_bytes == e7 + 8 * count == size - numbers.size
        or (has_keys and nulls)
        or not (has_keys or (nulls == count and bitmap_bytes == count + 7 >> 3 and not key_bytes))
    ):
        return None
    head = start + numbers.size
    return PlainPlaces(has_keys, head, head + e1, key_bytes, head + e4, value_bytes, head + e7)


class _PlainParts(NamedTuple):
    """What never differs in the head of a plain message, and how to take all of it apart."""

    fixed: tuple[bytes, ...]
    numbers: Struct


@cache
def _plain_parts() -> _PlainParts | None:
    """In this order: the bytes of the body, the rows, place and size of each buffer, the nodes.

    A part that never differs stands before each of them, and one at the end. None: this version of
    Arrow has another order, and every message is parsed.
    """
    template = _plain_template()
    whole = template.message
    places = (
        (template.body_bytes_at, _I64.size),
        (template.rows_at, _I64.size),
        (template.buffers_at, _PLAIN_BUFFERS.size),
        (template.nodes_at, _PLAIN_NODES.size),
    )
    fixed: list[bytes] = []
    formats: list[str] = []
    end = 0
    for at, size in places:
        if at < end:
            return None
        fixed.append(whole[end:at])
        formats.append(f"{at - end}s{size // _I64.size}q")
        end = at + size
    fixed.append(whole[end:])
    return _PlainParts(tuple(fixed), Struct("<" + "".join(formats) + f"{len(whole) - end}s"))


class _PlainTemplate(NamedTuple):
    """Frame and metadata of a message that `plain_message` makes, and where its numbers are."""

    message: bytes
    body_bytes_at: int
    rows_at: int
    nodes_at: int
    buffers_at: int


@cache
def _plain_template() -> _PlainTemplate:
    """Arrow writes it once; only numbers in it differ from batch to batch."""
    columns: list[Array] = [
        pa.nulls(1, pa.binary()),
        pa.array([b"x"], pa.binary()),
        pa.array([0], pa.int64()),
    ]
    schema = body_schema(headers=False, compacted=False)
    message = encode(pa.RecordBatch.from_arrays(columns, schema=schema)).to_pybytes()
    _, metadata_bytes = _FRAME.unpack_from(message, 0)
    first = _FRAME.size
    metadata = message[first : first + metadata_bytes]
    table = _U32.unpack_from(metadata, 0)[0]
    slots = _slots(metadata, table, _MESSAGE_BODY_LENGTH + 1)
    batch = _follow(metadata, table, slots[_MESSAGE_HEADER])
    fields = _slots(metadata, batch, _BATCH_BUFFERS + 1)
    # Vectors begin with how many items they have.
    nodes, buffers = (
        first + _follow(metadata, batch, fields[each]) + _U32.size
        for each in (_BATCH_NODES, _BATCH_BUFFERS)
    )
    return _PlainTemplate(
        message[: first + metadata_bytes],
        first + table + slots[_MESSAGE_BODY_LENGTH],
        first + batch + fields[_BATCH_LENGTH],
        nodes,
        buffers,
    )


def decode(
    message: pa.Buffer, *, record_count: int, headers: bool, last_delta_max: int | None = None
) -> pa.RecordBatch:
    """Return the columns of an untrusted message, without copying them.

    With `last_delta_max` there is a column of offset deltas, none of which may exceed it.
    """
    layout = _layout(headers=headers, compacted=last_delta_max is not None)
    try:
        _check_message(message, layout, record_count)
        columns = pa.ipc.read_record_batch(message, layout.schema)
        columns.validate(full=True)
    except StructError as error:
        raise CorruptBatch(BatchFault.BAD_BODY, "metadata points outside itself") from error
    except (OSError, pa.ArrowException) as error:
        raise CorruptBatch(BatchFault.BAD_BODY, f"{error}") from error
    if last_delta_max is not None:
        problem = deltas_problem(columns.column("offset_delta"), last_delta_max)
        if problem is not None:
            _refuse(problem)
    return columns


def deltas_problem(deltas: Array, last_delta_max: int) -> str | None:
    """Say what is wrong with the offset deltas of a compacted batch, or None."""
    if not len(deltas):
        return None
    if deltas.null_count:
        return "offset deltas that are null"
    if deltas[0].as_py() < 0 or deltas[-1].as_py() > last_delta_max:
        return f"offset deltas outside of 0 to {last_delta_max}"
    if not pc.all(pc.greater(deltas[1:], deltas[:-1]), min_count=0).as_py():
        return "offset deltas that do not rise"
    return None


class _Layout(NamedTuple):
    """What the metadata of a message with one of our schemas must look like."""

    schema: pa.Schema
    # The columns flattened in pre-order: may this node have nulls?
    nullable: tuple[bool, ...]
    # Whether the node's length is that of the batch, or free (entries of header lists).
    is_row: tuple[bool, ...]
    # Per buffer: its node and what is in it.
    buffers: tuple[tuple[int, int], ...]
    nodes_struct: Struct
    buffers_struct: Struct


# What a buffer holds. For fixed-width data the number is its bytes per row.
_VALIDITY: Final = -1
_OFFSETS: Final = -2
_BLOB: Final = 0

# Positions in the flatbuffers tables Message and RecordBatch of Arrow's format/Message.fbs.
_MESSAGE_VERSION, _MESSAGE_TYPE, _MESSAGE_HEADER, _MESSAGE_BODY_LENGTH = range(4)
_BATCH_LENGTH, _BATCH_NODES, _BATCH_BUFFERS = range(3)
_VERSION_5: Final = 4
_TYPE_RECORD_BATCH: Final = 3
_CONTINUATION: Final = 0xFFFFFFFF
_VTABLE_HEAD_BYTES: Final = 4
_VTABLE_BYTES_MAX: Final = _VTABLE_HEAD_BYTES + 2 * 16

_FRAME: Final = Struct("<Ii")
_U8: Final = Struct("<B")
_I16: Final = Struct("<h")
_I32: Final = Struct("<i")
_U32: Final = Struct("<I")
_I64: Final = Struct("<q")
_VTABLE_HEAD: Final = Struct("<HH")
# Of each column its rows and its nulls; of each buffer its place and its size.
_PLAIN_NODES: Final = Struct("<6q")
_PLAIN_BUFFERS: Final = Struct("<16q")
_VTABLES: Final = {2 * n: Struct(f"<{n}H") for n in range(17)}


@cache
def _layout(*, headers: bool, compacted: bool) -> _Layout:
    schema = body_schema(headers=headers, compacted=compacted)
    nodes: list[tuple[bool, bool]] = []
    buffers: list[tuple[int, int]] = []

    def visit(field: pa.Field[Any], *, is_row: bool) -> None:
        node = len(nodes)
        nodes.append((field.nullable, is_row))
        kind = field.type
        buffers.append((node, _VALIDITY))
        if pa.types.is_integer(kind):
            buffers.append((node, kind.bit_width // 8))
        elif not pa.types.is_struct(kind):
            buffers.append((node, _OFFSETS))
        if pa.types.is_binary(kind) or pa.types.is_string(kind):
            buffers.append((node, _BLOB))
        for child in range(kind.num_fields):
            visit(kind.field(child), is_row=False)

    for field in schema:
        visit(field, is_row=True)
    return _Layout(
        schema=schema,
        nullable=tuple(nullable for nullable, _ in nodes),
        is_row=tuple(is_row for _, is_row in nodes),
        buffers=tuple(buffers),
        nodes_struct=Struct(f"<{2 * len(nodes)}q"),
        buffers_struct=Struct(f"<{2 * len(buffers)}q"),
    )


def _check_message(message: pa.Buffer, layout: _Layout, record_count: int) -> None:
    """Refuse a message that is not the one record batch that the layout describes."""
    continuation, metadata_bytes = _FRAME.unpack_from(message, 0)
    body_at = _FRAME.size + metadata_bytes
    if continuation != _CONTINUATION or not 0 < metadata_bytes <= METADATA_BYTES_MAX or body_at % 8:
        _refuse("not an Arrow message")
    if body_at > message.size:
        _refuse("metadata is cut short")
    metadata = message.slice(_FRAME.size, metadata_bytes).to_pybytes()
    table = _U32.unpack_from(metadata, 0)[0]
    slots = _slots(metadata, table, _MESSAGE_BODY_LENGTH + 1)
    if (
        _scalar(_I16, metadata, table, slots[_MESSAGE_VERSION]) != _VERSION_5
        or _scalar(_U8, metadata, table, slots[_MESSAGE_TYPE]) != _TYPE_RECORD_BATCH
    ):
        _refuse("not a record batch of Arrow format version 5")
    body_bytes = _scalar(_I64, metadata, table, slots[_MESSAGE_BODY_LENGTH])
    if body_bytes != message.size - body_at:
        _refuse(f"{message.size - body_at} bytes follow the metadata instead of {body_bytes}")

    table = _follow(metadata, table, slots[_MESSAGE_HEADER])
    slots = _slots(metadata, table, _BATCH_BUFFERS + 1)
    row_count = _scalar(_I64, metadata, table, slots[_BATCH_LENGTH])
    if row_count != record_count:
        _refuse(f"{row_count} rows instead of {record_count}")
    nodes = _vector(layout.nodes_struct, metadata, table, slots[_BATCH_NODES])
    buffers = _vector(layout.buffers_struct, metadata, table, slots[_BATCH_BUFFERS])
    _check_nodes(layout, nodes, record_count)
    _check_buffers(layout, nodes, buffers, message.slice(body_at))


def _slots(metadata: bytes, table: int, known: int) -> tuple[int, ...]:
    """Return where in a flatbuffers table its first `known` fields are; 0 for an absent one.

    A field beyond those (body compression, variadic counts, custom metadata) must be absent.
    """
    vtable = table - _I32.unpack_from(metadata, table)[0]
    if vtable < 0:
        _refuse("a table points outside the metadata")
    vtable_bytes, _ = _VTABLE_HEAD.unpack_from(metadata, vtable)
    if not _VTABLE_HEAD_BYTES <= vtable_bytes <= _VTABLE_BYTES_MAX or vtable_bytes % 2:
        _refuse("a table of an impossible size")
    entries = _VTABLES[vtable_bytes - _VTABLE_HEAD_BYTES]
    slots: tuple[int, ...] = entries.unpack_from(metadata, vtable + _VTABLE_HEAD_BYTES)
    if any(slots[known:]):
        _refuse("compression or another feature of Arrow that this format does not have")
    return slots + (0,) * (known - len(slots))


def _scalar(kind: Struct, metadata: bytes, table: int, slot: int) -> int:
    return int(kind.unpack_from(metadata, table + slot)[0]) if slot else 0


def _follow(metadata: bytes, table: int, slot: int) -> int:
    """Return the position that a field which refers to a table or vector points to."""
    if not slot:
        _refuse("a part of the message is missing")
    at = table + slot
    return at + int(_U32.unpack_from(metadata, at)[0])


def _vector(items: Struct, metadata: bytes, table: int, slot: int) -> tuple[int, ...]:
    """Return a vector of pairs of 64-bit integers, whose number the layout fixes, as one tuple."""
    at = _follow(metadata, table, slot)
    count = _U32.unpack_from(metadata, at)[0]
    if count * 16 != items.size:
        _refuse(f"{count} nodes or buffers instead of {items.size // 16}")
    pairs: tuple[int, ...] = items.unpack_from(metadata, at + 4)
    return pairs


def _check_nodes(layout: _Layout, nodes: Sequence[int], record_count: int) -> None:
    """Check length and null count of each column; `nodes` alternates between the two."""
    entry_count = -1
    for node, (nullable, is_row) in enumerate(zip(layout.nullable, layout.is_row, strict=True)):
        length, null_count = nodes[2 * node], nodes[2 * node + 1]
        if is_row:
            expected = record_count
        else:
            # All that lies inside the lists of headers has one length, which the first one says.
            expected = entry_count = length if entry_count < 0 else entry_count
        if length != expected or length < 0:
            _refuse(f"a column of {length} rows instead of {expected}")
        if not 0 <= null_count <= (length if nullable else 0):
            _refuse(f"{null_count} nulls in a column of {length} rows")


def _check_buffers(
    layout: _Layout, nodes: Sequence[int], buffers: Sequence[int], body: pa.Buffer
) -> None:
    """Check that the buffers lie in order inside the body and are as long as their columns need.

    They may not overlap: else a small body could decode to several times its size.
    """
    end = 0
    for index, (node, kind) in enumerate(layout.buffers):
        offset, size = buffers[2 * index], buffers[2 * index + 1]
        rows = nodes[2 * node]
        if size:
            if size < 0 or offset % 8 or not end <= offset <= end + GAP_BYTES_MAX:
                _refuse("a buffer is out of place")
            end = offset + size
            if end > body.size:
                _refuse("a buffer points outside the body")
        if kind == _VALIDITY:
            null_count = nodes[2 * node + 1]
            needed = (rows + 7) // 8 if null_count or size else 0
            if size >= needed and size and not null_count:
                _check_no_nulls(body.slice(offset, needed).to_pybytes(), rows)
        elif kind == _OFFSETS:
            needed = 4 * (rows + 1) if rows else 0
        else:
            needed = kind * rows
        if size < needed:
            _refuse(f"a buffer of {size} bytes for {rows} rows")
    if body.size - end > GAP_BYTES_MAX:
        _refuse("bytes after the last buffer")


def _check_no_nulls(bitmap: bytes, rows: int) -> None:
    """Refuse nulls that the null count hides: readers would not agree on them."""
    whole, rest = divmod(rows, 8)
    mask = (1 << rest) - 1
    if bitmap[:whole] != b"\xff" * whole or (rest and bitmap[whole] & mask != mask):
        _refuse("a null count of 0 for a column with nulls")


def _refuse(detail: str) -> NoReturn:
    raise CorruptBatch(BatchFault.BAD_BODY, detail)
