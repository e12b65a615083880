"""Real processes, real etcd, real signals, under a producer and readers that never rest.

Each fault is done TAILRACE_ROUNDS times (1 unless told; 20 for the proof), and nothing may be lost,
written twice or reordered per key. How long the producer had to wait is printed (`-s` shows it).
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from itertools import count

import pytest

from integration.cluster_harness import (
    ROUNDS,
    Cluster,
    Load,
    Pauses,
    connected,
    now_ms,
    start,
    stop,
)
from tailrace.dev.cluster import DevCluster
from tailrace.errors import TailraceError

LEASE_MS = 2_000
PARTITIONS = 3
# A fault must be over in the eyes of the producer by then; benches look at real figures.
PAUSE_MS_MAX = 20_000

pytestmark = [pytest.mark.integration, pytest.mark.timeout(90 + 30 * ROUNDS)]

_topics = count()


@pytest.fixture(scope="module")
def dev(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevCluster]:
    folder = tmp_path_factory.mktemp("cluster")
    running = start(folder, broker_lease_ttl_ms=str(LEASE_MS))
    yield running
    stop(running)


@asynccontextmanager
async def loaded(dev: DevCluster) -> AsyncIterator[tuple[Cluster, Load]]:
    """A topic of its own for each test, with a load on it that is checked at the end."""
    topic = f"records-{next(_topics)}"
    async with connected(dev) as cluster:
        try:
            await cluster.admin.create_topic(topic, partitions=PARTITIONS)
            load = Load(cluster, topic, PARTITIONS)
            async with load.running():
                await load.flowing(since_ms=now_ms())
                yield cluster, load
        except BaseException:
            print(cluster.last_words())
            raise


async def in_rounds(
    dev: DevCluster,
    what: str,
    fault: Callable[[Cluster, Load], Awaitable[Callable[[], Awaitable[None]]]],
) -> None:
    """Do a fault, wait until records flow again, heal it, wait until all is well; repeat."""
    pauses = Pauses(what)
    async with loaded(dev) as (cluster, load):
        for _ in range(ROUNDS):
            begun_ms = now_ms()
            heal = await fault(cluster, load)
            await load.flowing(since_ms=now_ms())
            pauses.ms.append(load.pause_ms(begun_ms))
            await heal()
            await cluster.until_well(load.topic)
            await load.flowing(since_ms=now_ms())
    print(f"\n{pauses}")
    assert max(pauses.ms) < PAUSE_MS_MAX


def restarting(cluster: Cluster, *names: str) -> Callable[[], Awaitable[None]]:
    async def heal() -> None:
        for name in names:
            await cluster.dev.start(name)

    return heal


async def test_kill_9_of_the_leader(dev: DevCluster) -> None:
    async def fault(cluster: Cluster, load: Load) -> Callable[[], Awaitable[None]]:
        leader = await cluster.leader(load.topic, 0)
        await cluster.kill(leader)
        return restarting(cluster, leader)

    await in_rounds(dev, "kill -9 of a leader", fault)


async def test_kill_9_of_a_follower(dev: DevCluster) -> None:
    async def fault(cluster: Cluster, load: Load) -> Callable[[], Awaitable[None]]:
        follower = await cluster.follower(load.topic, 0)
        await cluster.kill(follower)
        return restarting(cluster, follower)

    await in_rounds(dev, "kill -9 of a follower", fault)


async def test_kill_9_of_the_controller(dev: DevCluster) -> None:
    async def fault(cluster: Cluster, load: Load) -> Callable[[], Awaitable[None]]:
        controller = await cluster.controller()
        await cluster.kill(controller)
        return restarting(cluster, controller)

    await in_rounds(dev, "kill -9 of the controller", fault)


async def test_kill_9_of_leader_and_controller_at_once(dev: DevCluster) -> None:
    async def fault(cluster: Cluster, load: Load) -> Callable[[], Awaitable[None]]:
        both = (await cluster.leader(load.topic, 0), await cluster.controller())
        await cluster.kill(*both)
        return restarting(cluster, *both)

    await in_rounds(dev, "kill -9 of leader and controller", fault)


async def test_sigterm_of_the_leader(dev: DevCluster) -> None:
    async def fault(cluster: Cluster, load: Load) -> Callable[[], Awaitable[None]]:
        leader = await cluster.leader(load.topic, 0)
        await cluster.dev.signal(leader, signal.SIGTERM)
        await cluster.until_gone(leader)
        return restarting(cluster, leader)

    await in_rounds(dev, "SIGTERM of a leader", fault)


async def test_a_leader_paused_beyond_its_lease(dev: DevCluster) -> None:
    async def fault(cluster: Cluster, load: Load) -> Callable[[], Awaitable[None]]:
        leader = await cluster.leader(load.topic, 0)
        await cluster.dev.signal(leader, signal.SIGSTOP)

        async def heal() -> None:
            await cluster.dev.signal(leader, signal.SIGCONT)

        return heal

    await in_rounds(dev, f"SIGSTOP of a leader, lease {LEASE_MS} ms", fault)


async def test_f18_etcd_stopped(dev: DevCluster) -> None:
    """Produce and fetch go on, changes fail with a reason, and nothing is re-elected after."""
    outage_s = 60.0 if ROUNDS >= 20 else 3 * LEASE_MS / 1000
    async with loaded(dev) as (cluster, load):
        epochs = await cluster.epochs(load.topic)
        begun_ms = now_ms()
        await cluster.kill("etcd")
        end = time.monotonic() + outage_s
        asked = time.monotonic()
        with pytest.raises(TailraceError, match="etcd") as refused:
            await cluster.admin.create_topic("too-late", partitions=1, timeout_ms=6_000)
        assert time.monotonic() - asked < 7.0
        print(f"\netcd stopped: creating a topic: {refused.value}")
        await asyncio.sleep(max(end - time.monotonic(), 0))
        await load.flowing(since_ms=now_ms())
        seen = sum(map(len, load.seen.values()))
        await cluster.dev.start("etcd")
        # Longer than every lease: whoever was to be missed would have been missed by then.
        await asyncio.sleep(4.5)
        assert sum(map(len, load.seen.values())) > seen > 0
        assert await cluster.epochs(load.topic) == epochs
        await cluster.admin.create_topic(f"after-{load.topic}", partitions=1)
        print(f"etcd stopped for {outage_s} s: longest wait {load.pause_ms(begun_ms):.0f} ms")
