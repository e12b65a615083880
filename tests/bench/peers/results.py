"""What was measured: figures of contenders, round by round, and their ratios. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Final, TypeAlias

from bench.figures import Spread, spread
from bench.peers.workloads import Goal, Kind

GB: Final = 1e9
MILLION: Final = 1e6

Figures: TypeAlias = Mapping[str, float]
"""What one round of one contender gave, by the names in SHOWN."""


@dataclass(frozen=True, slots=True)
class Shown:
    """How a figure is called and written."""

    title: str
    form: str
    # By what it is divided before it is written.
    unit: float = 1.0

    def write(self, value: float) -> str:
        return format(value / self.unit, self.form)


SHOWN: Final = {
    "records_per_s": Shown("thousand records/s", ",.0f", 1_000),
    "mb_per_s": Shown("MB/s", ",.0f"),
    "broker_cpu_s_per_gb": Shown("CPU-s/GB brokers", ".2f"),
    "client_cpu_s_per_gb": Shown("CPU-s/GB clients", ".2f"),
    "cpu_s_per_gb": Shown("CPU-s/GB in all", ".2f"),
    "broker_cpu_s_per_million": Shown("CPU-s/million brokers", ".2f"),
    "client_cpu_s_per_million": Shown("CPU-s/million clients", ".2f"),
    "p50_ms": Shown("p50 ms", ".2f"),
    "p99_ms": Shown("p99 ms", ".2f"),
    "p999_ms": Shown("p99.9 ms", ".2f"),
    "gap_s": Shown("longest gap s", ".2f"),
    "start_s": Shown("s", ".2f"),
    "format_s": Shown("of these, formatting s", ".2f"),
    "resident_mib": Shown("resident MiB a broker", ",.0f"),
    "cpu_percent": Shown("% of a core, all servers", ".1f"),
    "unavailable_s": Shown("unavailable s", ".3f"),
    "from_disk": Shown("read from the disk", ".0%"),
    "created_s": Shown("created s", ".2f"),
    "all_written_s": Shown("all took a write s", ".2f"),
    "leaders_moved_s": Shown("leaders moved s", ".2f"),
}
_FLOW: Final = (
    "records_per_s",
    "mb_per_s",
    "broker_cpu_s_per_gb",
    "client_cpu_s_per_gb",
    "cpu_s_per_gb",
    "broker_cpu_s_per_million",
    "client_cpu_s_per_million",
)
_WAITS: Final = ("p50_ms", "p99_ms", "p999_ms")
FIGURES_OF: Final[Mapping[Kind, tuple[str, ...]]] = {
    Kind.PRODUCE: _FLOW,
    Kind.CONSUME: _FLOW,
    Kind.SINGLE: _WAITS,
    Kind.ROUND_TRIP: _WAITS,
    Kind.PACED: _WAITS,
    Kind.BACKLOG: ("mb_per_s", *_WAITS),
    Kind.REBALANCE: ("gap_s",),
    Kind.LOADED: ("resident_mib",),
    Kind.FAILOVER: ("unavailable_s",),
    Kind.START: ("start_s", "format_s"),
    Kind.IDLE: ("resident_mib", "cpu_percent"),
    Kind.PARTITIONS: ("created_s", "all_written_s", "leaders_moved_s"),
    Kind.SPARK: ("records_per_s",),
}


def flow_figures(
    *, records: int, size: int, seconds: float, broker_cpu_s: float, client_cpu_s: float
) -> Figures:
    gigabytes, millions = records * size / GB, records / MILLION
    return {
        "records_per_s": records / seconds,
        "mb_per_s": gigabytes * 1_000 / seconds,
        "broker_cpu_s_per_gb": broker_cpu_s / gigabytes,
        "client_cpu_s_per_gb": client_cpu_s / gigabytes,
        "cpu_s_per_gb": (broker_cpu_s + client_cpu_s) / gigabytes,
        "broker_cpu_s_per_million": broker_cpu_s / millions,
        "client_cpu_s_per_million": client_cpu_s / millions,
    }


def unavailable_s(waits: Sequence[Sequence[float]], since: float) -> float:
    """The longest wait after a moment; waits are pairs: handed over, acknowledged."""
    felt = [acked - max(sent, since) for sent, acked in waits if acked >= since]
    return max(felt, default=0.0)


def longest_gap_s(moments: Mapping[str, Sequence[float]], since: float, until: float) -> float:
    """The longest that any partition gave nothing, from one moment to another."""
    longest = 0.0
    for each in moments.values():
        inside = [moment for moment in sorted(each) if since < moment < until]
        ends = zip([since, *inside], [*inside, until], strict=True)
        longest = max(longest, *(after - before for before, after in ends))
    return longest


@dataclass(frozen=True, slots=True)
class Measured:
    """One workload: of each contender its figures, each as a list of rounds."""

    when: str
    load: str
    contenders: Mapping[str, Mapping[str, Sequence[float]]]
    # What went wrong, whether or not a second attempt went well.
    failures: Sequence[str] = ()

    @property
    def rounds(self) -> int:
        """How many there were of who has most."""
        every = [each for figures in self.contenders.values() for each in figures.values()]
        return max(map(len, every), default=0)

    def spread(self, contender: str, figure: str) -> Spread | None:
        rounds = self.contenders.get(contender, {}).get(figure)
        return spread(rounds) if rounds else None

    def ratio(self, goal: Goal) -> Spread | None:
        """Round by round, for those of one round ran next to each other; None: not measured."""
        ours, peer = (
            self.contenders.get(name, {}).get(goal.figure, ()) for name in (goal.ours, goal.peer)
        )
        pairs = list(zip(ours, peer, strict=False))
        if not pairs:
            return None
        ratios = [mine / theirs for mine, theirs in pairs]
        return Spread(median(ratios), min(ratios), max(ratios))


def by_figure(rounds: Sequence[Figures]) -> dict[str, list[float]]:
    """Turned around: of each figure its rounds."""
    return {
        name: [each[name] for each in rounds if name in each]
        for name in SHOWN
        if any(name in each for each in rounds)
    }


@dataclass(frozen=True, slots=True)
class Results:
    """All that is known: workloads that were measured, and where."""

    machine: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    workloads: Mapping[str, Measured] = field(default_factory=dict)

    def to_json(self) -> str:
        found = {
            name: {
                "when": each.when,
                "load": each.load,
                "contenders": each.contenders,
                "failures": each.failures,
            }
            for name, each in self.workloads.items()
        }
        whole = {"machine": self.machine, "versions": self.versions, "workloads": found}
        return json.dumps(rounded(whole), indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Results:
        found = json.loads(text)
        workloads = {
            name: Measured(
                each["when"], each["load"], each["contenders"], tuple(each.get("failures", ()))
            )
            for name, each in found["workloads"].items()
        }
        return cls(found["machine"], found["versions"], workloads)


def rounded(value: Any) -> Any:
    """Six digits say all that can be measured."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, Mapping):
        return {name: rounded(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(each) for each in value]
    return value
