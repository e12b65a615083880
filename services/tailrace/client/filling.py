"""Runs of records into batches: as many at a time as the open batch has room for.

What `ProducerCore.send` does for one record is done here for thousands that differ only in value
and time, with a handful of operations on lists for each batch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from itertools import accumulate

from tailrace.client.accumulator import RECORD_OVERHEAD_BYTES, Accumulator, Pending, Queue
from tailrace.client.delivery import BatchOutcome
from tailrace.client.handing import Run
from tailrace.client.lifetime import Lifetime
from tailrace.client.spreading import TopicQueues
from tailrace.errors import BatchTooLarge, BufferFull, TailraceError

Ready = Callable[[str, int], Awaitable[TopicQueues]]
Open = Callable[[TopicQueues, Queue[BatchOutcome], bytes, int, int], Pending[BatchOutcome]]


class Filling:
    """Puts runs into the buffer of one producer."""

    def __init__(
        self,
        accumulator: Accumulator[BatchOutcome],
        topics: Mapping[str, TopicQueues],
        lifetime: Lifetime,
        *,
        buffer_memory: int,
        ready_for: Ready,
        open_batch: Open,
    ) -> None:
        """`ready_for` waits until a topic is known and there is room; `open_batch` begins one."""
        self._accumulator = accumulator
        self._topics = topics
        self._lifetime = lifetime
        self._buffer_memory = buffer_memory
        self._ready_for = ready_for
        self._open_batch = open_batch

    async def fill(self, run: Run) -> None:
        """Put all of it into batches, in order; what cannot be is refused, which its run tells."""
        ends = list(accumulate(map(len, run.values)))
        at = 0
        while at < len(ends):
            try:
                at += await self._some(run, ends, at)
            except (BatchTooLarge, BufferFull) as error:
                # This one; the next may be smaller, or find room.
                run.refuse(at, 1, error)
                at += 1
            except TailraceError as error:
                run.refuse_rest(error)
                break
            except Exception as error:  # noqa: BLE001 - a partitioner of the program's own.
                run.refuse(at, 1, error)
                at += 1
            # Senders get their turn, also beside a program that never waits for anything.
            await asyncio.sleep(0)
        # Who keeps a future of one record need not keep the values of all.
        run.values.clear()

    async def _some(self, run: Run, ends: list[int], at: int) -> int:
        """Put the next records of a run into one batch; how many."""
        if self._lifetime.is_over:
            self._lifetime.check()
        accumulator, value = self._accumulator, run.values[at]
        size = RECORD_OVERHEAD_BYTES + len(value)
        known = self._topics.get(run.topic)
        if known is None or accumulator.memory_bytes + size > self._buffer_memory:
            known = await self._ready_for(run.topic, size)
        if known.is_sticky:
            queue, end = known.sticky or known.choose(), len(ends)
        else:
            # A partitioner of the program's own is asked about each.
            queue, end = known.queue_for(None, None), at + 1
        room = max(self._buffer_memory - accumulator.memory_bytes, size)
        taken = accumulator.add_run(queue, run.values, run.times, ends, at, end, room=room)
        if taken:
            batch = queue.batches[-1]
        else:
            batch = self._open_batch(known, queue, value, run.times[at], size)
            taken = 1
        run.put(at, taken, batch.outcome, batch.count - taken)
        return taken
