"""What the controller decides: the image of the store and an event in, transactions out. Pure.

Every transaction is guarded by the create revision of `/controller`, so that one who has lost that
key changes nothing, and by the revision of every key that it writes.

Orders are no part of a decision: they are a function of the image that it leads to.
"""

from __future__ import annotations

from typing import Final, assert_never

from tailrace.config import min_insync_of
from tailrace.controller.administration import (
    add_partitions,
    change_config,
    cordon,
    synced_transactions,
)
from tailrace.controller.capacity import candidates, placed
from tailrace.controller.changes import PARTITIONS_PER_TXN, is_controller
from tailrace.controller.facts import (
    AdminEvent,
    ClusterChanged,
    ConfigRequested,
    CordonRequested,
    Decision,
    DeletionRequested,
    ElectionRequested,
    Event,
    Facts,
    FenceRequested,
    MovesCancelled,
    MovesRequested,
    PartitionsRequested,
    ReplicasStopped,
    TopicRequested,
    Transaction,
)
from tailrace.controller.growth import growth_transactions
from tailrace.controller.leadership import elect
from tailrace.controller.partitions import partition_transactions
from tailrace.controller.reassignment import cancel_moves, request_moves, step_transactions
from tailrace.controller.shards import shard_transactions
from tailrace.controller.topics import check_topic
from tailrace.controller.views import is_admitted
from tailrace.errors import (
    InvalidTopic,
    StaleBroker,
    TailraceError,
    TopicExists,
    UnknownTopicId,
    no_topic,
)
from tailrace.meta.image import ClusterImage, StoredTopic
from tailrace.meta.keys import (
    TopicDeletion,
    TopicRecord,
    TopicTombstone,
    broker_key,
    deletion_key,
    encode,
    history_key,
    reassignment_key,
    state_key,
    tombstone_key,
    topic_key,
)
from tailrace.meta.store import CreatedAt, Delete, Guard, ModifiedAt, Operation, Put
from tailrace.model import INTERNAL_TOPICS, TopicPartition

# Deleted topics that are remembered, so that a broker that was away may delete its replicas.
TOMBSTONES_MAX: Final = 10_000
TOMBSTONES_PER_TXN: Final = 64


def decide(image: ClusterImage, event: Event, facts: Facts, *, now_ms: int) -> Decision:
    """Say what is to be done. The same image, event, facts and time give the same decision."""
    if isinstance(event, AdminEvent):
        try:
            return _administer(image, event, facts, now_ms)
        except TailraceError as error:
            return Decision(error=error)
    match event:
        case ClusterChanged():
            return _cluster_changed(image, facts, now_ms)
        case TopicRequested():
            return _topic_requested(image, event, facts)
        case DeletionRequested():
            return _deletion_requested(image, event, facts)
        case ReplicasStopped():
            return _replicas_stopped(image, event.name, facts, now_ms)
        case FenceRequested():
            return _fence_requested(image, event, facts)
        case _:
            assert_never(event)


def _administer(image: ClusterImage, event: AdminEvent, facts: Facts, now_ms: int) -> Decision:
    match event:
        case ConfigRequested():
            return change_config(image, event, facts, now_ms=now_ms)
        case PartitionsRequested():
            return add_partitions(image, event, facts)
        case CordonRequested():
            return cordon(image, event, facts, now_ms=now_ms)
        case ElectionRequested():
            return elect(image, event, facts, now_ms=now_ms)
        case MovesRequested():
            return request_moves(image, event, facts, now_ms=now_ms)
        case MovesCancelled():
            return cancel_moves(image, event, facts)
        case _:
            assert_never(event)


def _cluster_changed(image: ClusterImage, facts: Facts, now_ms: int) -> Decision:
    transactions = (
        *shard_transactions(image, is_controller(facts.term), shards=facts.group_shards),
        *partition_transactions(image, facts, now_ms=now_ms),
    )
    # Who leads comes before who moves.
    transactions = transactions or step_transactions(image, facts, now_ms=now_ms)
    transactions = transactions or synced_transactions(image, facts)
    transactions = transactions or growth_transactions(image, facts, now_ms=now_ms)
    if transactions:
        return Decision(transactions=transactions)
    waiting = tuple(
        image.brokers[each]
        for each in sorted(image.brokers)
        if not is_admitted(image.brokers[each], facts.incarnations)
    )
    return Decision(admissions=waiting)


def _topic_requested(image: ClusterImage, event: TopicRequested, facts: Facts) -> Decision:
    try:
        record, warnings = _new_topic(image, event, facts)
    except TailraceError as error:
        return Decision(error=error)
    # The record alone makes the topic. Its partitions get their states after it, by the same rule
    # that mends all others (a partition without a state gets its first one): so whoever is the
    # controller then goes on where this one stopped, and no state is ever there without a topic.
    transaction = Transaction(
        what=f"make topic {event.name}",
        guards=(
            is_controller(facts.term),
            ModifiedAt(topic_key(event.name), 0),
            ModifiedAt(deletion_key(event.name), 0),
        ),
        operations=(Put(topic_key(event.name), encode(record)),),
    )
    return Decision(transactions=(transaction,), record=record, warnings=warnings)


def _new_topic(
    image: ClusterImage, event: TopicRequested, facts: Facts
) -> tuple[TopicRecord, tuple[str, ...]]:
    """The record, and what whoever asked should know about it."""
    found = candidates(image, facts)
    default = max(1, min(event.default_replication_factor, found.brokers_count))
    replication_factor = event.replication_factor or default
    check_topic(
        event.name,
        event.config,
        partitions=event.partitions,
        replication_factor=replication_factor,
        defaults=event.log_defaults,
    )
    if event.name in image.deletions:
        raise TopicExists(f"topic {event.name!r} is being deleted: try again in a moment")
    if event.name in image.topics or topic_key(event.name) in image.damaged:
        raise TopicExists(f"topic {event.name!r} exists already")
    if found.is_empty:
        live = "every live broker is cordoned or shutting down" if image.brokers else None
        raise InvalidTopic(f"{live or 'no broker is live'}, so there is nowhere to put a topic")
    new = placed(image, facts, partitions=event.partitions, replication_factor=replication_factor)
    warnings = list(new.warnings)
    if not event.replication_factor and replication_factor < event.default_replication_factor:
        least = min_insync_of(event.config, replicas=replication_factor)
        warnings.append(
            f"{replication_factor} of the {event.default_replication_factor} replicas that are the "
            f"default, since the cluster has no more brokers that could take them; acks=all needs "
            f"{least} in sync"
        )
    record = TopicRecord(
        topic_id=event.topic_id,
        assignment=new.assignment,
        config=dict(sorted(event.config.items())),
    )
    return record, tuple(warnings)


def _deletion_requested(image: ClusterImage, event: DeletionRequested, facts: Facts) -> Decision:
    if event.name in INTERNAL_TOPICS:
        problem = f"{event.name!r} is the cluster's own topic and cannot be deleted"
        return Decision(error=InvalidTopic(problem))
    topic = image.topics.get(event.name)
    if topic is None:
        return Decision(error=no_topic([event.name], image.topics))
    topic_id = topic.record.topic_id
    if event.topic_id and event.topic_id != topic_id:
        problem = f"topic {event.name!r} has the id {topic_id}, not {event.topic_id}"
        return Decision(error=UnknownTopicId(problem))
    if event.name in image.deletions:
        return Decision()
    transaction = Transaction(
        what=f"mark topic {event.name} for deletion",
        guards=(
            is_controller(facts.term),
            ModifiedAt(topic_key(event.name), topic.revision),
            ModifiedAt(deletion_key(event.name), 0),
        ),
        operations=(Put(deletion_key(event.name), encode(TopicDeletion(topic_id=topic_id))),),
    )
    return Decision(transactions=(transaction,))


def _replicas_stopped(image: ClusterImage, name: str, facts: Facts, now_ms: int) -> Decision:
    """First the partitions' keys, then the topic and its marker at once: it can be gone on with."""
    deletion = image.deletions.get(name)
    if deletion is None:
        return Decision()
    marked = ModifiedAt(deletion_key(name), deletion.revision)
    topic: StoredTopic | None = image.topics.get(name)
    if topic is not None and topic.record.topic_id != deletion.record.topic_id:
        # The marker is for another topic, which is gone.
        topic, partitions = None, []
    else:
        numbers = {*image.states.get(name, {}), *(topic.record.assignment if topic else {})}
        partitions = [TopicPartition(name, number) for number in sorted(numbers)]
    transactions = [
        Transaction(
            what=f"remove {len(part)} partitions of topic {name}",
            guards=(is_controller(facts.term), marked),
            operations=tuple(
                Delete(key) for each in part for key in (state_key(each), history_key(each))
            ),
        )
        for part in (
            partitions[start : start + PARTITIONS_PER_TXN]
            for start in range(0, len(partitions), PARTITIONS_PER_TXN)
        )
    ]
    moves = sorted(each for each in image.reassignments if each.topic == name)
    transactions += [
        Transaction(
            what=f"remove {len(part)} reassignments of topic {name}",
            guards=(is_controller(facts.term), marked),
            operations=tuple(Delete(reassignment_key(each)) for each in part),
        )
        for part in (
            moves[start : start + PARTITIONS_PER_TXN]
            for start in range(0, len(moves), PARTITIONS_PER_TXN)
        )
    ]
    guards: list[Guard] = [is_controller(facts.term), marked]
    topic_id = deletion.record.topic_id
    tombstone = TopicTombstone(name=name, deleted_ms=now_ms, controller_epoch=facts.term.epoch)
    operations: list[Operation] = [
        Delete(deletion_key(name)),
        Put(tombstone_key(topic_id), encode(tombstone)),
        *_old_tombstones(image),
    ]
    if topic is not None:
        guards.append(ModifiedAt(topic_key(name), topic.revision))
    if topic is not None or topic_key(name) in image.damaged:
        operations.append(Delete(topic_key(name)))
    transactions.append(
        Transaction(what=f"remove topic {name}", guards=tuple(guards), operations=tuple(operations))
    )
    return Decision(transactions=tuple(transactions))


def _old_tombstones(image: ClusterImage) -> list[Operation]:
    """Remove the oldest ones beyond the limit: their brokers have been away for too long."""
    by_age = sorted(image.tombstones, key=lambda each: image.tombstones[each].record.deleted_ms)
    surplus = max(0, len(by_age) + 1 - TOMBSTONES_MAX)
    return [Delete(tombstone_key(each)) for each in by_age[: min(surplus, TOMBSTONES_PER_TXN)]]


def _fence_requested(image: ClusterImage, event: FenceRequested, facts: Facts) -> Decision:
    live = image.brokers.get(event.broker_id)
    if live is None:
        # It is gone already.
        return Decision()
    if event.epoch not in {0, live.epoch}:
        problem = f"broker {event.broker_id} is in epoch {live.epoch}, not in {event.epoch}"
        return Decision(error=StaleBroker(problem))
    instance = live.registration.instance
    if event.instance not in {"", instance}:
        problem = f"broker {event.broker_id} runs in {instance!r}, not in {event.instance!r}"
        return Decision(error=StaleBroker(problem))
    key = broker_key(event.broker_id)
    transaction = Transaction(
        what=f"fence broker {event.broker_id} in epoch {live.epoch}",
        guards=(is_controller(facts.term), CreatedAt(key, live.epoch)),
        operations=(Delete(key),),
    )
    return Decision(transactions=(transaction,))
