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


@pytest.mark.parametrize(("rows", "pieces"), [(1, 1), (14, 1), (16, 2), (24, 2), (26, 3)])
def test_pieces_are_as_many_as_come_nearest_to_the_size_of_a_batch(rows: int, pieces: int) -> None:
    # Each row counts for 200 bytes: its own, an offset of 4, and what stands around it.
    found = cut({"value": pa.array([bytes(164)] * rows, pa.binary())}, SMALL, 7)
    assert len(found) == pieces
    assert max(each.rows for each in found) - min(each.rows for each in found) <= 1


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
