"""The report: goals met and missed, tables of all figures, what the plots show. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from bench.figures import Spread
from bench.peers.clients.steady import FELT_S
from bench.peers.results import FIGURES_OF, SHOWN, Measured, Results, Shown
from bench.peers.sizes import Sizes
from bench.peers.workloads import WORKLOADS, Goal, Kind, Workload

PLOTS: Final[Mapping[str, tuple[str, tuple[Kind, ...], str]]] = {
    # File: its title, whose figures, which figure.
    "produce": ("Produce: records a second", (Kind.PRODUCE,), "records_per_s"),
    "produce-cpu": ("Produce: CPU seconds for a GB", (Kind.PRODUCE,), "cpu_s_per_gb"),
    "consume": ("Consume: records a second", (Kind.CONSUME,), "records_per_s"),
    "consume-cpu": ("Consume: CPU seconds for a GB", (Kind.CONSUME,), "cpu_s_per_gb"),
    "latency": ("One record at a time: p99, ms", (Kind.SINGLE, Kind.ROUND_TRIP), "p99_ms"),
    "paced": ("To a consumer at a fixed rate: p99, ms", (Kind.PACED,), "p99_ms"),
    "failover": ("Unavailable after a fault, s", (Kind.FAILOVER,), "unavailable_s"),
    "spark": ("Spark reads: records a second", (Kind.SPARK,), "records_per_s"),
    "memory": ("Resident memory of a broker, MiB", (Kind.IDLE, Kind.LOADED), "resident_mib"),
}
GOALS_PLOT: Final = "goals"
_LOGARITHMIC: Final = {"failover"}
VERDICTS: Final = ("met", "missed", "not measured")
NOTHING: Final = Measured("", "", {})


@dataclass(frozen=True, slots=True)
class Line:
    """One goal and what became of it; None: not measured."""

    workload: str
    goal: Goal
    ours: Spread | None
    peer: Spread | None
    ratio: Spread | None

    @property
    def verdict(self) -> str:
        met, missed, unknown = VERDICTS
        if self.ratio is None:
            return unknown
        return met if self.goal.is_met(self.ratio.median) else missed


def goal_lines(results: Results, workloads: Sequence[Workload] = WORKLOADS) -> list[Line]:
    """All goals of some workloads: what was not measured is not met either, and is told."""
    return [
        Line(
            workload.name,
            goal,
            measured.spread(goal.ours, goal.figure),
            measured.spread(goal.peer, goal.figure),
            measured.ratio(goal),
        )
        for workload in workloads
        for measured in [results.workloads.get(workload.name, NOTHING)]
        for goal in workload.goals
    ]


def tally(lines: Sequence[Line]) -> str:
    """How many are met, in a sentence."""
    verdicts = Counter(line.verdict for line in lines)
    told = ", ".join(f"{verdicts[each]} {each}" for each in VERDICTS)
    return f"{len(lines)} goals: {told}."


def summary(results: Results, workloads: Sequence[Workload] = WORKLOADS) -> list[list[str]]:
    """The table of goals, with its head."""
    head = ["workload", "figure", "Tailrace", "", "against", "", "ratio", "goal", ""]
    rows = []
    for line in goal_lines(results, workloads):
        shown = SHOWN[line.goal.figure]
        rows.append(
            [
                line.workload,
                shown.title,
                line.goal.ours,
                _median(line.ours, shown),
                line.goal.peer,
                _median(line.peer, shown),
                ranged(line.ratio, Shown("", ".2f")),
                f"{line.goal.sign} {line.goal.bound:g}",
                line.verdict,
            ]
        )
    return [head, *rows]


def figures_table(workload: Workload, measured: Measured) -> list[list[str]]:
    """All figures of a workload, with the head: median and range."""
    figures = [
        figure
        for figure in FIGURES_OF[workload.kind]
        if any(measured.spread(each.name, figure) for each in workload.contenders)
    ]
    head = ["", *(SHOWN[figure].title for figure in figures)]
    rows = [
        [
            each.name,
            *(ranged(measured.spread(each.name, figure), SHOWN[figure]) for figure in figures),
        ]
        for each in workload.contenders
        if each.name in measured.contenders
    ]
    return [head, *rows]


def markdown(results: Results, plots: Sequence[str]) -> str:
    """The part of the page; `plots`: names of those that were drawn."""
    lines = ["## Beside its peers", "", _INTRODUCTION, ""]
    lines += ["### Goals", "", tally(goal_lines(results)), "", *table_lines(summary(results)), ""]
    if GOALS_PLOT in plots:
        lines += [f"![ratios and goals]({GOALS_PLOT}.png)", ""]
    lines += ["### The machine", ""]
    facts = {**results.machine, **results.versions}
    lines += [
        *table_lines([["what", "which"], *([name, fact] for name, fact in facts.items())]),
        "",
    ]
    lines += ["### Figures", "", "Median of the rounds, and in brackets their range.", ""]
    for name in PLOTS:
        if name in plots:
            lines += [f"![{PLOTS[name][0]}]({name}.png)", ""]
    for workload, measured in _found(results):
        lines += [f"#### {workload.name}", ""]
        rounds = f"{measured.rounds} round{'s' * (measured.rounds != 1)}"
        load = f"load of the machine before and after: {measured.load}"
        lines += [f"{measured.when}; {rounds}; {load}.", ""]
        lines += [*table_lines(figures_table(workload, measured)), ""]
        lines += [f"- failed: {_code(each)}" for each in measured.failures]
        lines += [""] * bool(measured.failures)
    return "\n".join(lines)


AHEAD_MAX: Final = 20.0
_WARM_MB: Final = Sizes().jvm_warm_bytes // 10**6
_INTRODUCTION: Final = f"""\
Made by `make bench-peers`; [results.json](results.json) has every round. All systems run on the
same machine, three nodes of each, three replicas, acks=all; none syncs a record before it is
acknowledged. Peers are tuned for throughput (batches of 1 MiB, 5 ms of linger) unless a line says
otherwise; Tailrace runs with its settings as they ship. Goals compare like with like: Tailrace's
blocking producer with clients whose calls block (confluent-kafka, kafka-python, the Go client of
NATS), the one for asyncio with those for asyncio (aiokafka, nats-py). "Columns" and "Arrow" are
ways that only Tailrace has, to hand over many records at once; they stand beside the peer's one
way, by record, and Tailrace's own way by record is in the same table. A node that is killed is a
process of this machine, so its connections break at once; Kafka has the timeouts that it ships
with. Before throughput is timed,
{_WARM_MB} MB go in and out of every Kafka cluster that was started (`jvm_warm_bytes`), since a JVM
is slow at first; then come rounds that warm up all contenders and do not count. Where
the host of a virtual machine takes back what memory lies free, and whoever writes to it first pays
for that, free memory is kept small, as the page cache keeps it on a machine that has been up for a
day (the table of the machine says so). In
every round the contenders take turns, so that what disturbs the machine disturbs all; a ratio is
the median of the rounds' ratios, and in brackets is their range. CPU seconds are those of all
servers of a system and of its clients; on a machine that is shared they are the steadier figure.
Of unavailability, what an acknowledgement took within {FELT_S * 1_000:.0f} ms counts as nothing."""


def plots(results: Results) -> list[dict[str, Any]]:
    """What is to be drawn: bars in panels, one file each."""
    found = list(_found(results))
    drawn: list[dict[str, Any]] = []
    for file, (title, kinds, figure) in PLOTS.items():
        panels = [
            panel
            for workload, measured in found
            if workload.kind in kinds and (panel := _panel(workload, measured, figure))
        ]
        if panels:
            is_log = file in _LOGARITHMIC
            drawn.append({"file": file, "title": title, "panels": panels, "log": is_log})
    bars = [_goal_bar(line) for line in goal_lines(results) if line.ratio is not None]
    if bars:
        title = f"How far ahead of its goals (1: just met, {AHEAD_MAX:.0f}: that or more)"
        panels = [{"title": "", "bars": bars}]
        drawn.append({"file": GOALS_PLOT, "title": title, "panels": panels, "log": True, "line": 1})
    return drawn


def _panel(workload: Workload, measured: Measured, figure: str) -> dict[str, Any] | None:
    bars = [
        bar(each.name, found, is_ours=each.name.startswith("tailrace"))
        for each in workload.contenders
        if (found := measured.spread(each.name, figure)) is not None
    ]
    return {"title": workload.name, "bars": bars} if bars else None


def _goal_bar(line: Line) -> dict[str, Any]:
    """As a multiple of the goal, such that more is better."""
    assert line.ratio is not None
    bound = line.goal.bound
    values = [line.ratio.low, line.ratio.median, line.ratio.high]
    is_more = line.goal.sign == "≥"
    # Where nothing at all was to be waited for, a ratio is as good as without end.
    least = bound / AHEAD_MAX
    low, middle, high = sorted(
        min(each / bound, AHEAD_MAX) if is_more else bound / max(each, least) for each in values
    )
    label = f"{line.workload}: {SHOWN[line.goal.figure].title} / {line.goal.peer}"
    return bar(label, Spread(middle, low, high), is_ours=line.verdict == "met")


def bar(label: str, found: Spread, *, is_ours: bool) -> dict[str, Any]:
    return {
        "label": label,
        "value": found.median,
        "low": found.low,
        "high": found.high,
        "ours": is_ours,
    }


def _found(results: Results) -> Iterator[tuple[Workload, Measured]]:
    for workload in WORKLOADS:
        measured = results.workloads.get(workload.name)
        if measured is not None:
            yield workload, measured


def table_lines(rows: Sequence[Sequence[str]]) -> list[str]:
    head, *body = rows
    lines = [f"| {' | '.join(row)} |" for row in (head, *body)]
    return [lines[0], f"|{'---|' * len(head)}", *lines[1:]]


def _code(text: str) -> str:
    """Words of an exception as they are: what looks like a link or a line of its own is none."""
    plain = text.replace("`", "'").replace("](", "] (")
    return f"`{' '.join(plain.split())}`"


def _median(found: Spread | None, shown: Shown) -> str:
    return "" if found is None else shown.write(found.median)


def ranged(found: Spread | None, shown: Shown) -> str:
    if found is None:
        return ""
    low, high = shown.write(found.low), shown.write(found.high)
    return f"{shown.write(found.median)} [{low}-{high}]"
