"""The replica machines under seeded faults, and proof that the model notices broken rules.

TAILRACE_SEEDS=N runs N seeds, TAILRACE_SEED=n replays one, TAILRACE_TRACE=1 prints each step.
"""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from simulation.replication_model import first_violation, run_seed
from simulation.replication_mutants import MUTANTS, Mutant
from simulation.replication_parts import Scenario, Violation
from tailrace.errors import InvariantViolation

SEEDS = int(os.environ.get("TAILRACE_SEEDS", "1000"))
SEEDS_PER_TEST = 250
# Within so many seeds a broken rule must show.
SEEDS_TO_NOTICE = 600

SCRIPTED = [mutant for mutant in MUTANTS if mutant.script is not None]
BY_CHANCE = [mutant for mutant in MUTANTS if mutant.script is None]


def seeds() -> list[int]:
    if "TAILRACE_SEED" in os.environ:
        return [int(os.environ["TAILRACE_SEED"])]
    return list(range(SEEDS))


def mutant_id(mutant: Mutant) -> str:
    return f"{mutant.faults}: {mutant.name}".replace(" ", "_")


@pytest.mark.simulation
@pytest.mark.seeded
@pytest.mark.parametrize(
    "chunk", [seeds()[at : at + SEEDS_PER_TEST] for at in range(0, len(seeds()), SEEDS_PER_TEST)]
)
def test_seeds(chunk: list[int]) -> None:
    committed = 0
    trace = print if os.environ.get("TAILRACE_TRACE") else None
    for seed in chunk:
        try:
            committed += len(run_seed(seed, trace=trace).committed)
        except (Violation, InvariantViolation) as error:
            error.add_note(f"replay: make sim SEED={seed} TRACE=1")
            raise
    assert committed > 0 or len(chunk) == 1


@pytest.mark.simulation
def test_the_same_seed_makes_the_same_run() -> None:
    first: list[str] = []
    second: list[str] = []
    run_seed(7, trace=first.append)
    run_seed(7, trace=second.append)
    assert first == second
    assert len(first) > 100


@pytest.mark.simulation
@pytest.mark.parametrize("mutant", SCRIPTED, ids=mutant_id)
def test_scripts_hold(mutant: Mutant) -> None:
    assert mutant.script is not None
    whole = replace(mutant.scenario(0), guards_followers=True, forgets_pushes=True)
    mutant.script(whole)


@pytest.mark.simulation
@pytest.mark.parametrize("mutant", SCRIPTED, ids=mutant_id)
def test_broken_rules_are_noticed_in_scripts(
    mutant: Mutant, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert mutant.script is not None
    mutant.apply(monkeypatch)
    with pytest.raises((Violation, InvariantViolation)):
        mutant.script(mutant.scenario(0))


@pytest.mark.simulation
@pytest.mark.parametrize("mutant", BY_CHANCE, ids=mutant_id)
def test_broken_rules_are_noticed(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant.apply(monkeypatch)
    assert first_violation(range(SEEDS_TO_NOTICE), mutant.scenario) is not None


def test_a_world_without_faults_commits_everything() -> None:
    calm = Scenario(steps=0)
    assert run_seed(0, calm).store.state.isr == (1, 2, 3)
