"""One client at work, in a process of its own: it fills a topic, or reads all of it, timed.

    python client.py consume confluent-kafka 127.0.0.1:9092 topic 3000000 100

Runs in the environment of the peers or in the project's, and imports only the client that it is
told to use. Prints one JSON object. Seconds are from the making of the consumer to its last record;
imports are done before. Peers are tuned for throughput: the settings stand in each function.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any, NamedTuple

PARTITIONS = 3
POLL_RECORDS = 10_000
POLL_S = 30.0
BATCH_BYTES = 1 << 20


class Job(NamedTuple):
    """What to read or write."""

    bootstrap: str
    topic: str
    records: int
    value_bytes: int


def confluent(job: Job) -> None:
    kafka: Any = import_module("confluent_kafka")
    consumer = kafka.Consumer(
        {
            "bootstrap.servers": job.bootstrap,
            "group.id": "bench",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "fetch.queue.backoff.ms": 1,
            "queued.min.messages": 1_000_000,
            "queued.max.messages.kbytes": 262_144,
        }
    )
    consumer.assign([kafka.TopicPartition(job.topic, each, 0) for each in range(PARTITIONS)])
    left = job.records
    while left > 0:
        # It gives nothing until it has all that it was asked for or the time is over: asked for
        # more than there is left, it would wait for POLL_S at the end, and that would be timed.
        left -= len(consumer.consume(min(left, POLL_RECORDS), POLL_S))
    consumer.close()


def kafka_python(job: Job) -> None:
    kafka: Any = import_module("kafka")
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=job.bootstrap,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        max_poll_records=POLL_RECORDS,
        fetch_max_bytes=50 << 20,
        max_partition_fetch_bytes=10 << 20,
    )
    consumer.assign([kafka.TopicPartition(job.topic, each) for each in range(PARTITIONS)])
    left = job.records
    while left > 0:
        left -= sum(map(len, consumer.poll(timeout_ms=int(POLL_S * 1_000)).values()))
    consumer.close()


def aiokafka(job: Job) -> None:
    asyncio.run(_aiokafka(job))


async def _aiokafka(job: Job) -> None:
    kafka: Any = import_module("aiokafka")
    consumer = kafka.AIOKafkaConsumer(
        bootstrap_servers=job.bootstrap,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        fetch_max_bytes=50 << 20,
        max_partition_fetch_bytes=10 << 20,
    )
    await consumer.start()
    consumer.assign([kafka.TopicPartition(job.topic, each) for each in range(PARTITIONS)])
    left = job.records
    while left > 0:
        found = await consumer.getmany(timeout_ms=int(POLL_S * 1_000), max_records=POLL_RECORDS)
        left -= sum(map(len, found.values()))
    await consumer.stop()


def tailrace_rows(job: Job) -> None:
    tailrace: Any = import_module("tailrace")
    with tailrace.Consumer(job.topic, **_tailrace_settings(job)) as consumer:
        left = job.records
        while left > 0:
            left -= len(consumer.poll(POLL_S))


def tailrace_arrow(job: Job) -> None:
    tailrace: Any = import_module("tailrace")
    with tailrace.Consumer(job.topic, **_tailrace_settings(job)) as consumer:
        left = job.records
        for batch in consumer.batches(timeout=POLL_S):
            left -= batch.num_rows
            if left <= 0:
                return


def tailrace_aio_rows(job: Job) -> None:
    asyncio.run(_tailrace_aio_rows(job))


async def _tailrace_aio_rows(job: Job) -> None:
    tailrace: Any = import_module("tailrace.aio")
    async with tailrace.Consumer(job.topic, **_tailrace_settings(job)) as consumer:
        left = job.records
        while left > 0:
            left -= len(await consumer.poll(POLL_S))


def tailrace_aio_arrow(job: Job) -> None:
    asyncio.run(_tailrace_aio_arrow(job))


async def _tailrace_aio_arrow(job: Job) -> None:
    tailrace: Any = import_module("tailrace.aio")
    async with tailrace.Consumer(job.topic, **_tailrace_settings(job)) as consumer:
        left = job.records
        async for batch in consumer.batches(timeout=POLL_S):
            left -= batch.num_rows
            if left <= 0:
                return


def _tailrace_settings(job: Job) -> dict[str, Any]:
    return {
        "bootstrap_servers": job.bootstrap,
        "auto_offset_reset": "earliest",
        "max_poll_records": POLL_RECORDS,
    }


def fill_kafka(job: Job) -> None:
    """In batches of a megabyte, spread evenly, acknowledged by all replicas."""
    kafka: Any = import_module("confluent_kafka")
    producer = kafka.Producer(
        {
            "bootstrap.servers": job.bootstrap,
            "acks": "all",
            "linger.ms": 50,
            "batch.size": BATCH_BYTES,
            "batch.num.messages": 100_000,
            "queue.buffering.max.messages": 1_000_000,
        }
    )
    rows = BATCH_BYTES // job.value_bytes
    for number in range(job.records):
        value = b"%0*d" % (job.value_bytes, number)
        while True:
            try:
                producer.produce(job.topic, value, partition=number // rows % PARTITIONS)
                break
            except BufferError:
                producer.poll(0.1)
    if producer.flush(120):
        raise RuntimeError("Kafka did not take all records")


def fill_tailrace(job: Job) -> None:
    asyncio.run(_fill_tailrace(job))


async def _fill_tailrace(job: Job) -> None:
    tailrace: Any = import_module("tailrace.aio")
    arrow: Any = import_module("pyarrow")
    rows = BATCH_BYTES // job.value_bytes
    async with tailrace.Producer(job.bootstrap) as producer:
        deliveries = []
        for at in range(0, job.records, rows):
            values = arrow.array(
                [
                    b"%0*d" % (job.value_bytes, number)
                    for number in range(at, min(at + rows, job.records))
                ],
                arrow.binary(),
            )
            deliveries.append(
                await producer.send_batch(
                    job.topic, {"value": values}, partition=at // rows % PARTITIONS
                )
            )
        for each in deliveries:
            await each


# What is imported first, and what is done then. `tailrace` alone would import nothing before its
# consumer is asked for.
_BLOCKING = "tailrace.client.sync_consumer"
CONSUMERS: dict[str, tuple[str, Callable[[Job], None]]] = {
    "confluent-kafka": ("confluent_kafka", confluent),
    "aiokafka": ("aiokafka", aiokafka),
    "kafka-python": ("kafka", kafka_python),
    "tailrace rows": (_BLOCKING, tailrace_rows),
    "tailrace rows, asyncio": ("tailrace.aio", tailrace_aio_rows),
    "tailrace Arrow": (_BLOCKING, tailrace_arrow),
    "tailrace Arrow, asyncio": ("tailrace.aio", tailrace_aio_arrow),
}
FILLERS: dict[str, tuple[str, Callable[[Job], None]]] = {
    "kafka": ("confluent_kafka", fill_kafka),
    "tailrace": ("tailrace.aio", fill_tailrace),
}


def main() -> int:
    action, name, bootstrap, topic, records, value_bytes = sys.argv[1:7]
    package, work = (FILLERS if action == "fill" else CONSUMERS)[name]
    import_module(package)
    job = Job(bootstrap, topic, int(records), int(value_bytes))
    began, cpu = time.perf_counter(), time.process_time()
    work(job)
    seconds, cpu_s = time.perf_counter() - began, time.process_time() - cpu
    print(json.dumps({"seconds": seconds, "cpu_s": cpu_s}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
