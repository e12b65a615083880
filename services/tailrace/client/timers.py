"""When a producer has to look again: retries, linger, deadlines. One task sleeps for all."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from heapq import heappop, heappush
from itertools import count
from typing import Final, Generic, TypeVar

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
