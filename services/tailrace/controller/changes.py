"""New states of partitions as transactions: guards, states, and the record of why. Pure.

A transaction that changes a state is guarded by the revision of that state and by the registration
of the partition's leader: nobody is elected who is gone by then, and a state newer than its
leader's registration was decided in the knowledge of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from tailrace.controller.election import Outcome
from tailrace.controller.facts import Cause, Facts, Term, Transaction
from tailrace.errors import CorruptCheckpoint
from tailrace.meta.image import ClusterImage, StoredState
from tailrace.meta.keys import (
    CONTROLLER,
    NO_BROKER,
    LeaderChange,
    PartitionHistory,
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
from tailrace.model import TopicPartition

# In one transaction. Each partition has two keys, and etcd takes 128 operations; it takes 1.5 MB,
# too, of which histories can need most.
PARTITIONS_PER_TXN: Final = 64
BYTES_PER_TXN: Final = 1_000_000


class StateChange(NamedTuple):
    """The next state of a partition; `stored` is None when it has none yet.

    With `cause` it leaves a record, and begins a new leader epoch if the leader changes.
    """

    partition: TopicPartition
    stored: StoredState | None
    outcome: Outcome
    cause: Cause | None


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


def transactions(
    changes: Iterable[StateChange], image: ClusterImage, facts: Facts, now_ms: int
) -> Iterator[Transaction]:
    chunk = _Chunk(facts.term)
    for change in changes:
        guards = guards_of(change, image)
        operations = operations_of(change, facts, now_ms)
        if not chunk.has_room(guards, operations):
            yield chunk.finish()
            chunk = _Chunk(facts.term)
        chunk.add(change.partition, guards, operations)
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


def guards_of(change: StateChange, image: ClusterImage) -> list[Guard]:
    revision = 0 if change.stored is None else change.stored.revision
    guards: list[Guard] = [ModifiedAt(state_key(change.partition), revision)]
    if change.stored is None:
        # Nobody has deleted the topic, nor made it anew, meanwhile.
        topic = image.topics[change.partition.topic]
        guards.append(ModifiedAt(topic_key(change.partition.topic), topic.revision))
    leader = change.outcome.state.leader
    if leader != NO_BROKER:
        live = image.brokers.get(leader)
        guards.append(CreatedAt(broker_key(leader), 0 if live is None else live.epoch))
    return guards


def operations_of(change: StateChange, facts: Facts, now_ms: int) -> list[Operation]:
    operations: list[Operation] = [
        Put(state_key(change.partition), encode(change.outcome.state)),
    ]
    if change.cause is not None:
        key = history_key(change.partition)
        history = read_history(key, facts.histories.get(key))
        record = _history_record(change, change.cause, facts.term, now_ms)
        operations.append(Put(key, encode(history.with_change(record))))
    return operations


def _history_record(change: StateChange, cause: Cause, term: Term, now_ms: int) -> LeaderChange:
    new = change.outcome.state
    old = None if change.stored is None else change.stored.state
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
