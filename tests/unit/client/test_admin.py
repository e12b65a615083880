"""Administration against a model cluster, in virtual time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tailrace.client.admin import DELETED_WAIT_MS
from tailrace.errors import (
    ClientClosed,
    InvalidRequest,
    NotController,
    RequestTimedOut,
    StoreUnavailable,
    TopicExists,
    UnknownTopic,
    Unreachable,
)
from tailrace.v1 import common_pb2


def test_topics_are_made_listed_described_and_deleted(simulate: Any) -> None:
    async def main(world: Any) -> None:
        admin = world.admin()
        made = await admin.create_topic("b", partitions=2, config={"retention.ms": "1000"})
        assert made.topic == "b"
        assert [each.leader for each in made.partitions] == [0, 1]
        assert made.config == {"retention.ms": "1000"}
        await admin.create_topic("a")
        assert await admin.list_topics() == ["a", "b"]
        described = await admin.describe_topic("b")
        assert described.topic_id == made.topic_id
        await admin.delete_topic("b", topic_id=made.topic_id)
        assert await admin.list_topics() == ["a"]
        with pytest.raises(UnknownTopic, match="'b'"):
            await admin.describe_topics(["a", "b"])
        await admin.close()
        with pytest.raises(ClientClosed):
            await admin.list_topics()

    simulate(main)


def test_a_deletion_is_waited_for_until_the_name_is_free_but_not_for_long(simulate: Any) -> None:
    async def main(world: Any) -> None:
        cluster, admin = world.cluster, world.admin()
        await admin.create_topic("t")
        # The cluster marks the topic, and does not get on with it.
        delete, described = cluster.delete, cluster.topic_metadata
        marked: set[str] = set()

        def told(topic: str) -> common_pb2.TopicMetadata:
            found: common_pb2.TopicMetadata = described(topic)
            found.deleting = topic in marked
            return found

        def mark(topic: str) -> None:
            marked.add(topic)
            cluster.tell()

        cluster.delete, cluster.topic_metadata = mark, told
        deleting = asyncio.ensure_future(admin.delete_topic("t"))
        await asyncio.sleep(0.5)
        assert not deleting.done()
        assert await admin.list_topics() == []
        marked.clear()
        delete("t")
        await deleting
        await admin.create_topic("t")
        began_ms = world.loop.now_ms
        await admin.delete_topic("t")
        assert DELETED_WAIT_MS <= world.loop.now_ms - began_ms < DELETED_WAIT_MS + 500
        await admin.close()

    simulate(main)


def test_another_controller_is_found_until_the_time_is_over(simulate: Any) -> None:
    async def main(world: Any) -> None:
        controller = world.cluster.controller
        admin = world.admin(request_timeout_ms=3_000)
        controller.errors = [NotController("me not"), StoreUnavailable("etcd is away")]
        await admin.create_topic("t")
        controller.errors = [StoreUnavailable("etcd is away")] * 1_000
        before_ms = world.loop.now_ms
        with pytest.raises(StoreUnavailable, match=r"3000 ms.*etcd is away"):
            await admin.create_topic("u")
        assert world.loop.now_ms - before_ms <= 3_000
        controller.errors = []
        controller.is_active = False
        world.cluster.tell()
        await asyncio.sleep(0.1)
        with pytest.raises(Unreachable, match="no active controller"):
            await admin.create_topic("u", timeout_ms=500)
        await admin.close()

    simulate(main)


def test_errors_that_stay_are_told_at_once(simulate: Any) -> None:
    async def main(world: Any) -> None:
        admin = world.admin()
        world.cluster.controller.errors = [TopicExists("t is there")]
        with pytest.raises(TopicExists, match=r"^t is there$"):
            await admin.create_topic("t")
        world.cluster.controller.errors = [StoreUnavailable("?"), TopicExists("t is there")]
        with pytest.raises(TopicExists, match="an earlier attempt"):
            await admin.create_topic("t")
        world.cluster.controller.errors = [UnknownTopic("gone")]
        with pytest.raises(UnknownTopic):
            await admin.delete_topic("t")
        world.cluster.controller.errors = [RequestTimedOut("?"), UnknownTopic("gone")]
        await admin.delete_topic("t")
        await admin.close()

    simulate(main)


def test_why_there_is_no_answer_is_known_meanwhile(simulate: Any) -> None:
    async def main(world: Any) -> None:
        for name in ("b0", "b1", "b2"):
            world.processes[name].kill()
        admin = world.admin(request_timeout_ms=10_000)
        assert admin.trouble() == "", "nobody was asked"
        asking = asyncio.ensure_future(admin.list_topics())
        await asyncio.sleep(5)
        assert admin.trouble() != ""
        with pytest.raises(Unreachable, match="check the address, and that the cluster runs"):
            await asking
        await admin.close()

    simulate(main)


def test_no_broker_answers(simulate: Any) -> None:
    async def main(world: Any) -> None:
        for broker in world.cluster.brokers.values():
            await broker.server.stop(grace_ms=0)
        admin = world.admin(request_timeout_ms=1_000)
        with pytest.raises(Unreachable, match=r"no broker of b0:.* answered within 1000 ms"):
            await admin.list_topics()
        await admin.close()

    simulate(main)


def test_the_cluster_is_described(simulate: Any) -> None:
    async def main(world: Any) -> None:
        world.cluster.create("t", 3)
        world.cluster.move(world.cluster.get("t", 0), -1)
        admin = world.admin()
        found = await admin.describe_cluster()
        assert (found.cluster_id, found.controller_id, found.partitions) == ("model", 100, 3)
        assert [each.leaders for each in found.brokers] == [0, 1, 1]
        assert [each.rack for each in found.brokers] == ["r0", "r1", "r2"]
        assert found.health["offline"] == 1
        await admin.fence_broker(2, reason="its node is gone")
        await asyncio.sleep(0.1)
        assert [each.broker_id for each in (await admin.describe_cluster()).brokers] == [0, 1]
        (change,) = await admin.explain("t", 0)
        assert change.cause == "asked for t"
        await admin.close()

    simulate(main)


def test_offsets_are_looked_up_at_the_leaders(simulate: Any) -> None:
    async def main(world: Any) -> None:
        cluster = world.cluster
        cluster.create("t", 2)
        producer = world.producer()
        for number in range(4):
            await producer.send("t", b"x", partition=0, timestamp_ms=1_000 + number)
            await producer.flush()
        await producer.close()
        admin = world.admin()
        assert {k: v.offset for k, v in (await admin.list_offsets("t")).items()} == {0: 4, 1: 0}
        assert (await admin.list_offsets("t", "earliest"))[0].offset == 0
        timed = (await admin.list_offsets("t", 1_002, partitions=[0]))[0]
        assert (timed.offset, timed.timestamp_ms) == (2, 1_002)
        assert (await admin.list_offsets("t", 2_000, partitions=[0]))[0].offset == -1
        with pytest.raises(UnknownTopic):
            await admin.list_offsets("u")
        with pytest.raises(InvalidRequest, match="partitions 0 to 1"):
            await admin.list_offsets("t", partitions=[2])
        with pytest.raises(InvalidRequest, match="middle"):
            await admin.list_offsets("t", "middle")
        cluster.move(cluster.get("t", 0), -1)
        asking = asyncio.ensure_future(admin.list_offsets("t"))
        await asyncio.sleep(0.5)
        cluster.move(cluster.get("t", 0), 2)
        assert (await asking)[0].leader_epoch == 2
        cluster.move(cluster.get("t", 1), -1)
        with pytest.raises(Unreachable, match="t-1 has no leader"):
            await admin.list_offsets("t", timeout_ms=500)
        await admin.close()

    simulate(main)


def test_offsets_of_a_topic_that_its_leader_has_yet_to_hear_of(simulate: Any) -> None:
    async def main(world: Any) -> None:
        admin = world.admin()
        await admin.create_topic("t")
        leader = world.cluster.brokers[(await admin.describe_topic("t")).partitions[0].leader]
        leader.is_behind = True
        asking = asyncio.ensure_future(admin.list_offsets("t"))
        await asyncio.sleep(0.5)
        assert not asking.done()
        leader.is_behind = False
        assert (await asking)[0].offset == 0
        leader.is_behind = True
        asking = asyncio.ensure_future(admin.list_offsets("t"))
        await asyncio.sleep(0.5)
        await admin.delete_topic("t")
        with pytest.raises(UnknownTopic, match="any more"):
            await asking
        await admin.close()

    simulate(main)
