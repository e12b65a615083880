"""A follower's side of a partition: what to append, where to cut, what to report.

Pure: time comes in with each call, what is to be done goes out as effects. It knows nothing of
orders and roles: `tailrace.replication.partition` makes a new `FollowerState` for every epoch.

A follower asks (reports where its log ends, and in which epoch), and the leader either pushes from
there or says where an epoch ended, until both agree. Invariants:
- Once they have agreed in an epoch, this log is a piece of the leader's for as long as the epoch
  lasts, because neither is cut then: an answer to an older question is never obeyed.
- The log is cut only where the histories of epochs part, never at the high watermark, and below it
  only after an unclean election that is on record. Its beginning goes only for a known cause.
- The high watermark is never above what both have agreed on.
- Every report names the leader and the epoch that it is for: one who has learned of a newer epoch
  acknowledges nothing to the leader of an older one.
"""

from __future__ import annotations

from enum import Enum

from tailrace.epochs import EpochHistory, agreed_end
from tailrace.errors import OffsetOutOfRange, UnknownEpoch
from tailrace.model import BrokerId, LeaderEpoch, LogStartCause, Offset
from tailrace.replication.events import (
    AdvanceLogStart,
    AppendToLog,
    Effect,
    KeepRecords,
    MoveHighWatermark,
    PushDiverged,
    Pushed,
    PushRefused,
    Report,
    StartOverAt,
    TruncateLog,
)
from tailrace.replication.leader import ReplicaSettings


class Phase(Enum):
    """Where a follower is in its talk with the leader."""

    ASKING = "it has reported and waits for the leader's answer"
    CUTTING = "its log is being cut"
    FOLLOWING = "it is being pushed to"


class FollowerState:
    """One epoch of following, from `BecomeFollower` until the next order."""

    def __init__(
        self,
        *,
        leader: BrokerId,
        epoch: LeaderEpoch,
        settings: ReplicaSettings,
        log_end: int,
        last_epoch: int,
        log_start: int,
        high_watermark: int,
        syncs_first: bool,
        synced_end: int,
        unclean_epoch: int = 0,
    ) -> None:
        self.unclean_epoch = unclean_epoch
        self._cause: LogStartCause | None = None
        # What was said once need not be said again in this epoch.
        self._told: set[str] = set()
        self.leader = leader
        self.epoch = epoch
        self.log_end = log_end
        self.high_watermark = high_watermark
        self.phase = Phase.ASKING
        # This log and the leader's agree, as far as this one goes.
        self.agreed = False
        self._settings = settings
        self._last_epoch = last_epoch
        self._log_start = log_start
        self._synced_end = min(synced_end, log_end)
        self._syncs_first = syncs_first
        self._leader_high_watermark = 0
        self._ask_again_ms = 0
        self._wait_ms = settings.report_retry_ms

    def next_tick_ms(self) -> int | None:
        """When to ask again, should no answer come."""
        return self._ask_again_ms if self.phase is Phase.ASKING else None

    # What happens.

    def start(self, now_ms: int) -> list[Effect]:
        return self._ask(now_ms)

    def reached(self, now_ms: int) -> list[Effect]:
        if self.phase is Phase.CUTTING:
            return []
        self._wait_ms = self._settings.report_retry_ms
        return self._ask(now_ms)

    def tick(self, now_ms: int) -> list[Effect]:
        if self.phase is Phase.ASKING and now_ms >= self._ask_again_ms:
            return self._ask(now_ms)
        return []

    def pushed(self, event: Pushed, now_ms: int) -> list[Effect]:
        if event.leader_epoch != self.epoch or self.phase is Phase.CUTTING:
            return []
        continues = event.base_offset == self.log_end
        if continues:
            # The leader pushes only to those that it agrees with.
            self.agreed = True
            self.phase = Phase.FOLLOWING
            self._wait_ms = self._settings.report_retry_ms
        effects: list[Effect] = []
        if self.agreed:
            self._leader_high_watermark = max(self._leader_high_watermark, event.high_watermark)
            effects += self._raise_high_watermark()
            self._learn_cause(event.start_cause)
            effects += self._follow_log_start(event.log_start)
        if continues:
            if event.size > 0:
                effects.append(AppendToLog())
        elif self.phase is Phase.FOLLOWING:
            effects += self._misfit(event, now_ms)
        return effects

    def diverged(self, event: PushDiverged) -> list[Effect]:
        is_asked = self.phase is Phase.ASKING and not self.agreed
        if (
            event.leader_epoch != self.epoch
            or self.phase is Phase.CUTTING
            or not (is_asked or event.merged)
            or event.base_offset != self.log_end
        ):
            # The answer to a question that is settled or was asked with another log.
            return []
        agreement = agreed_end(
            # An epoch without records, begun by a leadership of our own, says nothing here.
            EpochHistory(event.epochs if self._last_epoch >= 0 else ()),
            log_end=self.log_end,
            leader_epoch=event.leader_end.epoch,
            leader_end=event.leader_end.end_offset,
        )
        if agreement is None or agreement.offset >= self.log_end:
            # Nothing can be concluded: the next question may get a better answer.
            return []
        below = agreement.offset < self.high_watermark
        if below and not (event.merged and event.compacted) and not self._is_unclean():
            return self._keep(
                f"the leader, broker {self.leader} in epoch {self.epoch}, agrees with this log up "
                f"to {agreement.offset}; {self.high_watermark} is known to be committed here, and "
                "no unclean election explains it",
                conflicts=True,
            )
        self.phase = Phase.CUTTING
        return [
            TruncateLog(offset=agreement.offset, below_high_watermark=below, merged=event.merged)
        ]

    def refused(self, event: PushRefused, now_ms: int) -> list[Effect]:
        if self.phase is Phase.CUTTING:
            return []
        ours = event.leader_epoch == self.epoch
        if ours and event.code == OffsetOutOfRange.code and event.log_start > self.log_end:
            self._learn_cause(event.start_cause)
            if self._last_epoch >= 0 and not self._is_given_up(event.log_start):
                self._ask_later(now_ms)
                return self._keep(
                    f"the log of the leader, broker {self.leader}, begins at {event.log_start} "
                    f"without a cause, after the end of this one at {self.log_end}",
                    conflicts=True,
                )
            self.phase = Phase.CUTTING
            return [StartOverAt(offset=event.log_start, cause=self._cause)]
        if ours and event.code == UnknownEpoch.code:
            # It did not know its own epoch when we reported, and now it does.
            return self._ask(now_ms)
        return self._ask_later(now_ms)

    def appended(self, log_end: int, last_epoch: int) -> list[Effect]:
        self.log_end = log_end
        self._last_epoch = last_epoch
        effects = self._raise_high_watermark() if self.agreed else []
        return effects if self._syncs_first else [*effects, self._report(restart=False)]

    def synced(self, log_end: int, now_ms: int) -> list[Effect]:
        end = min(log_end, self.log_end)
        if not self._syncs_first or end <= self._synced_end or self.phase is Phase.CUTTING:
            return []
        self._synced_end = end
        return self._ask(now_ms) if self.phase is Phase.ASKING else [self._report(restart=False)]

    def append_failed(self, now_ms: int) -> list[Effect]:
        return self._ask_later(now_ms)

    def truncated(self, log_end: int, last_epoch: int, log_start: int, now_ms: int) -> list[Effect]:
        self.log_end = self._synced_end = log_end
        self._last_epoch = last_epoch
        self._log_start = log_start
        effects: list[Effect] = []
        high_watermark = min(max(self.high_watermark, log_start), log_end)
        if high_watermark != self.high_watermark:
            self.high_watermark = high_watermark
            effects.append(MoveHighWatermark(offset=Offset(high_watermark)))
        return [*effects, *self._ask(now_ms)]

    def configure(self, *, syncs_first: bool, synced_end: int) -> None:
        if syncs_first and not self._syncs_first:
            # What is not on disk yet is being synced; until then nothing more is reported.
            self._synced_end = min(synced_end, self.log_end)
        self._syncs_first = syncs_first

    # The rules.

    def _raise_high_watermark(self) -> list[Effect]:
        reachable = min(self.log_end, self._leader_high_watermark)
        if reachable <= self.high_watermark:
            return []
        self.high_watermark = reachable
        return [MoveHighWatermark(offset=Offset(reachable))]

    def _follow_log_start(self, leader_log_start: int) -> list[Effect]:
        if not self._log_start < leader_log_start <= self.high_watermark:
            return []
        cause = self._cause
        if cause is None or not self._is_given_up(leader_log_start):
            return self._keep(
                f"the log of the leader, broker {self.leader}, begins at {leader_log_start} "
                f"without a cause; this one goes on beginning at {self._log_start}",
                conflicts=False,
            )
        self._log_start = leader_log_start
        return [AdvanceLogStart(offset=Offset(leader_log_start), cause=cause)]

    def _learn_cause(self, cause: LogStartCause | None) -> None:
        if cause is not None and (self._cause is None or cause.offset > self._cause.offset):
            self._cause = cause

    def _is_given_up(self, log_start: int) -> bool:
        return self._cause is not None and self._cause.offset >= log_start

    def _is_unclean(self) -> bool:
        """Whether an election that may have lost records took place after what this log has."""
        return self.unclean_epoch > self._last_epoch

    def _keep(self, why: str, *, conflicts: bool) -> list[Effect]:
        if why in self._told:
            return []
        self._told.add(why)
        return [KeepRecords(why=why, conflicts=conflicts)]

    def _misfit(self, event: Pushed, now_ms: int) -> list[Effect]:
        """A push that does not continue the log is dropped; ask only when it tells of a gap."""
        if event.base_offset > self.log_end:
            # What is under way after it does not fit either, so this is asked once.
            return self._ask(now_ms)
        # We have at least its beginning, from before we asked the last time. To ask at once would
        # make the leader push the same again, and so on; what comes next usually fits.
        return self._ask_later(now_ms) if event.size > 0 else []

    def _ask(self, now_ms: int) -> list[Effect]:
        self._ask_later(now_ms)
        self._wait_ms = min(self._wait_ms * 2, self._settings.report_retry_max_ms)
        if self._syncs_first and self._synced_end < self.log_end:
            # The place to be pushed to from is an acknowledgement too: `synced` will ask.
            return []
        return [self._report(restart=True)]

    def _ask_later(self, now_ms: int) -> list[Effect]:
        self.phase = Phase.ASKING
        self._ask_again_ms = now_ms + self._wait_ms
        return []

    def _report(self, *, restart: bool) -> Report:
        return Report(
            leader=self.leader,
            leader_epoch=self.epoch,
            log_end=Offset(self._synced_end if self._syncs_first else self.log_end),
            last_epoch=LeaderEpoch(self._last_epoch),
            restart=restart,
            high_watermark=self.high_watermark,
        )
