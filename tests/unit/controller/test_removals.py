"""Replicas that go: of topics that are gone, and of partitions that live elsewhere."""

from __future__ import annotations

from dataclasses import replace

from tailrace.controller.orders import Replica
from tailrace.controller.removals import as_gone, is_unknown
from tailrace.meta.image import StoredDeletion, StoredTombstone
from tailrace.meta.keys import TopicDeletion, TopicTombstone
from tailrace.model import BrokerId, TopicId, TopicPartition
from unit.controller.images import THREE, image, state

T0 = TopicPartition("t", 0)
FOUND = image(THREE, {0: state(1, [1, 2])}, replicas=[1, 2])
HERE = Replica(T0, TopicId("id-t"))
B = BrokerId


FORMER = HERE._replace(topic_id=TopicId("former"))
ELSEWHERE = Replica(TopicPartition("u", 0), TopicId("x"))


def test_a_replica_of_a_topic_whose_deletion_is_on_record_goes() -> None:
    for other in (FORMER, ELSEWHERE):
        tombstone = TopicTombstone(name=other.partition.topic, deleted_ms=1, controller_epoch=1)
        tombstones = {str(other.topic_id): StoredTombstone(tombstone, 50)}
        assert as_gone(replace(FOUND, tombstones=tombstones), other, B(1)) == other
    going = image(THREE, {0: state(1, [1])}, deleting=True)
    assert as_gone(going, HERE, B(1)) == HERE


def test_f42_l2_a_replica_of_a_topic_that_the_store_does_not_know_is_kept() -> None:
    going = image(THREE, {0: state(1, [1])}, deleting=True)
    another = {"t": StoredDeletion(TopicDeletion(topic_id=TopicId("another")), 85)}
    for found in (FOUND, replace(FOUND, topics={}), going, replace(going, deletions=another)):
        for other in (FORMER, ELSEWHERE):
            assert as_gone(found, other, B(1)) is None
            assert is_unknown(found, other)
    assert not is_unknown(FOUND, HERE)


def test_what_cannot_be_told_is_not_unknown() -> None:
    assert not is_unknown(FOUND, HERE._replace(topic_id=TopicId("")))
    damaged = replace(FOUND, topics={}, damaged={"/brokers/topics/t": "unreadable"})
    assert not is_unknown(damaged, HERE)


def test_a_replica_that_a_reassignment_took_away_goes_unless_it_is_wanted_again() -> None:
    assert as_gone(FOUND, HERE, B(3)) == HERE._replace(revision=90)
    assert as_gone(FOUND, HERE, B(2)) is None


def test_what_is_not_certain_stays() -> None:
    assert as_gone(FOUND, HERE._replace(topic_id=TopicId("")), B(3)) is None
    damaged = replace(FOUND, damaged={"/brokers/topics/t": "unreadable"})
    assert as_gone(damaged, HERE, B(3)) is None
    assert as_gone(replace(FOUND, states={}), HERE, B(3)) is None
