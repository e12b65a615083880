"""The faults that a cluster of real processes is put through, one at a time, in rounds.

The integration tests do a few rounds of each to see that nothing is lost; the failover bench does
many and reports how long the producer had to wait.
"""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from itertools import count
from typing import TypeAlias

from integration.cluster_harness import Cluster, Load, Pauses, connected, now_ms
from tailrace.dev.cluster import DevCluster

PARTITIONS = 3

Heal: TypeAlias = Callable[[], Awaitable[None]]
Fault: TypeAlias = Callable[[Cluster, Load], Awaitable[Heal]]
"""Does its harm, and returns what undoes it."""

_topics = count()


@asynccontextmanager
async def loaded(
    dev: DevCluster, config: Mapping[str, str] | None = None
) -> AsyncIterator[tuple[Cluster, Load]]:
    """A topic of its own for each fault, with a load on it that is checked at the end."""
    topic = f"records-{next(_topics)}"
    async with connected(dev) as cluster:
        try:
            await cluster.admin.create_topic(topic, partitions=PARTITIONS, config=config)
            load = Load(cluster, topic, PARTITIONS)
            async with load.running():
                await load.flowing(since_ms=now_ms())
                yield cluster, load
        except BaseException:
            print(cluster.last_words())
            raise


async def in_rounds(dev: DevCluster, what: str, fault: Fault, rounds: int) -> Pauses:
    """Do a fault, wait until records flow again, heal it, wait until all is well; repeat."""
    pauses = Pauses(what)
    async with loaded(dev) as (cluster, load):
        for _ in range(rounds):
            begun_ms = now_ms()
            heal = await fault(cluster, load)
            await load.flowing(since_ms=now_ms())
            pauses.ms.append(load.pause_ms(begun_ms))
            await heal()
            await cluster.until_well(load.topic)
            await load.flowing(since_ms=now_ms())
    pauses.records = len(load.sent)
    return pauses


async def kill_leader(cluster: Cluster, load: Load) -> Heal:
    leader = await cluster.leader(load.topic, 0)
    await cluster.kill(leader)
    return _restarting(cluster, leader)


async def kill_follower(cluster: Cluster, load: Load) -> Heal:
    follower = await cluster.follower(load.topic, 0)
    await cluster.kill(follower)
    return _restarting(cluster, follower)


async def kill_controller(cluster: Cluster, load: Load) -> Heal:
    controller = await cluster.controller()
    await cluster.kill(controller)
    return _restarting(cluster, controller)


async def kill_leader_and_controller(cluster: Cluster, load: Load) -> Heal:
    both = (await cluster.leader(load.topic, 0), await cluster.controller())
    await cluster.kill(*both)
    return _restarting(cluster, *both)


async def terminate_leader(cluster: Cluster, load: Load) -> Heal:
    leader = await cluster.leader(load.topic, 0)
    await cluster.dev.signal(leader, signal.SIGTERM)
    await cluster.until_gone(leader)
    return _restarting(cluster, leader)


async def stop_leader(cluster: Cluster, load: Load) -> Heal:
    """Beyond its lease: records flow again only once another one leads."""
    leader = await cluster.leader(load.topic, 0)
    await cluster.dev.signal(leader, signal.SIGSTOP)

    async def heal() -> None:
        await cluster.dev.signal(leader, signal.SIGCONT)

    return heal


def _restarting(cluster: Cluster, *names: str) -> Heal:
    async def heal() -> None:
        for name in names:
            await cluster.dev.start(name)

    return heal
