"""Whether the named scenarios find anything: each broken rule is caught, by the seed it names."""

from __future__ import annotations

import pytest

from simulation.cluster_mutants import MUTANTS, Mutant, outcome

pytestmark = pytest.mark.simulation


@pytest.mark.parametrize("mutant", MUTANTS, ids=[each.fault for each in MUTANTS])
def test_a_broken_rule_is_caught(mutant: Mutant) -> None:
    assert outcome(mutant, mutant.seed) is not None


@pytest.mark.parametrize("mutant", MUTANTS, ids=[each.fault for each in MUTANTS])
def test_the_same_run_without_the_mistake_holds(mutant: Mutant) -> None:
    assert mutant.play(mutant.seed).witness.acknowledged_count > 0
