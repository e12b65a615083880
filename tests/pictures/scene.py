"""What the pictures of the dashboards show: a cluster at work, with clients that show metrics too.

60 partitions in three topics, five groups of which two fall behind, a reader as Spark's are. There
is no Kubernetes: the operator's metrics are its own, filled from this cluster by its own link, with
one drill that ended as the test tells.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from random import Random
from typing import Final

from prometheus_client import CollectorRegistry, start_http_server

from tailrace.client.asynchronous import Producer
from tailrace.client.asynchronous_consumer import Consumer
from tailrace.client.collecting import ClientCollector
from tailrace.client.named_reader import NamedReader, ShownPosition
from tailrace.clock import SystemClock
from tailrace.errors import TailraceError
from tailrace.model import TopicPartition
from tailrace.transport.http2.network import Http2Network
from tailrace_operator.clusters import ClusterLink
from tailrace_operator.metrics import Metrics

# How many records a second go to each topic, about, and how large they are.
TOPICS: Final = {"orders": (400, 300), "payments": (150, 500), "clicks": (900, 120)}
PARTITIONS: Final = 20
# Of each group: what it reads, how many members it has, records a second at most of each.
GROUPS: Final = {
    "billing": ("orders", 2, math.inf),
    "fraud": ("payments", 2, math.inf),
    "search": ("clicks", 3, math.inf),
    "mails": ("orders", 1, 250.0),
    "audit": ("payments", 1, 60.0),
}
PRODUCERS: Final = {"till": "orders", "bank": "payments", "shop": "clicks"}
SPARK_QUERY: Final = "enrich-clicks"
SPARK_TRIGGER_S: Final = 10.0
TICK_S: Final = 0.1
# The load goes up and down, so that lines are not flat.
WAVE_S: Final = 90.0
OPERATOR_ROUND_S: Final = 2.0
CLUSTER: Final = "dev"


class Scene:
    """The clients of a cluster, at work until it is closed."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._random = Random(9)
        self.collector = ClientCollector()
        self.operator = Metrics()
        self.ends: dict[TopicPartition, int] = {}

    @asynccontextmanager
    async def running(self) -> AsyncIterator[dict[str, dict[str, str]]]:
        """Gives where clients and the operator can be scraped: by job, addresses by name."""
        registry = CollectorRegistry()
        registry.register(self.collector)
        async with AsyncExitStack() as stack:
            shop = stack.enter_context(_served(registry))
            operator = stack.enter_context(_served(self.operator.registry))
            tasks = [
                *(self._produces(name, topic) for name, topic in PRODUCERS.items()),
                *(
                    self._consumes(group, number)
                    for group, (_, members, _) in GROUPS.items()
                    for number in range(members)
                ),
                self._reads_as_spark_does(),
                self._operates(),
            ]
            at_work = [asyncio.ensure_future(each) for each in tasks]
            try:
                yield {"programs": {"shop": shop}, "operator": {"operator": operator}}
            finally:
                for each in at_work:
                    each.cancel()
                await asyncio.wait(at_work)

    async def _produces(self, name: str, topic: str) -> None:
        rate, size = TOPICS[topic]
        async with Producer(self._bootstrap, client_id=name) as producer:
            self.collector.add(producer)
            while True:
                wave = 1 + 0.4 * math.sin(time.monotonic() / WAVE_S * 2 * math.pi)
                for _ in range(int(rate * wave * TICK_S)):
                    key = b"%d" % self._random.randrange(10_000)
                    value = self._random.randbytes(size)
                    await producer.send(topic, value, key=key)
                await asyncio.sleep(TICK_S)

    async def _consumes(self, group: str, number: int) -> None:
        topic, _, rate = GROUPS[group]
        most = int(rate * TICK_S) if math.isfinite(rate) else None
        async with Consumer(
            topic,
            bootstrap_servers=self._bootstrap,
            group_id=group,
            client_id=f"{group}-{number}",
            auto_offset_reset="earliest",
            auto_commit_interval_ms=1_000,
        ) as consumer:
            self.collector.add(consumer)
            while True:
                with suppress(TailraceError):
                    for record in await consumer.poll(timeout=1.0, max_records=most or 10_000):
                        at = TopicPartition(record.topic, record.partition)
                        self.ends[at] = max(self.ends.get(at, 0), record.offset + 1)
                await asyncio.sleep(TICK_S)

    async def _reads_as_spark_does(self) -> None:
        """Shows where the last trigger ended, and so is behind by what came since."""
        reader = NamedReader(
            self._bootstrap.split(","),
            SPARK_QUERY,
            network=Http2Network(),
            clock=SystemClock(),
            rng=self._random,
        )
        try:
            while True:
                positions = {
                    at: ShownPosition(end) for at, end in self.ends.items() if at.topic == "clicks"
                }
                if positions:
                    with suppress(TailraceError):
                        await reader.commit(positions, timeout_ms=5_000)
                await asyncio.sleep(SPARK_TRIGGER_S)
        finally:
            await reader.close()

    async def _operates(self) -> None:
        """Rounds as the operator's, of this one cluster."""
        link, metrics = ClusterLink(self._bootstrap.split(",")[0]), self.operator
        metrics.leading.set(1)
        try:
            while True:
                with metrics.rounds.time():
                    health, _ = await link.health()
                metrics.last_list.set_to_current_time()
                if not health.reachable:
                    metrics.errors.labels(CLUSTER).inc()
                else:
                    metrics.brokers.labels(CLUSTER).set(len(health.brokers))
                    metrics.ready.labels(CLUSTER).set(health.is_whole)
                    metrics.under_replicated.labels(CLUSTER).set(health.under_replicated)
                    metrics.offline.labels(CLUSTER).set(health.offline)
                await asyncio.sleep(OPERATOR_ROUND_S)
        finally:
            await link.close()


@contextmanager
def _served(registry: CollectorRegistry) -> Iterator[str]:
    page, thread = start_http_server(0, "127.0.0.1", registry)
    try:
        yield f"127.0.0.1:{page.server_port}"
    finally:
        page.shutdown()
        page.server_close()
        thread.join()


def addresses(status: Mapping[str, list[dict[str, str]]]) -> dict[str, str]:
    """Where each process of `tailrace dev status` shows its metrics."""
    return {each["name"]: each["metrics"] for each in status["processes"] if each["metrics"]}
