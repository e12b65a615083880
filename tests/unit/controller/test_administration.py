"""Settings, partitions and cordons: what is missing is decided, what is there is left alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tailrace.controller.facts import (
    ConfigKind,
    ConfigRequested,
    CordonRequested,
    Decision,
    PartitionsRequested,
)
from tailrace.errors import (
    InvalidConfig,
    InvalidTopic,
    TailraceError,
    UnknownBroker,
    UnknownTopic,
)
from tailrace.meta.image import ClusterImage, StoredConfig, StoredCordon, StoredDeletion
from tailrace.meta.keys import (
    ConfigRecord,
    Cordon,
    TopicDeletion,
    TopicRecord,
    decode,
)
from tailrace.meta.store import Delete, ModifiedAt, Put
from tailrace.model import BrokerId, TopicId
from unit.controller.images import MINE, NOW_MS, decided, image, live, state

B = BrokerId


def cluster(**changes: Any) -> ClusterImage:
    """Three brokers and a topic of one partition."""
    return replace(image([live(1), live(2), live(3)], {0: state(1, [1, 2, 3])}), **changes)


def only(decision: Decision) -> tuple[Any, Any]:
    """The one transaction's guards and its one operation."""
    assert decision.error is None, decision.error
    (transaction,) = decision.transactions
    (operation,) = transaction.operations
    assert MINE in transaction.guards
    return transaction.guards, operation


def config(kind: ConfigKind, name: str, *unset: str, **changed: str) -> ConfigRequested:
    dotted = {each.replace("__", "."): text for each, text in changed.items()}
    return ConfigRequested(kind=kind, name=name, changed=dotted, unset=unset)


def error_of(found: ClusterImage, event: Any) -> TailraceError:
    decision = decided(found, event)
    assert decision.transactions == ()
    assert decision.error is not None
    return decision.error


# ---------------------------------------------------------------------------------------- settings


def test_settings_of_a_topic_are_set_and_unset() -> None:
    old = cluster()
    event = config(ConfigKind.TOPIC, "t", retention__ms="5000", flush="ack")
    guards, put = only(decided(old, event))
    assert ModifiedAt("/brokers/topics/t", old.topics["t"].revision) in guards
    assert ModifiedAt("/admin/delete_topics/t", 0) in guards
    record = decode(TopicRecord, put.value)
    assert record.config == {"flush": "ack", "retention.ms": "5000"}
    # There may be records that are on no disk yet.
    assert record.syncing
    (change,) = record.changes
    assert (change.decided_ms, change.controller_id) == (NOW_MS, 9)
    assert (change.set, change.unset) == ({"flush": "ack", "retention.ms": "5000"}, ())
    topic = old.topics["t"]
    new = replace(old, topics={"t": topic._replace(record=record)})
    assert decided(new, event).transactions == ()
    _, put = only(decided(new, config(ConfigKind.TOPIC, "t", "flush")))
    assert decode(TopicRecord, put.value).config == {"retention.ms": "5000"}


@pytest.mark.parametrize(
    "event",
    [
        config(ConfigKind.TOPIC, "t", retention__ms="soon"),
        config(ConfigKind.TOPIC, "t", retention__mss="1"),
        config(ConfigKind.TOPIC, "t", min__insync__replicas="4"),
        config(ConfigKind.TOPIC, "t", unclean__recovery="maybe"),
        config(ConfigKind.TOPIC, "t", "flush", flush="ack"),
        config(ConfigKind.BROKER, "x"),
        config(ConfigKind.BROKER, "1", no__such="1"),
        config(ConfigKind.BROKER, "1", request_rate="1"),
        config(ConfigKind.CLIENT, ""),
        config(ConfigKind.CLIENT, "c" * 201),
        config(ConfigKind.CLIENT, "a\nb"),
        config(ConfigKind.CLIENT, "c", request_rate="0"),
        config(ConfigKind.CLIENT, "c", retention__ms="1"),
    ],
    ids=str,
)
def test_settings_that_cannot_be_are_refused(event: ConfigRequested) -> None:
    assert isinstance(error_of(cluster(), event), InvalidConfig)


def test_a_topic_that_is_not_there_or_not_for_long_has_no_settings() -> None:
    event = config(ConfigKind.TOPIC, "other", retention__ms="1")
    assert isinstance(error_of(cluster(), event), UnknownTopic)
    going = StoredDeletion(TopicDeletion(topic_id=TopicId("t")), 5)
    found = cluster(deletions={"t": going})
    event = config(ConfigKind.TOPIC, "t", retention__ms="1")
    assert isinstance(error_of(found, event), UnknownTopic)


def test_settings_of_brokers_and_clients_are_keys_of_their_own() -> None:
    event = config(ConfigKind.BROKER, "default", leader__replication__throttled__rate="2048")
    guards, put = only(decided(cluster(), event))
    assert ModifiedAt("/config/brokers/default", 0) in guards
    assert put.key == "/config/brokers/default"
    event = config(ConfigKind.CLIENT, "copier", producer_byte_rate="1000")
    guards, put = only(decided(cluster(), event))
    assert put.key == "/config/clients/copier"
    stored = StoredConfig(decode(ConfigRecord, put.value), 77)
    found = cluster(client_configs={"copier": stored})
    assert decided(found, event).transactions == ()
    guards, gone = only(decided(found, config(ConfigKind.CLIENT, "copier", "producer_byte_rate")))
    assert ModifiedAt("/config/clients/copier", 77) in guards
    assert gone == Delete("/config/clients/copier")


# -------------------------------------------------------------------------------------- partitions


def test_partitions_are_added_where_the_count_goes_on() -> None:
    event = PartitionsRequested(name="t", partitions=4)
    decision = decided(cluster(), event)
    guards, put = only(decision)
    record = decode(TopicRecord, put.value)
    assert record == decision.record
    assert record.assignment == {0: (1, 2, 3), 1: (2, 3, 1), 2: (3, 1, 2), 3: (1, 2, 3)}
    assert ModifiedAt("/admin/delete_topics/t", 0) in guards


def test_as_many_partitions_as_there_are_is_nothing_to_do_and_fewer_cannot_be() -> None:
    assert decided(cluster(), PartitionsRequested(name="t", partitions=1)).transactions == ()
    for count in (0, -1, 10_001):
        found = error_of(cluster(), PartitionsRequested(name="t", partitions=count))
        assert isinstance(found, InvalidTopic)
    event = PartitionsRequested(name="u", partitions=2)
    assert isinstance(error_of(cluster(), event), UnknownTopic)


def test_new_partitions_avoid_cordoned_brokers() -> None:
    cordoned = {B(2): StoredCordon(Cordon(reason="", since_ms=0), 5)}
    found = replace(
        image([live(1), live(2), live(3)], {0: state(1, [1])}, replicas=[1]), cordons=cordoned
    )
    record = decided(found, PartitionsRequested(name="t", partitions=3)).record
    assert record is not None
    assert record.assignment == {0: (1,), 1: (3,), 2: (1,)}
    event = PartitionsRequested(name="t", partitions=3)
    found = cluster(cordons=cordoned)
    assert isinstance(error_of(found, event), InvalidTopic)


# ----------------------------------------------------------------------------------------- cordons


def test_a_broker_is_cordoned_once_and_uncordoned_once() -> None:
    event = CordonRequested(broker_id=B(2), cordon=True, reason="its disk is old")
    guards, put = only(decided(cluster(), event))
    assert ModifiedAt("/brokers/cordoned/2", 0) in guards
    assert isinstance(put, Put)
    record = decode(Cordon, put.value)
    assert record == Cordon(reason="its disk is old", since_ms=NOW_MS)
    found = cluster(cordons={B(2): StoredCordon(record, 9)})
    assert decided(found, event).transactions == ()
    off = CordonRequested(broker_id=B(2), cordon=False)
    guards, gone = only(decided(found, off))
    assert ModifiedAt("/brokers/cordoned/2", 9) in guards
    assert gone == Delete("/brokers/cordoned/2")
    assert decided(cluster(), off).transactions == ()


def test_who_holds_replicas_can_be_cordoned_while_it_is_away_and_strangers_cannot() -> None:
    away = replace(image([live(1), live(2)], {0: state(1, [1, 2])}))
    assert decided(away, CordonRequested(broker_id=B(3), cordon=True)).transactions != ()
    event = CordonRequested(broker_id=B(9), cordon=True)
    assert isinstance(error_of(away, event), UnknownBroker)


def test_flush_ack_counts_when_all_have_synced_what_they_had() -> None:
    topic = cluster().topics["t"]
    record = replace(topic.record, config={"flush": "ack"}, syncing=True)
    found = cluster(topics={"t": topic._replace(record=record)})
    assert decided(found).transactions == ()
    guards, put = only(decided(found, synced=["t", "gone"]))
    assert ModifiedAt("/brokers/topics/t", topic.revision) in guards
    assert decode(TopicRecord, put.value) == replace(record, syncing=False)
    # Other settings leave it as it is, and without flush=ack there is nothing to wait for.
    _, put = only(decided(found, config(ConfigKind.TOPIC, "t", retention__ms="5")))
    assert decode(TopicRecord, put.value).syncing
    _, put = only(decided(found, config(ConfigKind.TOPIC, "t", "flush")))
    assert not decode(TopicRecord, put.value).syncing
