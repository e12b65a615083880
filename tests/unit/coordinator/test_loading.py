"""Shards are read from their partitions, whatever is in them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tailrace.errors import InvalidRequest
from tailrace.log.admission import BodyVerdict
from tailrace.model import OFFSETS_TOPIC, TopicPartition, shard_of
from tailrace.record.build import BatchBuilder
from tailrace.record.header import assemble, read_header
from unit.coordinator.world import TOPIC, World, simulate


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


def plant(world: World, shard: int, data: bytes) -> None:
    """Put a batch into the leader's log past all that guards it: an older release took it."""
    for node in world.cluster.brokers:
        hosted = node.hosted(TopicPartition(OFFSETS_TOPIC, shard))
        if hosted is not None and hosted.leads:
            assert node.broker is not None
            assert node.broker.replicas is not None
            node.broker.replicas.append(
                hosted, data, leader_epoch=-1, acks_all=False, bodies=BodyVerdict()
            )
            return
    raise AssertionError("nobody leads the shard")


async def loaded_again(world: World) -> list[str]:
    """Kill the coordinator and start it; what it says meanwhile."""
    said: list[str] = []
    world.loop.note = said.append  # type: ignore[assignment, method-assign]
    node = world.cluster.coordinators[0]
    node.kill()
    node.start()
    await asyncio.sleep(2)
    return said


def test_records_that_cannot_be_read_are_passed_over_and_named() -> None:
    async def main(world: World) -> None:
        await world.commit("g", 5)
        shard = shard_of("g", len(world.metadata.picture.group_shards))
        builder = BatchBuilder()
        for key, value in ((b'["group","x"]', b"?"), (b"\xff", None), (b'["later"]', b"{}")):
            builder.append(value, key)
        plant(world, shard, builder.build())
        said = await loaded_again(world)
        assert await world.position("g") == 5
        assert sum("it is passed over" in text for text in said) == 2

    simulate(main)


def test_a1_a_batch_that_cannot_be_read_is_passed_over_and_named() -> None:
    """Every coordinator that loaded the shard ended, at each start."""

    async def main(world: World) -> None:
        await world.commit("g", 5)
        shard = shard_of("g", len(world.metadata.picture.group_shards))
        builder = BatchBuilder()
        for _ in range(3):
            builder.append(b"value", b"key")
        good = read_header(builder.build())
        plant(world, shard, assemble(good, bytes(good.body_bytes)))
        await world.commit("g", 6)
        said = await loaded_again(world)
        assert await world.position("g") == 6
        (told,) = [text for text in said if "passed over" in text]
        assert f"{OFFSETS_TOPIC}-{shard}: offsets " in told
        assert "not an Arrow message" in told
        coordinator = world.cluster.coordinators[0].coordinator
        assert coordinator is not None
        assert coordinator.runtime is not None
        assert coordinator.runtime.loader.batches_skipped == 1

    simulate(main)


@pytest.mark.parametrize("name", [OFFSETS_TOPIC, "__of_mine"])
def test_a1_clients_do_not_write_to_topics_of_the_cluster(name: str) -> None:
    async def main(world: World) -> None:
        await world.commit("g", 5)
        if name != OFFSETS_TOPIC:
            await world.cluster.create_topic(name, partitions=1)
        process, make = world.cluster.producer("vandal")

        async def write() -> None:
            producer: Any = make()
            sent = await producer.send(name, b"{}", key=b'["group","g"]', partition=0)
            with pytest.raises(InvalidRequest, match="the cluster's own: clients read it"):
                await sent
            # What else the producer sends goes on.
            await (await producer.send(TOPIC, b"v"))
            await producer.close()

        await process.spawn("write", write())

    simulate(main)
