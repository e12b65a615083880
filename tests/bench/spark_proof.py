"""Spark's source and sink while somebody dies: every case many times, and a table at the end.

Real brokers and a real Spark. Numbers go through topics; what comes out must equal what is computed
from the numbers (count, sum and a checksum), however often leaders, drivers, executors and Python
workers were killed. The cases are those of tests/integration/spark_cases.py.

    make spark-proof RUNS=10
    PYTHONPATH=tests python tests/bench/spark_proof.py --runs 3 --case "write, driver killed"

A run that fails is told as it is, and the exit code is 1; the seed chooses the moments of death.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from statistics import median

from integration.cluster_harness import start, stop
from integration.spark_cases import CASES, World, run_case
from integration.spark_harness import local_session

MEMORY = Path("/dev/shm")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--many", type=int, default=10_000_000, help="records of plain reads")
    parser.add_argument("--several", type=int, default=2_000_000, help="where a leader dies")
    parser.add_argument("--some", type=int, default=300_000, help="where others die")
    parser.add_argument("--case", action="append", choices=list(CASES), help="only these")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    lines: list[str] = []
    failed = 0
    with world(options) as here:
        for name in options.case or CASES:
            took, good = [], 0
            for number in range(options.runs):
                here.rng = Random(f"{options.seed}/{name}/{number}")
                began = time.perf_counter()
                try:
                    said = run_case(CASES[name], here)
                    good += 1
                except AssertionError as error:
                    said = f"FAILED: {error}"
                took.append(time.perf_counter() - began)
                print(f"{name}, run {number + 1}: {took[-1]:.1f} s: {said}", flush=True)
            failed += options.runs - good
            lines.append(f"{name:36}{good:>4} of {options.runs:<4}{median(took):>8.1f} s")
    print(f"\n{'case':36}{'equal':>11}{'median':>7}")
    print("\n".join(lines))
    return 1 if failed else 0


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
