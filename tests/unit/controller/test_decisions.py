"""Given an image and an event, expect these transactions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tailrace.controller.decisions import TOMBSTONES_MAX
from tailrace.controller.facts import (
    Decision,
    DeletionRequested,
    Event,
    FenceRequested,
    ReplicasStopped,
    TopicRequested,
)
from tailrace.errors import (
    InvalidTopic,
    StaleBroker,
    TailraceError,
    TopicExists,
    UnknownTopic,
    UnknownTopicId,
)
from tailrace.meta.image import (
    ClusterImage,
    StoredDeletion,
    StoredTombstone,
)
from tailrace.meta.keys import (
    TopicDeletion,
    TopicRecord,
    TopicTombstone,
    encode,
    history_key,
    tombstone_key,
    topic_key,
)
from tailrace.meta.store import (
    CreatedAt,
    Delete,
    ModifiedAt,
    Put,
)
from tailrace.model import BrokerId, TopicId, TopicPartition
from unit.controller.images import (
    KEY,
    MINE,
    NOW_MS,
    TERM,
    THREE,
    decided,
    image,
    live,
    state,
)
from unit.controller.test_capacity import cordoned

# ------------------------------------------------------------------------------------------ topics


def wanted(**fields: Any) -> TopicRequested:
    return TopicRequested(**{"name": "n", "topic_id": TopicId("id-n"), **fields})


def test_a_topic_is_made_by_its_record_alone() -> None:
    decision = decided(image(THREE), wanted(partitions=2, config={"retention.ms": "5"}))
    (transaction,) = decision.transactions
    assert set(transaction.guards) == {
        MINE,
        ModifiedAt("/brokers/topics/n", 0),
        ModifiedAt("/admin/delete_topics/n", 0),
    }
    assert decision.record == TopicRecord(
        topic_id=TopicId("id-n"),
        assignment={0: (BrokerId(1), BrokerId(2), BrokerId(3)), 1: (2, 3, 1)},  # type: ignore[dict-item]
        config={"retention.ms": "5"},
    )
    assert transaction.operations == (Put("/brokers/topics/n", encode(decision.record)),)


@pytest.mark.parametrize(
    ("brokers", "asked", "default", "expected"), [(3, 0, 3, 3), (2, 0, 3, 2), (3, 1, 3, 1)]
)
def test_the_default_replication_factor_is_no_more_than_the_brokers(
    brokers: int, asked: int, default: int, expected: int
) -> None:
    event = wanted(replication_factor=asked, default_replication_factor=default)
    decision = decided(image(THREE[:brokers]), event)
    assert decision.record is not None
    assert len(decision.record.assignment[0]) == expected


def test_brokers_that_are_shutting_down_get_new_replicas_only_where_others_are_too_few() -> None:
    brokers = [live(1, draining=True), live(2), live(3)]
    decision = decided(image(brokers), wanted(replication_factor=2))
    assert decision.record is not None
    assert decision.record.assignment == {0: (2, 3)}
    decision = decided(image(brokers), wanted(), draining={BrokerId(3): 13})
    assert decision.record is not None
    assert decision.record.assignment == {0: (2, 1, 3)}
    assert "are away or shutting down" in decision.warnings[0]


def test_a_default_that_cannot_be_is_lowered_and_that_is_said() -> None:
    assert decided(image(THREE), wanted()).warnings == ()
    assert decided(image(THREE[:2]), wanted(replication_factor=2)).warnings == ()
    (warning,) = decided(image(THREE[:2]), wanted()).warnings
    assert "2 of the 3 replicas that are the default" in warning
    assert "acks=all needs 1 in sync" in warning


def test_a_topic_made_while_a_member_is_away_is_what_it_would_be_with_it() -> None:
    found = image(THREE[:2], {0: state(1, [1, 2])}, replicas=(1, 2, 3))
    decision = decided(found, wanted())
    assert decision.record is not None
    assert decision.record.assignment == {0: (1, 2, 3)}
    assert len(decision.warnings) == 1


def test_the_clusters_own_topics_cannot_be_deleted() -> None:
    decision = decided(image(THREE), DeletionRequested(name="__consumer_offsets"))
    assert isinstance(decision.error, InvalidTopic)
    assert "cannot be deleted" in str(decision.error)


@pytest.mark.parametrize(
    ("picture", "event", "kind", "message"),
    [
        (image(THREE, {0: state(1, [1])}), wanted(name="t"), TopicExists, "exists already"),
        (
            image(THREE, {0: state(1, [1])}, deleting=True),
            wanted(name="t"),
            TopicExists,
            "is being deleted",
        ),
        (image(THREE, damaged=[topic_key("n")]), wanted(), TopicExists, "exists already"),
        (image([]), wanted(), InvalidTopic, "no broker is live"),
        (cordoned(image(THREE), 1, 2, 3), wanted(), InvalidTopic, "every live broker is cordoned"),
        (image(THREE), wanted(replication_factor=4), InvalidTopic, "3 are live"),
        (image(THREE), wanted(name="a b"), InvalidTopic, "letters"),
        (image(THREE), DeletionRequested(name="t"), UnknownTopic, "no topic 't'"),
        (
            image(THREE, {0: state(1, [1])}),
            DeletionRequested(name="t", topic_id="other"),
            UnknownTopicId,
            "has the id id-t, not other",
        ),
    ],
)
def test_what_cannot_be_is_refused(
    picture: ClusterImage, event: Event, kind: type[TailraceError], message: str
) -> None:
    decision = decided(picture, event)
    assert decision.transactions == ()
    assert isinstance(decision.error, kind)
    assert message in str(decision.error)


def test_a_topic_is_marked_before_it_is_deleted() -> None:
    picture = image(THREE, {0: state(1, [1, 2, 3])})
    (transaction,) = decided(picture, DeletionRequested(name="t", topic_id="id-t")).transactions
    assert transaction.operations == (
        Put("/admin/delete_topics/t", encode(TopicDeletion(topic_id=TopicId("id-t")))),
    )
    assert ModifiedAt("/brokers/topics/t", 80) in transaction.guards


def test_marking_twice_is_fine() -> None:
    picture = image(THREE, {0: state(1, [1])}, deleting=True)
    assert decided(picture, DeletionRequested(name="t")) == Decision()


def tombstone(topic_id: str) -> Put:
    record = TopicTombstone(name="t", deleted_ms=NOW_MS, controller_epoch=TERM.epoch)
    return Put(tombstone_key(TopicId(topic_id)), encode(record))


LAST_KEYS = ["/admin/delete_topics/t", tombstone_key(TopicId("id-t"))]


def test_a_deleted_topic_goes_partitions_first_record_and_marker_last() -> None:
    states = {each: state(1, [1]) for each in range(70)}
    picture = image(THREE, states, deleting=True)
    transactions = decided(picture, ReplicasStopped(name="t")).transactions
    deleted = [[each.key for each in transaction.operations] for transaction in transactions]
    assert [len(keys) for keys in deleted] == [128, 12, 3]
    assert deleted[0][:2] == [KEY, history_key(TopicPartition("t", 0))]
    # With them comes the record of it, for brokers that are away.
    assert deleted[2] == [*LAST_KEYS, "/brokers/topics/t"]
    (kept,) = [op for each in transactions for op in each.operations if isinstance(op, Put)]
    assert kept == tombstone("id-t")
    assert all(ModifiedAt("/admin/delete_topics/t", 85) in each.guards for each in transactions)
    assert decided(image(THREE), ReplicasStopped(name="t")) == Decision()


def test_a_marker_of_another_topic_goes_alone() -> None:
    picture = image(THREE, {0: state(1, [1])}, deleting=True)
    other = StoredDeletion(TopicDeletion(topic_id=TopicId("former")), 85)
    picture = replace(picture, deletions={"t": other})
    (transaction,) = decided(picture, ReplicasStopped(name="t")).transactions
    assert transaction.operations == (Delete("/admin/delete_topics/t"), tombstone("former"))


def test_of_too_many_deleted_topics_the_oldest_are_forgotten() -> None:
    picture = image(THREE, {0: state(1, [1])}, deleting=True)
    records = {
        f"id-{each}": StoredTombstone(
            TopicTombstone(name="former", deleted_ms=each, controller_epoch=1), 1
        )
        for each in range(TOMBSTONES_MAX)
    }
    for few, gone in ((records, ["id-0"]), (dict([*records.items()][1:]), [])):
        transactions = decided(
            replace(picture, tombstones=dict(reversed(few.items()))), ReplicasStopped(name="t")
        ).transactions
        deleted = [op.key for op in transactions[-1].operations if isinstance(op, Delete)]
        assert [each for each in deleted if "deleted_topics" in each] == [
            tombstone_key(TopicId(each)) for each in gone
        ]


def test_a_topic_whose_record_cannot_be_read_can_be_deleted_to_the_end() -> None:
    picture = image(THREE, deleting=True, damaged=[topic_key("t")])
    (transaction,) = decided(picture, ReplicasStopped(name="t")).transactions
    assert Delete("/brokers/topics/t") in transaction.operations


# ------------------------------------------------------------------------------------------ fences


@pytest.mark.parametrize("epoch", [0, 11])
def test_a_fence_takes_away_the_registration_of_that_life(epoch: int) -> None:
    event = FenceRequested(broker_id=BrokerId(1), epoch=epoch)
    (transaction,) = decided(image(THREE), event).transactions
    assert transaction.guards == (MINE, CreatedAt("/brokers/ids/1", 11))
    assert transaction.operations == (Delete("/brokers/ids/1"),)


def test_f8_a_fence_for_a_former_life_is_refused() -> None:
    decision = decided(image(THREE), FenceRequested(broker_id=BrokerId(1), epoch=5))
    assert isinstance(decision.error, StaleBroker)


def test_f22_a_fence_for_a_pod_that_is_gone_leaves_the_one_that_replaced_it_alone() -> None:
    event = FenceRequested(broker_id=BrokerId(1), epoch=0, instance="pod-1")
    decision = decided(image(THREE), event)
    assert isinstance(decision.error, StaleBroker)
    assert not decision.transactions


def test_a_fence_of_one_who_is_gone_is_nothing_to_do() -> None:
    assert decided(image(THREE), FenceRequested(broker_id=BrokerId(9), epoch=5)) == Decision()
