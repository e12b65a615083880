"""How long to wait before trying again: longer each time, with jitter, up to a limit."""

from __future__ import annotations

from random import Random
from typing import Final

_FACTOR: Final = 2
# A wait is from half of the nominal one to all of it, so that many do not retry in step.
_JITTER: Final = 0.5


def jittered(rng: Random) -> float:
    """Which share of a nominal wait to wait."""
    return 1 - _JITTER * rng.random()


class Backoff:
    """The waits of one thing that is tried until it succeeds."""

    def __init__(self, first_ms: int, max_ms: int, rng: Random) -> None:
        self._first_ms = first_ms
        self._max_ms = max_ms
        self._rng = rng
        self._next_ms = first_ms

    def next_s(self) -> float:
        """Seconds to wait now."""
        wait_ms, self._next_ms = self._next_ms, min(self._next_ms * _FACTOR, self._max_ms)
        return wait_ms * jittered(self._rng) / 1_000

    def reset(self) -> None:
        """It has succeeded."""
        self._next_ms = self._first_ms
