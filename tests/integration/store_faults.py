"""What happens to a metadata store: it is emptied, put back from a copy, and made right again."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

from integration.cluster_harness import Cluster
from tailrace.dev.state import DevError

RECOVER_S = 120
PORT_ATTEMPTS = 50


def etcd_data(cluster: Cluster) -> Path:
    return cluster.dev.folder / "etcd" / "data"


async def stop_etcd(cluster: Cluster) -> None:
    await cluster.kill("etcd")


async def start_etcd(cluster: Cluster) -> None:
    """Start it as soon as the port of the one that was killed is free."""
    for _ in range(PORT_ATTEMPTS):
        try:
            await cluster.dev.start("etcd")
        except DevError:
            await asyncio.sleep(0.2)
        else:
            return
    await cluster.dev.start("etcd")


async def empty(cluster: Cluster) -> None:
    """End etcd, delete its folder, start it."""
    await stop_etcd(cluster)
    shutil.rmtree(etcd_data(cluster))
    await start_etcd(cluster)


async def keep_copy(cluster: Cluster, to: Path) -> None:
    """A copy of etcd's folder, as of a moment in which it stands still."""
    await cluster.dev.signal("etcd", signal.SIGSTOP)
    try:
        shutil.copytree(etcd_data(cluster), to)
    finally:
        await cluster.dev.signal("etcd", signal.SIGCONT)


async def put_back(cluster: Cluster, copy: Path) -> None:
    """Give etcd another folder: what it had meanwhile is gone."""
    await stop_etcd(cluster)
    shutil.rmtree(etcd_data(cluster))
    shutil.copytree(copy, etcd_data(cluster))
    await start_etcd(cluster)


def logs_on_disk(cluster: Cluster) -> dict[str, int]:
    """Every log file of every broker with its size, also those that were set aside."""
    found = {}
    for path in cluster.dev.folder.glob("broker-*/data/*/*.log"):
        found[f"{path.parents[2].name}/{path.parent.name}/{path.name}"] = path.stat().st_size
    return found


async def tailrace(cluster: Cluster, *arguments: str) -> tuple[int, str, str]:
    """Run a command against the cluster: its code, what it printed, what it complained of."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tailrace.cli.main", *arguments),
        env={"TAILRACE_DEV_DIR": str(cluster.dev.folder), "PATH": ""},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await asyncio.wait_for(process.communicate(), RECOVER_S)
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


async def recover(cluster: Cluster, *flags: str) -> list[dict[str, Any]]:
    """Rebuild the store; what was told, one object a line."""
    code, out, err = await tailrace(
        cluster, "cluster", "recover", "--apply", "--yes", "--json", *flags
    )
    assert code == 0, err
    return [json.loads(line) for line in out.splitlines()]
