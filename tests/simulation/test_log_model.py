"""The log against its model: thousands of random sequences with crashes, and a disk that lies.

`TAILRACE_SEED=17 TAILRACE_TRACE=1 pytest tests/simulation/test_log_model.py` replays one of them
and prints every step; `TAILRACE_SEEDS=50000` runs that many. Seeds that failed once are kept in
`failing_seeds` and always run.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import pytest

from simulation.log_driver import LogSimulation

SEQUENCES: Final = 2_000
SEQUENCES_PER_TEST: Final = 50
FILE_OPERATIONS_SHOWN: Final = 60
FAILING_SEEDS: Final = Path(__file__).with_name("failing_seeds")

pytestmark = pytest.mark.simulation


def _seeds() -> range:
    if "TAILRACE_SEED" in os.environ:
        seed = int(os.environ["TAILRACE_SEED"])
        return range(seed, seed + 1)
    return range(int(os.environ.get("TAILRACE_SEEDS", SEQUENCES)))


def _chunks() -> list[range]:
    seeds = _seeds()
    return [seeds[at : at + SEQUENCES_PER_TEST] for at in range(0, len(seeds), SEQUENCES_PER_TEST)]


def _failing_seeds() -> list[int]:
    lines = FAILING_SEEDS.read_text(encoding="utf-8").splitlines()
    numbers = (line.partition("#")[0].strip() for line in lines)
    return sorted({int(number) for number in numbers if number})


@pytest.mark.seeded
@pytest.mark.parametrize("seeds", _chunks(), ids=lambda seeds: f"{seeds.start}-{seeds.stop - 1}")
def test_the_log_answers_as_its_model_f14_f26(
    seeds: range, capsys: pytest.CaptureFixture[str]
) -> None:
    with capsys.disabled():
        for seed in seeds:
            run(seed)


@pytest.mark.parametrize("seed", _failing_seeds())
def test_seeds_that_failed_once(seed: int) -> None:
    run(seed)


def run(seed: int) -> None:
    steps: list[str] = []
    trace = print if os.environ.get("TAILRACE_TRACE") else steps.append
    trace(f"seed {seed}")
    simulation = LogSimulation(seed, trace)
    try:
        simulation.run()
    except Exception as error:
        disk = simulation.files.trace().splitlines()[-FILE_OPERATIONS_SHOWN:]
        replay = (
            f"TAILRACE_SEED={seed} TAILRACE_TRACE=1 pytest tests/simulation/{Path(__file__).name}"
        )
        told = "\n".join((*steps, "The disk:", *disk, f"Replay with: {replay}"))
        raise AssertionError(f"seed {seed}: {type(error).__name__}: {error}\n{told}") from error
