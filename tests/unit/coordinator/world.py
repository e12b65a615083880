"""A simulated cluster with shipped coordinators, and calls to whichever has a group."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from simulation.cluster import CONTROLLER_PORT, SimCluster
from simulation.loop import SimLoop
from tailrace.client.metadata import MetadataWatcher
from tailrace.errors import CoordinatorLoading, NotCoordinator, TailraceError
from tailrace.transport import methods
from tailrace.transport.wire import error_of
from tailrace.v1 import group_pb2 as pb

TOPIC = "t"


class World:
    """Everything is up when the test begins; calls are made by one client."""

    def __init__(self, loop: SimLoop, *, coordinators: int) -> None:
        self.loop = loop
        self.cluster = SimCluster(loop, controllers=1, coordinators=coordinators)
        self.process, self.host, self.rng = self.cluster.client_host("client")
        self.metadata = MetadataWatcher(self.host, self.cluster.bootstrap, self.rng)

    async def start(self) -> None:
        self.cluster.start_all()
        self.process.spawn("metadata", self.metadata.run())
        await self.cluster.create_topic(TOPIC, partitions=3)
        await self.until(lambda: bool(self.metadata.picture.group_shards))

    async def until(self, holds: Callable[[], bool], *, within_s: float = 30.0) -> None:
        ends_s = self.loop.time() + within_s
        while not holds():
            assert self.loop.time() < ends_s, "it never came to be"
            await asyncio.sleep(0.02)

    async def call(self, method: Any, request: Any, *, timeout_ms: int = 20_000) -> Any:
        """Of the owner of the group, wherever that is; an error in the answer is left there."""
        while True:
            address = self.metadata.picture.coordinator_of(_group(request))
            response = await self.call_at(address, method, request, timeout_ms=timeout_ms)
            if response is not None and not isinstance(
                error_of(getattr(response, "error", 0), ""), NotCoordinator | CoordinatorLoading
            ):
                return response
            await asyncio.sleep(0.05)

    async def call_at(
        self, address: str, method: Any, request: Any, *, timeout_ms: int = 20_000
    ) -> Any:
        async def work() -> Any:
            if not address:
                return None
            channel = self.host.channel(address)
            try:
                return await channel.call(method, request, timeout_ms=timeout_ms)
            except TailraceError:
                return None
            finally:
                await channel.close()

        return await self.process.spawn("call", work())

    async def commit(self, group: str, offset: int, **given: Any) -> Any:
        request = pb.CommitOffsetsRequest(
            **{"group": group, "generation": -1, **given},
            offsets=[pb.OffsetToCommit(topic=TOPIC, offset=offset, leader_epoch=-1)],
        )
        return await self.call(methods.GROUP_COMMIT_OFFSETS, request)

    async def position(self, group: str) -> int:
        found = await self.call(methods.GROUP_FETCH_OFFSETS, pb.FetchOffsetsRequest(group=group))
        return found.offsets[0].offset if found.offsets else -1

    async def join(self, group: str, **given: Any) -> Any:
        request = pb.JoinGroupRequest(
            group=group,
            **{"protocols": [pb.GroupProtocol(name="range", metadata=b"m")], **given},
        )
        return await self.call(methods.GROUP_JOIN, request)

    @property
    def controller(self) -> str:
        return f"{self.cluster.controllers[0].name}:{CONTROLLER_PORT}"

    def owner(self, group: str) -> Any:
        """The coordinator node that owns the group, as the metadata has it."""
        address = self.metadata.picture.coordinator_of(group)
        return next(
            (node for node in self.cluster.coordinators if address.startswith(f"{node.name}:")),
            None,
        )


def _group(request: Any) -> str:
    return str(request.groups[0] if hasattr(request, "groups") else request.group)


def simulate(
    main: Callable[[World], Awaitable[None]], *, coordinators: int = 1, seed: int = 1
) -> None:
    async def start(loop: SimLoop) -> None:
        world = World(loop, coordinators=coordinators)
        await world.start()
        await main(world)
        assert world.cluster.problems == []
        assert world.cluster.network.handler_failures == []

    SimLoop(seed).run(start)
