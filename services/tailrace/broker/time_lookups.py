"""Look-ups by time for clients: off the loop, a few at a time, no more waiting than is named.

A look-up reads and decodes a batch: up to `DECODED_BYTES_MAX` of the log's `time_lookup`. So its
cost is the disk's and a thread's, and others are served meanwhile.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Final

from tailrace.errors import CorruptBatch, InvalidRequest, Overloaded, StorageError
from tailrace.log import time_lookup
from tailrace.log.log import PartitionLog
from tailrace.log.time_lookup import TimedOffset
from tailrace.runtime import Blocking

# At a time, of all clients; those that wait for their turn; those of one request.
LOOKUPS_MAX: Final = 2
WAITING_MAX: Final = 1_000
PER_REQUEST_MAX: Final = 1_000
# A log that is changed under a look-up is searched again, so often.
TRIES_MAX: Final = 3


class TimeLookups:
    """All look-ups by time of one broker."""

    def __init__(self, blocking: Blocking) -> None:
        self._blocking = blocking
        self._turns = asyncio.Semaphore(LOOKUPS_MAX)
        self._waiting = 0

    def check(self, queries: int) -> None:
        """InvalidRequest for more look-ups than one request may ask for."""
        if queries > PER_REQUEST_MAX:
            raise InvalidRequest(
                f"{queries} look-ups by time in one request, {PER_REQUEST_MAX} are allowed"
            )

    async def find(self, log: PartitionLog, timestamp_ms: int, *, up_to: int) -> TimedOffset | None:
        """The first record at or after a time, below `up_to`, or None; Overloaded: come later."""
        if self._waiting >= WAITING_MAX:
            raise Overloaded(f"{self._waiting} look-ups by time wait already")
        self._waiting += 1
        try:
            async with self._turns:
                return await self._find(log, timestamp_ms, up_to)
        finally:
            self._waiting -= 1

    async def _find(self, log: PartitionLog, timestamp_ms: int, up_to: int) -> TimedOffset | None:
        problem: Exception | None = None
        for _ in range(TRIES_MAX):
            # What compaction, retention or a cut takes away meanwhile makes it wrong or fail.
            plan, generation = time_lookup.plan(log, timestamp_ms, up_to=up_to), log.generation
            segments = list(log.segments)
            if not plan.places:
                return None
            problem, found = None, None
            try:
                found = await self._blocking.run(partial(time_lookup.find, plan))
            except (OSError, CorruptBatch) as error:
                problem = error
            is_same = log.generation == generation and log.segments[: len(segments)] == segments
            if problem is None and (is_same or found is None or found.offset >= log.log_start):
                return found
        raise StorageError(
            f"{log.partition}: no offset by time: {problem or 'it changes too fast'}"
        )
