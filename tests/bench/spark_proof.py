"""Spark's source and sink while somebody dies: every case many times, and a table at the end.

Real brokers and a real Spark. Numbers go through topics; what comes out must equal what is computed
from the numbers (count and checksums), however often leaders, drivers, executors and Python workers
were killed. The cases are those of tests/integration/spark_cases.py, in rounds: each case once,
then each case again.

    make spark-proof RUNS=10
    PYTHONPATH=tests python tests/bench/spark_proof.py --runs 3 --case "write, driver killed"

Every run is a line of JSON in the file of --results as soon as it is over. A proof that was cut off
goes on with --skip-done: runs of that file with as many records, of the same commit, count, those
that failed as well.

A run that fails is told as it is, and the exit code is 1; the seed chooses the moments of death. A
run in which nobody was hit, since the death came too late, does not count and is run again.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from statistics import median

from integration.cluster_harness import start, stop
from integration.spark_cases import CASES, TooLate, World, run_case
from integration.spark_harness import LONG_JAVA_OPTIONS, ROOT, local_session

MEMORY = Path("/dev/shm")
EQUAL, LATE, FAILED = "equal", "late", "FAILED"
# Of the runs of a case that must count, so many times more may come too late.
LATE_SHARE_MAX = 2


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--many", type=int, default=10_000_000, help="records of reads")
    parser.add_argument("--some", type=int, default=10_000_000, help="of writes")
    parser.add_argument("--few", type=int, default=1_000_000, help="of writes in further cases")
    parser.add_argument("--case", action="append", choices=list(CASES), help="only these")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--results", type=Path, help="a file that gets a line of JSON for each run")
    parser.add_argument("--skip-done", action="store_true", help="count the runs of that file")
    options = parser.parse_args()
    if options.skip_done and options.results is None:
        parser.error("--skip-done: say with --results which file has the runs")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))
    chosen = options.case or list(CASES)
    sizes = (options.many, options.some, options.few)
    proof = Proof(options.results, sizes, options.seed)
    if options.skip_done:
        proof.recall()
    try:
        if not all(proof.is_done(name, options.runs) for name in chosen):
            with world(options) as here:
                for number in range(1, options.runs + 1):
                    for name in chosen:
                        proof.go_on(here, name, number)
    finally:
        print(proof.table(chosen, options.runs))
    return 0 if all(proof.count(name, EQUAL) >= options.runs for name in chosen) else 1


@dataclass(frozen=True, kw_only=True)
class Run:
    """How one run of a case ended."""

    case: str
    number: int
    outcome: str
    took_s: float
    said: str
    sizes: tuple[int, ...]
    seed: int
    commit: str


class Proof:
    """All runs so far, here and in the file that keeps them."""

    def __init__(self, path: Path | None, sizes: tuple[int, ...], seed: int) -> None:
        self._path = path
        self._sizes = sizes
        self._seed = seed
        self._commit = commit()
        self._runs: list[Run] = []

    def recall(self) -> None:
        """Take over the runs of the file that had as many records, of this commit."""
        if self._path is not None and self._path.exists():
            for line in self._path.read_text().splitlines():
                stored = json.loads(line)
                run = Run(**{**stored, "sizes": tuple(stored["sizes"])})
                if (run.sizes, run.commit) == (self._sizes, self._commit):
                    self._runs.append(run)

    def count(self, name: str, *outcomes: str) -> int:
        return sum(each.case == name and each.outcome in outcomes for each in self._runs)

    def is_done(self, name: str, runs: int) -> bool:
        """Whether so many runs count, or too many came too late."""
        if self.count(name, EQUAL, FAILED) >= runs:
            return True
        return self.count(name, LATE) > runs * LATE_SHARE_MAX

    def go_on(self, here: World, name: str, runs: int) -> None:
        """Run a case until so many runs count."""
        while not self.is_done(name, runs):
            self._keep(self._run(here, name))

    def _run(self, here: World, name: str) -> Run:
        number = sum(each.case == name for each in self._runs) + 1
        here.rng = Random(f"{self._seed}/{name}/{number}")
        began = time.perf_counter()
        try:
            outcome, said = EQUAL, run_case(CASES[name], here)
        except TooLate as error:
            outcome, said = LATE, f"too late, does not count: {error}"
        except AssertionError as error:
            outcome, said = FAILED, str(error)
        return Run(
            case=name,
            number=number,
            outcome=outcome,
            took_s=round(time.perf_counter() - began, 2),
            said=said,
            sizes=self._sizes,
            seed=self._seed,
            commit=self._commit,
        )

    def _keep(self, run: Run) -> None:
        self._runs.append(run)
        told = f"FAILED: {run.said}" if run.outcome == FAILED else run.said
        print(f"{run.case}, run {run.number}: {run.took_s:.1f} s: {told}", flush=True)
        if self._path is not None:
            with self._path.open("a") as out:
                out.write(json.dumps(asdict(run)) + "\n")

    def table(self, names: list[str], runs: int) -> str:
        lines = [f"\n{'case':36}{'equal':>11}{'failed':>8}{'late':>6}{'median':>10}{'worst':>10}"]
        for name in names:
            took_s = [each.took_s for each in self._runs if each.case == name] or [0.0]
            lines.append(
                f"{name:36}{self.count(name, EQUAL):>4} of {runs:<4}{self.count(name, FAILED):>7}"
                f"{self.count(name, LATE):>6}{median(took_s):>8.1f} s{max(took_s):>8.1f} s"
            )
        return "\n".join(lines)


def commit() -> str:
    """What is proved: other code needs a proof of its own."""
    asked = ["git", "describe", "--always", "--dirty", "--exclude", "*"]
    told = subprocess.run(asked, capture_output=True, text=True, check=False, cwd=ROOT)
    return told.stdout.strip() or "unknown"


@contextmanager
def world(options: argparse.Namespace) -> Iterator[World]:
    """A cluster and a session in a folder that is gone afterwards."""
    folder = Path(tempfile.mkdtemp(dir=MEMORY if MEMORY.is_dir() else None, prefix="spark-proof-"))
    dev = start(folder / "cluster", coordinators=1)
    try:
        spark = local_session("proof", master="local[2,20]", java_options=LONG_JAVA_OPTIONS)
        made = World(dev, spark, folder, many=options.many, some=options.some, few=options.few)
        try:
            yield made
        finally:
            made.close()
            spark.stop()
    finally:
        stop(dev)
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
