"""Which partitions need another state, and the transactions that give it to them. Pure.

A broker that registers anew without having been missed (its process restarted, or only its lease
was lost) keeps what it has, in the same epoch: its log is as it was.

A broker is *admitted* when nothing that it may have lost counts any more. Until then (its
registration says that its tail may be lost, or its data folder is not the one that it had) it is
taken out of every ISR and ELR that it cannot vouch for, and gets no orders.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import Final, NamedTuple

from tailrace.controller.changes import PARTITIONS_PER_TXN, StateChange, transactions
from tailrace.controller.election import Outcome, first_state, next_state
from tailrace.controller.facts import Cause, Facts, Transaction
from tailrace.controller.views import View, Views, settled
from tailrace.meta.image import ClusterImage, StoredState
from tailrace.meta.keys import (
    NO_BROKER,
    PartitionState,
    TopicRecord,
    state_key,
)
from tailrace.model import BrokerId, TopicPartition

# In one decision; there is always a next one.
PARTITIONS_PER_DECISION: Final = 4 * PARTITIONS_PER_TXN


def partition_transactions(
    image: ClusterImage, facts: Facts, *, now_ms: int
) -> tuple[Transaction, ...]:
    """What brings partitions in line with the brokers that are there; at most some of it at once.

    Whoever asks comes again: the first of many should not wait until the last are worked out.
    """
    changes = _changes(_cases(image, facts), image, facts, now_ms)
    first = list(islice(changes, PARTITIONS_PER_DECISION))
    return tuple(transactions(first, image, facts, now_ms)) if first else ()


# --------------------------------------------------------------------------- what needs a change


class _Case(NamedTuple):
    """A partition that may need another state; `stored` is None when it has none yet."""

    partition: TopicPartition
    stored: StoredState | None
    replicas: tuple[BrokerId, ...]
    view: View


def _cases(image: ClusterImage, facts: Facts) -> Iterator[_Case]:
    """Partitions that are not settled: first who leads, then who is in sync, then what is new.

    Found as they are asked for: of many thousands only the first are needed now.
    """
    views = Views(image, facts)
    return chain(
        _stored_cases(image, views, leaderless=True),
        _stored_cases(image, views, leaderless=False),
        _new_cases(image, views),
    )


def _stored_cases(image: ClusterImage, views: Views, *, leaderless: bool) -> Iterator[_Case]:
    for name, record in _topics(image):
        states = image.states.get(name, {})
        for number, stored in states.items():
            if views.is_leaderless(stored.state.leader) is not leaderless:
                continue
            replicas = record.assignment.get(number, ())
            partition = TopicPartition(name, number)
            view = views.of(record, settled(image.reassignments, partition, replicas))
            if not replicas or (not views.has_failures and _is_settled(stored.state, view)):
                continue
            yield _Case(partition, stored, replicas, views.with_failures(view, partition))


def _new_cases(image: ClusterImage, views: Views) -> Iterator[_Case]:
    for name, record in _topics(image):
        states = image.states.get(name, {})
        if len(states) == len(record.assignment):
            continue
        for number, replicas in record.assignment.items():
            partition = TopicPartition(name, number)
            # What is stored and cannot be read must not be made anew.
            if number not in states and state_key(partition) not in image.damaged:
                yield _Case(partition, None, replicas, views.of(record, len(replicas)))


def _topics(image: ClusterImage) -> Iterator[tuple[str, TopicRecord]]:
    for name in sorted(image.topics):
        if name not in image.deletions:
            yield name, image.topics[name].record


def _changes(
    cases: Iterable[_Case], image: ClusterImage, facts: Facts, now_ms: int
) -> Iterator[StateChange]:
    led: Counter[BrokerId] | None = None
    for case in cases:
        # Mostly there is no case: then nobody counts.
        led = _led(image) if led is None else led
        rules, brokers = case.view.rules, case.view.brokers
        if case.stored is None:
            made = first_state(
                case.replicas,
                brokers,
                min_insync=rules.min_insync,
                controller_epoch=facts.term.epoch,
                led=led,
            )
            led[made.state.leader] += 1
            yield StateChange(case.partition, None, made, Cause("the topic was made", now_ms))
            continue
        outcome = next_state(
            case.stored.state,
            case.replicas,
            brokers,
            min_insync=rules.min_insync,
            unclean=rules.unclean,
            controller_epoch=facts.term.epoch,
            leader_lost_records=_lacks_records(image, case.stored),
            led=led,
        )
        if outcome is not None:
            led[case.stored.state.leader] -= 1
            led[outcome.state.leader] += 1
            cause = _cause(case, case.stored.state, outcome, image, facts, now_ms)
            yield StateChange(case.partition, case.stored, outcome, cause)


def _led(image: ClusterImage) -> Counter[BrokerId]:
    """How many partitions each broker leads."""
    return Counter(
        stored.state.leader for states in image.states.values() for stored in states.values()
    )


def _lacks_records(image: ClusterImage, stored: StoredState) -> bool:
    """Whether the leader's machine went down in this epoch: its followers may have more than it."""
    leader = image.brokers.get(stored.state.leader)
    return (
        leader is not None
        and leader.registration.tail_may_be_lost
        and leader.epoch > stored.revision
    )


def _is_settled(state: PartitionState, view: View) -> bool:
    """Whether nothing can be better: the common case, told without an election."""
    brokers = view.brokers
    if view.some_tail_is_lost or state.elr or state.leader in brokers.draining:
        return False
    if brokers.has_restarted(state):
        return False
    if brokers.spared:
        return state.leader >= 0 and all(brokers.is_present(each) for each in state.isr)
    live = brokers.live
    # A leader is a member of its ISR.
    return state.leader >= 0 and all(each in live for each in state.isr)


def _cause(
    case: _Case,
    state: PartitionState,
    outcome: Outcome,
    image: ClusterImage,
    facts: Facts,
    now_ms: int,
) -> Cause | None:
    """What made a change of leader necessary: the old one, else the new one. None: it is none."""
    if outcome.state.leader_epoch == state.leader_epoch:
        return None
    subject = state.leader if state.leader != NO_BROKER else outcome.state.leader
    failure = facts.failed.get(case.partition, {}).get(subject)
    if failure is not None:
        return Cause(f"broker {subject} cannot serve its replica: {failure.reason}", now_ms)
    cordon = image.cordons.get(subject)
    if cordon is not None and subject in outcome.state.isr and subject != outcome.state.leader:
        why = cordon.record.reason or "no reason given"
        return Cause(f"broker {subject} is cordoned: {why}", cordon.record.since_ms)
    known = facts.causes.get(subject)
    return known if known is not None else Cause(f"broker {subject} has changed", now_ms)
