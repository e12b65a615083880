"""Files of a data folder that are missing or older: nothing is lost without a word (F43, F44)."""

from __future__ import annotations

import asyncio
import shutil
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import pytest

from integration.cluster_harness import Cluster, connected, eventually, start, stop
from integration.file_walk import (
    OF_FOLDERS,
    OF_PARTITIONS,
    Case,
    Fault,
    FolderWalk,
    Outcome,
    PartitionWalk,
    Role,
)
from tailrace.client.operations import LeaderChoice
from tailrace.client.producer import ProducerCore
from tailrace.client.settings import ProducerSettings
from tailrace.clock import SystemClock
from tailrace.dev.cluster import DevCluster
from tailrace.dev.processes import Life
from tailrace.model import BrokerId, TopicPartition

pytestmark = pytest.mark.integration

TOPIC = "walk"
T0 = TopicPartition(TOPIC, 0)
VALUE = Random(43).randbytes(200)
"""Nothing shrinks it: a log of some thousand records has several segments."""
BATCH = 250
"""Records to a batch: several batches, so several segments."""
PATIENCE_S = 40.0


@pytest.fixture
def dev(tmp_path: Path) -> Iterator[DevCluster]:
    dev = start(tmp_path / "cluster", controllers=1, broker_lease_ttl_ms="1500")
    yield dev
    stop(dev)


@asynccontextmanager
async def a_topic(dev: DevCluster, **config: str) -> AsyncIterator[Cluster]:
    async with connected(dev) as cluster:
        settings = {name.replace("_", "."): value for name, value in config.items()}
        await cluster.admin.create_topic(
            TOPIC, partitions=1, replication_factor=3, config={"segment.bytes": "65536"} | settings
        )
        await cluster.until_well(TOPIC)
        yield cluster


async def write(cluster: Cluster, first: int, count: int) -> None:
    """Records with their numbers as keys, each of them acknowledged by all."""
    producer = ProducerCore(
        cluster.bootstrap,
        ProducerSettings(),
        network=cluster.network,
        clock=SystemClock(),
        rng=Random(),
    )
    try:
        for number in range(first, first + count):
            await producer.send(TOPIC, VALUE, key=b"%d" % number, partition=0)
            if number % BATCH == BATCH - 1:
                await producer.flush()
        await producer.flush()
    finally:
        await producer.close()


async def until(what: str, check: Callable[[], Awaitable[bool]]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not await check():
        assert time.monotonic() < end, f"never: {what}"
        await asyncio.sleep(0.1)


async def until_checkpointed() -> None:
    """High watermarks are written down every second or so."""
    await asyncio.sleep(6)


async def end(dev: DevCluster, name: str, number: signal.Signals = signal.SIGTERM) -> None:
    await dev.signal(name, number)
    member = dev.state.member(name)
    await eventually(f"{name} has ended", lambda: dev.life(member) is Life.EXITED)


def data(dev: DevCluster, broker: str) -> Path:
    (found,) = (each.parent for each in (dev.folder / broker).rglob("meta.properties"))
    return found


def brokers(dev: DevCluster) -> list[str]:
    return [each.name for each in dev.state.members if each.name.startswith("broker-")]


def segment_bytes(dev: DevCluster, broker: str) -> int:
    return sum(each.stat().st_size for each in (data(dev, broker) / str(T0)).glob("*.log"))


async def leader(cluster: Cluster) -> int:
    return (await cluster.admin.describe_topic(TOPIC)).partitions[0].leader


async def log_ends(cluster: Cluster) -> dict[int, tuple[int, int]]:
    found = await cluster.admin.describe_replicas([T0])
    return {each.broker: (each.log_start, each.log_end) for each in found[T0].values()}


@pytest.mark.parametrize(
    ("place", "marker", "told"),
    [
        (0, True, "the first segment begins at"),
        (3, True, "are missing"),
        (3, False, "are missing"),
    ],
    ids=["first", "middle", "middle-no-marker"],
)
async def test_f43_l3_a_segment_that_is_missing_costs_nothing(
    dev: DevCluster, place: int, marker: bool, told: str
) -> None:
    """Once the broker without the first led, and the others deleted their good copies.

    Without one in the middle it came back into the ISR as it was, and led.
    """
    async with a_topic(dev, min_insync_replicas="2") as cluster:
        await write(cluster, 0, 2_000)
        victim = await cluster.leader(TOPIC, 0)
        await end(dev, victim)
        segments = sorted((data(dev, victim) / str(T0)).glob("*.log"))
        assert len(segments) > place + 1
        for path in segments[place].parent.glob(f"{segments[place].stem}.*"):
            path.unlink()
        if not marker:
            (data(dev, victim) / "clean-shutdown").unlink()
        await dev.start(victim)
        await cluster.until_well(TOPIC)
        await cluster.admin.elect_leaders([T0])
        await until("it leads", lambda: _leads(cluster, int(victim[-1])))
        await write(cluster, 2_000, 10)
        ends = await log_ends(cluster)
        assert {start for start, _ in ends.values()} == {0}
        assert len({end for _, end in ends.values()}) == 1
        assert told in dev.log_path(victim).read_text()
        sizes = {name: segment_bytes(dev, name) for name in brokers(dev)}
        assert len(set(sizes.values())) == 1, sizes


async def _leads(cluster: Cluster, broker: int) -> bool:
    return await leader(cluster) == broker


async def test_f44_l4_an_older_copy_does_not_lead_over_what_others_know(dev: DevCluster) -> None:
    """The last to die comes back with an older copy and leads: a person decides, nobody cuts."""
    async with a_topic(dev, min_insync_replicas="1") as cluster:
        last = await cluster.leader(TOPIC, 0)
        names = brokers(dev)
        others = [each for each in names if each != last]
        await write(cluster, 0, 1_000)
        await until_checkpointed()
        await end(dev, last)
        copy = dev.folder / "copy"
        shutil.copytree(data(dev, last), copy)
        await dev.start(last)
        await cluster.until_well(TOPIC)
        await cluster.admin.elect_leaders([T0])
        await until("it leads again", lambda: _leads(cluster, int(last[-1])))
        await write(cluster, 1_000, 1_000)
        await until_checkpointed()
        for name in (*others, last):
            await end(dev, name, signal.SIGKILL)
            await asyncio.sleep(3)
        folder = data(dev, last)
        shutil.rmtree(folder)
        shutil.copytree(copy, folder)
        await dev.start(last)
        await asyncio.sleep(4)
        for name in others:
            await dev.start(name)
        await until("nobody leads", lambda: _leads(cluster, -1))
        await asyncio.sleep(3)
        assert await leader(cluster) == -1
        assert "is committed" in dev.log_path(last).read_text()
        for name in others:
            assert segment_bytes(dev, name) > 1_500 * len(VALUE), f"{name} has cut its log"
        best = BrokerId(int(others[0][-1]))
        await cluster.admin.elect_unclean([LeaderChoice(T0, best)])
        await cluster.until_well(TOPIC)
        ends = await log_ends(cluster)
        assert {log_end for _, log_end in ends.values()} == {2_000}
        assert (await cluster.admin.describe_topic(TOPIC)).partitions[0].loss


# One of them stands for both in `make test`.
DEATHS = [
    pytest.param(signal.SIGKILL, id="killed"),
    pytest.param(signal.SIGTERM, id="ended", marks=pytest.mark.by_hand),
]
ONE_IN_THREE = [
    Case(kind=kind, fault=fault, role=role)
    for kind in OF_PARTITIONS
    for fault in Fault
    for role in (Role.LEADER, Role.FOLLOWER)
]
LAST_IN_SYNC = [
    Case(kind=kind, fault=fault, role=Role.LAST) for kind in OF_PARTITIONS for fault in Fault
]
OF_THE_FOLDER = [
    Case(kind=kind, fault=fault, role=role)
    for role in (Role.LEADER, Role.LAST)
    for kind in OF_FOLDERS
    for fault in Fault
]


def _judged(outcomes: list[Outcome]) -> None:
    print("\n" + "\n".join(each.row() for each in outcomes))
    done = [each for each in outcomes if each.done]
    assert [each.row() for each in done if each.is_silent_loss] == []
    # Something was done to files of every kind: else nothing was shown.
    assert {each.case.kind for each in done} >= {each.case.kind for each in outcomes} - {
        "clean-shutdown"
    }


@pytest.mark.timeout(300)
@pytest.mark.parametrize("death", DEATHS)
async def test_f43_every_file_of_partitions_of_leaders_and_followers(
    dev: DevCluster, death: signal.Signals
) -> None:
    async with connected(dev) as cluster:
        walk = PartitionWalk(dev, cluster, Random(43), dev.folder / "before")
        _judged(await walk.of_one_in_three(ONE_IN_THREE, death))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("death", DEATHS)
async def test_f43_every_file_of_partitions_of_the_last_in_sync(
    dev: DevCluster, death: signal.Signals
) -> None:
    async with connected(dev) as cluster:
        walk = PartitionWalk(dev, cluster, Random(43), dev.folder / "before")
        _judged(await walk.of_the_last(LAST_IN_SYNC, death))


@pytest.mark.by_hand
@pytest.mark.timeout(3_000)
@pytest.mark.parametrize("death", DEATHS)
async def test_f43_every_file_of_the_folder(dev: DevCluster, death: signal.Signals) -> None:
    """The victim leads the first topic and follows in the second."""
    async with connected(dev) as cluster:
        walk = FolderWalk(dev, cluster, Random(43), dev.folder / "before")
        _judged(await walk.run(OF_THE_FOLDER, death))
