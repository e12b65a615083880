"""F28: a flaky network (loss as TCP shows it, and jitter) makes no storm of ISR changes.

Where the kernel has no netem, packets cannot be lost on purpose on a real interface. So all that
brokers, controllers and clients say to brokers goes through proxies that hold bytes back as TCP
does over such a line: each piece is late by some jitter, and one in twenty waits to be sent again.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from random import Random

import pytest

from integration.cluster_faults import loaded
from integration.cluster_harness import connected, now_ms, start, stop
from tailrace.dev.cluster import DevCluster
from tailrace.dev.state import DevError
from tailrace.transport.addresses import split_address

BROKERS = ("broker-1", "broker-2", "broker-3")
LOSS = 0.05
JITTER_S = 0.2
RETRANSMISSION_S = (0.2, 0.4)
UNDER_FIRE_S = 8.0
# A follower may leave and come back once or twice, of each partition; a storm would be hundreds.
CHANGES_MAX = 12
PAUSE_MS_MAX = 20_000

pytestmark = [pytest.mark.integration, pytest.mark.timeout(150)]


class Proxy:
    """Passes bytes on, in order, late while `is_bad`."""

    def __init__(self, target: str, rng: Random) -> None:
        self._host, self._port = split_address(target)
        self._rng = rng
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.is_bad = False
        self.pieces = 0

    async def start(self) -> str:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        # Who is cut off connects again at once: what was accepted a moment ago begins only now.
        await asyncio.sleep(0.05)
        while tasks := list(self._tasks):
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await asyncio.sleep(0.05)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        writers = [writer]
        with suppress(OSError, asyncio.CancelledError):
            there, onwards = await asyncio.open_connection(self._host, self._port)
            writers.append(onwards)
            ways = (self._pass_on(reader, onwards), self._pass_on(there, writer))
            tasks = [asyncio.ensure_future(each) for each in ways]
            try:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for each in tasks:
                    each.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
        for each_writer in writers:
            each_writer.close()
            with suppress(OSError):
                await each_writer.wait_closed()
        self._tasks.discard(task)

    async def _pass_on(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        loop, due = asyncio.get_running_loop(), 0.0
        while data := await source.read(1 << 16):
            self.pieces += 1
            if self.is_bad:
                late = self._rng.uniform(0, JITTER_S)
                if self._rng.random() < LOSS:
                    late += self._rng.uniform(*RETRANSMISSION_S)
                due = max(due, loop.time() + late)
                await asyncio.sleep(max(due - loop.time(), 0))
            target.write(data)
            await target.drain()


@pytest.fixture(scope="module")
def dev(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevCluster]:
    running = start(tmp_path_factory.mktemp("flaky"), broker_lease_ttl_ms="3000")
    yield running
    stop(running)


async def start_again(dev: DevCluster, name: str) -> None:
    """Threads of a process that was killed may hold its ports a moment longer than it lives."""
    for _ in range(100):
        try:
            return await dev.start(name)
        except DevError:
            await asyncio.sleep(0.1)
    return await dev.start(name)


@asynccontextmanager
async def behind_proxies(dev: DevCluster) -> AsyncIterator[list[Proxy]]:
    """Let everybody reach the brokers through proxies only."""
    proxies: list[Proxy] = []
    for name in BROKERS:
        member, addresses = dev.state.member(name), []
        for target in (member.address, member.second_address):
            proxies.append(Proxy(target, Random(28)))
            addresses.append(await proxies[-1].start())
        with (dev.folder / name / "broker.properties").open("a", encoding="utf-8") as file:
            file.write(f"advertised.listeners={addresses[0]}\n")
            file.write(f"advertised.link.listeners={addresses[1]}\n")
        await dev.signal(name, signal.SIGKILL)
        await start_again(dev, name)
    try:
        async with connected(dev) as cluster, asyncio.timeout(60):
            while len((await cluster.admin.describe_cluster()).brokers) < len(BROKERS):  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        yield proxies
    finally:
        for each in proxies:
            await each.close()


def changes(dev: DevCluster) -> int:
    """How often leaders have said that they changed an ISR."""
    logs = [dev.log_path(name).read_text(encoding="utf-8") for name in BROKERS]
    return sum(text.count(": ISR [") for text in logs)


async def test_f28_a_flaky_network_makes_no_isr_storm(dev: DevCluster) -> None:
    async with behind_proxies(dev) as proxies, loaded(dev) as (cluster, load):
        await cluster.until_well(load.topic)
        leads = await cluster.epochs(load.topic)
        before, begun_ms = changes(dev), now_ms()
        pieces = [each.pieces for each in proxies]
        for each in proxies:
            each.is_bad = True
        await asyncio.sleep(UNDER_FIRE_S)
        await load.flowing(since_ms=now_ms())
        for each in proxies:
            each.is_bad = False
        assert all(each.pieces > was for each, was in zip(proxies, pieces, strict=True))
        count, pause_ms = changes(dev) - before, load.pause_ms(begun_ms)
        print(f"\nF28: {count} ISR changes, longest wait {pause_ms:.0f} ms")
        assert count <= CHANGES_MAX
        assert pause_ms < PAUSE_MS_MAX
        assert await cluster.epochs(load.topic) == leads, "no leader was replaced"
        await cluster.until_well(load.topic)
