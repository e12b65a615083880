from __future__ import annotations

import asyncio
import os
import resource
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from tailrace.process import (
    EXIT_BROKEN,
    ServiceFailed,
    allow_open_files,
    asked_to_stop,
    loop_factory,
    open_files,
    run_command,
    until_stopped,
)


def test_the_loop_is_uvloop_where_it_is_installed() -> None:
    pytest.importorskip("uvloop")
    assert loop_factory() is not None


def _service(body: str) -> subprocess.Popen[str]:
    code = f"""
        import asyncio, sys
        from tailrace.process import ServiceFailed, run
        def say(text): print(text, flush=True)
        async def main(stop):
            say("up")
            {body}
        run(main, say)
        say("ended")
    """
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )


def _said(process: subprocess.Popen[str]) -> list[str]:
    assert process.stdout is not None
    return [line.strip() for line in process.stdout]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_first_signal_asks_for_an_orderly_end(number: signal.Signals) -> None:
    with _service("await stop.wait()") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        process.send_signal(number)
        said = _said(process)
    assert said == [f"{number.name}: stopping in order; once more leaves at once", "ended"]
    assert process.returncode == 0


def test_the_second_signal_ends_it_at_once() -> None:
    with _service("await asyncio.sleep(60)") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        process.send_signal(signal.SIGTERM)
        assert "in order" in process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        assert _said(process) == ["SIGTERM again: leaving at once"]
    assert process.returncode == 128 + signal.SIGTERM


def test_a_service_that_cannot_go_on_says_why_and_leaves() -> None:
    with _service("raise ServiceFailed('the disk is on fire')") as process:
        said = _said(process)
    assert said == ["up", "stopping at once: the disk is on fire"]
    assert process.returncode == EXIT_BROKEN


def test_a_service_does_not_look_again_and_again_at_what_it_imported() -> None:
    program = """
        import gc
        from tailrace.process import COLLECTOR_THRESHOLDS, run

        async def main(stop):
            assert gc.get_freeze_count() > 1_000
            assert gc.get_threshold() == COLLECTOR_THRESHOLDS
            print("as it should be")

        run(main, print)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=True
    )
    assert "as it should be" in done.stdout


def test_as_many_files_as_may_be_are_allowed() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
        assert allow_open_files(300) == 300
        # One that has more already keeps it, and nobody gets more than the system allows.
        assert allow_open_files(200) == 300
        hard = before[1] if before[1] != resource.RLIM_INFINITY else 10_000
        assert allow_open_files(hard + 1) in {hard, hard + 1}
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_open_files_are_counted(tmp_path: Path) -> None:
    before = open_files()
    with (tmp_path / "file").open("w"):
        assert open_files().now == before.now + 1
    assert before.max > before.now > 0


_FAULTS = """
import resource
from tailrace.process import keep_freed_memory
{call}
def work():
    for _ in range(40):
        kept = [b"x" * (1 << 20) for _ in range(6)]
work()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
work()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def test_memory_that_was_freed_is_used_again() -> None:
    def faults(call: str, **variables: str) -> int:
        command = [sys.executable, "-c", _FAULTS.format(call=call)]
        done = subprocess.run(
            command, check=True, capture_output=True, env={**os.environ, **variables}, timeout=60
        )
        return int(done.stdout)

    without = faults("")
    assert faults("assert keep_freed_memory()") * 10 < without
    # Who has said how memory is to be kept is obeyed.
    assert faults("assert not keep_freed_memory()", MALLOC_TRIM_THRESHOLD_="65536") * 2 > without


async def test_a_service_is_waited_for_until_it_is_told_to_stop_or_fails() -> None:
    stop, failed = asyncio.Event(), asyncio.Event()
    waiting = asyncio.ensure_future(until_stopped(stop, failed.wait(), lambda: None))
    await asyncio.sleep(0)
    assert not waiting.done()
    stop.set()
    await waiting
    failed.set()
    with pytest.raises(ServiceFailed, match=r"^ValueError: broken$"):
        await until_stopped(asyncio.Event(), failed.wait(), lambda: ValueError("broken"))
    with pytest.raises(ServiceFailed, match="no reason was given"):
        await until_stopped(asyncio.Event(), failed.wait(), lambda: None)

    async def run() -> None:
        raise KeyError("x")

    with pytest.raises(ServiceFailed, match="KeyError: 'x'"):
        await until_stopped(asyncio.Event(), run(), lambda: "it ended by itself")


@pytest.mark.parametrize("factory", [None, loop_factory()], ids=["asyncio", "fastest"])
@pytest.mark.parametrize(
    ("number", "comes_out", "code"),
    [
        (signal.SIGINT, KeyboardInterrupt, None),
        (signal.SIGTERM, SystemExit, 143),
        (signal.SIGHUP, SystemExit, 129),
    ],
)
def test_a_signal_lets_a_command_end_in_order(
    factory: Any, number: signal.Signals, comes_out: type[BaseException], code: int | None
) -> None:
    # Who runs the tests behind a shell has it ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    ended = []

    async def work() -> None:
        try:
            os.kill(os.getpid(), number)
            await asyncio.sleep(60)
        finally:
            # A second one of those that are sent by machines does not cut this short.
            if number != signal.SIGINT:
                os.kill(os.getpid(), number)
            await asyncio.sleep(0.05)
            ended.append("in order")

    handlers = [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGHUP)]
    try:
        with pytest.raises(comes_out) as stopped:
            run_command(work(), factory)
    finally:
        signal.signal(signal.SIGINT, before)
    assert ended == ["in order"]
    assert getattr(stopped.value, "code", None) == code
    assert [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGHUP)] == handlers


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_what_runs_until_it_is_stopped_ends_well_when_it_is(number: signal.Signals) -> None:
    before = signal.getsignal(signal.SIGINT)

    async def work() -> str:
        stop = asked_to_stop(asyncio.Event())
        os.kill(os.getpid(), number)
        await asyncio.wait_for(stop.wait(), 10)
        return "stopped"

    try:
        assert run_command(work()) == "stopped"
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_hang_up_that_is_ignored_stops_nothing() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)

    async def work() -> bool:
        stop = asked_to_stop(asyncio.Event())
        os.kill(os.getpid(), signal.SIGHUP)
        await asyncio.sleep(0.05)
        return stop.is_set()

    try:
        assert run_command(work()) is False
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_command_gives_what_its_work_gives() -> None:
    assert run_command(asyncio.sleep(0, "done")) == "done"
    with pytest.raises(ZeroDivisionError):
        run_command(_broken())


async def _broken() -> None:
    raise ZeroDivisionError
