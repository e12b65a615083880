"""Columns: what Arrow can turn into ours is taken, the rest is refused by name."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tailrace.record.body import HEADERS_TYPE
from tailrace.record.columns import (
    Column,
    binary_column,
    has_entries,
    headers_column,
    timestamp_column,
)

LOOSE_ENTRY = pa.struct([("k", pa.large_utf8()), ("v", pa.utf8())])
LOOSE_HEADERS = pa.list_(LOOSE_ENTRY)


@pytest.mark.parametrize(
    "kind",
    [
        pa.binary(),
        pa.large_binary(),
        pa.utf8(),
        pa.large_utf8(),
        pa.binary(2),
        pa.binary_view(),
        pa.string_view(),
    ],
)
def test_binary_of_any_kind(kind: pa.DataType) -> None:
    text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    rows = ["ab", None, "cd"] if text or kind == pa.string_view() else [b"ab", None, b"cd"]
    array = pa.array(rows, kind)
    whole = binary_column("values", array)
    assert whole.type == pa.binary()
    assert whole.to_pylist() == [b"ab", None, b"cd"]
    chunked: Column = pa.chunked_array([array, array[1:]])
    assert binary_column("values", chunked).to_pylist() == [b"ab", None, b"cd", None, b"cd"]


def test_nulls_alone_are_binary_too() -> None:
    assert binary_column("keys", pa.nulls(2)).to_pylist() == [None, None]


@pytest.mark.parametrize("array", [pa.array([1]), pa.array([[b"a"]]), pa.array([1.5])])
def test_what_is_not_binary_is_refused(array: Column) -> None:
    with pytest.raises(TypeError, match="values are binary or string, not"):
        binary_column("values", array)


def test_timestamps() -> None:
    assert timestamp_column(5, 2).to_pylist() == [5, 5]
    assert timestamp_column(pa.array([1, 2]), 2).to_pylist() == [1, 2]
    for kind, number in (
        (pa.timestamp("s"), 3),
        (pa.timestamp("ms", "UTC"), 3000),
        (pa.timestamp("us"), 3_000_000),
    ):
        assert timestamp_column(pa.array([number], kind), 1).to_pylist() == [3000]
    with pytest.raises(ValueError, match="would lose data"):
        timestamp_column(pa.array([1], pa.timestamp("us")), 1)
    with pytest.raises(ValueError, match="must not be null"):
        timestamp_column(pa.array([1, None]), 2)
    with pytest.raises(TypeError, match="int64 milliseconds, not int32"):
        timestamp_column(pa.array([1], pa.int32()), 1)


@pytest.mark.parametrize("kind", [LOOSE_HEADERS, pa.large_list(LOOSE_ENTRY)])
def test_headers_of_looser_types(kind: pa.DataType) -> None:
    entries = [{"k": "a", "v": "1"}, {"k": "b", "v": None}]
    array = pa.array([[{"k": "cut", "v": "off"}], entries, None, [], entries[1:]], kind)
    column = headers_column("headers", array[1:])
    assert column is not None
    assert column.type == HEADERS_TYPE
    assert has_entries(column)
    ours = [{"key": "a", "value": b"1"}, {"key": "b", "value": None}]
    assert column.to_pylist() == [ours, [], [], ours[1:]]


def test_headers_of_our_own_type() -> None:
    rows = [[{"key": "a", "value": b"1"}], [], [{"key": "b", "value": None}]]
    column = headers_column("headers", pa.array(rows, HEADERS_TYPE))
    assert column is not None
    assert column.to_pylist() == rows


def test_headers_that_no_row_has_are_none() -> None:
    assert headers_column("headers", pa.array([[], None], LOOSE_HEADERS)) is None


@pytest.mark.parametrize(
    ("error", "array"),
    [
        (TypeError, pa.array([b"a"])),
        (TypeError, pa.array([[b"a"]])),
        (TypeError, pa.array([[{"k": "a"}]])),
        (TypeError, pa.array([[{"k": 1, "v": b""}]])),
        (TypeError, pa.array([[{"k": "a", "v": 1}]])),
        (ValueError, pa.array([[None, {"k": "a", "v": b""}]])),
        (ValueError, pa.array([[{"k": None, "v": b""}]], LOOSE_HEADERS)),
    ],
)
def test_headers_of_other_shapes_are_refused(error: type[Exception], array: Column) -> None:
    with pytest.raises(error, match="headers"):
        headers_column("headers", array)
