"""The watchdog names turns of the loop that are too long, and whose doing they are."""

from __future__ import annotations

import asyncio
import time

from tailrace.clock import SystemClock
from tailrace.metrics.watchdog import SAY_INTERVAL_MS, Watchdog, stack_of, watched


def dog(said: list[str]) -> Watchdog:
    return Watchdog(limit_ms=250, say=said.append, stack=lambda: "in hold()")


def play(watchdog: Watchdog, *, begin_ms: int, hold_ms: int) -> int:
    """Beat and look in turns, then hold the loop for so long; gives when it ended."""
    now_ms = begin_ms
    for _ in range(10):
        watchdog.beat(now_ms)
        watchdog.look(now_ms)
        now_ms += watchdog.look_ms
    end_ms = now_ms + hold_ms
    while now_ms < end_ms:
        watchdog.look(now_ms)
        now_ms += watchdog.look_ms
    watchdog.beat(now_ms)
    watchdog.look(now_ms)
    return now_ms


def test_F46_a_long_turn_is_said_once_with_its_stack_and_counted() -> None:  # noqa: N802
    said: list[str] = []
    watchdog = dog(said)
    play(watchdog, begin_ms=0, hold_ms=2_000)
    (line,) = said
    assert "loop.stall.warn.ms is 250" in line
    assert "in hold()" in line
    assert watchdog.stalls.count == 1
    assert 2_000 <= watchdog.worst_ms <= 2_200


def test_short_turns_are_nobodys_business() -> None:
    said: list[str] = []
    watchdog = dog(said)
    play(watchdog, begin_ms=0, hold_ms=150)
    assert (said, watchdog.stalls.count, watchdog.worst_ms) == ([], 0, 0)


def test_many_long_turns_are_all_counted_and_not_all_said() -> None:
    said: list[str] = []
    watchdog = dog(said)
    now_ms = 0
    for _ in range(5):
        now_ms = play(watchdog, begin_ms=now_ms, hold_ms=1_000)
    assert watchdog.stalls.count == 5
    assert 1 <= len(said) <= 1 + now_ms // SAY_INTERVAL_MS


def test_a_process_that_was_stopped_is_not_the_loops_doing() -> None:
    said: list[str] = []
    watchdog = dog(said)
    play(watchdog, begin_ms=0, hold_ms=0)
    watchdog.look(60_000)
    watchdog.beat(60_001)
    watchdog.look(60_050)
    assert (said, watchdog.stalls.count) == ([], 0)


def test_F46_a_real_loop_that_is_held_is_named() -> None:  # noqa: N802
    said: list[str] = []

    def hold_the_loop() -> None:
        end = time.monotonic() + 0.6
        while time.monotonic() < end:
            time.sleep(0.01)

    async def main() -> int:
        with watched(SystemClock(), said.append, limit_ms=100) as watchdog:
            await asyncio.sleep(0.1)
            hold_the_loop()
            await asyncio.sleep(0.1)
            return watchdog.worst_ms

    assert asyncio.run(main()) >= 400
    assert any("hold_the_loop" in each for each in said)


def test_a_thread_that_is_gone_has_no_stack() -> None:
    assert stack_of(-1) == "(no such thread)"
