"""One replica machine on the bench: events in, effects out, with the dull fields filled in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tailrace.epochs import UNKNOWN_END, EpochEnd, EpochHistory
from tailrace.model import BrokerId, LeaderEpoch, Offset, TopicPartition
from tailrace.replication.events import (
    Appended,
    Effect,
    Event,
    FollowerReported,
    Ordered,
    Pushed,
    StoredState,
    StoreIsr,
    Tick,
)
from tailrace.replication.leader import ReplicaSettings
from tailrace.replication.partition import PartitionReplica

PARTITION = TopicPartition("orders", 0)
SETTINGS = ReplicaSettings()
A, B, C = BrokerId(1), BrokerId(2), BrokerId(3)
# Broker epochs, as the hello of each follower's link names them.
LIVES = {B: 102, C: 103}


def stored(
    leader: int = A,
    *,
    epoch: int = 5,
    isr: Sequence[int] = (A, B, C),
    elr: Sequence[int] = (),
    revision: int = 50,
) -> StoredState:
    return StoredState(
        leader=BrokerId(leader),
        leader_epoch=LeaderEpoch(epoch),
        isr=tuple(BrokerId(each) for each in isr),
        elr=tuple(BrokerId(each) for each in elr),
        revision=revision,
    )


@dataclass
class Bench:
    """A machine with its clock; the log is nothing but its end and its epochs."""

    me: BrokerId = A
    replicas: tuple[BrokerId, ...] = (A, B, C)
    min_insync: int = 2
    log_end: int = 10
    log_start: int = 0
    high_watermark: int = 6
    last_epoch: int = 4
    syncs_first: bool = False
    now_ms: int = 1_000
    epochs: EpochHistory = field(default_factory=lambda: EpochHistory([(1, 0), (4, 4)]))

    def __post_init__(self) -> None:
        self.machine = PartitionReplica(PARTITION, self.me)

    def handle(self, event: Event) -> list[Effect]:
        effects = self.machine.handle(event, now_ms=self.now_ms)
        self.machine.check_invariants()
        return effects

    def wait(self, ms: int) -> list[Effect]:
        self.now_ms += ms
        return self.handle(Tick())

    def order(self, state: StoredState) -> list[Effect]:
        return self.handle(
            Ordered(
                state=state,
                replicas=self.replicas,
                min_insync=self.min_insync,
                log_end=Offset(self.log_end),
                last_epoch=LeaderEpoch(self.last_epoch),
                log_start=Offset(self.log_start),
                high_watermark=Offset(self.high_watermark),
                syncs_first=self.syncs_first,
            )
        )

    def lead(self, **changes: object) -> Bench:
        """Lead in epoch 5, from offset 10 on."""
        self.order(stored(**changes))  # type: ignore[arg-type]
        self.epochs.assign(self.machine.leader_epoch, self.log_end)
        return self

    def follow(self, leader: int = B, epoch: int = 5) -> Bench:
        self.order(stored(leader, epoch=epoch))
        return self

    def append(self, count: int = 1) -> list[Effect]:
        self.log_end += count
        self.last_epoch = int(self.machine.leader_epoch)
        return self.handle(
            Appended(log_end=Offset(self.log_end), last_epoch=LeaderEpoch(self.last_epoch))
        )

    def report(
        self,
        broker: BrokerId,
        log_end: int,
        *,
        last_epoch: int | None = None,
        leader_epoch: int | None = None,
        life: int | None = None,
        restart: bool = False,
    ) -> list[Effect]:
        """A follower reports; its last record is of the epoch that this log has there."""
        if last_epoch is None:
            last_epoch = int(self.epochs.epoch_at(log_end - 1))
        end = UNKNOWN_END if last_epoch < 0 else self.epochs.end_of(last_epoch, self.log_end)
        named = self.machine.leader_epoch if leader_epoch is None else leader_epoch
        return self.handle(
            FollowerReported(
                broker_id=broker,
                broker_epoch=LIVES.get(broker, 0) if life is None else life,
                leader_epoch=LeaderEpoch(named),
                log_end=Offset(log_end),
                last_epoch=LeaderEpoch(last_epoch),
                end_of_last_epoch=EpochEnd(*end),
                log_start=Offset(self.log_start),
                restart=restart,
            )
        )

    def push(
        self, base_offset: int, *, size: int = 1, high_watermark: int = 0, epoch: int = 5
    ) -> list[Effect]:
        return self.handle(
            Pushed(
                leader_epoch=LeaderEpoch(epoch),
                base_offset=Offset(base_offset),
                size=size,
                high_watermark=Offset(high_watermark),
                log_start=Offset(self.log_start),
            )
        )


def only_store(effects: Sequence[Effect]) -> StoreIsr:
    """The one change of the ISR among the effects."""
    (found,) = [effect for effect in effects if isinstance(effect, StoreIsr)]
    return found


def kinds(effects: Sequence[Effect]) -> list[str]:
    return [type(effect).__name__ for effect in effects]
