"""Traces through a real cluster: a collector of the test gets the spans of every process.

The collector speaks OTLP over HTTP as any other does: what comes is decoded as the protobuf message
that the protocol names.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span as SpanMessage
from opentelemetry.proto.trace.v1.trace_pb2 import Status

from integration.cluster_harness import Cluster, connected, eventually, stop
from tailrace.aio import Consumer, Producer
from tailrace.dev.cluster import DevCluster, Plan

pytestmark = pytest.mark.integration

TOPIC = "traced"


@dataclass(frozen=True)
class Told:
    """A span, and the process that told it."""

    service: str
    instance: str
    span: SpanMessage

    def about(self, name: str) -> str | int:
        for each in self.span.attributes:
            if each.key == f"tailrace.{name}":
                value = each.value
                return value.int_value if value.HasField("int_value") else value.string_value
        raise AssertionError(f"{self.span.name} says nothing of {name}")

    def notes(self) -> list[str]:
        return [each.name for each in self.span.events]

    def is_within(self, other: Told) -> bool:
        mine, theirs = self.span, other.span
        return (
            theirs.start_time_unix_nano
            <= mine.start_time_unix_nano
            <= mine.end_time_unix_nano
            <= theirs.end_time_unix_nano
        )


@dataclass
class Collector:
    """Takes spans on loopback."""

    told: list[Told] = field(default_factory=list, repr=False)
    paths: set[str] = field(default_factory=set)
    url: str = ""

    def take(self, path: str, body: bytes) -> None:
        self.paths.add(path)
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            who = {each.key: each.value.string_value for each in resource.resource.attributes}
            for scope in resource.scope_spans:
                self.told += [
                    Told(who["service.name"], who["service.instance.id"], each)
                    for each in scope.spans
                ]

    def named(self, name: str, **about: object) -> list[Told]:
        return [
            each
            for each in list(self.told)
            if each.span.name == name
            and all(each.about(what) == value for what, value in about.items())
        ]

    def below(self, parent: Told, name: str) -> list[Told]:
        return [
            each
            for each in self.named(name)
            if each.span.trace_id == parent.span.trace_id
            and each.span.parent_span_id == parent.span.span_id
        ]


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    made = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            made.take(self.path, self.rfile.read(int(self.headers["Content-Length"])))
            answer = ExportTraceServiceResponse().SerializeToString()
            self.send_response(200)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            """Nobody needs it."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    made.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield made
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(scope="module")
def dev(tmp_path_factory: pytest.TempPathFactory, collector: Collector) -> Iterator[DevCluster]:
    folder: Path = tmp_path_factory.mktemp("traces")
    made = DevCluster(folder)
    traced = {"otel.endpoint": collector.url}
    plan = Plan(
        brokers=3,
        controllers=1,
        coordinators=1,
        broker_settings={**traced, "otel.sample.ratio": "1"},
        controller_settings=traced,
        coordinator_settings=traced,
        etcd_fsync=False,
    )
    asyncio.run(made.up(plan))
    yield made
    stop(made)


async def topic_of(cluster: Cluster) -> None:
    if TOPIC not in await cluster.admin.list_topics():
        await cluster.admin.create_topic(TOPIC, partitions=3, replication_factor=3)
    await cluster.until_well(TOPIC)


async def test_a_produce_is_one_trace_from_the_client_to_its_replicas(
    dev: DevCluster, collector: Collector
) -> None:
    async with connected(dev) as cluster:
        await topic_of(cluster)
        async with Producer(
            cluster.bootstrap,
            client_id="till",
            otel_endpoint=collector.url,
            otel_sample_ratio=1.0,
        ) as producer:
            stored = await (await producer.send(TOPIC, b"hello", partition=1))
        # Closing has sent the client's spans; those of the broker come by themselves.
        (client,) = collector.named("produce", which=f"{TOPIC}-1")
        await eventually(
            "the broker told its part", lambda: bool(collector.below(client, "broker produce"))
        )
        (broker,) = collector.below(client, "broker produce")
        (append,) = collector.below(broker, "append")
        (replicate,) = collector.below(broker, "replicate")
        leader = await cluster.leader(TOPIC, 1)
    assert collector.paths == {"/v1/traces"}
    assert (client.service, client.instance) == ("tailrace-producer", "till")
    assert (broker.service, broker.instance) == ("tailrace-broker", leader)
    assert not client.span.parent_span_id
    assert client.span.kind == SpanMessage.SPAN_KIND_CLIENT
    assert broker.span.kind == SpanMessage.SPAN_KIND_SERVER
    assert client.about("records") == 1
    assert broker.is_within(client)
    assert append.is_within(broker)
    # It ends in the same turn of the loop as the whole does, a moment before or after.
    assert append.span.end_time_unix_nano <= replicate.span.start_time_unix_nano
    assert replicate.about("partition") == f"{TOPIC}-1"
    assert replicate.about("offset") == stored.offset + 1
    assert sorted(replicate.notes()) == ["replicated", "replicated", "sent", "sent"]
    spans = (client, broker, append, replicate)
    assert {each.span.status.code for each in spans} == {Status.STATUS_CODE_UNSET}


async def test_what_is_read_is_one_trace_from_the_broker_to_the_consumer(
    dev: DevCluster, collector: Collector
) -> None:
    async with connected(dev) as cluster:
        await topic_of(cluster)
        async with Producer(cluster.bootstrap) as producer:
            await (await producer.send(TOPIC, b"to be read", partition=2))
        async with Consumer(
            TOPIC,
            bootstrap_servers=cluster.bootstrap,
            client_id="reader",
            auto_offset_reset="earliest",
            otel_endpoint=collector.url,
        ) as consumer:
            await eventually_reads(consumer, b"to be read")
    received = [each for each in collector.named("receive") if each.instance == "reader"]
    assert received
    await eventually(
        "the brokers told theirs",
        lambda: all(_parent(collector, each) is not None for each in received),
    )
    for each in received:
        pushed = _parent(collector, each)
        assert pushed is not None
        assert pushed.service == "tailrace-broker"
        assert pushed.about("bytes") == each.about("bytes")
        assert pushed.span.start_time_unix_nano <= each.span.start_time_unix_nano
        assert collector.below(pushed, "read")


async def eventually_reads(consumer: Consumer, value: bytes) -> None:
    async with asyncio.timeout(30):
        while True:
            records = await consumer.poll(1.0)
            if any(each.value == value for each in records):
                return


def _parent(collector: Collector, told: Told) -> Told | None:
    found = [
        each
        for each in collector.named("broker fetch")
        if each.span.span_id == told.span.parent_span_id
    ]
    return found[0] if found else None


async def test_a_rebalance_is_a_trace_with_its_phases(
    dev: DevCluster, collector: Collector
) -> None:
    async with connected(dev) as cluster:
        await topic_of(cluster)
        async with Consumer(
            TOPIC, bootstrap_servers=cluster.bootstrap, group_id="watched", client_id="one"
        ) as consumer:
            async with asyncio.timeout(30):
                while not consumer.assignment():
                    await consumer.poll(0.2)
            await eventually(
                "the coordinator told of it",
                lambda: bool(collector.named("rebalance", group="watched")),
            )
    whole = collector.named("rebalance", group="watched")[0]
    assert (whole.service, whole.instance) == ("tailrace-coordinator", "coordinator-1")
    assert whole.about("members") == 1
    assert "join" in whole.notes()
    (join,), (sync,) = collector.below(whole, "join"), collector.below(whole, "sync")
    assert join.is_within(whole)
    assert join.span.end_time_unix_nano <= sync.span.start_time_unix_nano


async def test_a_failover_is_a_trace_from_notice_to_the_new_leaders(
    dev: DevCluster, collector: Collector
) -> None:
    async with connected(dev) as cluster:
        await topic_of(cluster)
        victim = await cluster.leader(TOPIC, 0)
        await cluster.kill(victim)
        number = int(victim.removeprefix("broker-"))
        cause = f"broker {number}: connection refused, its process is gone"
        await eventually(
            "the failover is told", lambda: bool(collector.named("failover", cause=cause))
        )
        (whole,) = collector.named("failover", cause=cause)
        await eventually(
            "the brokers told that they obeyed",
            lambda: (
                bool(tells := collector.below(whole, "tell"))
                and all(collector.below(each, "obey") for each in tells)
            ),
        )
        assert await cluster.leader(TOPIC, 0) != victim
        await dev.start(victim)
        await cluster.until_well(TOPIC)
    assert whole.service == "tailrace-controller"
    assert not whole.span.parent_span_id
    assert whole.notes() == ["fenced"]
    elected = collector.below(whole, "elect")
    assert elected
    assert sum(int(each.about("partitions")) for each in elected) >= 1
    tells = collector.below(whole, "tell")
    assert sum(int(each.about("leads")) for each in tells) >= 1
    for tell in tells:
        (obeyed,) = collector.below(tell, "obey")
        assert obeyed.service == "tailrace-broker"
        assert obeyed.instance == f"broker-{tell.about('broker')}"
        assert obeyed.is_within(tell)
