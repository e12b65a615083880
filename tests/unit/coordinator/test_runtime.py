"""Shards at work: given away, taken over, refused by the log, timed out."""

from __future__ import annotations

import asyncio

from tailrace.transport import methods
from tailrace.transport.wire import code_name
from tailrace.v1 import group_pb2 as pb
from unit.coordinator.world import World, simulate


def test_shards_move_when_a_coordinator_comes_and_goes_and_nothing_is_lost() -> None:
    async def main(world: World) -> None:
        groups = ["red", "orders"]
        world.cluster.coordinators[1].kill()
        await world.until(lambda: {o for o, _ in world.metadata.picture.group_shards} == {200})
        for number, group in enumerate(groups):
            await world.commit(group, number)
        world.cluster.coordinators[1].start()
        await world.until(lambda: {o for o, _ in world.metadata.picture.group_shards} == {200, 201})
        assert [await world.position(group) for group in groups] == [0, 1]
        await world.cluster.coordinators[0].stop()
        began_s = world.loop.time()
        assert [await world.position(group) for group in groups] == [0, 1]
        assert world.loop.time() - began_s < 1.5, "it does not wait for the lease to end"

    simulate(main, coordinators=2)


def test_one_that_was_deposed_without_knowing_is_refused_by_the_log() -> None:
    async def main(world: World) -> None:
        await world.commit("g", 1)
        old = world.owner("g")
        address = world.metadata.picture.coordinator_of("g")
        world.cluster.etcd.cut(old.name)
        await world.until(lambda: world.owner("g") not in {old, None})
        assert not (await world.commit("g", 2)).error
        # It still believes to own the group, and would take a commit and tell an old position.
        assert old.coordinator.runtime.owned
        request = pb.FetchOffsetsRequest(group="g")
        told = await world.call_at(address, methods.GROUP_FETCH_OFFSETS, request)
        assert code_name(told.error) == "NOT_COORDINATOR"
        late = pb.CommitOffsetsRequest(
            group="g", generation=-1, offsets=[pb.OffsetToCommit(topic="t", offset=9)]
        )
        refused = await world.call_at(address, methods.GROUP_COMMIT_OFFSETS, late)
        assert code_name(refused.error) == "NOT_COORDINATOR"
        assert await world.position("g") == 2

    simulate(main, coordinators=2)


def test_an_answer_that_takes_too_long_says_that_the_outcome_is_not_known() -> None:
    async def main(world: World) -> None:
        await world.commit("g", 1)
        for node in world.cluster.brokers:
            node.pause()
        answer = await world.call(
            methods.GROUP_COMMIT_OFFSETS,
            pb.CommitOffsetsRequest(
                group="g", generation=-1, offsets=[pb.OffsetToCommit(topic="t", offset=9)]
            ),
        )
        assert code_name(answer.error) == "REQUEST_TIMED_OUT"
        for node in world.cluster.brokers:
            node.resume()

    simulate(main)


def test_a_join_whose_caller_hangs_up_is_forgotten() -> None:
    async def main(world: World) -> None:
        await world.commit("g", 1)
        group = "g"
        first = await world.join(group)
        waiting = world.loop.create_task(world.join(group))
        await asyncio.sleep(0.5)
        world.process.kill()
        await asyncio.sleep(1)
        runtime = world.owner(group).coordinator.runtime
        assert runtime.list().groups[0].waiting == 0
        assert list(runtime.list().groups[0].facts.members) == [first.member_id]
        waiting.cancel()

    simulate(main)
