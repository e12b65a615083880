"""Batches as rows and as columns: from an offset on, compacted or not, with headers or without."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from tailrace.client.fetch_plan import Fetched
from tailrace.client.records import SCHEMA, SCHEMA_WITH_HEADERS, rows_of, table_of
from tailrace.model import TopicPartition
from tailrace.record.build import BatchBuilder, batch_from_columns, compacted_batch
from tailrace.record.header import read_header
from tailrace.record.view import BatchView

T = TopicPartition("t", 3)


def fetched(data: bytes) -> Fetched:
    return Fetched(read_header(data), data)


def plain(**options: Any) -> Fetched:
    builder = BatchBuilder()
    for number in range(4):
        builder.append(b"v%d" % number, key=b"k" if number else None, timestamp_ms=10 + number)
    return fetched(builder.build(base_offset=100, leader_epoch=7, **options))


def compacted() -> Fetched:
    whole = BatchView(
        batch_from_columns(
            None, pa.array([b"a", *[b"x"] * 2, None, *[b"x"] * 4, b"c", b"x"]), 5, base_offset=100
        )
    )
    kept = pa.array([0, 3, 8])
    return fetched(compacted_batch(whole.header, whole.record_batch().take(kept), kept))


@pytest.mark.parametrize(("first", "expected"), [(0, 4), (100, 4), (102, 2), (104, 0)])
def test_rows_from_an_offset_on(first: int, expected: int) -> None:
    rows, problem = rows_of(plain(), T, first)
    assert (len(rows), problem) == (expected, None)
    if rows:
        assert rows[-1] == ("t", 3, 103, 13, b"k", b"v3", ())
    table = table_of(plain(), T, first)
    assert (table.num_rows if table is not None else 0) == expected


def test_columns_hold_what_rows_do() -> None:
    for batch in (plain(), compacted()):
        table = table_of(batch, T, 0)
        assert table is not None
        assert table.schema == SCHEMA
        table.validate(full=True)
        rows, _ = rows_of(batch, T, 0)
        assert [
            (each["topic"], each["partition"], each["offset"], each["key"], each["value"])
            for each in table.to_pylist()
        ] == [(each.topic, each.partition, each.offset, each.key, each.value) for each in rows]
        times = table.column("timestamp").cast(pa.int64()).to_pylist()
        assert times == [each.timestamp_ms for each in rows]


def test_compacted_batches_keep_their_offsets() -> None:
    rows, _ = rows_of(compacted(), T, 101)
    assert [(each.offset, each.value) for each in rows] == [(103, None), (108, b"c")]
    table = table_of(compacted(), T, 101)
    assert table is not None
    assert table.column("offset").to_pylist() == [103, 108]


def test_headers_are_there_where_they_are_asked_for() -> None:
    builder = BatchBuilder()
    builder.append(b"v", headers=[("h", b"1"), ("h", None)], timestamp_ms=1)
    with_headers = fetched(builder.build())
    rows, _ = rows_of(with_headers, T, 0)
    assert rows[0].headers == (("h", b"1"), ("h", None))
    for batch, expected in ((with_headers, 0), (plain(), 4)):
        table = table_of(batch, T, 0, headers=True)
        assert table is not None
        assert (table.schema, table.column("headers").null_count) == (SCHEMA_WITH_HEADERS, expected)


def test_markers_are_not_shown() -> None:
    assert rows_of(plain(control=True), T, 0) == ([], None)
    assert table_of(plain(control=True), T, 0) is None


def test_deserializers_see_bytes_only_and_end_at_what_they_cannot_read() -> None:
    rows, problem = rows_of(plain(), T, 0, bytes.decode, lambda data: int(data[1:]))
    assert [(each.key, each.value) for each in rows] == [
        *((None, 0), ("k", 1), ("k", 2), ("k", 3)),
    ]
    assert problem is None

    def picky(data: bytes) -> bytes:
        if data == b"v2":
            raise KeyError("no")
        return data

    rows, problem = rows_of(plain(), T, 101, None, picky)
    assert [each.value for each in rows] == [b"v1"]
    assert problem is not None
    assert (problem.offset, "value of t-3 at offset 102" in str(problem)) == (102, True)
    rows, problem = rows_of(plain(), T, 100, lambda _: 1 / 0, picky)
    assert ([each.offset for each in rows], problem and problem.offset) == ([100], 101)
