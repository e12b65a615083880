"""How long a run takes, and what is left out of one that is short."""

from __future__ import annotations

import math

import pytest

from bench.peers.plan import FACTORS, Pace, estimate_s, fitted, in_words
from bench.peers.sizes import Sizes
from bench.peers.workloads import WORKLOADS, Workload

SIZES = Sizes(rounds=3)


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda each: each.name)
def test_every_workload_has_an_estimate_that_grows_with_rounds(workload: Workload) -> None:
    assert 0 < estimate_s(workload, Sizes(rounds=1)) < estimate_s(workload, SIZES) < 600


def test_a_full_run_takes_about_an_hour() -> None:
    assert 40 * 60 < Pace().left_s(WORKLOADS, SIZES) < 80 * 60


def test_what_is_left_is_corrected_by_what_was_spent() -> None:
    whole_s = Pace().left_s(WORKLOADS, SIZES)
    slow = Pace().then(expected_s=10, spent_s=10).then(expected_s=10, spent_s=30)
    assert slow.left_s(WORKLOADS, SIZES) == pytest.approx(2 * whole_s)
    assert Pace().then(expected_s=1, spent_s=1e6).factor == FACTORS[1]


def test_rounds_are_as_many_as_fit() -> None:
    assert fitted(WORKLOADS, SIZES, Pace(), math.inf).sizes.rounds == 3
    two_s = Pace().left_s(WORKLOADS, Sizes(rounds=2))
    fit = fitted(WORKLOADS, SIZES, Pace(), two_s)
    assert (fit.sizes.rounds, fit.workloads) == (2, WORKLOADS)


def test_when_nothing_fits_goals_come_first() -> None:
    fit = fitted(WORKLOADS, SIZES, Pace(), 60.0)
    assert fit.sizes.rounds == 1
    with_goals = [each.name for each in WORKLOADS if each.goals]
    without = [each.name for each in WORKLOADS if not each.goals]
    assert [each.name for each in fit.workloads] == [*with_goals, *without]


def test_time_is_told_in_minutes_or_seconds() -> None:
    assert (in_words(3_300), in_words(12.4)) == ("55 min", "12 s")
