"""What a cluster of three brokers does on this machine: produce, read, and single records.

Real processes and real etcd; one topic of three partitions with three replicas, acks=all, settings
as they ship unless a line says otherwise. The client, the brokers and everything else share the
machine, so CPU seconds per GB of record values (brokers and client apart) are the steady figures;
the rest is the median of some rounds. `--json` prints one object for scripts.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from time import perf_counter, process_time

import pyarrow as pa
from rich.console import Console
from rich.table import Table

from bench.usage import cpu_s
from integration.cluster_harness import Cluster, connected, start, stop
from tailrace.client.asynchronous import Producer
from tailrace.client.reader import PartitionReader
from tailrace.clock import SystemClock
from tailrace.dev.cluster import DevCluster
from tailrace.dev.state import Role
from tailrace.process import loop_factory

ROUNDS = 3
MEGABYTES = 200
SINGLES = 2_000
PARTITIONS = 3
DISTINCT_VALUES = 997
BATCH_ROWS_BYTES = 1 << 20
SMALL_BATCH = 16 << 10
GB = 1e9


@dataclass(frozen=True)
class Run:
    """One round of one workload."""

    records: int
    value_bytes: int
    seconds: float
    broker_cpu_s: float
    client_cpu_s: float

    @property
    def gigabytes(self) -> float:
        return self.records * self.value_bytes / GB


@dataclass(frozen=True)
class Figure:
    """One line of the report; None: not of this workload."""

    name: str
    records_per_s: float | None = None
    mb_per_s: float | None = None
    broker_cpu_s_per_gb: float | None = None
    client_cpu_s_per_gb: float | None = None
    p50_ms: float | None = None
    p99_ms: float | None = None


Work = Callable[[Cluster, str, int, int], Awaitable[int]]
"""(cluster, topic, value bytes, megabytes) -> records done."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--megabytes", type=int, default=MEGABYTES, help="of values in a round")
    parser.add_argument("--only", default="", help="workloads whose name has this in it")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tailrace-bench-") as folder:
        dev = start(Path(folder) / "cluster")
        try:
            with asyncio.Runner(loop_factory=loop_factory()) as runner:
                figures = runner.run(measure(dev, arguments))
        finally:
            stop(dev)
    if arguments.json:
        json.dump([asdict(figure) for figure in figures], sys.stdout)
        print()
    else:
        show(figures)
    return 0


async def measure(dev: DevCluster, arguments: argparse.Namespace) -> list[Figure]:
    figures: list[Figure] = []
    async with connected(dev) as cluster:
        for name, size, work in THROUGHPUT:
            if arguments.only in name:
                runs = await throughput(cluster, size, work, arguments)
                figures.append(summed_up(name, runs))
        for name, size, latency in LATENCY:
            if arguments.only in name:
                figures.append(await latency(cluster, name, size))
    return figures


# Throughput.


async def throughput(
    cluster: Cluster, size: int, work: Work, arguments: argparse.Namespace
) -> list[Run]:
    """One round to warm up, then those that count, each on a topic of its own."""
    runs: list[Run] = []
    for number in range(arguments.rounds + 1):
        megabytes = arguments.megabytes if number else max(arguments.megabytes // 4, 1)
        topic = await fresh_topic(cluster)
        if work in {read_arrow, read_rows}:
            await produce_columns(cluster, topic, size, megabytes)
        brokers_s, client_s, began = broker_cpu_s(cluster), process_time(), perf_counter()
        records = await work(cluster, topic, size, megabytes)
        run = Run(
            records,
            size,
            perf_counter() - began,
            broker_cpu_s(cluster) - brokers_s,
            process_time() - client_s,
        )
        await cluster.admin.delete_topic(topic)
        runs.append(run)
    return runs[1:]


async def produce_singly(cluster: Cluster, topic: str, size: int, megabytes: int) -> int:
    return await _send_all(cluster, topic, size, megabytes, Producer(cluster.bootstrap))


async def produce_small(cluster: Cluster, topic: str, size: int, megabytes: int) -> int:
    producer = Producer(cluster.bootstrap, batch_size=SMALL_BATCH)
    return await _send_all(cluster, topic, size, megabytes // 4, producer)


async def _send_all(
    cluster: Cluster, topic: str, size: int, megabytes: int, producer: Producer
) -> int:
    values = some_values(size)
    records = max(megabytes * 1_000_000 // size, 1)
    async with producer:
        for number in range(records):
            await producer.send(topic, values[number % DISTINCT_VALUES])
        await producer.flush()
    return records


async def produce_columns(cluster: Cluster, topic: str, size: int, megabytes: int) -> int:
    values = some_values(size)
    rows = BATCH_ROWS_BYTES // size
    column = pa.array([values[number % DISTINCT_VALUES] for number in range(rows)], pa.binary())
    batches = max(megabytes * 1_000_000 // (rows * size), 1)
    async with Producer(cluster.bootstrap) as producer:
        for _ in range(batches):
            await producer.send_batch(topic, {"value": column})
        await producer.flush()
    return batches * rows


async def read_arrow(cluster: Cluster, topic: str, size: int, megabytes: int) -> int:
    async def take(reader: PartitionReader, end: int) -> int:
        rows = 0
        while reader.position < end:
            fetched = await reader.next()
            if fetched is not None:
                rows += fetched.view.record_batch().num_rows
        return rows

    return await _read_all(cluster, topic, take)


async def read_rows(cluster: Cluster, topic: str, size: int, megabytes: int) -> int:
    async def take(reader: PartitionReader, end: int) -> int:
        rows = 0
        async for record in reader.records():
            rows += 1
            if record.offset + 1 >= end:
                break
        return rows

    return await _read_all(cluster, topic, take)


async def _read_all(
    cluster: Cluster, topic: str, take: Callable[[PartitionReader, int], Awaitable[int]]
) -> int:
    found = await cluster.admin.list_offsets(topic)
    ends = {each: place.offset for each, place in found.items()}

    async def one(partition: int, end: int) -> int:
        if not end:
            return 0
        async with new_reader(cluster, topic, partition) as reader:
            return await take(reader, end)

    return sum(await asyncio.gather(*(one(each, end) for each, end in ends.items())))


# Latency.


async def single_produce(cluster: Cluster, name: str, size: int) -> Figure:
    """One record at a time, each acknowledged before the next."""
    topic, values, times = await fresh_topic(cluster), some_values(size), []
    async with Producer(cluster.bootstrap) as producer:
        for number in range(SINGLES + SINGLES // 10):
            began = perf_counter()
            delivery = await producer.send(topic, values[number % DISTINCT_VALUES], partition=0)
            await delivery
            times.append(perf_counter() - began)
    return summed_latency(name, times)


async def produce_to_read(cluster: Cluster, name: str, size: int) -> Figure:
    """From `send` to the moment at which a reader has it."""
    topic, values, times = await fresh_topic(cluster), some_values(size), []
    async with (
        Producer(cluster.bootstrap) as producer,
        new_reader(cluster, topic, 0) as reader,
    ):
        for number in range(SINGLES + SINGLES // 10):
            began = perf_counter()
            await producer.send(topic, values[number % DISTINCT_VALUES], partition=0)
            while reader.position <= number:
                await reader.next()
            times.append(perf_counter() - began)
    return summed_latency(name, times)


THROUGHPUT: list[tuple[str, int, Work]] = [
    ("send() 1 KiB", 1_024, produce_singly),
    ("send() 100 B", 100, produce_singly),
    ("send() 1 KiB, batches of 16 KiB", 1_024, produce_small),
    ("send() 100 B, batches of 16 KiB", 100, produce_small),
    ("send_batch() 1 KiB", 1_024, produce_columns),
    ("send_batch() 100 B", 100, produce_columns),
    ("read 1 KiB, Arrow", 1_024, read_arrow),
    ("read 100 B, Arrow", 100, read_arrow),
    ("read 100 B, rows", 100, read_rows),
]
LATENCY: list[tuple[str, int, Callable[[Cluster, str, int], Awaitable[Figure]]]] = [
    ("one at a time, acknowledged, 1 KiB", 1_024, single_produce),
    ("one at a time, produce to read, 1 KiB", 1_024, produce_to_read),
]


# Helpers.


_topics = iter(range(1_000_000))


async def fresh_topic(cluster: Cluster) -> str:
    topic = f"bench-{next(_topics)}"
    await cluster.admin.create_topic(topic, partitions=PARTITIONS, replication_factor=3)
    return topic


def new_reader(cluster: Cluster, topic: str, partition: int) -> PartitionReader:
    return PartitionReader(
        cluster.bootstrap,
        topic,
        partition,
        network=cluster.network,
        clock=SystemClock(),
        rng=random.Random(),
    )


def some_values(size: int) -> list[bytes]:
    rng = random.Random(size)
    return [rng.randbytes(size) for _ in range(DISTINCT_VALUES)]


def broker_cpu_s(cluster: Cluster) -> float:
    """User and system time of all brokers until now."""
    return sum(
        cpu_s(member.identity.pid)
        for member in cluster.dev.state.members
        if member.role is Role.BROKER and member.identity is not None
    )


def summed_up(name: str, runs: list[Run]) -> Figure:
    return Figure(
        name,
        records_per_s=median(each.records / each.seconds for each in runs),
        mb_per_s=median(each.gigabytes * 1_000 / each.seconds for each in runs),
        broker_cpu_s_per_gb=median(each.broker_cpu_s / each.gigabytes for each in runs),
        client_cpu_s_per_gb=median(each.client_cpu_s / each.gigabytes for each in runs),
    )


def summed_latency(name: str, times: list[float]) -> Figure:
    """Without the first ones, which open connections."""
    counted = sorted(times[len(times) - SINGLES :])
    return Figure(
        name,
        p50_ms=counted[len(counted) // 2] * 1_000,
        p99_ms=counted[len(counted) * 99 // 100] * 1_000,
    )


def show(figures: list[Figure]) -> None:
    table = Table(title="Three brokers, acks=all, three partitions, on this machine")
    headings = ("what", "records/s", "MB/s", "CPU-s/GB brokers", "client", "p50 ms", "p99 ms")
    for heading in headings:
        table.add_column(heading, justify="left" if heading == "what" else "right")
    for each in figures:
        table.add_row(
            each.name,
            shown(each.records_per_s, ",.0f"),
            shown(each.mb_per_s, ".1f"),
            shown(each.broker_cpu_s_per_gb, ".2f"),
            shown(each.client_cpu_s_per_gb, ".2f"),
            shown(each.p50_ms, ".2f"),
            shown(each.p99_ms, ".2f"),
        )
    Console(width=None if sys.stdout.isatty() else 150).print(table)


def shown(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


if __name__ == "__main__":
    sys.exit(main())
