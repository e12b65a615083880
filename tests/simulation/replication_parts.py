"""The parts of the replication model: disks, links, the shell of a broker, and the store.

What happens to them, and what must hold, stands in `simulation.replication_model`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, assert_never

from tailrace.epochs import EpochHistory
from tailrace.model import BrokerId, LeaderEpoch, Offset, TopicPartition
from tailrace.replication.events import (
    NO_LEADER,
    AllowFollower,
    Appended,
    AppendFailed,
    AppendToLog,
    BecomeFollower,
    BecomeLeader,
    Effect,
    Event,
    FailPending,
    FollowerReported,
    GiveUpLead,
    IsrRefused,
    IsrStored,
    KeepRecords,
    LeaderReached,
    MoveHighWatermark,
    Ordered,
    PushDiverged,
    Pushed,
    PushRefused,
    RefuseFollower,
    Report,
    StepDown,
    StoredState,
    StoreIsr,
    Synced,
    TellDiverged,
    Truncated,
    TruncateLog,
)
from tailrace.replication.leader import ReplicaSettings
from tailrace.replication.partition import PartitionReplica, Role

if TYPE_CHECKING:
    from simulation.replication_model import World

PARTITION = TopicPartition("orders", 0)
BROKERS = (BrokerId(1), BrokerId(2), BrokerId(3))
SETTINGS = ReplicaSettings(lag_max_ms=1_000, isr_retry_max_ms=200, report_retry_max_ms=200)

Record: TypeAlias = tuple[int, int]  # The leader epoch that wrote it, and its value.


class Push(NamedTuple):
    """Records on their way to a follower."""

    event: Pushed
    records: list[Record]


class Answer(NamedTuple):
    """DIVERGED on its way to a follower, with the leader epoch in which it was said."""

    told: TellDiverged
    leader_epoch: LeaderEpoch


Frame: TypeAlias = Push | Answer | RefuseFollower


class Violation(AssertionError):
    """An invariant of the fault table does not hold."""


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """What kind of world a run happens in, and which rules around the machines are left out."""

    steps: int = 400
    min_insync: int = 2
    # Frames of a link may be lost, repeated and reordered: only safety is asked for then.
    chaos: bool = False
    # The topic says flush=ack, and a power loss is nothing that the controller must know of.
    syncs_first: bool = False
    # What happens more or less often than usual.
    mood: str = "usual"
    # Mutations of what surrounds the machines.
    guards_followers: bool = True
    new_epoch_for_new_life: bool = True
    distrusts_lost_tails: bool = True
    forgets_pushes: bool = True


# How often each kind of thing happens, and what a world may be like instead.
WEIGHTS = {
    "deliver": 60,
    "pump": 25,
    "produce": 12,
    "order": 10,
    "control": 6,
    "store": 8,
    "answer": 12,
    "time": 8,
    "tick": 8,
    "sync": 3,
    "checkpoint": 2,
    "connect": 8,
    "break": 2,
    "crash": 2,
    "start": 6,
    "lease": 1,
    "move": 1,
}
MOODS: dict[str, dict[str, int]] = {
    "usual": {},
    "slow store": {"store": 2, "answer": 3},
    "slow orders": {"order": 2, "lease": 3, "time": 16, "tick": 16},
    "restless": {"crash": 6, "start": 20, "control": 20, "order": 40, "connect": 20, "store": 20},
    "slow network": {"deliver": 30, "break": 1, "move": 8, "order": 40},
}


def scenario_of(seed: int) -> Scenario:
    """Spread the seeds over the kinds of worlds."""
    return Scenario(
        min_insync=1 if seed % 4 == 3 else 2,
        chaos=seed % 5 == 4,
        syncs_first=seed % 3 == 2,
        mood=tuple(MOODS)[seed % 7 % len(MOODS)],
    )


class Disk:
    """What a broker keeps when its process dies."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.history = EpochHistory()
        self.synced = 0
        self.high_watermark = 0

    @property
    def log_end(self) -> Offset:
        return Offset(len(self.records))

    @property
    def last_epoch(self) -> LeaderEpoch:
        return LeaderEpoch(self.records[-1][0] if self.records else -1)

    def append(self, records: Sequence[Record]) -> None:
        for record in records:
            if record[0] < self.last_epoch:
                raise Violation(f"I3: epoch {record[0]} was appended after {self.last_epoch}")
            self.history.assign(record[0], len(self.records))
            self.records.append(record)

    def truncate(self, offset: int) -> None:
        del self.records[offset:]
        self.history.truncate_end(offset)
        self.synced = min(self.synced, offset)


@dataclass(eq=False)
class Link:
    """A follower's connection to a broker that leads, or once led: a broker pair shares one.

    What is under way is lost when it breaks, but for the reports of a follower that died: the
    leader reads those until it notices.
    """

    follower: Broker
    leader: Broker
    broker_epoch: int
    up: deque[Report] = field(default_factory=deque)
    down: deque[Frame] = field(default_factory=deque)
    # Where the leader pushes from, None when it may not; and what it last told of itself.
    position: int | None = None
    told: int = -1
    alive: bool = True

    @property
    def is_current(self) -> bool:
        """Whether the follower still talks over it. What is left of another one may come late."""
        machine = self.follower.machine
        return (
            self.follower.links.get(self.leader.id) is self
            and machine is not None
            and machine.leader == self.leader.id
        )


class Broker:
    """A process with its disk, and the shell around one machine."""

    def __init__(self, world: World, broker_id: BrokerId) -> None:
        self.world = world
        self.id = broker_id
        self.disk = Disk()
        self.up = True
        # What it believes its registration to be.
        self.epoch = 0
        self.machine: PartitionReplica | None = None
        self.links: dict[BrokerId, Link] = {}
        self.pushed: list[Record] = []
        self.parked: list[Record] = []

    def handle(self, event: Event) -> None:
        if self.machine is None:
            return
        for effect in self.machine.handle(event, now_ms=self.world.now_ms):
            self._perform(effect)
        self.machine.check_invariants()

    def obey(self, broker_epoch: int, state: StoredState) -> None:
        if broker_epoch != self.epoch:
            return
        if self.machine is None:
            self.machine = PartitionReplica(PARTITION, self.id, settings=SETTINGS)
        if self.world.scenario.syncs_first:
            self.disk.synced = self.disk.log_end
        self.handle(
            Ordered(
                state=state,
                replicas=BROKERS,
                min_insync=self.world.scenario.min_insync,
                log_end=self.disk.log_end,
                last_epoch=self.disk.last_epoch,
                log_start=Offset(0),
                high_watermark=Offset(self.disk.high_watermark),
                syncs_first=self.world.scenario.syncs_first,
            )
        )

    def produce(self, value: int, *, acks_all: bool) -> None:
        machine = self.machine
        if machine is None or machine.can_append(acks_all=acks_all) is not None:
            return
        record = (int(machine.leader_epoch), value)
        self.world.say("broker {} appends {} at {}", self.id, record, self.disk.log_end)
        self.disk.append([record])
        if acks_all:
            self.parked.append(record)
        self.handle(Appended(log_end=self.disk.log_end, last_epoch=self.disk.last_epoch))

    def sync(self) -> None:
        self.disk.synced = self.disk.log_end
        if self.world.scenario.syncs_first:
            self.handle(Synced(log_end=self.disk.log_end))

    def connect(self) -> None:
        """Open a link to the leader that the machine follows."""
        if self.machine is None or self.machine.role is not Role.FOLLOWER:
            return
        leader = self.world.brokers[self.machine.leader]
        if leader.up and leader.id not in self.links:
            self.links[leader.id] = self.world.open_link(self, leader, self.epoch)
            self.handle(LeaderReached())

    def pump(self, link: Link, count: int) -> None:
        """Push some of what is new to one follower."""
        machine = self.machine
        if machine is None or link.position is None or machine.role is not Role.LEADER:
            return
        base = link.position
        records = self.disk.records[base : base + count]
        if not records and link.told == machine.high_watermark:
            return
        link.position = base + len(records)
        link.told = machine.high_watermark
        push = Pushed(
            leader_epoch=machine.leader_epoch,
            base_offset=Offset(base),
            size=len(records),
            high_watermark=machine.high_watermark,
            log_start=Offset(0),
        )
        link.down.append(Push(push, records))

    def take_report(self, link: Link, report: Report) -> None:
        self.handle(
            FollowerReported(
                broker_id=link.follower.id,
                broker_epoch=link.broker_epoch,
                leader_epoch=report.leader_epoch,
                log_end=report.log_end,
                last_epoch=report.last_epoch,
                end_of_last_epoch=self.disk.history.end_of(report.last_epoch, self.disk.log_end),
                log_start=Offset(0),
                restart=report.restart,
                high_watermark=report.high_watermark,
            )
        )

    def take_push(self, frame: Frame) -> None:
        match frame:
            case Push(event, records):
                self.pushed = records
                self.handle(event)
            case Answer(told, leader_epoch):
                self.handle(
                    PushDiverged(
                        leader_epoch=leader_epoch,
                        base_offset=told.base_offset,
                        leader_end=told.leader_end,
                        epochs=self.disk.history.entries,
                    )
                )
            case RefuseFollower():
                self.handle(
                    PushRefused(
                        leader_epoch=frame.leader_epoch,
                        code=frame.code,
                        log_start=frame.log_start,
                    )
                )
            case _:
                assert_never(frame)

    def _perform(self, effect: Effect) -> None:
        self.world.say("broker {}: {}", self.id, effect)
        match effect:
            case BecomeLeader() | BecomeFollower() | StepDown():
                self._take_role(effect)
            case FailPending():
                self.parked = []
            case MoveHighWatermark():
                self._committed(effect.offset)
            case StoreIsr():
                self.world.store_queue.append(Request(self, self.machine, self.epoch, effect))
            case AllowFollower() | TellDiverged() | RefuseFollower():
                self._answer(effect)
            case AppendToLog():
                self._append_pushed()
            case TruncateLog():
                self._truncate(effect)
            case KeepRecords() | GiveUpLead():
                self._disagrees(effect)
            case _:
                self._report(effect)

    def _report(self, effect: Effect) -> None:
        if not isinstance(effect, Report):
            raise TypeError(effect)
        link = self.links.get(effect.leader)
        if link is not None:
            link.up.append(effect)

    def _take_role(self, effect: BecomeLeader | BecomeFollower | StepDown) -> None:
        if not isinstance(effect, BecomeLeader) or self.world.scenario.forgets_pushes:
            self._forget_followers()
        if isinstance(effect, BecomeLeader):
            self.disk.history.assign(effect.epoch, self.disk.log_end)
        elif isinstance(effect, BecomeFollower):
            self.disk.history.truncate_end(self.disk.log_end)
            self.connect()

    def _disagrees(self, effect: KeepRecords | GiveUpLead) -> None:
        """Only an older copy of a disk, or an election that gave records up, explains it."""
        if not (self.world.unclean or self.world.put_back):
            raise Violation(f"broker {self.id} finds a conflict where there is none: {effect}")

    def _truncate(self, effect: TruncateLog) -> None:
        if effect.below_high_watermark and not self.world.unclean:
            raise Violation(f"I1: broker {self.id} cuts committed records: {effect}")
        self.disk.truncate(effect.offset)
        self.handle(
            Truncated(
                log_end=self.disk.log_end, last_epoch=self.disk.last_epoch, log_start=Offset(0)
            )
        )

    def _append_pushed(self) -> None:
        if self.world.rng.random() < 0.02:
            self.handle(AppendFailed())
            return
        self.disk.append(self.pushed)
        self.handle(Appended(log_end=self.disk.log_end, last_epoch=self.disk.last_epoch))

    def _answer(self, effect: AllowFollower | TellDiverged | RefuseFollower) -> None:
        for link in self.world.links:
            if link.leader is not self or link.follower.id != effect.broker_id:
                continue
            if link.broker_epoch != effect.broker_epoch:
                continue
            if isinstance(effect, AllowFollower):
                link.position, link.told = effect.from_offset, -1
                continue
            link.position = None
            if isinstance(effect, RefuseFollower):
                link.down.append(effect)
            elif self.machine is not None:
                link.down.append(Answer(effect, self.machine.leader_epoch))

    def _committed(self, offset: int) -> None:
        machine = self.machine
        if machine is None or machine.role is not Role.LEADER:
            return
        self.world.commit(self, offset)
        below = set(self.disk.records[:offset])
        self.world.acked += [record for record in self.parked if record in below]
        self.parked = [record for record in self.parked if record not in below]

    def _forget_followers(self) -> None:
        for link in self.world.links:
            if link.leader is self:
                link.position = None


class Request(NamedTuple):
    """A transaction on its way to the store; nobody waits for it any more without a machine."""

    broker: Broker
    machine: PartitionReplica | None
    epoch: int
    effect: StoreIsr


class Store:
    """The partition's state and the registrations, changed only by guarded transactions."""

    def __init__(self) -> None:
        self.revision = 10
        self.registrations: dict[BrokerId, int] = {}
        self.state = StoredState(
            leader=NO_LEADER, leader_epoch=LeaderEpoch(0), isr=BROKERS, revision=self.revision
        )
        self.last_leader = BROKERS[0]
        # In which life the leader was when it was elected.
        self.leader_life = 0

    def put(self, state: StoredState) -> None:
        self.revision += 1
        self.state = replace(state, revision=self.revision)

    def register(self, broker: BrokerId) -> int:
        self.revision += 1
        self.registrations[broker] = self.revision
        return self.revision

    def change_isr(
        self, broker: BrokerId, epoch: int, effect: StoreIsr, *, guards_followers: bool
    ) -> IsrStored | IsrRefused:
        holds = (
            self.state.revision == effect.expected_revision
            and self.registrations.get(broker) == epoch
        )
        if guards_followers:
            holds = holds and all(self.registrations.get(b) == e for b, e in effect.added)
        if not holds:
            return IsrRefused(attempt=effect.attempt, state=self.state)
        self.put(replace(self.state, isr=effect.isr, elr=effect.elr))
        return IsrStored(attempt=effect.attempt, revision=self.state.revision)
