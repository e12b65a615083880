from __future__ import annotations

import asyncio

from simulation.loop import LoopClock
from tailrace.coordinator.lags import Ends
from tailrace.model import TopicPartition
from unit.coordinator.world import TOPIC, World, simulate

ALL = [TopicPartition(TOPIC, number) for number in range(3)]


def test_ends_are_asked_of_the_leaders_and_kept_when_one_is_gone() -> None:
    async def main(world: World) -> None:
        ends = Ends(world.host, LoopClock(world.loop))

        async def ask(*wanted: TopicPartition) -> None:
            await world.process.spawn("ask", ends.ask(wanted, world.metadata))

        await ask(*ALL, TopicPartition("no-such-topic", 0))
        assert set(ends.known) == set(ALL)
        assert {each.end for each in ends.known.values()} == {0}
        # What nobody has a position in any more is forgotten.
        await ask(*ALL[:2])
        assert set(ends.known) == set(ALL[:2])
        # A leader that does not answer is not waited for beyond its time.
        for node in world.cluster.brokers:
            node.pause()
        began_s = asyncio.get_running_loop().time()
        await ask(*ALL)
        assert asyncio.get_running_loop().time() - began_s < 20
        assert set(ends.known) == set(ALL[:2])
        for node in world.cluster.brokers:
            node.resume()

    simulate(main)
