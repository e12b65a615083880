"""Batches of all shards on their way to the leaders: together, in order, once."""

from __future__ import annotations

import asyncio

from simulation.loop import LoopClock
from tailrace.coordinator.appender import (
    PACE_MS_MAX,
    TOLD_PER_TURN,
    Pace,
    _Link,
    _Request,
    _Sent,
)
from tailrace.coordinator.journal import Journal
from tailrace.coordinator.records import Encoded
from tailrace.coordinator.runtime import Runtime
from tailrace.model import OFFSETS_TOPIC, TopicPartition, shard_of
from tailrace.transport.wire import to_partition
from tailrace.v1 import broker_pb2 as pb
from unit.coordinator.world import World, simulate


def runtime_of(world: World, group: str) -> Runtime:
    node = world.owner(group)
    assert node is not None
    runtime = node.coordinator.runtime
    assert isinstance(runtime, Runtime)
    return runtime


def leader_of(world: World, group: str) -> int:
    shard = shard_of(group, len(world.metadata.picture.group_shards))
    return world.metadata.leader_of(TopicPartition(OFFSETS_TOPIC, shard))[0]


def test_what_gathers_while_a_request_is_on_its_way_goes_in_the_next() -> None:
    async def main(world: World) -> None:
        await world.commit("g", 0)
        appender = runtime_of(world, "g").appender
        assert appender is not None
        before = appender.requests
        commits = [world.loop.create_task(world.commit("g", number)) for number in range(200)]
        answers = await asyncio.gather(*commits)
        assert not any(each.error for each in answers)
        assert appender.requests - before <= 20
        assert appender.batches >= appender.requests

    simulate(main)


def test_commits_go_on_when_the_leader_dies_or_hangs() -> None:
    async def main(world: World) -> None:
        for hurt in ("kill", "pause"):
            await world.commit("g", 1)
            node = next(n for n in world.cluster.brokers if n.number == leader_of(world, "g"))
            getattr(node, hurt)()
            began_s = world.loop.time()
            answer = await world.commit("g", 2)
            assert not answer.error, answer
            assert world.loop.time() - began_s < 9
            assert await world.position("g") == 2
            node.resume()
            node.start()
            await asyncio.sleep(5)

    simulate(main)


def test_while_nobody_leads_nothing_is_lost() -> None:
    async def main(world: World) -> None:
        await world.commit("g", 1)
        for node in world.cluster.brokers:
            node.kill()
        waiting = world.loop.create_task(world.commit("g", 7))
        await asyncio.sleep(3)
        assert not waiting.done()
        for node in world.cluster.brokers:
            node.start()
        await waiting
        await asyncio.sleep(12)
        assert await world.position("g") == 7

    simulate(main)


def test_few_records_leave_at_once_and_many_gather() -> None:
    pace = Pace()
    assert pace.wait_ms(0) <= 0
    for now_ms in range(0, 5_000, 100):
        pace.sent(1, now_ms)
        assert pace.wait_ms(now_ms) <= 1
    for now_ms in range(5_000, 8_000, 10):
        pace.sent(100, now_ms)
    assert pace.wait_ms(7_990) == PACE_MS_MAX
    assert pace.wait_ms(8_000) == PACE_MS_MAX - 10
    pace.sent(1, 60_000)
    assert pace.wait_ms(60_000) <= 1, "what was long ago is forgotten"


def test_answers_are_told_some_at_a_time_and_all_of_them_when_the_stream_ends() -> None:
    """A produce request may have the commits of thousands: the loop has other things to do too."""

    async def main(world: World) -> None:
        await world.commit("g", 0)
        told: list[int] = []
        journals = [Journal(shard, 1, 1, on_ready=lambda _: None) for shard in range(5)]
        for journal in journals:
            for _ in range(TOLD_PER_TURN):
                journal.write([Encoded(b"k", b"v")], lambda _, at: told.append(at), now_ms=1)
            journal.take()
        appender = runtime_of(world, "g").appender
        assert appender is not None
        link = _Link(appender, "b0:9092", network=world.host, clock=LoopClock(world.loop))
        request = _Request([_Sent(each, each.attempt) for each in journals], 0)
        response = pb.ProduceResponse(
            partitions=[
                pb.PartitionProduced(
                    partition=to_partition(each.partition),
                    batches=[pb.BatchProduced(base_offset=7)],
                )
                for each in journals
            ]
        )
        taking = world.loop.create_task(link._take(request, response))
        for turns in range(1, 4):
            await asyncio.sleep(0)
            assert len(told) == turns * TOLD_PER_TURN
        taking.cancel()
        await asyncio.wait([taking])
        assert told == [7 + TOLD_PER_TURN - 1] * (5 * TOLD_PER_TURN)
        assert all(each.is_idle for each in journals)

    simulate(main)
