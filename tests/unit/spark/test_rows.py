"""Where rows go, whatever the order in which they come, and which of them a log has already."""

from __future__ import annotations

from datetime import UTC, datetime
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.record.view import Record
from tailrace_spark.layout import WrongRows
from tailrace_spark.rows import Ledger, Placement

SIZES = {"t": 3, "u": 2}
HEADERS = pa.list_(pa.struct([pa.field("key", pa.utf8()), pa.field("value", pa.binary())]))
KEYS = st.one_of(st.none(), st.binary(max_size=2))
ROWS = st.lists(st.tuples(KEYS, st.one_of(st.none(), st.binary(max_size=2))), max_size=30)


def _batch(**columns: Any) -> pa.RecordBatch:
    kinds = {"key": pa.binary(), "value": pa.binary(), "partition": pa.int32()}
    return pa.RecordBatch.from_arrays(
        [pa.array(each, kinds.get(name)) for name, each in columns.items()], names=list(columns)
    )


def _placement(topic: str = "t", turn: int = 4) -> Placement:
    return Placement(topic, SIZES.__getitem__, turn)


def _places(batch: pa.RecordBatch, topic: str = "t") -> dict[str, list[Any]]:
    return {
        str(piece.partition): piece.rows.column("value").to_pylist()
        for piece in _placement(topic).pieces(batch)
    }


@given(ROWS, st.randoms(use_true_random=False))
def test_a_row_goes_to_the_same_partition_in_any_order(rows: list[Any], rng: Random) -> None:
    def spread(order: list[Any]) -> dict[str, list[Any]]:
        placed = _places(_batch(key=[k for k, _ in order], value=[v for _, v in order]))
        return {name: sorted(values, key=repr) for name, values in placed.items()}

    shuffled = list(rows)
    rng.shuffle(shuffled)
    assert spread(rows) == spread(shuffled)
    assert sum(map(len, spread(rows).values())) == len(rows)


def test_rows_of_a_partition_keep_their_order() -> None:
    values = [b"%d" % number for number in range(100)]
    placed = _places(_batch(key=[b"k%d" % (n % 7) for n in range(100)], value=values))
    for each in placed.values():
        assert each == sorted(each, key=int)


def test_rows_without_a_key_stay_together_and_take_turns() -> None:
    batch = _batch(value=[b"a", b"b"])
    found = [next(_placement(turn=turn).pieces(batch)).partition for turn in range(4)]
    assert [each.partition for each in found] == [0, 1, 2, 0]


def test_topics_and_partitions_by_column() -> None:
    batch = _batch(
        topic=["u", None, "u", "t"], partition=[1, 2, 0, None], value=[b"a", b"b", b"c", b"d"]
    )
    assert _places(batch) == {"t-1": [b"d"], "t-2": [b"b"], "u-0": [b"c"], "u-1": [b"a"]}


def test_times_are_cut_to_milliseconds_and_text_is_bytes() -> None:
    times = pa.array([datetime(2024, 1, 1, 0, 0, 0, 1999, UTC)], pa.timestamp("us", "UTC"))
    batch = pa.RecordBatch.from_arrays(
        [pa.array(["k"]), pa.array(["é"]), times], names=["key", "value", "timestamp"]
    )
    (piece,) = _placement().pieces(batch)
    assert piece.rows.to_pylist() == [
        {"key": b"k", "value": "é".encode(), "timestamp": 1_704_067_200_001}
    ]


@pytest.mark.parametrize(
    ("columns", "topic", "message"),
    [
        ({"value": [b"a"]}, "", "topic: give the option"),
        ({"value": [b"a"], "topic": pa.array([None], pa.utf8())}, "", "topic: a row has none"),
        ({"value": [b"a"], "partition": [3]}, "t", "partition: t has partitions 0 to 2, not 3"),
        ({"value": [b"a"], "partition": [-1]}, "t", "not -1"),
        ({"value": [b"a"], "timestamp": pa.array([None], pa.timestamp("us"))}, "t", "timestamp: a"),
        ({"value": [b"a"], "timestamp": pa.array([-1], pa.timestamp("ms"))}, "t", "before 1970"),
        ({"value": [b"a"], "headers": pa.array([[None]], HEADERS)}, "t", "headers: one is null"),
        (
            {"value": [b"a"], "headers": pa.array([[{"key": None, "value": b"x"}]], HEADERS)},
            "t",
            "headers: one is null or has a null key",
        ),
    ],
)
def test_rows_that_cannot_be_placed(columns: dict[str, Any], topic: str, message: str) -> None:
    with pytest.raises(WrongRows, match=message):
        list(_placement(topic).pieces(_batch(**columns)))


def test_no_rows_no_pieces() -> None:
    assert list(_placement().pieces(_batch(value=[]))) == []


@given(ROWS, st.integers(0, 30), st.randoms(use_true_random=False))
def test_what_a_log_has_is_struck_off_once(rows: list[Any], count: int, rng: Random) -> None:
    ledger = Ledger(timed=False)
    order = list(rows)
    rng.shuffle(order)
    ledger.add([Record(0, 9, key, value, ()) for key, value in order[:count]])
    left = ledger.unwritten(_batch(key=[k for k, _ in rows], value=[v for _, v in rows]))
    found = [(row["key"], row["value"]) for row in left.to_pylist()]
    assert sorted(found, key=repr) == sorted(order[count:], key=repr)
    assert len(ledger) == 0


def test_headers_and_times_tell_rows_apart() -> None:
    ledger = Ledger(timed=True)
    ledger.add([Record(0, 5, None, b"v", (("h", b"1"), ("i", None)))])
    kind = pa.list_(pa.struct([("key", pa.utf8()), ("value", pa.binary())]))
    headers = [{"key": "h", "value": b"1"}, {"key": "i", "value": None}]
    rows = pa.RecordBatch.from_arrays(
        [
            pa.array([b"v"] * 4, pa.binary()),
            pa.array([6, 5, 5, 5]),
            pa.array([headers, None, headers[:1], headers], kind),
        ],
        names=["value", "timestamp", "headers"],
    )
    assert ledger.unwritten(rows).num_rows == 3
    assert len(ledger) == 0
