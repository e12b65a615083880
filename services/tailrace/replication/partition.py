"""One partition replica on a broker: leader, follower or neither, as the controller orders.

`PartitionReplica` is the one door: `handle` takes an event and the time and returns the effects,
which the shell performs in order. Pure: it knows no log, no network, no store and no clock.

Theory of operation. The controller numbers leaderships (leader epoch), the store numbers states
(revision); an order counts when its pair of numbers is above the last one's.

| role     | on an order that names  | it becomes | and does                                    |
|----------|-------------------------|------------|---------------------------------------------|
| any      | this broker, new epoch  | LEADER     | begins anew with what it knows of followers |
| any      | another, new epoch      | FOLLOWER   | asks that leader where they agree           |
| any      | nobody                  | OFFLINE    | waits                                       |
| the same | the same epoch          | the same   | takes over the ISR that was stored          |
| LEADER   | (the store's newer one) | OFFLINE    | acknowledges nothing more, waits for orders |
| any      | (`Stopped`)             | STOPPED    | nothing until it is ordered again           |

Whoever stops being leader ends all parked requests at once. The high watermark that is known stays
known from role to role; a leader never lowers it, a follower only when its log is cut.
"""

from __future__ import annotations

from dataclasses import replace
from enum import Enum
from typing import Final, TypeAlias, assert_never

from tailrace.errors import (
    FencedEpoch,
    InvariantViolation,
    NotEnoughReplicas,
    NotLeader,
    TailraceError,
    UnknownEpoch,
)
from tailrace.model import NO_LEADER_EPOCH, BrokerId, LeaderEpoch, Offset, TopicPartition
from tailrace.replication.events import (
    NO_LEADER,
    Appended,
    AppendFailed,
    BecomeFollower,
    BecomeLeader,
    Effect,
    Event,
    FailPending,
    FollowerLost,
    FollowerReported,
    GiveUpLead,
    IsrRefused,
    IsrStored,
    IsrUnknown,
    LeaderReached,
    Ordered,
    PushDiverged,
    Pushed,
    PushRefused,
    RefuseFollower,
    StepDown,
    Stopped,
    StoredState,
    StoreIsr,
    Synced,
    Tick,
    Truncated,
)
from tailrace.replication.follower import FollowerState
from tailrace.replication.leader import FollowerProgress, LeaderState, ReplicaSettings

# How many followers may have reported in an epoch that this broker has not heard of yet.
EARLY_REPORTS_MAX: Final = 64

_LogEvent: TypeAlias = Appended | Synced | Truncated | AppendFailed
_LeaderEvent: TypeAlias = FollowerReported | FollowerLost | IsrStored | IsrRefused | IsrUnknown
_FollowerEvent: TypeAlias = LeaderReached | Pushed | PushDiverged | PushRefused


class Role(Enum):
    """What a replica is at the moment."""

    LEADER = "leader"
    FOLLOWER = "follower"
    OFFLINE = "offline"
    STOPPED = "stopped"


class PartitionReplica:
    """One replica of one partition. Only `handle` changes it."""

    def __init__(
        self,
        partition: TopicPartition,
        broker_id: BrokerId,
        *,
        settings: ReplicaSettings | None = None,
    ) -> None:
        self.partition = partition
        self.broker_id = broker_id
        self._settings = settings or ReplicaSettings()
        self._role = Role.OFFLINE
        self._state = StoredState(
            leader=NO_LEADER, leader_epoch=NO_LEADER_EPOCH, isr=(), revision=0
        )
        # Whether `_state` came as an order; what was read from the store is known, not obeyed.
        self._obeyed = False
        self._replicas: tuple[BrokerId, ...] = ()
        self._min_insync = 1
        self._syncs_first = False
        self._log_end = 0
        self._last_epoch: int = NO_LEADER_EPOCH
        self._high_watermark: int | None = None
        self._attempts = 0
        self._leading: LeaderState | None = None
        self._following: FollowerState | None = None
        # A change of the ISR that was under way when this replica stopped leading.
        self._unanswered: StoreIsr | None = None
        # Who reported in an epoch above ours: broker → (its epoch, the leader epoch it named).
        self._early: dict[BrokerId, tuple[int, LeaderEpoch]] = {}

    # What others may know.

    @property
    def role(self) -> Role:
        return self._role

    @property
    def leader(self) -> BrokerId:
        """Who leads, as far as this replica knows; NO_LEADER when nobody does."""
        return self._state.leader

    @property
    def leader_epoch(self) -> LeaderEpoch:
        return self._state.leader_epoch

    @property
    def unclean_epoch(self) -> int:
        """The epoch of the last unclean election on record; 0: there was none."""
        return self._state.unclean_epoch

    @property
    def revision(self) -> int:
        return self._state.revision if self._leading is None else self._leading.revision

    @property
    def isr(self) -> tuple[BrokerId, ...]:
        """The ISR that was last stored, as far as this replica knows."""
        return self._state.isr if self._leading is None else self._leading.isr

    @property
    def elr(self) -> tuple[BrokerId, ...]:
        return self._state.elr if self._leading is None else self._leading.elr

    @property
    def maximal_isr(self) -> tuple[BrokerId, ...]:
        """The ISR and whoever may be in it once a change under way is done."""
        return self._state.isr if self._leading is None else self._leading.maximal_isr

    @property
    def replicas(self) -> tuple[BrokerId, ...]:
        return self._replicas

    @property
    def min_insync(self) -> int:
        return self._min_insync

    @property
    def high_watermark(self) -> Offset:
        current = self._leading or self._following
        if current is not None:
            return Offset(current.high_watermark)
        return Offset(self._high_watermark or 0)

    @property
    def log_end(self) -> Offset:
        return Offset(self._log_end)

    @property
    def epoch_start(self) -> Offset | None:
        """Where this leadership began; None when this replica does not lead."""
        return None if self._leading is None else Offset(self._leading.epoch_start)

    @property
    def followers(self) -> tuple[FollowerProgress, ...]:
        """How far each follower is; empty when this replica does not lead."""
        return () if self._leading is None else self._leading.progress()

    def is_borne_out(self, *, now_ms: int) -> bool:
        """Whether what this log does not have is gone, as far as any replica can tell."""
        return self._leading is None or self._leading.is_borne_out(now_ms)

    def waits_for(self, broker_id: BrokerId, *, now_ms: int) -> bool:
        """Whether the high watermark of this leader waits for a follower."""
        return self._leading is not None and self._leading.waits_for(broker_id, now_ms)

    @property
    def next_tick_ms(self) -> int | None:
        """When a `Tick` is needed; None when time alone changes nothing."""
        current = self._leading or self._following
        return None if current is None else current.next_tick_ms()

    def can_append(self, *, acks_all: bool = True) -> TailraceError | None:
        """Why a produce must be refused now, or None."""
        if self._leading is None:
            return NotLeader(f"{self.partition}: {self._where()}")
        if acks_all and self._leading.under_min_insync:
            return NotEnoughReplicas(
                f"{self.partition}: {len(self._leading.isr)} in sync {list(self._leading.isr)}, "
                f"min.insync.replicas is {self._min_insync}"
            )
        return None

    # The one door.

    def handle(self, event: Event, *, now_ms: int) -> list[Effect]:
        """Take in what happened; return what is to be done about it, in this order."""
        if isinstance(event, _LogEvent):
            return self._handle_log(event, now_ms)
        if isinstance(event, _LeaderEvent):
            return self._handle_leader(event, now_ms)
        if isinstance(event, _FollowerEvent):
            return self._handle_follower(event, now_ms)
        match event:
            case Ordered():
                return self._order(event, now_ms)
            case Tick():
                current = self._leading or self._following
                return [] if current is None else current.tick(now_ms)
            case Stopped():
                return self._stop()
            case _:
                assert_never(event)

    def check_invariants(self) -> None:
        """Raise InvariantViolation when this replica contradicts itself."""
        if (self._role is Role.LEADER) != (self._leading is not None) or (
            self._role is Role.FOLLOWER
        ) != (self._following is not None):
            raise InvariantViolation(f"{self.partition}: {self._role} without the state for it")
        if self._leading is not None:
            if self._state.leader != self.broker_id or self._leading.epoch != self.leader_epoch:
                raise InvariantViolation(f"{self.partition}: leads without being the leader")
            self._leading.check_invariants()
        current = self._leading or self._following
        if current is not None and current.log_end != self._log_end:
            raise InvariantViolation(
                f"{self.partition}: the log ends at {self._log_end}, not at {current.log_end}"
            )
        if self.high_watermark > self._log_end:
            raise InvariantViolation(
                f"{self.partition}: high watermark {self.high_watermark} "
                f"above the log end {self._log_end}"
            )

    # Orders.

    def _order(self, event: Ordered, now_ms: int) -> list[Effect]:
        new = (event.state.leader_epoch, event.state.revision)
        known = (self.leader_epoch, self.revision)
        if new < known:
            return []
        effects: list[Effect] = []
        if new == known and self._obeyed:
            return self._configure(event, now_ms)
        current = self._leading or self._following
        if current is not None and new[0] == known[0] and event.state.leader == self._state.leader:
            effects += self._configure(event, now_ms)
            if self._leading is not None:
                effects += self._leading.adopt(event.state, now_ms)
            if self._following is not None:
                self._following.unclean_epoch = event.state.unclean_epoch
            self._state = event.state
            return effects
        # Whoever is elected again goes on with what is parked: its log was not cut.
        goes_on = event.state.leader == self.broker_id
        effects += self._leave_role(fails_pending=not goes_on)
        self._take_over(event)
        return [*effects, *self._take_role(event, now_ms)]

    def _take_over(self, event: Ordered) -> None:
        self._state = event.state
        self._obeyed = True
        self._replicas = event.replicas
        self._min_insync = event.min_insync
        self._syncs_first = event.syncs_first
        self._log_end = event.log_end
        self._last_epoch = event.last_epoch
        known = self._high_watermark
        high_watermark = event.high_watermark if known is None else known
        self._high_watermark = min(max(high_watermark, event.log_start), event.log_end)

    def _take_role(self, event: Ordered, now_ms: int) -> list[Effect]:
        state = event.state
        high_watermark = self._high_watermark or 0
        if state.leader == self.broker_id:
            self._role = Role.LEADER
            self._leading = LeaderState(
                self.broker_id,
                state,
                settings=self._settings,
                replicas=event.replicas,
                min_insync=event.min_insync,
                log_end=event.log_end,
                high_watermark=high_watermark,
                syncs_first=event.syncs_first,
                synced_end=_synced_end(event),
                attempts=self._attempts,
                now_ms=now_ms,
            )
            unanswered, self._unanswered = self._unanswered, None
            if unanswered is not None and unanswered.expected_revision == state.revision:
                self._leading.resume(unanswered, now_ms)
            self._last_epoch = state.leader_epoch
            begin: list[Effect] = [BecomeLeader(epoch=state.leader_epoch)]
            return [*begin, *self._invite_early(event), *self._leading.start(now_ms)]
        self._early.clear()
        if state.leader == NO_LEADER:
            self._role = Role.OFFLINE
            return [StepDown(known_epoch=state.leader_epoch)]
        self._role = Role.FOLLOWER
        self._following = FollowerState(
            leader=state.leader,
            epoch=state.leader_epoch,
            settings=self._settings,
            log_end=event.log_end,
            last_epoch=event.last_epoch,
            log_start=event.log_start,
            high_watermark=high_watermark,
            syncs_first=event.syncs_first,
            synced_end=_synced_end(event),
            unclean_epoch=state.unclean_epoch,
        )
        follow = BecomeFollower(leader=state.leader, epoch=state.leader_epoch)
        return [follow, *self._following.start(now_ms)]

    def _leave_role(self, *, fails_pending: bool = True) -> list[Effect]:
        """Forget leading or following, but neither the high watermark nor what was stored."""
        current = self._leading or self._following
        if current is not None:
            self._high_watermark = current.high_watermark
        leading = self._leading
        self._leading = self._following = None
        if leading is None:
            return []
        self._attempts = leading.attempts
        self._unanswered = None if leading.pending is None else leading.pending.proposal
        self._state = replace(
            self._state, isr=leading.isr, elr=leading.elr, revision=leading.revision
        )
        return [FailPending(code=NotLeader.code, fetches=True)] if fails_pending else []

    def _configure(self, event: Ordered, now_ms: int) -> list[Effect]:
        self._replicas = event.replicas
        self._min_insync = event.min_insync
        self._syncs_first = event.syncs_first
        if self._following is not None:
            self._following.configure(syncs_first=event.syncs_first, synced_end=_synced_end(event))
        if self._leading is None:
            return []
        return self._leading.configure(
            replicas=event.replicas,
            min_insync=event.min_insync,
            syncs_first=event.syncs_first,
            synced_end=_synced_end(event),
            now_ms=now_ms,
        )

    def _invite_early(self, event: Ordered) -> list[Effect]:
        """Those who came too early are told that they may ask again now."""
        epoch = event.state.leader_epoch
        invited = [
            RefuseFollower(
                broker_id=broker,
                broker_epoch=broker_epoch,
                leader_epoch=epoch,
                code=UnknownEpoch.code,
                log_start=event.log_start,
            )
            for broker, (broker_epoch, named) in self._early.items()
            if named == epoch
        ]
        self._early = {b: (e, named) for b, (e, named) in self._early.items() if named > epoch}
        return [*invited]

    def _step_down(self, state: StoredState | None) -> list[Effect]:
        """Somebody else leads, or nobody: this replica acknowledges nothing from now on."""
        effects = self._leave_role()
        self._role = Role.OFFLINE
        if state is not None:
            self._state = state
            self._obeyed = False
        else:
            self._state = replace(self._state, leader=NO_LEADER, isr=(), elr=())
        return [*effects, StepDown(known_epoch=self.leader_epoch)]

    def _stop(self) -> list[Effect]:
        effects = self._leave_role()
        self._role = Role.STOPPED
        self._obeyed = False
        return effects

    # Everything else.

    def _handle_log(self, event: _LogEvent, now_ms: int) -> list[Effect]:
        match event:
            case Appended():
                self._log_end = event.log_end
                self._last_epoch = event.last_epoch
                if self._leading is not None:
                    return self._leading.appended(event.log_end, now_ms)
                if self._following is not None:
                    return self._following.appended(event.log_end, event.last_epoch)
                return []
            case Synced():
                current = self._leading or self._following
                return [] if current is None else current.synced(event.log_end, now_ms)
            case Truncated():
                return self._truncated(event, now_ms)
            case AppendFailed():
                return [] if self._following is None else self._following.append_failed(now_ms)
            case _:
                assert_never(event)

    def _truncated(self, event: Truncated, now_ms: int) -> list[Effect]:
        if self._leading is not None:
            raise InvariantViolation(
                f"{self.partition}: the log of the leader was cut at {event.log_end}"
            )
        self._log_end = event.log_end
        self._last_epoch = event.last_epoch
        if self._following is None:
            return []
        return self._following.truncated(event.log_end, event.last_epoch, event.log_start, now_ms)

    def _handle_leader(self, event: _LeaderEvent, now_ms: int) -> list[Effect]:
        leading = self._leading
        if isinstance(event, FollowerReported):
            return self._reported(event, now_ms)
        if leading is None:
            return []
        match event:
            case FollowerLost():
                return leading.lost(event, now_ms)
            case IsrStored():
                return leading.stored(event.attempt, event.revision, now_ms)
            case IsrUnknown():
                return leading.unknown(event.attempt, now_ms)
            case IsrRefused():
                state = event.state
                if state is None or self._is_deposed_by(state):
                    return self._step_down(state)
                return leading.refused(event.attempt, state, now_ms)
            case _:
                assert_never(event)

    def _is_deposed_by(self, state: StoredState) -> bool:
        if state.leader_epoch > self.leader_epoch:
            return True
        return state.revision > self.revision and state.leader != self.broker_id

    def _reported(self, event: FollowerReported, now_ms: int) -> list[Effect]:
        if event.leader_epoch == self.leader_epoch and self._leading is not None:
            lacks = self._leading.lacks_committed(event)
            if lacks:
                # Nothing is overwritten, acknowledged or committed from here on.
                return [*self._step_down(None), GiveUpLead(why=lacks)]
            return self._leading.reported(event, now_ms)
        code = NotLeader.code
        if event.leader_epoch < self.leader_epoch:
            code = FencedEpoch.code
        elif event.leader_epoch > self.leader_epoch or not self._obeyed:
            code = UnknownEpoch.code
            if event.broker_id in self._early or len(self._early) < EARLY_REPORTS_MAX:
                self._early[event.broker_id] = (event.broker_epoch, event.leader_epoch)
        # A refusal in the follower's own epoch would be an invitation to ask at once.
        known = self.leader_epoch if self._obeyed else NO_LEADER_EPOCH
        return [
            RefuseFollower(
                broker_id=event.broker_id,
                broker_epoch=event.broker_epoch,
                leader_epoch=known,
                code=code,
                log_start=event.log_start,
            )
        ]

    def _handle_follower(self, event: _FollowerEvent, now_ms: int) -> list[Effect]:
        following = self._following
        if following is None:
            return []
        match event:
            case Pushed():
                return following.pushed(event, now_ms)
            case PushDiverged():
                return following.diverged(event)
            case PushRefused():
                return following.refused(event, now_ms)
            case LeaderReached():
                return following.reached(now_ms)
            case _:
                assert_never(event)

    def _where(self) -> str:
        if self._state.leader == NO_LEADER:
            return f"nobody leads in epoch {self.leader_epoch}"
        if self._state.leader == self.broker_id:
            return f"epoch {self.leader_epoch} has ended, or was not ordered here yet"
        return f"broker {self._state.leader} leads in epoch {self.leader_epoch}"


def _synced_end(event: Ordered) -> int:
    """Up to where the log is on disk; a shell that does not say has synced all of it."""
    return event.log_end if event.synced_end is None else event.synced_end
