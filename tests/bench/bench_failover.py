"""How long a producer waits when a process of the cluster dies, with the settings as they ship.

Real processes and real etcd. In every round one fault is done under a producer and readers that
never rest; the figure is the longest wait for an acknowledgement, and nothing may be lost, written
twice or out of order per key, else the bench fails. `--json` prints one object for scripts.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

from integration.cluster_faults import (
    Fault,
    in_rounds,
    kill_controller,
    kill_follower,
    kill_leader,
    kill_leader_and_controller,
    stop_leader,
    terminate_leader,
)
from integration.cluster_harness import Pauses, start, stop
from tailrace.dev.cluster import DevCluster

ROUNDS = 20


@dataclass(frozen=True)
class Case:
    """A fault and what the project wants of it; None: no bar is set."""

    name: str
    what: str
    fault: Fault
    median_ms: float | None = None
    worst_ms: float | None = None


CASES = (
    Case("leader", "kill -9 leader", kill_leader, 300, 1_000),
    Case("follower", "kill -9 follower", kill_follower, 300),
    Case("controller", "kill -9 controller", kill_controller),
    Case("both", "kill -9 leader + controller", kill_leader_and_controller, None, 1_500),
    Case("sigterm", "SIGTERM leader", terminate_leader, None, 200),
    Case("stop", "SIGSTOP leader past its lease", stop_leader),
)


@dataclass(frozen=True)
class Figure:
    """One line of the report."""

    what: str
    rounds: int
    median_ms: float
    worst_ms: float
    goal: str
    met: bool | None
    records: int
    ms: list[float]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    names = [case.name for case in CASES]
    parser.add_argument("--only", choices=names, action="append", help="a fault, again for more")
    arguments = parser.parse_args()
    wanted = [case for case in CASES if case.name in (arguments.only or names)]
    with tempfile.TemporaryDirectory(prefix="tailrace-bench-") as folder:
        dev = start(Path(folder) / "cluster")
        try:
            figures = [measure(dev, case, arguments.rounds) for case in wanted]
        finally:
            stop(dev)
    if arguments.json:
        json.dump([asdict(figure) for figure in figures], sys.stdout)
        print()
    else:
        show(figures)
    return 0


def measure(dev: DevCluster, case: Case, rounds: int) -> Figure:
    print(f"{case.what}: {rounds} rounds", file=sys.stderr, flush=True)
    return figure(case, asyncio.run(in_rounds(dev, case.what, case.fault, rounds)))


def figure(case: Case, pauses: Pauses) -> Figure:
    middle, worst = median(pauses.ms), max(pauses.ms)
    bars = [
        (name, value, bar)
        for name, value, bar in (
            ("median", middle, case.median_ms),
            ("worst", worst, case.worst_ms),
        )
        if bar is not None
    ]
    return Figure(
        case.what,
        len(pauses.ms),
        round(middle, 1),
        round(worst, 1),
        ", ".join(f"{name} <= {bar:g}" for name, _, bar in bars),
        all(value <= bar for _, value, bar in bars) if bars else None,
        pauses.records,
        [round(each, 1) for each in pauses.ms],
    )


def show(figures: list[Figure]) -> None:
    table = Table(title="Longest wait of a producer (acks=all), default settings, real processes")
    for heading in ("what", "rounds", "median ms", "worst ms", "goal", "", "records checked"):
        table.add_column(heading, justify="right" if "ms" in heading else "left")
    for each in figures:
        mark = {True: "met", False: "[red]missed[/red]", None: ""}[each.met]
        table.add_row(
            each.what,
            str(each.rounds),
            f"{each.median_ms:.0f}",
            f"{each.worst_ms:.0f}",
            each.goal,
            mark,
            f"{each.records}, none lost, twice or out of order",
        )
    Console(width=None if sys.stdout.isatty() else 150).print(table)


if __name__ == "__main__":
    sys.exit(main())
