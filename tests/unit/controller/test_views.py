"""How elections see brokers: who may be given what, and what counts while replicas come and go."""

from __future__ import annotations

from dataclasses import replace

from tailrace.controller.facts import ReplicaFailure
from tailrace.controller.views import (
    Views,
    coming_and_going,
    is_admitted,
    is_draining,
    is_usable,
    settled,
)
from tailrace.meta.image import StoredCordon, StoredReassignment
from tailrace.meta.keys import Cordon, Reassignment, TopicRecord
from tailrace.model import BrokerId, TopicId, TopicPartition
from unit.controller.images import THREE, facts, image, live, state

T0 = TopicPartition("t", 0)
B = BrokerId
RECORD = TopicRecord(topic_id=TopicId("id-t"), assignment={0: (B(1), B(2), B(3))}, config={})


def test_who_is_cordoned_or_shuts_down_gets_nothing_new() -> None:
    cordons = {B(2): StoredCordon(Cordon(reason="", since_ms=0), 1)}
    found = replace(image(THREE), cordons=cordons)
    known = facts(draining={B(3): 13})
    assert [is_usable(found, each, known) for each in THREE] == [True, False, False]
    assert is_draining(live(1, draining=True), facts())
    brokers = Views(found, known).of(RECORD, 3).brokers
    assert sorted(brokers.draining) == [2, 3]
    assert list(brokers.cordoned) == [2]


def test_who_lost_its_tail_or_its_disk_is_not_admitted() -> None:
    known = {B(1): "disk1"}
    assert is_admitted(live(1), known)
    assert not is_admitted(live(1, tail_may_be_lost=True), known)
    assert not is_admitted(live(1, incarnation="new"), known)
    assert not is_admitted(live(2), known)


def test_a_partition_sees_its_own_failures() -> None:
    failed = {T0: {B(2): ReplicaFailure("disk", damaged=False)}}
    views = Views(image(THREE, {0: state(1, [1, 2, 3])}), facts(failed=failed))
    assert B(2) not in views.of_partition(RECORD, T0, (B(1), B(2), B(3))).brokers.live
    other = TopicPartition("t", 1)
    assert B(2) in views.of_partition(RECORD, other, (B(1), B(2), B(3))).brokers.live


def test_what_counts_while_replicas_come_and_go() -> None:
    move = StoredReassignment(
        Reassignment(
            topic_id=TopicId("t"), original=(B(1),), target=(B(2), B(3), B(4)), started_ms=0
        ),
        5,
    )
    assert coming_and_going(move, (B(1),)) == ((), ())
    both = move.record.all_replicas
    assert coming_and_going(move, both) == ((2, 3, 4), (1,))
    assert settled({T0: move}, T0, both) == 1
    assert settled({}, T0, both) == 4


def test_a_lost_tail_counts_until_all_have_synced_what_they_had_before_flush_ack() -> None:
    brokers = [live(1, tail_may_be_lost=True), *THREE[1:]]
    views = Views(image(brokers, {0: state(2, [1, 2, 3])}), facts())
    assert list(views.of(RECORD, 3).brokers.lost_tail) == [1]
    acked = replace(RECORD, config={"flush": "ack"})
    assert list(views.of(acked, 3).brokers.lost_tail) == []
    assert list(views.of(replace(acked, syncing=True), 3).brokers.lost_tail) == [1]
