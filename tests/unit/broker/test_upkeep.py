"""What housekeeping decides: the time it believes, whose turn it is, how long it rests."""

from __future__ import annotations

import pytest

from tailrace.broker.upkeep import BACKOFF_MS_MAX, CleaningQueue, Pace, TrustedTime
from tailrace.log.cleaning.cleanable import Dirtiness
from tailrace.model import TopicPartition

HOUR_MS = 3_600_000
SETTLE_MS = 600_000
WALL_MS = 1_700_000_000_000
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


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


@pytest.mark.parametrize(
    ("moved_bytes", "took_ms", "pause_ms"),
    [(1_000_000, 10, 990), (1_000_000, 900, 900), (1_000_000, 5_000, 5_000), (0, 0, 1), (1, 7, 7)],
)
def test_a_rest_keeps_the_rate_and_half_of_the_time(
    moved_bytes: int, took_ms: int, pause_ms: int
) -> None:
    assert Pace(1_000_000).pause_ms(moved_bytes=moved_bytes, took_ms=took_ms) == pause_ms


def test_the_dirtiest_log_comes_first_unless_it_failed() -> None:
    queue = CleaningQueue(backoff_ms=1_000)
    logs = {T0: Dirtiness(0, 100), T1: Dirtiness(50, 50)}
    ratios = {T0: 0.5, T1: 0.5}
    assert queue.choose(logs, ratios, now_ms=0) == T0
    assert queue.failed(T0, now_ms=0) == 2_000
    assert queue.choose(logs, ratios, now_ms=1_999) == T1
    assert queue.choose(logs, ratios, now_ms=2_000) == T0
    assert queue.failed(T0, now_ms=2_000) == 4_000
    queue.succeeded(T0)
    assert queue.choose(logs, ratios, now_ms=2_000) == T0
    assert queue.choose({T1: Dirtiness(51, 49)}, ratios, now_ms=0) is None


def test_a_log_that_fails_for_ever_is_tried_now_and_then() -> None:
    queue = CleaningQueue(backoff_ms=1_000)
    waits = [queue.failed(T0, now_ms=0) for _ in range(40)]
    assert waits[-1] == BACKOFF_MS_MAX
    queue.keep_only({T1})
    assert queue.failed(T0, now_ms=0) == waits[0]
