"""Spark's source and sink while somebody dies: every case many times, and a table at the end.

Real brokers and a real Spark. Numbers go through topics; what comes out must equal what is computed
from the numbers (count, sum and a checksum), however often leaders, drivers, executors and Python
workers were killed. The cases are those of tests/integration/spark_cases.py.

    make spark-proof RUNS=10
    PYTHONPATH=tests python tests/bench/spark_proof.py --runs 3 --case "write, driver killed"

A run that fails is told as it is, and the exit code is 1; the seed chooses the moments of death. A
run in which nobody was hit, since the death came too late, does not count and is run again.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from statistics import median

from integration.cluster_harness import start, stop
from integration.spark_cases import CASES, TooLate, World, run_case
from integration.spark_harness import local_session

MEMORY = Path("/dev/shm")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--many", type=int, default=10_000_000, help="records of plain reads")
    parser.add_argument("--several", type=int, default=10_000_000, help="where a reader dies")
    parser.add_argument("--some", type=int, default=300_000, help="of writes")
    parser.add_argument("--case", action="append", choices=list(CASES), help="only these")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))
    lines: list[str] = []
    failed = 0
    with world(options) as here:
        for name in options.case or CASES:
            tally = prove(here, name, options.runs, options.seed)
            failed += options.runs - tally.good
            lines.append(
                f"{name:36}{tally.good:>4} of {options.runs:<4}{tally.late:>6}"
                f"{median(tally.took_s):>9.1f} s"
            )
    print(f"\n{'case':36}{'equal':>11}{'late':>7}{'median':>10}")
    print("\n".join(lines))
    return 1 if failed else 0


@dataclass
class Tally:
    """How the runs of a case ended."""

    good: int = 0
    bad: int = 0
    late: int = 0
    took_s: list[float] = field(default_factory=list)


def prove(here: World, name: str, runs: int, seed: int) -> Tally:
    """Run a case until so many runs count; those that came too late, as often again at most."""
    tally = Tally()
    while tally.good + tally.bad < runs and tally.late <= runs:
        number = len(tally.took_s)
        here.rng = Random(f"{seed}/{name}/{number}")
        began = time.perf_counter()
        try:
            said = run_case(CASES[name], here)
            tally.good += 1
        except TooLate as error:
            said = f"too late, does not count: {error}"
            tally.late += 1
        except AssertionError as error:
            said = f"FAILED: {error}"
            tally.bad += 1
        tally.took_s.append(time.perf_counter() - began)
        print(f"{name}, run {number + 1}: {tally.took_s[-1]:.1f} s: {said}", flush=True)
    return tally


@contextmanager
def world(options: argparse.Namespace) -> Iterator[World]:
    """A cluster and a session in a folder that is gone afterwards."""
    folder = Path(tempfile.mkdtemp(dir=MEMORY if MEMORY.is_dir() else None, prefix="spark-proof-"))
    dev = start(folder / "cluster", coordinators=1)
    try:
        spark = local_session("proof", master="local[2,20]")
        made = World(
            dev, spark, folder, many=options.many, several=options.several, some=options.some
        )
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
