"""The process of a service or a command: its event loop, its signals, its exit code.

It knows nothing of what the service does: `run` is given a coroutine that is told when to stop. The
first SIGTERM or SIGINT asks for an orderly end, the second one ends the process at once. A service
that cannot go on raises ServiceFailed and leaves with EXIT_BROKEN, without any tidying up: what it
believes is no longer to be trusted, and a clean end must not be pretended.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import resource
import signal
import sys
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from tailrace.errors import TailraceError
from tailrace.runtime import Tasks

EXIT_BROKEN: Final = 70
"""The exit code of a service that could not go on (EX_SOFTWARE): start it again, and look why."""

COLLECTOR_THRESHOLDS: Final = (10_000, 20, 20)
"""How many objects more than before, and how many collections, until the next one goes deeper."""

OPEN_FILES_WANTED: Final = 65_536
"""Each connection, and each log that is written to, takes one; many systems begin with 1,024."""

MEMORY_KEPT_BYTES: Final = 32 << 20
"""So much of what was freed a heap may keep, to be used again."""

LARGE_BYTES: Final = 8 << 20
"""What is larger than this has pages of its own, which are given back at once."""

# The numbers of glibc's malloc.h, and the variables by which a user says otherwise.
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_MALLOC_VARIABLES: Final = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")

_STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
_COMMAND_SIGNALS: Final = (signal.SIGTERM, signal.SIGHUP)
_SIGNAL_EXIT: Final = 128
_OWN_FILES: Final = "/proc/self/fd"

T = TypeVar("T")

Main: TypeAlias = Callable[[asyncio.Event], Coroutine[Any, Any, None]]
"""A service: it runs until it has ended by itself, or in order once the event is set."""


class ServiceFailed(TailraceError):
    """A service cannot go on; its process leaves with EXIT_BROKEN."""


class StartAnew(TailraceError):
    """What a service remembers is of no use any more: it ends in order, and its process restarts.

    The process keeps its number, its arguments and its environment.
    """


def run(main: Main, say: Callable[[str], None]) -> None:
    """Run a service on a loop of its own; does not return when the service failed."""
    # What was imported stays for good: a collection that looks at all of it takes long.
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECTOR_THRESHOLDS)
    allow_open_files()
    keep_freed_memory()
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        try:
            runner.run(_with_signals(main, say))
        except ServiceFailed as error:
            say(f"stopping at once: {error}")
            # Threads may be in the middle of things that would make the end look like a clean one.
            _leave(EXIT_BROKEN)
        except StartAnew as error:
            say(f"starting anew: {error}")
            sys.stdout.flush()
            sys.stderr.flush()
            os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606 - itself.


async def until_stopped(
    stop: asyncio.Event, failing: Coroutine[Any, Any, object], why: Callable[[], object]
) -> None:
    """Wait until the service is told to stop; ServiceFailed when `failing` ends before that.

    `why` then gives the reason, unless `failing` has raised it. Nothing is tidied up: what is
    broken must not leave as if it were sound, and others notice its end by its connections.
    """
    tasks = Tasks(lambda _, __: None)
    ending = tasks.spawn("wait for a failure", failing)
    stopping = tasks.spawn("wait for the end", stop.wait())
    await asyncio.wait([ending, stopping], return_when=asyncio.FIRST_COMPLETED)
    if ending.done():
        reason = ending.exception() or why()
        if isinstance(reason, StartAnew):
            raise reason
        if isinstance(reason, BaseException):
            reason = f"{type(reason).__name__}: {reason}"
        raise ServiceFailed(str(reason or "no reason was given"))
    await tasks.close()


def run_command(
    work: Coroutine[Any, Any, T],
    factory: Callable[[], asyncio.AbstractEventLoop] | None = None,
) -> T:
    """Run one piece of work to its end on a loop of its own.

    Ctrl-C, SIGTERM and SIGHUP cancel it, and it ends in order: then KeyboardInterrupt comes out, or
    SystemExit with the code that shells give to a process that the signal has ended.
    """
    signals: list[signal.Signals] = []

    async def interruptible() -> T:
        loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        assert task is not None

        def signalled(number: signal.Signals) -> None:
            # The end in order is bounded; a second signal would only leave things behind.
            if not signals:
                signals.append(number)
                task.cancel()

        for number in _COMMAND_SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                loop.add_signal_handler(number, signalled, number)
        try:
            return await work
        finally:
            for number in _COMMAND_SIGNALS:
                loop.remove_signal_handler(number)

    handlers = {number: signal.getsignal(number) for number in _COMMAND_SIGNALS}
    with asyncio.Runner(loop_factory=factory) as runner:
        try:
            return runner.run(interruptible())
        except asyncio.CancelledError:
            if not signals:
                raise
            raise SystemExit(_SIGNAL_EXIT + signals[0]) from None
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)


def asked_to_stop(stop: asyncio.Event) -> asyncio.Event:
    """Have signals set an event, for a command that runs until somebody stops it.

    From here on a signal is how it is meant to end, and its exit code is that of its end. A hang-up
    that was to be ignored (nohup does that) still is.
    """
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, *_COMMAND_SIGNALS):
        if number is not signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
            loop.add_signal_handler(number, stop.set)
    return stop


def allow_open_files(wanted: int = OPEN_FILES_WANTED) -> int:
    """Let the process have as many files and connections as it may; gives how many that are."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < limit:
        # What cannot be raised stays as it is: limits of our own keep well below it by default.
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


class OpenFiles(NamedTuple):
    """Files and connections that this process has open (-1: not known), and how many it may."""

    now: int
    max: int


def open_files() -> OpenFiles:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        # One of them is the folder itself, which is open only now.
        now = sum(1 for _ in os.scandir(_OWN_FILES)) - 1
    except OSError:
        now = -1
    return OpenFiles(now, soft if soft != resource.RLIM_INFINITY else sys.maxsize)


def keep_freed_memory() -> bool:
    """Have the C library reuse freed memory instead of giving it back; False where it cannot.

    Messages of a megabyte come and go. By default each has fresh pages, which the kernel clears
    and counts: a third of what it costs a broker to send one.
    """
    if any(name in os.environ for name in _MALLOC_VARIABLES):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        # Another C library than glibc.
        return False
    wanted = {_M_TRIM_THRESHOLD: MEMORY_KEPT_BYTES, _M_MMAP_THRESHOLD: LARGE_BYTES}
    return all(mallopt(what, size) == 1 for what, size in wanted.items())


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """The faster loop where it is installed, for `asyncio.Runner`."""
    try:
        import uvloop  # noqa: PLC0415 - it is an extra.
    except ImportError:
        return None
    return uvloop.new_event_loop


async def _with_signals(main: Main, say: Callable[[str], None]) -> None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()

    def signalled(number: signal.Signals) -> None:
        if stop.is_set():
            say(f"{number.name} again: leaving at once")
            _leave(_SIGNAL_EXIT + number)
        say(f"{number.name}: stopping in order; once more leaves at once")
        stop.set()

    for number in _STOP_SIGNALS:
        loop.add_signal_handler(number, signalled, number)
    await main(stop)


def _leave(code: int) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
