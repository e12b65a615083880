"""aiokafka: produce and consume, tuned for throughput."""

from __future__ import annotations

import asyncio
import sys

import aiokafka

from bench.peers.clients.job import DISTINCT_VALUES, POLL_RECORDS, POLL_S, Job, main, some_values


async def _produce(job: Job) -> None:
    sender = aiokafka.AIOKafkaProducer(
        bootstrap_servers=job.servers,
        acks="all",
        linger_ms=5,
        max_batch_size=job.batch_bytes,
        max_request_size=max(2 * job.batch_bytes, 1 << 20),
    )
    values = some_values(job.size)
    await sender.start()
    for number in range(job.records):
        await sender.send(job.topic, values[number % DISTINCT_VALUES])
    await sender.flush()
    await sender.stop()


async def _consume(job: Job) -> None:
    reader = aiokafka.AIOKafkaConsumer(
        bootstrap_servers=job.servers,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        fetch_max_bytes=50 << 20,
        max_partition_fetch_bytes=10 << 20,
    )
    await reader.start()
    reader.assign([aiokafka.TopicPartition(job.topic, each) for each in range(job.partitions)])
    left = job.records
    while left > 0:
        found = await reader.getmany(timeout_ms=int(POLL_S * 1_000), max_records=POLL_RECORDS)
        left -= sum(map(len, found.values()))
    await reader.stop()


def produce(job: Job) -> None:
    asyncio.run(_produce(job))


def consume(job: Job) -> None:
    asyncio.run(_consume(job))


if __name__ == "__main__":
    sys.exit(main({"produce": produce, "consume": consume}))
