"""Medians, percentiles, gains."""

from __future__ import annotations

import pytest

from bench.figures import Better, Spread, gain, percentile, spread


def test_a_spread_is_median_lowest_and_highest() -> None:
    assert spread([3.0, 1.0, 2.0]) == Spread(2.0, 1.0, 3.0)
    assert spread([4.0]) == Spread(4.0, 4.0, 4.0)


@pytest.mark.parametrize(("share", "expected"), [(0.0, 1), (0.5, 51), (0.99, 100), (1.0, 100)])
def test_a_percentile_is_a_value_that_was_measured(share: float, expected: int) -> None:
    assert percentile(list(range(100, 0, -1)), share) == expected


def test_a_gain_is_positive_when_it_got_better_whichever_way_that_is() -> None:
    assert gain(2.0, 1.0, Better.MORE) == 1.0
    assert gain(1.0, 2.0, Better.LESS) == 1.0
    assert gain(0.5, 1.0, Better.MORE) == -0.5
    assert gain(2.0, 1.0, Better.LESS) == -0.5
