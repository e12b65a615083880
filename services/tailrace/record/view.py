"""A batch as its readers see it: a header, Arrow columns, or one record after the other.

A view holds a buffer and a position and decodes when asked. It does not check the CRC unless
told to (`verify`), but decodes only what is safe to touch, whether the CRC was checked or not.
Memory stays within the limit for the body, a constant, and O(records).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise, repeat
from typing import Final, NamedTuple, TypeAlias, cast

import pyarrow as pa
import pyarrow.compute as pc

from tailrace.errors import BatchFault, CorruptBatch
from tailrace.record import header as batch_header
from tailrace.record.body import decode
from tailrace.record.codec import Compression, decompress
from tailrace.record.header import (
    ALIGNMENT,
    BODY_BYTES_MAX,
    HEADER_BYTES,
    BatchHeader,
    Buffer,
    read_header,
)

Headers: TypeAlias = tuple[tuple[str, bytes | None], ...]

# Records are made this many at a time: enough to be fast, few enough to stay in the cache.
RECORDS_AT_ONCE: Final = 1024


class Record(NamedTuple):
    """One record; `value` None is a tombstone."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers


class BatchView:
    """The batch at `position` of a buffer; reading the header is all that making a view does."""

    __slots__ = ("_columns", "_position", "_source", "header")

    header: BatchHeader

    def __init__(self, buffer: Buffer, position: int = 0) -> None:
        self._source = buffer if isinstance(buffer, pa.Buffer) else pa.py_buffer(buffer)
        self._position = position
        self._columns: pa.RecordBatch | None = None
        self.header = read_header(self._source, position)

    @classmethod
    def of(cls, source: pa.Buffer, position: int, header: BatchHeader) -> BatchView:
        """Of a batch whose header was read already."""
        view = cls.__new__(cls)
        view._source, view._position, view._columns, view.header = source, position, None, header
        return view

    def verify(self) -> None:
        """Check that the whole batch is there and that its CRC matches."""
        batch_header.verify(self._source, self._position, self.header)

    def record_batch(self, limit_bytes: int = BODY_BYTES_MAX) -> pa.RecordBatch:
        """Return the columns; those of an uncompressed body are not copied.

        Columns: key, value, timestamp, headers if the batch has any, offset_delta if compacted.
        Where the batch has the time of its append, that is what the timestamp column says.
        """
        if self._columns is None:
            header = self.header
            columns = decode(
                self._body(limit_bytes),
                record_count=header.record_count,
                headers=header.has_headers,
                last_delta_max=header.last_offset_delta if header.is_compacted else None,
            )
            self._columns = self._timed(columns)
        return self._columns

    def offsets(self, limit_bytes: int = BODY_BYTES_MAX) -> pa.Int64Array:
        """Return the offset of each row; only a compacted batch is decoded for that."""
        header = self.header
        if not header.is_compacted:
            ones = pa.repeat(pa.scalar(1, pa.int64()), header.record_count)
            return pc.cumulative_sum(ones, start=pa.scalar(header.base_offset - 1, pa.int64()))
        deltas = self.record_batch(limit_bytes).column("offset_delta")
        base_offset = pa.scalar(header.base_offset, pa.int64())
        return cast("pa.Int64Array", pc.add(deltas.cast(pa.int64()), base_offset))

    def records(self, limit_bytes: int = BODY_BYTES_MAX) -> Iterator[Record]:
        """Yield the records, made a slice at a time as they are asked for."""
        columns = self.record_batch(limit_bytes)
        for start in range(0, columns.num_rows, RECORDS_AT_ONCE):
            yield from self._slice(columns.slice(start, RECORDS_AT_ONCE), start)

    def _body(self, limit_bytes: int) -> pa.Buffer:
        """Return the body before compression, 8-aligned."""
        header = self.header
        if header.body_bytes > limit_bytes:
            detail = f"a body of {header.body_bytes} bytes, limit {limit_bytes}"
            raise CorruptBatch(BatchFault.TOO_LARGE, detail)
        present = self._source.size - self._position
        if present < header.length:
            raise CorruptBatch(BatchFault.CUT_SHORT, f"{present} of {header.length} bytes")
        end = self._position + header.length
        if header.padding and any(
            self._source.slice(end - header.padding, header.padding).to_pybytes()
        ):
            raise CorruptBatch(BatchFault.BAD_BODY, "padding is not zero")
        stored_bytes = header.length - HEADER_BYTES - header.padding
        stored = self._source.slice(self._position + HEADER_BYTES, stored_bytes)
        compression = header.compression
        if compression is not Compression.NONE:
            return decompress(compression, stored, header.body_bytes)
        if stored.address % ALIGNMENT:
            # The buffer itself is not aligned. Arrow wants its columns to be: this one is copied.
            return pa.py_buffer(stored.to_pybytes())
        return stored

    def _timed(self, columns: pa.RecordBatch) -> pa.RecordBatch:
        header = self.header
        if header.is_append_time:
            times = pa.repeat(pa.scalar(header.max_timestamp_ms, pa.int64()), header.record_count)
            index = columns.schema.get_field_index("timestamp")
            return columns.set_column(index, columns.schema.field(index), times)
        return columns

    def _slice(self, columns: pa.RecordBatch, start: int) -> Iterator[Record]:
        base_offset = self.header.base_offset
        offsets: Iterator[int] | range
        if self.header.is_compacted:
            deltas = cast("list[int]", columns.column("offset_delta").to_pylist())
            offsets = (base_offset + delta for delta in deltas)
        else:
            offsets = range(base_offset + start, base_offset + start + columns.num_rows)
        headers = headers_of(columns) if self.header.has_headers else repeat(())
        timestamps = cast("list[int]", columns.column("timestamp").to_pylist())
        keys = cast("list[bytes | None]", columns.column("key").to_pylist())
        values = cast("list[bytes | None]", columns.column("value").to_pylist())
        return map(_MAKE_RECORD, zip(offsets, timestamps, keys, values, headers, strict=False))


# What `Record._make` does, without a Python frame for each record: 40 % of the time to make one.
_MAKE_RECORD: Final = partial(cast("Callable[..., Record]", tuple.__new__), Record)


def headers_of(columns: pa.RecordBatch) -> list[Headers]:
    """Return the headers of each row; flat lists cut up are faster than dicts made by Arrow."""
    lists = cast("pa.ListArray[pa.StructScalar]", columns.column("headers"))
    offsets = cast("list[int]", lists.offsets.to_pylist())
    first, end = offsets[0], offsets[-1]
    entries = cast("pa.StructArray", lists.values.slice(first, end - first))
    keys = cast("list[str]", entries.field(0).to_pylist())
    values = cast("list[bytes | None]", entries.field(1).to_pylist())
    pairs = tuple(zip(keys, values, strict=True))
    return [pairs[start - first : stop - first] for start, stop in pairwise(offsets)]
