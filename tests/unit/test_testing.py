"""Fixtures for programs' own tests; that they start a real cluster is seen in integration."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tailrace import testing
from tailrace.dev.cluster import DevCluster
from tailrace.dev.state import DevError


async def test_work_runs_to_its_end_beside_a_loop_that_runs() -> None:
    async def work() -> int:
        await asyncio.sleep(0)
        return 7

    async def fail() -> None:
        raise DevError("no etcd")

    assert testing._run(work) == 7
    with pytest.raises(DevError, match="no etcd"):
        testing._run(fail)


def test_a_cluster_that_is_not_there_says_so(tmp_path: Path) -> None:
    cluster = testing.Cluster(DevCluster(tmp_path))
    with pytest.raises(DevError, match="no cluster"):
        _ = cluster.bootstrap_servers
    with pytest.raises(DevError, match="no cluster"):
        cluster.kill("broker-0")
