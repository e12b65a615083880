"""How far groups are behind, in records and in time. Pure.

How long ago a record was appended is told from when the end of its log was seen where: every few
seconds the ends are noted, and in between it is reckoned evenly. So the time is right to within one
interval, and for a position older than all that was noted it is at least so long.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import Final, NamedTuple

from tailrace.metrics.families import OTHER

# Noted ends of one partition: the older they are, the further apart.
POINTS_MAX: Final = 32
# Pairs of a group and a topic with series of their own; the furthest behind are shown.
PAIRS_SHOWN_MAX: Final = 500


class EndTimes:
    """When the end of one partition was where."""

    __slots__ = ("_ends", "_times_ms")

    def __init__(self) -> None:
        self._ends: list[int] = []
        self._times_ms: list[int] = []

    def note(self, end: int, now_ms: int) -> None:
        """The log ends there now. One that ends before where it did was cut, or is another."""
        if self._ends and end < self._ends[-1]:
            self._ends.clear()
            self._times_ms.clear()
        self._ends.append(end)
        self._times_ms.append(now_ms)
        if len(self._ends) > 2 and self._ends[-3] == end:
            # Nothing came: only the last time counts.
            del self._ends[-2], self._times_ms[-2]
        if len(self._ends) > POINTS_MAX:
            del self._ends[1 : POINTS_MAX // 2 : 2], self._times_ms[1 : POINTS_MAX // 2 : 2]

    @property
    def end(self) -> int:
        return self._ends[-1] if self._ends else 0

    def lag(self, position: int) -> int:
        """Records from a position on."""
        return max(self.end - position, 0)

    def lag_ms(self, position: int, now_ms: int) -> int:
        """How long ago the record at a position was appended; 0 when there is none yet."""
        after = bisect_right(self._ends, position)
        if after == len(self._ends):
            return 0
        if after == 0:
            return max(now_ms - self._times_ms[0], 0)
        end, former = self._ends[after], self._ends[after - 1]
        began_ms, ended_ms = self._times_ms[after - 1], self._times_ms[after]
        share = (position - former) / (end - former)
        return max(round(now_ms - (began_ms + share * (ended_ms - began_ms))), 0)


class Lag(NamedTuple):
    """How far a group is behind in a topic: all records, and the longest time."""

    group: str
    kind: str
    topic: str
    records: int
    ms: int


def shown(lags: Iterable[Lag], *, pairs_max: int = PAIRS_SHOWN_MAX) -> list[Lag]:
    """Those with series of their own, the furthest behind; the others as one of each kind."""
    found = sorted(lags, key=lambda each: (-each.ms, -each.records, each.group, each.topic))
    kept, rest = found[:pairs_max], found[pairs_max:]
    for kind in sorted({each.kind for each in rest}):
        others = [each for each in rest if each.kind == kind]
        records = sum(each.records for each in others)
        kept.append(Lag(OTHER, kind, OTHER, records, max(each.ms for each in others)))
    return kept
