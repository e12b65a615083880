"""Group commit: one flush serves everyone who waits for it.

Pure: it orders flushes and waiters and touches no file; waiters are opaque values (futures, in the
broker). An offset here is an end: everything below it is to be durable. Invariants: at most one
flush is under way; a waiter is handed back exactly once; after a failed flush nothing is ever
reported as durable again, because what the flush should have saved counts as lost.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Generic, TypeVar

from tailrace.errors import InvariantViolation, LimitReached, TailraceError
from tailrace.model import Offset

WAITERS_MAX: Final = 100_000

W = TypeVar("W")


class GroupCommit(Generic[W]):
    """Who waits for which offset to be durable, and the one flush under way."""

    __slots__ = (
        "_durable_end",
        "_failure",
        "_flushing_to",
        "_intact_end",
        "_waiters",
        "_waiters_max",
    )

    def __init__(self, durable_end: int = 0, *, waiters_max: int = WAITERS_MAX) -> None:
        self._durable_end = durable_end
        self._waiters: list[tuple[int, W]] = []
        self._waiters_max = waiters_max
        self._flushing_to: int | None = None
        # How much of the log has stood unchanged since the flush under way began; None: all.
        self._intact_end: int | None = None
        self._failure: TailraceError | None = None

    @property
    def durable_end(self) -> Offset:
        """Everything below is durable; someone who needs no more need not wait."""
        return Offset(self._durable_end)

    @property
    def failure(self) -> TailraceError | None:
        return self._failure

    @property
    def flushing(self) -> bool:
        return self._flushing_to is not None

    def __len__(self) -> int:
        return len(self._waiters)

    def request(self, offset: int, waiter: W) -> None:
        """Let `waiter` wait until everything below `offset` is durable.

        Raises LimitReached when too many wait, and what `fail` was given once it was called.
        """
        if self._failure is not None:
            raise self._failure
        if len(self._waiters) >= self._waiters_max:
            raise LimitReached(f"{self._waiters_max} appends already wait for a flush, the limit")
        self._waiters.append((offset, waiter))

    def begin(self) -> Offset | None:
        """Start a flush: return the offset it must reach, None when none may or need start.

        The flush may save more; who finishes it says how far it went.
        """
        if self._flushing_to is not None or self._failure is not None or not self._waiters:
            return None
        self._flushing_to = max(offset for offset, _ in self._waiters)
        return Offset(self._flushing_to)

    def finish(self, up_to: int) -> list[W]:
        """The flush has saved everything below `up_to`, the log end when it began.

        Returns who need not wait any longer, in the order they came.
        """
        if self._failure is not None:
            return []
        if self._flushing_to is None:
            raise InvariantViolation(f"a flush up to {up_to} finished that never began")
        if up_to < self._flushing_to:
            raise InvariantViolation(f"flushed up to {up_to}, asked for {self._flushing_to}")
        if self._intact_end is not None:
            up_to = min(up_to, self._intact_end)
        self._flushing_to = self._intact_end = None
        self._durable_end = max(self._durable_end, up_to)
        return self._take(lambda offset: offset <= up_to)

    def fail(self, error: TailraceError) -> list[W]:
        """The flush failed, or the log closed: return everyone; none may ever wait here again."""
        if self._failure is None:
            self._failure = error
        self._flushing_to = self._intact_end = None
        return self._take(lambda _: True)

    def truncate(self, end: int) -> list[W]:
        """The log now ends at `end`: return those who wait for what is gone.

        A flush under way may have saved what was cut off; what is written there anew is not
        what it saved.
        """
        self._durable_end = min(self._durable_end, end)
        if self._flushing_to is not None:
            self._flushing_to = min(self._flushing_to, end)
            self._intact_end = end if self._intact_end is None else min(self._intact_end, end)
        return self._take(lambda offset: offset > end)

    def _take(self, leaves: Callable[[int], bool]) -> list[W]:
        left = [waiter for offset, waiter in self._waiters if leaves(offset)]
        self._waiters = [entry for entry in self._waiters if not leaves(entry[0])]
        return left
