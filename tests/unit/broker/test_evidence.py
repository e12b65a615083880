"""A replica goes only where the store has it on record; not for what is missing or old."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.broker.evidence import TOPICS_PER_READ, gather, judge
from tailrace.broker.hosted import StopOrder
from tailrace.errors import CorruptCheckpoint, InvalidRequest, StoreUnavailable, TailraceError
from tailrace.log.evidence import RemovalEvidence, ReplicaMoved, TopicDeleted
from tailrace.meta.keys import (
    TopicDeletion,
    TopicRecord,
    TopicTombstone,
    deletion_key,
    encode,
    tombstone_key,
    topic_key,
)
from tailrace.meta.memory import MemoryEtcd
from tailrace.meta.store import Entry, Put
from tailrace.model import BrokerId, TopicId, TopicPartition

ME = BrokerId(1)
T0 = TopicPartition("t", 0)
ID = TopicId("id-t")
OTHER = TopicId("id-other")
ORDER = StopOrder(T0, ID, delete=True)


def tombstone(name: str = "t") -> bytes:
    return encode(TopicTombstone(name=name, deleted_ms=5, controller_epoch=3))


def marker(topic_id: TopicId = ID) -> bytes:
    return encode(TopicDeletion(topic_id=topic_id))


def record(*replicas: int, topic_id: TopicId = ID) -> bytes:
    assignment = {0: tuple(map(BrokerId, replicas))} if replicas else {}
    return encode(TopicRecord(topic_id=topic_id, assignment=assignment, config={}))


def judged(values: Mapping[str, bytes], order: StopOrder = ORDER) -> RemovalEvidence:
    found = {
        key: Entry(key=key, value=value, create_revision=40, mod_revision=41, lease=0)
        for key, value in values.items()
    }
    return judge(order, found, broker_id=ME, cluster_id="c", controller_epoch=7)


@pytest.mark.parametrize(
    ("key", "value"), [(deletion_key("t"), marker()), (tombstone_key(ID), tombstone())]
)
def test_a_deletion_on_record_is_evidence_and_is_named(key: str, value: bytes) -> None:
    # Whatever else there is: the id is that of one topic only.
    for more in ({}, {topic_key("t"): record(1, 2)}, {topic_key("t"): record(1, topic_id=OTHER)}):
        assert judged({key: value, **more}) == TopicDeleted(
            cluster_id="c", controller_epoch=7, topic_id=ID, record=key, revision=41
        )


def test_an_assignment_that_was_worked_out_anew_proves_nothing_of_who_was_not_heard() -> None:
    """A broker that was away when the store was rebuilt may hold more than all the others."""
    rebuilt = encode(
        TopicRecord(topic_id=ID, assignment={0: (BrokerId(2),)}, config={}, rebuilt=True)
    )
    entry = Entry(topic_key("t"), rebuilt, 1, 2, 0)
    found = {topic_key("t"): entry}

    def judge_it(*, is_hosted: bool) -> RemovalEvidence:
        return judge(
            ORDER, found, broker_id=ME, cluster_id="c", controller_epoch=7, is_hosted=is_hosted
        )

    with pytest.raises(InvalidRequest, match="may hold more"):
        judge_it(is_hosted=False)
    assert isinstance(judge_it(is_hosted=True), ReplicaMoved)


def test_an_assignment_without_this_broker_is_evidence() -> None:
    assert judged({topic_key("t"): record(2, 3)}) == ReplicaMoved(
        cluster_id="c",
        controller_epoch=7,
        topic_id=ID,
        record=topic_key("t"),
        revision=41,
        replicas=(2, 3),
    )


@pytest.mark.parametrize(
    ("values", "order", "why"),
    [
        # Missing: an empty store, a store that is older than the topic, an order without an id.
        ({}, ORDER, "no record"),
        ({topic_key("u"): record(2)}, ORDER, "no record"),
        ({deletion_key("t"): marker(TopicId(""))}, ORDER._replace(topic_id=""), "no topic id"),
        ({topic_key("t"): record(2, topic_id=TopicId(""))}, StopOrder(T0, "", True), "no topic id"),
        # Of a former or of a later topic of the name.
        ({deletion_key("t"): marker(OTHER)}, ORDER, "no record"),
        ({tombstone_key(OTHER): tombstone()}, ORDER, "no record"),
        ({topic_key("t"): record(2, 3, topic_id=OTHER)}, ORDER, "no record"),
        # Of another topic's name: whoever wrote that did not mean this replica.
        ({tombstone_key(ID): tombstone("u")}, ORDER, "no record"),
        ({deletion_key("u"): marker()}, ORDER, "no record"),
        # It is one of the replicas, or the record says nothing of the partition.
        ({topic_key("t"): record(1, 2)}, ORDER, "one of its replicas"),
        ({topic_key("t"): record()}, ORDER, "one of its replicas"),
        (
            {topic_key("t"): record(2, 3)},
            ORDER._replace(partition=TopicPartition("t", 1)),
            "one of its replicas",
        ),
    ],
)
def test_all_else_is_no_evidence(values: Mapping[str, bytes], order: StopOrder, why: str) -> None:
    with pytest.raises(InvalidRequest, match="not deleted") as caught:
        judged(values, order)
    assert why in str(caught.value)


@pytest.mark.parametrize("key", [deletion_key("t"), tombstone_key(ID), topic_key("t")])
def test_a_record_that_cannot_be_read_is_no_evidence(key: str) -> None:
    with pytest.raises(CorruptCheckpoint):
        judged({key: b"{broken"})


IDS = st.sampled_from([ID, OTHER, TopicId("")])
NAMES = st.sampled_from(["t", "u"])


@given(
    topic=st.none() | st.tuples(IDS, st.lists(st.integers(1, 3), unique=True)),
    marked=st.none() | IDS,
    buried=st.none() | st.tuples(st.sampled_from([ID, OTHER]), NAMES),
)
def test_whatever_the_store_says_only_a_record_of_this_very_topic_deletes(
    topic: tuple[TopicId, list[int]] | None,
    marked: TopicId | None,
    buried: tuple[TopicId, str] | None,
) -> None:
    values = {}
    if topic is not None:
        values[topic_key("t")] = record(*topic[1], topic_id=topic[0])
    if marked is not None:
        values[deletion_key("t")] = marker(marked)
    if buried is not None:
        values[tombstone_key(buried[0])] = tombstone(buried[1])
    is_deleted = marked == ID or buried == (ID, "t")
    is_moved = topic is not None and topic[0] == ID and bool(topic[1]) and ME not in topic[1]
    try:
        found: RemovalEvidence | None = judged(values)
    except InvalidRequest:
        found = None
    kind = TopicDeleted if is_deleted else ReplicaMoved if is_moved else type(None)
    assert type(found) is kind


def gathered(
    store_of: MemoryEtcd, orders: list[StopOrder]
) -> tuple[dict[StopOrder, RemovalEvidence], dict[TopicPartition, TailraceError]]:
    return asyncio.run(
        gather(store_of.connect(), orders, broker_id=ME, cluster_id="c", controller_epoch=7)
    )


def test_each_order_is_judged_on_its_own_over_many_reads() -> None:
    etcd, count = MemoryEtcd(), 2 * TOPICS_PER_READ + 1
    names = [f"t{each}" for each in range(count)]
    puts = [
        Put(deletion_key(name), marker(TopicId(f"id-{name}"))) for name in names if name != "t7"
    ]
    puts.append(Put(topic_key("t9"), b"{broken"))
    puts.append(Put(deletion_key("t9"), b"{broken"))
    for start in range(0, len(puts), 40):
        asyncio.run(etcd.connect().txn([], puts[start : start + 40]))
    orders = [StopOrder(TopicPartition(each, 0), f"id-{each}", delete=True) for each in names]
    evidence, failures = gathered(etcd, orders)
    assert {type(each) for each in evidence.values()} == {TopicDeleted}
    assert {each.partition.topic for each in orders if each not in evidence} == {"t7", "t9"}
    assert {each.topic: error.code for each, error in failures.items()} == {
        "t7": "INVALID_REQUEST",
        "t9": CorruptCheckpoint.code,
    }


def test_a_store_that_is_away_is_no_empty_store() -> None:
    async def ask() -> None:
        store = MemoryEtcd().connect()
        await store.close()
        with pytest.raises(StoreUnavailable):
            await gather(store, [ORDER], broker_id=ME, cluster_id="c", controller_epoch=7)

    asyncio.run(ask())


def test_nothing_is_read_where_nothing_is_to_be_deleted() -> None:
    assert gathered(MemoryEtcd(), []) == ({}, {})
