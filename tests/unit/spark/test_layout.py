"""The columns that a query asks for, and those that it cannot have."""

from __future__ import annotations

import pytest

from tailrace_spark.layout import SPARK_TYPES, Layout, WrongSchema, default_layout, layout_of
from unit.spark.conftest import struct


def test_headers_only_when_they_are_asked_for() -> None:
    assert default_layout(headers=True).names == tuple(SPARK_TYPES)
    assert default_layout(headers=False).names == tuple(SPARK_TYPES)[:-1]


def test_order_and_what_may_not_be_null_are_kept() -> None:
    found = layout_of(struct(offset="bigint!", value="binary"))
    assert found == Layout(("offset", "value"), frozenset({"offset"}))


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"value": "binary", "colour": "string"}, "no column colour"),
        ({"value": "string"}, "column value is binary, not string; cast it"),
        ({"timestamp": "bigint"}, "column timestamp is timestamp"),
        ({"value": "binary!"}, "may be null"),
        ({"headers": "array<string>"}, "column headers is array"),
        ({}, "none given"),
    ],
)
def test_a_schema_that_cannot_be_filled(columns: dict[str, str], message: str) -> None:
    with pytest.raises(WrongSchema, match=message):
        layout_of(struct(**columns))
