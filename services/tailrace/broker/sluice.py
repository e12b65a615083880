"""A line before a budget: who finds no room waits, and is let in in the order of coming.

For work that may wait (data that is read for clients), where `Budget` alone refuses. A waiter that
gives up leaves the line; what it was just given goes back.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress

from tailrace.broker.budget import Budget
from tailrace.clock import Clock


class Sluice:
    """Lets in as many bytes at a time as the budget has."""

    def __init__(self, bytes_max: int, clock: Clock) -> None:
        self._budget = Budget(bytes_max)
        self._clock = clock
        self._line: deque[tuple[asyncio.Future[None], int]] = deque()

    @property
    def bytes(self) -> int:
        return self._budget.bytes

    @property
    def waiting(self) -> int:
        return len(self._line)

    async def enter(self, size: int) -> None:
        """Wait for room; `leave` with the same size when done."""
        if not self._line and self._budget.admit(size):
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._line.append((waiter, size))
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self.leave(size)
            else:
                with suppress(ValueError):
                    self._line.remove((waiter, size))
                self._let_in()
            raise

    def leave(self, size: int) -> None:
        self._budget.release(size, self._clock.monotonic_ms())
        self._let_in()

    def _let_in(self) -> None:
        while self._line:
            waiter, size = self._line[0]
            if not waiter.done():
                if not self._budget.admit(size):
                    return
                waiter.set_result(None)
            self._line.popleft()
