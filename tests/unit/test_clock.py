"""Both clocks keep the same contract; the manual one moves only by hand."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from tailrace.clock import Clock, ManualClock, SystemClock
from tailrace.errors import InvariantViolation


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
