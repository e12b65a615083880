"""Who has synced what it had: counted for the life it has, and for the change that was meant."""

from __future__ import annotations

from dataclasses import replace

from tailrace.controller.messages import order_for
from tailrace.controller.syncing import Syncing
from tailrace.meta.image import ClusterImage
from tailrace.model import TopicPartition
from tailrace.transport.wire import PartitionOrder
from unit.controller.images import THREE, image, live, state

T0 = TopicPartition("t", 0)


def syncing(revision: int = 80, *, elr: tuple[int, ...] = ()) -> ClusterImage:
    found = image(THREE, {0: state(1, [1, 2], elr)}, config={"flush": "ack"})
    topic = found.topics["t"]
    record = replace(topic.record, syncing=True)
    return replace(found, topics={"t": topic._replace(record=record, revision=revision)})


def order(found: ClusterImage) -> PartitionOrder:
    stored = found.state(T0)
    assert stored is not None
    return order_for(found, T0, stored, "")


def test_all_who_are_in_sync_or_eligible_must_have_obeyed() -> None:
    found, seen = syncing(elr=(3,)), Syncing()
    assert seen.obeyed(live(1), order(found))
    assert seen.done(found) == []
    assert seen.obeyed(live(2), order(found))
    assert seen.done(found) == []
    seen.obeyed(live(3), order(found))
    assert seen.done(found) == ["t"]


def test_another_life_or_another_change_of_the_topic_begins_anew() -> None:
    found, seen = syncing(), Syncing()
    for each in THREE:
        seen.obeyed(each, order(found))
    assert seen.done(found) == ["t"]
    assert seen.done(syncing(81)) == []
    later = replace(found, brokers={**found.brokers, 2: live(2, epoch=99)})  # type: ignore[dict-item]
    assert seen.done(later) == []
    away = replace(found, brokers={1: live(1)})  # type: ignore[dict-item]
    assert seen.done(away) == []


def test_topics_that_wait_for_nothing_are_not_counted() -> None:
    settled = image(THREE, {0: state(1, [1, 2])})
    seen = Syncing()
    assert not seen.obeyed(live(1), order(settled))
    seen.obeyed(live(1), order(syncing()))
    assert seen.done(settled) == []
    assert seen.done(syncing()) == []
