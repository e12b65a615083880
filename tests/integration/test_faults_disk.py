"""F26, F27, F39: full, slow, cold and broken disks under real brokers, with a load that is checked.

Each broker's folder is a small disk of its own (tmpfs) where the machine allows it, and it is
filled for real. Slow, cold and broken disks are made by `debug.disk.faults`.
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from integration.cluster_faults import PARTITIONS, loaded
from integration.cluster_harness import Cluster, Load, eventually, now_ms, start, stop
from tailrace.client.producer import ProducerCore
from tailrace.client.reader import PartitionReader
from tailrace.client.settings import ProducerSettings
from tailrace.clock import SystemClock
from tailrace.dev.cluster import DevCluster
from tailrace.errors import DeliveryTimedOut, DiskFull

MIB = 1 << 20
DISK_MIB = 64
MIN_FREE_MIB = 16
NAMES = ("broker-1", "broker-2", "broker-3")
# What a cold reader reads: a batch in each segment, and how long the disk takes for one.
BACKLOG_BYTES = 256 << 10
BACKLOG_SEGMENTS = 8
BACKLOG_READ = 3
COLD_MS = 500
# Whatever a fault does to the producer is over by then.
PAUSE_MS_MAX = 20_000

pytestmark = [pytest.mark.integration, pytest.mark.timeout(150)]


class Disks:
    """The disks of the brokers of one cluster."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._mounted: list[Path] = []
        self.faults = folder / "faults"
        self.faults.touch()
        for name in NAMES:
            path = self.path(name)
            path.mkdir(parents=True)
            command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m", "tailrace", str(path)]
            if subprocess.run(command, capture_output=True, check=False).returncode == 0:
                self._mounted.append(path)

    def path(self, name: str) -> Path:
        return self._folder / name / "data"

    def fill(self, *names: str) -> None:
        """Leave next to nothing: less than half of what must be free."""
        for name in names:
            path = self.path(name)
            if path not in self._mounted:
                self.disturb(*(f"full {self.path(each)}" for each in names))
                return
            left = shutil.disk_usage(path).free - MIN_FREE_MIB * MIB // 4
            with (path / "ballast").open("wb") as file:
                for _ in range(left // MIB):
                    file.write(bytes(MIB))

    def free(self) -> None:
        self.disturb()
        for name in NAMES:
            (self.path(name) / "ballast").unlink(missing_ok=True)

    def disturb(self, *lines: str) -> None:
        self.faults.write_text("\n".join(lines) + "\n", encoding="utf-8")

    def close(self) -> None:
        for path in self._mounted:
            subprocess.run(["umount", "-l", str(path)], capture_output=True, check=False)


@pytest.fixture(scope="module")
def disks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Disks]:
    made = Disks(tmp_path_factory.mktemp("disks"))
    yield made
    made.close()


@pytest.fixture(scope="module")
def dev(disks: Disks) -> Iterator[DevCluster]:
    running = start(
        disks.faults.parent,
        broker_lease_ttl_ms="3000",
        replica_lag_time_max_ms="2000",
        log_dir_min_free_bytes=str(MIN_FREE_MIB * MIB),
        disk_probe_interval_ms="200",
        disk_slow_ms="400",
        flush_interval_ms="2000",
        disk_slow_recovery_ms="3000",
        debug_disk_faults=str(disks.faults),
    )
    yield running
    stop(running)


async def said(cluster: Cluster, name: str, text: str, since: int = 0) -> None:
    path = cluster.dev.log_path(name)
    await eventually(f"{name} says {text!r}", lambda: text in path.read_text()[since:])


async def leaders(cluster: Cluster, topic: str) -> list[str]:
    described = await cluster.admin.describe_topic(topic)
    return [f"broker-{each.leader}" for each in described.partitions]


async def until_relieved(cluster: Cluster, topic: str, name: str) -> None:
    async with asyncio.timeout(30):
        while name in await leaders(cluster, topic):  # noqa: ASYNC110 - nobody tells.
            await asyncio.sleep(0.05)


async def refusal(cluster: Cluster, topic: str) -> str:
    """What a producer that does not wait long is told."""
    producer = ProducerCore(
        cluster.bootstrap,
        ProducerSettings(delivery_timeout_ms=1_500),
        network=cluster.network,
        clock=SystemClock(),
        rng=Random(),
    )
    try:
        await (await producer.send(topic, b"refused", partition=0))
    except (DiskFull, DeliveryTimedOut) as error:
        return str(error)
    finally:
        await producer.close(timeout_ms=100)
    return "not refused"


async def test_f26_one_broker_has_a_full_disk(dev: DevCluster, disks: Disks) -> None:
    """Its leaderships move, it leaves the ISR, writes go on; it comes back when there is room."""
    async with loaded(dev) as (cluster, load):
        full = await cluster.leader(load.topic, 0)
        begun_ms = now_ms()
        try:
            disks.fill(full)
            await said(cluster, full, "data: full")
            await until_relieved(cluster, load.topic, full)
            await load.flowing(since_ms=now_ms())
        finally:
            disks.free()
        print(f"\nF26 one broker: longest wait {load.pause_ms(begun_ms):.0f} ms")
        assert load.pause_ms(begun_ms) < PAUSE_MS_MAX
        await said(cluster, full, "data: well again")
        await cluster.until_well(load.topic)
        await load.flowing(since_ms=now_ms())


async def test_f26_all_brokers_have_full_disks(dev: DevCluster, disks: Disks) -> None:
    """Writes are refused with the reason, readers and administrators go on, and it heals."""
    async with loaded(dev) as (cluster, load):
        seen = [dev.log_path(name).stat().st_size for name in NAMES]
        try:
            disks.fill(*NAMES)
            for name, since in zip(NAMES, seen, strict=True):
                await said(cluster, name, "data: full", since)
            why = await refusal(cluster, load.topic)
            print(f"\nF26 all brokers: {why}")
            assert "log.dir.min.free.bytes" in why
            described = await cluster.admin.describe_topic(load.topic)
            assert all(each.leader >= 0 for each in described.partitions)
            await cluster.admin.create_topic(f"made-{load.topic}", partitions=1)
        finally:
            disks.free()
        freed_ms = now_ms()
        await load.flowing(since_ms=freed_ms)
        print(f"F26 all brokers: records flow {now_ms() - freed_ms:.0f} ms after there is room")
        await cluster.until_well(load.topic)


async def test_f27_a_slow_disk_loses_its_leaderships_once(dev: DevCluster, disks: Disks) -> None:
    async with loaded(dev) as (cluster, load):
        slow = await cluster.leader(load.topic, 0)
        begun_ms = now_ms()
        try:
            disks.disturb(f"slow {disks.path(slow)} 2000")
            await until_relieved(cluster, load.topic, slow)
            moved_ms = now_ms() - begun_ms
            epochs = await cluster.epochs(load.topic)
            # It stays away as long as it is slow, and for a while after that.
            await asyncio.sleep(3)
            assert slow not in await leaders(cluster, load.topic)
            assert await cluster.epochs(load.topic) == epochs
        finally:
            disks.free()
        await load.flowing(since_ms=now_ms())
        pause_ms = load.pause_ms(begun_ms)
        print(f"\nF27: moved after {moved_ms:.0f} ms, longest wait {pause_ms:.0f} ms")
        assert pause_ms < PAUSE_MS_MAX
        await said(cluster, slow, "data: well again")
        assert await cluster.epochs(load.topic) == epochs


async def test_f27_a_disk_that_fails_ends_its_broker_and_no_other(
    dev: DevCluster, disks: Disks
) -> None:
    async with loaded(dev) as (cluster, load):
        broken = await cluster.leader(load.topic, 0)
        begun_ms = now_ms()
        try:
            disks.disturb(f"fail {disks.path(broken)}")
            await cluster.until_gone(broken)
            await load.flowing(since_ms=now_ms())
        finally:
            disks.free()
        assert load.pause_ms(begun_ms) < PAUSE_MS_MAX
        print(f"\na failed disk: longest wait {load.pause_ms(begun_ms):.0f} ms")
        await _restart(cluster, load, broken)


async def test_l8_syncs_that_fail_on_all_brokers_lose_nothing_and_need_no_unclean_election(
    dev: DevCluster, disks: Disks
) -> None:
    """Every replica goes out of service; when syncs work again all of them lead again, clean."""
    async with loaded(dev) as (cluster, load):
        seen = [dev.log_path(name).stat().st_size for name in NAMES]
        before = await cluster.epochs(load.topic)
        logs = [f"{disks.path(name)}/{load.topic}-{n}" for name in NAMES for n in range(PARTITIONS)]
        begun_ms = now_ms()
        try:
            disks.disturb(*(f"unsynced {path}" for path in logs))
            await until_offline(cluster, load.topic)
            await asyncio.sleep(3)
            described = await cluster.admin.describe_topic(load.topic)
            assert [each.leader for each in described.partitions] == [-1] * PARTITIONS
        finally:
            disks.free()
        healed_ms = now_ms()
        await load.flowing(since_ms=healed_ms)
        flowing_ms = now_ms() - healed_ms
        await cluster.until_well(load.topic)
        print(
            f"\nL8: offline {healed_ms - begun_ms:.0f} ms after the first fault at the latest; "
            f"records flow {flowing_ms:.0f} ms after syncs work again"
        )
        described = await cluster.admin.describe_topic(load.topic)
        assert [each.loss for each in described.partitions] == [""] * PARTITIONS
        assert all(a > b for a, b in zip(await cluster.epochs(load.topic), before, strict=True))
        for number in range(PARTITIONS):
            for change in await cluster.admin.explain(load.topic, number):
                assert change.loss == "", "no election was unclean"
        for name, since in zip(NAMES, seen, strict=True):
            await said(cluster, name, "in service again, nothing was lost", since)


async def until_offline(cluster: Cluster, topic: str) -> None:
    async with asyncio.timeout(60):
        while set(await leaders(cluster, topic)) != {"broker--1"}:  # noqa: ASYNC110 - nobody tells.
            await asyncio.sleep(0.1)


async def test_f39_a_reader_of_a_cold_backlog_does_not_slow_producers(
    dev: DevCluster, disks: Disks
) -> None:
    """Were it read on the loop, producers would wait for most of its reads, for all replicas do."""
    async with loaded(dev) as (cluster, load):
        await cluster.admin.create_topic("backlog", config={"segment.bytes": str(BACKLOG_BYTES)})
        producer = ProducerCore(
            cluster.bootstrap,
            ProducerSettings(),
            network=cluster.network,
            clock=SystemClock(),
            rng=Random(),
        )
        for _ in range(BACKLOG_SEGMENTS):
            await (await producer.send("backlog", bytes(BACKLOG_BYTES)))
        await producer.close(timeout_ms=1_000)
        leader = await cluster.leader("backlog", 0)
        reader = PartitionReader(
            cluster.bootstrap,
            "backlog",
            0,
            "earliest",
            network=cluster.network,
            clock=SystemClock(),
            rng=Random(),
        )
        try:
            disks.disturb(f"cold {disks.path(leader)}/backlog-0 {COLD_MS}")
            await asyncio.sleep(0.2)
            begun_ms, read = now_ms(), 0
            async for _ in reader.records():
                read += 1
                if read == BACKLOG_READ:
                    break
            took_ms = now_ms() - begun_ms
            waits = sorted(
                (each.acked_ms or now_ms()) - each.sent_ms
                for each in load.sent
                if each.sent_ms >= begun_ms
            )
        finally:
            disks.free()
            await reader.close()
        median_ms = waits[len(waits) // 2]
        print(f"\nF39: {read} cold reads in {took_ms:.0f} ms, producers waited {median_ms:.0f} ms")
        assert took_ms >= BACKLOG_READ * COLD_MS
        assert median_ms < COLD_MS / 2


async def _restart(cluster: Cluster, load: Load, name: str) -> None:
    # The faults of the past are read again within a moment.
    await asyncio.sleep(0.2)
    await cluster.dev.start(name)
    await cluster.until_well(load.topic)
