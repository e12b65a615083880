"""When a producer has to look again: retries, linger, deadlines. One task sleeps for all."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from heapq import heappop, heappush, heapreplace
from itertools import count
from typing import Final, Generic, Protocol, TypeVar

NO_DUE_MS: Final = 2**62

T = TypeVar("T")


class Timers(Generic[T]):
    """Things that become due. Whoever sleeps is woken when something is due before that."""

    def __init__(self) -> None:
        self._due: list[tuple[int, int, T]] = []
        self._numbers = count()
        self._sleeps_until_ms = NO_DUE_MS
        self._sooner = asyncio.Event()

    def set(self, due_ms: int, what: T) -> None:
        heappush(self._due, (due_ms, next(self._numbers), what))
        self.wake_before(due_ms)

    def wake_before(self, due_ms: int) -> None:
        """Something of the caller's own is due then."""
        if due_ms < self._sleeps_until_ms:
            self._sooner.set()

    def pop(self, now_ms: int) -> T | None:
        """What is due, one after the other; None: nothing more."""
        return heappop(self._due)[2] if self._due and self._due[0][0] <= now_ms else None

    async def sleep(self, now_ms: int, until_ms: int | None) -> None:
        """Until then (None: for ever), or until something is due before."""
        due_ms = NO_DUE_MS if until_ms is None else until_ms
        if self._due:
            due_ms = min(due_ms, self._due[0][0])
        self._sleeps_until_ms = due_ms
        self._sooner.clear()
        wait_s = None if due_ms == NO_DUE_MS else (due_ms - now_ms) / 1000
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await self._sooner.wait()


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
