"""Keys and values: what is written is read again; what is broken names its key."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.errors import CorruptCheckpoint, InvariantViolation
from tailrace.meta import keys
from tailrace.meta.keys import (
    BrokerRegistration,
    ClusterRecord,
    ConfigRecord,
    ControllerRecord,
    CoordinatorRegistration,
    Cordon,
    Kind,
    LeaderChange,
    PartitionHistory,
    PartitionState,
    Place,
    ProducerName,
    Reassignment,
    ShardOwner,
    TermRecord,
    TopicDeletion,
    TopicRecord,
    TopicTombstone,
    Value,
    decode,
    decode_counter,
    encode,
    encode_counter,
    is_ours,
    place_of,
)
from tailrace.model import BrokerId, LeaderEpoch, ProducerId, TopicId, TopicPartition

A1: Final = BrokerId(1)
A2: Final = BrokerId(2)
A3: Final = BrokerId(3)
PARTITION: Final = TopicPartition("orders", 3)
STATE: Final = PartitionState(
    controller_epoch=7,
    leader=A2,
    leader_epoch=LeaderEpoch(4),
    isr=(A2, A1),
    elr=(A3,),
    last_leader=A1,
)
CHANGE: Final = LeaderChange(
    decided_ms=1_700_000_000_123,
    cause="the lease of broker 1 ended",
    noticed_ms=1_700_000_000_100,
    old_leader=A1,
    new_leader=A2,
    leader_epoch=LeaderEpoch(4),
    old_isr=(A1, A2),
    new_isr=(A2,),
    candidates=("1: not live", "2: in the ISR, taken"),
    controller_id=101,
    controller_epoch=7,
    loss="",
)
TOPIC: Final = TopicRecord(
    topic_id=TopicId("t-1"),
    assignment={0: (A1, A2), 1: (A2, A3)},
    config={"retention.ms": "1000", "flush": "ack"},
)
BROKER: Final = BrokerRegistration(
    broker_id=A1,
    host="10.0.0.1",
    port=9092,
    link_host="10.0.0.1",
    link_port=9093,
    incarnation="i-1",
    rack="r1",
    instance="pod-1",
    tail_may_be_lost=True,
    draining=True,
)
# Fields that a version before did not write: they are read as if they were empty.
SINCE_LATER: Final = {
    (BrokerRegistration, "instance"),
    (BrokerRegistration, "control_host"),
    (BrokerRegistration, "control_port"),
    (BrokerRegistration, "process"),
    (TermRecord, "stamp"),
    *((ClusterRecord, name) for name in ("store_id", "generation", "former", "recovering")),
}
VALUES: Final[list[Value]] = [
    ControllerRecord(controller_id=101, epoch=7, host="h", port=1),
    ClusterRecord(cluster_id="c-ü"),
    ClusterRecord(
        cluster_id="c-1", store_id="s-2", generation=1, former=("s-1",), recovering="by a person"
    ),
    TermRecord(controller_id=101, token="f00", stamp=12),
    TopicTombstone(name="orders", deleted_ms=1_700_000_000_123, controller_epoch=7),
    BROKER,
    TOPIC,
    STATE,
    PartitionHistory((CHANGE, replace(CHANGE, loss="offsets 7 to 9"))),
    PartitionHistory(),
    TopicDeletion(topic_id=TopicId("t-1")),
    ConfigRecord(settings={"request_rate": "100"}),
    Cordon(reason="its disk is old", since_ms=1_700_000_000_000),
    Reassignment(
        topic_id=TopicId("t-1"), original=(A1, A2), target=(A2, A3), started_ms=5, cancelled=True
    ),
    ProducerName(producer_id=ProducerId(1_000), epoch=3),
    CoordinatorRegistration(coordinator_id=7, host="h", port=9),
    ShardOwner(owner=7, owner_epoch=812, epoch=3),
]


def _name(value: object) -> str:
    return type(value).__name__


# ------------------------------------------------------------------------------------------- keys


@pytest.mark.parametrize(
    ("key", "place"),
    [
        ("/controller", Place(Kind.CONTROLLER)),
        ("/controller_epoch", Place(Kind.CONTROLLER_EPOCH)),
        ("/cluster", Place(Kind.CLUSTER)),
        ("/producers/next_id", Place(Kind.NEXT_PRODUCER_ID)),
        (keys.broker_key(0), Place(Kind.BROKER, number=0)),
        (keys.broker_key(12), Place(Kind.BROKER, number=12)),
        (keys.topic_key("a.b-c_d"), Place(Kind.TOPIC, "a.b-c_d")),
        (keys.state_key(PARTITION), Place(Kind.STATE, "orders", 3)),
        (keys.history_key(PARTITION), Place(Kind.HISTORY, "orders", 3)),
        (keys.deletion_key("orders"), Place(Kind.DELETION, "orders")),
        (keys.tombstone_key("t-1"), Place(Kind.TOMBSTONE, "t-1")),
        (keys.term_key(7), Place(Kind.TERM, number=7)),
        (keys.cordon_key(2), Place(Kind.CORDON, number=2)),
        (keys.reassignment_key(PARTITION), Place(Kind.REASSIGNMENT, "orders", 3)),
        (keys.broker_config_key("4"), Place(Kind.BROKER_CONFIG, "4")),
        (keys.broker_config_key("default"), Place(Kind.BROKER_CONFIG, "default")),
        (keys.client_config_key("a/b"), Place(Kind.CLIENT_CONFIG, "a/b")),
        (keys.coordinator_key(7), Place(Kind.COORDINATOR, number=7)),
        (keys.shard_key(49), Place(Kind.SHARD, number=49)),
        (keys.producer_name_key("a/b c"), Place(Kind.PRODUCER_NAME, "a/b c")),
    ],
)
def test_every_key_says_what_it_is_for(key: str, place: Place) -> None:
    assert place_of(key) == place


def test_keys_are_those_of_the_design() -> None:
    assert keys.state_key(PARTITION) == "/brokers/topics/orders/partitions/3/state"
    assert keys.history_key(PARTITION) == "/brokers/topics/orders/partitions/3/history"
    assert keys.broker_key(1) == "/brokers/ids/1"
    assert keys.deletion_key("orders") == "/admin/delete_topics/orders"
    assert keys.coordinator_key(7) == "/coordinators/ids/7"
    assert keys.shard_key(0) == "/coordinators/shards/0"
    assert keys.producer_name_key("copier") == "/producers/names/copier"
    assert keys.state_key(PARTITION).startswith(keys.topic_prefix("orders"))
    assert not keys.topic_key("orders").startswith(keys.topic_prefix("orders"))
    assert not keys.state_key(TopicPartition("orders2", 0)).startswith(keys.topic_prefix("orders"))


@pytest.mark.parametrize(
    "key",
    [
        "",
        "/",
        "controller",
        "/controllers",
        "/brokers/ids/",
        "/brokers/ids/x",
        "/brokers/ids/01",
        "/brokers/ids/-1",
        "/brokers/ids/٣",
        "/brokers/ids/1/more",
        "/brokers/ids/1234567890",
        "/brokers/topics/",
        "/brokers/topics/a b",
        "/brokers/topics/a/",
        "/brokers/topics/a/partitions",
        "/brokers/topics/a/partitions/0",
        "/brokers/topics/a/partitions/x/state",
        "/brokers/topics/a/partitions/0/other",
        "/brokers/topics/a/other/0/state",
        "/brokers/topics/a/partitions/0/state/more",
        "/admin/delete_topics/",
        "/admin/delete_topics/a/b",
        "/admin/reassign_partitions/a",
        "/admin/reassign_partitions/a/x",
        "/admin/reassign_partitions/a/0/1",
        "/brokers/cordoned/x",
        "/config/brokers/",
        "/config/brokers/x",
        "/config/clients/",
        "/coordinators/other/1",
    ],
)
def test_a_key_that_is_not_ours_is_left_alone(key: str) -> None:
    assert place_of(key) is None


@pytest.mark.parametrize("key", ["/registry/pods", "/", "controller", "/brokers", "/patroni/x"])
def test_keys_of_others_are_not_ours(key: str) -> None:
    assert not is_ours(key)
    # One of a later version is, though nothing is known of it.
    assert is_ours("/config/users/later")


@given(st.text(max_size=60))
def test_any_text_is_a_place_or_none(text: str) -> None:
    for key in (text, keys.TOPICS + text, keys.BROKERS + text, keys.DELETIONS + text):
        place_of(key)


# ----------------------------------------------------------------------------------------- values


@pytest.mark.parametrize("value", VALUES, ids=_name)
def test_what_is_written_is_read_again(value: Value) -> None:
    data = encode(value)
    assert decode(type(value), data, key="/k") == value
    assert encode(decode(type(value), data)) == data
    assert json.loads(data)["version"] == 1


def test_the_state_is_written_as_in_the_design() -> None:
    assert json.loads(encode(STATE)) == {
        "version": 1,
        "controller_epoch": 7,
        "leader": 2,
        "leader_epoch": 4,
        "isr": [2, 1],
        "elr": [3],
        "last_leader": 1,
    }


def test_the_same_topic_gives_the_same_bytes() -> None:
    other = TopicRecord(
        topic_id=TopicId("t-1"),
        assignment={1: (A2, A3), 0: (A1, A2)},
        config={"flush": "ack", "retention.ms": "1000"},
    )
    assert encode(other) == encode(TOPIC)


@pytest.mark.parametrize("value", VALUES, ids=_name)
def test_fields_and_versions_of_later_are_tolerated(value: Value) -> None:
    later = {**json.loads(encode(value)), "version": 2, "added_later": {"x": [1]}}
    assert decode(type(value), json.dumps(later).encode()) == value


@pytest.mark.parametrize("value", VALUES, ids=_name)
def test_a_missing_or_mistyped_field_names_key_and_field(value: Value) -> None:
    whole = json.loads(encode(value))
    for name, written in whole.items():
        wrongs: list[object] = [None, 1.5, {"x": 1.5}, [[]], {"x": []}]
        for wrong in wrongs:
            if type(wrong) is type(written) and not written:
                continue
            with pytest.raises(CorruptCheckpoint, match=r"^/the/key: "):
                decode(type(value), json.dumps({**whole, name: wrong}).encode(), key="/the/key")
        if (type(value), name) in SINCE_LATER:
            continue
        less = {each: whole[each] for each in whole if each != name}
        with pytest.raises(CorruptCheckpoint, match=f"^/the/key: '{name}' is missing"):
            decode(type(value), json.dumps(less).encode(), key="/the/key")


@pytest.mark.parametrize(
    "change",
    [
        {"leader": True},
        {"leader": "2"},
        {"leader": 9},
        {"leader_epoch": -1},
        {"isr": [2, 2]},
        {"isr": [2, -3]},
        {"isr": "12"},
        {"elr": [2]},
        {"version": 0},
        {"version": True},
    ],
    ids=str,
)
def test_a_state_that_cannot_be_is_refused(change: dict[str, object]) -> None:
    data = json.dumps({**json.loads(encode(STATE)), **change}).encode()
    with pytest.raises(CorruptCheckpoint, match=r"^/k: "):
        decode(PartitionState, data, key="/k")


@pytest.mark.parametrize(
    "change",
    [
        {"assignment": {"0": []}},
        {"assignment": {"1": [1]}},
        {"assignment": {"0": [1, 1]}},
        {"assignment": {"zero": [1]}},
        {"assignment": {"0": 1}},
        {"assignment": []},
        {"config": {"a": 1}},
        {"config": [1]},
    ],
    ids=str,
)
def test_a_topic_that_cannot_be_is_refused(change: dict[str, object]) -> None:
    data = json.dumps({**json.loads(encode(TOPIC)), **change}).encode()
    with pytest.raises(CorruptCheckpoint, match=r"^/k: "):
        decode(TopicRecord, data, key="/k")


def test_a_flag_is_true_or_false() -> None:
    data = json.dumps({**json.loads(encode(BROKER)), "draining": 1}).encode()
    with pytest.raises(CorruptCheckpoint, match="'draining' is 1, not true or false"):
        decode(BrokerRegistration, data)


def test_a_history_of_something_else() -> None:
    for changes in (5, [5], ["x"]):
        data = json.dumps({"version": 1, "changes": changes}).encode()
        with pytest.raises(CorruptCheckpoint, match=r"^/h: "):
            decode(PartitionHistory, data, key="/h")


@pytest.mark.parametrize(
    "data", [b"", b"{", b"\xff\xfe\x00", b"[1]", b"3", b"[" * 100_000, b"9" * 5_000], ids=len
)
def test_bytes_that_are_no_json_object(data: bytes) -> None:
    with pytest.raises(CorruptCheckpoint, match=r"^/k: "):
        decode(PartitionState, data, key="/k")


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    for kind in {type(value) for value in VALUES}:
        with pytest.raises(CorruptCheckpoint):
            decode(kind, data)


@pytest.mark.parametrize(
    ("leader", "isr", "elr"),
    [(A1, (A2,), ()), (A1, (), ()), (A1, (A1, A2), (A2,)), (A1, (A1, A1), ())],
)
def test_a_state_that_cannot_be_cannot_be_made(
    leader: BrokerId, isr: tuple[BrokerId, ...], elr: tuple[BrokerId, ...]
) -> None:
    with pytest.raises(InvariantViolation):
        replace(STATE, leader=leader, isr=isr, elr=elr)


def test_nobody_may_lead() -> None:
    offline = replace(STATE, leader=keys.NO_BROKER, isr=(), elr=())
    assert decode(PartitionState, encode(offline)) == offline


def test_a_loss_is_written_where_there_is_one_and_older_states_have_none() -> None:
    lost = replace(STATE, loss="offsets 7 to 9")
    assert decode(PartitionState, encode(lost)) == lost
    assert "loss" not in json.loads(encode(STATE))
    data = json.dumps({**json.loads(encode(STATE)), "loss": 5}).encode()
    with pytest.raises(CorruptCheckpoint, match="'loss' is 5, not text"):
        decode(PartitionState, data)


def test_a_reassignment_names_each_broker_once_and_both_sets_while_it_is_under_way() -> None:
    move = Reassignment(topic_id=TopicId("t"), original=(A1, A2), target=(A3, A2), started_ms=0)
    assert move.all_replicas == (A3, A2, A1)
    for target in ((), (A1, A1)):
        with pytest.raises(InvariantViolation):
            replace(move, target=target)


def test_a_history_keeps_the_newest() -> None:
    history = PartitionHistory()
    for epoch in range(keys.HISTORY_CHANGES_MAX + 5):
        history = history.with_change(replace(CHANGE, leader_epoch=LeaderEpoch(epoch)))
    epochs = [change.leader_epoch for change in history.changes]
    assert epochs == list(range(24, 4, -1))


def test_defaults_are_written_too() -> None:
    defaults = {field.name for field in fields(BrokerRegistration)}
    assert defaults <= set(json.loads(encode(BROKER)))


@pytest.mark.parametrize("value", [0, 7, 2**40])
def test_counters(value: int) -> None:
    assert decode_counter(encode_counter(value)) == value


@pytest.mark.parametrize("data", [b"", b"x", b"1.5", b"true", b'"1"', b"{}"])
def test_a_counter_that_is_none(data: bytes) -> None:
    with pytest.raises(CorruptCheckpoint, match=r"^/controller_epoch: "):
        decode_counter(data, key="/controller_epoch")


def test_a_registration_of_a_version_before_has_no_instance() -> None:
    fields = json.loads(encode(BROKER))
    del fields["instance"]
    assert not decode(BrokerRegistration, json.dumps(fields).encode()).instance
