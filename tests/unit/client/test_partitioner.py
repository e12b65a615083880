"""Which partition a record goes to."""

from __future__ import annotations

from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.client.partitioner import (
    by_key,
    by_murmur2,
    murmur2,
    partitioner_for,
    round_robin,
)
from tailrace.errors import InvalidConfig


@given(st.binary(), st.integers(1, 1_000))
def test_keys_have_one_place(key: bytes, partitions: int) -> None:
    assert by_key("t", key, partitions) == crc32(key) % partitions
    place = by_murmur2("t", key, partitions)
    assert place is not None
    assert 0 <= place < partitions


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_murmur2_is_that_of_kafka(data: bytes, expected: int) -> None:
    assert murmur2(data) == expected % 2**32


def test_without_a_key_it_goes_where_it_suits() -> None:
    assert by_key("t", None, 3) is None
    assert by_murmur2("t", None, 3) is None
    assert partitioner_for("sticky")("t", b"k", 3) is None


def test_turns_are_taken_for_each_topic() -> None:
    choose = round_robin()
    assert [choose("a", b"k", 3) for _ in range(4)] == [0, 1, 2, 0]
    assert choose("b", None, 3) == 0


def test_names() -> None:
    assert partitioner_for(None) is by_key
    assert partitioner_for("murmur2") is by_murmur2
    assert partitioner_for("round_robin")("t", None, 2) == 0
    assert partitioner_for(lambda topic, key, partitions: 1)("t", None, 2) == 1
    with pytest.raises(InvalidConfig, match="crc32, murmur2"):
        partitioner_for("random")
