"""The metrics of a program's own clients, for the Prometheus client library of the program.

    from prometheus_client import REGISTRY
    from tailrace import ClientCollector

    REGISTRY.register(ClientCollector(producer, consumer))

It needs `prometheus-client`, which the base install does not have.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final, Protocol, TypeGuard, TypeVar
from weakref import WeakSet

from prometheus_client.metrics_core import Metric

from tailrace.metrics.client import ConsumerView, ProducerView, put_consumers, put_producers
from tailrace.metrics.families import Page
from tailrace.metrics.values import ProducerCounts
from tailrace.model import TopicPartition

# A scrape runs in another thread than the client, whose tables may change while they are read.
ATTEMPTS_MAX: Final = 5

C = TypeVar("C")
T = TypeVar("T")


class ObservedProducer(Protocol):
    """A producer, of either kind."""

    client_id: str

    @property
    def counts(self) -> ProducerCounts: ...

    def metrics(self) -> dict[str, float]: ...


class ObservedConsumer(Protocol):
    """A consumer, of either kind."""

    client_id: str

    def metrics(self) -> dict[str, int]: ...

    def lag(self) -> dict[TopicPartition, int]: ...

    def assignment(self) -> set[TopicPartition]: ...


Client = ObservedProducer | ObservedConsumer


class ClientCollector:
    """Collects from producers and consumers; clients that nobody holds any more are left out."""

    def __init__(self, *clients: Client) -> None:
        self._clients: WeakSet[Client] = WeakSet(clients)

    def add(self, client: Client) -> None:
        self._clients.add(client)

    def remove(self, client: Client) -> None:
        """Show it no more: its counters end here."""
        self._clients.discard(client)

    def describe(self) -> list[Metric]:
        """Nothing is known before it is asked for; registering asks nobody."""
        return []

    def collect(self) -> list[Metric]:
        page = Page()
        producers: list[ProducerView] = []
        consumers: list[ConsumerView] = []
        for client in list(self._clients):
            if _is_producer(client):
                producers.append(_unhurried(_of_producer, client))
            elif _is_consumer(client):
                consumers.append(_unhurried(_of_consumer, client))
        put_producers(page, producers)
        put_consumers(page, consumers)
        return page.metrics()


def _is_producer(client: Client) -> TypeGuard[ObservedProducer]:
    return hasattr(client, "counts")


def _is_consumer(client: Client) -> TypeGuard[ObservedConsumer]:
    return hasattr(client, "lag")


def _unhurried(look: Callable[[C], T], client: C) -> T:
    """Look again when something changed meanwhile."""
    for _ in range(ATTEMPTS_MAX - 1):
        try:
            return look(client)
        except RuntimeError:
            continue
    return look(client)


def _of_producer(producer: ObservedProducer) -> ProducerView:
    counts = producer.counts
    return ProducerView(
        client_id=producer.client_id,
        numbers=producer.metrics(),
        requests=counts.requests,
        failed=dict(counts.failed),
    )


def _of_consumer(consumer: ObservedConsumer) -> ConsumerView:
    lag: Counter[str] = Counter()
    for partition, records in consumer.lag().items():
        lag[partition.topic] += records
    return ConsumerView(
        consumer.client_id, consumer.metrics(), len(consumer.assignment()), dict(lag)
    )
