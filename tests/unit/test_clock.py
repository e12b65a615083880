"""Both clocks keep the same contract; the manual one moves only by hand."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from tailrace.clock import Clock, ManualClock, SystemClock, TrustedTime
from tailrace.errors import InvariantViolation

HOUR_MS = 3_600_000
SETTLE_MS = 600_000
WALL_MS = 1_700_000_000_000


@pytest.mark.parametrize("clock", [SystemClock(), ManualClock(monotonic_ms=5, wall_ms=7)])
def test_monotonic_time_never_goes_back(clock: Clock) -> None:
    readings = [clock.monotonic_ms() for _ in range(1_000)]
    assert readings == sorted(readings)
    assert all(type(reading) is int for reading in readings)


def test_the_system_clock_tells_wall_time_in_milliseconds() -> None:
    before = datetime.now(UTC).timestamp()
    wall_ms = SystemClock().wall_ms()
    after = datetime.now(UTC).timestamp()
    assert int(before * 1000) - 1 <= wall_ms <= after * 1000 + 1


def test_the_manual_clock_moves_both_times_together() -> None:
    clock = ManualClock(monotonic_ms=10, wall_ms=1_000)
    clock.advance(5)
    assert (clock.monotonic_ms(), clock.wall_ms()) == (15, 1_005)


def test_only_wall_time_jumps() -> None:
    clock = ManualClock(monotonic_ms=10, wall_ms=1_000)
    clock.set_wall_ms(400)
    assert (clock.monotonic_ms(), clock.wall_ms()) == (10, 400)


def test_the_manual_clock_refuses_to_go_back() -> None:
    clock = ManualClock()
    with pytest.raises(InvariantViolation, match="cannot go back by 3 ms"):
        clock.advance(-3)
    assert clock.monotonic_ms() == 0


class Clocks:
    """A monotonic clock, and a wall clock that is ahead of it by what a test says."""

    def __init__(self, time: TrustedTime) -> None:
        self._time = time
        self.monotonic_ms = 5_000
        self.ahead_ms = WALL_MS

    def after(self, ms: int) -> int | None:
        """What is believed after so long, by how much it differs from a clock that never jumps."""
        now_ms = None
        while ms > 0:
            step_ms = min(ms, 30_000)
            ms -= step_ms
            self.monotonic_ms += step_ms
            now_ms = self._time.now_ms(
                wall_ms=self.monotonic_ms + self.ahead_ms, monotonic_ms=self.monotonic_ms
            )
        return None if now_ms is None else now_ms - self.monotonic_ms - WALL_MS


@pytest.fixture
def clocks() -> Clocks:
    return Clocks(TrustedTime(settle_ms=SETTLE_MS))


def test_a_clock_that_was_just_met_says_nothing(clocks: Clocks) -> None:
    assert clocks.after(SETTLE_MS) is None
    assert clocks.after(30_000) == 0


def test_a_clock_need_not_settle_where_that_is_said() -> None:
    assert Clocks(TrustedTime(settle_ms=0)).after(1) == 0


@pytest.mark.parametrize("jump_ms", [HOUR_MS, 365 * 24 * HOUR_MS])
def test_a_jump_ahead_is_believed_late_f29(clocks: Clocks, jump_ms: int) -> None:
    clocks.after(2 * SETTLE_MS)
    clocks.ahead_ms += jump_ms
    assert clocks.after(SETTLE_MS) == 0
    assert clocks.after(60_000) == jump_ms


def test_a_jump_ahead_that_is_taken_back_never_counts_f29(clocks: Clocks) -> None:
    clocks.after(2 * SETTLE_MS)
    for _ in range(10):
        clocks.ahead_ms += HOUR_MS
        assert clocks.after(SETTLE_MS - 60_000) == 0
        clocks.ahead_ms -= HOUR_MS
        assert clocks.after(60_000) == 0


def test_a_jump_back_is_followed_at_once_f29(clocks: Clocks) -> None:
    clocks.after(2 * SETTLE_MS)
    clocks.ahead_ms -= HOUR_MS
    assert clocks.after(1_000) == -HOUR_MS
    clocks.ahead_ms += HOUR_MS
    assert clocks.after(SETTLE_MS) == -HOUR_MS
    assert clocks.after(60_000) == 0


def test_a_clock_that_is_being_corrected_is_followed(clocks: Clocks) -> None:
    clocks.after(2 * SETTLE_MS)
    for _ in range(100):
        clocks.ahead_ms += 15
        clocks.after(30_000)
    assert clocks.after(1_000) == 1_500
