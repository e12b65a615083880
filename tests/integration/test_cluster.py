"""Real processes, real etcd, real signals, under a producer and readers that never rest.

Each fault is done TAILRACE_ROUNDS times (1 unless told; 20 for the proof), and nothing may be lost,
written twice or reordered per key. How long the producer had to wait is printed (`-s` shows it).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest

from integration.cluster_faults import (
    Fault,
    in_rounds,
    kill_controller,
    kill_follower,
    kill_leader,
    kill_leader_and_controller,
    loaded,
    stop_leader,
    terminate_leader,
)
from integration.cluster_harness import ROUNDS, now_ms, start, stop
from tailrace.dev.cluster import DevCluster
from tailrace.errors import TailraceError

LEASE_MS = 2_000
# A fault must be over in the eyes of the producer by then; benches look at real figures.
PAUSE_MS_MAX = 20_000

pytestmark = [pytest.mark.integration, pytest.mark.timeout(90 + 30 * ROUNDS)]


@pytest.fixture(scope="module")
def dev(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevCluster]:
    folder = tmp_path_factory.mktemp("cluster")
    running = start(folder, broker_lease_ttl_ms=str(LEASE_MS))
    yield running
    stop(running)


async def in_a_few_rounds(dev: DevCluster, what: str, fault: Fault) -> None:
    pauses = await in_rounds(dev, what, fault, ROUNDS)
    print(f"\n{pauses}")
    assert max(pauses.ms) < PAUSE_MS_MAX


async def test_kill_9_of_the_leader(dev: DevCluster) -> None:
    await in_a_few_rounds(dev, "kill -9 of a leader", kill_leader)


async def test_kill_9_of_a_follower(dev: DevCluster) -> None:
    await in_a_few_rounds(dev, "kill -9 of a follower", kill_follower)


async def test_kill_9_of_the_controller(dev: DevCluster) -> None:
    await in_a_few_rounds(dev, "kill -9 of the controller", kill_controller)


async def test_kill_9_of_leader_and_controller_at_once(dev: DevCluster) -> None:
    await in_a_few_rounds(dev, "kill -9 of leader and controller", kill_leader_and_controller)


async def test_sigterm_of_the_leader(dev: DevCluster) -> None:
    await in_a_few_rounds(dev, "SIGTERM of a leader", terminate_leader)


async def test_a_leader_paused_beyond_its_lease(dev: DevCluster) -> None:
    await in_a_few_rounds(dev, f"SIGSTOP of a leader, lease {LEASE_MS} ms", stop_leader)


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
