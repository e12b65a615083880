"""How long workloads take, and how many rounds fit into the time that there is. Pure.

The estimates are of a quiet machine with two cores; a run compares what it spent with them as it
goes, and corrects what is left by that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from bench.peers.sizes import Sizes
from bench.peers.workloads import Kind, Workload

CLIENT_S: Final = 2.5
"""Of a turn: topic made and deleted, client started and ended."""

FILL_S: Final = 12.0
"""A system gets a full topic, once for each size."""

SINGLE_MS: Final = 1.0
FACTORS: Final = (0.2, 20.0)
"""A first workload may say that the machine is busy; it must not say that a run takes a week."""

# Seconds of a contender's turn, beyond what `Sizes` says.
_TURN_S: Final = {
    Kind.BACKLOG: 8.0,
    Kind.REBALANCE: 8.0,
    Kind.LOADED: 14.0,
    Kind.FAILOVER: 15.0,
    Kind.START: 9.0,
    Kind.IDLE: 8.0,
    Kind.PARTITIONS: 35.0,
    Kind.SPARK: 8.0,
}
_START_S: Final = {Kind.CONSUME: FILL_S, Kind.BACKLOG: FILL_S, Kind.SPARK: 20.0}


def estimate_s(workload: Workload, sizes: Sizes) -> float:
    """Of one workload, with as many rounds as `sizes` says."""
    turns = sizes.rounds + sizes.warm_ups(workload.kind)
    systems = {each.system for each in workload.contenders}
    start_s = _START_S.get(workload.kind, 0.0) * len(systems)
    # Where two rounds warm up, the first of them only tells how fast a contender is.
    spared_s = sizes.seconds if sizes.warm_ups(workload.kind) > 1 else 0.0
    of_each_s = turns * _turn_s(workload.kind, sizes) - spared_s
    return start_s + len(workload.contenders) * of_each_s


def _turn_s(kind: Kind, sizes: Sizes) -> float:
    if kind in {Kind.PRODUCE, Kind.CONSUME, Kind.PACED}:
        return sizes.seconds + CLIENT_S
    if kind in {Kind.SINGLE, Kind.ROUND_TRIP}:
        return sizes.singles * SINGLE_MS / 1_000 + CLIENT_S
    waits_s = {
        Kind.REBALANCE: sizes.settle_s + sizes.steady_s,
        Kind.FAILOVER: 2 * sizes.steady_s,
        Kind.IDLE: sizes.settle_s + sizes.idle_s,
    }
    return _TURN_S[kind] + waits_s.get(kind, 0.0)


@dataclass(frozen=True, slots=True)
class Pace:
    """What was spent so far beside what was expected."""

    expected_s: float = 0.0
    spent_s: float = 0.0

    def then(self, *, expected_s: float, spent_s: float) -> Pace:
        return Pace(self.expected_s + expected_s, self.spent_s + spent_s)

    @property
    def factor(self) -> float:
        if not self.expected_s:
            return 1.0
        least, most = FACTORS
        return min(max(self.spent_s / self.expected_s, least), most)

    def left_s(self, workloads: Sequence[Workload], sizes: Sizes) -> float:
        return self.factor * sum(estimate_s(each, sizes) for each in workloads)


@dataclass(frozen=True, slots=True)
class Fit:
    """The workloads that are left, in the order in which they are done, and how much of each."""

    workloads: tuple[Workload, ...]
    sizes: Sizes


def fitted(workloads: Sequence[Workload], sizes: Sizes, pace: Pace, left_s: float) -> Fit:
    """As many rounds as fit; when not even one does, workloads without a goal come last.

    They are begun one after the other until the time is over, and each that is begun has a round.
    """
    for rounds in range(sizes.rounds, 0, -1):
        fewer = replace(sizes, rounds=rounds)
        if pace.left_s(workloads, fewer) <= left_s:
            return Fit(tuple(workloads), fewer)
    goals_first = sorted(workloads, key=lambda each: not each.goals)
    return Fit(tuple(goals_first), replace(sizes, rounds=1))


def in_words(seconds: float) -> str:
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes else f"{seconds:.0f} s"
