"""F29: clocks that jump by an hour, and producers whose time is far off, with real processes."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from integration import shifted_clock
from integration.cluster_faults import loaded
from integration.cluster_harness import Cluster, connected, now_ms, stop
from integration.shifted_clock import Clocks
from tailrace.client.producer import ProducerCore
from tailrace.client.reader import PartitionReader
from tailrace.client.settings import ProducerSettings
from tailrace.clock import SystemClock
from tailrace.dev.cluster import DevCluster, Plan
from tailrace.errors import InvalidTimestamp

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
PAUSE_MS_MAX = 20_000
DOUBT_S_MAX = 3.0
LEASE = {"broker.lease.ttl.ms": "3000"}

pytestmark = [pytest.mark.integration, pytest.mark.timeout(150)]


@pytest.fixture(scope="module")
def clocks(tmp_path_factory: pytest.TempPathFactory) -> Clocks:
    return Clocks(tmp_path_factory.mktemp("clocks"))


@pytest.fixture(scope="module")
def dev(clocks: Clocks, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevCluster]:
    running = DevCluster(tmp_path_factory.mktemp("cluster"), command_for=clocks.command_for)
    # Old data is looked for all the time, so that a clock that jumps would show.
    settings = {**LEASE, "log.retention.check.interval.ms": "200"}
    plan = Plan(
        brokers=3,
        controllers=2,
        broker_settings=settings,
        controller_settings=LEASE,
        etcd_fsync=False,
    )
    asyncio.run(running.up(plan))
    yield running
    stop(running)


async def first_offset(cluster: Cluster, topic: str, partition: int) -> int:
    reader = PartitionReader(
        cluster.bootstrap,
        topic,
        partition,
        "earliest",
        network=cluster.network,
        clock=SystemClock(),
        rng=Random(),
    )
    try:
        async with asyncio.timeout(30):
            fetched = await reader.next()
        assert fetched is not None
        return fetched.header.base_offset
    finally:
        await reader.close()


async def time_of(cluster: Cluster, broker: str, step_ms: int) -> int:
    """How far off the time is that a broker stamps records with: whether its clock did jump."""
    topic = f"stamped-by-{step_ms}"
    config = {"message.timestamp.type": "LogAppendTime"}
    await cluster.admin.create_topic(topic, partitions=3, config=config)
    numbers = range(3)
    (mine,) = [each for each in numbers if await cluster.leader(topic, each) == broker]
    clock = SystemClock()
    producer = ProducerCore(
        cluster.bootstrap, ProducerSettings(), network=cluster.network, clock=clock, rng=Random()
    )
    try:
        stored = await (await producer.send(topic, b"now", partition=mine))
        return stored.timestamp_ms - clock.wall_ms()
    finally:
        await producer.close()


@pytest.mark.parametrize("step_ms", [HOUR_MS, -HOUR_MS])
async def test_f29_a_clock_that_jumps_moves_no_leader_and_removes_nothing(
    dev: DevCluster, clocks: Clocks, step_ms: int
) -> None:
    """Leases and waits go by the monotonic clock, retention by a time that can be believed."""
    config = {"retention.ms": "600000"}
    async with loaded(dev, config) as (cluster, load):
        names = [await cluster.leader(load.topic, 0), await cluster.controller()]
        epochs, begun_ms = await cluster.epochs(load.topic), now_ms()
        for name in names:
            clocks.set(name, step_ms)
        try:
            assert abs(await time_of(cluster, names[0], step_ms) - step_ms) < HOUR_MS / 2
            # Longer than a lease, and many rounds of retention.
            await asyncio.sleep(5)
            await load.flowing(since_ms=now_ms())
            assert await cluster.epochs(load.topic) == epochs
            for partition in range(load.partitions):
                assert await first_offset(cluster, load.topic, partition) == 0
        finally:
            for name in names:
                clocks.set(name, 0)
        await load.flowing(since_ms=now_ms())
        pause_ms = load.pause_ms(begun_ms)
        print(f"\nF29 clock {step_ms // HOUR_MS:+} h: longest wait {pause_ms:.0f} ms")
        assert pause_ms < PAUSE_MS_MAX
        assert await cluster.epochs(load.topic) == epochs


async def doctor(dev: DevCluster, *, clock: Path) -> tuple[int, list[dict[str, str]]]:
    """What `tailrace doctor` finds on a machine whose clock is this one, and how it ends."""
    program = (sys.executable, shifted_clock.__file__, str(clock))
    process = await asyncio.create_subprocess_exec(
        *program,
        *("doctor", "--bootstrap", dev.state.bootstrap, "--json"),
        stdout=asyncio.subprocess.PIPE,
    )
    told, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, [json.loads(line) for line in told.splitlines()]


@pytest.mark.parametrize(
    ("name", "step_ms", "what", "severity"),
    [
        ("broker-2", HOUR_MS, "the clock of broker 2 is # s ahead of", "critical"),
        ("broker-3", -30_000, "the clock of broker 3 is # s behind", "warning"),
        ("laptop", -HOUR_MS, "the clock of this machine is # s behind", "warning"),
    ],
)
async def test_f29_the_doctor_says_whose_clock_is_off(
    dev: DevCluster, clocks: Clocks, name: str, step_ms: int, what: str, severity: str
) -> None:
    clocks.set("laptop", 0)
    _, well = await doctor(dev, clock=clocks.path("laptop"))
    assert ("ok", "clocks agree") in [(each["severity"], each["what"]) for each in well]
    clocks.set(name, step_ms)
    try:
        code, told = await doctor(dev, clock=clocks.path("laptop"))
    finally:
        clocks.set(name, 0)
    (found,) = [each for each in told if each["check"] == "clocks"]
    (off_s,) = re.findall(r"[\d,]+\.\d", found["what"])
    assert re.sub(r"[\d,]+\.\d", "#", found["what"]).startswith(what)
    # It is known to as much as the answer took.
    assert abs(float(off_s.replace(",", "")) - abs(step_ms) / 1_000) < DOUBT_S_MAX
    assert found["severity"] == severity
    assert "NTP" in found["do"]
    assert code == 1


async def test_f29_times_far_off_are_refused_or_replaced(dev: DevCluster) -> None:
    async with connected(dev) as cluster:
        strict = {
            "message.timestamp.before.max.ms": str(HOUR_MS),
            "message.timestamp.after.max.ms": str(HOUR_MS),
        }
        await cluster.admin.create_topic("strict", partitions=1, config=strict)
        await cluster.admin.create_topic("lax", partitions=1)
        append_time = {"message.timestamp.type": "LogAppendTime"}
        await cluster.admin.create_topic("stamped", partitions=1, config=append_time)
        clock = SystemClock()
        producer = ProducerCore(
            cluster.bootstrap,
            ProducerSettings(),
            network=cluster.network,
            clock=clock,
            rng=Random(),
        )
        wall_ms = clock.wall_ms()
        for far_ms in (wall_ms - 2 * HOUR_MS, wall_ms + 2 * HOUR_MS):
            with pytest.raises(InvalidTimestamp, match="strict"):
                await (await producer.send("strict", b"far", timestamp_ms=far_ms))
            # A topic that says nothing takes every time.
            await (await producer.send("lax", b"far", timestamp_ms=far_ms))
        stored = await (await producer.send("strict", b"now"))
        assert stored.offset == 0
        replaced = await (await producer.send("stamped", b"far", timestamp_ms=wall_ms + DAY_MS * 9))
        assert abs(replaced.timestamp_ms - clock.wall_ms()) < HOUR_MS
        await producer.close()
