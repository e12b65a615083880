"""Where records go."""

from __future__ import annotations

from random import Random

import pytest

from tailrace.client.accumulator import Queue
from tailrace.client.delivery import BatchOutcome
from tailrace.client.partitioner import Partitioner, by_key
from tailrace.client.spreading import TopicQueues
from tailrace.errors import InvalidRequest
from tailrace.model import TopicPartition


def topic(partitioner: Partitioner = by_key, partitions: int = 4) -> TopicQueues:
    made = TopicQueues("t", partitioner, Random(1))
    made.queues = [
        Queue[BatchOutcome](TopicPartition("t", number), 1_000) for number in range(partitions)
    ]
    return made


def test_a_key_and_a_wish_decide() -> None:
    known = topic()
    assert known.queue_for(b"k", None) is known.queue_for(b"k", None)
    assert known.queue_for(b"k", 3) is known.queues[3]
    with pytest.raises(InvalidRequest, match="partitions 0 to 3, not 4"):
        known.queue_for(None, 4)


def test_what_may_go_anywhere_stays_where_it_is_until_another_place_is_chosen() -> None:
    known = topic()
    first = known.queue_for(None, None)
    assert {id(known.queue_for(None, None)) for _ in range(9)} == {id(first)}
    assert {id(known.choose()) for _ in range(99)} == {id(each) for each in known.queues}
    assert known.queue_for(None, None) is known.sticky


def test_partitions_without_a_leader_are_not_chosen_while_others_have_one() -> None:
    known = topic()
    known.led = known.queues[1:2]
    assert {id(known.choose()) for _ in range(20)} == {id(known.queues[1])}


def test_a_program_decides_itself_also_without_a_key() -> None:
    known = topic(lambda _, key, partitions: partitions - 1)
    assert not known.is_sticky
    assert known.queue_for(None, None) is known.queues[3]
    # One that has no opinion leaves it to us.
    assert topic(lambda *_: None).queue_for(b"k", None) is not None
