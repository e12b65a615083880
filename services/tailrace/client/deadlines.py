"""The earliest of many deadlines. Pure."""

from __future__ import annotations

from heapq import heappop, heappush, heapreplace
from itertools import count
from typing import Generic, Protocol, TypeVar


class Line(Protocol):
    """Things in the order of their deadlines. `is_watched` belongs to `Deadlines`."""

    is_watched: bool

    def first_deadline_ms(self) -> int | None:
        """Of the first that stands in it; None: nothing does."""


L = TypeVar("L", bound=Line)


class Deadlines(Generic[L]):
    """Which of many lines has the earliest deadline.

    It knows lines, never what stands in them: whatever has left its line is not held here, however
    long the deadline of something else is ahead.
    Invariant: a line that is not empty has one entry, no later than its first deadline.
    """

    def __init__(self) -> None:
        self._entries: list[tuple[int, int, L]] = []
        self._numbers = count()

    def watch(self, line: L) -> None:
        """Something was put into it."""
        if not line.is_watched and (first_ms := line.first_deadline_ms()) is not None:
            line.is_watched = True
            heappush(self._entries, (first_ms, next(self._numbers), line))

    def first(self) -> tuple[int, L] | None:
        """The earliest deadline, and the line whose first it is of."""
        entries = self._entries
        while entries:
            known_ms, number, line = entries[0]
            first_ms = line.first_deadline_ms()
            if first_ms is None:
                line.is_watched = False
                heappop(entries)
            elif first_ms > known_ms:
                heapreplace(entries, (first_ms, number, line))
            else:
                return first_ms, line
        return None
