"""Records of a shard: what is written is read again, and what is not known is passed over."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.coordinator.records import (
    READER,
    Change,
    GroupFacts,
    GroupStored,
    Member,
    Phase,
    Position,
    PositionStored,
    ShardTaken,
    decode,
    encode,
)
from tailrace.errors import CorruptCheckpoint
from tailrace.model import TopicPartition

TEXTS = st.text(max_size=20)
NUMBERS = st.integers(0, 2**53)
MEMBERS = st.builds(
    Member,
    member_id=TEXTS,
    instance_id=TEXTS,
    client_id=TEXTS,
    host=TEXTS,
    session_timeout_ms=NUMBERS,
    rebalance_timeout_ms=NUMBERS,
    protocols=st.lists(st.tuples(TEXTS, st.binary(max_size=20)), max_size=3).map(tuple),
    assignment=st.binary(max_size=20),
)
FACTS = st.builds(
    GroupFacts,
    phase=st.sampled_from(Phase),
    generation=NUMBERS,
    protocol=TEXTS,
    leader=TEXTS,
    members=st.lists(MEMBERS, max_size=3).map(lambda all_: {each.member_id: each for each in all_}),
    phase_ms=NUMBERS,
)
POSITIONS = st.builds(
    Position,
    offset=NUMBERS,
    leader_epoch=st.integers(-1, 2**31),
    topic_id=TEXTS,
    metadata=TEXTS,
    commit_ms=NUMBERS,
    kind=st.sampled_from(["consumer", READER]),
)
PARTITIONS = st.builds(
    TopicPartition, st.from_regex(r"[a-z._-]{1,9}", fullmatch=True), st.integers(0, 999)
)
CHANGES = st.one_of(
    st.builds(ShardTaken, NUMBERS, NUMBERS),
    st.builds(GroupStored, TEXTS, st.none() | FACTS),
    st.builds(PositionStored, TEXTS, PARTITIONS, st.none() | POSITIONS),
)


@given(CHANGES)
def test_what_is_written_is_read_again(change: Change) -> None:
    key, value = encode(change)
    assert decode(key, value) == change
    json.loads(key)


def test_anybody_can_read_a_position() -> None:
    position = Position(7, 2, "id", "mine", 1_000)
    key, value = encode(PositionStored("g", TopicPartition("t", 3), position))
    assert key == b'["offset","g","t",3]'
    assert json.loads(value or b"") == {
        "version": 1,
        "offset": 7,
        "leader_epoch": 2,
        "topic_id": "id",
        "metadata": "mine",
        "commit_ms": 1_000,
    }


@pytest.mark.parametrize("key", [b'["later",1]', b'["owner",2]', b'"x"', b"[]", b"7", None])
def test_a_kind_of_later_is_passed_over(key: bytes | None) -> None:
    assert decode(key, b"{}") is None


def test_later_fields_are_left_alone() -> None:
    key, value = encode(ShardTaken(1, 2))
    later = {**json.loads(value or b""), "version": 2, "more": []}
    assert decode(key, json.dumps(later).encode()) == ShardTaken(1, 2)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"\xff", b"{}"),
        (b'["owner"]', b"{}"),
        (b'["group","g"]', b'{"members":1}'),
        (b'["offset","g","t",0]', b'{"offset":"7"}'),
        (b'["offset","g","t",0]', b"no json"),
    ],
)
def test_bytes_that_cannot_be_read_say_where(key: bytes, value: bytes) -> None:
    with pytest.raises(CorruptCheckpoint, match="in the shard cannot be read"):
        decode(key, value)


def test_a_member_has_the_metadata_of_each_protocol() -> None:
    member = Member(
        member_id="a", session_timeout_ms=1, rebalance_timeout_ms=1, protocols=(("p", b"1"),)
    )
    assert member.metadata("p") == b"1"
    assert member.metadata("q") == b""
