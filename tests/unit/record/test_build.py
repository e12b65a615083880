"""Builders: what goes in comes out, sizes are never underestimated, refusals change nothing."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.errors import BatchTooLarge
from tailrace.record.body import body_schema, encode
from tailrace.record.build import (
    EMPTY_BATCH_BYTES,
    BatchBuilder,
    batch_from_columns,
    buffer_from_columns,
    compacted_batch,
)
from tailrace.record.codec import Compression
from tailrace.record.header import (
    PRODUCED_BODY_BYTES_MAX,
    assemble,
    number,
    numbered,
    read_header,
)
from tailrace.record.view import BatchView, Record

payloads = st.none() | st.binary(max_size=60)
pairs = st.lists(st.tuples(st.text(max_size=8), payloads), max_size=3)


@dataclass(frozen=True)
class Row:
    value: bytes | None
    key: bytes | None
    timestamp_ms: int
    headers: list[tuple[str, bytes | None]]


rows_of_any_kind = st.lists(
    st.builds(Row, payloads, payloads, st.integers(-1, 2**53), pairs), min_size=1, max_size=40
)
plain_rows = st.lists(
    st.builds(Row, payloads, st.none(), st.integers(-1, 2**53), st.just([])),
    min_size=1,
    max_size=40,
)
codecs = st.sampled_from(Compression)


def built(rows: list[Row], codec: Compression = Compression.NONE) -> tuple[BatchBuilder, bytes]:
    builder = BatchBuilder(codec)
    for row in rows:
        builder.append(row.value, row.key, row.timestamp_ms, row.headers)
    return builder, builder.build(base_offset=70)


def expected(rows: list[Row]) -> list[Record]:
    return [
        Record(70 + index, row.timestamp_ms, row.key, row.value, tuple(row.headers))
        for index, row in enumerate(rows)
    ]


def as_columns(rows: list[Row]) -> tuple[pa.Array[Any], ...]:
    kind = pa.list_(pa.struct([("key", pa.utf8()), ("value", pa.binary())]))
    return (
        pa.array([row.key for row in rows], pa.binary()),
        pa.array([row.value for row in rows], pa.binary()),
        pa.array([row.timestamp_ms for row in rows], pa.int64()),
        pa.array([row.headers for row in rows], kind),
    )


@given(rows_of_any_kind | plain_rows, codecs)
@settings(max_examples=300)
def test_records_come_back(rows: list[Row], codec: Compression) -> None:
    builder, batch = built(rows, codec)
    view = BatchView(batch)
    view.verify()
    assert list(view.records()) == expected(rows)
    assert builder.count == view.header.record_count == len(rows)
    assert view.header.first_timestamp_ms == rows[0].timestamp_ms
    assert view.header.max_timestamp_ms == max(row.timestamp_ms for row in rows)
    assert view.header.has_headers is any(row.headers for row in rows)
    assert len(batch) % 8 == 0


@given(rows_of_any_kind, codecs)
@settings(max_examples=200)
def test_columns_make_the_same_batch_as_records(rows: list[Row], codec: Compression) -> None:
    keys, values, timestamps, headers = as_columns(rows)
    whole = batch_from_columns(keys, values, timestamps, headers, compression=codec, base_offset=70)
    assert whole == built(rows, codec)[1]
    halves = [pa.chunked_array([c[:1], c[1:]]) for c in (keys, values, timestamps, headers)]
    assert batch_from_columns(*halves, compression=codec, base_offset=70) == whole


@given(rows_of_any_kind | plain_rows)
@settings(max_examples=300)
def test_size_is_an_upper_bound_and_not_a_bad_one(rows: list[Row]) -> None:
    builder, batch = built(rows)
    assert len(batch) <= builder.size_bytes <= len(batch) + EMPTY_BATCH_BYTES


@pytest.mark.parametrize("value_bytes", [0, 100, 1024])
def test_size_of_many_records_is_close(value_bytes: int) -> None:
    builder = BatchBuilder()
    while builder.size_bytes < 1 << 20:
        builder.append(bytes(value_bytes), None, 5)
    batch = builder.build()
    assert 0.94 < len(batch) / builder.size_bytes <= 1


@given(rows_of_any_kind, codecs, st.data())
@settings(max_examples=200)
def test_compaction_keeps_offsets(rows: list[Row], codec: Compression, data: st.DataObject) -> None:
    view = BatchView(built(rows, codec)[1])
    kept = data.draw(st.lists(st.sampled_from(range(len(rows))), unique=True).map(sorted))
    indices = pa.array(kept, pa.int32())
    other = data.draw(st.none() | codecs)
    compacted = compacted_batch(
        view.header, view.record_batch().take(indices), indices, compression=other
    )
    again = BatchView(compacted)
    again.verify()
    everything = expected(rows)
    assert list(again.records()) == [everything[index] for index in kept]
    assert again.offsets().to_pylist() == [70 + index for index in kept]
    assert again.header.is_compacted
    assert (again.header.base_offset, again.header.last_offset) == (70, 69 + len(rows))
    assert again.header.has_headers is any(rows[index].headers for index in kept)
    # What was compacted once can be compacted again.
    columns = again.record_batch()
    twice = compacted_batch(again.header, columns[1:], columns.column("offset_delta")[1:])
    assert list(BatchView(twice).records()) == [everything[index] for index in kept[1:]]


def test_an_emptied_batch_keeps_its_producer_and_its_times() -> None:
    builder = BatchBuilder()
    builder.append(b"a", None, 5)
    builder.append(b"b", None, 9)
    view = BatchView(builder.build(producer_id=3, producer_epoch=2, base_sequence=8))
    empty = compacted_batch(
        view.header,
        view.record_batch()[:0],
        pa.array([], pa.int32()),
        delete_horizon_ms=44,
    )
    header = read_header(empty)
    assert (header.producer_id, header.producer_epoch, header.last_sequence) == (3, 2, 9)
    assert (header.first_timestamp_ms, header.max_timestamp_ms) == (5, 9)
    assert (header.record_count, header.next_offset, header.delete_horizon_ms) == (0, 2, 44)


@pytest.mark.parametrize("deltas", [[0], [0, 0], [1, 0], [0, 2], [-1, 0], [0, None]])
def test_compaction_refuses_other_offsets(deltas: list[int]) -> None:
    builder = BatchBuilder()
    builder.append(b"a")
    builder.append(b"b")
    view = BatchView(builder.build())
    with pytest.raises(ValueError, match="offset deltas"):
        compacted_batch(view.header, view.record_batch(), pa.array(deltas, pa.int32()))


def test_the_fields_of_a_batch_are_set() -> None:
    builder = BatchBuilder()
    builder.append(b"a")
    header = read_header(
        builder.build(
            producer_id=1,
            producer_epoch=2,
            base_sequence=3,
            base_offset=4,
            leader_epoch=5,
            transactional=True,
            control=True,
        )
    )
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (1, 2, 3)
    assert (header.base_offset, header.leader_epoch) == (4, 5)
    assert header.is_transactional
    assert header.is_control
    assert header.first_timestamp_ms == header.max_timestamp_ms == -1


def test_a_body_that_does_not_shrink_is_stored_as_it_is() -> None:
    for codec in Compression:
        builder = BatchBuilder(codec)
        builder.append(bytes(1))
        small = read_header(builder.build())
        builder.append(bytes(4000))
        assert read_header(builder.build()).compression is codec
        assert small.length - 88 <= small.body_bytes


def test_bytes_of_other_kinds_are_copied() -> None:
    builder = BatchBuilder()
    source = bytearray(b"abc")
    builder.append(source, memoryview(source), 1, [("h", source)])  # type: ignore[arg-type,list-item]
    source[:] = b"xyz"
    (record,) = BatchView(builder.build()).records()
    assert record == Record(0, 1, b"abc", b"abc", (("h", b"abc"),))


@pytest.mark.parametrize(
    ("error", "bad_append"),
    [
        (TypeError, lambda b: b.append("text")),
        (TypeError, lambda b: b.append(b"", "text")),
        (TypeError, lambda b: b.append(7)),
        (ValueError, lambda b: b.append(b"", None, -2)),
        (OverflowError, lambda b: b.append(b"", b"k", 2**63)),
        (TypeError, lambda b: b.append(b"", None, "now")),
        (TypeError, lambda b: b.append(b"", None, 1.5)),
        (TypeError, lambda b: b.append(b"", None, 1, [(b"bytes", b"")])),
        (TypeError, lambda b: b.append(b"", None, 1, [("key", "text")])),
        (ValueError, lambda b: b.append(b"", None, 1, [("\ud800", b"")])),
        (BatchTooLarge, lambda b: b.append(bytes(2000))),
        (BatchTooLarge, lambda b: b.append(b"", None, 1, [("key", bytes(2000))])),
    ],
)
def test_a_refused_record_leaves_no_trace(
    error: type[Exception], bad_append: Callable[[BatchBuilder], None]
) -> None:
    builder = BatchBuilder(limit_bytes=2000)
    builder.append(b"before", None, 1)
    before = builder.build()
    size_bytes = builder.size_bytes
    with pytest.raises(error):
        bad_append(builder)
    assert (builder.count, builder.size_bytes) == (1, size_bytes)
    assert builder.build() == before
    builder.append(b"after", None, 2, [("h", None)])
    assert [record.value for record in BatchView(builder.build()).records()] == [
        b"before",
        b"after",
    ]


def test_no_records_are_no_batch() -> None:
    with pytest.raises(ValueError, match="at least one record"):
        BatchBuilder().build()
    with pytest.raises(ValueError, match="at least one record"):
        batch_from_columns(None, pa.array([], pa.binary()), 5)


def test_columns_are_checked_together() -> None:
    values = pa.array([b"a", b"b"])
    with pytest.raises(ValueError, match="unequal length"):
        batch_from_columns(values[:1], values, 5)
    kind = pa.list_(pa.struct([("key", pa.utf8()), ("value", pa.binary())]))
    with pytest.raises(ValueError, match="unequal length"):
        batch_from_columns(None, values, 5, pa.array([[]], kind))
    with pytest.raises(ValueError, match="before 1970"):
        batch_from_columns(None, values, pa.array([5, -2]))
    with pytest.raises(ValueError, match="producer"):
        batch_from_columns(None, values, 5, producer_id=5)
    with pytest.raises(BatchTooLarge):
        batch_from_columns(None, values, 5, limit_bytes=100)


def test_slices_of_columns_carry_only_their_rows() -> None:
    values = pa.array([b"x" * 100] * 1000)
    batch = batch_from_columns(values[500:502], values[500:502], 5)
    assert len(batch) < 1000
    assert [record.value for record in BatchView(batch).records()] == [b"x" * 100] * 2


def test_the_largest_batch_survives_compaction() -> None:
    """Its offset deltas make a body larger; the limit for producers leaves room for that."""
    count = PRODUCED_BODY_BYTES_MAX // 17
    values = pa.array([b""] * 10, pa.binary()).take(pa.repeat(pa.scalar(0), count))
    batch = batch_from_columns(None, values, 5, compression=Compression.LZ4)
    view = BatchView(batch)
    assert view.header.body_bytes > PRODUCED_BODY_BYTES_MAX * 0.9
    deltas = pa.array(range(count), pa.int32())
    compacted = BatchView(compacted_batch(view.header, view.record_batch(), deltas))
    assert compacted.header.body_bytes > PRODUCED_BODY_BYTES_MAX
    assert compacted.record_batch().num_rows == count


def test_extending_is_appending_each_whatever_is_there_already() -> None:
    for first in ({}, {"key": b"k"}, {"headers": [("a", b"1")]}):
        one, many = BatchBuilder(), BatchBuilder()
        for builder in (one, many):
            builder.append(b"first", timestamp_ms=5, **first)
        values, times = [b"a", b"", b"cc"], array("q", [6, 7, 8])
        for value, time_ms in zip(values, times, strict=True):
            one.append(value, None, time_ms)
        many.extend(values, times, 3)
        assert many.size_bytes == one.size_bytes
        for builder in (one, many):
            builder.append(b"last", key=b"l", timestamp_ms=9, headers=[("b", None)])
        assert many.build() == one.build()


def test_a_run_that_does_not_fit_is_left_out_whole() -> None:
    builder = BatchBuilder(limit_bytes=1_000)
    builder.append(b"a")
    with pytest.raises(BatchTooLarge):
        builder.extend([bytes(500)] * 2, array("q", [1, 2]), 1_000)
    assert builder.count == 1


def by_arrow(
    keys: list[bytes] | None, values: list[bytes], times: list[int], sequence: int = -1
) -> bytes:
    """The batch as Arrow writes its body."""
    columns = pa.RecordBatch.from_arrays(
        [
            pa.nulls(len(values), pa.binary()) if keys is None else pa.array(keys, pa.binary()),
            pa.array(values, pa.binary()),
            pa.array(times, pa.int64()),
        ],
        schema=body_schema(headers=False, compacted=False),
    )
    body = encode(columns)
    count, numbers = len(values), (-1, -1) if sequence < 0 else (7, 2)
    blank = read_header(_one_record())
    header = blank._replace(
        last_offset_delta=count - 1,
        base_sequence=sequence,
        first_timestamp_ms=times[0],
        max_timestamp_ms=max(times),
        producer_id=numbers[0],
        producer_epoch=numbers[1],
        record_count=count,
        body_bytes=body.size,
    )
    return assemble(header, body)


def _one_record() -> bytes:
    builder = BatchBuilder()
    builder.append(b"x", None, 1)
    return builder.build()


@given(
    st.lists(st.binary(max_size=40), min_size=1, max_size=70),
    st.booleans(),
    st.integers(0, 2**53),
    st.integers(0, 2**30),
)
def test_plain_records_are_written_as_arrow_would(
    values: list[bytes], has_keys: bool, time_ms: int, sequence: int
) -> None:
    """The writer of our own for records without headers and nulls, beside Arrow's."""
    builder = BatchBuilder()
    times = [time_ms + index for index in range(len(values))]
    keys = [each[::2] for each in reversed(values)] if has_keys else None
    for index, value in enumerate(values):
        builder.append(value, keys[index] if keys else None, times[index])
    whole = builder.build_buffer(producer_id=7, producer_epoch=2, base_sequence=sequence)
    assert isinstance(whole, memoryview)
    assert whole.readonly
    assert whole == by_arrow(keys, values, times, sequence)


@given(
    st.lists(st.binary(max_size=40), min_size=1, max_size=70),
    st.booleans(),
    st.integers(0, 5),
    st.integers(0, 5),
)
def test_plain_columns_are_written_as_arrow_would(
    values: list[bytes], has_keys: bool, before: int, after: int
) -> None:
    """Also when they are part of longer columns, or come with a bitmap that has no null in it."""
    rows = len(values)
    times = list(range(100, 100 + rows))
    keys = [each[::2] for each in reversed(values)] if has_keys else None

    def part(column: list[Any], around: Any, kind: Any) -> Any:
        return pa.array([around] * before + column + [around] * after, kind).slice(before, rows)

    whole = buffer_from_columns(
        None if keys is None else part(keys, b"key" if after % 2 else None, pa.binary()),
        part(values, b"value" if before % 2 else None, pa.binary()),
        part(times, 5, pa.int64()),
        producer_id=7,
        producer_epoch=2,
        base_sequence=9,
    )
    assert isinstance(whole, memoryview)
    assert whole == by_arrow(keys, values, times, 9)


def test_thousands_of_plain_records_are_written_as_arrow_would() -> None:
    values = [b"%d" % (index * index) for index in range(5_001)]
    builder = BatchBuilder()
    builder.extend(values, array("q", range(5_001)), sum(map(len, values)))
    assert builder.build() == by_arrow(None, values, list(range(5_001)))
    column = pa.chunked_array([values[:9], values[9:]], pa.binary())
    times = pa.array(range(5_001), pa.int64())
    assert batch_from_columns(None, column, times) == builder.build()


@pytest.mark.parametrize("keys", [[b"k", None], [None, b"k"]])
def test_a_key_that_is_null_takes_the_way_of_arrow(keys: list[bytes | None]) -> None:
    builder = BatchBuilder()
    for key in keys:
        builder.append(b"v", key, 1)
    assert isinstance(builder.build_buffer(), bytes)
    assert [each.key for each in BatchView(builder.build()).records()] == keys
    whole = buffer_from_columns(pa.array(keys, pa.binary()), pa.array([b"v", b"v"]), 1)
    assert whole == builder.build()


@pytest.mark.parametrize("compression", [Compression.NONE, Compression.LZ4])
def test_a_batch_gets_its_numbers_after_it_was_built(compression: Compression) -> None:
    values = pa.array([bytes(100)] * 50, pa.binary())
    numbers = {"producer_id": 7, "producer_epoch": 2, "base_sequence": 3}
    wanted = batch_from_columns(None, values, 5, compression=compression, **numbers)  # type: ignore[arg-type]
    built = buffer_from_columns(None, values, 5, compression=compression)
    before = bytes(built)
    assert numbered(built, 7, 2, 3) == wanted
    assert built == before
    stamped = number(built, 7, 2, 3)
    assert stamped == wanted
    # In place where the buffer is its own.
    assert (built == wanted) is (compression is Compression.NONE)
    # A piece of something larger is left alone.
    piece = memoryview(bytearray(before) + b"more")[: len(before)]
    assert number(piece, 7, 2, 3) == wanted
    assert piece == before


def test_a_value_that_is_null_takes_the_way_of_arrow() -> None:
    builder = BatchBuilder()
    builder.append(b"one", None, 1)
    builder.append(None, None, 2)
    assert isinstance(builder.build_buffer(), bytes)
    assert [each.value for each in BatchView(builder.build()).records()] == [b"one", None]
