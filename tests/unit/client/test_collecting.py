"""The collector of a program's own clients, in the library that programs use."""

from __future__ import annotations

import gc

from prometheus_client import CollectorRegistry, generate_latest

from tailrace.client.collecting import ATTEMPTS_MAX, ClientCollector
from tailrace.metrics.values import ProducerCounts
from tailrace.model import TopicPartition


class Producing:
    client_id = "till"

    def __init__(self) -> None:
        self.counts = ProducerCounts()

    def metrics(self) -> dict[str, float]:
        return {**self.counts.flat(), "buffer_bytes": 0, "buffer_limit_bytes": 1}


class Consuming:
    """Its tables change so often while they are read."""

    client_id = "kitchen"

    def __init__(self, changes: int = 0) -> None:
        self.changes = changes

    def metrics(self) -> dict[str, int]:
        return {"records": 3}

    def lag(self) -> dict[TopicPartition, int]:
        if self.changes:
            self.changes -= 1
            raise RuntimeError("dictionary changed size during iteration")
        return {TopicPartition("t", 0): 2, TopicPartition("t", 1): 5}

    def assignment(self) -> set[TopicPartition]:
        return {TopicPartition("t", 0)}


def test_clients_are_shown_while_they_are_there() -> None:
    producer, consumer = Producing(), Consuming(changes=ATTEMPTS_MAX - 1)
    collector = ClientCollector(producer)
    collector.add(consumer)
    registry = CollectorRegistry()
    registry.register(collector)
    producer.counts.stored(4, 100, 1)
    page = generate_latest(registry).decode()
    assert 'tailrace_producer_records_total{client_id="till"} 4.0' in page
    assert 'tailrace_consumer_lag_records{client_id="kitchen",topic="t"} 7.0' in page
    collector.remove(consumer)
    del producer
    gc.collect()
    assert "tailrace" not in generate_latest(registry).decode()
