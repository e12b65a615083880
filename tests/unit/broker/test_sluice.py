"""Who finds no room waits in line; who gives up leaves nothing behind."""

from __future__ import annotations

import asyncio

from tailrace.broker.sluice import Sluice
from tailrace.clock import ManualClock


async def test_the_line_is_let_in_in_order() -> None:
    sluice, entered = Sluice(10, ManualClock()), list[str]()

    async def enter(name: str, size: int) -> None:
        await sluice.enter(size)
        entered.append(name)

    await enter("a", 10)
    async with asyncio.TaskGroup() as group:
        for name, size in (("b", 6), ("c", 6), ("d", 4)):
            group.create_task(enter(name, size))
            await asyncio.sleep(0)
        assert (entered, sluice.waiting) == (["a"], 3)
        sluice.leave(10)
        await asyncio.sleep(0)
        # `d` would fit beside `b`, and yet waits behind `c`.
        assert entered == ["a", "b"]
        sluice.leave(6)
    assert entered == ["a", "b", "c", "d"]
    sluice.leave(6)
    sluice.leave(4)
    assert (sluice.bytes, sluice.waiting) == (0, 0)


async def test_one_that_gives_up_makes_room_for_the_next() -> None:
    sluice = Sluice(10, ManualClock())
    await sluice.enter(9)
    large = asyncio.ensure_future(sluice.enter(10))
    small = asyncio.ensure_future(sluice.enter(1))
    await asyncio.sleep(0)
    assert sluice.waiting == 2
    large.cancel()
    await small
    assert (sluice.bytes, sluice.waiting) == (10, 0)


async def test_one_that_gives_up_just_when_it_is_let_in_gives_back() -> None:
    sluice = Sluice(10, ManualClock())
    await sluice.enter(10)
    late = asyncio.ensure_future(sluice.enter(5))
    await asyncio.sleep(0)
    sluice.leave(10)
    assert sluice.bytes == 5
    late.cancel()
    await asyncio.wait([late])
    assert (late.cancelled(), sluice.bytes) == (True, 0)


async def test_one_that_was_cancelled_is_passed_over() -> None:
    sluice = Sluice(10, ManualClock())
    await sluice.enter(10)
    gone, next_one = (asyncio.ensure_future(sluice.enter(8)) for _ in range(2))
    await asyncio.sleep(0)
    gone.cancel()
    sluice.leave(10)
    await next_one
    await asyncio.wait([gone])
    assert (sluice.bytes, sluice.waiting) == (8, 0)
