"""Tailrace's own clients, settings as they ship unless a workload says otherwise."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import pyarrow as pa

import tailrace
import tailrace.client.sync
import tailrace.client.sync_consumer
from bench.peers.clients.job import (
    DISTINCT_VALUES,
    FLUSH_S,
    PACE_WARM,
    POLL_S,
    Job,
    Pace,
    main,
    rows_of_a_batch,
    some_values,
    waits,
)
from bench.peers.clients.steady import Receiving, Sending
from tailrace import aio

DELIVERY_MS = 300_000
MEMBER_POLL_S = 0.05


def settings(job: Job) -> dict[str, Any]:
    small = {"batch_size": job.batch_bytes} if job.batch_bytes else {}
    return {**small, "compression_type": job.compression}


def produce(job: Job) -> None:
    """`way`: blocking, columns, or asyncio."""
    if job.way == "blocking":
        _produce_blocking(job)
    else:
        asyncio.run(_produce_columns(job) if job.way == "columns" else _produce(job))


async def _produce(job: Job) -> None:
    values = some_values(job.size, job.compression)
    async with aio.Producer(job.servers, **settings(job)) as producer:
        for number in range(job.records):
            await producer.send(job.topic, values[number % DISTINCT_VALUES])
        await producer.flush()


def _produce_blocking(job: Job) -> None:
    values = some_values(job.size, job.compression)
    with tailrace.Producer(job.servers, **settings(job)) as producer:
        for number in range(job.records):
            producer.send(job.topic, values[number % DISTINCT_VALUES])
        producer.flush(FLUSH_S)


async def _produce_columns(job: Job) -> None:
    rows = rows_of_a_batch(job.size)
    column = _column(job.size, rows)
    async with aio.Producer(job.servers) as producer:
        for at in range(0, job.records, rows):
            piece = column.slice(0, min(rows, job.records - at))
            await producer.send_batch(job.topic, {"value": piece})
        await producer.flush()


async def fill(job: Job) -> None:
    """As many in each partition, in batches of a megabyte."""
    rows = rows_of_a_batch(job.size)
    column = _column(job.size, rows)
    async with aio.Producer(job.servers) as producer:
        for at in range(0, job.records, rows):
            piece = column.slice(0, min(rows, job.records - at))
            where = at // rows % job.partitions
            await producer.send_batch(job.topic, {"value": piece}, partition=where)
        await producer.flush()


def consume(job: Job) -> None:
    """`way`: rows or Arrow, blocking unless it says asyncio."""
    if job.way == "rows":
        _rows(job)
    elif job.way == "arrow":
        _arrow(job)
    else:
        asyncio.run(_aio_rows(job) if job.way == "rows, asyncio" else _aio_arrow(job))


def _rows(job: Job) -> None:
    with tailrace.Consumer(job.topic, **_consumer(job)) as consumer:
        left = job.records
        while left > 0:
            left -= len(consumer.poll(POLL_S))


def _arrow(job: Job) -> None:
    with tailrace.Consumer(job.topic, **_consumer(job)) as consumer:
        left = job.records
        for batch in consumer.batches(timeout=POLL_S):
            left -= batch.num_rows
            if left <= 0:
                return


async def _aio_rows(job: Job) -> None:
    async with aio.Consumer(job.topic, **_consumer(job)) as consumer:
        left = job.records
        while left > 0:
            left -= len(await consumer.poll(POLL_S))


async def _aio_arrow(job: Job) -> None:
    async with aio.Consumer(job.topic, **_consumer(job)) as consumer:
        left = job.records
        async for batch in consumer.batches(timeout=POLL_S):
            left -= batch.num_rows
            if left <= 0:
                return


def single(job: Job) -> Mapping[str, float]:
    """One record at a time, each acknowledged before the next; `way`: blocking, or asyncio."""
    return _single_blocking(job) if job.way == "blocking" else asyncio.run(_single(job))


async def _single(job: Job) -> Mapping[str, float]:
    values, times = some_values(job.size), []
    async with aio.Producer(job.servers) as producer:
        for number in range(job.records):
            began = time.perf_counter()
            value = values[number % DISTINCT_VALUES]
            await (await producer.send(job.topic, value, partition=0))
            times.append(time.perf_counter() - began)
    return waits(times)


def _single_blocking(job: Job) -> Mapping[str, float]:
    values, times = some_values(job.size), []
    with tailrace.Producer(job.servers) as producer:
        for number in range(job.records):
            began = time.perf_counter()
            value = values[number % DISTINCT_VALUES]
            producer.send(job.topic, value, partition=0).result(POLL_S)
            times.append(time.perf_counter() - began)
    return waits(times)


def round_trip(job: Job) -> Mapping[str, float]:
    """One record at a time, from `send` to the moment at which a consumer has it.

    `way`: blocking, or asyncio.
    """
    return _round_trip_blocking(job) if job.way == "blocking" else asyncio.run(_round_trip(job))


def _round_trip_blocking(job: Job) -> Mapping[str, float]:
    values, times = some_values(job.size), []
    with (
        tailrace.Producer(job.servers) as producer,
        tailrace.Consumer(job.topic, **_consumer(job)) as consumer,
    ):
        for number in range(job.records):
            began = time.perf_counter()
            producer.send(job.topic, values[number % DISTINCT_VALUES], partition=0)
            if not consumer.poll(POLL_S):
                raise RuntimeError("a record never came")
            times.append(time.perf_counter() - began)
    return waits(times)


async def _round_trip(job: Job) -> Mapping[str, float]:
    values, times = some_values(job.size), []
    async with (
        aio.Producer(job.servers) as producer,
        aio.Consumer(job.topic, **_consumer(job)) as consumer,
    ):
        for number in range(job.records):
            began = time.perf_counter()
            await producer.send(job.topic, values[number % DISTINCT_VALUES], partition=0)
            if not await consumer.poll(POLL_S):
                raise RuntimeError("a record never came")
            times.append(time.perf_counter() - began)
    return waits(times)


async def paced(job: Job) -> Mapping[str, float]:
    """At a fixed rate, from the moment at which a record was due until a consumer has it."""

    async def read() -> None:
        while len(pace.times) < job.records:
            for record in await consumer.poll(POLL_S):
                pace.received(record.value)

    async with (
        aio.Producer(job.servers) as producer,
        aio.Consumer(job.topic, **_consumer(job)) as consumer,
        asyncio.TaskGroup() as group,
    ):
        for number in range(PACE_WARM):
            await producer.send(job.topic, b"x", partition=number % job.partitions)
        seen = 0
        while seen < PACE_WARM:
            seen += len(await consumer.poll(POLL_S))
        pace = Pace(job)
        group.create_task(read())
        for number in range(job.records):
            if (pause_s := pace.pause_s()) > 0:
                await asyncio.sleep(pause_s)
            await producer.send(job.topic, pace.next(), partition=number % job.partitions)
    return waits(pace.times)


async def steady(job: Job) -> Mapping[str, Any]:
    """See steady.py."""
    watch = Sending()

    def note(number: int) -> Callable[[object, object], None]:
        return lambda _, error: watch.acked(number, failed=error is not None)

    async with aio.Producer(job.servers) as producer:
        while not watch.is_stopped:
            number = watch.sent()
            await producer.send(
                job.topic,
                b"%d" % number,
                partition=number % job.partitions,
                callback=note(number),
            )
            await asyncio.sleep(watch.pause_s())
        await producer.flush()
    return watch.report()


async def member(job: Job) -> Mapping[str, Any]:
    """A member of a group, settings as they ship."""
    watch = Receiving()
    async with aio.Consumer(
        job.topic,
        bootstrap_servers=job.servers,
        group_id=job.group,
        auto_offset_reset="earliest",
    ) as consumer:
        while not watch.is_stopped:
            for record in await consumer.poll(MEMBER_POLL_S):
                watch.received(record.partition)
    return watch.report()


async def write_each(job: Job) -> Mapping[str, float]:
    """Make the topic, and have one record acknowledged in each of its partitions."""
    async with aio.Admin(job.servers) as admin:
        await admin.create_topic(
            job.topic, partitions=job.partitions, replication_factor=3, timeout_ms=120_000
        )
    made = time.monotonic()
    async with aio.Producer(job.servers, delivery_timeout_ms=DELIVERY_MS) as producer:
        sent = [await producer.send(job.topic, b"x", partition=at) for at in range(job.partitions)]
        await producer.flush()
        for each in sent:
            await each
    return {"made": made, "moment": time.monotonic()}


async def until_moved(job: Job) -> Mapping[str, float]:
    """Until no partition is led by `node`, as clients see it."""
    async with aio.Admin(job.servers) as admin, asyncio.timeout(FLUSH_S):
        while True:
            found = (await admin.describe_topic(job.topic)).partitions
            if not {job.node, -1} & {each.leader for each in found}:
                return {"moment": time.monotonic()}
            await asyncio.sleep(0.02)


def _column(size: int, rows: int) -> Any:
    values = some_values(size)
    return pa.array([values[number % DISTINCT_VALUES] for number in range(rows)], pa.binary())


def _consumer(job: Job) -> dict[str, Any]:
    return {
        "bootstrap_servers": job.servers,
        "auto_offset_reset": "earliest",
    }


def blocking(
    work: Callable[[Job], Coroutine[Any, Any, Mapping[str, Any] | None]],
) -> Callable[[Job], Mapping[str, Any] | None]:
    return lambda job: asyncio.run(work(job))


if __name__ == "__main__":
    coroutines = (fill, paced, steady, member, write_each, until_moved)
    works = {each.__name__: blocking(each) for each in coroutines}
    plain = {each.__name__: each for each in (produce, consume, single, round_trip)}
    sys.exit(main({**works, **plain}))
