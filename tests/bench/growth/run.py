"""`make bench-growth`: what partitions, clients and backlog do to throughput, CPU and memory.

Three brokers on this machine, one series after the other, each on a cluster of its own. Prints a
line of JSON for each measurement as it goes, then tables and verdicts; the section of the report
and its plots go to the folder of `make bench-peers`, beside what that measured. Ends with code 1
when something failed or a bound does not hold.

    make bench-growth                          # a quarter of an hour at most
    make bench-growth STEPS=quick              # two minutes, into build/benchmarks-quick
    make bench-growth REPORT=docs/benchmarks
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

from bench import machine
from bench.endings import undisturbed_end
from bench.growth import report
from bench.growth.measured import Growth, Verdict, verdicts
from bench.growth.series import RUN_S_MAX, RUNS, Axis, Series
from bench.growth.steps import Steps
from bench.peers import environment, memory, page
from bench.peers.sizes import Sizes
from bench.peers.stage import Stage

WIDTH: Final = 190
IN_MEMORY: Final = {"tmpfs", "ramfs"}
ROOT: Final = Path(__file__).resolve().parents[3]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", choices=RUNS, default="full")
    parser.add_argument("--series", default="", help="only some: " + ", ".join(Axis))
    parser.add_argument("--report", type=Path, default=Path("build/benchmarks"))
    parser.add_argument("--folder", type=Path, default=ROOT / "build", help="on a disk")
    given = parser.parse_args()
    wanted = [each for each in given.series.split(",") if each]
    all_series = [each for each in RUNS[given.steps] if not wanted or each.axis in wanted]
    if given.steps == "quick":
        # Its figures must never get among those that mean something.
        given.report = given.report.with_name(f"{given.report.name}-quick")
    for each in (given.report, given.folder):
        try:
            each.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            parser.error(f"{each}: cannot be made: {error.strerror}")
    kind = file_system(given.folder, Path("/proc/self/mounts").read_text(encoding="utf-8"))
    if kind in IN_MEMORY:
        parser.error(f"{given.folder} is in memory ({kind}): a backlog must be read from a disk")
    environment.install_packages()
    facts = {**machine.facts(), "Tailrace": environment.own_version(), "file system": kind}
    try:
        with (
            undisturbed_end(),
            memory.little_free(is_wanted=given.steps == "full") as held,
        ):
            growth = Growth({**facts, **held}, steps=given.steps)
            measure(all_series, growth, given.folder, given.report)
    finally:
        # A run that is broken off has a report of what it found.
        page.write(given.report)
    return show(all_series, page.read_growth(given.report))


def measure(all_series: list[Series], growth: Growth, folder: Path, into: Path) -> None:
    """What there is so far is on the disk at every moment, facts in the first line."""
    ends = time.monotonic() + RUN_S_MAX
    with (
        (into / page.GROWTH).open("w", encoding="utf-8") as file,
        tempfile.TemporaryDirectory(
            prefix="bench-", dir=folder, ignore_cleanup_errors=True
        ) as temporary,
        Stage(Path(temporary), Sizes()) as stage,
    ):
        file.write(growth.to_lines())
        file.flush()
        steps = Steps(stage, ends)
        for series in all_series:
            for each in steps.run(series):
                for out in (file, sys.stdout):
                    print(each.to_json(), file=out, flush=True)


def show(all_series: list[Series], growth: Growth) -> int:
    console = Console(width=None if sys.stdout.isatty() else WIDTH)
    found: list[Verdict] = []
    for series in all_series:
        told = verdicts(growth, series)
        found += told
        console.print(
            _table(series.title, report.head(growth, series), report.rows(growth, series))
        )
        console.print(_table("", report.VERDICTS_HEAD, report.verdict_rows(told)))
    for line in report.carried(growth):
        console.print(line, markup=False)
    failed = [each for each in growth.measurements if each.failed]
    for measurement in failed:
        print(f"failed: {measurement.to_json()}", file=sys.stderr)
    return 1 if failed or not all(each.holds for each in found) else 0


def _table(title: str, head: Sequence[str], body: list[list[str]]) -> Table:
    table = Table(title=title)
    for heading in head:
        table.add_column(heading)
    for row in body:
        table.add_row(*row, style="red" if "does not hold" in row else "")
    return table


def file_system(folder: Path, mounts: str) -> str:
    """Of which kind the one is that a folder lies in, as the table of mounts tells it."""
    found = {Path(line.split()[1]): line.split()[2] for line in mounts.splitlines() if line}
    place = folder.resolve()
    return next((found[each] for each in (place, *place.parents) if each in found), "unknown")


if __name__ == "__main__":
    sys.exit(main())
