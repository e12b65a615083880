"""What is counted of a cluster: what transactions change, and how its partitions are. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from tailrace.config import min_insync_of
from tailrace.meta.image import ClusterImage, StoredState
from tailrace.meta.keys import NO_BROKER, Kind, PartitionState, decode, place_of
from tailrace.meta.store import Operation, Put
from tailrace.metrics.controller import PartitionTally
from tailrace.metrics.values import ControllerCounts
from tailrace.model import BrokerId, TopicPartition


def count_changes(
    counts: ControllerCounts, before: ClusterImage, operations: Iterable[Operation]
) -> None:
    """Count what a transaction did; `before` is the image that it was decided from."""
    counts.commits += 1
    for operation in operations:
        place = place_of(operation.key)
        if place is None or place.kind is not Kind.STATE or not isinstance(operation, Put):
            continue
        stored = before.state(TopicPartition(place.name, place.number))
        if stored is not None:
            now = decode(PartitionState, operation.value, key=operation.key)
            _count(counts, stored.state, now)


def _count(counts: ControllerCounts, before: PartitionState, now: PartitionState) -> None:
    if now.leader != before.leader:
        if now.leader == NO_BROKER:
            counts.leaders_lost += 1
        else:
            counts.leader_changes += 1
    if now.loss and now.loss != before.loss:
        counts.losses += 1


def tally(image: ClusterImage) -> PartitionTally:
    """Count the partitions of all topics that are not being deleted."""
    partitions = offline = under_replicated = under_min_isr = not_preferred = undecided = 0
    for partition, replicas in image.partitions():
        if partition.topic in image.deletions:
            continue
        partitions += 1
        stored = image.state(partition)
        leader, isr = _leader_and_isr(stored)
        config = image.topics[partition.topic].record.config
        offline += leader == NO_BROKER
        under_replicated += isr < len(replicas)
        under_min_isr += isr < min_insync_of(config, replicas=len(replicas))
        not_preferred += leader not in {NO_BROKER, replicas[0]}
        undecided += stored is not None and bool(stored.state.conflict)
    return PartitionTally(
        partitions, offline, under_replicated, under_min_isr, not_preferred, undecided
    )


def _leader_and_isr(stored: StoredState | None) -> tuple[BrokerId, int]:
    if stored is None:
        return NO_BROKER, 0
    # A partition that nobody leads has an ISR of those who may lead again, but nobody is in sync.
    is_led = stored.state.leader != NO_BROKER
    return stored.state.leader, len(stored.state.isr) if is_led else 0
