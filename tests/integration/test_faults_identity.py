"""L7, L9: two processes with one folder, and producers that start while the store is away."""

from __future__ import annotations

import asyncio
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.cluster_harness import connected, eventually, start, stop
from tailrace.aio import Consumer, Producer
from tailrace.dev.cluster import DevCluster

LEASE_MS = 2_000
TOPIC = "identity"

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def dev(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevCluster]:
    folder = tmp_path_factory.mktemp("identity")
    running = start(folder, coordinators=1, broker_lease_ttl_ms=str(LEASE_MS))
    yield running
    stop(running)


async def _produce(bootstrap: str, value: bytes) -> None:
    """A producer of its own for one record: it needs a new id."""
    async with Producer(bootstrap) as producer:
        await (await producer.send(TOPIC, value))


async def _consume(bootstrap: str, group: str, *, records: int) -> list[bytes]:
    seen: list[bytes] = []
    async with Consumer(
        TOPIC, bootstrap_servers=bootstrap, group_id=group, auto_offset_reset="earliest"
    ) as consumer:
        async with asyncio.timeout(40):
            while len(seen) < records:
                seen += [each.value for each in await consumer.poll(1.0)]
        await consumer.commit()
    return seen


def _command(dev: DevCluster, folder: Path) -> list[str]:
    """A second broker 1 with other ports, on a copy of the data of the first."""
    config = (dev.folder / "broker-1" / "broker.properties").read_text()
    own = {"listeners", "link.listeners", "log.dirs", "metrics.listeners", "control.listeners"}
    lines = [line for line in config.splitlines() if line.partition("=")[0] not in own]
    lines += ["listeners=127.0.0.1:0", "link.listeners=127.0.0.1:0", f"log.dirs={folder}"]
    path = folder.parent / "clone.properties"
    path.write_text("\n".join(lines) + "\n")
    return [sys.executable, "-m", "tailrace.cli.main", "broker", "--config", str(path)]


async def test_l9_producers_and_group_members_start_while_etcd_is_away(dev: DevCluster) -> None:
    bootstrap = dev.state.bootstrap
    async with connected(dev) as cluster:
        await cluster.admin.create_topic(TOPIC, partitions=1)
        await _produce(bootstrap, b"before")
        # The topic of the groups' offsets is made with the first group.
        await _consume(bootstrap, "first", records=1)
        # Brokers and controllers take their ids within a moment of their start.
        await asyncio.sleep(3)
        await dev.signal("etcd", signal.SIGSTOP)
        try:
            # Long enough for every lease to be over, were it not for F18.
            await asyncio.sleep(2 * LEASE_MS / 1000)
            for number in range(3):
                await asyncio.wait_for(_produce(bootstrap, b"during %d" % number), 20)
            controller = await cluster.controller()
            await cluster.kill(controller)
            for number in range(3):
                await asyncio.wait_for(_produce(bootstrap, b"alone %d" % number), 40)
            seen = await _consume(bootstrap, "started while etcd is away", records=7)
            assert seen[0] == b"before"
        finally:
            await dev.signal("etcd", signal.SIGCONT)
        await dev.start(controller)


async def test_f44_l7_a_clone_of_a_live_folder_is_refused(dev: DevCluster, tmp_path: Path) -> None:
    async with connected(dev) as cluster:
        described = await cluster.admin.describe_cluster()
        member = dev.state.member("broker-1")
        known = len(dev.log_path("broker-1").read_text())
        clone = tmp_path / "clone"
        shutil.copytree(
            dev.folder / "broker-1" / "data", clone, ignore=shutil.ignore_patterns(".lock")
        )
        process = await asyncio.create_subprocess_exec(
            *_command(dev, clone), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
        )
        try:
            output, _ = await asyncio.wait_for(process.communicate(), 40)
        finally:
            if process.returncode is None:
                process.kill()
        text = output.decode()
        assert process.returncode != 0, text
        assert "broker 1 runs already at" in text
        assert "copy" in text
        log = dev.log_path("broker-1").read_text()[known:]
        assert "the lease of epoch" not in log, "the first one was disturbed"
        after = await cluster.admin.describe_cluster()
        assert after.brokers == described.brokers
        await eventually("the first one runs", lambda: dev.life(member).name == "RUNNING")
