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

from bench.figures import Better, gain
from bench.quick.measured import Flow, Waits

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
    """One figure of a workload as a multiple of its yardstick."""

    workload: str
    measure: str
    better: Better
    value: float

    @property
    def name(self) -> str:
        return f"{self.workload}: {self.measure}"


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
    """Ratios by name, one a run, oldest first; the machine of the last run; the load at each."""

    machine: Mapping[str, str]
    runs: Mapping[str, Sequence[float]]
    loads: Sequence[str] = ()


NOTHING: Final = Stored({}, {})


def flow_ratios(
    name: str, flows: Sequence[Flow], grpc: Sequence[Flow], disk: Sequence[Flow]
) -> list[Ratio]:
    """A workload beside its ground: what a byte must cost at least is a way and a place."""
    speed, grpc_speed, disk_speed = map(_speed, (flows, grpc, disk))
    cpu, grpc_cpu, disk_cpu = map(_cpu, (flows, grpc, disk))
    return [
        Ratio(name, "speed / gRPC", Better.MORE, speed / grpc_speed),
        Ratio(name, "speed / disk", Better.MORE, speed / disk_speed),
        Ratio(name, "CPU / gRPC + disk", Better.LESS, cpu / (grpc_cpu + disk_cpu)),
    ]


def wait_ratios(name: str, found: Sequence[Waits], ping: Sequence[Waits]) -> list[Ratio]:
    p50, ping_p50 = (median(each.p50_ms for each in rounds) for rounds in (found, ping))
    p99, ping_p99 = (median(each.p99_ms for each in rounds) for rounds in (found, ping))
    return [
        Ratio(name, "p50 / gRPC", Better.LESS, p50 / ping_p50),
        Ratio(name, "p99 / gRPC", Better.LESS, p99 / ping_p99),
    ]


def _speed(rounds: Sequence[Flow]) -> float:
    return median(each.bytes_per_s for each in rounds)


def _cpu(rounds: Sequence[Flow]) -> float:
    return median(each.cpu_s_per_gb for each in rounds)


def judge(ratios: Sequence[Ratio], stored: Stored) -> list[Verdict]:
    return [_verdict(each, stored.runs.get(each.name, ())) for each in ratios]


def _verdict(ratio: Ratio, runs: Sequence[float]) -> Verdict:
    noise = noise_of(runs, ratio.better)
    if not runs:
        return Verdict(ratio, None, None, noise, Mark.NEW)
    before = median(runs)
    moved = gain(ratio.value, before, ratio.better)
    mark = Mark.FELL if moved < -noise else Mark.ROSE if moved > noise else Mark.SAME
    return Verdict(ratio, before, moved, noise, mark)


def noise_of(runs: Sequence[float], better: Better) -> float:
    """How far a run of the same code may lie from the median, as a share."""
    if len(runs) < NOISE_RUNS_MIN:
        return NOISE_UNKNOWN
    middle = median(runs)
    farthest = max(abs(gain(each, middle, better)) for each in runs)
    return max(farthest * NOISE_MARGIN, NOISE_MIN)


def with_run(
    stored: Stored, ratios: Sequence[Ratio], machine: Mapping[str, str], load: str
) -> Stored:
    """One run more; what this run did not measure stays."""
    runs = {name: list(values) for name, values in stored.runs.items()}
    for each in ratios:
        values = [*runs.get(each.name, ()), round(each.value, 4)]
        runs[each.name] = values[-RUNS_MAX:]
    return Stored(dict(machine), runs, [*stored.loads, load][-RUNS_MAX:])


def to_json(stored: Stored) -> str:
    """One line a ratio, so that a change of the file can be read."""
    lines = [
        "{",
        f'  "machine": {json.dumps(dict(stored.machine))},',
        f'  "loads": {json.dumps(list(stored.loads))},',
        '  "ratios": {',
    ]
    entries = [
        f"    {json.dumps(name)}: {json.dumps(list(values))}"
        for name, values in stored.runs.items()
    ]
    return "\n".join([*lines, ",\n".join(entries), "  }", "}", ""])


def from_json(text: str) -> Stored:
    found = json.loads(text)
    return Stored(found["machine"], found["ratios"], found["loads"])
