"""kafka-python: produce and consume, tuned for throughput."""

from __future__ import annotations

import sys

import kafka

from bench.peers.clients.job import (
    DISTINCT_VALUES,
    FLUSH_S,
    POLL_RECORDS,
    POLL_S,
    Job,
    main,
    some_values,
)


def produce(job: Job) -> None:
    sender = kafka.KafkaProducer(
        bootstrap_servers=job.servers,
        acks="all",
        linger_ms=5,
        batch_size=job.batch_bytes,
        max_request_size=max(2 * job.batch_bytes, 1 << 20),
    )
    values = some_values(job.size)
    for number in range(job.records):
        sender.send(job.topic, values[number % DISTINCT_VALUES])
    sender.flush(FLUSH_S)
    sender.close()


def consume(job: Job) -> None:
    reader = kafka.KafkaConsumer(
        bootstrap_servers=job.servers,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        max_poll_records=POLL_RECORDS,
        fetch_max_bytes=50 << 20,
        max_partition_fetch_bytes=10 << 20,
    )
    reader.assign([kafka.TopicPartition(job.topic, each) for each in range(job.partitions)])
    left = job.records
    while left > 0:
        left -= sum(map(len, reader.poll(timeout_ms=int(POLL_S * 1_000)).values()))
    reader.close()


if __name__ == "__main__":
    sys.exit(main({"produce": produce, "consume": consume}))
