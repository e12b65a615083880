"""Internal topics grow to the replicas that they should have had from the start. Pure.

`__consumer_offsets` is made when the first group needs it, be it that one broker is up by then. As
soon as there are more, its partitions get more replicas, by the same machinery that moves them.
"""

from __future__ import annotations

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
    """Reassignments that add what is missing and takes nothing away; those under way are left."""
    moves: dict[TopicPartition, Reassignment] = {}
    order = placement_order(candidates(image, facts).fit)
    for name in INTERNAL_TOPICS:
        topic = image.topics.get(name)
        if topic is None or name in image.deletions:
            continue
        for number, replicas in topic.record.assignment.items():
            partition = TopicPartition(name, number)
            added = _missing(order, number, replicas, facts.default_replication_factor)
            if added and partition not in image.reassignments:
                moves[partition] = Reassignment(
                    topic_id=topic.record.topic_id,
                    original=replicas,
                    target=(*replicas, *added),
                    started_ms=now_ms,
                )
    return tuple(key_transactions(image, moves, facts))


def _missing(
    order: list[BrokerId], partition: int, replicas: tuple[BrokerId, ...], wanted: int
) -> list[BrokerId]:
    ring = [order[(partition + j) % len(order)] for j in range(len(order))]
    others = [each for each in ring if each not in replicas]
    return others[: max(0, wanted - len(replicas))]
