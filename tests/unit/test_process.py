from __future__ import annotations

import asyncio
import io
import json
import logging
import os
import re
import resource
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tailrace.clock import ManualClock
from tailrace.process import (
    EXIT_BROKEN,
    LogLines,
    ServiceFailed,
    allow_open_files,
    loop_factory,
    open_files,
    run_command,
    until_stopped,
)

NOON_MS = 1_794_830_400_123


@pytest.fixture
def restored_logging() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def _lines(*, as_json: bool) -> tuple[LogLines, io.StringIO]:
    out = io.StringIO()
    return LogLines("broker-1", out, ManualClock(wall_ms=NOON_MS), as_json=as_json), out


def test_lines_for_programs_are_json() -> None:
    say, out = _lines(as_json=True)
    say('a "quoted" line\nof two')
    assert json.loads(out.getvalue()) == {
        "time": "2026-11-16T12:00:00.123Z",
        "level": "info",
        "who": "broker-1",
        "text": 'a "quoted" line\nof two',
    }
    assert out.getvalue().count("\n") == 1


def test_lines_for_people_are_short() -> None:
    say, out = _lines(as_json=False)
    say("registered")
    say.write("warning", "odd")
    first, second = out.getvalue().splitlines()
    assert re.fullmatch(r"\d\d:\d\d:\d\d\.123 broker-1: registered", first)
    assert second.endswith(" broker-1: warning: odd")


def test_a_log_that_nobody_reads_is_no_reason_to_end() -> None:
    say, out = _lines(as_json=True)
    out.close()
    say("into the void")


@pytest.mark.usefixtures("restored_logging")
def test_what_libraries_log_comes_out_the_same_way() -> None:
    say, out = _lines(as_json=True)
    say.capture()
    logging.getLogger("some.library").warning("careful with %s", "this")
    logging.getLogger("some.library").info("never mind")
    try:
        int("deep inside")
    except ValueError:
        logging.getLogger("some.library").exception("it broke")
    first, second = map(json.loads, out.getvalue().splitlines())
    assert (first["level"], first["text"]) == ("warning", "careful with this")
    assert "ValueError: invalid literal" in second["text"]


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


def test_a_command_gives_what_its_work_gives() -> None:
    assert run_command(asyncio.sleep(0, "done")) == "done"
    with pytest.raises(ZeroDivisionError):
        run_command(_broken())


async def _broken() -> None:
    raise ZeroDivisionError
