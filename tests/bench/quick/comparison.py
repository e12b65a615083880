"""Ratios now beside ratios that were stored: which of them moved by more than the noise. Pure.

What is stored are the ratios of some runs of the same code. Their median is what a later run is
compared with, and how far they lie apart is the noise: it was measured, not guessed.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from bench.figures import Better, Spread, gain, spread

RUNS_MAX: Final = 15
"""Older runs than this are forgotten."""

NOISE_RUNS_MIN: Final = 3
"""So many runs must be stored before their distance says anything."""

NOISE_MARGIN: Final = 1.25
"""Of a few runs the largest distance is seldom the largest there can be."""

NOISE_MIN: Final = 0.03
"""Less than this is never called a change."""

NOISE_UNKNOWN: Final = 0.25
"""What counts as noise as long as too few runs are stored."""


class Mark(enum.StrEnum):
    """What became of a ratio."""

    NEW = "new"
    SAME = ""
    FELL = "FELL"
    ROSE = "rose"


@dataclass(frozen=True, slots=True)
class Ratio:
    """One figure of a workload as a multiple of its yardstick, round by round."""

    workload: str
    measure: str
    better: Better
    rounds: tuple[float, ...]

    @property
    def name(self) -> str:
        return f"{self.workload}: {self.measure}"

    @property
    def spread(self) -> Spread:
        return spread(self.rounds)


@dataclass(frozen=True, slots=True)
class Verdict:
    """A ratio beside what was stored of it; `stored`, `gain`: None when nothing was."""

    ratio: Ratio
    stored: float | None
    gain: float | None
    noise: float
    mark: Mark


@dataclass(frozen=True, slots=True)
class Stored:
    """Ratios by name, one a run, oldest first; and the machine of the last run."""

    machine: Mapping[str, str]
    runs: Mapping[str, Sequence[float]]


NOTHING: Final = Stored({}, {})


def judge(ratios: Sequence[Ratio], stored: Stored) -> list[Verdict]:
    return [_verdict(each, stored.runs.get(each.name, ())) for each in ratios]


def _verdict(ratio: Ratio, runs: Sequence[float]) -> Verdict:
    noise = noise_of(runs, ratio.better)
    if not runs:
        return Verdict(ratio, None, None, noise, Mark.NEW)
    before = median(runs)
    moved = gain(ratio.spread.median, before, ratio.better)
    mark = Mark.FELL if moved < -noise else Mark.ROSE if moved > noise else Mark.SAME
    return Verdict(ratio, before, moved, noise, mark)


def noise_of(runs: Sequence[float], better: Better) -> float:
    """How far a run of the same code may lie from the median, as a share."""
    if len(runs) < NOISE_RUNS_MIN:
        return NOISE_UNKNOWN
    middle = median(runs)
    farthest = max(abs(gain(each, middle, better)) for each in runs)
    return max(farthest * NOISE_MARGIN, NOISE_MIN)


def with_run(stored: Stored, ratios: Sequence[Ratio], machine: Mapping[str, str]) -> Stored:
    """One run more; what this run did not measure stays."""
    runs = {name: list(values) for name, values in stored.runs.items()}
    for each in ratios:
        values = [*runs.get(each.name, ()), round(each.spread.median, 4)]
        runs[each.name] = values[-RUNS_MAX:]
    return Stored(dict(machine), runs)


def to_json(stored: Stored) -> str:
    """One line a ratio, so that a change of the file can be read."""
    lines = ["{", f'  "machine": {json.dumps(dict(stored.machine))},', '  "ratios": {']
    entries = [
        f"    {json.dumps(name)}: {json.dumps(list(values))}"
        for name, values in stored.runs.items()
    ]
    return "\n".join([*lines, ",\n".join(entries), "  }", "}", ""])


def from_json(text: str) -> Stored:
    found = json.loads(text)
    return Stored(found["machine"], found["ratios"])
