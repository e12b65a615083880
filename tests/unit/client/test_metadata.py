"""Following the cluster's metadata: pushed pictures, hints, and brokers that tell nothing."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tailrace.client.metadata import ClusterPicture, MetadataWatcher, parse_bootstrap
from tailrace.errors import InvalidConfig, UnknownTopic, Unreachable
from tailrace.model import GROUP_SHARDS, TopicPartition, shard_of
from tailrace.v1.broker_pb2 import WatchMetadataResponse
from tailrace.v1.common_pb2 import ClusterMetadata

PARTITION = TopicPartition("t", 0)


def _watch(world: Any, **options: Any) -> MetadataWatcher:
    watcher = MetadataWatcher(world.host, world.cluster.bootstrap, world.rng, **options)
    world.processes["client"].spawn("watch", watcher.run())
    return watcher


def test_pictures_are_pushed(simulate: Any) -> None:
    async def main(world: Any) -> None:
        told: list[int] = []
        watcher: MetadataWatcher = _watch(
            world, on_change=lambda: told.append(watcher.picture.revision)
        )
        assert watcher.leader_of(PARTITION) == (-1, -1)
        world.cluster.create("t", 2)
        topic = await watcher.topic("t", timeout_ms=1_000)
        assert len(topic.partitions) == 2
        assert watcher.leader_of(PARTITION) == (0, 0)
        assert watcher.leader_of(TopicPartition("t", 9)) == (-1, -1)
        world.cluster.move(world.cluster.get("t"), 2)
        before_ms = world.loop.now_ms
        await watcher.wait_for(lambda _: watcher.leader_of(PARTITION)[0] == 2, timeout_ms=1_000)
        assert world.loop.now_ms - before_ms < 10
        assert told == sorted(told)
        assert watcher.picture.racks == {0: "r0", 1: "r1", 2: "r2"}
        with pytest.raises(TimeoutError):
            await watcher.wait_for(lambda _: False, timeout_ms=50)

    simulate(main)


def test_hints_count_until_a_newer_picture_comes(simulate: Any) -> None:
    async def main(world: Any) -> None:
        world.cluster.create("t")
        watcher = _watch(world)
        await watcher.topic("t", timeout_ms=1_000)
        assert not watcher.hint(PARTITION, 1, 0), "not newer"
        assert not watcher.hint(PARTITION, -1, 9), "nobody"
        assert watcher.hint(PARTITION, 1, 1)
        assert watcher.leader_of(PARTITION) == (1, 1)
        assert not watcher.hint(PARTITION, 1, 1)
        world.cluster.tell()
        await watcher.changed()
        assert watcher.leader_of(PARTITION) == (1, 1), "the picture is older than the hint"
        world.cluster.move(world.cluster.get("t"), 2)
        world.cluster.move(world.cluster.get("t"), 0)
        await asyncio.sleep(0.1)
        assert watcher.leader_of(PARTITION) == (0, 2)
        assert not watcher.hint(PARTITION, 77, 5), "to try again at once would be for nothing"
        assert watcher.leader_of(PARTITION) == (0, 2), "nobody knows where broker 77 is"

    simulate(main)


def test_another_broker_is_followed_when_one_dies_or_is_suspected(simulate: Any) -> None:
    async def main(world: Any) -> None:
        cluster = world.cluster
        cluster.create("t")
        watcher = _watch(world)
        await watcher.topic("t", timeout_ms=1_000)
        for number in (0, 1):
            await cluster.brokers[number].server.stop(grace_ms=0)
        cluster.tell()
        await asyncio.sleep(1)
        assert watcher.picture.revision == cluster.revision
        await cluster.brokers[0].start(cluster.brokers[0].server.host, cluster.brokers[0].address)
        cluster.brokers[2].is_deaf = True
        cluster.tell()
        await asyncio.sleep(20)
        assert watcher.picture.revision < cluster.revision, "its stream is as good as ever"
        watcher.refresh()
        watcher.refresh()
        await asyncio.sleep(1)
        assert watcher.picture.revision == cluster.revision

    simulate(main)


def test_brokers_that_know_less_or_belong_elsewhere_are_passed_over(simulate: Any) -> None:
    async def main(world: Any) -> None:
        cluster = world.cluster
        revision, cluster.revision = cluster.revision, -5
        watcher = _watch(world)
        with pytest.raises(Unreachable, match="has not heard from a controller yet"):
            await watcher.topic("t", timeout_ms=5_000)
        cluster.revision = revision
        cluster.create("t")
        await watcher.topic("t", timeout_ms=10_000)
        with pytest.raises(UnknownTopic):
            await watcher.topic("u", timeout_ms=100)
        known = watcher.picture
        cluster.revision -= 2
        cluster.tell()
        await asyncio.sleep(1)
        assert watcher.picture is known
        assert "knows only revision" in watcher.problem

    simulate(main)


def test_revisions_begin_anew_when_the_store_was_rebuilt(simulate: Any) -> None:
    """The higher generation is newer, whatever the revisions are."""

    async def main(world: Any) -> None:
        watcher = MetadataWatcher(world.host, world.cluster.bootstrap, world.rng)

        def takes(generation: int, revision: int) -> bool:
            pushed = ClusterMetadata(revision=revision, generation=generation, cluster_id="c")
            return watcher._take("a:1", WatchMetadataResponse(metadata=pushed))

        assert [takes(0, 900), takes(1, 7), takes(0, 1_000), takes(1, 8)] == [1, 1, 0, 1]
        assert (watcher.picture.generation, watcher.picture.revision) == (1, 8)

    simulate(main)


def test_a_topic_that_is_being_deleted_is_not_there(simulate: Any) -> None:
    async def main(world: Any) -> None:
        world.cluster.create("t")
        watcher = _watch(world)
        await watcher.topic("t", timeout_ms=1_000)
        world.cluster.delete("t")
        await watcher.changed()
        with pytest.raises(UnknownTopic):
            await watcher.topic("t", timeout_ms=100)

    simulate(main)


def test_bootstrap_addresses() -> None:
    assert parse_bootstrap("a:1, b:2,") == ("a:1", "b:2")
    assert parse_bootstrap(["[::1]:3"]) == ("[::1]:3",)
    nothing: list[str] = []
    for wrong in ("", nothing, "a", "a:b", "a:1,b"):
        with pytest.raises(InvalidConfig, match="bootstrap_servers"):
            parse_bootstrap(wrong)


def test_the_coordinator_of_a_group_is_looked_up_without_a_call() -> None:
    assert ClusterPicture().coordinator_of("payments") == ""
    shards = [(-1, 0)] * GROUP_SHARDS
    shards[shard_of("payments")] = (7, 3)
    picture = ClusterPicture(coordinators={7: "c7:90"}, group_shards=tuple(shards))
    assert picture.coordinator_of("payments") == "c7:90"
    assert picture.coordinator_of("other") == ""
    assert ClusterPicture(group_shards=tuple(shards)).coordinator_of("payments") == ""


def test_a_topic_that_somebody_writes_to_may_be_made(simulate: Any) -> None:
    async def main(world: Any) -> None:
        watcher = _watch(world)
        with pytest.raises(UnknownTopic):
            await watcher.topic("t", timeout_ms=500, create=True)
        world.cluster.controller.creates = True
        with pytest.raises(UnknownTopic):
            await watcher.topic("t", timeout_ms=500)
        assert len((await watcher.topic("t", timeout_ms=500, create=True)).partitions) == 1

    simulate(main)


def test_a_topic_that_nobody_knows_is_told_long_before_the_time_is_over(simulate: Any) -> None:
    async def main(world: Any) -> None:
        world.cluster.create("orders")
        world.cluster.create("borders")
        watcher = _watch(world)
        await watcher.topic("orders", timeout_ms=1_000)
        begun_ms = world.loop.now_ms
        with pytest.raises(UnknownTopic, match=r"no topic 'ordrs' \(near it: orders, borders\)"):
            await watcher.topic("ordrs", timeout_ms=60_000, unknown_ms=5_000)
        assert 5_000 <= world.loop.now_ms - begun_ms < 5_100
        # One that is made meanwhile is found at once.
        world.loop.call_later(2.0, world.cluster.create, "late")
        await watcher.topic("late", timeout_ms=60_000, unknown_ms=5_000)
        assert world.loop.now_ms - begun_ms < 7_200

    simulate(main)


def test_while_nobody_answers_no_topic_is_unknown(simulate: Any) -> None:
    async def main(world: Any) -> None:
        watcher = MetadataWatcher(world.host, ["nobody:1"], world.rng)
        world.processes["client"].spawn("watch", watcher.run())
        begun_ms = world.loop.now_ms
        with pytest.raises(Unreachable):
            await watcher.topic("orders", timeout_ms=8_000, unknown_ms=100)
        assert world.loop.now_ms - begun_ms >= 8_000

    simulate(main)
