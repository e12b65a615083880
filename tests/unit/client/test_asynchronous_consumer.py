"""The consumer that asyncio programs import, over gRPC, against a model cluster."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from typing import Any

import pyarrow as pa
import pytest
import pytest_asyncio

from simulation.model_cluster import ModelCluster
from tailrace.aio import Consumer, OffsetAndMetadata, Producer, TopicPartition
from tailrace.errors import ClientClosed, InvalidConfig, TailraceError, UnknownTopic
from tailrace.transport.grpc_network import GrpcNetwork

T0 = TopicPartition("t", 0)


@pytest_asyncio.fixture
async def cluster() -> AsyncIterator[ModelCluster]:
    network = GrpcNetwork()
    found = ModelCluster(lambda _: network, address="127.0.0.1:0")
    await found.start()
    found.create("t", 2)
    yield found
    await found.stop()
    await network.close()


async def send(cluster: ModelCluster, count: int) -> None:
    async with Producer(cluster.bootstrap, value_serializer="int") as producer:
        for number in range(count):
            await producer.send("t", number, key=b"k%d" % number, partition=number % 2)


async def test_records_by_poll_by_iteration_and_as_columns(cluster: ModelCluster) -> None:
    await send(cluster, 20)
    async with Consumer(
        "t",
        bootstrap_servers=cluster.bootstrap,
        auto_offset_reset="earliest",
        key_deserializer="str",
        value_deserializer="int",
    ) as consumer:
        found: list[Any] = []
        while len(found) < 6:
            found += await consumer.poll(5, max_records=6 - len(found))
        async for record in consumer:
            found.append(record)
            if len(found) == 15:
                break
        while len(found) < 20:
            found += await consumer.poll(5)
        assert sorted(each.value for each in found) == list(range(20))
        assert {each.key for each in found} == {f"k{number}" for number in range(20)}
        assert await consumer.poll(0) == []
        await consumer.seek_to_beginning()
        tables = [batch async for batch in consumer.batches(timeout=0.5)]
        table = pa.Table.from_batches(tables)
        assert (table.num_rows, table.schema.names[:3]) == (20, ["topic", "partition", "offset"])
        assert consumer.metrics()["records"] == 40


async def test_a_group_by_name_commits_and_goes_on(cluster: ModelCluster) -> None:
    await send(cluster, 10)
    settings: dict[str, Any] = {"bootstrap_servers": cluster.bootstrap, "group_id": "g"}
    async with Consumer("t", **settings, auto_offset_reset="earliest") as consumer:
        count = 0
        async for _ in consumer:
            count += 1
            if count == 7:
                break
        await consumer.commit()
        told: list[TailraceError | None] = []
        consumer.commit_async(callback=lambda _, error: told.append(error))
        assert consumer.assignment() == {T0, TopicPartition("t", 1)}
        assert consumer.subscription() == {"t"}
        await consumer.commit({T0: OffsetAndMetadata(await consumer.position(T0))})
        assert told == [None]
        stored = await consumer.committed()
        assert sum(each.offset for each in stored.values()) == 7
    async with Consumer("t", **settings) as consumer:
        rest: list[Any] = []
        while len(rest) < 3:
            rest += await consumer.poll(5)
        assert len(rest) == 3
        assert sum((await consumer.end_offsets(consumer.assignment())).values()) == 10
        assert sum((await consumer.beginning_offsets(consumer.assignment())).values()) == 0
        times = await consumer.offsets_for_times({T0: 0, TopicPartition("t", 1): 2**50})
        assert times == {T0: 0, TopicPartition("t", 1): None}


async def test_pause_and_assign(cluster: ModelCluster) -> None:
    await send(cluster, 10)
    consumer = Consumer(bootstrap_servers=cluster.bootstrap, auto_offset_reset="earliest")
    await consumer.assign([T0])
    await consumer.pause(T0)
    assert (await consumer.poll(0.2), consumer.paused()) == ([], {T0})
    await consumer.resume(T0)
    assert len(await consumer.poll(5)) > 0
    await consumer.seek(T0, 4)
    assert [each.offset for each in await consumer.poll(5)] == [4]
    await consumer.seek_to_end(T0)
    assert await consumer.position(T0) == 5
    assert consumer.lag() == {T0: 0}
    await consumer.unsubscribe()
    assert consumer.assignment() == set()
    await consumer.close()


async def test_wrong_settings_are_told_at_once(cluster: ModelCluster) -> None:
    with pytest.raises(InvalidConfig, match="auto_offset_reset"):
        Consumer("t", bootstrap_servers=cluster.bootstrap, auto_offset_rest="earliest")  # type: ignore[call-arg]
    with pytest.raises(InvalidConfig, match="value_deserializer='xml'"):
        Consumer("t", bootstrap_servers=cluster.bootstrap, value_deserializer="xml")
    with pytest.raises(TypeError, match="not list; several are given one by one"):
        Consumer(["t"], bootstrap_servers=cluster.bootstrap)  # type: ignore[arg-type]


async def test_one_that_could_not_begin_begins_with_a_later_poll(cluster: ModelCluster) -> None:
    """It went on without its topics, and gave nothing for ever."""
    consumer = Consumer(
        "late",
        bootstrap_servers=cluster.bootstrap,
        auto_offset_reset="earliest",
        unknown_topic_wait_ms=50,
    )
    with pytest.raises(UnknownTopic, match="late"):
        await consumer.poll(5)
    polling = asyncio.create_task(consumer.poll(5))
    await asyncio.sleep(0)
    polling.cancel()
    await asyncio.wait([polling])
    cluster.create("late", 1)
    async with Producer(cluster.bootstrap) as producer:
        await (await producer.send("late", b"x"))
    assert [each.value for each in await consumer.poll(5)] == [b"x"]
    await consumer.close()
    with pytest.raises(ClientClosed):
        await consumer.poll(0)


async def test_one_that_is_forgotten_is_told_of(cluster: ModelCluster) -> None:
    consumer = Consumer("t", bootstrap_servers=cluster.bootstrap)
    await consumer.start()
    core, network = consumer.core, consumer._network
    with pytest.warns(ResourceWarning, match="Consumer was not closed"):  # noqa: PT031
        del consumer
        gc.collect()
    await core.close()
    await network.close()
