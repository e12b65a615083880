"""`__consumer_offsets` is made when it is first needed, and not before."""

from __future__ import annotations

import asyncio

from tailrace.model import OFFSETS_TOPIC
from tailrace.transport import methods
from tailrace.v1 import group_pb2 as pb
from unit.coordinator.world import World, simulate


def test_the_topic_is_made_on_first_use_and_compacted() -> None:
    async def main(world: World) -> None:
        await asyncio.sleep(3)
        assert OFFSETS_TOPIC not in world.metadata.picture.topics
        node = world.cluster.coordinators[0]
        listed = await world.call_at(
            f"{node.name}:9292", methods.GROUP_LIST, pb.ListGroupsRequest()
        )
        assert not listed.error
        assert OFFSETS_TOPIC not in world.metadata.picture.topics, "to look is not to need"
        await world.commit("g", 5)
        made = world.metadata.picture.topics[OFFSETS_TOPIC]
        assert len(made.partitions) == len(world.metadata.picture.group_shards)
        assert made.config["cleanup.policy"] == "compact"
        assert {len(each.replicas) for each in made.partitions} == {3}

    simulate(main)


def test_it_is_made_when_a_controller_comes() -> None:
    async def main(world: World) -> None:
        world.cluster.controllers[0].kill()
        committing = world.loop.create_task(world.commit("g", 5))
        await asyncio.sleep(5)
        assert not committing.done()
        world.cluster.controllers[0].start()
        assert not (await committing).error

    simulate(main)
