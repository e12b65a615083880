"""Who should lead: preferred replicas, by hand or when brokers lead too little, and last resorts.

Pure. A preferred replica (the first of its partition) leads only when it is in sync; nothing is
ever lost by that. An unclean election is a person's decision, for a partition that nobody leads and
that nobody who holds everything committed can lead: what may be lost is written down with it.
"""

from __future__ import annotations

from collections.abc import Iterator

from tailrace.controller.changes import StateChange, transactions
from tailrace.controller.election import preferred_state, unclean_state
from tailrace.controller.facts import Cause, Decision, ElectionRequested, Facts, LeaderWish
from tailrace.controller.views import Views
from tailrace.errors import (
    ElectionNotNeeded,
    LeaderNotAvailable,
    TailraceError,
)
from tailrace.meta.image import ClusterImage, StoredState
from tailrace.meta.keys import NO_BROKER
from tailrace.model import BrokerId, TopicPartition


def elect(image: ClusterImage, event: ElectionRequested, facts: Facts, *, now_ms: int) -> Decision:
    """Other leaders for the partitions that are meant, and why others cannot have one."""
    outcomes: dict[TopicPartition, TailraceError | None] = {}
    changes: list[StateChange] = []
    views = Views(image, facts)
    for wish in event.wishes or _all(image, event):
        try:
            changes.append(_elected(image, wish, event, facts, views, now_ms))
            outcomes[wish.partition] = None
        except TailraceError as error:
            if event.wishes:
                outcomes[wish.partition] = error
    done = tuple(transactions(changes, image, facts, now_ms)) if changes else ()
    return Decision(transactions=done, outcomes=outcomes)


def imbalance(image: ClusterImage) -> dict[BrokerId, float]:
    """By broker: the percentage of the partitions that prefer it and that it does not lead."""
    preferred: dict[BrokerId, int] = {}
    missing: dict[BrokerId, int] = {}
    for partition, replicas, stored in _led(image):
        first = replicas[0]
        preferred[first] = preferred.get(first, 0) + 1
        missing[first] = missing.get(first, 0) + (stored.state.leader != first)
        del partition
    return {each: 100 * missing[each] / preferred[each] for each in sorted(preferred)}


def _all(image: ClusterImage, event: ElectionRequested) -> Iterator[LeaderWish]:
    poor: set[BrokerId] | None = None
    if event.balance_percent is not None:
        found = imbalance(image)
        poor = {each for each in found if found[each] > event.balance_percent}
    for partition, replicas, stored in _led(image):
        if event.unclean:
            if stored.state.leader == NO_BROKER:
                yield LeaderWish(partition=partition)
        elif stored.state.leader != replicas[0] and (poor is None or replicas[0] in poor):
            yield LeaderWish(partition=partition)


def _led(
    image: ClusterImage,
) -> Iterator[tuple[TopicPartition, tuple[BrokerId, ...], StoredState]]:
    for partition, replicas in image.partitions():
        stored = image.state(partition)
        if stored is not None and partition.topic not in image.deletions:
            yield partition, replicas, stored


def _elected(
    image: ClusterImage,
    wish: LeaderWish,
    event: ElectionRequested,
    facts: Facts,
    views: Views,
    now_ms: int,
) -> StateChange:
    partition = wish.partition
    stored, replicas = image.state(partition), image.replicas(partition)
    if stored is None or not replicas or partition.topic in image.deletions:
        raise image.missing(partition)
    record = image.topics[partition.topic].record
    brokers = views.of_partition(record, partition, replicas).brokers
    epoch = facts.term.epoch
    if not event.unclean:
        if stored.state.leader == replicas[0]:
            raise ElectionNotNeeded(f"broker {replicas[0]} leads {partition} already")
        outcome = preferred_state(stored.state, replicas, brokers, controller_epoch=epoch)
        if outcome is None:
            raise LeaderNotAvailable(
                f"{partition}: broker {replicas[0]} cannot lead, it must be live, in sync and "
                "neither cordoned nor shutting down"
            )
        who = "asked for" if event.balance_percent is None else "automatic"
        return StateChange(partition, stored, outcome, Cause(f"preferred leader, {who}", now_ms))
    if stored.state.leader != NO_BROKER:
        raise ElectionNotNeeded(f"broker {stored.state.leader} leads {partition}")
    waiting = [each for each in (*stored.state.isr, *stored.state.elr) if each in brokers.live]
    if waiting and all(brokers.can_be_elected(each) for each in waiting):
        raise ElectionNotNeeded(f"{partition} is about to get a leader without any loss")
    leader = wish.leader if wish.leader != NO_BROKER else stored.state.last_leader
    if leader not in replicas or leader not in brokers.live:
        raise LeaderNotAvailable(
            f"{partition}: broker {leader} cannot lead, it must be live and one of {replicas}"
        )
    outcome = unclean_state(
        leader, stored.state, replicas, brokers, loss=wish.loss, controller_epoch=epoch
    )
    cause = Cause("unclean election, decided by a person", now_ms)
    return StateChange(partition, stored, outcome, cause)
