"""Fields of a JSON object: what is there has its type, what is not says so."""

from __future__ import annotations

import pytest

from tailrace.errors import CorruptCheckpoint
from tailrace.meta.fields import Fields, number_of, parse_json


@pytest.mark.parametrize(
    ("text", "number"),
    [("0", 0), ("12", 12), ("", None), ("01", None), ("-1", None), ("x", None), ("٣", None)],
)
def test_a_number_has_one_way_to_be_written(text: str, number: int | None) -> None:
    assert number_of(text) == number


def test_a_field_that_came_later_may_be_missing() -> None:
    fields = Fields("/k", parse_json(b'{"version": 1, "a": "x"}', "/k"))
    fields.version(1)
    assert fields.has("a")
    assert not fields.has("b")
    with pytest.raises(CorruptCheckpoint, match="there is no format version 1"):
        fields.version(2)


def test_what_is_wrong_names_the_place_and_is_cut_short() -> None:
    fields = Fields("/k", {"a": "x" * 1_000})
    with pytest.raises(CorruptCheckpoint, match=r"^/k: 'a' is 'x{59}…, not an integer$"):
        fields.integer("a")
