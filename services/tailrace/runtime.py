"""What a process needs besides its ports: background tasks, and a place for blocking work.

asyncio's TaskGroup keeps its tasks in a set, whose order differs from run to run; `Tasks` keeps
them in order, so that a simulation with the same seed does the same things in the same order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, Protocol, TypeVar

from tailrace.errors import ShuttingDown

T = TypeVar("T")

CANCEL_AGAIN_S: Final = 2.0


class Blocking(Protocol):
    """Runs work that may block (syncs, cold reads, recovery) off the loop."""

    def run(self, work: Callable[[], T]) -> Awaitable[T]:
        """To cancel the wait does not stop work that has begun."""


class ThreadBlocking:
    """Blocking work in a bounded pool of threads."""

    def __init__(self, *, threads_max: int) -> None:
        self._pool = ThreadPoolExecutor(threads_max, thread_name_prefix="blocking")
        self._closed = False

    def run(self, work: Callable[[], T]) -> Awaitable[T]:
        if self._closed:
            raise ShuttingDown("no blocking work is taken any more")
        return asyncio.get_running_loop().run_in_executor(self._pool, work)

    def close(self) -> None:
        """Wait for the work that has begun; drop the rest, whose waits are cancelled."""
        self._closed = True
        self._pool.shutdown(wait=True, cancel_futures=True)


class Tasks:
    """Background tasks that belong together. One that fails is told to `on_failure`, at once.

    Use: `spawn` as often as needed, `close` once, from any task, also from one of these (which
    then has to end by itself). Being cancelled is not a failure.
    """

    def __init__(self, on_failure: Callable[[str, BaseException], None]) -> None:
        self._on_failure = on_failure
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._closed = False

    def __len__(self) -> int:
        return len(self._tasks)

    def spawn(self, name: str, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start a task; ShuttingDown after `close`."""
        if self._closed:
            work.close()
            raise ShuttingDown(f"{name} was started after the end")
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks[task] = None
        task.add_done_callback(self._done)
        return task

    async def wait(self, *, timeout_s: float | None = None) -> bool:
        """Wait until all have ended by themselves, those started meanwhile too; say whether."""
        loop = asyncio.get_running_loop()
        deadline = None if timeout_s is None else loop.time() + timeout_s
        while others := self._others():
            left_s = None if deadline is None else deadline - loop.time()
            if left_s is not None and left_s <= 0:
                return False
            await asyncio.wait(others, timeout=left_s)
        return True

    async def close(self) -> None:
        """Cancel all tasks, in the order they were started, and wait until they have ended."""
        first = not self._closed
        self._closed = True
        while others := self._others():
            if first:
                for task in others:
                    task.cancel()
            # A cancellation can get lost: `asyncio.wait_for` drops one that comes in the moment
            # when what it waits for is done. So ask again after a while, until all have ended.
            await asyncio.wait(others, timeout=CANCEL_AGAIN_S)
            first = True

    async def close_and(self, last: Callable[[], Awaitable[object]]) -> None:
        """Close, then do this too, also for one that is cancelled once more while tasks end."""
        try:
            await self.close()
        finally:
            await last()

    def _others(self) -> list[asyncio.Task[Any]]:
        mine = asyncio.current_task()
        return [task for task in self._tasks if task is not mine]

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            self._on_failure(task.get_name(), error)
