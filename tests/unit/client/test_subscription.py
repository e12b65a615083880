"""What members tell each other survives the way through the coordinator."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.client.subscription import (
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from tailrace.errors import InvalidRequest
from tailrace.model import TopicPartition

PARTITIONS = st.frozensets(
    st.builds(TopicPartition, st.sampled_from(["a", "b"]), st.integers(0, 2**31 - 1))
)


@given(
    topics=st.frozensets(st.text(max_size=5)),
    owned=PARTITIONS,
    generation=st.integers(-1, 2**31 - 1),
)
def test_there_and_back(
    topics: frozenset[str], owned: frozenset[TopicPartition], generation: int
) -> None:
    data = encode_subscription(topics, owned, generation)
    member = decode_subscription("me", "static", data)
    assert (member.member_id, member.instance_id) == ("me", "static")
    assert (member.topics, member.owned, member.generation) == (topics, owned, generation)
    assert decode_assignment(encode_assignment(owned)) == owned


def test_what_is_no_subscription_is_refused() -> None:
    assert decode_assignment(b"") == frozenset()
    for data in (b"\xff\xff", b"\x18\x05"):
        with pytest.raises(InvalidRequest):
            decode_subscription("you", "", data)
        with pytest.raises(InvalidRequest):
            decode_assignment(data)
