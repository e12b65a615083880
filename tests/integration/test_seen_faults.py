"""What a person sees of a store that is not believed (L1) and of a damaged replica (L5)."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.chromium import opened
from integration.cluster_harness import Cluster, connected
from integration.cluster_harness import start as start_cluster
from integration.cluster_harness import stop as stop_cluster
from integration.store_faults import empty, etcd_data, start_etcd, stop_etcd, tailrace
from tailrace.cli.connecting import connection
from tailrace.cli.console import _serve
from tailrace.dev.cluster import DevCluster

PATIENCE_S = 40.0
RECORDS = 400

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]


@pytest.fixture
def dev(tmp_path: Path) -> Iterator[DevCluster]:
    running = start_cluster(tmp_path / "c", coordinators=1)
    yield running
    stop_cluster(running)


def _metric(dev: DevCluster, service: str, name: str) -> float:
    address = dev.state.member(service).metrics_address
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=5) as answer:
        lines = answer.read().decode().splitlines()
    return float(next(each for each in lines if each.startswith(f"{name} ")).split()[1])


async def _metrics(dev: DevCluster, service: str, name: str) -> float:
    return await asyncio.to_thread(_metric, dev, service, name)


async def _until_printed(cluster: Cluster, wanted: str, *command: str) -> tuple[str, str]:
    """Run a command until it prints this; what it printed, and what it complained of."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            _, out, err = await tailrace(cluster, *command)
            if wanted in out + err:
                return out, err


async def test_f41_l1_a_store_that_is_not_believed_is_seen_everywhere(
    dev: DevCluster, tmp_path: Path
) -> None:
    async with connected(dev) as cluster:
        await cluster.admin.create_topic("t", partitions=2)
        await cluster.until_well("t")
        # etcd is asked to stop, so that what it has is whole.
        await stop_etcd(cluster)
        shutil.copytree(etcd_data(cluster), tmp_path / "right")
        await start_etcd(cluster)
        await empty(cluster)
        await _until_printed(cluster, "METADATA MAY BE STALE since 20", "topics", "list")
        for command in (
            ("topics", "describe", "t"),
            ("cluster", "describe"),
            ("brokers", "list", "--json"),
            ("brokers", "describe", "1"),
        ):
            code, out, err = await tailrace(cluster, *command)
            assert code == 0, err
            assert out
            assert "brokers do not believe the metadata store: " in err
        async with asyncio.timeout(PATIENCE_S):
            while True:
                _, out, _ = await tailrace(cluster, "brokers", "list")
                if out.count("store not believed") == 3:
                    break
        code, _, err = await tailrace(cluster, "topics", "create", "u", "--timeout", "3")
        assert code == 1
        assert "brokers do not believe the metadata store" in err
        code, out, _ = await tailrace(cluster, "doctor", "--json")
        assert code == 1
        found = [json.loads(each) for each in out.splitlines()]
        (store,) = [each for each in found if each["check"] == "store"]
        assert store["severity"] == "critical"
        assert "broker 1, broker 2, broker 3 do not believe" in store["what"]
        assert "tailrace cluster recover" in store["do"]
        for service in ("broker-1", "coordinator-1", "controller-1"):
            assert await _metrics(dev, service, "tailrace_store_distrusted") == 1.0
        await _see_the_banner(dev, tmp_path)
        # The right store is put back: everything says so by itself.
        await stop_etcd(cluster)
        shutil.rmtree(etcd_data(cluster))
        shutil.copytree(tmp_path / "right", etcd_data(cluster))
        await start_etcd(cluster)
        async with asyncio.timeout(PATIENCE_S):
            while True:
                _, out, err = await tailrace(cluster, "brokers", "list")
                if out.count(" ok") == 3 and not err:
                    break
        assert await _metrics(dev, "broker-1", "tailrace_store_distrusted") == 0.0


async def _see_the_banner(dev: DevCluster, tmp_path: Path) -> None:
    """The console says it at the top of every view."""
    binary = os.environ.get("TAILRACE_CHROMIUM") or shutil.which("chromium")
    assert binary, "there is no chromium: install it, or name it by TAILRACE_CHROMIUM"
    pictures = Path(os.environ.get("TAILRACE_PICTURES", str(tmp_path)))
    listen = f"127.0.0.1:{dev.state.port_base + 390}"
    serving = asyncio.ensure_future(_serve(connection(dev.state.bootstrap, 30.0), listen, (), None))
    async with opened(binary, tmp_path / "browser", f"http://{listen}/?theme=light") as page:
        await page.until("!at('stale').hidden")
        said = await page.ask("at('stale').textContent")
        assert said.startswith("Metadata may be stale since ")
        assert "do not believe the metadata store" in said
        for theme in ("light", "dark"):
            await page.ask(f"theme({str(theme == 'dark').lower()})")
            await page.picture(pictures / f"stale-{theme}.png")
        assert page.problems == []
    serving.cancel()
    await asyncio.wait([serving])


async def test_f43_l5_a_damaged_replica_is_seen_everywhere(dev: DevCluster) -> None:
    """The only replica of a partition, so that nobody can mend it."""
    async with connected(dev) as cluster:
        await cluster.admin.create_topic(
            "single", replication_factor=1, config={"unclean.recovery": "refuse"}
        )
        leader = await cluster.leader("single", 0)
        number = leader.removeprefix("broker-")
        await tailrace(cluster, "perf", "produce", "single", "--records", str(RECORDS))
        # Everything is on disk, and below the recovery point, after a stop in order.
        await dev.signal(leader, signal.SIGTERM)
        await cluster.until_gone(leader)
        path = dev.folder / leader / "data" / "single-0" / f"{0:020}.log"
        os.truncate(path, path.stat().st_size // 2)
        # Without this marker the log is looked at as after a crash.
        (dev.folder / leader / "data" / "clean-shutdown").unlink()
        await dev.start(leader)
        out, _ = await _until_printed(cluster, "1 replica out of service", "brokers", "list")
        assert out.count(" ok") == 2
        out, _ = await _until_printed(
            cluster, f"0: out of service on broker {number}: ", "topics", "describe", "single"
        )
        assert "replica-out-of-service" in out
        assert "were durable and are damaged" in out
        _, out, _ = await tailrace(cluster, "brokers", "describe", number)
        assert "out of service: single-0: " in out
        _, out, _ = await tailrace(cluster, "doctor", "--json")
        found = [json.loads(each) for each in out.splitlines()]
        (replicas,) = [each for each in found if each["check"] == "replicas"]
        assert f"broker {number} has 1 replica out of service: single-0" in replicas["what"]
        assert await _metrics(dev, leader, "tailrace_replicas_out_of_service") == 1.0
        # Asked again less and less often: it was 1.5 times a second.
        await asyncio.sleep(5)
        log = dev.log_path(leader)
        before = log.read_text().count("single-0: order not obeyed")
        await asyncio.sleep(10)
        assert log.read_text().count("single-0: order not obeyed") - before <= 2
