"""confluent-kafka: produce, consume, single records, what failover and growth need of Kafka.

Tuned for throughput where a workload says so; the settings stand in each function.
"""

from __future__ import annotations

import sys
import threading
import time
from typing import Any

import confluent_kafka as kafka
from confluent_kafka.admin import AdminClient, NewTopic

from bench.peers.clients.job import (
    DISTINCT_VALUES,
    FLUSH_S,
    PACE_WARM,
    POLL_RECORDS,
    POLL_S,
    Job,
    Pace,
    main,
    some_values,
    waits,
)
from bench.peers.clients.steady import Receiving, Sending

QUEUE_RECORDS = 1_000_000
QUEUE_KIB = 1 << 20
BATCH_RECORDS = 100_000
CALL_S = 60.0
# What is wrong shows as an exception, or as a record that failed.
SILENT = {"log_level": 0}
POLL_TOPIC_S = 0.02
MEMBER_POLL_S = 0.05


def producer(job: Job, **more: Any) -> Any:
    settings = {
        "bootstrap.servers": job.servers,
        "acks": "all",
        "enable.idempotence": True,
        **SILENT,
        **more,
    }
    return kafka.Producer(settings)


def produce(job: Job) -> None:
    """`batch_bytes` 0: as it comes out of the box."""
    tuned = {
        "linger.ms": 5,
        "batch.size": job.batch_bytes,
        "batch.num.messages": BATCH_RECORDS,
        "queue.buffering.max.messages": QUEUE_RECORDS,
        "queue.buffering.max.kbytes": QUEUE_KIB,
    }
    settings = tuned if job.batch_bytes else {}
    sender = producer(job, **settings, **{"compression.type": job.compression})
    values = some_values(job.size, job.compression)
    for number in range(job.records):
        while True:
            try:
                sender.produce(job.topic, values[number % DISTINCT_VALUES])
                break
            except BufferError:
                sender.poll(0.01)
    if sender.flush(FLUSH_S):
        raise RuntimeError("Kafka did not take all records")


def fill(job: Job) -> None:
    """As many in each partition, in batches of a megabyte."""
    sender = producer(job, **{"linger.ms": 50, "batch.size": 1 << 20, "batch.num.messages": 10**6})
    values = some_values(job.size)
    rows = (1 << 20) // job.size
    for number in range(job.records):
        value, partition = values[number % DISTINCT_VALUES], number // rows % job.partitions
        while True:
            try:
                sender.produce(job.topic, value, partition=partition)
                break
            except BufferError:
                sender.poll(0.01)
    if sender.flush(FLUSH_S):
        raise RuntimeError("Kafka did not take all records")


def consume(job: Job) -> None:
    tuned = {
        "fetch.queue.backoff.ms": 1,
        "queued.min.messages": 1_000_000,
        "queued.max.messages.kbytes": 262_144,
    }
    reader = consumer(job, **({} if job.way == "defaults" else tuned))
    left = job.records
    while left > 0:
        # It gives nothing until it has all that it was asked for or the time is over: asked for
        # more than there is left, it would wait for POLL_S at the end, and that would be timed.
        left -= len(reader.consume(min(left, POLL_RECORDS), POLL_S))
    reader.close()


def consumer(job: Job, **more: Any) -> Any:
    settings = {
        "bootstrap.servers": job.servers,
        "group.id": "bench",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        **SILENT,
        **more,
    }
    reader = kafka.Consumer(settings)
    places = [kafka.TopicPartition(job.topic, each, 0) for each in range(job.partitions)]
    reader.assign(places)
    return reader


def single(job: Job) -> dict[str, float]:
    """One record at a time, each acknowledged before the next."""
    sender = producer(job, **{"linger.ms": 0})
    values = some_values(job.size)
    acked: list[Any] = []
    times = []
    for number in range(job.records):
        began = time.perf_counter()
        value = values[number % DISTINCT_VALUES]
        sender.produce(job.topic, value, partition=0, on_delivery=lambda *each: acked.append(each))
        while len(acked) <= number:
            sender.poll(1.0)
        times.append(time.perf_counter() - began)
    if any(error is not None for error, _ in acked):
        raise RuntimeError("Kafka refused a record")
    return waits(times)


def round_trip(job: Job) -> dict[str, float]:
    """One record at a time, from `produce` to the moment at which a consumer has it."""
    sender, reader = producer(job, **{"linger.ms": 0}), consumer(job)
    values, times = some_values(job.size), []
    for number in range(job.records):
        began = time.perf_counter()
        sender.produce(job.topic, values[number % DISTINCT_VALUES], partition=0)
        message = reader.poll(POLL_S)
        if message is None or message.error() is not None:
            raise RuntimeError("a record never came")
        times.append(time.perf_counter() - began)
    sender.flush(FLUSH_S)
    reader.close()
    return waits(times)


def paced(job: Job) -> dict[str, float]:
    """At a fixed rate, from the moment at which a record was due until a consumer has it."""
    sender, reader = producer(job, **{"linger.ms": 0}), consumer(job)
    for number in range(PACE_WARM):
        sender.produce(job.topic, b"x", partition=number % job.partitions)
    seen = 0
    while seen < PACE_WARM:
        sender.poll(0)
        seen += reader.poll(POLL_S) is not None
    pace = Pace(job)

    def read() -> None:
        while len(pace.times) < job.records:
            message = reader.poll(POLL_S)
            if message is not None:
                pace.received(message.value())

    reading = threading.Thread(target=read, daemon=True)
    reading.start()
    for number in range(job.records):
        while (pause_s := pace.pause_s()) > 0:
            time.sleep(pause_s)
        sender.produce(job.topic, pace.next(), partition=number % job.partitions)
    sender.flush(FLUSH_S)
    reading.join(FLUSH_S)
    reader.close()
    return waits(pace.times)


def steady(job: Job) -> dict[str, Any]:
    """See steady.py; settings as they ship, but for the linger."""
    sender, watch = producer(job, **{"linger.ms": 0}), Sending()

    def note(number: int) -> Any:
        return lambda error, _: watch.acked(number, failed=error is not None)

    while not watch.is_stopped:
        number = watch.sent()
        partition = number % job.partitions
        sender.produce(job.topic, b"%d" % number, partition=partition, on_delivery=note(number))
        sender.poll(watch.pause_s())
    sender.flush(FLUSH_S)
    return watch.report()


def member(job: Job) -> dict[str, Any]:
    """A member of a group, settings as they ship; `way`: another assignor than by default."""
    watch = Receiving()
    settings = {"partition.assignment.strategy": job.way} if job.way else {}
    reader = kafka.Consumer(
        {
            "bootstrap.servers": job.servers,
            "group.id": job.group,
            "auto.offset.reset": "earliest",
            **SILENT,
            **settings,
        }
    )
    reader.subscribe([job.topic])
    while not watch.is_stopped:
        message = reader.poll(MEMBER_POLL_S)
        if message is not None and message.error() is None:
            watch.received(message.partition())
    reader.close()
    return watch.report()


def first(job: Job) -> dict[str, float]:
    """Until a cluster that just starts acknowledges a record: at which moment."""
    sender = producer(job, **{"linger.ms": 0, "topic.metadata.refresh.interval.ms": 1_000})
    end = time.monotonic() + FLUSH_S
    error: Any = "it never answered"
    while time.monotonic() < end:
        answers: list[Any] = []
        sender.produce(job.topic, b"x", on_delivery=lambda *each, to=answers: to.append(each))
        while not answers and time.monotonic() < end:
            sender.poll(POLL_S)
        # A topic that is just being made may be unknown for too long: then once more.
        if answers and answers[0][0] is None:
            return {"moment": time.monotonic()}
        error = answers[0][0] if answers else error
    raise RuntimeError(f"no record was acknowledged: {error}")


def write_each(job: Job) -> dict[str, float]:
    """Make the topic, and have one record acknowledged in each of its partitions."""
    create(job)
    made = time.monotonic()
    sender = producer(job)
    failed: list[Any] = []
    for partition in range(job.partitions):
        sender.produce(
            job.topic,
            b"x",
            partition=partition,
            on_delivery=lambda error, _: failed.append(error) if error else None,
        )
    if sender.flush(FLUSH_S) or failed:
        raise RuntimeError(f"Kafka did not take all records: {failed[:1]}")
    return {"made": made, "moment": time.monotonic()}


def until_moved(job: Job) -> dict[str, float]:
    """Until no partition is led by `node`, as clients see it."""
    admin = AdminClient({"bootstrap.servers": job.servers, **SILENT})
    end = time.monotonic() + FLUSH_S
    while time.monotonic() < end:
        try:
            found = admin.list_topics(job.topic, timeout=5).topics[job.topic].partitions
        except kafka.KafkaException:
            continue
        leaders = [each.leader for each in found.values()]
        if len(leaders) == job.partitions and not {job.node, -1} & set(leaders):
            return {"moment": time.monotonic()}
        time.sleep(POLL_TOPIC_S)
    raise RuntimeError("leaders never moved")


def create(job: Job) -> None:
    """`way`: replicas of the only partition, the leader first, with commas."""
    admin = AdminClient({"bootstrap.servers": job.servers, **SILENT})
    if job.way:
        replicas = [int(each) for each in job.way.split(",")]
        topic = NewTopic(job.topic, 1, replica_assignment=[replicas])
    else:
        topic = NewTopic(job.topic, job.partitions, 3)
    admin.create_topics([topic], operation_timeout=CALL_S)[job.topic].result(CALL_S)


def delete(job: Job) -> None:
    admin = AdminClient({"bootstrap.servers": job.servers, **SILENT})
    admin.delete_topics([job.topic], operation_timeout=CALL_S)[job.topic].result(CALL_S)


def until_well(job: Job) -> None:
    """Until every replica of every partition is in sync."""
    admin = AdminClient({"bootstrap.servers": job.servers, **SILENT})
    end = time.monotonic() + FLUSH_S
    while time.monotonic() < end:
        found = admin.list_topics(job.topic, timeout=10).topics[job.topic].partitions.values()
        if found and all(len(each.isrs) == len(each.replicas) for each in found):
            return
        time.sleep(POLL_TOPIC_S)
    raise RuntimeError("not all replicas came in sync")


if __name__ == "__main__":
    works = (
        *(produce, fill, consume, single, round_trip, paced, steady, member, first, write_each),
        *(until_moved, until_well, create, delete),
    )
    sys.exit(main({each.__name__: each for each in works}))
