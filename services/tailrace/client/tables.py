"""Whole columns on their way into batches: named, cut to size, spread over partitions by key.

Arrow does the work; the keys that differ are looked at one by one, records never are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple, TypeAlias, cast

import pyarrow as pa
import pyarrow.compute as pc

from tailrace.client.partitioner import Partitioner
from tailrace.client.settings import ProducerSettings, record_too_large
from tailrace.record.build import buffer_from_columns
from tailrace.record.columns import Column, binary_column

Columns: TypeAlias = "pa.RecordBatch | pa.Table | Mapping[str, Any]"

NAMES: Final = ("key", "value", "timestamp", "headers")
# What a row takes at most besides its bytes in columns that are there (a time, the offset of a key
# that is not, a bit for each null), and a piece besides those of its rows.
ROW_OVERHEAD_BYTES: Final = 16
PIECE_OVERHEAD_BYTES: Final = 1_024


class Piece(NamedTuple):
    """Rows that go together; `timestamps` is one time where they have none of their own."""

    keys: Column | None
    values: Column
    timestamps: Column | int
    headers: Column | None

    @property
    def rows(self) -> int:
        return len(self.values)

    def slice(self, start: int, rows: int) -> Piece:
        return Piece(*(_map(each, lambda column: column.slice(start, rows)) for each in self))

    def where(self, mask: pa.BooleanArray) -> Piece:
        return Piece(*(_map(each, lambda column: column.filter(mask)) for each in self))

    def build(self, settings: ProducerSettings) -> bytes | memoryview:
        """The batch of these rows, without numbers."""
        return buffer_from_columns(
            self.keys,
            self.values,
            self.timestamps,
            self.headers,
            compression=settings.compression,
            limit_bytes=settings.max_request_size,
        )


def cut(columns: Columns, settings: ProducerSettings, timestamp_ms: int) -> list[Piece]:
    """Pieces of about `batch_size`, none larger than a request may be, unless a row alone is.

    Where rows are alike none is larger than `batch_size`, for which there may be a reason: a topic
    that takes no more.
    """
    whole = _named(columns, timestamp_ms)
    if not whole.rows:
        return []
    room = max(settings.batch_size - PIECE_OVERHEAD_BYTES, 1)
    number = min(-(-_size_of(whole) // room), whole.rows)
    rows = -(-whole.rows // number)
    return [
        part
        for start in range(0, whole.rows, rows)
        for part in _fitting(whole.slice(start, rows), settings)
    ]


def spread(
    piece: Piece, partitioner: Partitioner, topic: str, partitions: int, chosen: int | None
) -> Iterator[tuple[Piece, int | None]]:
    """The rows of each partition, in order; None: wherever it suits."""
    if chosen is not None or piece.keys is None or partitions == 1:
        yield piece, chosen
        return
    coded = binary_column("keys", piece.keys).dictionary_encode(null_encoding="encode")
    places = [
        partitioner(topic, cast("bytes | None", key), partitions)
        for key in coded.dictionary.to_pylist()
    ]
    rows = pa.array([-1 if each is None else each for each in places], pa.int64()).take(
        coded.indices
    )
    for place in sorted(set(places), key=lambda each: -1 if each is None else each):
        wanted = pa.scalar(-1 if place is None else place, pa.int64())
        yield piece.where(pc.equal(rows, wanted)), place


def _fitting(piece: Piece, settings: ProducerSettings) -> list[Piece]:
    """Rows differ in size: halve what turns out to be too large for one request."""
    size = _size_of(piece)
    if size + PIECE_OVERHEAD_BYTES <= settings.max_request_size:
        return [piece]
    if piece.rows == 1:
        raise record_too_large(size, settings)
    half = piece.rows // 2
    return [
        *_fitting(piece.slice(0, half), settings),
        *_fitting(piece.slice(half, piece.rows - half), settings),
    ]


def _size_of(piece: Piece) -> int:
    """An upper bound, without what a piece takes besides its rows."""
    columns = [each for each in piece if each is not None and not isinstance(each, int)]
    return ROW_OVERHEAD_BYTES * piece.rows + sum(each.nbytes for each in columns)


def _named(columns: Columns, timestamp_ms: int) -> Piece:
    """The four columns that a record can have, of whatever they come in."""
    if isinstance(columns, pa.RecordBatch | pa.Table):
        found: dict[str, Any] = {
            name: columns.column(name) for name in columns.schema.names if name in NAMES
        }
        unknown = [name for name in columns.schema.names if name not in NAMES]
    else:
        found = {name: _column(each) for name, each in columns.items() if name in NAMES}
        unknown = [name for name in columns if name not in NAMES]
    if unknown or "value" not in found:
        raise TypeError(
            f"columns are named {', '.join(NAMES)}, of which value must be there; "
            f"not {', '.join(map(str, unknown)) or 'without it'}"
        )
    times = found.get("timestamp")
    return Piece(
        found.get("key"),
        found["value"],
        timestamp_ms if times is None else times,
        found.get("headers"),
    )


def _column(values: Any) -> Any:
    return values if isinstance(values, pa.Array | pa.ChunkedArray) else pa.array(values)


def _map(column: Any, change: Any) -> Any:
    return column if column is None or isinstance(column, int) else change(column)
