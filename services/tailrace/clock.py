"""The Clock port, the system's clock behind it, one that stands still, and what is believed of one.

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

# What a wall clock that is being corrected may gain or lose on the monotonic one from one look to
# the next; more is a jump.
CLOCK_TOLERANCE_MS: Final = 1_000


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


class TrustedTime:
    """The wall clock as far as it can be believed when data is at stake.

    A clock that jumped ahead makes everything look old. So the time that is believed goes on as
    the monotonic clock does, and follows a jump ahead only when the wall clock has kept to it for
    `settle_ms`; a jump back is followed at once. A clock that was just met counts as one that
    has jumped: until it has settled there is no time at all. Doubt keeps data longer.
    """

    def __init__(self, *, settle_ms: int) -> None:
        self._settle_ms = settle_ms
        # By how much the wall clock was ahead of the monotonic one: now believed, and at last.
        self._believed_ms: int | None = None
        self._last_ms: int | None = None
        self._since_ms = 0

    def now_ms(self, *, wall_ms: int, monotonic_ms: int) -> int | None:
        """The time to judge ages by, None as long as there is none."""
        ahead_ms = wall_ms - monotonic_ms
        if self._last_ms is None or abs(ahead_ms - self._last_ms) > CLOCK_TOLERANCE_MS:
            self._since_ms = monotonic_ms
        self._last_ms = ahead_ms
        if monotonic_ms - self._since_ms >= self._settle_ms:
            self._believed_ms = ahead_ms
        elif self._believed_ms is not None:
            self._believed_ms = min(self._believed_ms, ahead_ms)
        return None if self._believed_ms is None else monotonic_ms + self._believed_ms
