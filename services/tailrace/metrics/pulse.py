"""The pulse of an event loop: a tick four times a second, and how late each one came.

A loop that is late is late for everybody: produce requests, followers, the lease. Whoever asks for
`/livez` is answered by the same loop, so an answer already says that it turns; a last tick that is
old says that it does not turn as it should.
"""

from __future__ import annotations

import asyncio
from typing import Final

from tailrace.clock import Clock
from tailrace.metrics.values import Histogram

TICK_MS: Final = 250
# A loop whose last tick is older than this does not live.
LIVE_MAX_MS: Final = 10_000
# The worst lateness is told for this long at least, and for twice as long at most.
WORST_WINDOW_MS: Final = 60_000


class Pulse:
    """Ticks while `run` runs."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last_ms = clock.monotonic_ms()
        self._window_ms = self._last_ms
        self._worst = [0, 0]
        self.lateness = Histogram()

    async def run(self) -> None:
        while True:
            due_ms = self._clock.monotonic_ms() + TICK_MS
            await asyncio.sleep(TICK_MS / 1_000)
            self.beat(due_ms)

    def beat(self, due_ms: int) -> None:
        """A tick that was due then happens now."""
        now_ms = self._clock.monotonic_ms()
        late_ms = max(now_ms - due_ms, 0)
        self._last_ms = now_ms
        self.lateness.observe(late_ms)
        if now_ms - self._window_ms >= WORST_WINDOW_MS:
            self._window_ms = now_ms
            self._worst = [0, self._worst[0]]
        self._worst[0] = max(self._worst[0], late_ms)

    @property
    def worst_ms(self) -> int:
        """The latest tick of the last minute or two."""
        return max(self._worst)

    def trouble(self) -> str:
        """Why the loop cannot be said to live; empty: it does."""
        age_ms = self._clock.monotonic_ms() - self._last_ms
        if age_ms <= LIVE_MAX_MS:
            return ""
        return f"the event loop has not ticked for {age_ms} ms, the limit is {LIVE_MAX_MS} ms"
