"""What a consumer does on this machine: rows and Arrow batches, beside bare decoding.

Real processes: three brokers, a topic of three partitions with three replicas, filled by
`send_batch`. The consumer reads it whole, by `poll` and by `batches()`, blocking and with asyncio.
The machine may be busy with other things, so records for each CPU second of the client (the one
core that it has) stand beside records a second; "bare" makes rows, or columns, of the same batches
in memory, without any network: no consumer can be faster. `--json` prints one object for scripts.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from statistics import median
from time import perf_counter, process_time
from typing import Any

import pyarrow as pa

from tailrace import Consumer
from tailrace.aio import Admin, Producer
from tailrace.aio import Consumer as AioConsumer
from tailrace.client.fetch_plan import Fetched
from tailrace.client.records import rows_of, table_of
from tailrace.model import TopicPartition
from tailrace.record.build import batch_from_columns
from tailrace.record.header import read_header, verify
from tailrace.testing import running_cluster

PARTITIONS = 3
POLL_RECORDS = 10_000
BATCH_BYTES = 256 << 10
BARE_BATCHES = 200
BYTES_MAX = 600_000_000


@dataclass(frozen=True)
class Figure:
    """One line of the report."""

    name: str
    value_bytes: int
    records_per_s: float
    records_per_cpu_s: float
    of_bare: float


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=3_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sizes", default="100,1024")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    figures: list[Figure] = []
    with running_cluster() as cluster:
        for size in map(int, options.sizes.split(",")):
            records = min(options.records, BYTES_MAX // size)
            figures += measure(cluster.bootstrap_servers, size, records, options.rounds)
    if options.json:
        print(json.dumps([asdict(each) for each in figures]))
        return 0
    print(f"{'':28}{'value':>7}{'records/s':>13}{'per CPU-s':>13}{'of bare':>9}")
    for each in figures:
        print(
            f"{each.name:28}{each.value_bytes:>7}{each.records_per_s:>13,.0f}"
            f"{each.records_per_cpu_s:>13,.0f}{each.of_bare:>9.2f}"
        )
    return 0


def measure(bootstrap: str, size: int, records: int, rounds: int) -> list[Figure]:
    topic = f"bench-{size}"
    asyncio.run(fill(bootstrap, topic, size, records))
    batch = sample(size)
    count = batch.header.record_count
    place = TopicPartition(topic, 0)
    bare_rows = timed(lambda: bare(batch, lambda each: rows_of(each, place, 0)), 3)
    bare_columns = timed(lambda: bare(batch, lambda each: table_of(each, place, 0)), 3)
    done = BARE_BATCHES * count
    figures = [
        Figure("bare rows", size, done / bare_rows[0], done / bare_rows[1], 1.0),
        Figure("bare Arrow", size, done / bare_columns[0], done / bare_columns[1], 1.0),
    ]
    for name, work, ground in (
        ("rows, blocking", lambda: rows(bootstrap, topic, records), bare_rows),
        ("rows, asyncio", lambda: asyncio.run(aio_rows(bootstrap, topic, records)), bare_rows),
        ("Arrow, blocking", lambda: batches(bootstrap, topic, records), bare_columns),
        (
            "Arrow, asyncio",
            lambda: asyncio.run(aio_batches(bootstrap, topic, records)),
            bare_columns,
        ),
    ):
        seconds, cpu_s = timed(work, rounds)
        figures.append(
            Figure(
                name,
                size,
                records / seconds,
                records / cpu_s,
                (records / cpu_s) / (done / ground[1]),
            )
        )
    return figures


def timed(work: Callable[[], None], rounds: int) -> tuple[float, float]:
    """Median seconds, and CPU seconds of this process, of some rounds."""
    found: list[tuple[float, float]] = []
    for _ in range(rounds):
        began, cpu = perf_counter(), process_time()
        work()
        found.append((perf_counter() - began, process_time() - cpu))
    return median(each for each, _ in found), median(each for _, each in found)


def bare(batch: Fetched, decode: Callable[[Fetched], object]) -> None:
    for _ in range(BARE_BATCHES):
        verify(batch.data, 0, batch.header)
        decode(batch)


def sample(size: int) -> Fetched:
    data = batch_from_columns(None, values(size, BATCH_BYTES // (size + 24)), 5)
    return Fetched(read_header(data), data)


def values(size: int, rows_: int) -> pa.BinaryArray:
    return pa.array([b"%0*d" % (size, number) for number in range(rows_)], pa.binary())


async def fill(bootstrap: str, topic: str, size: int, records: int) -> None:
    async with Admin(bootstrap) as admin:
        await admin.create_topic(topic, partitions=PARTITIONS, replication_factor=3)
    piece = values(size, 20_000)
    async with Producer(bootstrap) as producer:
        deliveries = []
        for at in range(0, records, len(piece)):
            column = piece.slice(0, min(len(piece), records - at))
            deliveries.append(
                await producer.send_batch(
                    topic, {"value": column}, partition=at // len(piece) % PARTITIONS
                )
            )
        for delivery in deliveries:
            await delivery


def consumer_settings(bootstrap: str) -> dict[str, Any]:
    return {
        "bootstrap_servers": bootstrap,
        "auto_offset_reset": "earliest",
        "max_poll_records": POLL_RECORDS,
    }


def rows(bootstrap: str, topic: str, records: int) -> None:
    with Consumer(topic, **consumer_settings(bootstrap)) as consumer:
        left = records
        while left > 0:
            left -= len(consumer.poll(30))


async def aio_rows(bootstrap: str, topic: str, records: int) -> None:
    async with AioConsumer(topic, **consumer_settings(bootstrap)) as consumer:
        left = records
        while left > 0:
            left -= len(await consumer.poll(30))


def batches(bootstrap: str, topic: str, records: int) -> None:
    with Consumer(topic, **consumer_settings(bootstrap)) as consumer:
        left = records
        for batch in consumer.batches(timeout=30):
            left -= batch.num_rows
            if left <= 0:
                return


async def aio_batches(bootstrap: str, topic: str, records: int) -> None:
    async with AioConsumer(topic, **consumer_settings(bootstrap)) as consumer:
        left = records
        async for batch in consumer.batches(timeout=30):
            left -= batch.num_rows
            if left <= 0:
                return


if __name__ == "__main__":
    sys.exit(main())
