"""Whole columns on their way into batches."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.client.partitioner import by_key
from tailrace.client.settings import ProducerSettings
from tailrace.client.tables import cut, spread
from tailrace.errors import BatchTooLarge
from tailrace.record.view import BatchView

SMALL = ProducerSettings(batch_size=2_000, max_request_size=4_000)


def _records(data: bytes | memoryview) -> list[Any]:
    return list(BatchView(data).records())


@given(st.lists(st.binary(max_size=400), min_size=1, max_size=60))
def test_nothing_is_lost_by_cutting(values: list[bytes]) -> None:
    pieces = cut({"value": values}, SMALL, 7)
    built = [piece.build(SMALL) for piece in pieces]
    assert [record.value for data in built for record in _records(data)] == values
    assert all(record.timestamp_ms == 7 for data in built for record in _records(data))


@given(
    st.integers(1, 300),
    st.integers(0, 600),
    st.booleans(),
    st.booleans(),
    st.integers(1_500, 100_000),
)
def test_no_piece_of_rows_that_are_alike_is_larger_than_a_batch_may_be(
    rows: int, size: int, has_keys: bool, has_times: bool, batch_size: int
) -> None:
    """A topic may take no more. One that fits is not cut."""
    columns: dict[str, Any] = {"value": pa.array([bytes(size)] * rows, pa.binary())}
    if has_keys:
        columns["key"] = pa.array([b"key", *[None] * (rows - 1)], pa.binary())
    if has_times:
        columns["timestamp"] = pa.array([7] * rows, pa.int64())
    settings = ProducerSettings(batch_size=batch_size)
    pieces = cut(columns, settings, 7)
    sizes = [len(each.build(settings)) for each in pieces]
    assert max(sizes) <= batch_size or max(each.rows for each in pieces) == 1
    assert sum(each.rows for each in pieces) == rows
    if rows * (size + 30) + 1_100 <= batch_size:
        assert len(pieces) == 1


@pytest.mark.parametrize("kind", ["mapping", "batch", "table"])
def test_columns_of_every_kind(kind: str) -> None:
    columns: Any = {
        "key": pa.array(["a", None]),
        "value": pa.array([b"1", None]),
        "timestamp": pa.array([5, 6]),
        "headers": pa.array(
            [[{"key": "h", "value": b"x"}], None],
            pa.list_(pa.struct([("key", pa.utf8()), ("value", pa.binary())])),
        ),
    }
    if kind == "batch":
        columns = pa.record_batch(columns)
    elif kind == "table":
        columns = pa.table(columns)
    (piece,) = cut(columns, SMALL, 0)
    assert [tuple(each)[1:] for each in _records(piece.build(SMALL))] == [
        (5, b"a", b"1", (("h", b"x"),)),
        (6, None, None, ()),
    ]


@given(st.lists(st.one_of(st.none(), st.integers(0, 9)), min_size=1, max_size=50))
def test_rows_are_spread_by_key_and_keep_their_order(numbers: list[int | None]) -> None:
    keys = [None if each is None else b"%d" % each for each in numbers]
    values = [b"%d" % index for index in range(len(keys))]
    (piece,) = cut({"key": pa.array(keys, pa.binary()), "value": values}, ProducerSettings(), 0)
    seen: list[bytes] = []
    for part, place in spread(piece, by_key, "t", 3, None):
        records = _records(part.build(ProducerSettings()))
        order = [int(record.value) for record in records]
        assert order == sorted(order)
        assert {by_key("t", record.key, 3) for record in records} == {place}
        seen += [record.value for record in records]
    assert sorted(seen, key=int) == values


def test_a_partition_that_is_given_counts() -> None:
    (piece,) = cut({"key": [b"a", b"b"], "value": [b"1", b"2"]}, SMALL, 0)
    assert [place for _, place in spread(piece, by_key, "t", 3, 2)] == [2]
    assert [place for _, place in spread(piece, by_key, "t", 1, None)] == [None]


def test_what_cannot_be_is_refused() -> None:
    assert cut({"value": []}, SMALL, 0) == []
    with pytest.raises(TypeError, match="colour"):
        cut({"value": [b"1"], "colour": [b"2"]}, SMALL, 0)
    with pytest.raises(TypeError, match="without it"):
        cut({"key": [b"1"]}, SMALL, 0)
    with pytest.raises(BatchTooLarge, match="max_request_size=4000"):
        cut({"value": [b"1", bytes(10_000)]}, SMALL, 0)
