"""Requests that wait for their turn with the one task that decides.

Whoever asked may give up before its turn comes, or in the middle (the store is away, the deadline
is not): then it was told that the request failed, and nothing more is done behind its back.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple, TypeVar

from tailrace.errors import (
    InvariantViolation,
    NotController,
    Overloaded,
    RequestTimedOut,
    TailraceError,
)

T = TypeVar("T")

# Requests that may wait at the same time.
REQUESTS_MAX: Final = 1_000

# Raises RequestTimedOut when nobody waits any longer for what is being done.
Wanted = Callable[[], None]


class _Request(NamedTuple):
    work: Callable[[Wanted], Awaitable[Any]]
    done: asyncio.Future[Any]

    def check_wanted(self) -> None:
        if self.done.done():
            raise RequestTimedOut("whoever asked for this does not wait any longer")


class Requests:
    """A queue of requests, first come first served."""

    def __init__(self, on_ask: Callable[[], None]) -> None:
        self._on_ask = on_ask
        self._waiting: deque[_Request] = deque()
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._waiting)

    async def ask(self, work: Callable[[Wanted], Awaitable[T]]) -> T:
        """Have something done and wait for it; what it raises is raised here."""
        if self._is_closed:
            raise _no_longer_active()
        if len(self._waiting) >= REQUESTS_MAX:
            raise Overloaded(f"{REQUESTS_MAX} requests wait for this controller already")
        request = _Request(work, asyncio.get_running_loop().create_future())
        self._waiting.append(request)
        self._on_ask()
        found: T = await request.done
        return found

    async def serve_one(self) -> None:
        """Do what the one who has waited longest has asked for."""
        request = self._waiting.popleft()
        try:
            request.check_wanted()
            result = await request.work(request.check_wanted)
        except InvariantViolation:
            raise
        except TailraceError as error:
            _fail(request, error)
        except asyncio.CancelledError:
            # The term is over in the middle of it.
            _fail(request, _no_longer_active())
            raise
        else:
            if not request.done.done():
                request.done.set_result(result)

    def close(self) -> None:
        """The term is over."""
        self._is_closed = True
        for request in self._waiting:
            _fail(request, _no_longer_active())


def _fail(request: _Request, error: TailraceError) -> None:
    if not request.done.done():
        request.done.set_exception(error)
        # It is no loss when nobody hears of it.
        request.done.exception()


def _no_longer_active() -> NotController:
    return NotController("this controller is no longer active")
