"""The event loop behind the synchronous clients: one thread for all of them in a process.

The thread starts with the first client that needs it and ends with the process. A fork leaves it
behind: the child gets a new one when it makes clients of its own. Where uvloop is installed it is
the loop: a record that is sent and waited for costs the client a quarter less.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import CancelledError, Future
from concurrent.futures import TimeoutError as FutureTimeout
from os import getpid
from typing import Any, TypeVar

from tailrace.errors import RequestTimedOut
from tailrace.process import loop_factory

T = TypeVar("T")


class Background:
    """A loop that runs in a thread of its own."""

    def __init__(self) -> None:
        self.pid = getpid()
        self.loop = (loop_factory() or asyncio.new_event_loop)()
        self._thread = threading.Thread(target=self._run, name="tailrace", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Run it in the loop."""
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def wait(self, work: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        """Run it in the loop and wait for its end; RequestTimedOut when it takes too long."""
        self.check_not_inside(work)
        future = self.start(work)
        try:
            return future.result(timeout_s)
        except FutureTimeout:
            if future.done():
                raise
            future.cancel()
            raise RequestTimedOut(f"not done within {timeout_s} s") from None
        except CancelledError:
            raise RequestTimedOut("the client was closed meanwhile") from None

    def check_not_inside(self, work: Coroutine[Any, Any, Any] | None = None) -> None:
        """RuntimeError in the loop's own thread, as in a callback: it would wait for itself."""
        if threading.current_thread() is self._thread:
            if work is not None:
                work.close()
            raise RuntimeError("a callback must not wait for the client that calls it")


_lock = threading.Lock()
_shared: Background | None = None


def background() -> Background:
    """The loop of this process."""
    global _shared  # noqa: PLW0603 - one thread for all clients of a process is the point.
    with _lock:
        if _shared is None or _shared.pid != getpid():
            _shared = Background()
        return _shared
