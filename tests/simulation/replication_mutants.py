"""Rules of replication, each broken on purpose: the model must notice every one of them.

A mutant patches one rule of the shipped machines (or leaves out a guard around them). It is named
after the rule that it breaks, and says which rows of the fault table that rule stands for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from simulation.replication_parts import Scenario, scenario_of
from simulation.replication_scripts import (
    joiner_that_died,
    late_report_of_a_former_leadership,
    late_report_of_a_former_life,
    leader_without_the_high_watermark,
    push_of_a_former_leadership,
    silent_store,
)
from tailrace.epochs import EpochHistory, agreed_end
from tailrace.model import LeaderEpoch, Offset
from tailrace.replication import follower as follower_module
from tailrace.replication.events import (
    Effect,
    FollowerReported,
    MoveHighWatermark,
    Ordered,
    PushDiverged,
    Report,
    StoredState,
    TruncateLog,
)
from tailrace.replication.follower import FollowerState, Phase
from tailrace.replication.leader import LeaderState, PendingIsr, _Follower
from tailrace.replication.partition import PartitionReplica


@dataclass(frozen=True)
class Mutant:
    """One broken rule."""

    name: str
    faults: str
    apply: Callable[[pytest.MonkeyPatch], None] = lambda patch: None
    # In which worlds it shows: those of the seeds, unless said otherwise.
    scenario: Callable[[int], Scenario] = scenario_of
    script: Callable[[Scenario], None] | None = None


def _truncate_to_high_watermark(patch: pytest.MonkeyPatch) -> None:
    """The follower cuts its log at its high watermark before it asks (Kafka before KIP-101)."""

    def start(self: FollowerState, now_ms: int) -> list[Effect]:
        if self.high_watermark < self.log_end:
            self.phase = Phase.CUTTING
            return [TruncateLog(offset=Offset(self.high_watermark), below_high_watermark=False)]
        return self._ask(now_ms)

    patch.setattr(FollowerState, "start", start)


def _settle_at_first_answer(patch: pytest.MonkeyPatch) -> None:
    """One answer settles it: cut at the end that the leader names, whatever epoch it is of."""

    def hasty(mine: EpochHistory, *, log_end: int, leader_epoch: int, leader_end: int) -> object:
        agreement = agreed_end(
            mine, log_end=log_end, leader_epoch=leader_epoch, leader_end=leader_end
        )
        if agreement is None:
            return None
        return agreement._replace(offset=Offset(min(leader_end, log_end)))

    patch.setattr(follower_module, "agreed_end", hasty)


def _append_what_contradicts(patch: pytest.MonkeyPatch) -> None:
    """The leader does not compare epochs: it pushes from wherever the follower is."""

    def contradiction(self: LeaderState, event: FollowerReported) -> Effect | None:
        del self, event
        return None

    patch.setattr(LeaderState, "_contradiction", contradiction)


def _obey_stale_divergence(patch: pytest.MonkeyPatch) -> None:
    """An answer to an old question cuts a log that has been agreed on since."""
    diverged = FollowerState.diverged

    def obey(self: FollowerState, event: PushDiverged) -> list[Effect]:
        if event.leader_epoch == self.epoch and self.phase is not Phase.CUTTING:
            self.phase, self.agreed = Phase.ASKING, False
            return diverged(self, replace(event, base_offset=Offset(self.log_end)))
        return []

    patch.setattr(FollowerState, "diverged", obey)


def _join(self: LeaderState, follower: _Follower, *, at_hw: bool, at_start: bool) -> bool:
    return (
        follower.connected
        and (not at_hw or follower.log_end >= self.high_watermark)
        and (not at_start or follower.log_end >= self.epoch_start)
    )


def _join_below_epoch_start(patch: pytest.MonkeyPatch) -> None:
    """Whoever reached the (perhaps too low) high watermark of a new leader joins."""
    patch.setattr(
        LeaderState, "_may_join", lambda self, f, now_ms: _join(self, f, at_hw=True, at_start=False)
    )


def _join_below_high_watermark(patch: pytest.MonkeyPatch) -> None:
    """Whoever reached the start of the epoch joins, the high watermark being further on."""
    patch.setattr(
        LeaderState, "_may_join", lambda self, f, now_ms: _join(self, f, at_hw=False, at_start=True)
    )


def _commit_without_joiner(patch: pytest.MonkeyPatch) -> None:
    """The high watermark looks at the stored ISR only, not at the maximal one."""
    patch.setattr(LeaderState, "maximal_isr", property(lambda self: self.isr))
    patch.setattr(LeaderState, "_is_joining", lambda self, follower, now_ms: False)


def _commit_by_smaller_isr(patch: pytest.MonkeyPatch) -> None:
    """While a follower leaves, the high watermark does not wait for it any more."""

    def smaller(self: LeaderState) -> tuple[int, ...]:
        return self.isr if self.pending is None else self.pending.proposal.isr

    patch.setattr(LeaderState, "maximal_isr", property(smaller))


def _commit_below_min_insync(patch: pytest.MonkeyPatch) -> None:
    """The high watermark goes on below `min.insync.replicas`, whatever the ELR believes."""
    advance = LeaderState._advance

    def careless(self: LeaderState, now_ms: int) -> list[Effect]:
        elr, least = self.elr, self._min_insync
        self.elr, self._min_insync = (), 1
        try:
            return advance(self, now_ms)
        finally:
            self.elr, self._min_insync = elr, least

    patch.setattr(LeaderState, "_advance", careless)


def _commit_at_once(patch: pytest.MonkeyPatch) -> None:
    """A new leader takes its whole log for committed."""
    start = LeaderState.start

    def eager(self: LeaderState, now_ms: int) -> list[Effect]:
        self.high_watermark = self.log_end
        return [MoveHighWatermark(offset=Offset(self.log_end)), *start(self, now_ms)]

    patch.setattr(LeaderState, "start", eager)


def _keep_eligible_forever(patch: pytest.MonkeyPatch) -> None:
    """Those who left stay eligible leaders although the ISR is large enough to commit."""
    change = LeaderState._change
    advance = LeaderState._advance

    def keep(self: LeaderState, **changes: object) -> list[Effect]:
        least = self._min_insync
        self._min_insync = len(self._replicas) + 1
        self._replicas = (*self._replicas, *self._replicas)
        try:
            return change(self, **changes)  # type: ignore[arg-type]
        finally:
            self._min_insync = least
            self._replicas = self._replicas[: len(self._replicas) // 2]

    def anyway(self: LeaderState, now_ms: int) -> list[Effect]:
        elr, self.elr = self.elr, ()
        try:
            return advance(self, now_ms)
        finally:
            self.elr = elr

    patch.setattr(LeaderState, "_change", keep)
    patch.setattr(LeaderState, "_advance", anyway)
    patch.setattr(LeaderState, "check_invariants", lambda self: None)


def _silence_is_refusal(patch: pytest.MonkeyPatch) -> None:
    """A change that the store did not answer to is forgotten as if it had been refused."""

    def forget(self: LeaderState, attempt: int, now_ms: int) -> list[Effect]:
        if self.pending is not None and self.pending.proposal.attempt == attempt:
            self.pending = None
            self._back_off(now_ms)
        return self._advance(now_ms)

    patch.setattr(LeaderState, "unknown", forget)


def _unchanged_state_is_refusal(patch: pytest.MonkeyPatch) -> None:
    """A change of unknown outcome is forgotten after one reading that shows the old state."""
    unknown = LeaderState.unknown

    def read_once(self: LeaderState, attempt: int, now_ms: int) -> list[Effect]:
        unknown(self, attempt, now_ms)
        return []

    def drop(self: LeaderState, now_ms: int) -> list[Effect]:
        pending: PendingIsr | None = self.pending
        if pending is not None and pending.silent:
            self.pending = None
        return [*self._advance(now_ms), *self._propose(now_ms)]

    patch.setattr(LeaderState, "unknown", read_once)
    patch.setattr(LeaderState, "tick", drop)


def _former_life_counts(patch: pytest.MonkeyPatch) -> None:
    """What a broker reported before it restarted counts for its new life (KIP-903)."""

    def start_life(self: _Follower, broker_epoch: int, *, in_sync: bool) -> None:
        del in_sync
        self.broker_epoch = broker_epoch

    def reported(self: LeaderState, event: FollowerReported, now_ms: int) -> list[Effect]:
        follower = self._followers.get(event.broker_id)
        if follower is None:
            return []
        if event.broker_epoch < follower.broker_epoch:
            # The late report of the former life is booked on the new one.
            event = replace(event, broker_epoch=follower.broker_epoch)
        return original(self, event, now_ms)

    original = LeaderState.reported
    patch.setattr(_Follower, "start_life", start_life)
    patch.setattr(LeaderState, "reported", reported)


def _reports_of_any_epoch(patch: pytest.MonkeyPatch) -> None:
    """A leader takes reports that were meant for another leadership."""
    reported = PartitionReplica._reported

    def take(self: PartitionReplica, event: FollowerReported, now_ms: int) -> list[Effect]:
        return reported(self, replace(event, leader_epoch=self.leader_epoch), now_ms)

    patch.setattr(PartitionReplica, "_reported", take)


def _acknowledge_to_former_leader(patch: pytest.MonkeyPatch) -> None:
    """A follower goes back to an older epoch when an old order comes late."""
    order = PartitionReplica._order

    def obey(self: PartitionReplica, event: Ordered, now_ms: int) -> list[Effect]:
        old = (event.state.leader_epoch, event.state.revision)
        if old < (self.leader_epoch, self.revision):
            self._leave_role()
            self._state = replace(self._state, leader_epoch=LeaderEpoch(-1), revision=0)
        return order(self, event, now_ms)

    patch.setattr(PartitionReplica, "_order", obey)


def _deposed_leader_goes_on(patch: pytest.MonkeyPatch) -> None:
    """A leader that reads of a newer epoch takes the ISR of it for its own."""

    def refused(self: LeaderState, attempt: int, state: StoredState, now_ms: int) -> list[Effect]:
        del attempt
        isr = (self._broker_id, *(b for b in state.isr if b != self._broker_id))
        elr = tuple(b for b in state.elr if b != self._broker_id)
        return self._commit(isr, elr, state.revision, now_ms)

    patch.setattr(PartitionReplica, "_is_deposed_by", lambda self, state: False)
    patch.setattr(LeaderState, "refused", refused)
    patch.setattr(LeaderState, "check_invariants", lambda self: None)


def _late_answer_counts(patch: pytest.MonkeyPatch) -> None:
    """The answer to one change is taken for that to the change now under way."""
    stored, refused = LeaderState.stored, LeaderState.refused

    def any_stored(self: LeaderState, attempt: int, revision: int, now_ms: int) -> list[Effect]:
        if self.pending is not None:
            attempt = self.pending.proposal.attempt
        return stored(self, attempt, revision, now_ms)

    def any_refused(
        self: LeaderState, attempt: int, state: StoredState, now_ms: int
    ) -> list[Effect]:
        if self.pending is not None:
            attempt = self.pending.proposal.attempt
        return refused(self, attempt, state, now_ms)

    patch.setattr(LeaderState, "stored", any_stored)
    patch.setattr(LeaderState, "refused", any_refused)


def _report_before_sync(patch: pytest.MonkeyPatch) -> None:
    """With flush=ack a follower acknowledges what only its page cache holds."""
    report = FollowerState._report

    def early(self: FollowerState, *, restart: bool) -> Report:
        return replace(report(self, restart=restart), log_end=Offset(self.log_end))

    def appended(self: FollowerState, log_end: int, last_epoch: int) -> list[Effect]:
        self.log_end, self._last_epoch = log_end, last_epoch
        return [self._report(restart=False)]

    patch.setattr(FollowerState, "_report", early)
    patch.setattr(FollowerState, "appended", appended)


def _leader_counts_unsynced(patch: pytest.MonkeyPatch) -> None:
    """With flush=ack the leader counts what only its own page cache holds."""
    advance = LeaderState._advance

    def early(self: LeaderState, now_ms: int) -> list[Effect]:
        self._synced_end = self.log_end
        return advance(self, now_ms)

    patch.setattr(LeaderState, "_advance", early)


def _high_watermark_falls(patch: pytest.MonkeyPatch) -> None:
    """The high watermark of a leader follows whoever is furthest behind."""
    reported = LeaderState.reported

    def fall(self: LeaderState, event: FollowerReported, now_ms: int) -> list[Effect]:
        effects = reported(self, event, now_ms)
        if event.broker_id in self.isr:
            self.high_watermark = min(self.high_watermark, event.log_end)
        return effects

    patch.setattr(LeaderState, "reported", fall)


def _always(**changes: object) -> Callable[[int], Scenario]:
    def scenario(seed: int) -> Scenario:
        return replace(scenario_of(seed), **changes)  # type: ignore[arg-type]

    return scenario


def _fixed(**changes: object) -> Callable[[int], Scenario]:
    return lambda _: Scenario(**changes)  # type: ignore[arg-type]


MUTANTS: tuple[Mutant, ...] = (
    Mutant("a follower truncates to its high watermark", "F1", _truncate_to_high_watermark),
    Mutant("the first answer settles a divergence", "F2", _settle_at_first_answer),
    Mutant("the leader does not compare epochs", "F1 F2", _append_what_contradicts),
    Mutant("a stale answer cuts the log", "F2", _obey_stale_divergence, _always(chaos=True)),
    Mutant("join below the start of the epoch", "F1 F3", _join_below_epoch_start),
    Mutant("join below the high watermark", "F3", _join_below_high_watermark),
    Mutant("commit without the one who joins", "F11", _commit_without_joiner),
    Mutant("commit without the one who leaves", "F11", _commit_by_smaller_isr),
    Mutant("commit below min.insync.replicas", "F12 F13", _commit_below_min_insync),
    Mutant("a new leader commits its whole log", "F1", _commit_at_once),
    Mutant("eligible leaders are never struck off", "F12", _keep_eligible_forever),
    Mutant("old orders are obeyed", "F6 F8", _acknowledge_to_former_leader),
    Mutant(
        "a deposed leader goes on",
        "F6 F11",
        _deposed_leader_goes_on,
        _always(min_insync=1, mood="slow orders"),
    ),
    Mutant(
        "a late answer of the store counts",
        "F11",
        _late_answer_counts,
        _always(mood="slow store"),
    ),
    Mutant(
        "a follower reports before it synced",
        "F14",
        _report_before_sync,
        _always(syncs_first=True),
    ),
    Mutant(
        "the leader counts what is not synced",
        "F14",
        _leader_counts_unsynced,
        _always(syncs_first=True),
    ),
    Mutant("the high watermark falls", "F4", _high_watermark_falls),
    Mutant(
        "a restarted leader keeps its epoch",
        "F14",
        scenario=_always(new_epoch_for_new_life=False, syncs_first=True),
    ),
    Mutant(
        "a lost tail goes unnoticed",
        "F12 F14",
        scenario=_always(distrusts_lost_tails=False, syncs_first=False),
    ),
    # Those that chance meets too seldom have a script of their own.
    Mutant(
        "a follower truncates to its high watermark, scripted",
        "F1",
        _truncate_to_high_watermark,
        _fixed(min_insync=1),
        leader_without_the_high_watermark,
    ),
    Mutant(
        "reports of a former life count",
        "F9",
        _former_life_counts,
        _fixed(min_insync=1, chaos=True),
        late_report_of_a_former_life,
    ),
    Mutant(
        "reports of any epoch count",
        "F2 F5",
        _reports_of_any_epoch,
        script=late_report_of_a_former_leadership,
    ),
    Mutant(
        "pushes go on into the next epoch",
        "F2",
        scenario=_fixed(forgets_pushes=False),
        script=push_of_a_former_leadership,
    ),
    Mutant(
        "silence of the store is a refusal", "F11 F18", _silence_is_refusal, script=silent_store
    ),
    Mutant(
        "an unchanged state is a refusal",
        "F11 F18",
        _unchanged_state_is_refusal,
        script=silent_store,
    ),
    Mutant(
        "the registration of a joiner is not guarded",
        "F3 F9 F10",
        scenario=_fixed(guards_followers=False),
        script=joiner_that_died,
    ),
)
