"""Partitions on their way to other replicas: asked for, one step after the other, given up. Pure.

A reassignment is a key of its own that names the replicas before and after. Its turn comes when
none of the brokers concerned has too much in hand. Then the partition gets both sets of replicas
(the *first step*); when all of the new set are in sync, it gets the new set alone and the key goes
(the *last step*). Both are one transaction each over the topic's record, the partition's state and
the key, so whoever is the controller goes on from what is stored. Each step writes the state: so
every order that names other replicas has a higher revision, and an ISR that was proposed for the
former ones is refused.

Given up, it goes back as soon as enough of the replicas from before are in sync: nothing that is
committed needs the new ones then.

Why nothing is lost by the last step: every member of the new set is in the ISR, so it has all that
is committed, and the leader is one of them, or one of them is elected in the same transaction.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from tailrace.config import MIN_INSYNC
from tailrace.controller.administration import existing_topic, known_brokers
from tailrace.controller.changes import StateChange, guards_of, is_controller, operations_of
from tailrace.controller.election import Brokers, Outcome, led_by
from tailrace.controller.facts import (
    Cause,
    Decision,
    Facts,
    MovesCancelled,
    MovesRequested,
    Transaction,
)
from tailrace.controller.placement import Plan, plan_by_rule, plan_to_empty
from tailrace.controller.views import Views, is_usable
from tailrace.errors import (
    InvalidAssignment,
    InvalidRequest,
    NoReassignment,
    ReassignmentInProgress,
    UnknownBroker,
)
from tailrace.meta.image import ClusterImage, StoredState
from tailrace.meta.keys import (
    NO_BROKER,
    PartitionState,
    Reassignment,
    deletion_key,
    encode,
    reassignment_key,
    topic_key,
)
from tailrace.meta.store import Delete, Guard, ModifiedAt, Operation, Put
from tailrace.model import BrokerId, TopicPartition

# Keys in one transaction: each partition has a key, its state and its history.
STEPS_PER_TXN: Final = 32
REQUESTS_PER_TXN: Final = 60

# ---------------------------------------------------------------------------------- what is wanted


def request_moves(
    image: ClusterImage, event: MovesRequested, facts: Facts, *, now_ms: int
) -> Decision:
    """Keys for the partitions that are to move; what is under way to the same place is left."""
    moves: dict[TopicPartition, Reassignment] = {}
    for partition, target in _targets(image, event, facts).items():
        stored = image.reassignments.get(partition)
        if stored is not None:
            if stored.record.target != target or stored.record.cancelled:
                raise ReassignmentInProgress(
                    f"{partition} is on its way from {list(stored.record.original)} to "
                    f"{list(stored.record.target)}: wait for it, or cancel it first"
                )
            continue
        moves[partition] = Reassignment(
            topic_id=image.topics[partition.topic].record.topic_id,
            original=image.replicas(partition),
            target=target,
            started_ms=now_ms,
        )
    return Decision(transactions=tuple(key_transactions(image, moves, facts)), moves=moves)


def cancel_moves(image: ClusterImage, event: MovesCancelled, facts: Facts) -> Decision:
    """Mark what is under way as given up."""
    for partition in event.partitions:
        if partition not in image.reassignments:
            raise NoReassignment(f"{partition} is not being reassigned")
    wanted = event.partitions or sorted(image.reassignments)
    moves = {each: replace(image.reassignments[each].record, cancelled=True) for each in wanted}
    going_on = {
        each: moves[each] for each in wanted if not image.reassignments[each].record.cancelled
    }
    return Decision(transactions=tuple(key_transactions(image, going_on, facts)), moves=moves)


def key_transactions(
    image: ClusterImage, moves: Mapping[TopicPartition, Reassignment], facts: Facts
) -> Iterator[Transaction]:
    """What stores reassignments; each step follows from the keys alone."""
    names = sorted(moves)
    for start in range(0, len(names), REQUESTS_PER_TXN):
        part = names[start : start + REQUESTS_PER_TXN]
        topics = sorted({each.topic for each in part})
        guards: list[Guard] = [is_controller(facts.term)]
        guards += [ModifiedAt(topic_key(each), image.topics[each].revision) for each in topics]
        for each in part:
            stored = image.reassignments.get(each)
            guards.append(ModifiedAt(reassignment_key(each), stored.revision if stored else 0))
        yield Transaction(
            what=f"reassignment of {part[0]} and {len(part) - 1} more",
            guards=tuple(guards),
            operations=tuple(Put(reassignment_key(each), encode(moves[each])) for each in part),
        )


def _targets(
    image: ClusterImage, event: MovesRequested, facts: Facts
) -> dict[TopicPartition, tuple[BrokerId, ...]]:
    """The new replicas of each partition that changes, checked."""
    ways = [event.plan is not None, bool(event.to_brokers), event.drain is not None]
    if sum(ways) != 1:
        raise InvalidRequest("give a plan, or the brokers to spread over, or a broker to empty")
    if event.plan is not None:
        targets = _planned(image, event.plan)
    else:
        targets = _computed(image, event, facts).targets
    for partition, target in targets.items():
        _check(image, partition, target, facts)
    return targets


def _planned(
    image: ClusterImage, plan: Mapping[TopicPartition, tuple[BrokerId, ...]]
) -> dict[TopicPartition, tuple[BrokerId, ...]]:
    for partition in plan:
        if partition.partition not in existing_topic(image, partition.topic).record.assignment:
            raise image.missing(partition)
    return {each: plan[each] for each in plan if plan[each] != _settled(image, each)}


def _settled(image: ClusterImage, partition: TopicPartition) -> tuple[BrokerId, ...]:
    """Its replicas, or where it goes."""
    stored = image.reassignments.get(partition)
    if stored is None:
        return image.replicas(partition)
    return stored.record.original if stored.record.cancelled else stored.record.target


def _computed(image: ClusterImage, event: MovesRequested, facts: Facts) -> Plan:
    for name in event.topics:
        existing_topic(image, name)
    assignment = {
        partition: _settled(image, partition)
        for partition, _ in image.partitions()
        if partition.topic not in image.deletions
        and (not event.topics or partition.topic in event.topics)
    }
    if event.drain is not None:
        if event.drain not in known_brokers(image):
            raise UnknownBroker(f"there is no broker {event.drain}")
        others = {
            each: live.registration.rack
            for each, live in image.brokers.items()
            if each != event.drain and is_usable(image, live, facts) and each not in facts.unfit
        }
        return plan_to_empty(assignment, event.drain, others)
    missing = [each for each in event.to_brokers if each not in image.brokers]
    if missing:
        raise UnknownBroker(f"broker {missing[0]} is not there: the rule needs live brokers")
    brokers = {each: image.brokers[each].registration.rack for each in event.to_brokers}
    return plan_by_rule(assignment, brokers)


def _check(
    image: ClusterImage, partition: TopicPartition, target: Sequence[BrokerId], facts: Facts
) -> None:
    if not target or len(set(target)) != len(target):
        raise InvalidAssignment(f"{partition}: {list(target)} is not a set of brokers")
    for broker in target:
        if broker in image.replicas(partition):
            continue
        live = image.brokers.get(broker)
        if live is None:
            raise UnknownBroker(f"{partition}: broker {broker} is not there")
        if not is_usable(image, live, facts):
            raise InvalidAssignment(
                f"{partition}: broker {broker} is cordoned or shutting down and takes no replicas"
            )
        if broker in facts.unfit:
            raise InvalidAssignment(
                f"{partition}: broker {broker} takes no replicas while its disk is not well: "
                f"{facts.unfit[broker]}"
            )
    config = image.topics[partition.topic].record.config
    least = config.get(MIN_INSYNC, "1")
    if least.isdigit() and int(least) > len(target):
        raise InvalidAssignment(
            f"{partition}: {len(target)} replicas are fewer than {MIN_INSYNC}={least}"
        )


# ---------------------------------------------------------------------------------- what is done


class _Step(NamedTuple):
    """What becomes of one partition: its replicas, its state, whether its key goes."""

    change: StateChange | None
    replicas: tuple[BrokerId, ...]
    is_last: bool


def step_transactions(image: ClusterImage, facts: Facts, *, now_ms: int) -> tuple[Transaction, ...]:
    """The next steps that can be taken now; at most one transaction for each topic."""
    if not image.reassignments:
        return ()
    context = _Context(image, facts, Views(image, facts), _busy(image), now_ms)
    by_topic: dict[str, dict[TopicPartition, _Step]] = {}
    orphans: list[TopicPartition] = []
    for partition in sorted(image.reassignments):
        stored = image.reassignments[partition]
        topic = image.topics.get(partition.topic)
        if partition.topic in image.deletions:
            continue
        if topic is None or topic.record.topic_id != stored.record.topic_id:
            orphans.append(partition)
            continue
        steps = by_topic.setdefault(partition.topic, {})
        if len(steps) >= STEPS_PER_TXN:
            continue
        step = _step(context, partition, stored.record)
        if step is not None:
            steps[partition] = step
    return (
        *_forget(image, orphans, facts),
        *(
            _transaction(image, name, steps, facts, now_ms)
            for name, steps in by_topic.items()
            if steps
        ),
    )


def _busy(image: ClusterImage) -> Counter[BrokerId]:
    """How many partitions each broker is copying now, to itself or from itself."""
    busy: Counter[BrokerId] = Counter()
    for partition, stored in image.reassignments.items():
        replicas = image.replicas(partition)
        if replicas == stored.record.all_replicas:
            busy.update(_concerned(stored.record, image.state(partition)))
    return busy


def _concerned(move: Reassignment, stored: StoredState | None) -> set[BrokerId]:
    """The brokers that a copy loads: those that are added and the one that leads."""
    leader = {stored.state.leader} if stored is not None else set()
    return {*move.target}.difference(move.original) | leader


class _Context(NamedTuple):
    """What all steps of one decision are made from; `busy` counts on as they are decided."""

    image: ClusterImage
    facts: Facts
    views: Views
    busy: Counter[BrokerId]
    now_ms: int


def _step(context: _Context, partition: TopicPartition, move: Reassignment) -> _Step | None:
    """The step that a partition can take now, if any."""
    image, facts, now_ms = context.image, context.facts, context.now_ms
    replicas, stored = image.replicas(partition), image.state(partition)
    has_begun = replicas == move.all_replicas and replicas != move.original
    if move.cancelled and not has_begun:
        return _Step(None, move.original, True)
    if stored is None or stored.state.leader == NO_BROKER:
        return None
    view = context.views.of_partition(image.topics[partition.topic].record, partition, replicas)
    target = move.original if move.cancelled else move.target
    in_sync = [each for each in target if each in stored.state.isr]
    enough = min(view.rules.min_insync, len(target)) if move.cancelled else len(target)
    if len(in_sync) >= enough:
        outcome = _outcome(stored.state, target, view.brokers, facts)
        if outcome is None:
            return None
        what = "given up" if move.cancelled else "done"
        cause = Cause(f"reassignment {_route(move)} {what}", now_ms)
        return _Step(StateChange(partition, stored, outcome, cause), target, True)
    concerned = _concerned(move, stored)
    most = facts.moves_per_broker_max
    # One that only takes replicas away, or only their order changes, has no first step to take.
    is_under_way = replicas == move.all_replicas
    if is_under_way or any(context.busy[each] >= most for each in concerned):
        return None
    context.busy.update(concerned)
    same = Outcome(state=replace(stored.state, controller_epoch=facts.term.epoch))
    cause = Cause(f"reassignment {_route(move)} began", now_ms)
    return _Step(StateChange(partition, stored, same, cause), move.all_replicas, False)


def _outcome(
    state: PartitionState, target: tuple[BrokerId, ...], brokers: Brokers, facts: Facts
) -> Outcome | None:
    """The state with the target's replicas alone; None: nobody of them can lead now."""
    isr = tuple(each for each in target if each in state.isr)
    # The first of the new set is who is meant to lead, so a cluster that grew is balanced at once.
    able = [each for each in isr if brokers.can_be_elected(each) and each not in brokers.draining]
    has_preferred = able[:1] == [target[0]] and state.leader != target[0]
    if state.leader in target and not has_preferred:
        kept = replace(state, isr=isr, elr=(), controller_epoch=facts.term.epoch)
        return Outcome(state=kept)
    able = able or [each for each in isr if brokers.can_be_elected(each)]
    if not able:
        return None
    leader = able[0]
    # Whether or not its former leader stays a member, another one leads now.
    shrunk = replace(state, leader=NO_BROKER, isr=isr, elr=())
    return led_by(leader, shrunk, target, brokers, controller_epoch=facts.term.epoch)


def _transaction(
    image: ClusterImage,
    name: str,
    steps: Mapping[TopicPartition, _Step],
    facts: Facts,
    now_ms: int,
) -> Transaction:
    topic = image.topics[name]
    guards: dict[Guard, None] = {
        is_controller(facts.term): None,
        ModifiedAt(topic_key(name), topic.revision): None,
        ModifiedAt(deletion_key(name), 0): None,
    }
    operations: list[Operation] = []
    assignment = dict(topic.record.assignment)
    for partition, step in steps.items():
        key = reassignment_key(partition)
        guards[ModifiedAt(key, image.reassignments[partition].revision)] = None
        assignment[partition.partition] = step.replicas
        if step.change is not None:
            guards.update(dict.fromkeys(guards_of(step.change, image)))
            operations += operations_of(step.change, facts, now_ms)
        if step.is_last:
            operations.append(Delete(key))
    if assignment != topic.record.assignment:
        record = replace(topic.record, assignment=assignment)
        operations.append(Put(topic_key(name), encode(record)))
    first, others = next(iter(steps)), len(steps) - 1
    return Transaction(
        what=f"reassignment of {first}" + (f" and {others} more" if others else ""),
        guards=tuple(guards),
        operations=tuple(operations),
    )


def _forget(
    image: ClusterImage, orphans: Sequence[TopicPartition], facts: Facts
) -> Iterator[Transaction]:
    """Reassignments of topics that are gone."""
    for start in range(0, len(orphans), REQUESTS_PER_TXN):
        part = orphans[start : start + REQUESTS_PER_TXN]
        yield Transaction(
            what=f"forget the reassignment of {part[0]}",
            guards=(
                is_controller(facts.term),
                *(
                    ModifiedAt(reassignment_key(each), image.reassignments[each].revision)
                    for each in part
                ),
            ),
            operations=tuple(Delete(reassignment_key(each)) for each in part),
        )


def _route(move: Reassignment) -> str:
    return f"from {list(move.original)} to {list(move.target)}"
