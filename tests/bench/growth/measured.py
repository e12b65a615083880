"""What was measured, step by step, and whether it holds. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field

from bench.figures import Spread, spread
from bench.growth.series import RUNS, Flow, Series
from bench.peers.results import rounded

SPEED, CPU, FROM_DISK = "mb_per_s", "cpu_s_per_gb", "from_disk"


@dataclass(frozen=True, slots=True)
class Measurement:
    """One flow at one step in one round."""

    axis: str
    step: int
    flow: str
    round: int
    load: str
    figures: Mapping[str, float] = field(default_factory=dict)
    # Of each broker: when the flow was over, and at most meanwhile.
    resident_mib: Sequence[float] = ()
    peak_mib: Sequence[float] = ()
    # Why there are no figures.
    failed: str = ""

    def to_json(self) -> str:
        return json.dumps(rounded(asdict(self)))


@dataclass(frozen=True, slots=True)
class Growth:
    """All of a run."""

    facts: Mapping[str, str] = field(default_factory=dict)
    measurements: Sequence[Measurement] = ()
    # Which of RUNS it was.
    steps: str = "full"

    @property
    def series(self) -> tuple[Series, ...]:
        """Those of which something was measured."""
        axes = {each.axis for each in self.measurements}
        return tuple(each for each in RUNS[self.steps] if each.axis in axes)

    def to_lines(self) -> str:
        """Facts first, then a line for each measurement."""
        lines = [json.dumps({"facts": dict(self.facts), "steps": self.steps})]
        return "\n".join([*lines, *(each.to_json() for each in self.measurements)]) + "\n"

    @classmethod
    def from_lines(cls, text: str) -> Growth:
        """What a run that was cut off wrote last may be half a line."""
        first, *rest = text.splitlines()
        found, about = [], json.loads(first)
        for line in rest:
            with suppress(ValueError):
                found.append(Measurement(**json.loads(line)))
        return cls(about["facts"], found, about["steps"])

    def spread(self, series: Series, step: int, flow: Flow, figure: str) -> Spread | None:
        values = [
            each.figures[figure] for each in self._of(series, step, flow) if figure in each.figures
        ]
        return spread(values) if values else None

    def memory(self, series: Series, step: int) -> Spread | None:
        """The most that any broker held, over all flows of a step."""
        values = [
            max(each.peak_mib)
            for flow in series.flows
            for each in self._of(series, step, flow)
            if each.peak_mib
        ]
        return spread(values) if values else None

    def failures(self, series: Series) -> list[Measurement]:
        return [each for each in self.measurements if each.axis == series.axis and each.failed]

    def _of(self, series: Series, step: int, flow: Flow) -> list[Measurement]:
        return [
            each
            for each in self.measurements
            if (each.axis, each.step, each.flow) == (series.axis, step, flow)
        ]


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether something holds; None: that was not measured."""

    what: str
    holds: bool | None
    told: str

    @property
    def word(self) -> str:
        return {None: "not measured", True: "holds", False: "does not hold"}[self.holds]


def verdicts(growth: Growth, series: Series) -> list[Verdict]:
    """No cliff in throughput, none in CPU for a GB, memory within its bound."""
    found = []
    for flow in series.flows:
        found += [
            _no_cliff(growth, series, flow, SPEED, "throughput, MB/s"),
            _no_cliff(growth, series, flow, CPU, "CPU-s/GB in all"),
        ]
    return [*found, _memory_bounded(growth, series)]


def _no_cliff(growth: Growth, series: Series, flow: Flow, figure: str, title: str) -> Verdict:
    """The largest step beside the best of the smaller ones."""
    what = f"no cliff: {flow}, {title}"
    *smaller, largest = [step for step in series.steps if step >= series.judged_from]
    known = [growth.spread(series, step, flow, figure) for step in smaller]
    before = [each.median for each in known if each is not None]
    last = growth.spread(series, largest, flow, figure)
    if last is None or not before:
        is_failed = any(
            each.step == largest and each.flow == flow for each in growth.failures(series)
        )
        return Verdict(what, False if is_failed else None, "there is no figure of the largest step")
    is_more = figure == SPEED
    best = max(before) if is_more else min(before)
    ratio = last.median / best if best else 1.0
    bound = series.share_min if is_more else 1 / series.share_min
    holds = ratio >= bound if is_more else ratio <= bound
    told = (
        f"{last.median:,.3g} at {series.label(largest)}, {best:,.3g} at best before: "
        f"{ratio:.2f} times ({'at least' if is_more else 'at most'} {bound:g})"
    )
    return Verdict(what, holds, told)


def _memory_bounded(growth: Growth, series: Series) -> Verdict:
    """At every step."""
    known = {
        step: found.high
        for step in series.steps
        if (found := growth.memory(series, step)) is not None
    }
    if series.steps[-1] not in known:
        return Verdict("memory bounded", None, "there is no figure of the largest step")
    holds = all(mib <= series.memory_mib_max(step) for step, mib in known.items())
    told = "; ".join(
        f"{mib:,.0f} of {series.memory_mib_max(step):,.0f} MiB at {series.label(step)}"
        for step, mib in known.items()
    )
    return Verdict("memory bounded", holds, told)
