"""Operations on a whole simulated cluster: the shipped brokers and controllers, virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from simulation.cluster import SimCluster
from simulation.loop import LoopClock, SimLoop, run
from tailrace.client.admin import EARLIEST, AdminCore
from tailrace.client.moving import Phase
from tailrace.client.operations import HIGH_WATERMARK, Deleted, LeaderChoice
from tailrace.errors import (
    ElectionNotNeeded,
    InvalidConfig,
    InvalidRequest,
    NoReassignment,
    OffsetOutOfRange,
    UnknownTopic,
    UnknownTopicId,
)
from tailrace.model import TopicPartition

T0 = TopicPartition("t", 0)
Main = Callable[["World"], Coroutine[Any, Any, None]]


class World:
    def __init__(self, loop: SimLoop, brokers: int) -> None:
        self.cluster = SimCluster(loop, brokers=brokers, controllers=1)
        self.loop = loop
        self.process, host, rng = self.cluster.client_host("operator")
        self.admin = AdminCore(self.cluster.bootstrap, network=host, clock=LoopClock(loop), rng=rng)

    async def write(self, count: int, *, topic: str = "t", size: int = 200) -> None:
        process, make = self.cluster.producer("writer")

        async def write() -> None:
            producer = make()
            await producer.start()
            for number in range(count):
                await (await producer.send(topic, b"x" * size, partition=number % 2))
            await producer.close()

        await process.spawn("write", write())

    async def until(self, holds: Callable[[], Coroutine[Any, Any, bool]]) -> None:
        async with asyncio.timeout(120):
            while not await holds():  # noqa: ASYNC110 - it is virtual time.
                await asyncio.sleep(0.2)


def simulate(main: Main, *, brokers: int = 5) -> None:
    async def body(loop: SimLoop) -> None:
        world = World(loop, brokers)
        world.cluster.start_all()
        await world.cluster.create_topic("t", partitions=2)

        async def inside() -> None:
            try:
                await main(world)
            finally:
                await world.admin.close()

        await world.process.spawn("operate", inside())
        assert world.cluster.problems == []

    run(body, 1)


def test_settings_are_changed_and_shown() -> None:
    async def main(world: World) -> None:
        admin = world.admin
        assert await admin.alter_config("topics", "t", {"retention.ms": "5000"}) == {
            "retention.ms": "5000"
        }
        assert await admin.describe_configs("topics", "t") == {"t": {"retention.ms": "5000"}}
        assert await admin.alter_config("topics", "t", unset=["retention.ms"]) == {}
        back, first = await admin.explain_settings("t")
        assert (first.set, first.unset) == ({"retention.ms": "5000"}, ())
        assert (back.set, back.unset) == ({}, ("retention.ms",))
        await admin.alter_config("clients", "default", {"request_rate": "9"})
        assert await admin.describe_configs("clients") == {"default": {"request_rate": "9"}}
        broker = world.cluster.brokers[1].broker
        assert broker is not None
        async with asyncio.timeout(5):
            while broker.live.client("any").request_rate != 9:  # noqa: ASYNC110 - virtual time.
                await asyncio.sleep(0.1)
        with pytest.raises(InvalidConfig):
            await admin.alter_config("topics", "t", {"retention.ms": "soon"})
        with pytest.raises(InvalidRequest, match="topics, brokers, clients"):
            await admin.describe_configs("users")

    simulate(main, brokers=3)


def test_partitions_are_added_and_records_deleted() -> None:
    async def main(world: World) -> None:
        admin = world.admin
        assert len((await admin.add_partitions("t", 4)).partitions) == 4
        await world.write(20)
        deleted = await admin.delete_records({T0: 3, TopicPartition("t", 1): HIGH_WATERMARK})
        assert [each.log_start for each in deleted.values()] == [3, 10]
        starts = await admin.list_offsets("t", EARLIEST)
        assert [starts[each].offset for each in range(4)] == [3, 10, 0, 0]
        (refused,) = (await admin.delete_records({T0: 99})).values()
        assert isinstance(refused.error, OffsetOutOfRange)
        # The topic that is meant is the one that was there when it was asked for.
        left, done = {T0: 5}, dict[TopicPartition, Deleted]()
        await admin._delete_once(await admin._begin(None), left, {T0: "former"}, done)
        assert isinstance(done[T0].error, UnknownTopicId)
        assert (await admin.list_offsets("t", EARLIEST))[0].offset == 3
        with pytest.raises(UnknownTopic):
            await admin.add_partitions("u", 3)

    simulate(main, brokers=3)


def test_a_broker_is_emptied_and_nothing_is_lost() -> None:
    async def main(world: World) -> None:
        admin = world.admin
        await world.write(40)
        before = [each.offset for each in (await admin.list_offsets("t")).values()]
        await admin.cordon_broker(0, reason="to be emptied")
        planned = await admin.reassign(drain=0, validate_only=True)
        assert {each.phase for each in planned} == {Phase.PLANNED}
        foretold = await admin.reassignment_progress(planned)
        assert foretold.left_bytes == foretold.total_bytes > 0
        moves = await admin.reassign(drain=0)
        assert [each.target for each in moves] == [each.target for each in planned]

        async def is_done() -> bool:
            return not (await admin.reassignment_progress()).moves

        await world.until(is_done)
        states = {each.broker_id: each for each in await admin.describe_brokers()}
        assert [disk.path for disk in states[1].disks] == ["/data"]
        assert states[1].as_dict()["disks"][0]["trouble"] == states[1].unfit == ""
        assert (states[0].replicas, states[0].cordoned) == (0, True)
        assert [each.offset for each in (await admin.list_offsets("t")).values()] == before

        async def is_gone() -> bool:
            return all(0 not in each for each in (await admin.describe_replicas()).values())

        await world.until(is_gone)

        async def is_well() -> bool:
            described = await admin.describe_topic("t")
            return all(0 not in each.replicas and not each.health for each in described.partitions)

        await world.until(is_well)

    simulate(main)


def test_a_move_is_seen_under_way_and_given_up() -> None:
    async def main(world: World) -> None:
        admin = world.admin
        await admin.alter_config(
            "brokers", "default", {"leader.replication.throttled.rate": "1024"}
        )
        await world.write(400)
        await admin.reassign({T0: [3, 4, 0]})

        async def is_copying() -> bool:
            progress = await admin.reassignment_progress()
            return 0 < progress.left_bytes < progress.total_bytes

        await world.until(is_copying)
        (move,) = (await admin.reassignment_progress()).moves
        assert (move.phase, move.adding) == (Phase.COPYING, (3, 4))
        described = (await admin.describe_topic("t")).partitions[0]
        assert (described.adding, described.removing, described.health) == ((3, 4), (1, 2), ())
        assert await admin.cancel_reassignments([T0]) == [T0]

        async def is_done() -> bool:
            return not await admin.list_reassignments()

        await world.until(is_done)

        async def is_back() -> bool:
            return (await admin.describe_topic("t")).partitions[0].replicas == (0, 1, 2)

        await world.until(is_back)
        with pytest.raises(NoReassignment):
            await admin.cancel_reassignments([T0])
        assert await admin.cancel_reassignments() == []

    simulate(main)


def test_leaders_are_elected() -> None:
    async def main(world: World) -> None:
        admin = world.admin
        await admin.cordon_broker(0)

        async def is_away() -> bool:
            return (await admin.describe_topic("t")).partitions[0].leader != 0

        await world.until(is_away)
        await admin.cordon_broker(0, cordon=False)
        (elected,) = await admin.elect_leaders()
        assert (elected.partition, elected.leader, elected.error) == (T0, 0, None)
        (refused,) = await admin.elect_leaders([T0])
        assert isinstance(refused.error, ElectionNotNeeded)
        (refused,) = await admin.elect_unclean([LeaderChoice(T0, 1)])
        assert isinstance(refused.error, ElectionNotNeeded)

    simulate(main, brokers=3)
