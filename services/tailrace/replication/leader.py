"""The leader's side of a partition: how far its followers are, who is in sync, what is committed.

Pure: time comes in with each call, what is to be done goes out as effects. It knows nothing of
orders and roles: `tailrace.replication.partition` makes a new `LeaderState` for every epoch.

Why a committed record stays. Let C be the ISR in the store. The high watermark (HW) is the
smallest log end over the *maximal* ISR: C and every set that a transaction under way may put in
its place. So whatever the store says at any moment, each member of its ISR has all records below
the HW:
- a member that stays had them when the HW moved, and logs only grow within an epoch;
- one that joins has a log end at the HW or above when it is proposed, and from then on the HW
  waits for it, until the store's newer revision proves that it can no longer join. A refusal is
  such a proof, silence is none: then the same transaction is tried again;
- the HW of a new leader may be too low, not its log. All that was ever committed lies below its
  log end when it was elected, so one who joins must have reached that too.
Below `min.insync.replicas` the HW rests, and it rests as long as the store names eligible leaders
(ELR). So those who left an ISR that fell below that number have all records below the HW too.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from tailrace.epochs import UNKNOWN_END, EpochEnd
from tailrace.errors import (
    InvalidRequest,
    InvariantViolation,
    NotEnoughReplicasAfterAppend,
    OffsetOutOfRange,
    StaleBroker,
    UnknownEpoch,
)
from tailrace.model import BrokerId, LeaderEpoch, Offset
from tailrace.replication.events import (
    AddedReplica,
    AllowFollower,
    Effect,
    FailPending,
    FollowerLost,
    FollowerReported,
    MoveHighWatermark,
    RefuseFollower,
    StoredState,
    StoreIsr,
    TellDiverged,
)

UNKNOWN: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaSettings:
    """The times that rule a replica."""

    # How long a follower may be behind before it leaves the ISR (replica.lag.time.max.ms).
    lag_max_ms: int = 10_000
    # After a change of the ISR came to nothing: when it is tried again, at first and at last.
    isr_retry_ms: int = 50
    isr_retry_max_ms: int = 1_000
    # When a follower reports again to a leader that refused it or said nothing, likewise.
    report_retry_ms: int = 50
    report_retry_max_ms: int = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowerProgress:
    """What the leader knows of one follower, for those who describe and measure."""

    broker_id: BrokerId
    broker_epoch: int
    log_end: Offset
    caught_up_ms: int | None
    in_sync: bool
    connected: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingIsr:
    """A change of the ISR whose outcome is not known yet."""

    proposal: StoreIsr
    # Since the store kept silent, the change waits for its next attempt.
    silent: bool = False


class _Follower:
    """How far one follower is. Unknown until it has reported in this epoch and this life."""

    __slots__ = (
        "bar_ms",
        "barred_until_ms",
        "broker_epoch",
        "caught_up_ms",
        "connected",
        "log_end",
        "mark_end",
        "mark_ms",
        "must_ask",
        "was_heard",
    )

    def __init__(self, bar_ms: int) -> None:
        self.broker_epoch = UNKNOWN
        self.log_end = UNKNOWN
        # It has reported in this leadership, and what it had does not contradict this log.
        self.was_heard = False
        # It agrees with this log and is being pushed to.
        self.connected = False
        # When it last had everything that the leader had; None: never in this epoch.
        self.caught_up_ms: int | None = None
        # A moment, and where this log ended then: once it gets there, it had all of that moment.
        self.mark_ms: int | None = None
        self.mark_end = UNKNOWN
        # The store refused to let it in, or the controller took it out: it is not proposed again
        # before, nor waited for. The next time it is barred for `bar_ms`.
        self.barred_until_ms = 0
        self.bar_ms = bar_ms
        # It was taken out while it was pushed to: reports from before that count no more.
        self.must_ask = False

    def start_life(self, broker_epoch: int, *, in_sync: bool) -> None:
        """Another registration: what a former life reported says nothing about this one."""
        self.broker_epoch = broker_epoch
        self.barred_until_ms = 0
        self.must_ask = False
        self.forget_position()
        if not in_sync:
            self.caught_up_ms = None

    def forget_position(self) -> None:
        self.log_end = UNKNOWN
        self.connected = False
        self.mark_ms = None
        self.mark_end = UNKNOWN

    def note_report(self, log_end: int, *, leader_end: int, now_ms: int) -> None:
        self.log_end = log_end
        if log_end >= leader_end:
            self.caught_up_ms = now_ms
        elif self.mark_ms is None:
            self.mark(leader_end, now_ms)
        elif log_end >= self.mark_end:
            # Pushes are pipelined, so under load it is never at our end, and yet keeps up.
            self.caught_up_ms = max(self.mark_ms, self.caught_up_ms or 0)
            self.mark(leader_end, now_ms)

    def mark(self, leader_end: int, now_ms: int) -> None:
        self.mark_ms = now_ms
        self.mark_end = leader_end


class LeaderState:
    """One leadership, from `BecomeLeader` until the next epoch."""

    def __init__(
        self,
        broker_id: BrokerId,
        state: StoredState,
        *,
        settings: ReplicaSettings,
        replicas: tuple[BrokerId, ...],
        min_insync: int,
        log_end: int,
        high_watermark: int,
        syncs_first: bool,
        synced_end: int,
        attempts: int,
        now_ms: int,
    ) -> None:
        self.epoch = state.leader_epoch
        self.epoch_start = log_end
        self.unclean_epoch = state.unclean_epoch
        self.isr = state.isr
        self.elr = state.elr
        self.revision = state.revision
        self.log_end = log_end
        self.high_watermark = high_watermark
        self.pending: PendingIsr | None = None
        # How often the store was asked, in earlier leaderships too: a late answer to one of those
        # must not be taken for an answer to a change of this one.
        self.attempts = attempts
        self._broker_id = broker_id
        self._settings = settings
        self._replicas = replicas
        self._min_insync = min_insync
        self._syncs_first = syncs_first
        self._synced_end = min(synced_end, log_end)
        # Before this nothing is proposed; None: at once.
        self._retry_at_ms: int | None = None
        self._retry_ms = settings.isr_retry_ms
        self._followers: dict[BrokerId, _Follower] = {}
        self._began_ms = now_ms
        self._meet_followers(now_ms)

    # What others may know.

    @property
    def maximal_isr(self) -> tuple[BrokerId, ...]:
        """Every broker that is in the store's ISR, or may be before we hear of it."""
        if self.pending is None:
            return self.isr
        return self._in_replica_order({*self.isr, *self.pending.proposal.isr})

    @property
    def under_min_insync(self) -> bool:
        """Whether the ISR is, or is about to be, too small for anything to be committed."""
        size = len(self.isr)
        if self.pending is not None:
            size = min(size, len(self.pending.proposal.isr))
        return size < self._min_size

    def is_borne_out(self, now_ms: int) -> bool:
        """Whether every replica has shown what it knows, or had the time to.

        Until then this log may be an older copy, and what it does not have may well be there.
        """
        if now_ms - self._began_ms >= self._settings.lag_max_ms:
            return True
        others = (each for each in self._replicas if each != self._broker_id)
        return all(self._followers[each].was_heard for each in others)

    def progress(self) -> tuple[FollowerProgress, ...]:
        return tuple(
            FollowerProgress(
                broker_id=broker,
                broker_epoch=follower.broker_epoch,
                log_end=Offset(follower.log_end),
                caught_up_ms=follower.caught_up_ms,
                in_sync=broker in self.isr,
                connected=follower.connected,
            )
            for broker, follower in self._followers.items()
        )

    def waits_for(self, broker: BrokerId, now_ms: int) -> bool:
        """Whether the high watermark waits for a follower: it is in sync, or about to be."""
        if broker in self.maximal_isr:
            return True
        follower = self._followers.get(broker)
        return follower is not None and self._is_joining(follower, now_ms)

    def next_tick_ms(self) -> int | None:
        """When time alone changes something: a retry is due, or somebody has lagged too long."""
        due: list[int] = []
        if self._retry_at_ms is not None:
            due.append(self._retry_at_ms)
        for broker, follower in self._followers.items():
            if broker in self.isr:
                if self.pending is None and follower.log_end < self.log_end:
                    leaves_ms = self._lags_from_ms(follower)
                    due.append(max(leaves_ms, self._retry_at_ms or leaves_ms))
            elif follower.connected:
                if follower.barred_until_ms:
                    due.append(follower.barred_until_ms)
                if follower.caught_up_ms is not None and follower.log_end < self.log_end:
                    due.append(self._lags_from_ms(follower))
        return min(due, default=None)

    # What happens.

    def start(self, now_ms: int) -> list[Effect]:
        return [*self._advance(now_ms), *self._propose(now_ms)]

    def resume(self, proposal: StoreIsr, now_ms: int) -> None:
        """Lead on from the same state: a change that was asked for before may still be made.

        Until that is known the high watermark waits for everybody whom it may let in.
        """
        self.pending = PendingIsr(proposal=proposal, silent=True)
        self._retry_at_ms = now_ms

    def appended(self, log_end: int, now_ms: int) -> list[Effect]:
        if log_end < self.log_end:
            raise InvariantViolation(
                f"the log of a leader fell from {self.log_end} to {log_end} in epoch {self.epoch}"
            )
        for follower in self._followers.values():
            if follower.log_end >= self.log_end and follower.caught_up_ms is not None:
                # Nobody reports while nothing happens: up to this moment it was caught up.
                follower.caught_up_ms = now_ms
                follower.mark(log_end, now_ms)
        self.log_end = log_end
        return self._advance(now_ms)

    def synced(self, log_end: int, now_ms: int) -> list[Effect]:
        self._synced_end = max(self._synced_end, min(log_end, self.log_end))
        return self._advance(now_ms)

    def reported(self, event: FollowerReported, now_ms: int) -> list[Effect]:
        """A replica reports in the current epoch."""
        if event.broker_id == self._broker_id or event.broker_id not in self._replicas:
            return [self._refusal(event, InvalidRequest.code)]
        follower = self._followers[event.broker_id]
        if event.broker_epoch < follower.broker_epoch:
            return [self._refusal(event, StaleBroker.code)]
        if event.broker_epoch > follower.broker_epoch:
            follower.start_life(event.broker_epoch, in_sync=event.broker_id in self.isr)
        if follower.must_ask and not event.restart:
            return []
        follower.must_ask = False
        follower.was_heard = True
        answer = self._contradiction(event)
        if answer is not None:
            follower.forget_position()
            return [answer]
        effects: list[Effect] = []
        if event.restart or not follower.connected:
            follower.connected = True
            effects.append(
                AllowFollower(
                    broker_id=event.broker_id,
                    broker_epoch=event.broker_epoch,
                    from_offset=event.log_end,
                )
            )
        follower.bar_ms = self._settings.isr_retry_max_ms
        follower.note_report(event.log_end, leader_end=self.log_end, now_ms=now_ms)
        effects += self._advance(now_ms)
        if event.broker_id not in self.isr or event.log_end < self.high_watermark:
            effects += self._propose(now_ms)
        return effects

    def lacks_committed(self, event: FollowerReported) -> str:
        """What a replica knows to be committed and this log does not have; empty: nothing.

        A leader that was elected as it must be has everything committed. So its log is an older
        copy, unless an election that may have lost records took place after what the replica has.
        """
        end = event.end_of_last_epoch
        is_stranger = event.broker_id not in self._replicas or event.last_epoch < 0
        if is_stranger or end == UNKNOWN_END or event.high_watermark <= end.end_offset:
            return ""
        if self.unclean_epoch > event.last_epoch:
            return ""
        return (
            f"broker {event.broker_id} knows that everything below {event.high_watermark} is "
            f"committed and holds up to {event.log_end} of epoch {event.last_epoch}; broker "
            f"{self._broker_id}, which leads in epoch {self.epoch}, holds of that what is below "
            f"{end.end_offset}"
        )

    def lost(self, event: FollowerLost, now_ms: int) -> list[Effect]:
        """Stop pushing. What it has reported it still has, and the ISR stays as it is."""
        follower = self._followers.get(event.broker_id)
        if follower is None or follower.broker_epoch != event.broker_epoch:
            return []
        follower.connected = False
        return self._advance(now_ms)

    def stored(self, attempt: int, revision: int, now_ms: int) -> list[Effect]:
        if self.pending is None or self.pending.proposal.attempt != attempt:
            return []
        proposal = self.pending.proposal
        self._retry_ms = self._settings.isr_retry_ms
        self._retry_at_ms = None
        return self._commit(proposal.isr, proposal.elr, revision, now_ms)

    def refused(self, attempt: int, state: StoredState, now_ms: int) -> list[Effect]:
        """A guard failed, and this broker still leads in this epoch."""
        pending = self.pending
        if pending is None or pending.proposal.attempt != attempt:
            return []
        if state.revision > self.revision:
            # The state was written by another, or by an attempt of ours that we heard nothing of.
            self._retry_ms = self._settings.isr_retry_ms
            self._retry_at_ms = None
            return self._commit(state.isr, state.elr, state.revision, now_ms)
        # A registration is gone, and none ever comes back: no attempt of this change can succeed.
        self._back_off(now_ms)
        for added in pending.proposal.added:
            follower = self._followers.get(added.broker_id)
            if follower is not None and follower.broker_epoch == added.broker_epoch:
                self._bar(follower, now_ms)
        self.pending = None
        return self._advance(now_ms)

    def unknown(self, attempt: int, now_ms: int) -> list[Effect]:
        """The store kept silent: the change may have been made, or may still be made."""
        if self.pending is not None and self.pending.proposal.attempt == attempt:
            self.pending = PendingIsr(proposal=self.pending.proposal, silent=True)
            self._back_off(now_ms)
        return []

    def tick(self, now_ms: int) -> list[Effect]:
        retry = self._retry_at_ms is not None and now_ms >= self._retry_at_ms
        if retry:
            self._retry_at_ms = None
        for broker, follower in self._followers.items():
            if follower.barred_until_ms <= now_ms:
                follower.barred_until_ms = 0
            if broker not in self.isr and self._lags(follower, now_ms):
                follower.caught_up_ms = None
        effects = self._advance(now_ms)
        if self.pending is not None and self.pending.silent and retry:
            return [*effects, self._send(self.pending.proposal)]
        return [*effects, *self._propose(now_ms)]

    def adopt(self, state: StoredState, now_ms: int) -> list[Effect]:
        """The controller changed the ISR: no change that is under way can succeed any more."""
        return self._commit(state.isr, state.elr, state.revision, now_ms)

    def configure(
        self,
        *,
        replicas: tuple[BrokerId, ...],
        min_insync: int,
        syncs_first: bool,
        synced_end: int,
        now_ms: int,
    ) -> list[Effect]:
        """Take over what may change within an epoch besides the ISR."""
        was_under = len(self.isr) < self._min_size
        self._replicas = replicas
        self._min_insync = min_insync
        if syncs_first and not self._syncs_first:
            # What is not on disk yet is being synced; until then nothing more is committed.
            self._synced_end = min(synced_end, self.log_end)
        self._syncs_first = syncs_first
        self._meet_followers(now_ms)
        return [
            *self._say_under_min(was_under),
            *self._advance(now_ms),
            *self._propose(now_ms),
        ]

    def check_invariants(self) -> None:
        """Raise InvariantViolation when a rule of this module does not hold."""
        _require(self._broker_id in self.isr, "the leader is in its ISR")
        _require(not {*self.isr} & {*self.elr}, "no eligible leader is in sync")
        _require(self.high_watermark <= self.log_end, "the high watermark is within the log")
        if self.pending is not None:
            proposal = self.pending.proposal
            _require(self._broker_id in proposal.isr, "the leader stays in its ISR")
            _require(not {*proposal.isr} & {*proposal.elr}, "nobody is in sync and out of it")
            _require(proposal.expected_revision == self.revision, "a change is of this state")
            _require(
                not (len(proposal.isr) >= self._min_size and proposal.elr),
                "a large enough ISR needs no eligible leaders",
            )

    # The rules.

    @property
    def _min_size(self) -> int:
        return min(self._min_insync, len(self._replicas))

    def _advance(self, now_ms: int) -> list[Effect]:
        """Move the high watermark to where the maximal ISR is; it never goes back."""
        if self.elr or self.under_min_insync:
            # As long as the store names eligible leaders they must have all that is committed.
            return []
        end = self._synced_end if self._syncs_first else self.log_end
        if end <= self.high_watermark:
            return []
        isr = self.isr if self.pending is None else self.maximal_isr
        for broker, follower in self._followers.items():
            if follower.log_end < end and (broker in isr or self._is_joining(follower, now_ms)):
                end = follower.log_end
        if end <= self.high_watermark:
            return []
        self.high_watermark = end
        return [MoveHighWatermark(offset=Offset(end))]

    def _is_joining(self, follower: _Follower, now_ms: int) -> bool:
        """Whether the high watermark waits for a follower that is nearly in sync.

        Without this it would run ahead with a busy leader, and the follower, always one round
        trip behind, would never be seen at it.
        """
        return (
            follower.connected
            and follower.caught_up_ms is not None
            and now_ms < self._lags_from_ms(follower)
            and now_ms >= follower.barred_until_ms
        )

    def _propose(self, now_ms: int) -> list[Effect]:
        """Ask for the one change of the ISR that is due, if none is under way."""
        if self.pending is not None or (
            self._retry_at_ms is not None and now_ms < self._retry_at_ms
        ):
            return []
        leaving = [b for b in self.isr if b != self._broker_id and self._must_leave(b, now_ms)]
        enough = len(self.isr) >= self._min_size
        unfit = [b for b in self.elr if enough or self._has_lost_records(b)]
        if leaving or unfit:
            return self._change(isr={*self.isr} - {*leaving}, out={*leaving}, added=())
        joining = tuple(
            AddedReplica(BrokerId(broker), follower.broker_epoch)
            for broker, follower in self._followers.items()
            if broker not in self.isr and self._may_join(follower, now_ms)
        )
        if joining:
            isr = {*self.isr} | {added.broker_id for added in joining}
            return self._change(isr=isr, out=set(), added=joining)
        return []

    def _may_join(self, follower: _Follower, now_ms: int) -> bool:
        return (
            follower.connected
            and follower.log_end >= self.high_watermark
            and follower.log_end >= self.epoch_start
            and not self._lags(follower, now_ms)
            and now_ms >= follower.barred_until_ms
        )

    def _must_leave(self, broker: BrokerId, now_ms: int) -> bool:
        return self._lags(self._followers[broker], now_ms) or self._has_lost_records(broker)

    def _lags(self, follower: _Follower, now_ms: int) -> bool:
        return follower.log_end < self.log_end and now_ms >= self._lags_from_ms(follower)

    def _lags_from_ms(self, follower: _Follower) -> int:
        caught_up_ms = follower.caught_up_ms
        return 0 if caught_up_ms is None else caught_up_ms + self._settings.lag_max_ms + 1

    def _has_lost_records(self, broker: BrokerId) -> bool:
        """Whether it agrees with this log and still lacks committed records.

        Then it must neither lead nor count. The same goes for one that is no replica any more.
        """
        if broker not in self._replicas:
            return True
        follower = self._followers[broker]
        return follower.connected and follower.log_end < self.high_watermark

    def _change(
        self, *, isr: set[BrokerId], out: set[BrokerId], added: tuple[AddedReplica, ...]
    ) -> list[Effect]:
        eligible: set[BrokerId] = set()
        if len(isr) < self._min_size:
            eligible = {b for b in {*self.elr} | out if not self._has_lost_records(b)} - isr
        proposal = StoreIsr(
            attempt=0,
            isr=self._in_replica_order(isr),
            elr=self._in_replica_order(eligible),
            expected_revision=self.revision,
            added=added,
        )
        return [self._send(proposal)]

    def _send(self, proposal: StoreIsr) -> StoreIsr:
        self.attempts += 1
        sent = StoreIsr(
            attempt=self.attempts,
            isr=proposal.isr,
            elr=proposal.elr,
            expected_revision=proposal.expected_revision,
            added=proposal.added,
        )
        self.pending = PendingIsr(proposal=sent)
        return sent

    def _commit(
        self, isr: tuple[BrokerId, ...], elr: tuple[BrokerId, ...], revision: int, now_ms: int
    ) -> list[Effect]:
        was_under = len(self.isr) < self._min_size
        effects: list[Effect] = []
        if self.pending is None or self.pending.proposal.isr != isr:
            # The controller took out brokers that may be dead without our having noticed: the
            # high watermark must not go on waiting for them.
            for broker in sorted({*self._followers}.intersection(self.isr).difference(isr)):
                effects += self._taken_out(broker, now_ms)
        self.isr, self.elr, self.revision = isr, elr, revision
        self.pending = None
        self._meet_followers(now_ms)
        effects += self._say_under_min(was_under)
        effects += self._advance(now_ms)
        effects += self._propose(now_ms)
        return effects

    def _taken_out(self, broker: BrokerId, now_ms: int) -> list[Effect]:
        """The controller took it out, maybe because its disk lost what it had reported.

        So it is invited to ask anew, and joins by what it says then, not by what it said before.
        """
        follower = self._followers[broker]
        follower.caught_up_ms = None
        self._bar(follower, now_ms)
        if not follower.connected:
            return []
        follower.forget_position()
        follower.must_ask = True
        return [
            RefuseFollower(
                broker_id=broker,
                broker_epoch=follower.broker_epoch,
                leader_epoch=LeaderEpoch(self.epoch),
                code=UnknownEpoch.code,
                log_start=Offset(0),
            )
        ]

    def _say_under_min(self, was_under: bool) -> list[Effect]:
        """Those who wait for a commit that may not come soon are told so."""
        if was_under or len(self.isr) >= self._min_size:
            return []
        return [FailPending(code=NotEnoughReplicasAfterAppend.code, fetches=False)]

    def _contradiction(self, event: FollowerReported) -> Effect | None:
        """The answer to a follower whose log cannot be continued from where it ends."""
        end = event.end_of_last_epoch
        if event.last_epoch < 0:
            # Its log is empty, so it contradicts nothing but in its place.
            end = EpochEnd(self.epoch, Offset(self.log_end))
            agrees = event.log_end <= self.log_end
        elif end == UNKNOWN_END:
            # Nobody who follows in this epoch can have records of a later one.
            return self._refusal(event, InvalidRequest.code)
        else:
            agrees = end.epoch == event.last_epoch and event.log_end <= end.end_offset
        if not agrees:
            return TellDiverged(
                broker_id=event.broker_id,
                broker_epoch=event.broker_epoch,
                base_offset=event.log_end,
                leader_end=end,
            )
        if event.log_end < event.log_start:
            return self._refusal(event, OffsetOutOfRange.code)
        return None

    def _refusal(self, event: FollowerReported, code: str) -> RefuseFollower:
        return RefuseFollower(
            broker_id=event.broker_id,
            broker_epoch=event.broker_epoch,
            leader_epoch=LeaderEpoch(self.epoch),
            code=code,
            log_start=event.log_start,
        )

    def _bar(self, follower: _Follower, now_ms: int) -> None:
        """Let some time pass before it is proposed again, more each time until it reports."""
        follower.barred_until_ms = now_ms + follower.bar_ms
        follower.bar_ms = min(follower.bar_ms * 2, self._settings.lag_max_ms)

    def _back_off(self, now_ms: int) -> None:
        self._retry_at_ms = now_ms + self._retry_ms
        self._retry_ms = min(self._retry_ms * 2, self._settings.isr_retry_max_ms)

    def _meet_followers(self, now_ms: int) -> None:
        """Keep one `_Follower` for each replica, and for each member that is none any more."""
        met: dict[BrokerId, _Follower] = {}
        for broker in self._in_replica_order({*self._replicas, *self.isr, *self.elr}):
            if broker == self._broker_id:
                continue
            follower = self._followers.get(broker) or _Follower(self._settings.isr_retry_max_ms)
            met[broker] = follower
            if broker not in self.isr:
                if follower.log_end < self.high_watermark:
                    # The high watermark does not wait for one who is so far behind.
                    follower.caught_up_ms = None
            elif follower.caught_up_ms is None:
                # Whoever is in sync gets the whole time to show it.
                follower.caught_up_ms = now_ms
        self._followers = met

    def _in_replica_order(self, brokers: Iterable[BrokerId]) -> tuple[BrokerId, ...]:
        wanted = {*brokers}
        known = [broker for broker in self._replicas if broker in wanted]
        return (*known, *sorted(wanted.difference(known)))


def _require(holds: bool, rule: str) -> None:
    if not holds:
        raise InvariantViolation(f"broken: {rule}")
