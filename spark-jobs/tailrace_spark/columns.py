"""Stored batches as the columns that Spark asked for. Arrow does the work, no record is touched.

Spark takes Arrow batches only in exactly its own schema: order, nullability, binary and string in
their plain forms, `timestamp[us, UTC]`. A user's `.schema("value binary, offset bigint")` reaches
the reader, so that columns nobody wants are never made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from tailrace.errors import BatchFault, CorruptBatch
from tailrace_spark.layout import HEADERS, Layout

if TYPE_CHECKING:
    from tailrace.record.view import BatchView
    from tailrace_spark.offsets import ReadRange

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
# Spark counts microseconds in 64 bits.
_TIME_MS_MAX: Final = (2**63 - 1) // _US_IN_MS
# Columns that are the same for batch after batch.
COLUMNS_KEPT_MAX: Final = 16


@lru_cache(COLUMNS_KEPT_MAX)
def schema_of(layout: Layout) -> pa.Schema:
    """Exactly what Spark expects of the batches of a query."""
    return pa.schema(
        [
            pa.field(name, _ARROW_TYPES[name], nullable=name not in layout.required)
            for name in layout.names
        ]
    )


class Part(NamedTuple):
    """A stored batch, and the range of which it may have rows."""

    wanted: ReadRange
    view: BatchView


def rows_of(parts: Sequence[Part], layout: Layout) -> pa.RecordBatch | None:
    """The rows of batches of one partition that lie in their ranges; None when there are none.

    They become one batch: Spark pays for each that it gets, and never joins them itself. A column
    is made once for all of them, since most of what Arrow costs here is the call.
    """
    found = [_Rows(view, *inside) for wanted, view in parts if (inside := _inside(view, wanted))[1]]
    if not found:
        return None
    source = _Source(found, parts[0].wanted, sum(each.size for each in found))
    arrays = [_MAKERS[name](source) for name in layout.names]
    return pa.RecordBatch.from_arrays(arrays, schema=schema_of(layout))


class _Rows(NamedTuple):
    """Some rows of a batch that follow each other."""

    view: BatchView
    first: int
    size: int

    def of(self, column: Any) -> Any:
        return column.slice(self.first, self.size)


@dataclass(frozen=True, slots=True)
class _Source:
    """Where the values of some rows come from."""

    rows: Sequence[_Rows]
    # Any range of them: they are of one partition.
    wanted: ReadRange
    count: int

    def stored(self, name: str) -> Any:
        return _joined([each.of(each.view.record_batch().column(name)) for each in self.rows])


def _joined(arrays: Sequence[Any]) -> Any:
    return arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)


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
    return _same(source.wanted.topic, pa.utf8(), _room(source.count)).slice(0, source.count)


def _partition(source: _Source) -> Any:
    return _same(source.wanted.partition, pa.int32(), _room(source.count)).slice(0, source.count)


def _room(count: int) -> int:
    """The power of two that is not less."""
    return 1 << (count - 1).bit_length()


@lru_cache(COLUMNS_KEPT_MAX)
def _same(value: str | int, kind: pa.DataType, count: int) -> Any:
    """A column of one value, of which the next batches take what they need."""
    one: Any = pa.scalar(value, kind)
    return pa.repeat(one, count)


@lru_cache(COLUMNS_KEPT_MAX)
def _numbers(count: int) -> Any:
    return pc.cumulative_sum(_same(1, pa.int64(), count), start=pa.scalar(-1, pa.int64()))


def _offset(source: _Source) -> Any:
    rows = source.rows
    first = rows[0].view.header.base_offset + rows[0].first
    if _is_without_gaps(rows):
        numbers = _numbers(_room(source.count)).slice(0, source.count)
        return pc.add(numbers, pa.scalar(first, pa.int64()))
    return _joined([each.of(each.view.offsets()) for each in rows])


def _is_without_gaps(rows: Sequence[_Rows]) -> bool:
    """Whether each row has the offset that follows the one before."""
    due = rows[0].view.header.base_offset + rows[0].first
    for view, first, size in rows:
        if view.header.is_compacted or view.header.base_offset + first != due:
            return False
        due += size
    return True


def _timestamp(source: _Source) -> Any:
    stored = source.stored("timestamp")
    try:
        in_us = pc.multiply_checked(stored, pa.scalar(_US_IN_MS, pa.int64()))
    except pa.ArrowInvalid:
        raise CorruptBatch(BatchFault.BAD_BODY, _time_problem(stored, _offset(source))) from None
    return in_us.view(_ARROW_TYPES["timestamp"])


def _time_problem(stored: Any, offsets: Any) -> str:
    """Say which record has a time that Spark cannot hold: unchecked it would wrap, to 1970 say."""
    limit = pa.scalar(_TIME_MS_MAX, pa.int64())
    late = pc.or_(pc.greater(stored, limit), pc.less(stored, pc.negate(limit)))
    first = pc.index(late, pa.scalar(True)).as_py()
    return (
        f"the timestamp {stored[first]} ms of offset {offsets[first]} is beyond the "
        f"{_TIME_MS_MAX} ms that Spark can hold"
    )


def _headers(source: _Source) -> Any:
    """As the Kafka source has them: null where a record has none."""
    return _joined([_headers_of(each) for each in source.rows])


def _headers_of(rows: _Rows) -> Any:
    if not rows.view.header.has_headers:
        return pa.nulls(rows.size, _ARROW_TYPES[HEADERS])
    stored = rows.of(rows.view.record_batch().column(HEADERS))
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
