"""The Clock port, the system's clock behind it, and one that stands still until it is moved.

This is the only module that reads time: every rule about time takes `now_ms` as an argument, and
the shells that ask for it hold a `Clock`. Monotonic time never goes back; wall time may jump.
"""

from __future__ import annotations

import time
from typing import Final, Protocol

from tailrace.errors import InvariantViolation

NS_IN_MS: Final = 1_000_000
wall_ns: Final = time.time_ns
"""For whoever stamps records by the million: a call of a method would cost as much again."""


class Clock(Protocol):
    """Where a process gets its time from, in whole milliseconds."""

    def monotonic_ms(self) -> int:
        """Time since some fixed moment: for waits, deadlines and leases. It never goes back."""

    def wall_ms(self) -> int:
        """Time since 1970 in UTC: for timestamps that people or other machines read."""


class SystemClock:
    """The clock of this machine."""

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // NS_IN_MS

    def wall_ms(self) -> int:
        return time.time_ns() // NS_IN_MS


class ManualClock:
    """A clock that moves only when it is told to: for tests, simulations and replays."""

    def __init__(self, *, monotonic_ms: int = 0, wall_ms: int = 0) -> None:
        self._monotonic_ms = monotonic_ms
        self._wall_ms = wall_ms

    def monotonic_ms(self) -> int:
        return self._monotonic_ms

    def wall_ms(self) -> int:
        return self._wall_ms

    def advance(self, ms: int) -> None:
        """Let `ms` milliseconds pass on both clocks."""
        if ms < 0:
            raise InvariantViolation(f"monotonic time cannot go back by {-ms} ms")
        self._monotonic_ms += ms
        self._wall_ms += ms

    def set_wall_ms(self, wall_ms: int) -> None:
        """Make the wall clock jump, as an operator or NTP may do."""
        self._wall_ms = wall_ms
