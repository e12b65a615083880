"""Replicas that go: of topics that are gone, and of partitions that live elsewhere."""

from __future__ import annotations

from dataclasses import replace

from tailrace.controller.orders import Replica
from tailrace.controller.removals import as_gone
from tailrace.model import BrokerId, TopicId, TopicPartition
from unit.controller.images import THREE, image, state

T0 = TopicPartition("t", 0)
FOUND = image(THREE, {0: state(1, [1, 2])}, replicas=[1, 2])
HERE = Replica(T0, TopicId("id-t"))
B = BrokerId


def test_a_replica_of_a_topic_that_is_gone_goes() -> None:
    other = HERE._replace(topic_id=TopicId("former"))
    assert as_gone(FOUND, other, B(1)) == other
    elsewhere = Replica(TopicPartition("u", 0), TopicId("x"))
    assert as_gone(FOUND, elsewhere, B(1)) == elsewhere
    going = image(THREE, {0: state(1, [1])}, deleting=True)
    assert as_gone(going, HERE, B(1)) == HERE


def test_a_replica_that_a_reassignment_took_away_goes_unless_it_is_wanted_again() -> None:
    assert as_gone(FOUND, HERE, B(3)) == HERE._replace(revision=90)
    assert as_gone(FOUND, HERE, B(2)) is None


def test_what_is_not_certain_stays() -> None:
    assert as_gone(FOUND, HERE._replace(topic_id=TopicId("")), B(3)) is None
    damaged = replace(FOUND, damaged={"/brokers/topics/t": "unreadable"})
    assert as_gone(damaged, HERE, B(3)) is None
    assert as_gone(replace(FOUND, states={}), HERE, B(3)) is None
