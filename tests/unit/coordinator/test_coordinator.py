"""A coordinator as a whole: it starts without a cluster, is looked after, and stops in order."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from simulation.cluster import CoordinatorNode, SimCluster
from simulation.loop import LoopClock, SimLoop
from tailrace.meta.keys import coordinator_key
from unit.coordinator.world import TOPIC, World, simulate


def _is_registered(node: CoordinatorNode) -> bool:
    return node.coordinator is not None and node.coordinator.epoch is not None


def test_it_waits_for_brokers_and_for_the_store() -> None:
    async def main(loop: SimLoop) -> None:
        cluster = SimCluster(loop, controllers=1, coordinators=1)
        cluster.etcd.stop()
        node = cluster.coordinators[0]
        node.start()
        await asyncio.sleep(2)
        assert not _is_registered(node)
        cluster.etcd.start()
        await asyncio.sleep(2)
        assert not _is_registered(node)
        cluster.start_all()
        await asyncio.sleep(5)
        assert _is_registered(node)
        assert node.coordinator is not None
        assert node.coordinator.runtime is not None
        assert len(node.coordinator.runtime.owned) == 2

    SimLoop(1).run(main)


def test_a_killed_coordinator_is_noticed_at_once_and_a_silent_one_by_its_lease() -> None:
    async def main(world: World) -> None:
        await world.commit("g", 1)
        node = world.owner("g")
        node.kill()
        began_s = world.loop.time()
        await world.until(lambda: world.owner("g") not in {node, None})
        assert world.loop.time() - began_s < 0.5
        assert await world.position("g") == 1
        assert world.loop.time() - began_s < 1
        node.start()
        await asyncio.sleep(3)
        silent = world.owner("g")
        silent.pause()
        began_s = world.loop.time()
        await world.until(lambda: world.owner("g") not in {silent, None})
        assert 2 < world.loop.time() - began_s < 9
        assert await world.position("g") == 1
        silent.resume()
        await asyncio.sleep(8)
        assert {owner for owner, _ in world.metadata.picture.group_shards} == {200, 201}

    simulate(main, coordinators=2)


def test_the_registration_goes_first_when_it_stops() -> None:
    async def main(world: World) -> None:
        await world.commit("g", 1)
        await world.cluster.coordinators[0].stop()
        store = world.cluster.etcd.connect("admin")
        assert await store.get(coordinator_key(200)) is None

    simulate(main)


def test_every_new_picture_is_looked_at() -> None:
    """A picture may stand where one stood that is gone: its address says nothing."""

    async def main(world: World) -> None:
        await world.commit("g", 1)
        node = world.owner("g")
        assert node is not None
        coordinator = node.coordinator
        assert coordinator is not None
        metadata = coordinator._metadata
        assert metadata is not None
        topic = next(iter(metadata.picture.topics.values()))
        for number in range(50):
            # It changes twice between two looks: the second may stand where the first stood.
            for name in ("between", f"t{number}"):
                metadata.picture = replace(metadata.picture, topics={name: topic})
            known = coordinator._known_topics()
            assert known is not None
            assert list(known) == [f"t{number}"]

    simulate(main, coordinators=1)


def test_f29_a_clock_that_jumps_ahead_expires_no_position() -> None:
    """One whose clock was a year ahead for a moment forgot what all groups had read."""

    async def main(world: World) -> None:
        await world.commit("g", 7)
        node = world.owner("g")
        assert node is not None
        assert node.coordinator is not None
        runtime = node.coordinator.runtime
        assert runtime is not None
        clock = runtime._clock
        assert isinstance(clock, LoopClock)
        for _ in range(3):
            clock.wall_skew_ms += 365 * 24 * 3_600_000
            runtime._expire_ms = 0
            await world.until(lambda: runtime._expire_ms > 0)
            await asyncio.sleep(1)
            assert await world.position("g") == 7

    simulate(main, coordinators=1)


def test_an_old_picture_expires_no_position() -> None:
    """Who owned the shard before may have known topics that the new owner has not heard of."""

    async def main(world: World) -> None:
        await world.commit("g", 7)
        node = world.owner("g")
        assert node is not None
        coordinator = node.coordinator
        assert coordinator is not None
        runtime, metadata = coordinator.runtime, coordinator._metadata
        assert runtime is not None
        assert metadata is not None
        known = {name: each for name, each in metadata.picture.topics.items() if name != TOPIC}
        metadata.picture = replace(metadata.picture, topics=known)
        await runtime._expire(0)
        assert await world.position("g") == 7
        # Nor does one that can ask nobody.
        world.cluster.etcd.stop()
        await runtime._expire(0)
        world.cluster.etcd.start()
        assert await world.position("g") == 7
        await world.cluster.delete_topic(TOPIC)
        await world.until(lambda: TOPIC not in world.metadata.picture.topics)
        await world.until(lambda: TOPIC not in metadata.picture.topics)
        await runtime._expire(0)
        assert await world.position("g") == -1

    simulate(main, coordinators=1)
