"""The facts in the store: which key holds what, and how a value is written.

Values are JSON objects with a "version"; counters are plain integers. A reader takes what it knows
and leaves the rest, so that services of version n and n+1 share one store; what it needs and does
not find, or finds with another type, is CorruptCheckpoint with the key's name. Invariant: a value
that exists is one that could be stored and read again, and its parts do not contradict each other.

This module is pure: it knows neither the store nor who may write what under which guards.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple, TypeVar, cast

from tailrace.errors import CorruptCheckpoint, InvariantViolation
from tailrace.meta.fields import Fields, integer_of, number_of, parse_json
from tailrace.model import (
    BrokerId,
    LeaderEpoch,
    ProducerId,
    TopicId,
    TopicPartition,
    topic_name_problem,
)

ROOT: Final = "/"
CONTROLLER: Final = "/controller"
CONTROLLER_EPOCH: Final = "/controller_epoch"
CLUSTER: Final = "/cluster"
# Below CLUSTER, so that one read of that prefix shows which store this is.
TERMS: Final = "/cluster/terms/"
# A counter that the active controller raises after each change of anything: a store that went back
# has a lower one, however far its revision has come since.
STAMP: Final = "/cluster/stamp"
BROKERS: Final = "/brokers/ids/"
TOPICS: Final = "/brokers/topics/"
CORDONED: Final = "/brokers/cordoned/"
# Which data each broker was last registered with: it outlives registrations.
INCARNATIONS: Final = "/brokers/incarnations/"
DELETIONS: Final = "/admin/delete_topics/"
TOMBSTONES: Final = "/admin/deleted_topics/"
REASSIGNMENTS: Final = "/admin/reassign_partitions/"
BROKER_CONFIGS: Final = "/config/brokers/"
CLIENT_CONFIGS: Final = "/config/clients/"
NEXT_PRODUCER_ID: Final = "/producers/next_id"
PRODUCER_NAMES: Final = "/producers/names/"
COORDINATORS: Final = "/coordinators/ids/"
SHARDS: Final = "/coordinators/shards/"

# The settings of every broker, or client, that has none of its own.
DEFAULT_CONFIG: Final = "default"
CLIENT_ID_LENGTH_MAX: Final = 200

NO_BROKER: Final = BrokerId(-1)
FORMAT_VERSION: Final = 1
HISTORY_CHANGES_MAX: Final = 20
# All that Tailrace keeps in a store, keys of later versions too, begins with one of these.
_OUR_PREFIXES: Final = (
    CONTROLLER,
    CLUSTER,
    "/brokers/",
    "/admin/",
    "/config/",
    "/producers/",
    "/coordinators/",
)


class Kind(Enum):
    """What a key is for."""

    CONTROLLER = "controller"
    CONTROLLER_EPOCH = "controller epoch"
    CLUSTER = "cluster"
    TERM = "term of a controller"
    BROKER = "broker"
    TOPIC = "topic"
    STATE = "partition state"
    HISTORY = "partition history"
    DELETION = "topic deletion"
    TOMBSTONE = "deleted topic"
    CORDON = "cordoned broker"
    REASSIGNMENT = "reassignment"
    BROKER_CONFIG = "broker settings"
    CLIENT_CONFIG = "client settings"
    NEXT_PRODUCER_ID = "next producer id"
    PRODUCER_NAME = "producer name"
    COORDINATOR = "coordinator"
    SHARD = "shard of groups"


class Place(NamedTuple):
    """A key, taken apart: `name` of a topic or producer, `number` of whatever has numbers."""

    kind: Kind
    name: str = ""
    number: int = -1


def broker_key(broker_id: int) -> str:
    return f"{BROKERS}{broker_id}"


def topic_key(topic: str) -> str:
    return f"{TOPICS}{topic}"


def topic_prefix(topic: str) -> str:
    """Where all that belongs to a topic's partitions is; the topic's own key is not below it."""
    return f"{TOPICS}{topic}/"


def state_key(partition: TopicPartition) -> str:
    return f"{TOPICS}{partition.topic}/partitions/{partition.partition}/state"


def history_key(partition: TopicPartition) -> str:
    return f"{TOPICS}{partition.topic}/partitions/{partition.partition}/history"


def deletion_key(topic: str) -> str:
    return f"{DELETIONS}{topic}"


def tombstone_key(topic_id: str) -> str:
    return f"{TOMBSTONES}{topic_id}"


def term_key(controller_epoch: int) -> str:
    return f"{TERMS}{controller_epoch}"


def cordon_key(broker_id: int) -> str:
    return f"{CORDONED}{broker_id}"


def reassignment_key(partition: TopicPartition) -> str:
    return f"{REASSIGNMENTS}{partition.topic}/{partition.partition}"


def broker_config_key(name: str) -> str:
    """`name`: a broker's id, or DEFAULT_CONFIG."""
    return f"{BROKER_CONFIGS}{name}"


def client_config_key(name: str) -> str:
    """`name`: a client's id, or DEFAULT_CONFIG."""
    return f"{CLIENT_CONFIGS}{name}"


def producer_name_key(name: str) -> str:
    return f"{PRODUCER_NAMES}{name}"


def coordinator_key(coordinator_id: int) -> str:
    return f"{COORDINATORS}{coordinator_id}"


def shard_key(shard: int) -> str:
    return f"{SHARDS}{shard}"


def is_ours(key: str) -> bool:
    """Whether a key is Tailrace's: others may share the store, and theirs are left alone."""
    return key.startswith(_OUR_PREFIXES)


def place_of(key: str) -> Place | None:
    """Say what a key is for, or None when it is not one of ours (or of a later version)."""
    single = _SINGLE.get(key)
    if single is not None:
        return single
    for prefix, place_below in _BELOW.items():
        if key.startswith(prefix):
            return place_below(key[len(prefix) :])
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerRecord:
    """Who is the controller, in which epoch, and where."""

    controller_id: int
    epoch: int
    host: str
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterRecord:
    """The cluster's id, made once by the first controller, and which store this is.

    `store_id` is new for every store that is founded or rebuilt. A rebuilt store has a higher
    `generation` and names in `former` the stores that it succeeds, the newest first: a service
    that knew one of them accepts this one. `recovering`: why the store must not be used yet.
    """

    cluster_id: str
    store_id: str = ""
    generation: int = 0
    former: tuple[str, ...] = ()
    recovering: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TermRecord:
    """One term of a controller. `token` is random: a store that went back repeats no token.

    `stamp`: the store's stamp when the term began; 0: begun by an older version.
    """

    controller_id: int
    token: str
    stamp: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicTombstone:
    """The record of a finished deletion: what still has replicas of this topic id removes them."""

    name: str
    deleted_ms: int
    controller_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerRegistration:
    """A live broker. Its epoch is not in here: it is the create revision of the key."""

    broker_id: BrokerId
    host: str
    port: int
    link_host: str
    link_port: int
    incarnation: str
    rack: str = ""
    instance: str = ""
    tail_may_be_lost: bool = False
    draining: bool = False
    # Where controllers connect; port 0: a broker of an older version, on its client port.
    control_host: str = ""
    control_port: int = 0
    # New for every start of the process; empty: a broker of an older version.
    process: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingsChange:
    """What was changed of a topic's settings, and when (wall time): what `explain` shows."""

    decided_ms: int
    set: Mapping[str, str]
    unset: tuple[str, ...] = ()
    controller_id: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRecord:
    """A topic: its id, the replicas of each partition, settings that differ from the defaults.

    `syncing`: `flush=ack` was asked for when there were records, and not everybody who is in sync
    has said that what it had is on its disk: until then a power loss may take some of it.
    `changes`: the last ones of the settings, newest first. `rebuilt`: the assignment was worked out
    when a lost store was rebuilt, so it proves nothing of brokers that were not heard then.
    """

    topic_id: TopicId
    assignment: Mapping[int, tuple[BrokerId, ...]]
    config: Mapping[str, str]
    syncing: bool = False
    changes: tuple[SettingsChange, ...] = ()
    rebuilt: bool = False

    def __post_init__(self) -> None:
        if sorted(self.assignment) != list(range(len(self.assignment))):
            raise InvariantViolation(f"partitions {sorted(self.assignment)} are not 0, 1, 2, …")
        for partition, replicas in self.assignment.items():
            if not replicas:
                raise InvariantViolation(f"partition {partition} has no replicas")
            _check_brokers(f"replicas of partition {partition}", replicas)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionState:
    """Who leads a partition and who holds all that is committed.

    `elr`: replicas out of sync that still hold everything committed. `last_leader`: who led last,
    also while nobody leads. `loss`: what the last election that may have lost records may have
    lost, in words. Orders and metadata name a state by its key's mod revision. `unclean_epoch`: the
    leader epoch that began with that election; 0: there was none, or its epoch is not known.
    `conflict`: why nobody may lead until a person has decided, though somebody could.
    `leader_process`: which start of the leader's process was given this epoch; another one may have
    an older copy of the log, and must not write other records in it. Empty: not known.
    """

    controller_epoch: int
    leader: BrokerId
    leader_epoch: LeaderEpoch
    isr: tuple[BrokerId, ...]
    elr: tuple[BrokerId, ...] = ()
    last_leader: BrokerId = NO_BROKER
    loss: str = ""
    unclean_epoch: int = 0
    conflict: str = ""
    leader_process: str = ""

    def __post_init__(self) -> None:
        if self.leader_epoch < 0:
            raise InvariantViolation(f"leader epoch {self.leader_epoch} is below 0")
        if self.leader != NO_BROKER and self.leader not in self.isr:
            raise InvariantViolation(f"leader {self.leader} is not in the ISR {self.isr}")
        _check_brokers("ISR and ELR together", self.isr + self.elr)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderChange:
    """Why a partition's leader changed: what `explain` shows. Times are wall times."""

    decided_ms: int
    cause: str
    noticed_ms: int
    old_leader: BrokerId
    new_leader: BrokerId
    leader_epoch: LeaderEpoch
    old_isr: tuple[BrokerId, ...]
    new_isr: tuple[BrokerId, ...]
    candidates: tuple[str, ...]
    controller_id: int
    controller_epoch: int
    loss: str = ""


@dataclass(frozen=True, slots=True)
class PartitionHistory:
    """The last leader changes of a partition, newest first."""

    changes: tuple[LeaderChange, ...] = ()

    def with_change(self, change: LeaderChange) -> PartitionHistory:
        """Add the newest change; the oldest goes when there are too many."""
        return PartitionHistory((change, *self.changes[: HISTORY_CHANGES_MAX - 1]))


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDeletion:
    """The topic of this id is being deleted."""

    topic_id: TopicId


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigRecord:
    """Settings of a broker or a client, or of all that have none of their own."""

    settings: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cordon:
    """A broker that gets no new replicas and no leadership, since when (wall time) and why."""

    reason: str
    since_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reassignment:
    """A partition on its way from some replicas to others.

    What it has now says the topic's record: `original` before its turn came, then both sets
    together. `cancelled`: it is on its way back.
    """

    topic_id: TopicId
    original: tuple[BrokerId, ...]
    target: tuple[BrokerId, ...]
    started_ms: int
    cancelled: bool = False

    def __post_init__(self) -> None:
        for what, brokers in (("original", self.original), ("target", self.target)):
            _check_brokers(f"{what} replicas", brokers)
            if not brokers:
                raise InvariantViolation(f"there are no {what} replicas")

    @property
    def all_replicas(self) -> tuple[BrokerId, ...]:
        """The set while it is under way: where it goes first, then what is left to go."""
        return (*self.target, *(each for each in self.original if each not in self.target))


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerName:
    """The id and newest epoch of a named producer."""

    producer_id: ProducerId
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorRegistration:
    """A live coordinator of groups; its epoch is the create revision of the key."""

    coordinator_id: int
    host: str
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardOwner:
    """Which life of which coordinator owns a shard of groups; a new owner has a higher epoch."""

    owner: int
    owner_epoch: int
    epoch: int


Value = (
    ControllerRecord
    | ClusterRecord
    | TermRecord
    | TopicTombstone
    | BrokerRegistration
    | TopicRecord
    | PartitionState
    | PartitionHistory
    | TopicDeletion
    | ConfigRecord
    | Cordon
    | Reassignment
    | ProducerName
    | CoordinatorRegistration
    | ShardOwner
)
V = TypeVar("V", bound=Value)


def encode(value: Value) -> bytes:
    """Return the bytes to store: the same value always gives the same bytes."""
    fields = {"version": FORMAT_VERSION, **_WRITERS[type(value)](value)}
    return json.dumps(fields, separators=(",", ":")).encode("ascii")


def decode(kind: type[V], data: bytes, *, key: str = "") -> V:
    """Return the value of this kind; CorruptCheckpoint, which names the key, if it is none."""
    where = key or kind.__name__
    fields = Fields(where, parse_json(data, where))
    fields.version(FORMAT_VERSION)
    try:
        return cast("V", _READERS[kind](fields))
    except InvariantViolation as error:
        raise CorruptCheckpoint(f"{where}: {error}") from error


def encode_counter(value: int) -> bytes:
    """Return the bytes of `/controller_epoch` and `/producers/next_id`."""
    return b"%d" % value


def decode_counter(data: bytes, *, key: str = "") -> int:
    """Return the integer that a counter's key holds."""
    where = key or "counter"
    return integer_of(where, "value", parse_json(data, where))


# ------------------------------------------------------------------------------------ keys apart

_SINGLE: Final = {
    CONTROLLER: Place(Kind.CONTROLLER),
    CONTROLLER_EPOCH: Place(Kind.CONTROLLER_EPOCH),
    CLUSTER: Place(Kind.CLUSTER),
    NEXT_PRODUCER_ID: Place(Kind.NEXT_PRODUCER_ID),
}
_BELOW_PARTITION: Final = {"state": Kind.STATE, "history": Kind.HISTORY}


def _place_below_topics(rest: str) -> Place | None:
    topic, *below = rest.split("/")
    if topic_name_problem(topic):
        return None
    if not below:
        return Place(Kind.TOPIC, topic)
    if len(below) != 3 or below[0] != "partitions":
        return None
    partition = number_of(below[1])
    kind = _BELOW_PARTITION.get(below[2])
    if partition is None or kind is None:
        return None
    return Place(kind, topic, partition)


def _place_of_number(kind: Kind) -> Callable[[str], Place | None]:
    def place(text: str) -> Place | None:
        number = number_of(text)
        return None if number is None else Place(kind, number=number)

    return place


def _place_of_deletion(topic: str) -> Place | None:
    return None if topic_name_problem(topic) else Place(Kind.DELETION, topic)


def _place_of_reassignment(rest: str) -> Place | None:
    topic, _, text = rest.partition("/")
    partition = number_of(text)
    if partition is None or topic_name_problem(topic):
        return None
    return Place(Kind.REASSIGNMENT, topic, partition)


def _place_of_broker_config(name: str) -> Place | None:
    known = name == DEFAULT_CONFIG or number_of(name) is not None
    return Place(Kind.BROKER_CONFIG, name) if known else None


def _place_of_client_config(name: str) -> Place | None:
    return Place(Kind.CLIENT_CONFIG, name) if name else None


_BELOW: Final[dict[str, Callable[[str], Place | None]]] = {
    TOPICS: _place_below_topics,
    BROKERS: _place_of_number(Kind.BROKER),
    CORDONED: _place_of_number(Kind.CORDON),
    COORDINATORS: _place_of_number(Kind.COORDINATOR),
    SHARDS: _place_of_number(Kind.SHARD),
    DELETIONS: _place_of_deletion,
    TOMBSTONES: lambda topic_id: Place(Kind.TOMBSTONE, topic_id) if topic_id else None,
    TERMS: _place_of_number(Kind.TERM),
    REASSIGNMENTS: _place_of_reassignment,
    BROKER_CONFIGS: _place_of_broker_config,
    CLIENT_CONFIGS: _place_of_client_config,
    PRODUCER_NAMES: lambda name: Place(Kind.PRODUCER_NAME, name),
}


def _check_brokers(what: str, brokers: tuple[BrokerId, ...]) -> None:
    if brokers and min(brokers) < 0:
        raise InvariantViolation(f"{what} {brokers}: a broker's id is not below 0")
    if len(set(brokers)) != len(brokers):
        raise InvariantViolation(f"{what} {brokers}: a broker is named twice")


# ------------------------------------------------------------------------------ kinds of values


def _write_plain(value: Value) -> dict[str, object]:
    """Write a dataclass of numbers, texts, flags and tuples of those, in the order of fields."""
    return {name: getattr(value, name) for name in value.__dataclass_fields__}


def _write_topic(value: Value) -> dict[str, object]:
    topic = cast("TopicRecord", value)
    return {
        "topic_id": topic.topic_id,
        "assignment": {str(each): topic.assignment[each] for each in sorted(topic.assignment)},
        "config": dict(sorted(topic.config.items())),
        # Most topics have nothing to say of these.
        **({"syncing": True} if topic.syncing else {}),
        **({"rebuilt": True} if topic.rebuilt else {}),
        **({"changes": [*map(_write_settings_change, topic.changes)]} if topic.changes else {}),
    }


def _write_settings_change(change: SettingsChange) -> dict[str, object]:
    return {
        "decided_ms": change.decided_ms,
        "set": dict(sorted(change.set.items())),
        "unset": list(change.unset),
        "controller_id": change.controller_id,
    }


def _write_state(value: Value) -> dict[str, object]:
    fields = _write_plain(value)
    # Most partitions have lost nothing, and need not say so.
    unusual = ("loss", "unclean_epoch", "conflict", "leader_process")
    return {name: fields[name] for name in fields if fields[name] or name not in unusual}


def _write_config(value: Value) -> dict[str, object]:
    return {"settings": dict(sorted(cast("ConfigRecord", value).settings.items()))}


def _write_history(value: Value) -> dict[str, object]:
    changes = cast("PartitionHistory", value).changes
    return {"changes": [_write_plain(cast("Value", change)) for change in changes]}


def _read_controller(fields: Fields) -> ControllerRecord:
    return ControllerRecord(
        controller_id=fields.integer("controller_id"),
        epoch=fields.integer("epoch"),
        host=fields.text("host"),
        port=fields.integer("port"),
    )


def _read_cluster(fields: Fields) -> ClusterRecord:
    return ClusterRecord(
        cluster_id=fields.text("cluster_id"),
        store_id=fields.text_or("store_id", ""),
        generation=fields.integer("generation") if fields.has("generation") else 0,
        former=fields.texts("former") if fields.has("former") else (),
        recovering=fields.text_or("recovering", ""),
    )


def _read_term(fields: Fields) -> TermRecord:
    return TermRecord(
        controller_id=fields.integer("controller_id"),
        token=fields.text("token"),
        stamp=fields.integer("stamp") if fields.has("stamp") else 0,
    )


def _read_tombstone(fields: Fields) -> TopicTombstone:
    return TopicTombstone(
        name=fields.text("name"),
        deleted_ms=fields.integer("deleted_ms"),
        controller_epoch=fields.integer("controller_epoch"),
    )


def _read_broker(fields: Fields) -> BrokerRegistration:
    return BrokerRegistration(
        broker_id=fields.broker("broker_id"),
        host=fields.text("host"),
        port=fields.integer("port"),
        link_host=fields.text("link_host"),
        link_port=fields.integer("link_port"),
        incarnation=fields.text("incarnation"),
        rack=fields.text("rack"),
        instance=fields.text_or("instance", ""),
        tail_may_be_lost=fields.flag("tail_may_be_lost"),
        draining=fields.flag("draining"),
        control_host=fields.text_or("control_host", ""),
        control_port=fields.integer("control_port") if fields.has("control_port") else 0,
        process=fields.text_or("process", ""),
    )


def _read_topic(fields: Fields) -> TopicRecord:
    return TopicRecord(
        topic_id=TopicId(fields.text("topic_id")),
        assignment=fields.assignment("assignment"),
        config=fields.settings("config"),
        syncing=fields.has("syncing") and fields.flag("syncing"),
        rebuilt=fields.has("rebuilt") and fields.flag("rebuilt"),
        changes=tuple(
            SettingsChange(
                decided_ms=each.integer("decided_ms"),
                set=each.settings("set"),
                unset=each.texts("unset"),
                controller_id=each.integer("controller_id"),
            )
            for each in (fields.objects("changes") if fields.has("changes") else ())
        ),
    )


def _read_state(fields: Fields) -> PartitionState:
    return PartitionState(
        controller_epoch=fields.integer("controller_epoch"),
        leader=fields.broker("leader"),
        leader_epoch=LeaderEpoch(fields.integer("leader_epoch")),
        isr=fields.brokers("isr"),
        elr=fields.brokers("elr"),
        last_leader=fields.broker("last_leader"),
        loss=fields.text("loss") if fields.has("loss") else "",
        unclean_epoch=fields.integer("unclean_epoch") if fields.has("unclean_epoch") else 0,
        conflict=fields.text("conflict") if fields.has("conflict") else "",
        leader_process=fields.text_or("leader_process", ""),
    )


def _read_change(fields: Fields) -> LeaderChange:
    return LeaderChange(
        decided_ms=fields.integer("decided_ms"),
        cause=fields.text("cause"),
        noticed_ms=fields.integer("noticed_ms"),
        old_leader=fields.broker("old_leader"),
        new_leader=fields.broker("new_leader"),
        leader_epoch=LeaderEpoch(fields.integer("leader_epoch")),
        old_isr=fields.brokers("old_isr"),
        new_isr=fields.brokers("new_isr"),
        candidates=fields.texts("candidates"),
        controller_id=fields.integer("controller_id"),
        controller_epoch=fields.integer("controller_epoch"),
        loss=fields.text("loss"),
    )


def _read_history(fields: Fields) -> PartitionHistory:
    return PartitionHistory(tuple(_read_change(change) for change in fields.objects("changes")))


def _read_deletion(fields: Fields) -> TopicDeletion:
    return TopicDeletion(topic_id=TopicId(fields.text("topic_id")))


def _read_config(fields: Fields) -> ConfigRecord:
    return ConfigRecord(settings=fields.settings("settings"))


def _read_cordon(fields: Fields) -> Cordon:
    return Cordon(reason=fields.text("reason"), since_ms=fields.integer("since_ms"))


def _read_reassignment(fields: Fields) -> Reassignment:
    return Reassignment(
        topic_id=TopicId(fields.text("topic_id")),
        original=fields.brokers("original"),
        target=fields.brokers("target"),
        started_ms=fields.integer("started_ms"),
        cancelled=fields.flag("cancelled"),
    )


def _read_producer(fields: Fields) -> ProducerName:
    return ProducerName(
        producer_id=ProducerId(fields.integer("producer_id")), epoch=fields.integer("epoch")
    )


def _read_coordinator(fields: Fields) -> CoordinatorRegistration:
    return CoordinatorRegistration(
        coordinator_id=fields.integer("coordinator_id"),
        host=fields.text("host"),
        port=fields.integer("port"),
    )


def _read_shard(fields: Fields) -> ShardOwner:
    return ShardOwner(
        owner=fields.integer("owner"),
        owner_epoch=fields.integer("owner_epoch"),
        epoch=fields.integer("epoch"),
    )


_WRITERS: Final[dict[type, Callable[[Value], dict[str, object]]]] = {
    ControllerRecord: _write_plain,
    ClusterRecord: _write_plain,
    TermRecord: _write_plain,
    TopicTombstone: _write_plain,
    BrokerRegistration: _write_plain,
    TopicRecord: _write_topic,
    PartitionState: _write_state,
    PartitionHistory: _write_history,
    TopicDeletion: _write_plain,
    ConfigRecord: _write_config,
    Cordon: _write_plain,
    Reassignment: _write_plain,
    ProducerName: _write_plain,
    CoordinatorRegistration: _write_plain,
    ShardOwner: _write_plain,
}
_READERS: Final[dict[type, Callable[[Fields], Value]]] = {
    ControllerRecord: _read_controller,
    ClusterRecord: _read_cluster,
    TermRecord: _read_term,
    TopicTombstone: _read_tombstone,
    BrokerRegistration: _read_broker,
    TopicRecord: _read_topic,
    PartitionState: _read_state,
    PartitionHistory: _read_history,
    TopicDeletion: _read_deletion,
    ConfigRecord: _read_config,
    Cordon: _read_cordon,
    Reassignment: _read_reassignment,
    ProducerName: _read_producer,
    CoordinatorRegistration: _read_coordinator,
    ShardOwner: _read_shard,
}
