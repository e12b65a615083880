"""Brokers and rules as elections of a partition have to see them: few views for many partitions.

Pure. A broker is *admitted* when nothing that it may have lost counts any more; see `partitions`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tailrace.controller.election import Brokers
from tailrace.controller.facts import Facts, ReplicaFailure
from tailrace.controller.topics import TopicRules
from tailrace.meta.image import ClusterImage, LiveBroker, StoredReassignment
from tailrace.meta.keys import TopicRecord
from tailrace.model import BrokerId, TopicPartition, settled_count


def is_admitted(broker: LiveBroker, incarnations: Mapping[BrokerId, str]) -> bool:
    """Whether a broker may be given orders."""
    registration = broker.registration
    known = incarnations.get(registration.broker_id)
    return not registration.tail_may_be_lost and known == registration.incarnation


def is_draining(live: LiveBroker, facts: Facts) -> bool:
    registration = live.registration
    return registration.draining or facts.draining.get(registration.broker_id) == live.epoch


def is_usable(image: ClusterImage, live: LiveBroker, facts: Facts) -> bool:
    """Whether new replicas may be put there."""
    return live.registration.broker_id not in image.cordons and not is_draining(live, facts)


def settled(
    reassignments: Mapping[TopicPartition, StoredReassignment],
    partition: TopicPartition,
    replicas: Sequence[BrokerId],
) -> int:
    """How many replicas count for the defaults of a partition."""
    stored = reassignments.get(partition)
    if stored is None:
        return len(replicas)
    adding, removing = coming_and_going(stored, replicas)
    return settled_count(len(replicas), adding=len(adding), removing=len(removing))


def coming_and_going(
    stored: StoredReassignment, replicas: Sequence[BrokerId]
) -> tuple[tuple[BrokerId, ...], tuple[BrokerId, ...]]:
    """Those of its replicas that a reassignment adds, and those that go when it is done."""
    move = stored.record
    adding = tuple(each for each in replicas if each not in move.original)
    removing = tuple(each for each in replicas if each not in move.target)
    # Before its turn has come, nothing goes: all that it has is what it had.
    return adding, removing if adding or tuple(replicas) == move.all_replicas else ()


class View(NamedTuple):
    """Brokers and rules as a topic, or a partition with failed replicas, has to see them."""

    brokers: Brokers
    rules: TopicRules
    some_tail_is_lost: bool


class Views:
    """Makes few views for many partitions."""

    def __init__(self, image: ClusterImage, facts: Facts) -> None:
        self._failed = facts.failed
        self._reassignments = image.reassignments
        self.has_failures = bool(facts.failed)
        brokers = image.brokers
        live = dict.fromkeys(sorted(brokers))
        cordoned = [each for each in live if each in image.cordons]
        leaving = {each: None for each in live if is_draining(brokers[each], facts)}
        unfit = [each for each in live if each in facts.unfit]
        # None of them leads while another can.
        draining = {**leaving, **dict.fromkeys(cordoned), **dict.fromkeys(unfit)}
        # Who has another disk than before has lost all; who lost its tail, only what no disk had.
        blank = [
            each
            for each in live
            if facts.incarnations.get(each) != brokers[each].registration.incarnation
        ]
        tail_lost = [each for each in live if brokers[each].registration.tail_may_be_lost]
        self._some_tail_is_lost = bool(blank or tail_lost)
        self._by_flush = {
            syncs_first: Brokers(
                live=live,
                draining=draining,
                cordoned=cordoned,
                unfit=unfit,
                lost_tail=dict.fromkeys(blank if syncs_first else [*blank, *tail_lost]),
                spared=[each for each in facts.spared if each not in brokers],
                processes={each: brokers[each].registration.process for each in live},
            )
            for syncs_first in (False, True)
        }
        self._present = {*live, *facts.spared}
        self._last: tuple[TopicRecord, int, View] | None = None

    def is_leaderless(self, leader: BrokerId) -> bool:
        return leader not in self._present

    def of_partition(
        self, record: TopicRecord, partition: TopicPartition, replicas: Sequence[BrokerId]
    ) -> View:
        """The view of one partition, with its failed replicas and those that come and go."""
        view = self.of(record, settled(self._reassignments, partition, replicas))
        return self.with_failures(view, partition)

    def of(self, record: TopicRecord, replicas: int) -> View:
        last = self._last
        if last is not None and last[0] is record and last[1] == replicas:
            return last[2]
        rules = TopicRules.of(record.config, replicas=replicas)
        # As long as what was there before `flush=ack` may be on no disk, a lost tail is a loss.
        is_durable = rules.syncs_first and not record.syncing
        view = View(self._by_flush[is_durable], rules, self._some_tail_is_lost)
        self._last = (record, replicas, view)
        return view

    def with_failures(self, view: View, partition: TopicPartition) -> View:
        failed = self._failed.get(partition)
        return view._replace(brokers=_without(view.brokers, failed)) if failed else view


def _without(brokers: Brokers, failed: Mapping[BrokerId, ReplicaFailure]) -> Brokers:
    """A replica that failed is away; one that is damaged has lost what it had."""
    damaged = [each for each in failed if failed[each].damaged]
    away = [each for each in failed if not failed[each].damaged]
    return Brokers(
        live=[each for each in brokers.live if each not in away],
        draining=brokers.draining,
        cordoned=brokers.cordoned,
        unfit=brokers.unfit,
        lost_tail=[*brokers.lost_tail, *damaged],
        spared=[each for each in brokers.spared if each not in failed],
        conflict="; ".join(why.reason for why in failed.values() if why.conflicts),
        processes=brokers.processes,
    )
