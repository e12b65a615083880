"""A virtual-time asyncio loop: time jumps to the next timer, and the same seed does the same.

`SimLoop` runs callbacks in the order in which they became ready, timers of one moment in the order
in which they were set. There is no I/O and there are no threads. Nothing that differs from run to
run (addresses, hashes, the garbage collector, real time) has a say in the order.

`Process` is one simulated process: everything that is started in it carries it along (a context
variable), so that the loop can hold back all of it (`pause`, as SIGSTOP does) or drop it (`kill`,
as SIGKILL does: no `finally`, no `except` runs). What simulates the world outside the processes
(network, etcd) must be scheduled outside of them: with `context=outside()`, or from a function
called by `run_outside`.
"""

from __future__ import annotations

import asyncio
import gc
import heapq
import sys
import zlib
from asyncio import events
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from contextvars import Context, ContextVar, copy_context
from random import Random
from typing import Any, Final, NoReturn, TypeVar, TypeVarTuple

from simulation.storage import SimulatedCrash

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

STEPS_MAX: Final = 50_000_000
STEPS_IN_ONE_MOMENT_MAX: Final = 1_000_000
VIRTUAL_S_MAX: Final = 24 * 3_600
FIRST_WALL_MS: Final = 1_750_000_000_000

_US_IN_S: Final = 1_000_000
_SWEEP_MIN: Final = 1_024
_SHOWN_MAX: Final = 20

_PROCESS: ContextVar[Process | None] = ContextVar("process", default=None)
_OUTSIDE: Final = Context()


class Deadlock(Exception):
    """Nothing is ready, no timer is set, and the simulation has not ended."""


class Runaway(Exception):
    """More steps than any sane run needs, or endless steps without time passing."""


class Unhandled(Exception):
    """A callback raised, or a task or future failed and nobody looked."""


def run(main: Callable[[SimLoop], Coroutine[Any, Any, T]], seed: int, *, trace: bool = False) -> T:
    """Run `main` on a fresh loop until it returns."""
    return SimLoop(seed, trace=trace).run(main)


def outside() -> Context:
    """A context of no process, for what happens between the processes."""
    return _OUTSIDE.copy()


def run_outside(work: Callable[[*Ts], T], *args: *Ts) -> T:
    """Call it now; what it schedules belongs to no process, and so is never held back."""
    return _OUTSIDE.copy().run(work, *args)


def current_process() -> Process | None:
    return _PROCESS.get()


class Process:
    """One simulated process: what runs in it can be paused, resumed and killed."""

    def __init__(self, loop: SimLoop, name: str) -> None:
        self.name = name
        self.is_dead = False
        # Callbacks that are due but must wait; None while the process runs.
        self.held: list[events.Handle] | None = None
        self.pauses = 0
        self._loop = loop
        self._context = outside()
        self._context.run(_PROCESS.set, self)
        self._on_kill: list[Callable[[], None]] = []
        self._on_pause: list[Callable[[], None]] = []
        self._ended: asyncio.Future[None] = loop.create_future()

    @property
    def is_paused(self) -> bool:
        return self.held is not None and not self.is_dead

    @property
    def context(self) -> Context:
        """A context of this process, for one task or callback."""
        return self._context.copy()

    def spawn(self, name: str, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start a task in this process. Whoever awaits it waits for ever if the process dies."""
        return self._loop.create_task(work, name=f"{self.name}: {name}", context=self.context)

    def run(self, work: Callable[[*Ts], T], *args: *Ts) -> T:
        """Call it now, as if this process did."""
        return self.context.run(work, *args)

    def pause(self) -> None:
        """SIGSTOP: nothing of it runs. Messages and timers that come due wait."""
        if self.held is None:
            self._loop.note(f"pause {self.name}")
            self.held = []
            self.pauses += 1
            for told in list(self._on_pause):
                run_outside(told)

    def resume(self) -> None:
        """SIGCONT: what came due meanwhile runs now, in that order."""
        if self.held is not None and not self.is_dead:
            self._loop.note(f"resume {self.name}")
            held, self.held = self.held, None
            self._loop.make_ready(held)

    def kill(self) -> None:
        """SIGKILL: nothing of it runs ever again. A step that is under way ends as it can."""
        if self.is_dead:
            return
        self._loop.note(f"kill {self.name}")
        self.is_dead = True
        self.held = []
        for told in list(self._on_kill):
            run_outside(told)
        self._ended.set_result(None)

    def on_kill(self, told: Callable[[], None]) -> None:
        """The network breaks its connections, the disk its open files, and so on."""
        self._on_kill.append(told)

    def on_pause(self, told: Callable[[], None]) -> None:
        self._on_pause.append(told)

    async def killed(self) -> None:
        """Wait until it was killed."""
        await asyncio.shield(self._ended)

    def check_alive(self) -> None:
        """For the ports: a step that goes on after the death of its process does nothing more."""
        if self.is_dead:
            raise SimulatedCrash(f"{self.name} is dead")


class SimLoop(asyncio.BaseEventLoop):
    """The loop: `run` once, then ask for `steps`, `now_ms`, `fingerprint` and `trace`."""

    def __init__(
        self,
        seed: int,
        *,
        trace: bool = False,
        steps_max: int = STEPS_MAX,
        virtual_s_max: int = VIRTUAL_S_MAX,
    ) -> None:
        super().__init__()
        self.set_debug(False)
        self.seed = seed
        self.rng = self.fork_rng("loop")
        self.steps = 0
        self.now_us = 0
        self.fingerprint = 0
        """A checksum of all notes so far, with their times, and of every step when tracing."""
        self.trace: list[str] = []
        self._tracing = trace
        self._steps_max = steps_max
        self._us_max = virtual_s_max * _US_IN_S
        self._steps_allowed = STEPS_IN_ONE_MOMENT_MAX
        self._queue: deque[events.Handle] = deque()
        self._timers: list[tuple[int, int, events.TimerHandle]] = []
        self._cancelled_timers = 0
        self._sequence = 0
        self._task_count = 0
        # All tasks, so that none that waits is ever collected (and its `finally` run) in between.
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._sweep_at = _SWEEP_MIN
        self._unhandled: list[str] = []
        self._over = False

    # What a simulation uses.

    def run(self, main: Callable[[SimLoop], Coroutine[Any, Any, T]]) -> T:
        """Run until `main` returns; whatever still runs then is dropped."""
        with self._running():
            try:
                task = self.create_task(main(self), name="main", context=outside())
                self._drive(task)
                result = task.result()
                if self._unhandled:
                    raise Unhandled("\n".join(self._unhandled[:_SHOWN_MAX]))
                return result
            finally:
                self._drop_all()

    @property
    def now_ms(self) -> int:
        return self.now_us // 1_000

    @property
    def is_over(self) -> bool:
        """What still runs now is being dropped."""
        return self._over

    def fork_rng(self, name: str) -> Random:
        """Randomness of its own for each part: one that asks more often disturbs no other."""
        return Random(f"{self.seed}/{name}")

    def process(self, name: str) -> Process:
        """A new process; one that is started again is another process of the same name."""
        return Process(self, name)

    def note(self, text: str) -> None:
        """Put an event of the simulation into the fingerprint, and into the trace if asked."""
        line = f"{self.now_us} {text}"
        self.fingerprint = zlib.crc32(line.encode(), self.fingerprint)
        if self._tracing:
            self.trace.append(line)

    def make_ready(self, handles: list[events.Handle]) -> None:
        self._queue.extend(handles)

    def waiting_tasks(self) -> list[str]:
        """Each task that has not ended, and where it waits."""
        return [f"{task.get_name()}: {_place(task)}" for task in self._tasks if not task.done()]

    # What asyncio asks of a loop.

    def time(self) -> float:
        return self.now_us / _US_IN_S

    def call_soon(
        self,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> events.Handle:
        handle = events.Handle(callback, args, self, context)
        self._queue.append(handle)
        return handle

    call_soon_threadsafe = call_soon

    def call_later(
        self,
        delay: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> events.TimerHandle:
        return self.call_at(self.now_us / _US_IN_S + delay, callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> events.TimerHandle:
        handle = events.TimerHandle(when, callback, args, self, context)
        # Whole microseconds: sums of floats must not make a timer come a moment early.
        when_us = max(round(when * _US_IN_S), self.now_us)
        self._sequence += 1
        heapq.heappush(self._timers, (when_us, self._sequence, handle))
        return handle

    def create_task(  # type: ignore[override]
        self,
        coro: Coroutine[Any, Any, T],
        *,
        name: str | None = None,
        context: Context | None = None,
    ) -> asyncio.Task[T]:
        # asyncio's own numbers go on from run to run.
        self._task_count += 1
        name = name or f"task {self._task_count}"
        task: asyncio.Task[T] = asyncio.Task(coro, loop=self, name=name, context=context)
        self._tasks[task] = None
        if len(self._tasks) >= self._sweep_at:
            self._tasks = {each: None for each in self._tasks if not each.done()}
            self._sweep_at = max(_SWEEP_MIN, 2 * len(self._tasks))
        return task

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if self._over or isinstance(error, SimulatedCrash):
            return
        self._unhandled.append(f"at {self.now_ms} ms: {context.get('message')}: {error!r}")

    def run_in_executor(self, *_: object) -> NoReturn:
        raise RuntimeError("a simulation has no threads: use the Blocking port")

    def is_running(self) -> bool:
        return events._get_running_loop() is self

    def _timer_handle_cancelled(self, handle: events.TimerHandle) -> None:
        self._cancelled_timers += 1
        if self._cancelled_timers > _SWEEP_MIN and self._cancelled_timers * 2 > len(self._timers):
            self._timers = [each for each in self._timers if not each[2].cancelled()]
            heapq.heapify(self._timers)
            self._cancelled_timers = 0

    # Running.

    def _drive(self, main: asyncio.Task[Any]) -> None:
        queue, process_of = self._queue, _PROCESS
        take, is_over, tracing = queue.popleft, main.done, self._tracing
        while not is_over():
            if not queue:
                self._advance()
                continue
            handle: Any = take()
            if handle._cancelled:
                continue
            context = handle._context
            process = context.get(process_of)
            if process is not None and process.held is not None:
                if not process.is_dead:
                    process.held.append(handle)
                continue
            self.steps += 1
            if self.steps > self._steps_allowed:
                self._fail_runaway(handle)
            if tracing:
                self.note(_label(handle, process))
            try:
                context.run(handle._callback, *handle._args)
            except (SystemExit, KeyboardInterrupt):
                raise
            except BaseException as error:  # noqa: BLE001 - told at the end of the run.
                message = f"exception in {_label(handle, process)}"
                self.call_exception_handler({"message": message, "exception": error})

    def _advance(self) -> None:
        """Nothing is ready: go to the next timer, and make ready all that are due then."""
        timers, queue = self._timers, self._queue
        while timers and timers[0][2]._cancelled:
            heapq.heappop(timers)
            self._cancelled_timers -= 1
        if not timers:
            raise Deadlock("\n  ".join(["nothing will ever happen:", *self.waiting_tasks()]))
        self.now_us = timers[0][0]
        self._steps_allowed = self.steps + STEPS_IN_ONE_MOMENT_MAX
        if self.steps > self._steps_max or self.now_us > self._us_max:
            shown = "\n  ".join(self.waiting_tasks()[:_SHOWN_MAX])
            raise Runaway(f"{self.steps} steps, {self.now_ms} ms:\n  {shown}")
        while timers and timers[0][0] == self.now_us:
            queue.append(heapq.heappop(timers)[2])

    def _fail_runaway(self, handle: events.Handle) -> NoReturn:
        waiting = Counter(_label(each, None) for each in [handle, *self._queue])
        raise Runaway(f"time stands still at {self.now_ms} ms: {waiting.most_common(_SHOWN_MAX)}")

    @contextmanager
    def _running(self) -> Iterator[None]:
        hooks, collects = sys.get_asyncgen_hooks(), gc.isenabled()
        sys.set_asyncgen_hooks(finalizer=self._close_generator)
        gc.disable()
        events._set_running_loop(self)
        try:
            yield
        finally:
            events._set_running_loop(None)
            self.close()
            sys.set_asyncgen_hooks(*hooks)
            if collects:
                gc.enable()

    def _close_generator(self, generator: Any) -> None:
        if not self._over:
            self.create_task(generator.aclose(), name=f"close {generator.__qualname__}")

    def _drop_all(self) -> None:
        """End what has not ended, without a word: its results are of no interest any more."""
        self._over = True
        while self._tasks:
            tasks, self._tasks = self._tasks, {}
            for task in tasks:
                if task.done():
                    task._log_traceback = False
                    continue
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                with suppress(BaseException):
                    copy_context().run(task.get_coro().close)
        self._queue.clear()
        self._timers.clear()


class LoopClock:
    """The clock of one process: virtual time, from a moment and with a wall clock of its own."""

    def __init__(self, loop: SimLoop, *, monotonic_from_ms: int = 0, wall_skew_ms: int = 0) -> None:
        self._loop = loop
        self._monotonic_from_ms = monotonic_from_ms
        self.wall_skew_ms = wall_skew_ms
        """May be set at any time: the clock then jumps."""

    def monotonic_ms(self) -> int:
        return self._monotonic_from_ms + self._loop.now_ms

    def wall_ms(self) -> int:
        return FIRST_WALL_MS + self._loop.now_ms + self.wall_skew_ms


class InlineBlocking:
    """The Blocking port without threads: the work is done on the loop, after a while."""

    def __init__(self, loop: SimLoop, name: str, *, delay_us: tuple[int, int] = (20, 500)) -> None:
        self._loop = loop
        self._rng = loop.fork_rng(f"blocking/{name}")
        self.delay_us = delay_us
        """From, to. May be set at any time: a slow disk."""

    def run(self, work: Callable[[], T]) -> asyncio.Future[T]:
        done: asyncio.Future[T] = self._loop.create_future()
        delay_us = self._rng.randint(*self.delay_us)
        self._loop.call_later(delay_us / _US_IN_S, self._do, work, done)
        return done

    @staticmethod
    def _do(work: Callable[[], T], done: asyncio.Future[T]) -> None:
        try:
            result = work()
        except BaseException as error:  # noqa: BLE001 - whoever waits gets it, whatever it is.
            if not done.cancelled():
                done.set_exception(error)
            return
        if not done.cancelled():
            done.set_result(result)


def _label(handle: events.Handle, process: Process | None) -> str:
    callback: Any = handle._callback  # type: ignore[attr-defined]
    owner = getattr(callback, "__self__", None)
    if isinstance(owner, asyncio.Task):
        what = owner.get_name()
    else:
        what = getattr(callback, "__qualname__", type(callback).__name__)
    return what if process is None else f"{process.name} {what}"


def _place(task: asyncio.Task[Any]) -> str:
    stack = task.get_stack(limit=1)
    if not stack:
        return "not started, or dead"
    code = stack[0].f_code
    return f"{code.co_qualname} line {stack[0].f_lineno}"
