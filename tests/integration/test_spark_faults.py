"""Every case of spark_cases once, with fewer records: `make spark-proof` is the long run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from integration.cluster_harness import start, stop
from integration.spark_cases import CASES, TooLate, World, run_case
from integration.spark_harness import local_session

ROUNDS = int(os.environ.get("TAILRACE_SPARK_ROUNDS", "1"))
MANY, SOME = 2_000_000, 100_000
# Of a round: a death that comes too late proves nothing.
ATTEMPTS = 3

pytestmark = [
    pytest.mark.integration,
    pytest.mark.by_hand,
    pytest.mark.timeout(600 + 300 * ROUNDS),
    # Of pyspark and py4j, not ours.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


@pytest.fixture(scope="module")
def world(memory_folder: Path) -> Iterator[World]:
    dev = start(memory_folder / "cluster", coordinators=1)
    spark = local_session("faults", master="local[2,20]")
    made = World(dev, spark, memory_folder, many=MANY, some=SOME, few=SOME)
    yield made
    made.close()
    spark.stop()
    stop(dev)


@pytest.mark.parametrize("name", list(CASES))
def test_every_row_once(world: World, name: str) -> None:
    for number in range(ROUNDS):
        for attempt in range(ATTEMPTS):
            world.rng = Random(f"{name}/{number}/{attempt}")
            try:
                run_case(CASES[name], world)
                break
            except TooLate:
                assert attempt + 1 < ATTEMPTS, "nobody was hit"
