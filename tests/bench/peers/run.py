"""`make bench-peers`: Tailrace beside Apache Kafka and NATS on this machine, in one run, in turns.

All that is compared is pinned and made in build/peers the first time (Python packages; Apache Kafka
by Maven, which needs Java 17; the Go client of NATS where there is Go). The table of goals is
printed; the report with all figures and plots goes to a folder, and is written anew after each
workload. What was measured before and is not measured now stays in it.

    make bench-peers                                # everything: most of an hour
    make bench-peers WORKLOADS=produce,idle ROUNDS=5
    make bench-peers REPORT=docs/benchmarks         # where to; build/benchmarks unless told
"""

from __future__ import annotations

import argparse
import datetime
import json
import signal
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

from bench import machine
from bench.peers import environment, report
from bench.peers.kinds import RUNS
from bench.peers.results import Measured, Results
from bench.peers.sizes import TRIAL, Sizes
from bench.peers.stage import Stage
from bench.peers.system import Name
from bench.peers.workloads import WORKLOADS, Workload, chosen

DRAW_S_MAX: Final = 120
WIDTH: Final = 170
RESULTS: Final = "results.json"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workloads", default="", help="those with one of these in their name")
    parser.add_argument("--rounds", type=int, default=Sizes().rounds)
    parser.add_argument("--seconds", type=float, default=Sizes().seconds, help="of a client's work")
    parser.add_argument("--trial", action="store_true", help="see whether everything runs, no more")
    parser.add_argument("--report", type=Path, default=Path("build/benchmarks"))
    parser.add_argument("--folder", default=None, help="where servers keep their data")
    parser.add_argument("--only-report", action="store_true", help="write it anew, measure nothing")
    given = parser.parse_args()
    # `timeout` ends us by this: what was started is ended too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("broken off"))
    if given.trial:
        # Its figures must never get among those that mean something.
        given.report = given.report.with_name(f"{given.report.name}-trial")
    given.report.mkdir(parents=True, exist_ok=True)
    environment.install_packages()
    try:
        workloads = [] if given.only_report else chosen(given.workloads)
    except ValueError as error:
        parser.error(str(error))
    _prepare(workloads)
    results = _read(given.report)
    sizes = TRIAL if given.trial else Sizes(rounds=max(given.rounds, 1), seconds=given.seconds)
    with (
        tempfile.TemporaryDirectory(prefix="bench-", dir=given.folder) as folder,
        Stage(Path(folder), sizes) as stage,
    ):
        for workload in workloads:
            results = _with(results, workload, _measure(stage, workload))
            write(results, given.report)
    write(results, given.report)
    names = {each.name for each in workloads or WORKLOADS}
    show(replace(results, workloads={n: m for n, m in results.workloads.items() if n in names}))
    print(f"the report is in {given.report}", file=sys.stderr)
    for each in stage.failures:
        print(f"failed: {each}", file=sys.stderr)
    return 1 if stage.failures else 0


def _prepare(workloads: list[Workload]) -> None:
    """Fetch and build what those need that take part."""
    systems = {each.system for workload in workloads for each in workload.contenders}
    scripts = {each.script for workload in workloads for each in workload.contenders}
    if Name.KAFKA in systems:
        environment.fetch_jars()
    if "nats_go" in scripts and not environment.build_nats_tool():
        print("there is no Go: the Go client of NATS is left out", file=sys.stderr)


def _measure(stage: Stage, workload: Workload) -> Measured:
    before = machine.load()
    rounds = RUNS[workload.kind](stage, workload)
    when = datetime.datetime.now(datetime.UTC).date().isoformat()
    return Measured(when, f"{before}; {machine.load()}", rounds)


def _with(results: Results, workload: Workload, measured: Measured) -> Results:
    return Results(
        machine.facts(),
        environment.versions(),
        {**results.workloads, workload.name: measured},
    )


def _read(folder: Path) -> Results:
    path = folder / RESULTS
    return Results.from_json(path.read_text(encoding="utf-8")) if path.exists() else Results()


def write(results: Results, folder: Path) -> None:
    """Raw data first: whatever happens to the rest, they are there."""
    (folder / RESULTS).write_text(results.to_json(), encoding="utf-8")
    plots = report.plots(results)
    with tempfile.TemporaryDirectory(prefix="plots-") as temporary:
        specification = Path(temporary) / "plots.json"
        specification.write_text(json.dumps(plots), encoding="utf-8")
        command = [environment.PYTHON, Path(__file__).with_name("draw.py"), specification, folder]
        subprocess.run(list(map(str, command)), check=True, timeout=DRAW_S_MAX)
    text = report.markdown(results, [each["file"] for each in plots])
    (folder / "index.md").write_text(text, encoding="utf-8")


def show(results: Results) -> None:
    """Goals alone: the figures were said as they came, and are in the report."""
    table = Table(title="Tailrace beside its peers: ratios and goals")
    head, *body = report.summary(results)
    for heading in head:
        table.add_column(heading)
    for row in body:
        table.add_row(*row, style="red" if row[-1] == "missed" else "")
    Console(width=None if sys.stdout.isatty() else WIDTH).print(table)


if __name__ == "__main__":
    sys.exit(main())
