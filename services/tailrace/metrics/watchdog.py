"""The watchdog of an event loop: it names whoever holds the loop for too long, with the stack.

The loop sets a heartbeat; a thread looks at it. A heartbeat that is older than the limit is a turn
that has not ended: the stack of the loop's thread says where it is. It is said once per turn, and
not more often than `SAY_INTERVAL_MS`; every one is counted. When the thread itself woke as late,
the process was stopped or starved, and the loop is not to blame.

It belongs to a process: services that run in a simulator have none.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from tailrace.clock import Clock
from tailrace.metrics.values import Histogram

# The heartbeat, and the look at it, come so many times within the limit.
LOOKS_PER_LIMIT: Final = 5
LOOK_MS_MIN: Final = 10
SAY_INTERVAL_MS: Final = 5_000
STACK_FRAMES_MAX: Final = 30
BOUNDS_MS: Final = (250, 500, 1_000, 2_500, 5_000, 10_000, 30_000, 60_000)


class Watchdog:
    """Counts the turns of a loop that were longer than the limit. Times come from outside."""

    def __init__(
        self, *, limit_ms: int, say: Callable[[str], None], stack: Callable[[], str]
    ) -> None:
        """`stack`: what the loop's thread does at this moment."""
        self.limit_ms = limit_ms
        self.look_ms = max(limit_ms // LOOKS_PER_LIMIT, LOOK_MS_MIN)
        self._say = say
        self._stack = stack
        self._beat_ms: int | None = None
        self._looked_ms: int | None = None
        # The heartbeat that was the last before the turn that is under way and too long.
        self._held_since_ms: int | None = None
        self._said_ms: int | None = None
        self.stalls = Histogram(BOUNDS_MS)
        self.worst_ms = 0

    def beat(self, now_ms: int) -> None:
        """On the loop: it turns."""
        self._beat_ms = now_ms

    def look(self, now_ms: int) -> None:
        """On the thread: is the heartbeat as young as it should be?"""
        beat_ms, looked_ms = self._beat_ms, self._looked_ms
        self._looked_ms = now_ms
        held_ms = self._held_since_ms
        if held_ms is not None and beat_ms is not None and beat_ms > held_ms:
            self._held_since_ms = None
            self._ended(beat_ms - held_ms)
        if beat_ms is None or looked_ms is None:
            return
        if now_ms - looked_ms > 2 * self.look_ms + LOOK_MS_MIN:
            # This thread was late too: what the heartbeat says is not the loop's doing.
            return
        if now_ms - beat_ms > self.limit_ms + self.look_ms and self._held_since_ms is None:
            self._held_since_ms = beat_ms
            self._tell(now_ms, now_ms - beat_ms)

    def _ended(self, took_ms: int) -> None:
        self.stalls.observe(took_ms)
        self.worst_ms = max(self.worst_ms, took_ms)

    def _tell(self, now_ms: int, age_ms: int) -> None:
        if self._said_ms is None or now_ms - self._said_ms >= SAY_INTERVAL_MS:
            self._said_ms = now_ms
            self._say(
                f"the event loop has not turned for {age_ms} ms, loop.stall.warn.ms is "
                f"{self.limit_ms}; it is here:\n{self._stack()}"
            )


@contextmanager
def watched(clock: Clock, say: Callable[[str], None], *, limit_ms: int) -> Iterator[Watchdog]:
    """Watch the running loop, called on it, while the body runs."""
    loop, ident = asyncio.get_running_loop(), threading.get_ident()

    dog = Watchdog(limit_ms=limit_ms, say=say, stack=lambda: stack_of(ident))
    ended = threading.Event()
    timer: list[asyncio.TimerHandle] = []

    def beat() -> None:
        dog.beat(clock.monotonic_ms())
        timer[:] = [loop.call_later(dog.look_ms / 1_000, beat)]

    def look() -> None:
        while not ended.wait(dog.look_ms / 1_000):
            dog.look(clock.monotonic_ms())

    beat()
    thread = threading.Thread(target=look, name="loop watchdog", daemon=True)
    thread.start()
    try:
        yield dog
    finally:
        timer[0].cancel()
        ended.set()
        thread.join()


def stack_of(ident: int) -> str:
    """What a thread does at this moment, the innermost frame last."""
    frame = sys._current_frames().get(ident)
    if frame is None:
        return "(no such thread)"
    return "".join(traceback.format_stack(frame)[-STACK_FRAMES_MAX:]).rstrip()
