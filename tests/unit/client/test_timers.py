from __future__ import annotations

import asyncio

from tailrace.client.timers import Timers


async def test_what_is_due_comes_out_in_order() -> None:
    timers: Timers[str] = Timers()
    timers.set(30, "c")
    timers.set(10, "a")
    timers.set(10, "b")
    assert [timers.pop(10), timers.pop(10), timers.pop(10)] == ["a", "b", None]
    assert timers.pop(30) == "c"
    assert timers.pop(99) is None


async def test_a_sleeper_is_woken_by_what_is_due_before_and_by_nothing_else() -> None:
    timers: Timers[str] = Timers()
    sleeping = asyncio.ensure_future(timers.sleep(0, 1_000_000))
    await asyncio.sleep(0)
    timers.wake_before(1_000_000)
    timers.set(1_000_001, "later")
    await asyncio.sleep(0.01)
    assert not sleeping.done()
    timers.set(999_999, "sooner")
    await asyncio.wait_for(sleeping, 10)
    # What was set before the sleep ends it in time.
    await asyncio.wait_for(timers.sleep(999_998, None), 10)
