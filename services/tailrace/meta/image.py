"""The cluster as the store has it: brokers, controller, topics, partition states.

An image is immutable. It is built from a snapshot and moved on by watch batches; each step gives a
new image that shares with the old one all that did not change (a step copies the dict of topics
and that of a touched topic's partitions, no more). Taking the same change twice, or an older one
after a newer one of the same key, changes nothing.

Invariant: an image moved on from an old snapshot equals one built from a snapshot of that revision.
A value that cannot be read is left out and named in `damaged`: one bad key must not stop the rest.
It does not hold what may be large and is rarely read: histories and producer names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

from tailrace.errors import (
    CorruptCheckpoint,
    InvariantViolation,
    UnknownTopic,
    no_partition,
    no_topic,
)
from tailrace.meta.keys import (
    BrokerRegistration,
    ClusterRecord,
    ConfigRecord,
    ControllerRecord,
    CoordinatorRegistration,
    Cordon,
    Kind,
    PartitionState,
    Place,
    Reassignment,
    ShardOwner,
    TopicDeletion,
    TopicRecord,
    TopicTombstone,
    decode,
    decode_counter,
    place_of,
)
from tailrace.meta.store import Change, Delete, Entry, Operation, Snapshot, WatchBatch
from tailrace.model import BrokerId, TopicPartition


class LiveController(NamedTuple):
    """The controller; its writes are guarded by `create_revision` of its key."""

    record: ControllerRecord
    create_revision: int
    revision: int


class LiveBroker(NamedTuple):
    """A registered broker; `epoch` is its key's create revision, `revision` the last change."""

    registration: BrokerRegistration
    epoch: int
    revision: int


class LiveCoordinator(NamedTuple):
    """A registered coordinator; `epoch` is its key's create revision."""

    registration: CoordinatorRegistration
    epoch: int
    revision: int


class StoredShard(NamedTuple):
    record: ShardOwner
    revision: int


class StoredTopic(NamedTuple):
    record: TopicRecord
    revision: int


class StoredState(NamedTuple):
    """A partition's state; `revision` guards the next change of it."""

    state: PartitionState
    revision: int


class StoredDeletion(NamedTuple):
    record: TopicDeletion
    revision: int


class StoredConfig(NamedTuple):
    record: ConfigRecord
    revision: int


class StoredTombstone(NamedTuple):
    record: TopicTombstone
    revision: int


class StoredCordon(NamedTuple):
    record: Cordon
    revision: int


class StoredReassignment(NamedTuple):
    record: Reassignment
    revision: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterImage:
    """All facts up to `revision` (and perhaps some later ones, see `learn`)."""

    revision: int = 0
    cluster_id: str = ""
    # How often the store was rebuilt.
    generation: int = 0
    controller: LiveController | None = None
    controller_epoch: int = 0
    brokers: Mapping[BrokerId, LiveBroker] = field(default_factory=dict)
    topics: Mapping[str, StoredTopic] = field(default_factory=dict)
    states: Mapping[str, Mapping[int, StoredState]] = field(default_factory=dict)
    deletions: Mapping[str, StoredDeletion] = field(default_factory=dict)
    # By the id of the topic that was deleted.
    tombstones: Mapping[str, StoredTombstone] = field(default_factory=dict)
    coordinators: Mapping[int, LiveCoordinator] = field(default_factory=dict)
    shards: Mapping[int, StoredShard] = field(default_factory=dict)
    cordons: Mapping[BrokerId, StoredCordon] = field(default_factory=dict)
    reassignments: Mapping[TopicPartition, StoredReassignment] = field(default_factory=dict)
    # By a broker's id or a client's, or DEFAULT_CONFIG.
    broker_configs: Mapping[str, StoredConfig] = field(default_factory=dict)
    client_configs: Mapping[str, StoredConfig] = field(default_factory=dict)
    damaged: Mapping[str, str] = field(default_factory=dict)
    # Keys that were learned ahead of the watch, with their revisions: deleted ones too.
    ahead: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def from_snapshot(cls, snapshot: Snapshot) -> ClusterImage:
        """Build the image of a snapshot of all keys."""
        draft = _Draft(cls())
        for entry in snapshot.entries:
            draft.put(entry)
        return draft.finish(revision=snapshot.revision)

    def advance(self, batch: WatchBatch) -> ClusterImage:
        """Take a watch's next batch. One that was compacted cannot be taken: resync instead."""
        if batch.compacted:
            raise InvariantViolation("changes were missed: the image must be built anew")
        draft = _Draft(self)
        for change in batch.changes:
            if change.revision >= self.revision:
                draft.take(change)
        return draft.finish(revision=max(self.revision, batch.revision))

    def apply(self, change: Change) -> ClusterImage:
        """Take one change of a watch."""
        return self.advance(WatchBatch(change.revision, (change,)))

    def learn(self, operations: Iterable[Operation], *, revision: int) -> ClusterImage:
        """Take a transaction of one's own, done at `revision`, before the watch brings it.

        `self.revision` stays: what others changed in between is still to come, and whatever comes
        for these keys from before `revision` is ignored.
        """
        if revision <= self.revision:
            return self
        draft = _Draft(self)
        for operation in operations:
            draft.take(_as_change(operation, revision, self))
            draft.note_ahead(operation.key, revision)
        return draft.finish(revision=self.revision)

    def state(self, partition: TopicPartition) -> StoredState | None:
        return self.states.get(partition.topic, {}).get(partition.partition)

    def missing(self, partition: TopicPartition) -> UnknownTopic:
        """The error for a partition that is not there: what is there instead."""
        topic = self.topics.get(partition.topic)
        if topic is None or partition.topic in self.deletions:
            return no_topic([partition.topic], self.topics.keys() - self.deletions.keys())
        return no_partition(partition.topic, len(topic.record.assignment), partition.partition)

    def replicas(self, partition: TopicPartition) -> tuple[BrokerId, ...]:
        """The replicas of a partition, the preferred leader first; none when it is not known."""
        topic = self.topics.get(partition.topic)
        return () if topic is None else topic.record.assignment.get(partition.partition, ())

    def partitions(self) -> Iterator[tuple[TopicPartition, tuple[BrokerId, ...]]]:
        """All partitions of all topics with their replicas, in order."""
        for name in sorted(self.topics):
            assignment = self.topics[name].record.assignment
            for partition in sorted(assignment):
                yield TopicPartition(name, partition), assignment[partition]

    def check_invariants(self) -> None:
        """InvariantViolation when facts contradict each other in a way that no writer may cause."""
        for broker_id, broker in self.brokers.items():
            if not 0 < broker.epoch <= broker.revision or not self._is_known(broker.revision):
                raise InvariantViolation(f"broker {broker_id} at {self.revision}: {broker}")
        for name, states in self.states.items():
            topic = self.topics.get(name)
            assignment = None if topic is None else topic.record.assignment
            for partition, stored in states.items():
                problem = self._state_problem(stored)
                if problem is None and assignment is not None:
                    problem = _members_problem(stored.state, assignment.get(partition, ()))
                if problem is not None:
                    raise InvariantViolation(f"{name}-{partition}: {problem}: {stored}")

    def _state_problem(self, stored: StoredState) -> str | None:
        if not self._is_known(stored.revision):
            return f"it is from after revision {self.revision}"
        if stored.state.controller_epoch > self.controller_epoch:
            return f"no controller has an epoch above {self.controller_epoch}"
        return None

    def _is_known(self, revision: int) -> bool:
        return revision <= self.revision or revision in self.ahead.values()


def _members_problem(state: PartitionState, replicas: tuple[BrokerId, ...]) -> str | None:
    for member in state.isr + state.elr:
        if member not in replicas:
            return f"{member} in ISR or ELR is none of its replicas {replicas}"
    return None


def _as_change(operation: Operation, revision: int, image: ClusterImage) -> Change:
    """Give the change that the watch will bring for an operation that was done."""
    if isinstance(operation, Delete):
        return Change(operation.key, None, revision)
    created = revision
    place = place_of(operation.key)
    if place is not None and place.kind is Kind.BROKER:
        broker = image.brokers.get(BrokerId(place.number))
        created = revision if broker is None else broker.epoch
    elif place is not None and place.kind is Kind.COORDINATOR:
        coordinator = image.coordinators.get(place.number)
        created = revision if coordinator is None else coordinator.epoch
    elif place is not None and place.kind is Kind.CONTROLLER and image.controller is not None:
        created = image.controller.create_revision
    entry = Entry(operation.key, operation.value, created, revision, operation.lease)
    return Change(operation.key, entry, revision)


class _Draft:
    """An image in the making: copies a part of the old one before the first change to it."""

    def __init__(self, old: ClusterImage) -> None:
        self._old = old
        self._cluster_id, self._generation = old.cluster_id, old.generation
        self._controller = old.controller
        self._controller_epoch = old.controller_epoch
        self._brokers: dict[BrokerId, LiveBroker] | None = None
        self._topics: dict[str, StoredTopic] | None = None
        self._states: dict[str, Mapping[int, StoredState]] | None = None
        # The topics whose partitions are ours to change.
        self._own_states: dict[str, dict[int, StoredState]] = {}
        # The small tables, each copied before its first change.
        self._tables: dict[Kind, dict[Any, Any]] = {}
        self._damaged = old.damaged
        self._ahead = old.ahead

    def take(self, change: Change) -> None:
        if self._ahead.get(change.key, 0) > change.revision:
            return
        if change.entry is None:
            self._remove(change.key, place_of(change.key))
        else:
            self.put(change.entry)

    def put(self, entry: Entry) -> None:
        place = place_of(entry.key)
        if place is None:
            return
        try:
            self._store(place, entry)
        except CorruptCheckpoint as error:
            self._remove(entry.key, place)
            self._damaged = {**self._damaged, entry.key: str(error)}
        else:
            self._repair(entry.key)

    def note_ahead(self, key: str, revision: int) -> None:
        self._ahead = {**self._ahead, key: max(revision, self._ahead.get(key, 0))}

    def finish(self, *, revision: int) -> ClusterImage:
        old = self._old
        if self._ahead:
            self._ahead = {key: at for key, at in self._ahead.items() if at > revision}
        if self._own_states:
            self._states = {**old.states, **self._own_states}
            for topic, states in self._own_states.items():
                if not states:
                    del self._states[topic]
        return replace(
            old,
            revision=revision,
            cluster_id=self._cluster_id,
            generation=self._generation,
            controller=self._controller,
            controller_epoch=self._controller_epoch,
            brokers=old.brokers if self._brokers is None else self._brokers,
            topics=old.topics if self._topics is None else self._topics,
            states=old.states if self._states is None else self._states,
            damaged=self._damaged,
            ahead=self._ahead,
            **{_TABLES[kind].name: table for kind, table in self._tables.items()},
        )

    def _store(self, place: Place, entry: Entry) -> None:
        key, value, revision = entry.key, entry.value, entry.mod_revision
        table = _TABLES.get(place.kind)
        if table is not None:
            stored = table.stored(decode(table.record, value, key=key), entry)
            self._table(place.kind)[table.key(place)] = stored
            return
        match place.kind:
            case Kind.STATE:
                state = decode(PartitionState, value, key=key)
                self._states_of(place.name)[place.number] = StoredState(state, revision)
            case Kind.TOPIC:
                record = decode(TopicRecord, value, key=key)
                self._all_topics()[place.name] = StoredTopic(record, revision)
            case Kind.BROKER:
                registration = decode(BrokerRegistration, value, key=key)
                if registration.broker_id != place.number:
                    raise CorruptCheckpoint(f"{key}: it names broker {registration.broker_id}")
                self._all_brokers()[registration.broker_id] = LiveBroker(
                    registration, entry.create_revision, revision
                )
            case Kind.CONTROLLER:
                controller = decode(ControllerRecord, value, key=key)
                self._controller = LiveController(controller, entry.create_revision, revision)
            case Kind.CONTROLLER_EPOCH:
                self._controller_epoch = decode_counter(value, key=key)
            case Kind.CLUSTER:
                cluster = decode(ClusterRecord, value, key=key)
                self._cluster_id, self._generation = cluster.cluster_id, cluster.generation
            case _:
                # What may be large and is rarely read.
                pass

    def _remove(self, key: str, place: Place | None) -> None:
        if place is None:
            return
        self._repair(key)
        table = _TABLES.get(place.kind)
        if table is not None:
            self._table(place.kind).pop(table.key(place), None)
            return
        match place.kind:
            case Kind.STATE:
                self._states_of(place.name).pop(place.number, None)
            case Kind.TOPIC:
                self._all_topics().pop(place.name, None)
            case Kind.BROKER:
                self._all_brokers().pop(BrokerId(place.number), None)
            case Kind.CONTROLLER:
                self._controller = None
            case Kind.CONTROLLER_EPOCH:
                self._controller_epoch = 0
            case Kind.CLUSTER:
                self._cluster_id, self._generation = "", 0
            case _:
                # What may be large and is rarely read.
                pass

    def _repair(self, key: str) -> None:
        if key in self._damaged:
            self._damaged = {each: why for each, why in self._damaged.items() if each != key}

    def _states_of(self, topic: str) -> dict[int, StoredState]:
        states = self._own_states.get(topic)
        if states is None:
            states = self._own_states[topic] = dict(self._old.states.get(topic, {}))
        return states

    def _all_brokers(self) -> dict[BrokerId, LiveBroker]:
        if self._brokers is None:
            self._brokers = dict(self._old.brokers)
        return self._brokers

    def _all_topics(self) -> dict[str, StoredTopic]:
        if self._topics is None:
            self._topics = dict(self._old.topics)
        return self._topics

    def _table(self, kind: Kind) -> dict[Any, Any]:
        table = self._tables.get(kind)
        if table is None:
            table = self._tables[kind] = dict(getattr(self._old, _TABLES[kind].name))
        return table


class _Table(NamedTuple):
    """A small table of the image: its field, what is stored in it, and under which key."""

    name: str
    record: type[Any]
    stored: Callable[[Any, Entry], Any]
    key: Callable[[Place], Any]


def _by_name(place: Place) -> str:
    return place.name


def _by_number(place: Place) -> int:
    return place.number


def _by_broker(place: Place) -> BrokerId:
    return BrokerId(place.number)


def _by_partition(place: Place) -> TopicPartition:
    return TopicPartition(place.name, place.number)


def _at_revision(kind: Callable[[Any, int], Any]) -> Callable[[Any, Entry], Any]:
    return lambda record, entry: kind(record, entry.mod_revision)


def _alive(record: CoordinatorRegistration, entry: Entry) -> LiveCoordinator:
    return LiveCoordinator(record, entry.create_revision, entry.mod_revision)


_TABLES: Final = {
    Kind.DELETION: _Table("deletions", TopicDeletion, _at_revision(StoredDeletion), _by_name),
    Kind.TOMBSTONE: _Table("tombstones", TopicTombstone, _at_revision(StoredTombstone), _by_name),
    Kind.CORDON: _Table("cordons", Cordon, _at_revision(StoredCordon), _by_broker),
    Kind.REASSIGNMENT: _Table(
        "reassignments", Reassignment, _at_revision(StoredReassignment), _by_partition
    ),
    Kind.BROKER_CONFIG: _Table(
        "broker_configs", ConfigRecord, _at_revision(StoredConfig), _by_name
    ),
    Kind.CLIENT_CONFIG: _Table(
        "client_configs", ConfigRecord, _at_revision(StoredConfig), _by_name
    ),
    Kind.COORDINATOR: _Table("coordinators", CoordinatorRegistration, _alive, _by_number),
    Kind.SHARD: _Table("shards", ShardOwner, _at_revision(StoredShard), _by_number),
}
