"""Orders and pictures say what the image says; only what changed is painted anew."""

from __future__ import annotations

from dataclasses import replace

from tailrace.controller.messages import (
    Painter,
    link_address,
    order_for,
    settings_for,
    topic_message,
)
from tailrace.meta.image import (
    ClusterImage,
    LiveBroker,
    LiveController,
    LiveCoordinator,
    StoredDeletion,
    StoredReassignment,
    StoredShard,
    StoredState,
    StoredTopic,
)
from tailrace.meta.keys import (
    BrokerRegistration,
    ControllerRecord,
    CoordinatorRegistration,
    PartitionState,
    Reassignment,
    ShardOwner,
    TopicDeletion,
    TopicRecord,
)
from tailrace.model import BrokerId, LeaderEpoch, TopicId, TopicPartition

B1, B2 = BrokerId(1), BrokerId(2)


def live(broker: BrokerId) -> LiveBroker:
    registration = BrokerRegistration(
        broker_id=broker,
        host=f"h{broker}",
        port=1,
        link_host="::1",
        link_port=2,
        incarnation="i",
        rack=f"r{broker}",
    )
    return LiveBroker(registration, 5, 5)


STATE = StoredState(
    PartitionState(
        controller_epoch=1, leader=B1, leader_epoch=LeaderEpoch(3), isr=(B1,), elr=(B2,)
    ),
    44,
)
TOPIC = StoredTopic(
    TopicRecord(topic_id=TopicId("id"), assignment={0: (B1, B2), 1: (B2, B1)}, config={"a": "b"}),
    40,
)
IMAGE = ClusterImage(
    revision=50,
    cluster_id="c",
    controller=LiveController(ControllerRecord(controller_id=8, epoch=1, host="ch", port=9), 3, 3),
    brokers={B2: live(B2), B1: live(B1)},
    topics={"t": TOPIC, "u": TOPIC},
    states={"t": {0: STATE}, "u": {0: STATE}},
)


def test_an_order_has_all_that_a_replica_needs() -> None:
    order = order_for(IMAGE, TopicPartition("t", 0), STATE, "h1:2")
    assert (order.leader, order.leader_epoch, order.revision) == (1, 3, 44)
    assert (order.isr, order.elr, order.replicas) == ((1,), (2,), (1, 2))
    assert (order.topic_id, order.leader_link, order.config) == ("id", "h1:2", {"a": "b"})
    assert link_address(live(B1)) == "[::1]:2"


def test_a_picture_shows_brokers_controller_topics_and_partitions() -> None:
    picture = Painter().paint(IMAGE, {})
    assert (picture.revision, picture.cluster_id) == (50, "c")
    assert [(each.id, each.host, each.rack) for each in picture.brokers] == [
        (1, "h1", "r1"),
        (2, "h2", "r2"),
    ]
    assert (picture.controller.id, picture.controller.host) == (8, "ch")
    assert [each.name for each in picture.topics] == ["t", "u"]
    made, new = picture.topics[0].partitions
    assert (made.leader, made.leader_epoch, made.revision) == (1, 3, 44)
    assert (list(made.replicas), list(made.isr), list(made.elr)) == ([1, 2], [1], [2])
    # One that was made just now has no leader yet.
    assert (new.leader, new.leader_epoch, list(new.replicas)) == (-1, -1, [2, 1])


def test_the_spared_are_shown_while_they_lead() -> None:
    image = replace(IMAGE, brokers={B2: live(B2)}, controller=None)
    picture = Painter().paint(image, {B1: live(B1)})
    assert [each.id for each in picture.brokers] == [1, 2]
    assert not picture.HasField("controller")


def test_only_what_changed_is_painted_anew() -> None:
    painter = Painter()
    painter.paint(IMAGE, {})
    before = {name: painted.message for name, painted in painter._painted.items()}
    other = STATE._replace(revision=60)
    image = replace(IMAGE, states={**IMAGE.states, "u": {0: other}})
    picture = painter.paint(image, {})
    assert painter._painted["t"].message is before["t"]
    assert painter._painted["u"].message is not before["u"]
    assert picture.topics[1].partitions[0].revision == 60
    deletion = StoredDeletion(TopicDeletion(topic_id=TopicId("id")), 61)
    picture = painter.paint(replace(image, deletions={"t": deletion}), {})
    assert [each.deleting for each in picture.topics] == [True, False]
    picture = painter.paint(replace(image, topics={"u": TOPIC}), {})
    assert list(painter._painted) == ["u"]


def test_a_topic_that_was_only_checked_has_no_states() -> None:
    message = topic_message("t", TOPIC, {}, deleting=False)
    assert [each.leader for each in message.partitions] == [-1, -1]


def test_coordinators_and_shards_are_shown_and_nobody_for_an_owner_that_is_gone() -> None:
    assert list(Painter().paint(IMAGE, {}).group_shards) == []
    here = CoordinatorRegistration(coordinator_id=7, host="k", port=4)
    image = replace(
        IMAGE,
        coordinators={7: LiveCoordinator(here, 30, 30)},
        shards={
            0: StoredShard(ShardOwner(owner=7, owner_epoch=30, epoch=2), 31),
            1: StoredShard(ShardOwner(owner=7, owner_epoch=29, epoch=5), 31),
            2: StoredShard(ShardOwner(owner=8, owner_epoch=30, epoch=1), 31),
        },
    )
    picture = Painter().paint(image, {})
    assert [(each.id, each.host, each.port) for each in picture.coordinators] == [(7, "k", 4)]
    shown = [(each.owner, each.epoch) for each in picture.group_shards]
    assert shown == [(7, 2), (-1, 5), (-1, 1)]


def test_orders_and_pictures_say_which_replicas_come_and_go_and_what_was_lost() -> None:
    b3 = BrokerId(3)
    move = Reassignment(topic_id=TopicId("id"), original=(B1, B2), target=(B2, b3), started_ms=1)
    t0 = TopicPartition("t", 0)
    waiting = replace(IMAGE, reassignments={t0: StoredReassignment(move, 60)})
    order = order_for(waiting, t0, STATE, "")
    assert (order.adding, order.removing) == ((), ())
    record = replace(TOPIC.record, assignment={0: move.all_replicas, 1: (B2, B1)})
    lost = StoredState(replace(STATE.state, loss="offsets 7 to 9"), 61)
    copying = replace(
        waiting,
        topics={"t": StoredTopic(record, 61)},
        states={"t": {0: lost}},
    )
    order = order_for(copying, t0, lost, "")
    assert (order.adding, order.removing) == ((3,), (1,))
    (topic,) = Painter().paint(copying, {}).topics
    assert (list(topic.partitions[0].adding), list(topic.partitions[0].removing)) == ([3], [1])
    assert topic.partitions[0].loss == "offsets 7 to 9"
    assert settings_for(copying, B1).broker == {}
