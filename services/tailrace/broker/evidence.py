"""Whether the store has it on record that a replica may be deleted.

An order to delete is not enough: whoever sends it may be mistaken, or may know an older store. The
broker reads the record itself, linearizably and from a store that it believes: the topic's deletion
(under way, or its tombstone), or an assignment of the same topic id that does not name this broker.
What has no such record is not deleted. Missing keys prove nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from tailrace.broker.hosted import StopOrder
from tailrace.errors import CorruptCheckpoint, InvalidRequest, TailraceError
from tailrace.log.evidence import RemovalEvidence, ReplicaMoved, TopicDeleted
from tailrace.meta.keys import (
    TopicDeletion,
    TopicRecord,
    TopicTombstone,
    decode,
    deletion_key,
    tombstone_key,
    topic_key,
)
from tailrace.meta.store import Entry, MetadataStore
from tailrace.model import BrokerId, TopicId, TopicPartition

# Topics that are looked up in one request: three keys each.
TOPICS_PER_READ: Final = 40


async def gather(
    store: MetadataStore,
    orders: Iterable[StopOrder],
    *,
    broker_id: BrokerId,
    cluster_id: str,
    controller_epoch: int,
    is_hosted: Callable[[StopOrder], bool] = lambda _: True,
) -> tuple[dict[StopOrder, RemovalEvidence], dict[TopicPartition, TailraceError]]:
    """Find the evidence for each order to delete; those without come back with the reason.

    StoreUnavailable when the store is away, or is not the one that is known.
    """
    wanted = list(orders)
    topics = list(dict.fromkeys((each.partition.topic, each.topic_id) for each in wanted))
    found: dict[str, Entry | None] = {}
    for start in range(0, len(topics), TOPICS_PER_READ):
        keys = _keys(topics[start : start + TOPICS_PER_READ])
        found |= dict(zip(keys, await store.get_many(keys), strict=True))
    evidence: dict[StopOrder, RemovalEvidence] = {}
    failures: dict[TopicPartition, TailraceError] = {}
    for order in wanted:
        try:
            evidence[order] = judge(
                order,
                found,
                broker_id=broker_id,
                cluster_id=cluster_id,
                controller_epoch=controller_epoch,
                is_hosted=is_hosted(order),
            )
        except (InvalidRequest, CorruptCheckpoint) as error:
            failures[order.partition] = error
    return evidence, failures


def judge(
    order: StopOrder,
    found: Mapping[str, Entry | None],
    *,
    broker_id: BrokerId,
    cluster_id: str,
    controller_epoch: int,
    is_hosted: bool = True,
) -> RemovalEvidence:
    """Return what proves that the replica may go; InvalidRequest when nothing does.

    `is_hosted`: a controller has given this replica a role since this broker has started.
    """
    partition, topic_id = order.partition, TopicId(order.topic_id)
    if not topic_id:
        raise InvalidRequest(f"{partition}: not deleted, the order names no topic id")
    marker, tombstone, topic = (found.get(each) for each in _keys([(partition.topic, topic_id)]))
    for entry in (tombstone, marker):
        if entry is not None and _names(entry, topic_id, partition.topic):
            return TopicDeleted(
                cluster_id=cluster_id,
                controller_epoch=controller_epoch,
                topic_id=topic_id,
                record=entry.key,
                revision=entry.mod_revision,
            )
    record = None if topic is None else decode(TopicRecord, topic.value, key=topic.key)
    if topic is not None and record is not None and record.topic_id == topic_id:
        replicas = record.assignment.get(partition.partition, ())
        if replicas and broker_id not in replicas and record.rebuilt and not is_hosted:
            raise InvalidRequest(
                f"{partition}: not deleted, its assignment was worked out when the store was "
                "rebuilt, and this replica may hold more than those that were heard then"
            )
        if replicas and broker_id not in replicas:
            return ReplicaMoved(
                cluster_id=cluster_id,
                controller_epoch=controller_epoch,
                topic_id=topic_id,
                record=topic.key,
                revision=topic.mod_revision,
                replicas=tuple(replicas),
            )
        raise InvalidRequest(f"{partition}: not deleted, this broker is one of its replicas")
    raise InvalidRequest(
        f"{partition}: not deleted, the store has no record that topic {topic_id} was deleted"
    )


def _keys(topics: Sequence[tuple[str, str]]) -> list[str]:
    return [
        key
        for name, topic_id in topics
        for key in (deletion_key(name), tombstone_key(topic_id), topic_key(name))
    ]


def _names(entry: Entry, topic_id: TopicId, topic: str) -> bool:
    if entry.key == tombstone_key(topic_id):
        return decode(TopicTombstone, entry.value, key=entry.key).name == topic
    return decode(TopicDeletion, entry.value, key=entry.key).topic_id == topic_id
