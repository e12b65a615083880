"""Many of Tailrace's own clients in one process: they connect, meet, and begin together.

A hundred processes would measure how two cores start them. What a broker sees is the same: every
client has connections, a producer id or a fetch session of its own. All are connected before the
word comes (`ok`, then one more line on standard input), so that figures are of records alone.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from bench.peers.clients.job import (
    DISTINCT_VALUES,
    POLL_S,
    Job,
    cpu_s,
    main,
    some_values,
)
from bench.peers.clients.ours import blocking, settings
from tailrace import aio

PRIME_S = 0.5
"""How long a consumer looks at the end of its topic, where nothing comes, to open all it needs."""
KEYS = 10_000

Report = Mapping[str, float]


async def produce(job: Job) -> Report:
    """`way`: keyed, so that every partition gets some of every second's records; or as it ships."""
    values = some_values(job.size)
    keys = [b"key-%d" % number for number in range(KEYS)] if job.way == "keyed" else [None]

    async def one(producer: aio.Producer, records: int) -> None:
        for number in range(records):
            key = keys[number % len(keys)]
            await producer.send(job.topic, values[number % DISTINCT_VALUES], key=key)
        await producer.flush()

    async with _opened(job, lambda: aio.Producer(job.servers, **settings(job))) as producers:
        # Sent to partitions by turns, so that not all are strangers to the same broker only.
        for number, each in enumerate(producers):
            await (await each.send(job.topic, b"x", partition=number % job.partitions))
        return await _together(job, producers, one)


async def consume(job: Job) -> Report:
    """Each reads as many records from the beginning, as Arrow batches."""

    async def one(consumer: aio.Consumer, records: int) -> None:
        await consumer.seek_to_beginning()
        left = records
        async for batch in consumer.batches(timeout=POLL_S):
            left -= batch.num_rows
            if left <= 0:
                return
        raise RuntimeError(f"{left} of {records} records never came")

    def new() -> aio.Consumer:
        return aio.Consumer(
            job.topic,
            bootstrap_servers=job.servers,
            auto_offset_reset="latest",
        )

    async with _opened(job, new) as consumers:
        await asyncio.gather(*(each.poll(PRIME_S) for each in consumers))
        return await _together(job, consumers, one)


@asynccontextmanager
async def _opened(job: Job, new: Callable[[], Any]) -> AsyncIterator[list[Any]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(new()) for _ in range(job.clients)]


async def _together(
    job: Job, clients: Sequence[Any], one: Callable[[Any, int], Awaitable[None]]
) -> Report:
    """Say that all are connected, wait for the word, and share the records among all of them."""
    print("ok", flush=True)
    if not await asyncio.to_thread(sys.stdin.readline):
        raise RuntimeError("nobody waits for these records any more")
    share, rest = divmod(job.records, len(clients))
    before_s, began = cpu_s(), time.monotonic()
    parts = [share + (number < rest) for number in range(len(clients))]
    await asyncio.gather(*(one(each, part) for each, part in zip(clients, parts, strict=True)))
    return {"began": began, "ended": time.monotonic(), "cpu_s": cpu_s() - before_s}


if __name__ == "__main__":
    sys.exit(main({each.__name__: blocking(each) for each in (produce, consume)}))
