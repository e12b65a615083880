"""One drill from beginning to end: what to do next, and the report. Pure: events and time in.

    checking → warming → striking → [holding] → recovering → settling → counting → done

checking: a cluster that is not whole is left alone. warming: a probe writes and reads until it is
known what is usual. striking: the one thing that is broken. holding: how long it stays broken, for
what does not heal by itself. recovering: until the cluster says that it is whole and everything
struck has been replaced. settling: it stays so. counting: every record of the probe is looked for.
Whatever ends a drill early, what was stopped or cordoned is put right first (`Restore`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from tailrace_operator.ledger import Figures
from tailrace_operator.rollout import Health, Pod
from tailrace_operator.schedules import next_after, read_schedule
from tailrace_operator.spec import DrillSpec

# How long a probe may take to have its first records acknowledged.
WARM_MAX_MS: Final = 60_000
SETTLE_MS: Final = 3_000
# How long a cluster may leave questions without an answer before nothing is begun for it.
UNHEARD_MAX_MS: Final = 20_000
COUNT_MAX_MS: Final = 180_000
# A scheduled drill that is later than this, since the operator was away, waits for its next turn.
LATE_MAX_MS: Final = 600_000
TIMELINE_MAX: Final = 60
# These stay broken until they are put right.
HELD: Final = frozenset({"stop-etcd", "drain-node"})


class Phase(StrEnum):
    CHECKING = "Checking"
    WARMING = "Warming"
    STRIKING = "Striking"
    HOLDING = "Holding"
    RECOVERING = "Recovering"
    SETTLING = "Settling"
    COUNTING = "Counting"
    DONE = "Done"


class Verdict(StrEnum):
    PASSED = "Passed"
    FAILED = "Failed"
    ABORTED = "Aborted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Looked:
    """How the cluster is and how the probe fares, some times a second."""

    health: Health
    # Why the cluster is not as it should be, in words; empty: it is.
    trouble: str
    figures: Figures


@dataclass(frozen=True, slots=True)
class Struck:
    what: str


@dataclass(frozen=True, slots=True)
class StrikeFailed:
    why: str


@dataclass(frozen=True, slots=True)
class Counted:
    figures: Figures


@dataclass(frozen=True, slots=True)
class Stopped:
    """Nobody wants it any more, or it cannot go on."""

    why: str


Event = Looked | Struck | StrikeFailed | Counted | Stopped


@dataclass(frozen=True, slots=True)
class StartProbe:
    """Write and read from now on."""


@dataclass(frozen=True, slots=True)
class Strike:
    """Break it."""


@dataclass(frozen=True, slots=True)
class Restore:
    """Put right what was stopped or cordoned; again and again does no harm."""


@dataclass(frozen=True, slots=True)
class CountRecords:
    """End the probe, and look for all of its records."""


@dataclass(frozen=True, slots=True)
class Finish:
    report: Report


Effect = StartProbe | Strike | Restore | CountRecords | Finish


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What stands in the status."""

    verdict: Verdict
    message: str
    figures: Figures
    isr_recovery_ms: int | None
    took_ms: int
    timeline: tuple[tuple[int, str], ...]

    def as_dict(self) -> dict[str, Any]:
        figures = self.figures
        known: Mapping[str, Any] = {
            "verdict": self.verdict.value,
            "message": self.message,
            "unavailableMs": figures.unavailable_ms,
            "unreadMs": figures.unread_ms,
            "acknowledged": figures.acknowledged,
            "failed": figures.failed,
            "lost": figures.lost if figures.counted else None,
            "duplicated": figures.duplicated if figures.counted else None,
            "readAgain": figures.repeated,
            "isrRecoveryMs": self.isr_recovery_ms,
            "tookMs": self.took_ms,
            "timeline": [{"atMs": at_ms, "what": what} for at_ms, what in self.timeline],
        }
        return {name: value for name, value in known.items() if value is not None}


@dataclass(slots=True)
class Drill:
    """The machine; `handle` is its one door."""

    spec: DrillSpec
    began_ms: int
    phase: Phase = Phase.CHECKING
    struck_ms: int | None = None
    _since_ms: int = 0
    _heard_ms: int = 0
    _recovered_ms: int | None = None
    _figures: Figures = field(default_factory=Figures)
    _failure: str = ""
    _timeline: list[tuple[int, str]] = field(default_factory=list)
    _health: Health | None = None

    def __post_init__(self) -> None:
        self._since_ms = self._heard_ms = self.began_ms

    @property
    def waits_since_ms(self) -> int:
        """From when on the probe's waits count: before the strike they only say what is usual."""
        return self.began_ms if self.struck_ms is None else self.struck_ms

    def handle(self, event: Event, *, now_ms: int) -> list[Effect]:
        if self.phase is Phase.DONE:
            return []
        match event:
            case Looked():
                return self._looked(event, now_ms)
            case Struck(what):
                self._note(what, now_ms)
                held = self.spec.kind in HELD
                self._enter(Phase.HOLDING if held else Phase.RECOVERING, now_ms)
                return []
            case StrikeFailed(why):
                return self._end(Verdict.ABORTED, why, now_ms)
            case Counted(figures):
                self._figures = figures
                return self._judge(now_ms)
            case Stopped(why):
                return self._end(Verdict.ABORTED, why, now_ms)

    # ------------------------------------------------------------------------------- looking

    def _looked(self, seen: Looked, now_ms: int) -> list[Effect]:
        self._figures = seen.figures
        self._note_changes(seen.health, now_ms)
        match self.phase:
            case Phase.CHECKING:
                return self._checking(seen, now_ms)
            case Phase.WARMING:
                return self._warming(seen, now_ms)
            case Phase.HOLDING:
                return self._holding(now_ms)
            case Phase.RECOVERING:
                return self._recovering(seen, now_ms)
            case Phase.SETTLING:
                return self._settling(seen, now_ms)
            case Phase.COUNTING if self._spent_ms(now_ms) > COUNT_MAX_MS:
                return self._end(Verdict.FAILED, "the records could not be counted", now_ms)
            case _:
                return []

    def _checking(self, seen: Looked, now_ms: int) -> list[Effect]:
        if self._is_slow(seen, now_ms):
            return []
        if seen.trouble:
            return self._end(Verdict.ABORTED, f"nothing was done: {seen.trouble}", now_ms)
        self._enter(Phase.WARMING, now_ms)
        return [StartProbe()]

    def _is_slow(self, seen: Looked, now_ms: int) -> bool:
        """One question without an answer is no proof that something is wrong."""
        if seen.health.reachable:
            self._heard_ms = now_ms
        return not seen.health.reachable and now_ms - self._heard_ms < UNHEARD_MAX_MS

    def _warming(self, seen: Looked, now_ms: int) -> list[Effect]:
        if self._is_slow(seen, now_ms):
            return []
        if seen.trouble:
            return self._end(Verdict.ABORTED, f"nothing was done: {seen.trouble}", now_ms)
        spent = self._spent_ms(now_ms)
        if spent >= self.spec.warmup_s * 1000 and seen.figures.read:
            self._note(f"{seen.figures.acknowledged} records written so far", now_ms)
            self._enter(Phase.STRIKING, now_ms)
            self.struck_ms = now_ms
            return [Strike()]
        if spent > WARM_MAX_MS + self.spec.warmup_s * 1000:
            told = "; ".join(seen.figures.problems) or "nobody says why"
            return self._end(
                Verdict.ABORTED, f"nothing was done: the probe reads nothing: {told}", now_ms
            )
        return []

    def _holding(self, now_ms: int) -> list[Effect]:
        if self._spent_ms(now_ms) < self.spec.hold_s * 1000:
            return []
        self._note("put right", now_ms)
        self._enter(Phase.RECOVERING, now_ms)
        return [Restore()]

    def _recovering(self, seen: Looked, now_ms: int) -> list[Effect]:
        if not seen.trouble:
            self._recovered_ms = now_ms
            self._note("whole again", now_ms)
            self._enter(Phase.SETTLING, now_ms)
            return []
        assert self.struck_ms is not None
        if now_ms - self.struck_ms > self.spec.timeout_s * 1000:
            self._failure = f"not whole again within {self.spec.timeout_s} s: {seen.trouble}"
            return self._count(now_ms)
        return []

    def _settling(self, seen: Looked, now_ms: int) -> list[Effect]:
        if seen.trouble:
            self._note(f"not whole again after all: {seen.trouble}", now_ms)
            self._recovered_ms = None
            self._enter(Phase.RECOVERING, now_ms)
            return []
        return self._count(now_ms) if self._spent_ms(now_ms) >= SETTLE_MS else []

    # ------------------------------------------------------------------------------- ending

    def _count(self, now_ms: int) -> list[Effect]:
        self._enter(Phase.COUNTING, now_ms)
        return [Restore(), CountRecords()]

    def _judge(self, now_ms: int) -> list[Effect]:
        problem = self._failure or self._problem()
        if problem:
            return self._end(Verdict.FAILED, problem, now_ms)
        figures = self._figures
        told = (
            f"{figures.acknowledged} acknowledged, none lost, none twice; "
            f"writes waited {figures.unavailable_ms} ms at most"
        )
        return self._end(Verdict.PASSED, told, now_ms)

    def _problem(self) -> str:
        figures, limit = self._figures, self.spec.max_unavailable_ms
        if not figures.counted:
            return f"the records could not be counted: {'; '.join(figures.problems)}"
        if figures.lost or figures.duplicated or figures.misplaced:
            return (
                f"of {figures.acknowledged} acknowledged {figures.lost} are lost, "
                f"{figures.duplicated} twice, {figures.misplaced} not where they were told to be"
            )
        if figures.failed:
            return f"{figures.failed} writes failed: {'; '.join(figures.problems)}"
        if limit and figures.unavailable_ms > limit:
            return f"writes waited {figures.unavailable_ms} ms, and {limit} ms are allowed"
        return ""

    def _end(self, verdict: Verdict, message: str, now_ms: int) -> list[Effect]:
        was = self.phase
        self._note(f"{verdict.value.lower()}: {message}", now_ms)
        recovery = None
        if self._recovered_ms is not None and self.struck_ms is not None:
            recovery = self._recovered_ms - self.struck_ms
        self.phase = Phase.DONE
        report = Report(
            verdict=verdict,
            message=message,
            figures=self._figures,
            isr_recovery_ms=recovery,
            took_ms=now_ms - self.began_ms,
            timeline=tuple(self._timeline),
        )
        needs_no_restore = was in {Phase.CHECKING, Phase.WARMING}
        return [Finish(report)] if needs_no_restore else [Restore(), Finish(report)]

    # ------------------------------------------------------------------------------- telling

    def _enter(self, phase: Phase, now_ms: int) -> None:
        self.phase = phase
        self._since_ms = now_ms

    def _spent_ms(self, now_ms: int) -> int:
        return now_ms - self._since_ms

    def _note(self, what: str, now_ms: int) -> None:
        if len(self._timeline) < TIMELINE_MAX:
            self._timeline.append((now_ms - self.began_ms, what))

    def _note_changes(self, now: Health, now_ms: int) -> None:
        before, self._health = self._health, now
        if before is None:
            return
        for text in _changes(before, now):
            self._note(text, now_ms)


def trouble(health: Health, *, brokers: int, pods: Sequence[Pod], struck: Mapping[str, str]) -> str:
    """Why a cluster is not as it should be, in words; empty: it is. `struck`: pods by name, uid."""
    if not health.reachable:
        return "the cluster does not answer"
    missing = sorted(set(range(brokers)) - health.brokers)
    if missing:
        return f"broker {missing[0]} is not registered"
    if health.controller < 0:
        return "no controller is active"
    if health.offline or health.under_replicated:
        return (
            f"{health.offline} partitions are offline, {health.under_replicated} under-replicated"
        )
    if health.moving:
        return f"{health.moving} partitions are moving"
    wrong = [each.name for each in pods if not each.ready or each.terminating or each.outdated]
    if wrong:
        return f"{wrong[0]} is not ready, or not what is wanted"
    now = {each.name: each.uid for each in pods}
    waiting = [name for name, uid in struck.items() if now.get(name) in {uid, None}]
    return f"{waiting[0]} has not been replaced" if waiting else ""


@dataclass(frozen=True, slots=True)
class Turn:
    """Whether a drill is to begin now, and when its next turn is, if there is one."""

    now: bool
    next_ms: int | None = None


def turn(spec: DrillSpec, *, ran: bool, next_ms: int | None, now_ms: int) -> Turn:
    """`ran`: it has been run, by its status; `next_ms`: when its status says it is due."""
    if spec.suspended:
        return Turn(now=False)
    if not spec.schedule:
        return Turn(now=not ran)
    following = next_after(read_schedule(spec.schedule), now_ms)
    if next_ms is None or now_ms < next_ms:
        # The schedule may have been changed since: what it says now is what counts.
        return Turn(now=False, next_ms=following)
    return Turn(now=now_ms - next_ms <= LATE_MAX_MS, next_ms=following)


def _changes(before: Health, now: Health) -> list[str]:
    """What is different, in words."""
    if before.reachable != now.reachable:
        return ["the cluster answers again" if now.reachable else "the cluster does not answer"]
    if not now.reachable:
        return []
    told = [f"broker {each} is gone" for each in sorted(before.brokers - now.brokers)]
    told += [f"broker {each} is registered" for each in sorted(now.brokers - before.brokers)]
    if now.controller != before.controller:
        told.append(
            f"controller {now.controller} is active" if now.controller >= 0 else "no controller"
        )
    if now.offline != before.offline:
        told.append(f"{now.offline} partitions are offline")
    if now.under_replicated != before.under_replicated:
        told.append(f"{now.under_replicated} partitions are under-replicated")
    return told
