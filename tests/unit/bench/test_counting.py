"""Slices of a broker that switches its counting, made into one figure with its interval."""

from __future__ import annotations

import math
from random import Random

import pytest

from bench.bench_counting import Slice, pairs, share


def test_pairs_compare_what_a_record_costs_whichever_came_first() -> None:
    slices = [
        *(Slice(True, 0.011, 100), Slice(False, 0.010, 100)),
        *(Slice(False, 0.020, 200), Slice(True, 0.011, 100)),
        # So little was done that it says nothing.
        *(Slice(True, 0.010, 3), Slice(False, 0.001, 90)),
    ]
    assert pairs(slices) == pytest.approx([math.log(1.1), math.log(1.1)])


def test_outliers_do_not_move_the_share_and_its_interval_covers_the_truth() -> None:
    random = Random(1)
    logs = [math.log(1.005) + random.gauss(0, 0.05) for _ in range(4_000)]
    logs += [random.choice((-1, 1)) * random.uniform(1, 3) for _ in range(200)]
    found = share(logs)
    assert found.pairs == 4_200
    assert abs(found.more - 0.005) < found.around < 0.003
