"""How the client commands find a cluster and run against it.

The bootstrap addresses: as given, else those of the cluster that `tailrace dev` runs in its default
folder. This module makes the real ports; what is done with them is elsewhere.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Final, TypeVar

from tailrace.client.admin import AdminCore
from tailrace.client.consumer import ConsumerCore
from tailrace.client.consumer_settings import ConsumerSettings
from tailrace.client.metadata import parse_bootstrap
from tailrace.client.producer import ProducerCore
from tailrace.client.reader import PartitionReader
from tailrace.client.settings import ProducerSettings
from tailrace.clock import Clock, SystemClock
from tailrace.dev.folder import default_folder
from tailrace.dev.processes import Life, life_of
from tailrace.dev.state import DevError, Role, load
from tailrace.errors import InvalidConfig
from tailrace.process import loop_factory
from tailrace.transport.grpc_network import GrpcNetwork
from tailrace.transport.rpc import Network

TIMEOUT_S: Final = 15.0

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Connection:
    """The ports of one command, and the cluster that it is for."""

    bootstrap: tuple[str, ...]
    network: Network
    clock: Clock
    rng: Random
    timeout_ms: int

    @asynccontextmanager
    async def admin(self) -> AsyncIterator[AdminCore]:
        admin = AdminCore(
            self.bootstrap,
            network=self.network,
            clock=self.clock,
            rng=self.rng,
            request_timeout_ms=self.timeout_ms,
        )
        try:
            yield admin
        finally:
            await admin.close()

    def producer(self, settings: ProducerSettings) -> ProducerCore:
        return ProducerCore(
            self.bootstrap, settings, network=self.network, clock=self.clock, rng=self.rng
        )

    def consumer(self, settings: ConsumerSettings) -> ConsumerCore:
        return ConsumerCore(
            self.bootstrap, settings, network=self.network, clock=self.clock, rng=self.rng
        )

    def reader(self, topic: str, partition: int, offset: int | str) -> PartitionReader:
        return PartitionReader(
            self.bootstrap,
            topic,
            partition,
            offset,
            network=self.network,
            clock=self.clock,
            rng=self.rng,
            topic_timeout_ms=self.timeout_ms,
        )


def connection(bootstrap: str | None, timeout_s: float = TIMEOUT_S) -> Connection:
    """InvalidConfig when no address is given and no dev cluster is there."""
    addresses = parse_bootstrap(bootstrap or _of_dev_cluster(os.environ))
    return Connection(addresses, GrpcNetwork(), SystemClock(), Random(), int(timeout_s * 1000))


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run one command. Ctrl-C cancels it, and comes out as KeyboardInterrupt."""
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(work)


def _of_dev_cluster(environment: Mapping[str, str]) -> str:
    folder = default_folder(environment)
    running = _running_brokers(folder)
    if not running:
        raise InvalidConfig(
            "which cluster? Give --bootstrap HOST:PORT (or set TAILRACE_BOOTSTRAP); "
            f"no cluster of `tailrace dev` runs in {folder}"
        )
    return ",".join(running)


def _running_brokers(folder: Path) -> list[str]:
    try:
        state = load(folder)
    except DevError:
        return []
    return [
        each.address
        for each in (state.members if state else ())
        if each.role is Role.BROKER
        and each.identity is not None
        and life_of(each.identity) is not Life.EXITED
    ]
