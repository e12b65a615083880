from __future__ import annotations

import asyncio

from tailrace.clock import ManualClock, SystemClock
from tailrace.metrics.pulse import LIVE_MAX_MS, TICK_MS, WORST_WINDOW_MS, Pulse
from tailrace.runtime import Tasks


def test_a_loop_that_ticks_lives_and_one_that_does_not_is_told() -> None:
    clock = ManualClock(monotonic_ms=1_000)
    pulse = Pulse(clock)
    clock.advance(LIVE_MAX_MS)
    assert pulse.trouble() == ""
    clock.advance(1)
    assert "has not ticked for 10001 ms" in pulse.trouble()
    pulse.beat(clock.monotonic_ms())
    assert pulse.trouble() == ""


def test_the_worst_lateness_is_told_for_a_while() -> None:
    clock = ManualClock()
    pulse = Pulse(clock)

    def tick(late_ms: int) -> None:
        due_ms = clock.monotonic_ms() + TICK_MS
        clock.advance(TICK_MS + late_ms)
        pulse.beat(due_ms)

    tick(400)
    assert pulse.worst_ms == 400
    assert pulse.lateness.sum_ms == 400
    for _ in range(WORST_WINDOW_MS // TICK_MS):
        tick(1)
    assert pulse.worst_ms == 400
    for _ in range(2 * WORST_WINDOW_MS // TICK_MS):
        tick(2)
    assert pulse.worst_ms == 2


async def test_it_ticks_on_a_real_loop() -> None:
    pulse = Pulse(SystemClock())
    tasks = Tasks(lambda _, __: None)
    tasks.spawn("pulse", pulse.run())
    async with asyncio.timeout(20):
        while pulse.lateness.count < 2:  # noqa: ASYNC110 - nobody is told.
            await asyncio.sleep(0.01)
    await tasks.close()
