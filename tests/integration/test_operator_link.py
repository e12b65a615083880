"""What the operator asks of a cluster when brokers are to go, with real processes."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from integration.cluster_harness import Cluster, connected, start, stop
from tailrace_operator.clusters import ClusterLink
from tailrace_operator.reconcile import SpreadFailed

pytestmark = pytest.mark.integration

PARTITIONS = 8
EMPTIED_S = 60.0


@pytest.mark.timeout(180)
def test_who_leaves_holds_nothing_and_gets_nothing(tmp_path: Path) -> None:
    dev = start(tmp_path / "cluster", brokers=5)

    async def play() -> None:
        async with connected(dev) as cluster:
            link = ClusterLink(cluster.bootstrap[0])
            try:
                await _leave(cluster, link)
            finally:
                await link.close()

    try:
        asyncio.run(play())
    finally:
        stop(dev)


async def _leave(cluster: Cluster, link: ClusterLink) -> None:
    await cluster.admin.create_topic("orders", partitions=PARTITIONS, replication_factor=3)
    await cluster.until_well("orders")
    with pytest.raises(SpreadFailed):
        await link.spread([1, 2], throttle_bytes=0)
    # What is refused changes nothing: all of them lead on.
    assert (await link.health())[0].cordoned == frozenset()
    await cluster.kill("broker-4")
    async with asyncio.timeout(EMPTIED_S):
        while 4 in (await link.health())[0].brokers:  # noqa: ASYNC110 - nobody tells.
            await asyncio.sleep(0.2)
    # It is away, and what it holds is not elsewhere yet.
    assert (await link.health())[1] == {1, 2, 3, 4, 5}
    await link.spread([1, 2, 3], throttle_bytes=0)
    await _until_held_by(link, frozenset({1, 2, 3}))
    health, _ = await link.health()
    assert health.cordoned == {5}
    made = await cluster.admin.create_topic("late", partitions=PARTITIONS, replication_factor=3)
    assert {each for part in made.partitions for each in part.replicas} == {1, 2, 3}
    # They are to stay after all.
    await link.spread([1, 2, 3, 5], throttle_bytes=0)
    assert (await link.health())[0].cordoned == frozenset()
    await _until_held_by(link, frozenset({1, 2, 3, 5}))
    await link.spread([1, 2, 3], throttle_bytes=0)
    await link.uncordon([5])
    assert (await link.health())[0].cordoned == frozenset()


async def _until_held_by(link: ClusterLink, brokers: frozenset[int]) -> None:
    async with asyncio.timeout(EMPTIED_S):
        while True:
            health, holding = await link.health()
            if holding == brokers and not health.moving:
                return
            await asyncio.sleep(0.2)
