"""Tailrace as `tailrace dev up` makes it: three brokers, two controllers, a coordinator, etcd."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TypeVar

from bench.peers.system import NODES, PARTITIONS, Fault, Harm
from integration.cluster_harness import Cluster, connected
from tailrace import Admin, Producer
from tailrace.dev.cluster import DevCluster, Plan
from tailrace.dev.state import Role

ACK_S_MAX: Final = 60.0
CREATE_MS_MAX: Final = 120_000

T = TypeVar("T")


class Tailrace:
    """Processes that run."""

    def __init__(self, dev: DevCluster) -> None:
        self._dev = dev
        self.folder = dev.folder

    @property
    def servers(self) -> str:
        return self._dev.state.bootstrap

    @property
    def pids(self) -> list[int]:
        return [each.identity.pid for each in self._dev.state.members if each.identity is not None]

    @property
    def broker_pids(self) -> list[int]:
        return [
            each.identity.pid
            for each in self._dev.state.members
            if each.role is Role.BROKER and each.identity is not None
        ]

    def create_topic(self, name: str, partitions: int = PARTITIONS) -> None:
        with Admin(self.servers) as admin:
            admin.create_topic(
                name,
                partitions=partitions,
                replication_factor=NODES,
                timeout_ms=CREATE_MS_MAX,
            )

    def delete_topic(self, name: str) -> None:
        with Admin(self.servers) as admin:
            admin.delete_topic(name)

    def until_acknowledged(self) -> float:
        self.create_topic("first")
        with Producer(self.servers) as producer:
            producer.send("first", b"x").result(ACK_S_MAX)
            return time.monotonic()

    @contextmanager
    def staged(self, fault: Fault, topic: str) -> Iterator[Harm]:
        with Admin(self.servers) as admin:
            admin.create_topic(topic, partitions=1, replication_factor=NODES)
        victims = self._ask(lambda cluster: _victims(cluster, fault, topic))
        identities = [self._dev.state.member(name).identity for name in victims]
        pids = [each.pid for each in identities if each is not None]

        def harm() -> None:
            for pid in pids:
                os.kill(pid, signal.SIGTERM if fault is Fault.SIGTERM else signal.SIGKILL)
            self._ask(lambda cluster: _until_gone(cluster, victims))

        try:
            yield harm
        finally:
            for name in victims:
                asyncio.run(self._dev.start(name))
            self._ask(lambda cluster: cluster.until_well(topic))

    def some_node(self) -> int:
        """Controllers are other processes here."""
        brokers = [each for each in self._dev.state.members if each.role is Role.BROKER]
        return brokers[0].number

    def kill_node(self, number: int) -> None:
        asyncio.run(self._dev.signal(f"broker-{number}", signal.SIGKILL))

    def _ask(self, question: Callable[[Cluster], Awaitable[T]]) -> T:
        async def ask() -> T:
            async with connected(self._dev) as cluster:
                return await question(cluster)

        return asyncio.run(ask())


@contextmanager
def running_tailrace(folder: Path) -> Iterator[Tailrace]:
    """Start it, and end it after the block."""
    dev = DevCluster(folder)
    asyncio.run(dev.up(Plan(brokers=NODES)))
    try:
        yield Tailrace(dev)
    finally:
        asyncio.run(dev.down(wipe=True))


def first_acknowledgement(folder: Path) -> dict[str, float]:
    """Seconds from nothing to the first acknowledgement."""
    began = time.monotonic()
    with running_tailrace(folder) as tailrace:
        return {"start_s": tailrace.until_acknowledged() - began}


async def _victims(cluster: Cluster, fault: Fault, topic: str) -> list[str]:
    if fault is Fault.FOLLOWER:
        return [await cluster.follower(topic, 0)]
    leader, controller = await cluster.leader(topic, 0), await cluster.controller()
    return {Fault.CONTROLLER: [controller], Fault.BOTH: [leader, controller]}.get(fault, [leader])


async def _until_gone(cluster: Cluster, names: list[str]) -> None:
    for name in names:
        await cluster.until_gone(name)
