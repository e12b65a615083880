"""Batches as a consumer hands them out: as light records, or as Arrow batches. Pure.

Neither way touches single records where Arrow can do it for all of them. What lies below the offset
that was asked for, and batches that are markers, are left out.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Sequence
from itertools import repeat
from typing import Any, Final, NamedTuple, cast

import pyarrow as pa
import pyarrow.compute as pc

from tailrace.client.fetch_plan import Fetched
from tailrace.client.serializers import Deserializer
from tailrace.errors import DeserializationFailed
from tailrace.model import TopicPartition
from tailrace.record.body import HEADERS_TYPE
from tailrace.record.view import Headers, headers_of


class ConsumerRecord(NamedTuple):
    """One record; `value` None is a tombstone."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: Any
    value: Any
    headers: Headers


TIMESTAMP: Final = pa.timestamp("ms", tz="UTC")
SCHEMA: Final = pa.schema(
    [
        pa.field("topic", pa.dictionary(pa.int8(), pa.utf8()), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp", TIMESTAMP, nullable=False),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
    ]
)
"""The columns of `batches()`; one more, `headers`, when it is asked for."""
SCHEMA_WITH_HEADERS: Final = SCHEMA.append(pa.field("headers", HEADERS_TYPE))


def rows_of(
    fetched: Fetched,
    partition: TopicPartition,
    first: int,
    key: Deserializer | None = None,
    value: Deserializer | None = None,
) -> tuple[list[ConsumerRecord], DeserializationFailed | None]:
    """The records of a batch from offset `first` on, and why they end early, if they do.

    Deserializers never see None.
    """
    header = fetched.header
    if header.is_control or not header.record_count:
        return [], None
    view = fetched.view
    columns = view.record_batch()
    offsets: Sequence[int]
    if header.is_compacted:
        kept = pc.greater_equal(view.offsets(), pa.scalar(first, pa.int64()))
        offsets = cast("list[int]", view.offsets().filter(kept).to_pylist())
        columns = columns.filter(kept)
    else:
        skipped = max(first - header.base_offset, 0)
        columns = columns.slice(skipped) if skipped else columns
        offsets = range(header.base_offset + skipped, header.next_offset)
    keys: list[Any] = columns.column("key").to_pylist()
    values: list[Any] = columns.column("value").to_pylist()
    problem: DeserializationFailed | None = None
    for name, deserializer, column in (("key", key, keys), ("value", value, values)):
        if deserializer is not None:
            bad = _deserialize(deserializer, name, column, partition, offsets)
            problem = bad if bad and (problem is None or bad.offset < problem.offset) else problem
    rows = _made(
        zip(
            repeat(partition.topic),
            repeat(partition.partition),
            offsets,
            columns.column("timestamp").to_pylist(),
            keys,
            values,
            headers_of(columns) if header.has_headers else repeat(()),
            strict=False,
        )
    )
    if problem is not None:
        rows = [each for each in rows if each.offset < problem.offset]
    return rows, problem


def table_of(
    fetched: Fetched, partition: TopicPartition, first: int, *, headers: bool = False
) -> pa.RecordBatch | None:
    """The records of a batch from offset `first` on, as columns; None when there are none."""
    header = fetched.header
    if header.is_control or not header.record_count:
        return None
    view = fetched.view
    columns = view.record_batch()
    count = columns.num_rows
    is_short = count <= ROWS_AT_HAND
    if header.is_compacted or not is_short:
        offsets = view.offsets()
    else:
        offsets = pc.add(_NUMBERS.slice(0, count), pa.scalar(header.base_offset, pa.int64()))
    arrays = [
        pa.DictionaryArray.from_arrays(
            _ZEROS.slice(0, count) if is_short else pa.repeat(_ZERO, count),
            pa.array([partition.topic], pa.utf8()),
        ),
        pa.repeat(pa.scalar(partition.partition, pa.int32()), count),
        offsets,
        columns.column("timestamp").view(TIMESTAMP),
        columns.column("key"),
        columns.column("value"),
    ]
    if headers:
        arrays.append(
            columns.column("headers") if header.has_headers else pa.nulls(count, HEADERS_TYPE)
        )
    schema = SCHEMA_WITH_HEADERS if headers else SCHEMA
    found = pa.RecordBatch.from_arrays(arrays, schema=schema)
    if first > header.base_offset:
        if header.is_compacted:
            found = found.filter(pc.greater_equal(offsets, pa.scalar(first, pa.int64())))
        else:
            found = found.slice(first - header.base_offset)
    return found if found.num_rows else None


_ZERO: Final = pa.scalar(0, pa.int8())
# What all batches share: to slice it costs less than to make it.
ROWS_AT_HAND: Final = 1 << 16
_ZEROS: Final = pa.repeat(_ZERO, ROWS_AT_HAND)
_NUMBERS: Final = pa.array(range(ROWS_AT_HAND), pa.int64())


def _made(rows: Iterable[tuple[Any, ...]]) -> list[ConsumerRecord]:
    """What `ConsumerRecord._make` does, for all of them at once; the collector rests."""
    made = map(_NEW, repeat(ConsumerRecord), rows)
    if not gc.isenabled():
        # Who turned it off will turn it on, maybe before we are done.
        return list(made)
    try:
        gc.disable()
        return list(made)
    finally:
        gc.enable()


_NEW: Final = cast("Callable[..., ConsumerRecord]", tuple.__new__)


def _deserialize(
    deserializer: Deserializer,
    what: str,
    column: list[Any],
    partition: TopicPartition,
    offsets: Sequence[int],
) -> DeserializationFailed | None:
    """Deserialize a column in its place, up to what cannot be read; say what that is."""
    at = 0
    try:
        for data in column:
            if data is not None:
                column[at] = deserializer(data)
            at += 1
    except Exception as error:  # noqa: BLE001 - a program's own function may raise anything.
        return DeserializationFailed(
            f"the {what} of {partition} at offset {offsets[at]} cannot be read: {error!r}; seek "
            f"to {offsets[at] + 1} to go on behind it",
            offset=offsets[at],
        )
    return None
