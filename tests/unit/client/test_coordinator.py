"""Calls to the coordinator of a group, wherever it is."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tailrace.client.coordinator import OFTEN_MS, CoordinatorClient
from tailrace.client.metadata import MetadataWatcher
from tailrace.errors import NotCoordinator, RequestTimedOut
from tailrace.model import TopicPartition
from tailrace.runtime import Tasks
from tailrace.transport import methods
from tailrace.v1 import group_pb2 as pb


def client_of(world: Any) -> tuple[CoordinatorClient, Tasks]:
    metadata = MetadataWatcher(world.host, world.cluster.bootstrap, world.rng)
    tasks = Tasks(lambda name, error: None)
    tasks.spawn("metadata", metadata.run())
    client = CoordinatorClient("g", metadata, network=world.host, clock=world.clock, rng=world.rng)
    return client, tasks


def test_the_call_waits_for_a_coordinator_and_follows_it(simulate: Any) -> None:
    async def main(world: Any) -> None:
        client, tasks = client_of(world)
        with pytest.raises(NotCoordinator):
            client.channel()
        request = pb.FetchOffsetsRequest(group="g")
        for owner in (200, 201, 200):
            world.cluster.move_groups(owner)
            answer = await client.call(methods.GROUP_FETCH_OFFSETS, request, timeout_ms=5_000)
            assert answer.error == 0
        await tasks.close()

    simulate(main)


def test_a_coordinator_that_reads_its_shard_is_waited_for(simulate: Any) -> None:
    async def main(world: Any) -> None:
        client, tasks = client_of(world)
        world.cluster.coordinators.is_loading = True
        request = pb.FetchOffsetsRequest(group="g")
        with pytest.raises(RequestTimedOut, match="in a moment"):
            await client.call(methods.GROUP_FETCH_OFFSETS, request, timeout_ms=2_000)
        calling = asyncio.ensure_future(
            client.call(methods.GROUP_FETCH_OFFSETS, request, timeout_ms=60_000)
        )
        await asyncio.sleep(3)
        world.cluster.coordinators.is_loading = False
        assert (await calling).error == 0
        await tasks.close()

    simulate(main)


def test_a_coordinator_that_hangs_is_given_up_in_time(simulate: Any) -> None:
    async def main(world: Any) -> None:
        client, tasks = client_of(world)
        await asyncio.sleep(1)
        world.processes["g200"].pause()
        before_ms = world.loop.now_ms
        with pytest.raises(RequestTimedOut):
            await client.call(
                methods.GROUP_FETCH_OFFSETS, pb.FetchOffsetsRequest(group="g"), timeout_ms=3_000
            )
        assert world.loop.now_ms - before_ms < 5_000
        await tasks.close()

    simulate(main)


def test_a_coordinator_that_hangs_is_left_when_another_one_has_the_group(simulate: Any) -> None:
    async def main(world: Any) -> None:
        client, tasks = client_of(world)
        await asyncio.sleep(1)
        world.processes["g200"].pause()
        calling = asyncio.ensure_future(
            client.call(
                methods.GROUP_FETCH_OFFSETS,
                pb.FetchOffsetsRequest(group="g"),
                timeout_ms=300_000,
                attempt_timeout_ms=300_000,
            )
        )
        await asyncio.sleep(5)
        assert not calling.done()
        world.cluster.move_groups(201)
        before_ms = world.loop.now_ms
        assert (await calling).error == 0
        assert world.loop.now_ms - before_ms < 1_000
        waiting = asyncio.ensure_future(
            client.call(methods.GROUP_JOIN, pb.JoinGroupRequest(group="g"), timeout_ms=60_000)
        )
        await asyncio.sleep(0.01)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await tasks.close()

    simulate(main)


def test_commits_that_follow_each_other_go_over_a_stream(simulate: Any) -> None:
    async def main(world: Any) -> None:
        coordinators = world.cluster.coordinators
        client, tasks = client_of(world)

        async def commit(offset: int) -> None:
            request = pb.CommitOffsetsRequest(
                group="g", generation=-1, offsets=[pb.OffsetToCommit(topic="t", offset=offset)]
            )
            answer = await client.commit(request, timeout_ms=20_000)
            assert answer.error == 0
            stored = coordinators.groups["g"].offsets[TopicPartition("t", 0)]
            assert stored.offset == offset

        await commit(1)
        assert coordinators.streamed == 0, "one alone is a call"
        for offset in range(2, 12):
            await commit(offset)
        assert coordinators.streamed == 10
        world.cluster.move_groups(201)
        await commit(20)
        world.processes["g201"].pause()
        world.loop.call_later(12, world.processes["g201"].resume)
        await commit(21)
        assert coordinators.streamed >= 12
        await asyncio.sleep(OFTEN_MS / 1000 + 1)
        streamed = coordinators.streamed
        await commit(22)
        assert coordinators.streamed == streamed, "and one after a while"
        await client.close()
        await tasks.close()

    simulate(main)
