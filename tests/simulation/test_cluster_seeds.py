"""Random faults on a whole simulated cluster, by seed.

TAILRACE_SEEDS=N runs N seeds, TAILRACE_SEED=n replays one, TAILRACE_TRACE=1 prints what happens.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from simulation.faults import Nemesis
from simulation.loop import SimLoop
from simulation.scenario import Run

SEEDS = int(os.environ.get("TAILRACE_SEEDS", "400"))
SEEDS_PER_TEST = 10
FAULTS_S = 8.0
# By the last digit of the seed: a topic that keeps little, and one that is compacted.
TOPIC_CONFIGS = {
    6: {"retention.bytes": "4096", "segment.bytes": "1024"},
    8: {
        "cleanup.policy": "compact",
        "segment.bytes": "1024",
        "min.cleanable.dirty.ratio": "0.2",
    },
}
# By the last digit of the seed, too: four brokers, and somebody who moves replicas about.
ADMINISTERED = {1, 4}
FAILED = Path(__file__).with_name("failing_cluster_seeds")


def play(seed: int) -> int:
    """One run; returns how many records were acknowledged."""
    loop = SimLoop(seed)
    if os.environ.get("TAILRACE_TRACE"):
        loop.note = lambda text: print(f"{loop.now_ms / 1000:9.3f} {text}")  # type: ignore[method-assign]

    async def main(loop: SimLoop) -> int:
        last = seed % 10
        run = Run(loop, config=TOPIC_CONFIGS.get(last), administered=last in ADMINISTERED)
        nemesis = Nemesis(run, duration_s=FAULTS_S, rng=loop.fork_rng("nemesis"))
        await run.play(lambda _: nemesis.play())
        return run.witness.acknowledged_count

    return loop.run(main)


def seeds() -> list[int]:
    if "TAILRACE_SEED" in os.environ:
        return [int(os.environ["TAILRACE_SEED"])]
    return list(range(SEEDS))


def failed_seeds() -> list[int]:
    lines = FAILED.read_text(encoding="utf-8").splitlines()
    return [int(line.split()[0]) for line in lines if line and not line.startswith("#")]


@pytest.mark.simulation
@pytest.mark.seeded
@pytest.mark.parametrize(
    "chunk", [seeds()[at : at + SEEDS_PER_TEST] for at in range(0, len(seeds()), SEEDS_PER_TEST)]
)
def test_seeds(chunk: list[int]) -> None:
    for seed in chunk:
        try:
            acknowledged = play(seed)
        except Exception as error:
            error.add_note(f"replay: make sim SEED={seed} TRACE=1")
            raise
        assert acknowledged > 0


@pytest.mark.simulation
@pytest.mark.parametrize("seed", failed_seeds())
def test_seeds_that_failed_once(seed: int) -> None:
    play(seed)
