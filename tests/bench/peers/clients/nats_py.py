"""nats-py on JetStream: publish (one at a time, and many at once), consume, streams.

A stream with three replicas in files is what a topic is elsewhere; it has no partitions.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import nats
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy, StorageType, StreamConfig

from bench.peers.clients.job import DISTINCT_VALUES, POLL_S, Job, main, some_values, waits

IN_FLIGHT = 4_000
FETCH_RECORDS = 1_000
REPLICAS = 3
CALL_S = 30.0
ASK_S = 1.0
CREATE_S = 60.0
RETRY_S = 0.2
PENDING_BYTES = 512 << 20


@asynccontextmanager
async def connected(job: Job, call_s: float = CALL_S) -> AsyncIterator[JetStreamContext]:
    client = await nats.connect(
        [f"nats://{each}" for each in job.servers.split(",")],
        max_reconnect_attempts=-1,
        reconnect_time_wait=RETRY_S,
        allow_reconnect=True,
    )
    try:
        yield client.jetstream(timeout=call_s, publish_async_max_pending=IN_FLIGHT)
    finally:
        await client.close()


async def produce(job: Job) -> None:
    values = some_values(job.size)
    async with connected(job) as stream:
        slots = asyncio.Semaphore(IN_FLIGHT)
        failed: list[Any] = []

        def done(future: asyncio.Future[Any]) -> None:
            slots.release()
            if future.exception() is not None:
                failed.append(future.exception())

        for number in range(job.records):
            await slots.acquire()
            value = values[number % DISTINCT_VALUES]
            (await stream.publish_async(job.topic, value)).add_done_callback(done)
        async with asyncio.timeout(CALL_S):
            await stream.publish_async_completed()
        if failed:
            raise RuntimeError(f"{len(failed)} records failed, first {failed[0]!r}")


async def consume(job: Job) -> None:
    async with connected(job) as stream:
        config = ConsumerConfig(ack_policy=AckPolicy.NONE, deliver_policy=DeliverPolicy.ALL)
        reader = await stream.pull_subscribe(job.topic, stream=job.topic, config=config)
        left = job.records
        while left > 0:
            left -= len(await reader.fetch(min(FETCH_RECORDS, left), timeout=POLL_S))


async def single(job: Job) -> Mapping[str, float]:
    """One record at a time, each acknowledged before the next."""
    values, times = some_values(job.size), []
    async with connected(job) as stream:
        for number in range(job.records):
            began = time.perf_counter()
            await stream.publish(job.topic, values[number % DISTINCT_VALUES])
            times.append(time.perf_counter() - began)
    return waits(times)


async def round_trip(job: Job) -> Mapping[str, float]:
    """One record at a time, from the call to the moment at which a consumer has it."""
    values, times = some_values(job.size), []
    async with connected(job) as stream:
        config = ConsumerConfig(ack_policy=AckPolicy.NONE, deliver_policy=DeliverPolicy.ALL)
        reader = await stream.subscribe(
            job.topic, stream=job.topic, config=config, pending_bytes_limit=PENDING_BYTES
        )
        for number in range(job.records):
            began = time.perf_counter()
            published = asyncio.ensure_future(
                stream.publish(job.topic, values[number % DISTINCT_VALUES])
            )
            await reader.next_msg(timeout=POLL_S)
            times.append(time.perf_counter() - began)
            await published
    return waits(times)


async def create(job: Job) -> None:
    """Tried until the cluster has a leader."""
    end = time.monotonic() + CREATE_S
    while True:
        try:
            # What is asked of a cluster without a leader is never answered.
            async with connected(job, ASK_S) as stream:
                config = StreamConfig(
                    name=job.topic,
                    subjects=[job.topic],
                    storage=StorageType.FILE,
                    num_replicas=REPLICAS,
                )
                await stream.add_stream(config)
                return
        except (nats.errors.Error, OSError):
            if time.monotonic() > end:
                raise
            await asyncio.sleep(RETRY_S)


async def first(job: Job) -> Mapping[str, float]:
    """Until a cluster that just starts acknowledges a record: at which moment."""
    await create(job)
    async with connected(job) as stream:
        await stream.publish(job.topic, b"x")
    return {"moment": time.monotonic()}


async def delete(job: Job) -> None:
    async with connected(job) as stream:
        await stream.delete_stream(job.topic)


def blocking(
    work: Callable[[Job], Awaitable[Mapping[str, Any] | None]],
) -> Callable[[Job], Mapping[str, Any] | None]:
    async def whole(job: Job) -> Mapping[str, Any] | None:
        return await work(job)

    return lambda job: asyncio.run(whole(job))


if __name__ == "__main__":
    works = (produce, consume, single, round_trip, create, first, delete)
    sys.exit(main({each.__name__: blocking(each) for each in works} | {"fill": blocking(produce)}))
