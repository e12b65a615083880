"""Making batches: from single records, from whole Arrow columns, and from what compaction keeps.

Knows nothing of clocks, topics or producers' state: times, ids and sequences come from the caller.
Invariant: what is built passes `read_header`, `verify` and `BatchView` with the same limit, and a
builder that refuses a record is left as it was.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import Final, TypeAlias, TypedDict, Unpack, cast

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.ipc

from tailrace.errors import BatchTooLarge
from tailrace.model import NO_TIMESTAMP_MS
from tailrace.record.body import (
    Array,
    Blobs,
    body_schema,
    deltas_problem,
    encode,
    fixed_width,
    plain_message,
)
from tailrace.record.codec import Compression, compress
from tailrace.record.columns import (
    Column,
    binary_column,
    has_entries,
    headers_array,
    headers_column,
    timestamp_column,
)
from tailrace.record.header import (
    ALIGNMENT,
    BODY_KIND_ARROW,
    COMPACTED_BIT,
    COMPRESSION_MASK,
    CONTROL_BIT,
    HEADER_BYTES,
    HEADERS_BIT,
    MAGIC,
    PRODUCED_BODY_BYTES_MAX,
    TRANSACTIONAL_BIT,
    BatchHeader,
    assemble,
    assemble_pieces,
    body_bytes_max,
)

HeaderPair: TypeAlias = tuple[str, bytes | None]

# Upper bounds, so that a batch is never larger than the builder estimated. What an empty batch
# takes: metadata, and up to 7 bytes of padding after each of 16 buffers, with one offset more
# than there are rows.
EMPTY_BATCH_BYTES: Final = HEADER_BYTES + 640
# An offset of key and of value, the timestamp, and a bit each for null key and null value.
RECORD_OVERHEAD_BYTES: Final = 17
# An offset into the list of all headers.
HEADERS_OVERHEAD_BYTES: Final = 4
# An offset of key and of value, and a bit for a null value.
HEADER_OVERHEAD_BYTES: Final = 9
# Up to this many rows Python's own max is faster than calling an Arrow kernel.
FEW_ROWS: Final = 64


class BatchFields(TypedDict, total=False):
    """What a batch says of its producer and its place; the default of all is "none"."""

    producer_id: int
    producer_epoch: int
    base_sequence: int
    base_offset: int
    leader_epoch: int
    transactional: bool
    control: bool


class BatchBuilder:
    """Gathers single records: an append is a few list operations, Arrow comes in once, at the end.

    `size_bytes` is an upper bound of the batch before compression; `limit_bytes` is where
    `append` refuses with BatchTooLarge. Stopping earlier, at `batch.size`, is up to the caller.
    """

    __slots__ = (
        "_compression",
        "_entry_keys",
        "_entry_values",
        "_has_nulls",
        "_headers_ends",
        "_keys",
        "_limit_bytes",
        "_timestamps",
        "_values",
        "size_bytes",
    )

    size_bytes: int

    def __init__(
        self,
        compression: Compression = Compression.NONE,
        *,
        limit_bytes: int = PRODUCED_BODY_BYTES_MAX,
    ) -> None:
        self._compression = compression
        self._limit_bytes = limit_bytes
        # Empty until a record has one: most batches have keys, or have none.
        self._keys: list[bytes | None] = []
        self._values: list[bytes | None] = []
        # Among the values, or among keys of which there are some.
        self._has_nulls = False
        self._timestamps = array("q")
        # The headers of all records in a row, and where those of each record end. Empty until a
        # record has one: most batches have none.
        self._entry_keys: list[str] = []
        self._entry_values: list[bytes | None] = []
        self._headers_ends = array("i")
        self.size_bytes = EMPTY_BATCH_BYTES

    @property
    def count(self) -> int:
        """How many records were appended."""
        return len(self._values)

    def append(  # noqa: C901 - it runs for every record.
        self,
        value: bytes | None,
        key: bytes | None = None,
        timestamp_ms: int = NO_TIMESTAMP_MS,
        headers: Iterable[HeaderPair] | None = None,
    ) -> None:
        """Add a record; raises BatchTooLarge, TypeError or ValueError and leaves it out."""
        size_bytes = self.size_bytes + RECORD_OVERHEAD_BYTES
        if value is not None:
            if type(value) is not bytes:
                value = _as_bytes("value", value)
            size_bytes += len(value)
        else:
            self._has_nulls = True
        if key is not None:
            if type(key) is not bytes:
                key = _as_bytes("key", key)
            size_bytes += len(key)
        if timestamp_ms < NO_TIMESTAMP_MS:
            raise ValueError(f"a timestamp before 1970: {timestamp_ms} ms")
        pairs: list[HeaderPair] = []
        if headers or self._headers_ends:
            pairs, headers_bytes = self._checked_headers(headers or ())
            size_bytes += headers_bytes
        if size_bytes > self._limit_bytes:
            raise BatchTooLarge(f"a batch of {size_bytes} bytes, limit {self._limit_bytes}")
        # This may refuse the number, so it comes before the other columns grow.
        self._timestamps.append(timestamp_ms)
        if key is not None or self._keys:
            if key is None or len(self._keys) < len(self._values):
                self._has_nulls = True
                self._keys += [None] * (len(self._values) - len(self._keys))
            self._keys.append(key)
        self._values.append(value)
        if pairs or self._headers_ends:
            self._append_headers(pairs)
        self.size_bytes = size_bytes

    def extend(self, values: Sequence[bytes], times: array[int], value_bytes: int) -> None:
        """Append records without keys and headers, whose values have so many bytes in all.

        Times are not before 1970. BatchTooLarge leaves all of them out.
        """
        size_bytes = self.size_bytes + value_bytes + RECORD_OVERHEAD_BYTES * len(values)
        if self._headers_ends:
            size_bytes += HEADERS_OVERHEAD_BYTES * len(values)
        if size_bytes > self._limit_bytes:
            raise BatchTooLarge(f"a batch of {size_bytes} bytes, limit {self._limit_bytes}")
        self._timestamps.extend(times)
        if self._keys and values:
            self._has_nulls = True
            self._keys += [None] * (len(self._values) + len(values) - len(self._keys))
        self._values += values
        if self._headers_ends:
            self._headers_ends.extend([len(self._entry_keys)] * len(values))
        self.size_bytes = size_bytes

    def build(self, **fields: Unpack[BatchFields]) -> bytes:
        """Return the batch of all records so far; there must be one."""
        return bytes(self.build_buffer(**fields))

    def build_buffer(self, **fields: Unpack[BatchFields]) -> bytes | memoryview:
        """As `build`, without the last copy."""
        count, keys = self.count, self._keys
        times: Array = pa.Array.from_buffers(
            pa.int64(), count, [None, pa.py_buffer(self._timestamps)]
        )
        is_plain = not (self._headers_ends or self._has_nulls or self._compression)
        if is_plain and count:
            header = _timed(_header(count, fields), times)
            pieces = plain_message(
                count,
                Blobs.of_list(cast("list[bytes]", keys)) if keys else None,
                Blobs.of_list(cast("list[bytes]", self._values)),
                self._timestamps.tobytes(),
            )
            return _plain(header, pieces, self._limit_bytes)
        columns: list[Array] = [
            pa.array(keys, pa.binary()) if keys else pa.nulls(count, pa.binary()),
            pa.array(self._values, pa.binary()),
            times,
        ]
        if self._headers_ends:
            columns.append(self._headers_column())
        return _build(columns, self._compression, self._limit_bytes, fields)

    def _checked_headers(self, headers: Iterable[HeaderPair]) -> tuple[list[HeaderPair], int]:
        """Return the headers of a new record, checked, and what they add to the batch."""
        pairs: list[HeaderPair] = []
        size_bytes = HEADERS_OVERHEAD_BYTES
        for key, value in headers:
            if not isinstance(key, str):
                raise TypeError(f"the key of a header is a str, not {type(key).__name__}")
            # Text with lone surrogates is refused here, where the record that has it is known.
            size_bytes += HEADER_OVERHEAD_BYTES + len(key.encode())
            data = None if value is None else _as_bytes("header's value", value)
            size_bytes += 0 if data is None else len(data)
            pairs.append((key, data))
        if pairs and not self._headers_ends:
            # The first record with headers makes all before it pay for their empty lists.
            size_bytes += self.count * HEADERS_OVERHEAD_BYTES
        return pairs, size_bytes

    def _append_headers(self, pairs: list[HeaderPair]) -> None:
        if not self._headers_ends:
            # The first record with headers: those before it, and the list's own start, have none.
            self._headers_ends.extend([0] * self.count)
        for key, value in pairs:
            self._entry_keys.append(key)
            self._entry_values.append(value)
        self._headers_ends.append(len(self._entry_keys))

    def _headers_column(self) -> Array:
        ends = pa.py_buffer(self._headers_ends)
        offsets = pa.Array.from_buffers(pa.int32(), len(self._headers_ends), [None, ends])
        return headers_array(
            offsets,
            pa.array(self._entry_keys, pa.utf8()),
            pa.array(self._entry_values, pa.binary()),
        )


def batch_from_columns(
    keys: Column | None,
    values: Column,
    timestamps: Column | int,
    headers: Column | None = None,
    *,
    compression: Compression = Compression.NONE,
    limit_bytes: int = PRODUCED_BODY_BYTES_MAX,
    **fields: Unpack[BatchFields],
) -> bytes:
    """Return the batch of whole columns; no single record is touched.

    Keys and values may be of any binary or string type, or null; no keys at all is None.
    Timestamps are int64 milliseconds, an Arrow timestamp of whole milliseconds, or one int for all
    rows. Headers are list<struct<string, binary>>; a null list means none.
    Raises TypeError for a column of another type, ValueError for values that do not fit, and
    BatchTooLarge.
    """
    whole = buffer_from_columns(
        keys,
        values,
        timestamps,
        headers,
        compression=compression,
        limit_bytes=limit_bytes,
        **fields,
    )
    return bytes(whole)


def buffer_from_columns(
    keys: Column | None,
    values: Column,
    timestamps: Column | int,
    headers: Column | None = None,
    *,
    compression: Compression = Compression.NONE,
    limit_bytes: int = PRODUCED_BODY_BYTES_MAX,
    **fields: Unpack[BatchFields],
) -> bytes | memoryview:
    """As `batch_from_columns`, without the last copy."""
    count = len(values)
    columns: list[Array] = [
        pa.nulls(count, pa.binary()) if keys is None else binary_column("keys", keys),
        binary_column("values", values),
        timestamp_column(timestamps, count),
    ]
    lengths = [len(column) for column in columns]
    if headers is not None:
        lengths.append(len(headers))
        entries = headers_column("headers", headers)
        if entries is not None:
            columns.append(entries)
    if any(length != count for length in lengths):
        raise ValueError(f"columns of unequal length: {lengths}")
    if count and pc.min(columns[2]).as_py() < NO_TIMESTAMP_MS:
        raise ValueError("a timestamp before 1970")
    is_plain = len(columns) == 3 and not compression and not columns[1].null_count
    if is_plain and count and (keys is None or not columns[0].null_count):
        pieces = plain_message(
            count,
            None if keys is None else Blobs.of_column(columns[0]),
            Blobs.of_column(columns[1]),
            fixed_width(columns[2]),
        )
        return _plain(_timed(_header(count, fields), columns[2]), pieces, limit_bytes)
    return _build(columns, compression, limit_bytes, fields)


def compacted_batch(
    header: BatchHeader,
    columns: pa.RecordBatch,
    offset_deltas: Array,
    *,
    compression: Compression | None = None,
    delete_horizon_ms: int | None = None,
) -> bytes:
    """Return the batch of `header` with only these rows left in it; maybe with none.

    `columns` are rows of `BatchView.record_batch` and `offset_deltas` their offsets less the base
    offset. Offsets, epochs, producer and attributes stay; the timestamps become those of the
    rows that are left. Compression and delete horizon stay unless given.
    """
    count = columns.num_rows
    deltas = offset_deltas.cast(pa.int32())
    problem = deltas_problem(deltas, header.last_offset_delta)
    if problem is not None or len(deltas) != count:
        raise ValueError(
            f"{len(deltas)} offset deltas for {count} rows: {problem or 'not as many'}"
        )
    arrays: list[Array] = [columns.column(name) for name in ("key", "value", "timestamp")]
    attributes = (header.attributes | COMPACTED_BIT) & ~(HEADERS_BIT | COMPRESSION_MASK)
    if header.has_headers and has_entries(columns.column("headers")):
        arrays.append(columns.column("headers"))
        attributes |= HEADERS_BIT
    arrays.append(deltas)
    kept = header._replace(attributes=attributes, record_count=count)
    if delete_horizon_ms is not None:
        kept = kept._replace(delete_horizon_ms=delete_horizon_ms)
    if count and not header.is_append_time:
        kept = _timed(kept, arrays[2])
    codec = header.compression if compression is None else compression
    return _seal(kept, arrays, codec, limit_bytes=body_bytes_max(attributes))


_NO_BATCH: Final = BatchHeader(
    base_offset=0,
    length=0,
    leader_epoch=-1,
    magic=MAGIC,
    prefix_crc=0,
    crc=0,
    attributes=0,
    body_kind=BODY_KIND_ARROW,
    padding=0,
    last_offset_delta=-1,
    base_sequence=-1,
    first_timestamp_ms=NO_TIMESTAMP_MS,
    max_timestamp_ms=NO_TIMESTAMP_MS,
    producer_id=-1,
    producer_epoch=-1,
    record_count=0,
    body_bytes=0,
    delete_horizon_ms=-1,
)


def _build(
    columns: list[Array], compression: Compression, limit_bytes: int, fields: BatchFields
) -> bytes:
    count = len(columns[0])
    if not count:
        raise ValueError("a batch has at least one record")
    header = _header(count, fields, HEADERS_BIT if len(columns) == 4 else 0)
    return _seal(_timed(header, columns[2]), columns, compression, limit_bytes=limit_bytes)


def _plain(
    header: BatchHeader, pieces: Sequence[bytes | pa.Buffer], limit_bytes: int
) -> memoryview:
    body_bytes = sum(map(len, pieces))
    if body_bytes > limit_bytes:
        raise BatchTooLarge(f"a body of {body_bytes} bytes, limit {limit_bytes}")
    return assemble_pieces(header, pieces)


def _header(count: int, fields: BatchFields, attributes: int = 0) -> BatchHeader:
    attributes |= (TRANSACTIONAL_BIT if fields.get("transactional") else 0) | (
        CONTROL_BIT if fields.get("control") else 0
    )
    return _NO_BATCH._replace(
        base_offset=fields.get("base_offset", 0),
        leader_epoch=fields.get("leader_epoch", -1),
        attributes=attributes,
        last_offset_delta=count - 1,
        base_sequence=fields.get("base_sequence", -1),
        producer_id=fields.get("producer_id", -1),
        producer_epoch=fields.get("producer_epoch", -1),
        record_count=count,
    )


def _seal(
    header: BatchHeader, arrays: list[Array], compression: Compression, *, limit_bytes: int
) -> bytes:
    """Make body and batch of columns that are in order; a body that would grow stays as it is."""
    schema = body_schema(headers=header.has_headers, compacted=header.is_compacted)
    columns = pa.RecordBatch.from_arrays(arrays, schema=schema)
    body_bytes = pa.ipc.get_record_batch_size(columns)
    if body_bytes > limit_bytes:
        raise BatchTooLarge(f"a body of {body_bytes} bytes, limit {limit_bytes}")
    body = encode(columns)
    stored = compress(compression, body)
    if len(stored) + ALIGNMENT > body.size:
        stored, compression = body, Compression.NONE
    sealed = header._replace(attributes=header.attributes | compression, body_bytes=body.size)
    return assemble(sealed, stored)


def _timed(header: BatchHeader, timestamps: Array) -> BatchHeader:
    """Take first and largest timestamp from the rows; one below "none" counts as none.

    Builders refuse such a timestamp, but compaction may meet it in what others have built.
    """
    if len(timestamps) <= FEW_ROWS:
        largest = max(cast("list[int]", timestamps.to_pylist()))
    else:
        largest = cast("int", pc.max(timestamps).as_py())
    return header._replace(
        first_timestamp_ms=max(timestamps[0].as_py(), NO_TIMESTAMP_MS),
        max_timestamp_ms=max(largest, NO_TIMESTAMP_MS),
    )


def _as_bytes(what: str, data: object) -> bytes:
    if isinstance(data, bytes | bytearray | memoryview):
        return bytes(data)
    raise TypeError(f"a {what} is bytes, not {type(data).__name__}")
