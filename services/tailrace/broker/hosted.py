"""One partition as a broker hosts it: the replica machine, its log, and who is to be told.

Only values and bookkeeping; what is done about effects stands in `replicas`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol

from tailrace.broker.disks import Disk
from tailrace.config import (
    LAST_LEADER,
    REPLICA_SETTINGS,
    UNCLEAN,
    Flush,
    LogConfig,
    min_insync_of,
)
from tailrace.log.commit import GroupCommit
from tailrace.log.log import PartitionLog
from tailrace.meta.copies import ReplicaOrderRecord
from tailrace.meta.keys import NO_BROKER, PartitionState
from tailrace.metrics.values import Traffic
from tailrace.model import BrokerId, TopicId, TopicPartition
from tailrace.replication.events import StoredState
from tailrace.replication.partition import PartitionReplica, Role
from tailrace.tracing import Span

if TYPE_CHECKING:
    import asyncio


class Follower(Protocol):
    """A link on which a follower is pushed to."""

    broker_id: BrokerId
    broker_epoch: int

    def mark(self, partition: TopicPartition) -> None:
        """There is something new for it."""

    def mark_later(self, partition: TopicPartition) -> None:
        """Only the high watermark is new: it goes with the next data, or a little later."""

    def drop(self, hosted: Hosted) -> None:
        """The partition is led here no longer: nothing more is pushed."""


class Fetcher(Protocol):
    """A fetch stream that reads the partition."""

    def mark(self, partition: TopicPartition) -> None:
        """There may be something new for it."""


class ReplicaTrace(Protocol):
    """Requests that are traced and wait for followers (`traces`)."""

    def add(self, offset: int, wait: Span) -> None:
        """One more, which waits for all below this."""

    def remove(self, wait: Span) -> None:
        """It waits no longer."""

    def pushed(self, broker: BrokerId, next_offset: int) -> None:
        """A follower was sent all below this."""

    def reported(self, broker: BrokerId, log_end: int) -> None:
        """It says that it has all below this."""


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """A topic's settings as a broker needs them."""

    log: LogConfig
    min_insync: int
    # What they were read from.
    given: Mapping[str, str] = field(default_factory=dict)
    replicas: int = 1

    @classmethod
    def parse(
        cls, config: Mapping[str, str], *, replicas: int, defaults: LogConfig
    ) -> TopicSettings:
        """What the controller has checked; what nobody could read counts as not given."""
        of_log = {name: config[name] for name in config if name not in REPLICA_SETTINGS}
        min_insync = min_insync_of(config, replicas=replicas)
        return cls(LogConfig.from_settings(of_log, defaults), min_insync, dict(config), replicas)

    def over(self, defaults: LogConfig) -> TopicSettings:
        """The same settings over other defaults."""
        return TopicSettings.parse(self.given, replicas=self.replicas, defaults=defaults)

    @property
    def syncs_first(self) -> bool:
        return self.log.flush is Flush.ACK

    @property
    def refuses_loss(self) -> bool:
        """Whether only a person may give up what was committed (`unclean.recovery`)."""
        chosen = self.given.get(UNCLEAN)
        return self.min_insync > 1 if chosen is None else chosen != LAST_LEADER


class StopOrder(NamedTuple):
    """One replica that the controller wants no longer here."""

    partition: TopicPartition
    # When set: only a replica of this topic.
    topic_id: str = ""
    # Its data goes too.
    delete: bool = False
    # When set: not if a later order said that the replica is wanted again.
    revision: int = 0
    # Its data is kept under another name.
    set_aside: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaOrder:
    """What the controller wants of one partition on this broker."""

    partition: TopicPartition
    topic_id: TopicId
    state: StoredState
    replicas: tuple[BrokerId, ...]
    leader_link: str
    config: dict[str, str]
    # Those of the replicas that a reassignment adds, and those that go when it is done.
    adding: tuple[BrokerId, ...] = ()
    removing: tuple[BrokerId, ...] = ()
    # Which start of the leader's process was given the epoch; empty: not known.
    leader_process: str = ""


class Hosted:
    """A partition on this broker."""

    __slots__ = (
        "adding",
        "commit",
        "conflict",
        "disk",
        "fetchers",
        "flushing",
        "followers",
        "log",
        "machine",
        "partition",
        "settings",
        "sync_to",
        "topic_id",
        "trace",
        "traffic",
    )

    def __init__(
        self,
        partition: TopicPartition,
        topic_id: TopicId,
        log: PartitionLog,
        machine: PartitionReplica,
        settings: TopicSettings,
        disk: Disk,
    ) -> None:
        self.partition = partition
        self.topic_id = topic_id
        self.log = log
        self.machine = machine
        self.settings = settings
        self.disk = disk
        # Replicas that a reassignment adds: what they are pushed is throttled until they are there.
        self.adding: tuple[BrokerId, ...] = ()
        self.commit: GroupCommit[None] = GroupCommit(log.recovery_point)
        self.flushing: asyncio.Task[object] | None = None
        # With `flush=ack`: what it had when that began, which has to be on disk first of all.
        self.sync_to = 0
        # Ordered, so that a simulation tells them in the same order each time.
        self.followers: dict[Follower, None] = {}
        self.fetchers: dict[Fetcher, None] = {}
        # Why it keeps what its leader lacks, and follows nobody until a person has decided.
        self.conflict = ""
        # What goes in and out; the replicas of a topic share it.
        self.traffic = Traffic()
        # Only while a request is traced that waits for followers.
        self.trace: ReplicaTrace | None = None

    @property
    def leads(self) -> bool:
        return self.machine.role is Role.LEADER

    @property
    def can_be_spared(self) -> bool:
        """Whether others hold what is committed, from whom a damaged replica can be mended."""
        return not self.leads or len(self.machine.isr) > 1 or bool(self.machine.elr)

    def is_newer_than(self, order: ReplicaOrder) -> bool:
        """Whether an order is for a topic that had this name before the one that is here."""
        is_another = self.topic_id != order.topic_id
        return is_another and order.state.revision < self.machine.revision

    def mark_followers(self) -> None:
        for follower in self.followers:
            follower.mark(self.partition)

    def mark_fetchers(self) -> None:
        for fetcher in self.fetchers:
            fetcher.mark(self.partition)


def is_current(record: ReplicaOrderRecord, hosted: Hosted) -> bool:
    """Whether a record of a replica says what is known of it now."""
    machine = hosted.machine
    return (
        record.revision == machine.revision
        and record.state.leader_epoch == machine.leader_epoch
        and record.state.isr == machine.isr
        and record.config is hosted.settings.given
        and record.replicas == machine.replicas
    )


def order_record(hosted: Hosted) -> ReplicaOrderRecord:
    """Give what this broker knows of a replica's place in the cluster."""
    machine = hosted.machine
    isr = machine.isr
    state = PartitionState(
        controller_epoch=0,
        leader=machine.leader if machine.leader in isr else NO_BROKER,
        leader_epoch=machine.leader_epoch,
        isr=isr,
        elr=tuple(each for each in machine.elr if each not in isr),
        last_leader=machine.leader,
        unclean_epoch=machine.unclean_epoch,
    )
    return ReplicaOrderRecord(
        partition=hosted.partition,
        topic_id=hosted.topic_id,
        state=state,
        revision=machine.revision,
        replicas=machine.replicas,
        config=hosted.settings.given,
    )
