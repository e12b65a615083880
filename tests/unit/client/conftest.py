"""A model cluster and a client's process on simulated wires."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from random import Random
from typing import Any

import pytest

from simulation.loop import LoopClock, Process, SimLoop
from simulation.model_cluster import ModelCluster
from simulation.network import SimHost, SimNetwork
from tailrace.client.admin import AdminCore
from tailrace.client.consumer import ConsumerCore
from tailrace.client.consumer_settings import ConsumerSettings
from tailrace.client.producer import ProducerCore
from tailrace.client.reader import PartitionReader
from tailrace.client.settings import ProducerSettings


@dataclass
class World:
    """Where a test happens: brokers b0 to b2 and controller c100, and a client."""

    loop: SimLoop
    network: SimNetwork
    cluster: ModelCluster
    processes: dict[str, Process]
    host: SimHost
    clock: LoopClock
    rng: Random

    def producer(self, **settings: Any) -> ProducerCore:
        return ProducerCore(
            self.cluster.bootstrap,
            ProducerSettings(**settings),
            network=self.host,
            clock=self.clock,
            rng=self.rng,
        )

    def admin(self, **options: Any) -> AdminCore:
        return AdminCore(
            self.cluster.bootstrap,
            network=self.host,
            clock=self.clock,
            rng=self.rng,
            **options,
        )

    def consumer(self, *, host: SimHost | None = None, **settings: Any) -> ConsumerCore:
        ports = {
            name: settings.pop(name)
            for name in ("key_deserializer", "value_deserializer", "interceptors")
            if name in settings
        }
        return ConsumerCore(
            self.cluster.bootstrap,
            ConsumerSettings(**settings),
            network=host or self.host,
            clock=self.clock,
            rng=self.rng,
            **ports,
        )

    def reader(self, topic: str, number: int, offset: int | str, **options: Any) -> PartitionReader:
        return PartitionReader(
            self.cluster.bootstrap,
            topic,
            number,
            offset,
            network=self.host,
            clock=self.clock,
            rng=self.rng,
            **options,
        )


Main = Callable[[World], Coroutine[Any, Any, None]]
Simulate = Callable[..., None]


@pytest.fixture
def simulate() -> Simulate:
    """Run `async (world)` in virtual time."""

    def play(main: Main, *, seed: int = 1) -> None:
        async def outer(loop: SimLoop) -> None:
            network = SimNetwork(loop)
            processes: dict[str, Process] = {}

            def host(name: str) -> SimHost:
                processes[name] = loop.process(name)
                return network.host(name, processes[name])

            cluster = ModelCluster(host)
            await cluster.start()
            client = host("client")
            world = World(
                loop,
                network,
                cluster,
                processes,
                client,
                LoopClock(loop),
                loop.fork_rng("client"),
            )
            await asyncio.wait_for(processes["client"].spawn("test", main(world)), 3_600)
            assert cluster.problems == []
            assert cluster.coordinators.problems == []

        SimLoop(seed).run(outer)

    return play
