"""Rows of stored batches in exactly Spark's schema, cut to the range, compacted or not."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema

from tailrace.record.build import BatchBuilder, compacted_batch
from tailrace.record.view import BatchView
from tailrace_spark.columns import Part, rows_of, schema_of
from tailrace_spark.layout import SPARK_TYPES, Layout, default_layout, layout_of
from tailrace_spark.offsets import ReadRange
from unit.spark.conftest import struct

ALL = default_layout(headers=True)
RECORDS: list[tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]]]] = [
    (b"k", b"v", []),
    (None, b"", [("a", b"1"), ("b", None)]),
    (b"", None, []),
]


def _view(base: int = 10, *, headers: bool = True) -> BatchView:
    builder = BatchBuilder()
    for number, (key, value, pairs) in enumerate(RECORDS):
        builder.append(value, key, 1_700_000_000_000 + number, pairs if headers else None)
    return BatchView(builder.build(base_offset=base))


def _range(start: int, end: int) -> ReadRange:
    return ReadRange(topic="orders", topic_id="i", partition=7, start=start, end=end)


def _rows(view: BatchView, start: int, end: int, layout: Layout = ALL) -> Any:
    return rows_of([Part(_range(start, end), view)], layout)


def test_the_schema_is_spark_s_own() -> None:
    schema = struct(**SPARK_TYPES)
    expected = to_arrow_schema(schema, timezone="UTC")
    assert layout_of(schema) == ALL
    assert expected.equals(schema_of(ALL))
    assert expected.equals(_rows(_view(), 0, 99).schema)
    assert expected.equals(_rows(_view(headers=False), 0, 99).schema)


def test_rows_with_all_columns() -> None:
    rows = _rows(_view(), 0, 99).to_pylist()
    assert [(row["key"], row["value"]) for row in rows] == [r[:2] for r in RECORDS]
    assert {(row["topic"], row["partition"]) for row in rows} == {("orders", 7)}
    assert [row["offset"] for row in rows] == [10, 11, 12]
    assert [row["timestamp"].timestamp() * 1000 for row in rows] == [
        1_700_000_000_000 + number for number in range(3)
    ]
    assert [row["headers"] for row in rows] == [
        None,
        [{"key": "a", "value": b"1"}, {"key": "b", "value": None}],
        None,
    ]


@pytest.mark.parametrize("compacted", [False, True])
def test_only_what_lies_in_the_range(compacted: bool) -> None:
    view = _compacted() if compacted else _view()
    offsets = [10, 14, 19] if compacted else [10, 11, 12]
    for start in range(8, 22):
        for end in range(start, 22):
            rows = _rows(view, start, end, Layout(("offset", "value")))
            found = [] if rows is None else rows.column("offset").to_pylist()
            assert found == [each for each in offsets if start <= each < end]


def test_columns_in_the_order_that_is_asked_for() -> None:
    layout = Layout(("offset", "value"), frozenset({"offset"}))
    rows = _rows(_view(), 11, 12, layout)
    assert rows.to_pylist() == [{"offset": 11, "value": b""}]
    assert [each.nullable for each in rows.schema] == [False, True]


def test_control_batches_have_no_rows() -> None:
    builder = BatchBuilder()
    builder.append(b"x", b"k")
    assert _rows(BatchView(builder.build(base_offset=0, control=True)), 0, 9) is None


def test_batches_are_joined() -> None:
    """Each cut to its own range; what one of them lacks is null in its rows only."""
    parts = [
        Part(_range(11, 99), _view(10)),
        Part(_range(13, 15), _view(13, headers=False)),
        Part(_range(16, 16), _view(16)),
    ]
    rows: Any = rows_of(parts, ALL)
    assert rows.schema.equals(schema_of(ALL))
    assert rows.column("offset").to_pylist() == [11, 12, 13, 14]
    assert rows.column("value").to_pylist() == [b"", None, b"v", b""]
    assert rows.column("topic").to_pylist() == ["orders"] * 4
    assert rows.column("partition").to_pylist() == [7] * 4
    assert [each is None for each in rows.column("headers").to_pylist()] == [
        False,
        True,
        True,
        True,
    ]
    assert rows_of(parts[2:], ALL) is None


def test_gaps_between_and_within_batches_stay() -> None:
    wide = _range(0, 99)
    parts = [Part(wide, _view(5)), Part(wide, _compacted()), Part(wide, _view(30))]
    rows: Any = rows_of(parts, Layout(("offset",)))
    assert rows.column("offset").to_pylist() == [5, 6, 7, 10, 14, 19, 30, 31, 32]
    rows = rows_of([parts[0], parts[2]], Layout(("offset",)))
    assert rows.column("offset").to_pylist() == [5, 6, 7, 30, 31, 32]


def _compacted() -> BatchView:
    """Offsets 10, 14 and 19 are left of ten records."""
    builder = BatchBuilder()
    for number in range(10):
        builder.append(b"%d" % number, b"k", 5)
    whole = BatchView(builder.build(base_offset=10))
    left = pa.array([0, 4, 9], pa.int32())
    kept = whole.record_batch().take(left)
    return BatchView(compacted_batch(whole.header, kept, left))
