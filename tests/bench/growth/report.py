"""The section on growth: tables, verdicts, what one broker carries, what is to be drawn. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from bench.figures import Spread
from bench.growth.measured import FROM_DISK, Growth, Verdict, verdicts
from bench.growth.series import PROCESSES_MAX, Axis, Flow, Series
from bench.peers.report import bar, ranged, table_lines
from bench.peers.results import SHOWN, Shown
from bench.peers.system import NODES

FIGURES: Final = (
    "mb_per_s",
    "records_per_s",
    "broker_cpu_s_per_gb",
    "client_cpu_s_per_gb",
    "cpu_s_per_gb",
    FROM_DISK,
)
MEMORY: Final = Shown("MiB of a broker at most", ",.0f")
VERDICTS_HEAD: Final = ("what", "", "figures")


def head(growth: Growth, series: Series) -> list[str]:
    return ["step", "flow", *(SHOWN[each].title for each in _columns(growth, series)), MEMORY.title]


def rows(growth: Growth, series: Series) -> list[list[str]]:
    """One for each flow at each step: median and range."""
    found = []
    for step in series.steps:
        for flow in series.flows:
            known = {
                figure: growth.spread(series, step, flow, figure)
                for figure in _columns(growth, series)
            }
            if any(known.values()):
                told = [ranged(each, SHOWN[name]) for name, each in known.items()]
                memory = ranged(growth.memory(series, step), MEMORY)
                found.append([series.label(step), flow, *told, memory])
    return found


def _columns(growth: Growth, series: Series) -> list[str]:
    """Those of which there is something."""
    return [
        figure
        for figure in FIGURES
        if any(figure in each.figures for each in growth.measurements if each.axis == series.axis)
    ]


def verdict_rows(found: Sequence[Verdict]) -> list[list[str]]:
    return [[each.what, each.word, each.told] for each in found]


def section(growth: Growth, plots: Sequence[str]) -> str:
    """As Markdown."""
    lines = ["## Growth", "", _INTRODUCTION, ""]
    lines += [*carried(growth), ""]
    for series in growth.series:
        lines += [f"### {series.title}", "", _NOTES[series.axis], ""]
        lines += [*table_lines([VERDICTS_HEAD, *verdict_rows(verdicts(growth, series))]), ""]
        for file in (_file(series), f"{_file(series)}-cpu"):
            if file in plots:
                lines += [f"![{series.title}]({file}.png)", ""]
        lines += [*table_lines([head(growth, series), *rows(growth, series)]), ""]
        failed = growth.failures(series)
        lines += [
            f"- failed: {series.label(each.step)}, {each.flow}: {each.failed}" for each in failed
        ]
        lines += [""] * bool(failed)
    loads = [each.load for each in growth.measurements]
    facts = {**growth.facts, **({"load, from; to": f"{loads[0]}; {loads[-1]}"} if loads else {})}
    lines += [
        *table_lines([["what", "which"], *([name, each] for name, each in facts.items())]),
        "",
    ]
    return "\n".join(lines)


_INTRODUCTION: Final = f"""\
Made by `make bench-growth`; [growth.jsonl](growth.jsonl) has every measurement. Three brokers,
three replicas, acks=all, records of 1 KiB, settings as they ship, clients and brokers on the same
machine. Clients are connected before a step begins; more than {PROCESSES_MAX} share
{PROCESSES_MAX} processes. "No cliff" means that the largest step moves at least the stated share
of what the best smaller one does, and that CPU seconds for a GB grow by no more than that.
"Memory bounded" compares the broker that holds most with a bound that has names in
[series.py](../../tests/bench/growth/series.py)."""

_NOTES: Final = {
    Axis.PARTITIONS: (
        "One client. `produce` leaves the choice of partitions to the producer, which fills a "
        "batch for one and goes on to the next; `produce, keyed` sends ten thousand keys by "
        "turns, so that all partitions get records all the time and batches are small; `consume` "
        "reads what both wrote, so at many partitions it reads small batches too: its figures are "
        "of partitions and of batch sizes together. The single partition is shown "
        "and not judged: the same code reads it with 1,170 to 2,290 MB/s from run to run, which is "
        "not understood."
    ),
    Axis.CLIENTS: (
        "Three partitions. Producers share the records among them; of the consumers each reads "
        "from the beginning (fan-out), 40 MB at least, which is more than it reads ahead, and MB/s "
        "is what all of them get together."
    ),
    Axis.BACKLOG: (
        "One topic of three partitions that grows. Before it is read, its files are dropped from "
        "the page cache as far as the kernel lets go of them, so that brokers read from the disk."
        " Larger backlogs than these are more segments of the same size; the smallest step is "
        "over before it can be timed well, and is not judged."
    ),
}


def carried(growth: Growth) -> list[str]:
    """What one broker (one core) carries, from the figures; nothing where they are missing."""
    found = {series.axis: series for series in growth.series}
    lines = []
    crowd = found.get(Axis.CLIENTS)
    costs = {
        flow: _at_last(growth, crowd, flow, "broker_cpu_s_per_gb")
        for flow in (Flow.PRODUCE, Flow.CONSUME)
        if crowd is not None
    }
    produce, consume = costs.get(Flow.PRODUCE), costs.get(Flow.CONSUME)
    if crowd is not None and produce and consume:
        label = crowd.label(crowd.steps[-1])
        lines.append(
            f"**What one broker (one core) carries.** With {label}, a GB produced costs all "
            "servers together "
            f"{produce:.2f} CPU seconds, its two further copies included; a GB consumed "
            f"{consume:.2f}. A broker is one process on one core, so its share of a cluster is "
            f"{1_000 / produce:,.0f} MB/s produced, or {1_000 / consume:,.0f} MB/s consumed, or "
            f"{1_000 / (produce + consume):,.0f} MB/s of both at once; {NODES} brokers with a "
            f"core each carry {NODES} times that. It is computed from CPU, for here brokers and "
            "clients share the machine."
        )
    held = [_held(growth, series) for series in found.values()]
    if any(held):
        lines += ["", "**Memory.** " + " ".join(filter(None, held))]
    if lines:
        lines += ["", _BEYOND]
    return lines


_BEYOND: Final = (
    "**Beyond one broker** a cluster grows by brokers: leaders and replicas of partitions are "
    "spread over all of them, a partition's records cost its leader and its followers and nobody "
    "else, and clients talk to leaders directly. So throughput grows with brokers as long as "
    "there are several partitions for each, and a topic's largest partition fits one broker. New "
    "brokers take their share by a [reassignment](../operations.md), throttled, while everything "
    "runs. What does not grow with brokers is the metadata, which every broker and client holds "
    "in whole."
)


def _held(growth: Growth, series: Series) -> str:
    first, last = (growth.memory(series, step) for step in (series.steps[0], series.steps[-1]))
    if first is None or last is None:
        return ""
    told = [
        f"{found.high:,.0f} MiB at {series.label(step)}"
        for step, found in ((series.steps[0], first), (series.steps[-1], last))
    ]
    return f"A broker held at most {' and '.join(told)}."


def _at_last(growth: Growth, series: Series, flow: Flow, figure: str) -> float | None:
    found = growth.spread(series, series.steps[-1], flow, figure)
    return found.median if found is not None else None


def plots(growth: Growth) -> list[dict[str, Any]]:
    """Of each series two files: throughput with memory, and CPU; in the look of the others."""
    drawn = []
    for series in growth.series:
        panels = [*_panels(growth, series), *_memory_panel(growth, series)]
        title = f"{series.title}: MB/s, and memory"
        drawn.append({"file": _file(series), "title": title, "panels": panels, "log": False})
        title = f"{series.title}: CPU seconds for a GB (dark: brokers, light: clients)"
        panels = list(_cpu_panels(growth, series))
        drawn.append(
            {"file": f"{_file(series)}-cpu", "title": title, "panels": panels, "log": False}
        )
    return [each for each in drawn if each["panels"]]


def _file(series: Series) -> str:
    return f"growth-{series.axis}"


def _panels(growth: Growth, series: Series) -> Iterator[dict[str, Any]]:
    for flow in series.flows:
        bars = [
            bar(series.label(step), found, is_ours=True)
            for step in series.steps
            if (found := growth.spread(series, step, flow, "mb_per_s")) is not None
        ]
        if bars:
            yield {"title": f"{flow}, MB/s", "bars": bars}


def _memory_panel(growth: Growth, series: Series) -> Iterator[dict[str, Any]]:
    bars = [
        bar(series.label(step), found, is_ours=False)
        for step in series.steps
        if (found := growth.memory(series, step)) is not None
    ]
    if bars:
        yield {"title": "memory that a broker held at most, MiB", "bars": bars}


def _cpu_panels(growth: Growth, series: Series) -> Iterator[dict[str, Any]]:
    for flow in series.flows:
        bars = []
        for step in series.steps:
            for figure, is_broker in (
                ("broker_cpu_s_per_gb", True),
                ("client_cpu_s_per_gb", False),
            ):
                found: Spread | None = growth.spread(series, step, flow, figure)
                # What is too small to be timed would only dwarf the others.
                if found is not None and step >= series.judged_from:
                    label = f"{series.label(step)}, brokers" if is_broker else "clients"
                    bars.append(bar(label, found, is_ours=is_broker))
        if bars:
            yield {"title": str(flow), "bars": bars}
