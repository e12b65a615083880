"""The asyncio clients over gRPC, against a model cluster."""

from __future__ import annotations

import gc
from collections.abc import AsyncIterator

import pytest

from simulation.model_cluster import ModelCluster
from tailrace.client.asynchronous import Admin, Producer
from tailrace.errors import ClientClosed, InvalidConfig
from tailrace.transport.grpc_network import GrpcNetwork


@pytest.fixture
async def cluster() -> AsyncIterator[ModelCluster]:
    network = GrpcNetwork()
    found = ModelCluster(lambda _: network, address="127.0.0.1:0")
    await found.start()
    found.create("t", 2)
    yield found
    await found.stop()
    await network.close()


async def test_records_and_tables(cluster: ModelCluster) -> None:
    async with Producer(
        cluster.bootstrap,
        key_serializer="str",
        value_serializer="json",
        partitioner="round_robin",
        compression_type="zstd",
    ) as producer:
        one = await producer.send("t", {"n": 1}, key="k")
        two = await producer.send("t", {"n": 2}, key="k")
        assert {(await one).partition, (await two).partition} == {0, 1}
        await producer.send_batch("t", {"value": [b"raw"]}, partition=0)
        await producer.flush()
        assert (await producer.state())["producer_id"] == 1
    assert cluster.get("t", 0).records() == [b'{"n":1}', b"raw"]
    with pytest.raises(ClientClosed):
        await producer.send("t", {})


async def test_a_producer_resumes(cluster: ModelCluster) -> None:
    async with Producer(cluster.bootstrap) as producer:
        state = await producer.state()
        await producer.send("t", b"0", partition=0)
    resumed = Producer(cluster.bootstrap)
    resumed.resume(state)
    await (await resumed.send("t", b"0", partition=0))
    await resumed.close()
    assert cluster.get("t", 0).records() == [b"0"]


async def test_administration(cluster: ModelCluster) -> None:
    async with Admin(cluster.bootstrap) as admin:
        await admin.create_topic("u")
        assert await admin.list_topics() == ["t", "u"]
    with pytest.raises(ClientClosed):
        await admin.list_topics()


async def test_a_producer_that_was_not_closed_is_noticed(cluster: ModelCluster) -> None:
    def forget(*, used: bool) -> None:
        producer = Producer(cluster.bootstrap)
        producer._is_open = used
        del producer
        gc.collect()

    with pytest.warns(ResourceWarning, match="not closed"):
        forget(used=True)
    forget(used=False)


def test_settings_are_checked_when_they_are_given() -> None:
    with pytest.raises(InvalidConfig, match="acks"):
        Producer("a:1", acks=7)
    with pytest.raises(InvalidConfig, match="host:port"):
        Admin("a")
    with pytest.raises(InvalidConfig, match="serializer"):
        Producer("a:1", value_serializer="avro")
