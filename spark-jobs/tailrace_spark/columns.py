"""Stored batches as the columns that Spark asked for. Arrow does the work, no record is touched.

Spark takes Arrow batches only in exactly its own schema: order, nullability, binary and string in
their plain forms, `timestamp[us, UTC]`. A user's `.schema("value binary, offset bigint")` reaches
the reader, so that columns nobody wants are never made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from tailrace.record.view import BatchView
    from tailrace_spark.offsets import ReadRange

SPARK_TYPES: Final = {
    "key": "binary",
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "headers": "array<struct<key: string, value: binary>>",
}
"""All columns, in the order of the schema, as Spark writes their types."""

HEADERS: Final = "headers"
_HEADER: Final = pa.struct([pa.field("key", pa.utf8()), pa.field("value", pa.binary())])
_ARROW_TYPES: Final[dict[str, Any]] = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.utf8(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", "UTC"),
    HEADERS: pa.list_(pa.field("element", _HEADER)),
}
_US_IN_MS: Final = 1_000


class WrongSchema(ValueError):
    """A schema that the source cannot fill."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The columns of one query: their names in order, and which of them may not be null."""

    names: tuple[str, ...]
    required: frozenset[str] = frozenset()

    def check(self) -> Layout:
        """WrongSchema names a column that records do not have."""
        unknown = [each for each in self.names if each not in SPARK_TYPES]
        if unknown or not self.names:
            raise WrongSchema(
                f"schema: a record has no column {', '.join(unknown) or '(none given)'}; it has "
                + ", ".join(f"{name} {kind}" for name, kind in SPARK_TYPES.items())
            )
        return self

    def schema(self) -> pa.Schema:
        return pa.schema(
            [
                pa.field(name, _ARROW_TYPES[name], nullable=name not in self.required)
                for name in self.names
            ]
        )


def default_layout(*, headers: bool) -> Layout:
    return Layout(tuple(name for name in SPARK_TYPES if headers or name != HEADERS))


def rows_of(view: BatchView, wanted: ReadRange, layout: Layout) -> pa.RecordBatch | None:
    """The rows of a batch that lie in the range; None when there are none."""
    first, count = _inside(view, wanted)
    if not count:
        return None
    source = _Source(view, wanted, first, count)
    arrays = [_MAKERS[name](source) for name in layout.names]
    return pa.RecordBatch.from_arrays(arrays, schema=layout.schema())


def joined(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """One batch of several: Spark pays for each that it gets, and never joins them itself."""
    if len(batches) == 1:
        return batches[0]
    (whole,) = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return whole


@dataclass(frozen=True, slots=True)
class _Source:
    """Where the values of some rows come from."""

    view: BatchView
    wanted: ReadRange
    first: int
    count: int

    def stored(self, name: str) -> Any:
        return self.view.record_batch().column(name).slice(self.first, self.count)


def _inside(view: BatchView, wanted: ReadRange) -> tuple[int, int]:
    """Which rows lie in the range: the first, and how many."""
    header = view.header
    if header.is_control or not header.record_count:
        return 0, 0
    if not header.is_compacted:
        first = max(wanted.start - header.base_offset, 0)
        end = min(wanted.end - header.base_offset, header.record_count)
        return first, max(end - first, 0)
    if header.base_offset >= wanted.start and header.next_offset <= wanted.end:
        return 0, header.record_count
    first = _below(view, wanted.start)
    return first, max(_below(view, wanted.end) - first, 0)


def _below(view: BatchView, offset: int) -> int:
    """How many rows have a smaller offset: the first ones, since offsets rise."""
    smaller: Any = pc.less(view.offsets(), pa.scalar(offset, pa.int64()))
    return int(smaller.true_count)


def _topic(source: _Source) -> Any:
    return pa.repeat(pa.scalar(source.wanted.topic, pa.utf8()), source.count)


def _partition(source: _Source) -> Any:
    return pa.repeat(pa.scalar(source.wanted.partition, pa.int32()), source.count)


def _offset(source: _Source) -> Any:
    return source.view.offsets().slice(source.first, source.count)


def _timestamp(source: _Source) -> Any:
    in_us = pc.multiply(source.stored("timestamp"), pa.scalar(_US_IN_MS, pa.int64()))
    return in_us.view(_ARROW_TYPES["timestamp"])


def _headers(source: _Source) -> Any:
    """As the Kafka source has them: null where a record has none."""
    if not source.view.header.has_headers:
        return pa.nulls(source.count, _ARROW_TYPES[HEADERS])
    stored = source.stored(HEADERS)
    empty = pc.equal(pc.list_value_length(stored), pa.scalar(0, pa.int32()))
    return pc.if_else(empty, pa.scalar(None, stored.type), stored).cast(_ARROW_TYPES[HEADERS])


_MAKERS: Final[dict[str, Callable[[_Source], Any]]] = {
    "key": lambda source: source.stored("key"),
    "value": lambda source: source.stored("value"),
    "topic": _topic,
    "partition": _partition,
    "offset": _offset,
    "timestamp": _timestamp,
    HEADERS: _headers,
}
