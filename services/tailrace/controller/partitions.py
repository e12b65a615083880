"""Which partitions need another state, and the transactions that give it to them. Pure.

A transaction that changes a state is guarded by the revision of that state and by the registration
of the partition's leader: nobody is elected who is gone by then, and a state newer than its
leader's registration was decided in the knowledge of it.

A broker that registers anew without having been missed (its process restarted, or only its lease
was lost) keeps what it has, in the same epoch: its log is as it was.

A broker is *admitted* when nothing that it may have lost counts any more. Until then (its
registration says that its tail may be lost, or its data folder is not the one that it had) it is
taken out of every ISR and ELR that it cannot vouch for, and gets no orders.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, islice
from typing import Final, NamedTuple

from tailrace.controller.election import Brokers, Outcome, first_state, next_state
from tailrace.controller.facts import Cause, Facts, ReplicaFailure, Term, Transaction
from tailrace.controller.topics import TopicRules
from tailrace.errors import CorruptCheckpoint
from tailrace.meta.image import ClusterImage, LiveBroker, StoredState
from tailrace.meta.keys import (
    CONTROLLER,
    NO_BROKER,
    LeaderChange,
    PartitionHistory,
    PartitionState,
    TopicRecord,
    broker_key,
    decode,
    encode,
    history_key,
    state_key,
    topic_key,
)
from tailrace.meta.store import (
    TXN_OPERATIONS_MAX,
    CreatedAt,
    Guard,
    ModifiedAt,
    Operation,
    Put,
)
from tailrace.model import BrokerId, TopicPartition

# In one transaction. Each partition has two keys, and etcd takes 128 operations; it takes 1.5 MB,
# too, of which histories can need most.
PARTITIONS_PER_TXN: Final = 64
BYTES_PER_TXN: Final = 1_000_000
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
    return tuple(_chunks(first, image, facts, now_ms)) if first else ()


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


def read_history(key: str, data: bytes | None) -> PartitionHistory:
    """The stored history, or an empty one where there is none that can be read."""
    if data is None:
        return PartitionHistory()
    try:
        return decode(PartitionHistory, data, key=key)
    except CorruptCheckpoint:
        # It is for people to read: a bad one must not stand in the way of an election.
        return PartitionHistory()


def is_controller(term: Term) -> CreatedAt:
    return CreatedAt(CONTROLLER, term.revision)


# --------------------------------------------------------------------------- what needs a change


class _Case(NamedTuple):
    """A partition that may need another state; `stored` is None when it has none yet."""

    partition: TopicPartition
    stored: StoredState | None
    replicas: tuple[BrokerId, ...]
    view: _View


class _Change(NamedTuple):
    """The next state of a partition; with `cause` it begins a new leader epoch."""

    case: _Case
    outcome: Outcome
    cause: Cause | None


def _cases(image: ClusterImage, facts: Facts) -> Iterator[_Case]:
    """Partitions that are not settled: first who leads, then who is in sync, then what is new.

    Found as they are asked for: of many thousands only the first are needed now.
    """
    views = _Views(image, facts)
    return chain(
        _stored_cases(image, views, leaderless=True),
        _stored_cases(image, views, leaderless=False),
        _new_cases(image, views),
    )


def _stored_cases(image: ClusterImage, views: _Views, *, leaderless: bool) -> Iterator[_Case]:
    for name, record in _topics(image):
        states = image.states.get(name, {})
        for number, stored in states.items():
            if views.is_leaderless(stored.state.leader) is not leaderless:
                continue
            replicas = record.assignment.get(number, ())
            view = views.of(record.config, len(replicas))
            if not replicas or (not views.has_failures and _is_settled(stored.state, view)):
                continue
            partition = TopicPartition(name, number)
            yield _Case(partition, stored, replicas, views.with_failures(view, partition))


def _new_cases(image: ClusterImage, views: _Views) -> Iterator[_Case]:
    for name, record in _topics(image):
        states = image.states.get(name, {})
        if len(states) == len(record.assignment):
            continue
        for number, replicas in record.assignment.items():
            partition = TopicPartition(name, number)
            # What is stored and cannot be read must not be made anew.
            if number not in states and state_key(partition) not in image.damaged:
                yield _Case(partition, None, replicas, views.of(record.config, len(replicas)))


def _topics(image: ClusterImage) -> Iterator[tuple[str, TopicRecord]]:
    for name in sorted(image.topics):
        if name not in image.deletions:
            yield name, image.topics[name].record


def _changes(
    cases: Iterable[_Case], image: ClusterImage, facts: Facts, now_ms: int
) -> Iterator[_Change]:
    for case in cases:
        rules, brokers = case.view.rules, case.view.brokers
        if case.stored is None:
            made = first_state(
                case.replicas,
                brokers,
                min_insync=rules.min_insync,
                controller_epoch=facts.term.epoch,
            )
            yield _Change(case, made, Cause("the topic was made", now_ms))
            continue
        outcome = next_state(
            case.stored.state,
            case.replicas,
            brokers,
            min_insync=rules.min_insync,
            unclean=rules.unclean,
            controller_epoch=facts.term.epoch,
            leader_lost_records=_lacks_records(image, case.stored),
        )
        if outcome is not None:
            cause = _cause(case, case.stored.state, outcome, image, facts, now_ms)
            yield _Change(case, outcome, cause)


def _lacks_records(image: ClusterImage, stored: StoredState) -> bool:
    """Whether the leader's machine went down in this epoch: its followers may have more than it."""
    leader = image.brokers.get(stored.state.leader)
    return (
        leader is not None
        and leader.registration.tail_may_be_lost
        and leader.epoch > stored.revision
    )


def _is_settled(state: PartitionState, view: _View) -> bool:
    """Whether nothing can be better: the common case, told without an election."""
    brokers = view.brokers
    if view.some_tail_is_lost or state.elr or state.leader in brokers.draining:
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


class _View(NamedTuple):
    """Brokers and rules as a topic, or a partition with failed replicas, has to see them."""

    brokers: Brokers
    rules: TopicRules
    some_tail_is_lost: bool


class _Views:
    """Makes few views for many partitions."""

    def __init__(self, image: ClusterImage, facts: Facts) -> None:
        self._failed = facts.failed
        self.has_failures = bool(facts.failed)
        brokers = image.brokers
        live = dict.fromkeys(sorted(brokers))
        cordoned = [each for each in live if each in image.cordons]
        leaving = {each: None for each in live if is_draining(brokers[each], facts)}
        # Neither leads while another can.
        draining = {**leaving, **dict.fromkeys(cordoned)}
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
                lost_tail=dict.fromkeys(blank if syncs_first else [*blank, *tail_lost]),
                spared=[each for each in facts.spared if each not in brokers],
            )
            for syncs_first in (False, True)
        }
        self._present = {*live, *facts.spared}
        self._last: tuple[Mapping[str, str], int, _View] | None = None

    def is_leaderless(self, leader: BrokerId) -> bool:
        return leader not in self._present

    def of(self, config: Mapping[str, str], replicas: int) -> _View:
        last = self._last
        if last is not None and last[0] is config and last[1] == replicas:
            return last[2]
        rules = TopicRules.of(config, replicas=replicas)
        view = _View(self._by_flush[rules.syncs_first], rules, self._some_tail_is_lost)
        self._last = (config, replicas, view)
        return view

    def with_failures(self, view: _View, partition: TopicPartition) -> _View:
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
        lost_tail=[*brokers.lost_tail, *damaged],
        spared=[each for each in brokers.spared if each not in failed],
    )


# ---------------------------------------------------------------------------------- transactions


def _chunks(
    changes: Iterable[_Change], image: ClusterImage, facts: Facts, now_ms: int
) -> Iterator[Transaction]:
    chunk = _Chunk(facts.term)
    for change in changes:
        guards = _guards_of(change, image)
        operations = _operations_of(change, facts, now_ms)
        if not chunk.has_room(guards, operations):
            yield chunk.finish()
            chunk = _Chunk(facts.term)
        chunk.add(change.case.partition, guards, operations)
    yield chunk.finish()


class _Chunk:
    """One transaction over several partitions in the making."""

    def __init__(self, term: Term) -> None:
        # By key: a leader's registration guards many partitions, once.
        self._guards: dict[Guard, None] = {is_controller(term): None}
        self._operations: list[Operation] = []
        self._partitions: list[TopicPartition] = []
        self._bytes = 0

    def has_room(self, guards: list[Guard], operations: list[Operation]) -> bool:
        if not self._partitions:
            return True
        size = self._bytes + _bytes_of(operations)
        guards_then = len(self._guards) + sum(guard not in self._guards for guard in guards)
        return (
            len(self._partitions) < PARTITIONS_PER_TXN
            and guards_then <= TXN_OPERATIONS_MAX
            and size <= BYTES_PER_TXN
        )

    def add(
        self, partition: TopicPartition, guards: list[Guard], operations: list[Operation]
    ) -> None:
        self._guards.update(dict.fromkeys(guards))
        self._operations += operations
        self._partitions.append(partition)
        self._bytes += _bytes_of(operations)

    def finish(self) -> Transaction:
        first, others = self._partitions[0], len(self._partitions) - 1
        return Transaction(
            what=f"new state of {first}" + (f" and {others} more" if others else ""),
            guards=tuple(self._guards),
            operations=tuple(self._operations),
        )


def _bytes_of(operations: Iterable[Operation]) -> int:
    return sum(
        len(each.key) + (len(each.value) if isinstance(each, Put) else 0) for each in operations
    )


def _guards_of(change: _Change, image: ClusterImage) -> list[Guard]:
    revision = 0 if change.case.stored is None else change.case.stored.revision
    guards: list[Guard] = [ModifiedAt(state_key(change.case.partition), revision)]
    if change.case.stored is None:
        # Nobody has deleted the topic, nor made it anew, meanwhile.
        topic = image.topics[change.case.partition.topic]
        guards.append(ModifiedAt(topic_key(change.case.partition.topic), topic.revision))
    leader = change.outcome.state.leader
    if leader != NO_BROKER:
        live = image.brokers.get(leader)
        guards.append(CreatedAt(broker_key(leader), 0 if live is None else live.epoch))
    return guards


def _operations_of(change: _Change, facts: Facts, now_ms: int) -> list[Operation]:
    operations: list[Operation] = [
        Put(state_key(change.case.partition), encode(change.outcome.state)),
    ]
    if change.cause is not None:
        key = history_key(change.case.partition)
        history = read_history(key, facts.histories.get(key))
        record = _record(change, change.cause, facts.term, now_ms)
        operations.append(Put(key, encode(history.with_change(record))))
    return operations


def _record(change: _Change, cause: Cause, term: Term, now_ms: int) -> LeaderChange:
    new = change.outcome.state
    old = None if change.case.stored is None else change.case.stored.state
    return LeaderChange(
        decided_ms=now_ms,
        cause=cause.text,
        noticed_ms=cause.noticed_ms,
        old_leader=NO_BROKER if old is None else old.leader,
        new_leader=new.leader,
        leader_epoch=new.leader_epoch,
        old_isr=() if old is None else old.isr,
        new_isr=new.isr,
        candidates=change.outcome.candidates,
        controller_id=term.controller_id,
        controller_epoch=term.epoch,
        loss=change.outcome.loss,
    )
