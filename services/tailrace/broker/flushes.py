"""One sync of one log, off the loop; what went wrong comes back as a value. Syncs are timed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from tailrace.clock import Clock
from tailrace.errors import LogClosed, StorageError
from tailrace.log.log import PartitionLog
from tailrace.metrics.values import Calls
from tailrace.runtime import Blocking

T = TypeVar("T")


class TimedBlocking:
    """Blocking work whose times are noted, the wait for a thread with it."""

    def __init__(self, blocking: Blocking, clock: Clock, calls: Calls) -> None:
        self._blocking = blocking
        self._clock = clock
        self._calls = calls

    async def run(self, work: Callable[[], T]) -> T:
        began_ms = self._clock.monotonic_ms()
        try:
            done = await self._blocking.run(work)
        except (OSError, StorageError):
            self._calls.failed += 1
            raise
        self._calls.times.observe(self._clock.monotonic_ms() - began_ms)
        return done


async def flush(log: PartitionLog, blocking: Blocking) -> StorageError | LogClosed | None:
    """Make what is in the log durable; the error, when it could not be, stops the log."""
    try:
        work = log.begin_flush()
        if work is None:
            return None
        await blocking.run(work.run)
        log.end_flush(work)
    except OSError as error:
        return log.fail_flush(error)
    except (StorageError, LogClosed) as error:
        return error
    return None
