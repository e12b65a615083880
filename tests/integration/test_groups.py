"""Groups on real processes: a coordinator killed under load, one that sleeps beyond its lease.

How long commits had to wait is printed (`-s` shows it).
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest

from integration.cluster_harness import Cluster, connected, eventually, now_ms, start, stop
from tailrace.aio import Consumer, Producer
from tailrace.client.coordinator import CoordinatorClient
from tailrace.client.metadata import MetadataWatcher
from tailrace.clock import SystemClock
from tailrace.coordinator.appender import Appender
from tailrace.coordinator.journal import Journal
from tailrace.coordinator.records import PositionStored, encode
from tailrace.dev.cluster import DevCluster
from tailrace.errors import ProducerFenced, TailraceError
from tailrace.model import TopicPartition, shard_of
from tailrace.runtime import Tasks
from tailrace.transport import methods
from tailrace.transport.wire import code_name, raise_for
from tailrace.v1 import group_pb2 as pb

TOPIC = "orders"
LEASE_MS = 2_000
GROUPS = [f"group-{number}" for number in range(20)]
# Generous: the machine may be busy. What is measured is printed.
GAP_MS_MAX = 20_000

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def dev(memory_folder: Path) -> Iterator[DevCluster]:
    running = start(
        memory_folder / "groups",
        controllers=1,
        coordinators=2,
        coordinator_settings={"coordinator.lease.ms": str(LEASE_MS)},
    )
    yield running
    stop(running)


class Committer:
    """Commits one position after the other for each of many groups, and knows what was answered."""

    def __init__(self, cluster: Cluster) -> None:
        self.metadata = MetadataWatcher(cluster.network, cluster.bootstrap, Random())
        self._cluster = cluster
        self.acknowledged: dict[str, int] = {}
        self.waits_ms: list[float] = []
        self.stopped = False

    def client(self, group: str) -> CoordinatorClient:
        return CoordinatorClient(
            group,
            self.metadata,
            network=self._cluster.network,
            clock=SystemClock(),
            rng=Random(),
        )

    async def commit(self, group: str, offset: int) -> None:
        began_ms = now_ms()
        answer = await self.client(group).call(
            methods.GROUP_COMMIT_OFFSETS,
            pb.CommitOffsetsRequest(
                group=group,
                generation=-1,
                offsets=[pb.OffsetToCommit(topic=TOPIC, offset=offset, leader_epoch=-1)],
            ),
            timeout_ms=60_000,
        )
        raise_for(answer.error, answer.message)
        raise_for(answer.partitions[0].error, answer.partitions[0].message)
        self.waits_ms.append(now_ms() - began_ms)
        self.acknowledged[group] = offset

    async def position(self, group: str) -> int:
        answer = await self.client(group).call(
            methods.GROUP_FETCH_OFFSETS, pb.FetchOffsetsRequest(group=group), timeout_ms=60_000
        )
        raise_for(answer.error, answer.message)
        return answer.offsets[0].offset

    async def run(self, group: str) -> None:
        offset = self.acknowledged.get(group, 0)
        while not self.stopped:
            offset += 1
            await self.commit(group, offset)
            await asyncio.sleep(0.05)

    def owner(self, group: str) -> str:
        """The process that owns the group, as the metadata has it; empty while nobody does."""
        shards = self.metadata.picture.group_shards
        number = shards[shard_of(group, len(shards))][0] if shards else -1
        return f"coordinator-{number}" if number >= 0 else ""


@asynccontextmanager
async def committing(dev: DevCluster) -> AsyncIterator[tuple[Cluster, Committer]]:
    async with connected(dev) as cluster:
        committer = Committer(cluster)
        tasks = Tasks(lambda _, __: None)
        tasks.spawn("metadata", committer.metadata.run())
        try:
            if TOPIC not in await cluster.admin.list_topics():
                await cluster.admin.create_topic(TOPIC, partitions=4)
            for group in GROUPS:
                await committer.commit(group, 1)
            yield cluster, committer
        finally:
            await tasks.close()


async def test_a_coordinator_is_killed_under_load(dev: DevCluster) -> None:
    async with committing(dev) as (cluster, committer):
        running = [asyncio.ensure_future(committer.run(group)) for group in GROUPS]
        await asyncio.sleep(1.5)
        committer.waits_ms.clear()
        victim = committer.owner(GROUPS[0])
        at_the_kill = dict(committer.acknowledged)
        await cluster.kill(victim)
        await eventually(
            "all groups go on",
            lambda: all(committer.acknowledged[g] > at_the_kill[g] + 5 for g in GROUPS),
        )
        committer.stopped = True
        await asyncio.gather(*running)
        longest_ms = max(committer.waits_ms)
        print(f"\ncoordinator killed: the longest commit took {longest_ms:.0f} ms")
        assert longest_ms < GAP_MS_MAX
        for group in GROUPS:
            assert await committer.position(group) == committer.acknowledged[group]
        await dev.start(victim)
        await eventually(
            "both have shards again", lambda: {committer.owner(g) for g in GROUPS} > {victim}
        )
        for group in GROUPS:
            assert await committer.position(group) == committer.acknowledged[group]


async def test_one_that_slept_beyond_its_lease_is_refused(dev: DevCluster) -> None:
    async with committing(dev) as (cluster, committer):
        group = GROUPS[0]
        sleeper = committer.owner(group)
        shards = committer.metadata.picture.group_shards
        shard = shard_of(group, len(shards))
        old_owner, old_epoch = shards[shard]
        address = committer.metadata.picture.coordinators[old_owner]
        await dev.signal(sleeper, signal.SIGSTOP)
        began_ms = now_ms()
        await committer.commit(group, 100)
        print(f"\ncoordinator asleep: the commit took {now_ms() - began_ms:.0f} ms")
        assert committer.owner(group) != sleeper
        # A commit waits in its socket until it wakes up, and then comes before all news.
        channel = cluster.network.channel(address)
        late = asyncio.ensure_future(_call(channel, group, 7))
        await asyncio.sleep(0.5)
        await dev.signal(sleeper, signal.SIGCONT)
        assert await late in {"NOT_COORDINATOR", "UNREACHABLE"}
        await channel.close()
        assert await committer.position(group) == 100
        # Whatever it may believe: the log does not take what it writes.
        refused = await _write_as(cluster, committer.metadata, shard, old_owner, old_epoch)
        assert isinstance(refused, ProducerFenced)
        assert await committer.position(group) == 100


async def _call(channel: Any, group: str, offset: int) -> str:
    request = pb.CommitOffsetsRequest(
        group=group, generation=-1, offsets=[pb.OffsetToCommit(topic=TOPIC, offset=offset)]
    )
    try:
        answer = await channel.call(methods.GROUP_COMMIT_OFFSETS, request, timeout_ms=30_000)
    except TailraceError as error:
        return error.code
    return code_name(answer.error)


async def _write_as(
    cluster: Cluster, metadata: MetadataWatcher, shard: int, owner: int, epoch: int
) -> TailraceError:
    """What the brokers say to the owner of this epoch."""
    told: asyncio.Future[TailraceError] = asyncio.get_running_loop().create_future()
    tasks = Tasks(lambda _, __: None)
    appender = Appender(
        metadata,
        network=cluster.network,
        clock=SystemClock(),
        rng=Random(),
        tasks=tasks,
        on_refused=lambda _, error: told.set_result(error),
    )
    journal = Journal(shard, owner, epoch, on_ready=appender.submit)
    stolen = encode(PositionStored("group-0", TopicPartition(TOPIC, 0), None))
    journal.write([stolen], lambda _, __: None, now_ms=0)
    try:
        async with asyncio.timeout(30):
            return await told
    finally:
        await tasks.close()


async def test_a_consumer_goes_on_when_its_coordinator_is_killed(dev: DevCluster) -> None:
    async with committing(dev) as (cluster, committer):
        bootstrap = ",".join(cluster.bootstrap)
        async with Producer(bootstrap_servers=bootstrap) as producer:
            for number in range(400):
                await producer.send(TOPIC, b"%d" % number)
            await producer.flush()
        consumer = Consumer(
            TOPIC,
            bootstrap_servers=bootstrap,
            group_id="readers",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        )
        seen: set[tuple[int, int]] = set()
        longest_ms = 0.0
        try:
            victim = ""
            while len(seen) < 400:
                for record in await consumer.poll(timeout=1.0, max_records=20):
                    seen.add((record.partition, record.offset))
                began_ms = now_ms()
                await consumer.commit()
                longest_ms = max(longest_ms, now_ms() - began_ms)
                if len(seen) >= 100 and not victim:
                    victim = committer.owner("readers")
                    await cluster.kill(victim)
        finally:
            await consumer.close()
        print(f"\nconsumer: the longest commit took {longest_ms:.0f} ms")
        assert longest_ms < GAP_MS_MAX
        await dev.start(victim)
        found = await cluster.admin.describe_group("readers")
        assert found.state == "Empty", "closing leaves the group"
        assert sum(each.offset for each in found.positions) == 400
        assert found.lag == 0
