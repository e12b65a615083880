"""What a program hands over is looked at in the call itself."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from tailrace.client.arguments import (
    check_columns,
    check_offset,
    check_place,
    header_pairs,
    milliseconds,
    partitions_given,
    record_limit,
    topic_names,
)
from tailrace.errors import InvalidRequest, InvalidTopic
from tailrace.model import TopicPartition


def test_what_can_be_is_taken() -> None:
    check_place("orders")
    check_place("orders", 0, 0)
    check_columns({"value": [b"a"]})
    check_columns(pa.table({"value": [b"a"]}))
    check_columns(pa.record_batch({"value": [b"a"]}))
    pairs = [("a", b"1"), ("a", None), ("b", bytearray(b"2"))]
    assert header_pairs(pairs) == pairs
    assert header_pairs(iter(pairs)) == pairs
    assert header_pairs({"a": b"1", "b": None}) == [("a", b"1"), ("b", None)]


@pytest.mark.parametrize("wrong", [("orders", 0), "orders", [TopicPartition("orders", 0)], None])
def test_partitions_are_named_by_their_kind(wrong: Any) -> None:
    good = TopicPartition("orders", 0)
    assert partitions_given(iter([good])) == [good]
    with pytest.raises(TypeError, match=r"a partition is a TopicPartition\(topic, number\), not "):
        partitions_given([good, wrong])


@pytest.mark.parametrize(
    ("given", "kind", "said"),
    [
        ((None,), TypeError, "a topic is named by a str, not None"),
        ((b"orders",), TypeError, "a topic is named by a str, not bytes"),
        (("a b",), InvalidTopic, "'a b': a topic name is made of letters"),
        (("",), InvalidTopic, "must not be empty"),
        (("t", -1), InvalidRequest, "partition -1: they are counted from 0 on"),
        (("t", "1"), TypeError, "a partition is a number from 0 on, or None, not str"),
        (("t", True), TypeError, "a partition is a number from 0 on, or None, not bool"),
        (("t", None, 1.5), TypeError, "whole milliseconds since 1970, not float"),
    ],
)
def test_places_that_cannot_be(given: Any, kind: type[Exception], said: str) -> None:
    with pytest.raises(kind, match=said):
        check_place(*given)


@pytest.mark.parametrize(
    ("headers", "said"),
    [
        ("ab", r"headers are a list of \(name, value\) pairs, or a mapping, not str"),
        (7, "or a mapping, not int"),
        (["ab"], "one of them is str"),
        ([("a", b"1", b"2")], "one of them is tuple"),
        ([(b"a", b"1")], "the name of a header is a str, not bytes"),
        ([("a", "1")], "header 'a': its value is bytes or None, not str: encode it"),
        ({"a": 1}, "header 'a': its value is bytes or None, not int"),
    ],
)
def test_headers_that_cannot_be(headers: Any, said: str) -> None:
    with pytest.raises(TypeError, match=said):
        header_pairs(headers)


@pytest.mark.parametrize("columns", [[b"a"], b"a", None])
def test_columns_that_are_none(columns: Any) -> None:
    with pytest.raises(TypeError, match=r"send_batch takes columns: .* not (list|bytes|None)"):
        check_columns(columns)


def test_times_to_wait() -> None:
    assert [milliseconds(each) for each in (None, 2, 0.5, -1)] == [None, 2_000, 500, 0]
    # Text times a thousand is long text.
    with pytest.raises(TypeError, match="number of seconds, or None, not str"):
        milliseconds("1")


def test_topics_to_subscribe_to() -> None:
    assert topic_names("orders") == ["orders"]
    assert topic_names(iter(["a", "b"])) == ["a", "b"]
    for wrong in (5, [5], None):
        with pytest.raises(TypeError, match=r"not (int|None)"):
            topic_names(wrong)


def test_how_many_records_a_poll_gives() -> None:
    assert (record_limit(None, 500), record_limit(7, 500)) == (500, 7)
    for wrong in (0, -1):
        with pytest.raises(InvalidRequest, match="at least 1"):
            record_limit(wrong, 500)
    with pytest.raises(TypeError, match="a number from 1 on"):
        record_limit("7", 500)


def test_offsets_to_go_to() -> None:
    check_offset(0)
    with pytest.raises(InvalidRequest, match="offset -4 is below 0"):
        check_offset(-4)
    for wrong in ("5", "earliest", None, 5.0):
        with pytest.raises(TypeError, match="an offset is a number from 0 on, not"):
            check_offset(wrong)
