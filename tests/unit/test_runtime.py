"""Background tasks end when they should, in order, and failures are told."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress

import pytest

from simulation.loop import SimLoop, run
from tailrace import runtime
from tailrace.errors import ShuttingDown
from tailrace.runtime import Tasks, ThreadBlocking


class Failures:
    def __init__(self) -> None:
        self.told: list[tuple[str, BaseException]] = []

    def __call__(self, name: str, error: BaseException) -> None:
        self.told.append((name, error))


async def sleep(ended: list[str], name: str) -> None:
    try:
        await asyncio.sleep(3_600)
    finally:
        ended.append(name)


async def test_tasks_are_cancelled_in_the_order_of_their_start() -> None:
    failures = Failures()
    tasks = Tasks(failures)
    ended: list[str] = []
    for n in range(50):
        tasks.spawn(f"task {n}", sleep(ended, f"task {n}"))
    await asyncio.sleep(0)
    assert len(tasks) == 50
    await tasks.close()
    assert len(tasks) == 0
    assert ended == [f"task {n}" for n in range(50)]
    assert failures.told == []


async def test_a_failure_is_told_at_once_and_the_others_go_on() -> None:
    failures = Failures()
    tasks = Tasks(failures)
    ended: list[str] = []

    async def fail() -> None:
        raise ValueError("bad")

    tasks.spawn("sleeps", sleep(ended, "sleeps"))
    tasks.spawn("fails", fail())
    await asyncio.sleep(0.01)
    assert [(name, str(error)) for name, error in failures.told] == [("fails", "bad")]
    assert len(tasks) == 1
    await tasks.close()
    assert ended == ["sleeps"]


async def test_a_task_that_was_not_started_yet_is_dropped() -> None:
    tasks = Tasks(Failures())
    ended: list[str] = []
    tasks.spawn("never", sleep(ended, "never"))
    await tasks.close()
    assert ended == []


async def test_nothing_starts_after_the_end() -> None:
    tasks = Tasks(Failures())
    await tasks.close()
    with pytest.raises(ShuttingDown, match="late"):
        tasks.spawn("late", sleep([], "late"))
    await tasks.close()


async def test_a_task_may_close_its_own_group() -> None:
    failures = Failures()
    tasks = Tasks(failures)
    ended: list[str] = []

    async def close() -> None:
        await tasks.close()
        ended.append("closer")

    tasks.spawn("sleeps", sleep(ended, "sleeps"))
    closer = tasks.spawn("closer", close())
    await closer
    assert ended == ["sleeps", "closer"]
    assert failures.told == []


async def test_close_waits_for_what_tasks_do_when_they_are_cancelled() -> None:
    tasks = Tasks(Failures())
    ended: list[str] = []

    async def tidy() -> None:
        try:
            await asyncio.sleep(3_600)
        finally:
            await asyncio.sleep(0.05)
            ended.append("tidy")

    tasks.spawn("tidy", tidy())
    await asyncio.sleep(0)
    await tasks.close()
    assert ended == ["tidy"]


async def test_a_failure_while_closing_is_told_and_does_not_stop_it() -> None:
    failures = Failures()
    tasks = Tasks(failures)

    async def fail() -> None:
        try:
            await asyncio.sleep(3_600)
        except asyncio.CancelledError:
            raise ValueError("while closing") from None

    class Odd(BaseException):
        pass

    async def fail_oddly() -> None:
        try:
            await asyncio.sleep(3_600)
        except asyncio.CancelledError:
            raise Odd from None

    ended: list[str] = []
    tasks.spawn("fails", fail())
    tasks.spawn("fails oddly", fail_oddly())
    tasks.spawn("sleeps", sleep(ended, "sleeps"))
    await asyncio.sleep(0)
    await tasks.close()
    assert [name for name, _ in failures.told] == ["fails", "fails oddly"]
    assert ended == ["sleeps"]


async def test_a_close_that_is_cancelled_has_cancelled_the_tasks() -> None:
    tasks = Tasks(Failures())
    ended: list[str] = []

    async def slow() -> None:
        try:
            await asyncio.sleep(3_600)
        finally:
            await asyncio.sleep(0.1)
            ended.append("slow")

    tasks.spawn("slow", slow())
    await asyncio.sleep(0)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await tasks.close()
    await tasks.close()
    assert ended == ["slow"]


def test_a_cancellation_that_got_lost_is_repeated() -> None:
    async def main(loop: SimLoop) -> None:
        tasks = Tasks(Failures())

        async def swallow() -> None:
            try:
                await asyncio.sleep(3_600)
            except asyncio.CancelledError:
                await asyncio.sleep(3_600)

        tasks.spawn("swallow", swallow())
        await asyncio.sleep(0)
        await tasks.close()
        assert loop.now_ms == runtime.CANCEL_AGAIN_S * 1_000

    run(main, 1)


async def test_wait_also_waits_for_those_started_meanwhile() -> None:
    tasks = Tasks(Failures())
    ended: list[str] = []

    async def chain(n: int) -> None:
        await asyncio.sleep(0.01)
        if n:
            tasks.spawn(f"chain {n - 1}", chain(n - 1))
        ended.append(f"chain {n}")

    tasks.spawn("chain 2", chain(2))
    assert await tasks.wait()
    assert ended == ["chain 2", "chain 1", "chain 0"]
    tasks.spawn("sleeps", sleep(ended, "sleeps"))
    assert not await tasks.wait(timeout_s=0.01)
    await tasks.close()


async def test_blocking_work_runs_in_another_thread() -> None:
    blocking = ThreadBlocking(threads_max=2)
    assert await blocking.run(threading.get_ident) != threading.get_ident()
    with pytest.raises(ZeroDivisionError):
        await blocking.run(lambda: 1 // 0)
    blocking.close()
    with pytest.raises(ShuttingDown):
        await blocking.run(threading.get_ident)


async def test_no_more_threads_than_allowed() -> None:
    blocking = ThreadBlocking(threads_max=2)
    running, most = 0, 0
    lock, go = threading.Lock(), threading.Event()

    def work() -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        go.wait(5)
        with lock:
            running -= 1

    waits = [asyncio.ensure_future(blocking.run(work)) for _ in range(6)]
    await asyncio.sleep(0.05)
    go.set()
    await asyncio.gather(*waits)
    assert most == 2
    blocking.close()


async def test_what_comes_last_is_done_also_when_the_end_is_cancelled() -> None:
    done = []

    async def last() -> None:
        done.append("last")

    async def stubborn() -> None:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(60)
        await asyncio.sleep(0.01)

    tasks = Tasks(lambda _, __: None)
    tasks.spawn("stubborn", stubborn())
    await asyncio.sleep(0)
    closing = asyncio.ensure_future(tasks.close_and(last))
    await asyncio.sleep(0)
    closing.cancel()
    await asyncio.wait([closing])
    assert closing.cancelled()
    assert done == ["last"]
    await tasks.close()
