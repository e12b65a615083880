"""What Tailrace is measured by in the quick run: a client in this process, real brokers outside.

One topic of three partitions and three replicas a round, acks=all, settings as they ship unless a
workload says otherwise. All goes through the public clients.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import count
from random import Random
from time import perf_counter, process_time
from typing import Final, TypeAlias

import pyarrow as pa

from bench.peers.clients.job import rows_of_a_batch
from bench.quick.measured import Flow, Waits, waits
from bench.usage import cpu_s
from tailrace.aio import Admin, Consumer, Producer
from tailrace.dev.cluster import DevCluster

KIB: Final = 1 << 10
MIB: Final = 1 << 20
PARTITIONS: Final = 3
REPLICAS: Final = 3
DISTINCT_VALUES: Final = 997
SMALL_BATCH: Final = 16 * KIB
POLL_S: Final = 30.0
POLL_RECORDS: Final = 10_000
WARM: Final = 50
"""Single records that open connections and are not counted."""

SINGLES_MIN: Final = 150
"""So many are counted at least, however long that takes: else there is no 99th percentile."""


class Cluster:
    """Brokers that run, and what they used so far."""

    def __init__(self, dev: DevCluster, admin: Admin) -> None:
        self.bootstrap = dev.state.bootstrap
        self.admin = admin
        self._pids = [each.identity.pid for each in dev.state.members if each.identity is not None]
        self._numbers = count()

    def cpu_s(self) -> float:
        """Of brokers, controller and etcd."""
        return sum(map(cpu_s, self._pids))

    async def new_topic(self) -> str:
        name = f"bench-{next(self._numbers)}"
        await self.admin.create_topic(name, partitions=PARTITIONS, replication_factor=REPLICAS)
        return name

    @asynccontextmanager
    async def topic(self) -> AsyncIterator[str]:
        """One that is gone afterwards: what it wrote shall not burden the next."""
        name = await self.new_topic()
        try:
            yield name
        finally:
            await self.admin.delete_topic(name)


@dataclass(frozen=True, slots=True)
class Job:
    """What one round of a workload is to do."""

    cluster: Cluster
    topic: str
    size: int
    value_bytes: int
    # Of those that go one at a time.
    seconds: float = 0.0


Flowing: TypeAlias = Callable[[Job], Awaitable[int]]
"""Gives how many records it moved."""


async def flow(work: Flowing, job: Job) -> Flow:
    server_s, client_s, began = job.cluster.cpu_s(), process_time(), perf_counter()
    records = await work(job)
    return Flow(
        records * job.size,
        perf_counter() - began,
        job.cluster.cpu_s() - server_s,
        process_time() - client_s,
    )


async def send(job: Job) -> int:
    return await _send(job, Producer(job.cluster.bootstrap))


async def send_small(job: Job) -> int:
    return await _send(job, Producer(job.cluster.bootstrap, batch_size=SMALL_BATCH))


async def _send(job: Job, producer: Producer) -> int:
    values = some_values(job.size)
    records = max(job.value_bytes // job.size, 1)
    async with producer:
        for number in range(records):
            await producer.send(job.topic, values[number % DISTINCT_VALUES])
        await producer.flush()
    return records


async def send_columns(job: Job) -> int:
    rows = rows_of_a_batch(job.size)
    values = some_values(job.size)
    column = pa.array([values[number % DISTINCT_VALUES] for number in range(rows)], pa.binary())
    batches = max(job.value_bytes // (rows * job.size), 1)
    async with Producer(job.cluster.bootstrap) as producer:
        for _ in range(batches):
            await producer.send_batch(job.topic, {"value": column})
        await producer.flush()
    return batches * rows


async def read_arrow(job: Job) -> int:
    wanted, found = job.value_bytes // job.size, 0
    async with _consumer(job) as consumer:
        async for batch in consumer.batches(timeout=POLL_S):
            found += batch.num_rows
            if found >= wanted:
                break
    return found


async def read_rows(job: Job) -> int:
    wanted, found = job.value_bytes // job.size, 0
    async with _consumer(job) as consumer:
        while found < wanted:
            found += len(await consumer.poll(POLL_S))
    return found


async def acknowledged(job: Job) -> Waits:
    """One record at a time, each acknowledged before the next."""
    values = some_values(job.size)
    times: list[float] = []
    async with Producer(job.cluster.bootstrap) as producer:
        end = perf_counter() + job.seconds
        while (began := perf_counter()) < end or len(times) < WARM + SINGLES_MIN:
            value = values[len(times) % DISTINCT_VALUES]
            await (await producer.send(job.topic, value, partition=0))
            times.append(perf_counter() - began)
    return waits(times[WARM:])


async def to_consumer(job: Job) -> Waits:
    """One record at a time, from `send` to the moment at which a consumer has it."""
    values = some_values(job.size)
    times: list[float] = []
    async with Producer(job.cluster.bootstrap) as producer, _consumer(job) as consumer:
        end = perf_counter() + job.seconds
        while (began := perf_counter()) < end or len(times) < WARM + SINGLES_MIN:
            value = values[len(times) % DISTINCT_VALUES]
            await producer.send(job.topic, value, partition=0)
            if not await consumer.poll(POLL_S):
                raise RuntimeError("a record never came")
            times.append(perf_counter() - began)
    return waits(times[WARM:])


def some_values(size: int) -> list[bytes]:
    """The same each time."""
    rng = Random(size)
    return [rng.randbytes(size) for _ in range(DISTINCT_VALUES)]


def _consumer(job: Job) -> Consumer:
    return Consumer(
        job.topic,
        bootstrap_servers=job.cluster.bootstrap,
        auto_offset_reset="earliest",
        max_poll_records=POLL_RECORDS,
    )
