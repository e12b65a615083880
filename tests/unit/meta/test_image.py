"""The image: however it came to a revision, it is the same."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.errors import InvariantViolation
from tailrace.meta import keys
from tailrace.meta.image import ClusterImage, StoredState
from tailrace.meta.keys import (
    BrokerRegistration,
    ClusterRecord,
    ConfigRecord,
    ControllerRecord,
    CoordinatorRegistration,
    Cordon,
    PartitionState,
    ProducerName,
    Reassignment,
    ShardOwner,
    TopicDeletion,
    TopicRecord,
    encode,
    encode_counter,
)
from tailrace.meta.memory import MemoryEtcd
from tailrace.meta.store import Change, Delete, Entry, Operation, Put, Snapshot, WatchBatch
from tailrace.model import BrokerId, LeaderEpoch, ProducerId, TopicId, TopicPartition

B1: Final = BrokerId(1)
B2: Final = BrokerId(2)
ORDERS: Final = TopicPartition("orders", 0)


def state(leader_epoch: int = 0, isr: tuple[BrokerId, ...] = (B1, B2)) -> PartitionState:
    return PartitionState(
        controller_epoch=1,
        leader=isr[0] if isr else keys.NO_BROKER,
        leader_epoch=LeaderEpoch(leader_epoch),
        isr=isr,
    )


def broker(broker_id: BrokerId, *, draining: bool = False) -> bytes:
    registration = BrokerRegistration(
        broker_id=broker_id,
        host="h",
        port=1,
        link_host="h",
        link_port=2,
        incarnation="i",
        draining=draining,
    )
    return encode(registration)


def topic(partitions: int = 2) -> bytes:
    assignment = dict.fromkeys(range(partitions), (B1, B2))
    return encode(TopicRecord(topic_id=TopicId("t"), assignment=assignment, config={}))


MOVE: Final = Reassignment(topic_id=TopicId("t"), original=(B1, B2), target=(B2,), started_ms=1)
CONTROLLER: Final = encode(ControllerRecord(controller_id=9, epoch=1, host="h", port=3))
FULL: Final[list[Operation]] = [
    Put(keys.CONTROLLER, CONTROLLER),
    Put(keys.CONTROLLER_EPOCH, encode_counter(1)),
    Put(keys.CLUSTER, encode(ClusterRecord(cluster_id="c"))),
    Put(keys.broker_key(1), broker(B1)),
    Put(keys.broker_key(2), broker(B2)),
    Put(keys.topic_key("orders"), topic()),
    Put(keys.state_key(ORDERS), encode(state())),
    Put(keys.state_key(TopicPartition("orders", 1)), encode(state())),
    Put(keys.deletion_key("old"), encode(TopicDeletion(topic_id=TopicId("o")))),
    Put(keys.cordon_key(2), encode(Cordon(reason="old", since_ms=1))),
    Put(keys.reassignment_key(ORDERS), encode(MOVE)),
    Put(keys.broker_config_key("default"), encode(ConfigRecord(settings={"a": "1"}))),
    Put(keys.client_config_key("c"), encode(ConfigRecord(settings={"b": "2"}))),
    Put(keys.NEXT_PRODUCER_ID, encode_counter(1_000)),
    Put(keys.producer_name_key("p"), encode(ProducerName(producer_id=ProducerId(1), epoch=0))),
    Put(
        keys.coordinator_key(7), encode(CoordinatorRegistration(coordinator_id=7, host="h", port=9))
    ),
    Put(keys.shard_key(3), encode(ShardOwner(owner=7, owner_epoch=2, epoch=1))),
    Put("/of/a/later/version", b"?"),
]


def image_of(server: MemoryEtcd) -> ClusterImage:
    return ClusterImage.from_snapshot(server.snapshot(keys.ROOT))


def full() -> MemoryEtcd:
    server = MemoryEtcd()
    server.txn([], FULL)
    return server


def advanced(image: ClusterImage, server: MemoryEtcd) -> ClusterImage:
    batch = server.next_batch(keys.ROOT, from_revision=image.revision + 1)
    return image if batch is None else image.advance(batch)


def change(server: MemoryEtcd, key: str) -> Change:
    entry = server.get(key)
    return Change(key, entry, server.revision if entry is None else entry.mod_revision)


def test_a_snapshot_has_all_facts() -> None:
    image = image_of(full())
    assert image.revision == 2
    assert image.cluster_id == "c"
    assert image.controller_epoch == 1
    assert image.controller is not None
    assert image.controller.record.controller_id == 9
    assert image.controller.create_revision == 2
    assert list(image.brokers) == [1, 2]
    assert image.brokers[B1].epoch == 2
    assert image.topics["orders"].revision == 2
    assert image.state(ORDERS) == StoredState(state(), 2)
    assert image.replicas(ORDERS) == (1, 2)
    assert [str(partition) for partition, _ in image.partitions()] == ["orders-0", "orders-1"]
    assert image.deletions["old"].record.topic_id == "o"
    assert image.cordons[B2].record.reason == "old"
    assert image.reassignments[ORDERS].record == MOVE
    assert image.broker_configs["default"].record.settings == {"a": "1"}
    assert image.client_configs["c"].record.settings == {"b": "2"}
    assert image.coordinators[7].epoch == 2
    assert image.shards[3].record.owner == 7
    assert image.damaged == {}
    image.check_invariants()


def test_what_is_not_known() -> None:
    image = ClusterImage()
    assert image.state(ORDERS) is None
    assert image.replicas(ORDERS) == ()
    assert image_of(full()).replicas(TopicPartition("orders", 7)) == ()
    assert list(image.partitions()) == []
    assert str(image.missing(ORDERS)) == "there is no topic 'orders'"
    known = image_of(full())
    assert str(known.missing(TopicPartition("order", 0))) == (
        "there is no topic 'order' (near it: orders)"
    )
    assert str(known.missing(TopicPartition("orders", 7))) == "orders has partitions 0 to 1, not 7"


def test_everything_can_go_again() -> None:
    server = full()
    image = image_of(server)
    server.txn([], [Delete(operation.key) for operation in FULL])
    assert advanced(image, server) == ClusterImage(revision=3)


def test_a_broker_that_comes_back_has_a_new_epoch() -> None:
    server = full()
    image = image_of(server)
    server.txn([], [Put(keys.broker_key(1), broker(B1, draining=True))])
    image = advanced(image, server)
    assert (image.brokers[B1].epoch, image.brokers[B1].revision) == (2, 3)
    assert image.brokers[B1].registration.draining
    server.txn([], [Delete(keys.broker_key(1))])
    image = advanced(image, server)
    assert list(image.brokers) == [2]
    server.txn([], [Put(keys.broker_key(1), broker(B1))])
    assert advanced(image, server).brokers[B1].epoch == 5


def test_a_change_copies_only_what_it_touches() -> None:
    server = full()
    server.txn([], [Put(keys.state_key(TopicPartition("other", 0)), encode(state()))])
    old = image_of(server)
    server.txn([], [Put(keys.state_key(ORDERS), encode(state(1)))])
    new = old.apply(change(server, keys.state_key(ORDERS)))
    assert new.state(ORDERS) == StoredState(state(1), 4)
    assert old.state(ORDERS) == StoredState(state(), 2)
    assert new.states["other"] is old.states["other"]
    assert new.topics is old.topics
    assert new.brokers is old.brokers


def test_old_and_repeated_changes_change_nothing() -> None:
    server = full()
    image = image_of(server)
    server.txn([], [Put(keys.state_key(ORDERS), encode(state(1)))])
    server.txn([], [Put(keys.state_key(ORDERS), encode(state(2)))])
    history = server.next_batch(keys.ROOT, from_revision=2)
    assert history is not None
    newest = image.advance(history)
    assert newest == image_of(server)
    assert newest.advance(history) == newest
    for each in history.changes:
        assert newest.apply(each) == newest
    stale_deletion = Change(keys.state_key(ORDERS), None, 3)
    assert newest.apply(stale_deletion) == newest


def test_a_compacted_batch_cannot_be_taken() -> None:
    with pytest.raises(InvariantViolation, match="missed"):
        ClusterImage().advance(WatchBatch(5, (), compacted=True))


def test_an_empty_batch_moves_the_revision() -> None:
    image = image_of(full())
    assert image.advance(WatchBatch(9, ())) == replace(image, revision=9)
    assert image.advance(WatchBatch(1, ())) == image


def test_a_write_of_ones_own_is_known_at_once_and_others_are_still_to_come() -> None:
    server = full()
    image = image_of(server)
    server.txn([], [Put(keys.state_key(ORDERS), encode(state(1)))])
    server.txn([], [Delete(keys.broker_key(2)), Put(keys.broker_key(1), broker(B1))])
    mine: list[Operation] = [
        Put(keys.state_key(ORDERS), encode(state(2))),
        Delete(keys.broker_key(1)),
        Put(keys.CONTROLLER, CONTROLLER),
    ]
    revision = server.txn([], mine).revision
    ahead = image.learn(mine, revision=revision)
    assert ahead.revision == image.revision
    assert ahead.state(ORDERS) == StoredState(state(2), revision)
    assert list(ahead.brokers) == [2]
    assert ahead.controller is not None
    assert ahead.controller.create_revision == 2
    ahead.check_invariants()
    # The watch brings the others' changes, and does not bring the broker back for a moment.
    for number in range(3, revision + 1):
        batch = server.next_batch(keys.ROOT, from_revision=number)
        assert batch is not None
        first = tuple(each for each in batch.changes if each.revision == number)
        ahead = ahead.advance(WatchBatch(number, first))
        assert B1 not in ahead.brokers
        assert ahead.state(ORDERS) == StoredState(state(2), revision)
    assert ahead == image_of(server)
    assert ahead.ahead == {}
    assert ahead.learn(mine, revision=revision) is ahead


def test_a_registration_of_ones_own_keeps_its_epoch() -> None:
    server = full()
    image = image_of(server)
    mine = [
        Put(keys.broker_key(1), broker(B1, draining=True)),
        Put(keys.broker_key(7), broker(BrokerId(7))),
    ]
    revision = server.txn([], mine).revision
    ahead = image.learn(mine, revision=revision)
    assert ahead.brokers == image_of(server).brokers


def test_a_value_that_cannot_be_read_is_named_and_left_out() -> None:
    server = full()
    image = image_of(server)
    bad: list[Operation] = [
        Put(keys.state_key(ORDERS), b"{}"),
        Put(keys.broker_key(1), broker(B2)),
        Put(keys.topic_key("new"), b"\xff"),
        Put(keys.CONTROLLER_EPOCH, b"x"),
        Put(keys.CLUSTER, b"1"),
        Put(keys.CONTROLLER, b"1"),
        Put(keys.deletion_key("old"), b""),
    ]
    server.txn([], bad)
    image = advanced(image, server)
    assert list(image.damaged) == [operation.key for operation in bad]
    assert "names broker 2" in image.damaged[keys.broker_key(1)]
    assert image.state(ORDERS) is None
    assert list(image.brokers) == [2]
    assert image == image_of(server)
    server.txn([], FULL)
    assert list(advanced(image, server).damaged) == [keys.topic_key("new")]
    server.txn([], [Delete(operation.key) for operation in bad])
    assert advanced(image, server).damaged == {}


@pytest.mark.parametrize(
    "entry",
    [
        Entry(keys.state_key(ORDERS), encode(state(isr=(B1, BrokerId(3)))), 2, 2, 0),
        Entry(keys.state_key(TopicPartition("orders", 9)), encode(state()), 2, 2, 0),
        Entry(keys.state_key(ORDERS), encode(replace(state(), controller_epoch=2)), 2, 2, 0),
        Entry(keys.state_key(ORDERS), encode(state()), 2, 3, 0),
        Entry(keys.broker_key(1), broker(B1), 2, 3, 0),
        Entry(keys.broker_key(1), broker(B1), 0, 2, 0),
    ],
    ids=["stranger in ISR", "no such partition", "controller", "future", "future broker", "epoch"],
)
def test_facts_that_contradict_each_other(entry: Entry) -> None:
    rest = [each for each in full().snapshot(keys.ROOT).entries if each.key != entry.key]
    image = ClusterImage.from_snapshot(Snapshot(2, (*rest, entry)))
    with pytest.raises(InvariantViolation):
        image.check_invariants()


KEYS: Final = [
    *(operation.key for operation in FULL),
    keys.state_key(TopicPartition("new", 0)),
    keys.broker_key(3),
]


@given(st.integers(0, 2**32))
def test_a_watched_image_equals_a_read_one(seed: int) -> None:
    rng = random.Random(seed)
    server = full()
    watched = image_of(server)
    values = {operation.key: operation.value for operation in FULL if isinstance(operation, Put)}
    for _ in range(rng.randrange(12)):
        operations: list[Operation] = []
        for key in rng.sample(KEYS, rng.randrange(1, 5)):
            value = rng.choice([values.get(key, b"bad"), encode(state(rng.randrange(9))), b"bad"])
            operations.append(Delete(key) if rng.random() < 0.4 else Put(key, value))
        revision = server.txn([], operations).revision
        if rng.random() < 0.3:
            watched = watched.learn(operations, revision=revision)
        if rng.random() < 0.5:
            watched = advanced(watched, server)
    assert advanced(watched, server) == image_of(server)
