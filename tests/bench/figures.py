"""Figures of rounds: their median and spread, percentiles, which way is better. Pure."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median


class Better(enum.StrEnum):
    """Which way a figure should go."""

    MORE = "more"
    LESS = "less"


@dataclass(frozen=True, slots=True)
class Spread:
    """What some rounds gave."""

    median: float
    low: float
    high: float


def spread(values: Sequence[float]) -> Spread:
    return Spread(median(values), min(values), max(values))


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least this share of all do not exceed."""
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)]


def gain(now: float, before: float, better: Better) -> float:
    """By how much it is better than before, as a share: -0.1 is a tenth worse."""
    return (now / before if better is Better.MORE else before / now) - 1
