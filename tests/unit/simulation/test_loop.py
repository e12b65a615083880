"""The virtual-time loop: order, time, pauses and deaths of processes, and sameness of runs."""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
import subprocess
import sys
import warnings
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path

import pytest

from simulation import loop as loop_module
from simulation.determinism import loop_program, network_program, summary
from simulation.loop import (
    Deadlock,
    InlineBlocking,
    LoopClock,
    Runaway,
    SimLoop,
    Unhandled,
    current_process,
    outside,
    run,
    run_outside,
)
from simulation.storage import SimulatedCrash
from tailrace.runtime import Tasks

ROOT = Path(__file__).resolve().parents[3]


def test_time_jumps_to_the_next_timer() -> None:
    async def main(loop: SimLoop) -> list[int]:
        times = [loop.now_ms]
        await asyncio.sleep(3_600)
        times.append(loop.now_ms)
        async with asyncio.timeout(10):
            await asyncio.sleep(0.25)
        times.append(loop.now_ms)
        return times

    assert run(main, 1) == [0, 3_600_000, 3_600_250]


def test_ready_callbacks_and_timers_of_one_moment_run_in_the_order_they_were_set() -> None:
    async def main(loop: SimLoop) -> list[int]:
        order: list[int] = []
        for n in range(100):
            loop.call_later(0.1 if n % 2 else 0.2, order.append, n)
        for n in range(100, 110):
            loop.call_soon(order.append, n)
        loop.call_later(0.05, order.append, 110)
        # 0.1 + 0.2 is not 0.3 in floats, but it is the same moment.
        await asyncio.sleep(0.1)
        loop.call_later(0.2, order.append, 111)
        await asyncio.sleep(1)
        return order

    expected = [*range(100, 110), 110, *range(1, 100, 2), *range(0, 100, 2), 111]
    assert run(main, 1) == expected


def test_sums_of_small_sleeps_are_exact() -> None:
    async def main(loop: SimLoop) -> int:
        for _ in range(1_000):
            await asyncio.sleep(0.001)
        return loop.now_us

    assert run(main, 1) == 1_000_000


def test_asyncio_as_usual_works() -> None:
    async def main(loop: SimLoop) -> list[object]:
        queue: asyncio.Queue[int] = asyncio.Queue(1)

        async def put() -> None:
            for n in range(5):
                await queue.put(n)

        async with asyncio.TaskGroup() as group:
            group.create_task(put())
            got = [await queue.get() for _ in range(5)]
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await asyncio.Event().wait()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.Event().wait(), 1)
        gathered = await asyncio.gather(*(asyncio.sleep(n, n) for n in range(3)))
        return [got, gathered, loop.now_ms]

    assert run(main, 1) == [[0, 1, 2, 3, 4], [0, 1, 2], 4_000]


def test_a_deadlock_names_who_waits() -> None:
    async def main(loop: SimLoop) -> None:
        await asyncio.Event().wait()

    with pytest.raises(Deadlock, match=r"main: .*wait"):
        run(main, 1)


def test_a_loop_without_passing_time_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_module, "STEPS_IN_ONE_MOMENT_MAX", 1_000)

    async def main(loop: SimLoop) -> None:
        for _ in itertools.count():
            await asyncio.sleep(0)

    with pytest.raises(Runaway, match="main"):
        run(main, 1)


def test_limits_of_steps_and_of_time() -> None:
    async def main(loop: SimLoop) -> None:
        for _ in itertools.count():
            await asyncio.sleep(1)

    with pytest.raises(Runaway):
        SimLoop(1, virtual_s_max=100).run(main)
    with pytest.raises(Runaway):
        SimLoop(1, steps_max=1_000).run(main)


def test_threads_are_forbidden() -> None:
    async def main(loop: SimLoop) -> None:
        with pytest.raises(RuntimeError, match="no threads"):
            await asyncio.to_thread(print)

    run(main, 1)


def test_what_nobody_handles_fails_the_run() -> None:
    async def fail() -> None:
        raise ValueError("unseen")

    async def in_task(loop: SimLoop) -> None:
        task = loop.create_task(fail())
        await asyncio.sleep(1)
        del task
        loop._tasks.clear()

    def complain(what: str) -> None:
        raise ValueError(what)

    async def in_callback(loop: SimLoop) -> None:
        loop.call_soon(complain, "unseen")
        await asyncio.sleep(1)

    for main in (in_task, in_callback):
        with pytest.raises(Unhandled, match="unseen"):
            run(main, 1)


def test_an_error_of_main_is_raised() -> None:
    async def main(loop: SimLoop) -> None:
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        run(main, 1)


def test_what_is_left_at_the_end_goes_without_noise(capfd: pytest.CaptureFixture[str]) -> None:
    async def stubborn() -> None:
        while True:
            try:
                await asyncio.sleep(1)
            finally:
                await asyncio.sleep(1)

    async def generate() -> AsyncIterator[int]:
        yield 1
        yield 2

    async def main(loop: SimLoop) -> None:
        for _ in range(10):
            loop.create_task(stubborn())
        await asyncio.sleep(1.5)
        async for _ in generate():
            break
        loop.create_task(stubborn())

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(main, 1)
        gc.collect()
    assert capfd.readouterr().err == ""


# ------------------------------------------------------------------------------------- processes


async def ticks(loop: SimLoop, times: list[int]) -> None:
    while True:
        await asyncio.sleep(1)
        times.append(loop.now_ms)


def test_a_paused_process_does_nothing_and_then_catches_up() -> None:
    async def main(loop: SimLoop) -> tuple[list[int], list[int]]:
        stopped: list[int] = []
        other: list[int] = []
        one, two = loop.process("one"), loop.process("two")
        one.spawn("ticks", ticks(loop, stopped))
        two.spawn("ticks", ticks(loop, other))
        await asyncio.sleep(2.5)
        one.pause()
        one.pause()
        assert one.is_paused
        await asyncio.sleep(5)
        one.resume()
        one.resume()
        await asyncio.sleep(2)
        return stopped, other

    stopped, other = run(main, 1)
    assert stopped == [1_000, 2_000, 7_500, 8_500, 9_500][: len(stopped)]
    assert len(stopped) == 4
    assert other == [n * 1_000 for n in range(1, 10)]


def test_what_a_process_starts_belongs_to_it() -> None:
    async def main(loop: SimLoop) -> list[str]:
        seen: list[str] = []

        def note(what: str) -> None:
            process = current_process()
            seen.append(f"{what} {process.name if process else 'outside'}")

        async def child() -> None:
            note("child")

        async def work() -> None:
            loop.call_soon(note, "soon")
            loop.call_later(1, note, "later")
            loop.call_later(1, note, "fabric", context=outside())
            run_outside(loop.call_later, 1, note, "called outside")
            tasks = Tasks(lambda *_: None)
            tasks.spawn("child", child())
            await asyncio.sleep(2)

        process = loop.process("p")
        process.spawn("work", work())
        process.run(note, "run")
        note("main")
        await asyncio.sleep(3)
        return seen

    assert run(main, 1) == [
        "run p",
        "main outside",
        "soon p",
        "child p",
        "later p",
        "fabric outside",
        "called outside outside",
    ]


def test_a_killed_process_runs_no_cleanup() -> None:
    cleaned: list[str] = []

    async def main(loop: SimLoop) -> None:
        async def work() -> None:
            try:
                await asyncio.sleep(1)
                cleaned.append("went on")
            finally:
                if loop.now_ms < 10_000:
                    cleaned.append("finally")

        told: list[str] = []
        process = loop.process("p")
        process.on_kill(lambda: told.append("killed"))
        process.spawn("work", work())
        process.run(loop.call_later, 1, cleaned.append, "timer")
        await asyncio.sleep(0.5)
        process.kill()
        process.kill()
        process.resume()
        await process.killed()
        with pytest.raises(SimulatedCrash):
            process.check_alive()
        process.spawn("more", work())
        gc.collect()
        await asyncio.sleep(10)
        assert told == ["killed"]

    run(main, 1)
    assert cleaned == []


def test_a_process_that_is_killed_while_paused_stays_dead() -> None:
    async def main(loop: SimLoop) -> None:
        times: list[int] = []
        process = loop.process("p")
        process.spawn("ticks", ticks(loop, times))
        process.pause()
        await asyncio.sleep(5)
        process.kill()
        process.resume()
        await asyncio.sleep(5)
        assert times == []

    run(main, 1)


# ------------------------------------------------------------------------- clocks and blocking work


def test_clocks_of_processes_differ() -> None:
    async def main(loop: SimLoop) -> None:
        one, two = LoopClock(loop), LoopClock(loop, monotonic_from_ms=5_000, wall_skew_ms=-300)
        await asyncio.sleep(1)
        assert (one.monotonic_ms(), two.monotonic_ms()) == (1_000, 6_000)
        assert one.wall_ms() - two.wall_ms() == 300
        two.wall_skew_ms = 3_600_000
        assert two.wall_ms() - one.wall_ms() == 3_600_000
        assert two.monotonic_ms() == 6_000

    run(main, 1)


def test_blocking_work_takes_virtual_time() -> None:
    async def main(loop: SimLoop) -> None:
        blocking = InlineBlocking(loop, "p", delay_us=(1_000, 2_000))
        done: list[int] = []
        assert await blocking.run(lambda: 7) == 7
        assert 1 <= loop.now_ms <= 2
        with pytest.raises(ZeroDivisionError):
            await blocking.run(lambda: 1 // 0)
        # Work that has begun goes on when nobody waits for it any more.
        waiting = asyncio.ensure_future(blocking.run(lambda: done.append(1)))
        await asyncio.sleep(0)
        waiting.cancel()
        with suppress(asyncio.CancelledError):
            await waiting
        await asyncio.sleep(1)
        assert done == [1]

    run(main, 1)


# ------------------------------------------------------------------------------------- determinism


@pytest.mark.parametrize("program", [loop_program, network_program])
def test_the_same_seed_gives_the_same_trace_and_another_does_not(
    program: Callable[[int], SimLoop],
) -> None:
    one, two, other = program(1), program(1), program(2)
    assert one.trace == two.trace
    assert one.fingerprint == two.fingerprint
    assert one.trace != other.trace


def test_hash_seeds_and_processes_change_nothing() -> None:
    """Two fresh interpreters, whose sets of text have different orders, and the run in here."""
    outputs = []
    for hash_seed in ("1", "4242"):
        environment = {
            **os.environ,
            "PYTHONHASHSEED": hash_seed,
            "PYTHONPATH": os.pathsep.join([str(ROOT / "services"), str(ROOT / "tests")]),
        }
        outputs.append(
            subprocess.run(
                [sys.executable, "-m", "simulation.determinism", "7"],
                env=environment,
                check=True,
                stdout=subprocess.PIPE,
                text=True,
            ).stdout.strip()
        )
    assert outputs == [summary(7)] * 2
