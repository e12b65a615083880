"""What decisions are made from and of: facts beside the image, events, transactions. Values."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple, TypeAlias

from tailrace.config import LogConfig
from tailrace.errors import TailraceError
from tailrace.meta.image import LiveBroker
from tailrace.meta.keys import NO_BROKER, Reassignment, TopicRecord
from tailrace.meta.store import Guard, Operation
from tailrace.model import GROUP_SHARDS, BrokerId, TopicId, TopicPartition


class Term(NamedTuple):
    """One reign of one controller; `revision` is the one that made its `/controller`.

    `token`: of the term's record in the store.
    """

    controller_id: int
    epoch: int
    revision: int
    token: str = ""


class Cause(NamedTuple):
    """What happened to a broker last, in words, and when it was noticed (wall time)."""

    text: str
    noticed_ms: int


class ReplicaFailure(NamedTuple):
    """Why a broker cannot serve a replica, and whether what the replica had is damaged."""

    reason: str
    damaged: bool
    # It led without what another replica knows to be committed.
    conflicts: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What the controller knows besides the image: of this term, of brokers, of their past."""

    term: Term
    # How many shards of groups a cluster gets that has none.
    group_shards: int = GROUP_SHARDS
    # Brokers that asked to be relieved, with the epoch in which they did.
    draining: Mapping[BrokerId, int] = field(default_factory=dict)
    # Brokers that should lead nothing while another can, and why.
    unfit: Mapping[BrokerId, str] = field(default_factory=dict)
    spared: Collection[BrokerId] = ()
    failed: Mapping[TopicPartition, Mapping[BrokerId, ReplicaFailure]] = field(default_factory=dict)
    causes: Mapping[BrokerId, Cause] = field(default_factory=dict)
    # The incarnation of each broker's data folder when it was last admitted.
    incarnations: Mapping[BrokerId, str] = field(default_factory=dict)
    # The stored histories, by key, as they are stored.
    histories: Mapping[str, bytes] = field(default_factory=dict)
    # How many partitions a broker copies at the same time, to itself or from itself.
    moves_per_broker_max: int = 10
    # Topics that are `syncing`, and of which all who count have said that they are done.
    synced: Collection[str] = ()
    # How many replicas internal topics get as soon as there are brokers for them.
    default_replication_factor: int = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """Guards and operations that belong together, and what they are for, in words."""

    what: str
    guards: tuple[Guard, ...]
    operations: tuple[Operation, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Transactions, to be done in this order, each at most once; or why there are none."""

    transactions: tuple[Transaction, ...] = ()
    # Brokers that may be admitted: nothing that they may have lost counts any more.
    admissions: tuple[LiveBroker, ...] = ()
    record: TopicRecord | None = None
    # What whoever asked should know although it is done.
    warnings: tuple[str, ...] = ()
    # The settings as they are after the change.
    config: Mapping[str, str] | None = None
    # What was asked for each of several partitions, and why it cannot be; None: it is done.
    outcomes: Mapping[TopicPartition, TailraceError | None] = field(default_factory=dict)
    moves: Mapping[TopicPartition, Reassignment] = field(default_factory=dict)
    error: TailraceError | None = None


# ---------------------------------------------------------------------------------------- events


@dataclass(frozen=True, slots=True)
class ClusterChanged:
    """Brokers came or went, topics were made, or what is known of them has changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRequested:
    """Somebody wants a topic; `topic_id` is the one that it will have."""

    name: str
    topic_id: TopicId
    partitions: int = 1
    # 0: the default, or as many as the cluster has brokers (see `capacity`) if those are fewer.
    replication_factor: int = 0
    default_replication_factor: int = 3
    config: Mapping[str, str] = field(default_factory=dict)
    log_defaults: LogConfig = field(default_factory=LogConfig)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletionRequested:
    """Somebody wants a topic to go; with an id, only the topic of this id."""

    name: str
    topic_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicasStopped:
    """All live replicas of a topic that is being deleted have been deleted."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FenceRequested:
    """A broker's process is known to be gone. `epoch` 0 and no `instance`: whatever life it has."""

    broker_id: BrokerId
    epoch: int
    instance: str = ""


class ConfigKind(Enum):
    """What a setting belongs to."""

    TOPIC = "topic"
    BROKER = "broker"
    CLIENT = "client"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigRequested:
    """Somebody wants settings of a topic, a broker or a client to change."""

    kind: ConfigKind
    name: str
    changed: Mapping[str, str] = field(default_factory=dict)
    unset: Collection[str] = ()
    log_defaults: LogConfig = field(default_factory=LogConfig)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionsRequested:
    """Somebody wants a topic to have this many partitions."""

    name: str
    partitions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CordonRequested:
    """Somebody wants a broker to get nothing new, or wants to end that."""

    broker_id: BrokerId
    cordon: bool
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderWish:
    """A partition that is to have another leader: the preferred one, or any (`unclean`)."""

    partition: TopicPartition
    # With `unclean`: who is to lead; NO_BROKER: who led last. And what is known of the loss.
    leader: BrokerId = NO_BROKER
    loss: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectionRequested:
    """Somebody wants preferred replicas to lead, or, where nobody else can, any that is there.

    Without wishes all partitions are meant. `balance`: it is not somebody, but the clock; then only
    brokers count that lead too few of those that prefer them, by more than so many percent.
    """

    wishes: tuple[LeaderWish, ...] = ()
    unclean: bool = False
    balance_percent: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MovesRequested:
    """Somebody wants partitions to have other replicas: exactly one of the three ways is set."""

    plan: Mapping[TopicPartition, tuple[BrokerId, ...]] | None = None
    to_brokers: tuple[BrokerId, ...] = ()
    drain: BrokerId | None = None
    # With the last two: only of these topics; none: of all.
    topics: Collection[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MovesCancelled:
    """Somebody wants partitions to go back to the replicas that they had; none named: all."""

    partitions: tuple[TopicPartition, ...] = ()


AdminEvent: TypeAlias = (
    ConfigRequested
    | PartitionsRequested
    | CordonRequested
    | ElectionRequested
    | MovesRequested
    | MovesCancelled
)
Event: TypeAlias = (
    ClusterChanged
    | TopicRequested
    | DeletionRequested
    | ReplicasStopped
    | FenceRequested
    | AdminEvent
)
