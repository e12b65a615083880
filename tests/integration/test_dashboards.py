"""The shipped dashboards, drawn from a real Prometheus while a leader is away and when it is back.

Needs `prometheus` and `chromium` on the PATH (or TAILRACE_PROMETHEUS, TAILRACE_CHROMIUM).
`make dashboard-pictures` keeps the pictures, light and dark: look at them.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from integration.cluster_harness import Cluster, connected, start, stop
from integration.watched_cluster import Prometheus
from pictures.asking import Window, prometheus
from pictures.page import Answers
from pictures.render import boards, empty, pictured
from pictures.scene import CLUSTER, GROUPS, PARTITIONS, TOPICS, Scene, addresses
from tailrace.dev.cluster import DevCluster

pytestmark = [pytest.mark.integration, pytest.mark.by_hand, pytest.mark.timeout(900)]

SCRAPE_S: Final = 5
# How long all is well before and after, and how long the leader is away.
STEADY_S: Final = float(os.environ.get("TAILRACE_STEADY_S", "75"))
AWAY_S: Final = 45.0
# How far a lag on a dashboard may be off the one that `tailrace groups describe` tells just then.
LAG_OFF: Final = 0.25

# Panels without data in this scene, by dashboard and title, and why.
EMPTY: Final = {
    ("broker", "Refused"): "nothing, when clients learn of new leaders before they ask the old one",
    ("clients", "Records given up"): "no record was given up: that is the point",
    ("operator", "Errors"): "there is no Kubernetes whose requests could fail",
    ("operator", "Steps"): "there is no Kubernetes, so no step is taken",
    ("operator", "Brokers fenced"): "there are no pods that could be gone",
}


@pytest.fixture
def dev() -> Iterator[DevCluster]:
    # A short name, since dashboards show it.
    with tempfile.TemporaryDirectory(prefix="tailrace-") as folder:
        cluster = start(Path(folder), coordinators=2)
        yield cluster
        stop(cluster)


async def test_dashboards_can_be_read_during_a_failover(dev: DevCluster, tmp_path: Path) -> None:
    binary = os.environ.get("TAILRACE_PROMETHEUS") or shutil.which("prometheus")
    assert binary, "there is no prometheus: install it, or name it by TAILRACE_PROMETHEUS"
    pictures = Path(os.environ.get("TAILRACE_PICTURES", str(tmp_path / "pictures")))
    scene = Scene(dev.state.bootstrap)
    async with connected(dev) as cluster:
        for topic in TOPICS:
            await cluster.admin.create_topic(topic, partitions=PARTITIONS, replication_factor=3)
        async with scene.running() as jobs:
            jobs["tailrace"] = addresses(dev.status())
            server = Prometheus(binary, tmp_path / "server", [], named=jobs, scrape_s=SCRAPE_S)
            try:
                await _play(scene, cluster, server, pictures)
            finally:
                server.close()


async def _play(scene: Scene, cluster: Cluster, server: Prometheus, pictures: Path) -> None:
    began_s = time.time()
    await asyncio.to_thread(server.until, "a lag is known", lambda: _groups(server) == set(GROUPS))
    await asyncio.sleep(STEADY_S)
    leader = await cluster.leader("orders", 0)
    await cluster.kill(leader)
    await asyncio.sleep(AWAY_S)
    away = await _drawn(server, began_s, pictures / "away")
    described = await cluster.admin.describe_cluster()
    lacking = described.health
    assert _number(away, "cluster", "Brokers") == len(described.brokers) == 2
    shown = _number(away, "cluster", "Under-replicated")
    assert shown == max(lacking.values()) > 0, lacking
    assert _number(away, "cluster", "Offline partitions") == 0
    await cluster.dev.start(leader)
    for topic in TOPICS:
        await cluster.until_well(topic)
    scene.operator.drills.labels(CLUSTER, "kill-leader", "Passed").inc(0)
    await asyncio.sleep(STEADY_S / 2)
    scene.operator.drills.labels(CLUSTER, "kill-leader", "Passed").inc()
    await asyncio.sleep(STEADY_S / 2)
    behind = (await cluster.admin.describe_group("mails")).lag
    topics = await cluster.admin.describe_topics()
    after = await _drawn(server, began_s, pictures / "after")
    assert _number(after, "cluster", "Brokers") == 3
    assert _number(after, "cluster", "Under-replicated") == 0
    elsewhere = sum(
        each.leader != each.replicas[0] for topic in topics for each in topic.partitions
    )
    assert _number(after, "controller", "Work under way") == elsewhere > 0
    # It grows all the time, and is of the last scrape.
    shown = _number(after, "groups", "Records behind", "mails · orders")
    assert shown == pytest.approx(behind, rel=LAG_OFF)
    names = {each.name for each in after["controller"].marks}
    assert "Leaders changed" in names
    for name, board in boards().items():
        unexpected = [each for each in empty(board, after[name]) if (name, each) not in EMPTY]
        assert unexpected == [], f"panels of {name} without data"
        assert all(after[name].choices.values()), f"nothing can be chosen on {name}"


async def _drawn(server: Prometheus, began_s: float, folder: Path) -> dict[str, Answers]:
    await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True)
    window = Window(began_s, time.time(), SCRAPE_S)
    return await pictured(prometheus(server.address), window, folder)


def _groups(server: Prometheus) -> set[str]:
    found = server.query('count by (group) (tailrace_group_lag_records{kind="consumer"})')
    return {each["metric"]["group"] for each in found}


def _number(found: dict[str, Answers], board: str, title: str, label: str = "") -> float:
    """The last value of a panel's line of that name, of its last line when none is given."""
    panel = next(each for each in boards()[board]["panels"] if each["title"] == title)
    lines = found[board].lines[panel["id"]]
    return [each for each in lines if label in {each.label, ""}][-1].points[-1][1]
