"""Internal topics grow to the replicas that they should have had from the start. Pure.

`__consumer_offsets` is made when the first group needs it, be it that one broker is up by then. As
soon as there are more, its partitions get more replicas, by the same machinery that moves them.
"""

from __future__ import annotations

from collections.abc import Iterator

from tailrace.controller.capacity import candidates
from tailrace.controller.facts import Facts, Transaction
from tailrace.controller.placement import placement_order
from tailrace.controller.reassignment import key_transactions
from tailrace.meta.image import ClusterImage
from tailrace.meta.keys import Reassignment
from tailrace.model import INTERNAL_TOPICS, BrokerId, TopicPartition


def growth_transactions(
    image: ClusterImage, facts: Facts, *, now_ms: int
) -> tuple[Transaction, ...]:
    """Reassignments that add what is missing and take nothing away; those under way are left."""
    small = [
        each
        for each in _internal(image)
        if len(image.replicas(each)) < facts.default_replication_factor
        and each not in image.reassignments
    ]
    if not small:
        return ()
    moves: dict[TopicPartition, Reassignment] = {}
    order = placement_order(candidates(image, facts).fit)
    for partition in small:
        replicas = image.replicas(partition)
        wanted = facts.default_replication_factor - len(replicas)
        added = _others(order, partition.partition, replicas)[:wanted]
        if added:
            moves[partition] = Reassignment(
                topic_id=image.topics[partition.topic].record.topic_id,
                original=replicas,
                target=(*replicas, *added),
                started_ms=now_ms,
            )
    return tuple(key_transactions(image, moves, facts))


def _internal(image: ClusterImage) -> Iterator[TopicPartition]:
    for name in INTERNAL_TOPICS:
        topic = image.topics.get(name)
        if topic is not None and name not in image.deletions:
            yield from (TopicPartition(name, number) for number in topic.record.assignment)


def _others(
    order: list[BrokerId], partition: int, replicas: tuple[BrokerId, ...]
) -> list[BrokerId]:
    ring = [order[(partition + j) % len(order)] for j in range(len(order))]
    return [each for each in ring if each not in replicas]
