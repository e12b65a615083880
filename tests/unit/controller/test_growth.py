"""The cluster's own topics get the replicas that they could not have when they were made."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tailrace.controller.growth import growth_transactions
from tailrace.meta.image import ClusterImage, StoredReassignment, StoredTopic
from tailrace.meta.keys import Reassignment, TopicRecord, decode
from tailrace.meta.store import Put
from tailrace.model import OFFSETS_TOPIC, BrokerId, TopicId, TopicPartition
from unit.controller.images import MINE, NOW_MS, THREE, decided, facts, image

FIRST = TopicPartition(OFFSETS_TOPIC, 0)


def cluster(brokers: int, *replicas: tuple[int, ...], name: str = OFFSETS_TOPIC) -> ClusterImage:
    assignment = {at: tuple(map(BrokerId, each)) for at, each in enumerate(replicas)}
    record = TopicRecord(topic_id=TopicId("id-o"), assignment=assignment, config={})
    return replace(image(THREE[:brokers]), topics={name: StoredTopic(record, 80)})


def moves(found: ClusterImage, **given: Any) -> list[tuple[int, ...]]:
    targets = []
    for transaction in growth_transactions(found, facts(**given), now_ms=NOW_MS):
        assert MINE in transaction.guards
        for put in transaction.operations:
            assert isinstance(put, Put)
            move = decode(Reassignment, put.value)
            assert move.target[: len(move.original)] == move.original
            targets.append(tuple(map(int, move.target)))
    return targets


def test_replicas_are_added_as_soon_as_there_are_brokers() -> None:
    assert moves(cluster(1, (1,), (1,))) == []
    assert moves(cluster(2, (1,), (1,))) == [(1, 2), (1, 2)]
    assert moves(cluster(3, (1,), (1,))) == [(1, 2, 3), (1, 2, 3)]
    assert moves(cluster(3, (2, 1), (1, 2, 3))) == [(2, 1, 3)]


def test_not_beyond_the_default_and_not_to_brokers_that_are_not_well() -> None:
    assert moves(cluster(3, (1,)), default_replication_factor=2) == [(1, 2)]
    assert moves(cluster(3, (1, 2)), default_replication_factor=1) == []
    assert moves(cluster(3, (1,)), unfit={BrokerId(2): "full"}) == [(1, 3)]


def test_what_is_on_its_way_and_what_others_made_is_left_alone() -> None:
    found = cluster(3, (1,))
    move = Reassignment(
        topic_id=TopicId("id-o"),
        original=(BrokerId(1),),
        target=(BrokerId(2),),
        started_ms=1,
    )
    assert moves(replace(found, reassignments={FIRST: StoredReassignment(move, 90)})) == []
    assert moves(cluster(3, (1,), name="orders")) == []


def test_it_comes_after_everything_else() -> None:
    """First its partitions have leaders, then they move."""
    found = cluster(3, (1,))
    (made,) = decided(found).transactions
    assert "new state" in made.what
