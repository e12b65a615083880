"""Filters on partition, offset and timestamp, made into bounds on what is read. Pure.

Spark checks every filter again on the rows that come, so a bound may be wide, but it must never
leave out a row that passes. A filter that is not understood bounds nothing.

Times: all records before the first one at or after a moment are older, so a lower bound on the time
is a lower bound on the offset. The reverse does not hold: an older record may stand behind a newer
one, unless the leader stamps the times itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

_US_IN_MS: Final = 1_000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Bounds:
    """Whole numbers from `low` up to, not including, `high`; None: no bound."""

    low: int | None = None
    high: int | None = None

    def narrowed(self, low: int | None, high: int | None) -> Bounds:
        lows = [each for each in (self.low, low) if each is not None]
        highs = [each for each in (self.high, high) if each is not None]
        return Bounds(max(lows, default=None), min(highs, default=None))

    def has(self, number: int) -> bool:
        above = self.low is None or number >= self.low
        return above and (self.high is None or number < self.high)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What has to be read; times are in ms."""

    partitions: Bounds = Bounds()
    offsets: Bounds = Bounds()
    times: Bounds = Bounds()

    @property
    def is_all(self) -> bool:
        return self == Wanted()


def wanted_by(filters: Iterable[Filter]) -> Wanted:
    """The bounds of all filters together."""
    wanted = Wanted()
    for each in filters:
        bounds = _bounds(each)
        if bounds is None:
            continue
        column, low, high = bounds
        if column == "partition":
            wanted = replace(wanted, partitions=wanted.partitions.narrowed(low, high))
        elif column == "offset":
            wanted = replace(wanted, offsets=wanted.offsets.narrowed(low, high))
        elif column == "timestamp":
            # A moment within a millisecond: every row of that millisecond may pass.
            low_ms = None if low is None else low // _US_IN_MS
            high_ms = None if high is None else -(-high // _US_IN_MS)
            wanted = replace(wanted, times=wanted.times.narrowed(low_ms, high_ms))
    return wanted


def _bounds(each: Filter) -> tuple[str, int | None, int | None] | None:
    """(column, low, high) of one filter; times in µs. None when it says nothing of use."""
    attribute: tuple[str, ...] = getattr(each, "attribute", ())
    if len(attribute) != 1:
        return None
    column = str(attribute[0]).lower()
    if isinstance(each, In):
        numbers = [_number(value) for value in each.value]
        known = [number for number in numbers if number is not None]
        if not known or len(known) != len(numbers):
            return None
        return column, min(known), max(known) + 1
    number = _number(getattr(each, "value", None))
    if number is None:
        return None
    match each:
        case EqualTo() | EqualNullSafe():
            return column, number, number + 1
        case GreaterThan():
            return column, number + 1, None
        case GreaterThanOrEqual():
            return column, number, None
        case LessThan():
            return column, None, number
        case LessThanOrEqual():
            return column, None, number + 1
        case _:
            return None


def _number(value: Any) -> int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    if isinstance(value, datetime) and value.tzinfo is not None:
        since = value - _EPOCH
        return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
    return None
