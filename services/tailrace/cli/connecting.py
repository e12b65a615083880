"""How the client commands find a cluster and run against it.

The bootstrap addresses: as given, else those of the cluster that `tailrace dev` runs in its default
folder. This module makes the real ports; what is done with them is elsewhere. Each
client is imported when it is made: some need much that others do not.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Final, TypeVar

from tailrace.client.metadata import parse_bootstrap
from tailrace.clock import Clock, SystemClock
from tailrace.dev.folder import default_folder
from tailrace.dev.processes import Life, life_of
from tailrace.dev.state import DevError, Role, load
from tailrace.errors import InvalidConfig, UnknownTopic
from tailrace.process import loop_factory, run_command
from tailrace.transport.http2.network import Http2Network
from tailrace.transport.rpc import Network

if TYPE_CHECKING:
    from tailrace.client.admin import AdminCore
    from tailrace.client.consumer import ConsumerCore
    from tailrace.client.consumer_settings import ConsumerSettings
    from tailrace.client.producer import ProducerCore
    from tailrace.client.reader import PartitionReader
    from tailrace.client.settings import ProducerSettings

WAIT_TOPIC_S: Final = 1.0
"""How long a topic is waited for that no broker knows, unless --wait-topic says otherwise."""

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
        from tailrace.client.admin import AdminCore  # noqa: PLC0415

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
        from tailrace.client.producer import ProducerCore  # noqa: PLC0415

        return ProducerCore(
            self.bootstrap, settings, network=self.network, clock=self.clock, rng=self.rng
        )

    def consumer(self, settings: ConsumerSettings) -> ConsumerCore:
        from tailrace.client.consumer import ConsumerCore  # noqa: PLC0415

        return ConsumerCore(
            self.bootstrap, settings, network=self.network, clock=self.clock, rng=self.rng
        )

    def reader(self, topic: str, partition: int, offset: int | str) -> PartitionReader:
        from tailrace.client.reader import PartitionReader  # noqa: PLC0415

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


def connection(bootstrap: str | None, timeout_s: float) -> Connection:
    """InvalidConfig when no address is given and no dev cluster is there."""
    addresses = parse_bootstrap(bootstrap or _of_dev_cluster(os.environ))
    return Connection(addresses, Http2Network(), SystemClock(), Random(), int(timeout_s * 1000))


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run one command. Ctrl-C and SIGTERM cancel it, and it ends in order."""
    return run_command(work, loop_factory())


async def partitions_of(
    client: ConsumerCore | ProducerCore, topic: str, timeout_ms: int | None = None
) -> int:
    """How many partitions a topic has; UnknownTopic says what can be done."""
    try:
        return await client.partitions_of(topic, timeout_ms=timeout_ms)
    except UnknownTopic as error:
        raise UnknownTopic(
            f"{error}: `tailrace topics create {topic}` does, and --wait-topic SECONDS waits "
            "for one that somebody else makes"
        ) from None


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
