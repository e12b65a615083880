"""`make bench-peers`: Tailrace beside Apache Kafka and NATS on this machine, in one run, in turns.

All that is compared is pinned and made in build/peers the first time (Python packages; Apache Kafka
and Spark's connector by Maven, which needs Java 17; the Go client of NATS where there is Go). The
table of goals is printed; the report with all figures and plots goes to a folder, and is written
anew after each workload. What was measured before and is not measured now stays in it. Every round
is in rounds.jsonl of that folder as soon as it is over, so that a run that was cut off, or in which
something failed, is continued without what it has.

    make bench-peers                                # everything: about an hour
    make bench-peers RESUME=1                       # go on with the last run
    make bench-peers MINUTES=30                     # fewer rounds, so that it fits
    make bench-peers WORKLOADS=produce,idle ROUNDS=5
    make bench-peers REPORT=docs/benchmarks         # where to; build/benchmarks unless told
"""

from __future__ import annotations

import argparse
import datetime
import math
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

from bench import machine
from bench.endings import undisturbed_end
from bench.peers import environment, journal, memory, page, report
from bench.peers.journal import Journal
from bench.peers.kinds import RUNS
from bench.peers.plan import Pace, estimate_s, fitted, in_words
from bench.peers.results import Measured, Results
from bench.peers.sizes import TRIAL, Sizes
from bench.peers.stage import Stage
from bench.peers.system import Name
from bench.peers.workloads import WORKLOADS, Kind, Workload, chosen

WIDTH: Final = 170
BROKEN_OFF: Final = 130
"""The exit code of whom Ctrl-C ended, as shells have it."""


def main() -> int:
    given, workloads = _asked()
    try:
        return _run(given, workloads)
    except KeyboardInterrupt:
        print(f"\nbroken off: {_kept(given.report)}", file=sys.stderr, flush=True)
        return BROKEN_OFF


def _run(given: argparse.Namespace, workloads: list[Workload]) -> int:
    _prepare(workloads)
    ends = time.monotonic() + given.minutes * 60 if given.minutes else math.inf
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    rounds = Journal(given.report / journal.FILE, now, is_resumed=given.resume)
    sizes = TRIAL if given.trial else Sizes(rounds=given.rounds, seconds=given.seconds)
    with (
        undisturbed_end(),
        tempfile.TemporaryDirectory(
            prefix="bench-", dir=given.folder, ignore_cleanup_errors=True
        ) as folder,
        memory.little_free(is_wanted=bool(workloads) and not given.trial) as held,
        Stage(Path(folder), sizes, rounds, ends) as stage,
    ):
        run = Run(stage, given.report, ends, held)
        try:
            run.all(workloads)
        finally:
            page.write(given.report)
            show(page.read_results(given.report), workloads or list(WORKLOADS))
            for each in stage.failures:
                print(f"failed: {each}", file=sys.stderr)
    print(f"the report is in {given.report}", file=sys.stderr)
    return 1 if stage.failures or run.left_out else 0


def _asked() -> tuple[argparse.Namespace, list[Workload]]:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workloads", default="", help="those with one of these in their name")
    parser.add_argument("--rounds", type=int, default=Sizes().rounds)
    parser.add_argument("--seconds", type=float, default=Sizes().seconds, help="of a client's work")
    parser.add_argument("--minutes", type=float, default=0.0, help="fewer rounds, so that it fits")
    parser.add_argument("--resume", action="store_true", help="go on with the last run")
    parser.add_argument("--trial", action="store_true", help="see whether everything runs, no more")
    parser.add_argument("--report", type=Path, default=Path("build/benchmarks"))
    parser.add_argument("--folder", default=None, help="where servers keep their data")
    parser.add_argument("--only-report", action="store_true", help="write it anew, measure nothing")
    given = parser.parse_args()
    if given.rounds < 1:
        parser.error(f"--rounds {given.rounds}: at least one")
    if given.trial:
        # Its figures must never get among those that mean something.
        given.report = given.report.with_name(f"{given.report.name}-trial")
    try:
        given.report.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parser.error(f"--report {given.report}: cannot be made: {error.strerror}")
    try:
        return given, [] if given.only_report else chosen(given.workloads)
    except ValueError as error:
        parser.error(str(error))


def _kept(folder: Path) -> str:
    """What is there after a run that somebody ended."""
    path = folder / journal.FILE
    turns = journal.read_turns(path.read_text(encoding="utf-8")) if path.exists() else []
    run = journal.latest_run(turns)
    whole = sum(each.run == run and not each.failed for each in turns)
    if not whole:
        return "all servers have ended; no turn that counts was over, so nothing is kept"
    return (
        f"all servers have ended; the {whole} turns of the last run that were over are kept in "
        f"{path}, and `make bench-peers RESUME=1` with the same REPORT goes on from there"
    )


def _prepare(workloads: list[Workload]) -> None:
    """Fetch and build what those need that take part: what cannot be had is told at once."""
    systems = {each.system for workload in workloads for each in workload.contenders}
    scripts = {each.script for workload in workloads for each in workload.contenders}
    environment.install_packages()
    if Name.KAFKA in systems:
        environment.fetch_jars()
    if any(each.kind is Kind.SPARK for each in workloads):
        environment.fetch_connector()
    if "nats_go" in scripts and not environment.build_nats_tool():
        print("no Go, or it cannot build it: the Go client of NATS is left out", file=sys.stderr)


class Run:
    """Workload after workload; what is known is on the disk after each."""

    def __init__(self, stage: Stage, folder: Path, ends: float, held: Mapping[str, str]) -> None:
        self._stage = stage
        self._sizes = stage.sizes
        self._folder = folder
        self._ends = ends
        self._results = page.read_results(folder)
        self._facts = {**machine.facts(), **held}
        # Once: the report itself may lie in the tree of which this tells whether it was changed.
        self._versions = environment.versions()
        self.left_out: list[str] = []

    def all(self, workloads: list[Workload]) -> None:
        pace, left = Pace(), [each for each in workloads if not self._is_done(each)]
        while left and time.monotonic() <= self._ends:
            fit = fitted(left, self._sizes, pace, self._ends - time.monotonic())
            workload, *left = fit.workloads
            number = len(workloads) - len(left)
            left_s = pace.left_s(fit.workloads, fit.sizes)
            rounds = f"{fit.sizes.rounds} round{'s' * (fit.sizes.rounds != 1)}"
            _say(
                f"[{number} of {len(workloads)}] {workload.name}, {rounds}; "
                f"about {in_words(left_s)} left in all"
            )
            self._stage.sizes = fit.sizes
            began = time.monotonic()
            self._measure(workload)
            spent_s = time.monotonic() - began
            pace = pace.then(expected_s=estimate_s(workload, fit.sizes), spent_s=spent_s)
        self.left_out = [each.name for each in left]
        for name in self.left_out:
            _say(f"{name}: left out, the time is over")

    def _is_done(self, workload: Workload) -> bool:
        """By the run that goes on."""
        is_done = self._stage.is_done(workload) and workload.name in self._results.workloads
        if is_done:
            _say(f"{workload.name}: done before")
        return is_done

    def _measure(self, workload: Workload) -> None:
        """Whatever happens, even the end of the run: the rounds that there are are kept."""
        before, failed = machine.load(), len(self._stage.failures)
        try:
            RUNS[workload.kind](self._stage, workload)
        except Exception as error:  # noqa: BLE001 - whatever it is, the other workloads go on.
            self._stage.failed(f"{workload.name}: {type(error).__name__}: {error}")
        finally:
            found = journal.figures_of(self._stage.turns(workload))
            failures = self._stage.failures[failed:]
            if found or failures:
                when = datetime.datetime.now(datetime.UTC).date().isoformat()
                load = f"{before}; {machine.load()}"
                self._keep(workload, Measured(when, load, found, failures))

    def _keep(self, workload: Workload, measured: Measured) -> None:
        known = {**self._results.workloads, workload.name: measured}
        self._results = Results(self._facts, self._versions, known)
        text = self._results.to_json()
        # Whole or not at all: this may be the last that the run does.
        partly = self._folder / f"{page.RESULTS}.partly"
        partly.write_text(text, encoding="utf-8")
        partly.replace(self._folder / page.RESULTS)
        page.write(self._folder, is_drawn=False)


def _say(what: str) -> None:
    print(what, file=sys.stderr, flush=True)


def show(results: Results, workloads: list[Workload]) -> None:
    """Goals alone: the figures were said as they came, and are in the report."""
    table = Table(title="Tailrace beside its peers: ratios and goals")
    head, *body = report.summary(results, workloads)
    for heading in head:
        table.add_column(heading)
    for row in body:
        table.add_row(*row, style="" if row[-1] == "met" else "red")
    console = Console(width=None if sys.stdout.isatty() else WIDTH)
    console.print(table)
    console.print(report.tally(report.goal_lines(results, workloads)))


if __name__ == "__main__":
    sys.exit(main())
