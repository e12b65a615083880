"""Filters become bounds that never leave out a row that passes."""

from __future__ import annotations

import operator
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
)

from tailrace_spark.filters import Bounds, Wanted, wanted_by

CHECKS: dict[Any, Callable[[Any, Any], bool]] = {
    EqualTo: operator.eq,
    GreaterThan: operator.gt,
    GreaterThanOrEqual: operator.ge,
    LessThan: operator.lt,
    LessThanOrEqual: operator.le,
    In: lambda value, among: value in among,
}
NUMBERS = st.integers(0, 12)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@st.composite
def _filters(draw: st.DrawFn) -> list[Filter]:
    made: list[Filter] = []
    for kind in draw(st.lists(st.sampled_from(list(CHECKS)), max_size=3)):
        column = draw(st.sampled_from(["partition", "offset", "timestamp"]))
        value: Any = (
            tuple(draw(st.lists(NUMBERS, min_size=1, max_size=3))) if kind is In else draw(NUMBERS)
        )
        if column == "timestamp":
            value = tuple(map(_moment, value)) if kind is In else _moment(value)
        made.append(kind((column,), value))
    return made


def _moment(number: int) -> datetime:
    """Some moments fall between two milliseconds."""
    return EPOCH + timedelta(microseconds=number * 500)


@given(_filters(), NUMBERS, NUMBERS, NUMBERS)
def test_a_row_that_passes_is_never_left_out(
    filters: list[Filter], partition: int, offset: int, time_ms: int
) -> None:
    row = {
        "partition": partition,
        "offset": offset,
        "timestamp": EPOCH + timedelta(milliseconds=time_ms),
    }
    passes = all(CHECKS[type(each)](row[each.attribute[0]], each.value) for each in filters)  # type: ignore[attr-defined]
    wanted = wanted_by(filters)
    inside = (
        wanted.partitions.has(partition)
        and wanted.offsets.has(offset)
        and wanted.times.has(time_ms)
    )
    assert inside or not passes


def test_bounds_are_as_narrow_as_the_filters() -> None:
    wanted = wanted_by(
        [
            EqualTo(("partition",), 3),
            GreaterThan(("offset",), 9),
            LessThanOrEqual(("Offset",), 20),
            GreaterThanOrEqual(("timestamp",), EPOCH + timedelta(milliseconds=7)),
        ]
    )
    assert wanted == Wanted(Bounds(3, 4), Bounds(10, 21), Bounds(7, None))
    assert not wanted.is_all


@pytest.mark.parametrize(
    "each",
    [
        IsNotNull(("offset",)),
        Not(EqualTo(("offset",), 3)),
        EqualTo(("value",), b"x"),
        EqualTo(("headers", "key"), 3),
        In(("offset",), (1, None)),
        In(("offset",), ()),
        EqualTo(("offset",), True),
        EqualTo(("timestamp",), datetime(2024, 1, 1)),  # noqa: DTZ001 - a time without a zone.
    ],
)
def test_what_is_not_understood_bounds_nothing(each: Filter) -> None:
    assert wanted_by([each]).is_all
