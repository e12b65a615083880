"""Shards are read from their partitions, whatever is in them."""

from __future__ import annotations

import asyncio
from typing import Any

from tailrace.model import OFFSETS_TOPIC, shard_of
from unit.coordinator.world import World, simulate


def test_another_coordinator_reads_all_that_was_committed() -> None:
    async def main(world: World) -> None:
        for number in range(40):
            await world.commit(f"g{number % 20}", number)
        for node in world.cluster.coordinators:
            node.kill()
        world.cluster.coordinators[1].start()
        await asyncio.sleep(2)
        assert [await world.position(f"g{number}") for number in range(20)] == list(range(20, 40))

    simulate(main, coordinators=2)


def test_records_that_cannot_be_read_are_passed_over_and_named() -> None:
    async def main(world: World) -> None:
        await world.commit("g", 5)
        shard = shard_of("g", len(world.metadata.picture.group_shards))
        process, make = world.cluster.producer("vandal")

        async def write() -> None:
            producer: Any = make()
            for key, value in ((b'["group","x"]', b"?"), (b"\xff", None), (b'["later"]', b"{}")):
                await (await producer.send(OFFSETS_TOPIC, value, key=key, partition=shard))
            await producer.close()

        await process.spawn("write", write())
        said: list[str] = []
        world.loop.note = said.append  # type: ignore[assignment, method-assign]
        node = world.cluster.coordinators[0]
        node.kill()
        node.start()
        await asyncio.sleep(2)
        assert await world.position("g") == 5
        assert sum("it is passed over" in text for text in said) == 2

    simulate(main)
