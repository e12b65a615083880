"""The probe over gRPC, against a model cluster: it writes, reads and counts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from simulation.model_cluster import ModelCluster
from tailrace.clock import SystemClock
from tailrace.transport.grpc_network import GrpcNetwork
from tailrace_operator import probe as probing
from tailrace_operator.probe import Probe


@pytest.fixture
async def cluster() -> AsyncIterator[ModelCluster]:
    network = GrpcNetwork()
    found = ModelCluster(lambda _: network, address="127.0.0.1:0")
    await found.start()
    found.create("t", 2)
    yield found
    await found.stop()
    await network.close()


async def test_all_that_is_written_is_read_and_counted(cluster: ModelCluster) -> None:
    probe = Probe(",".join(cluster.bootstrap), "t", partitions=2, rate=200, clock=SystemClock())
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(probe.run())
        while probe.ledger.figures(since_ms=0, now_ms=0).read < 50:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        probe.stop()
        await running
    await probe.count()
    figures = probe.ledger.figures(since_ms=0, now_ms=0)
    assert figures.counted
    assert figures.sent == figures.acknowledged == figures.read >= 50
    assert (figures.failed, figures.lost, figures.duplicated, figures.misplaced) == (0, 0, 0, 0)
    written = sum(len(cluster.get("t", each).records()) for each in (0, 1))
    assert written == figures.acknowledged


async def test_a_count_that_cannot_be_made_is_no_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probing, "COUNT_S", 0.3)
    # The discard port: nobody listens there.
    probe = Probe("127.0.0.1:9", "t", partitions=2, rate=200, clock=SystemClock())
    await probe.count()
    figures = probe.ledger.figures(since_ms=0, now_ms=0)
    assert not figures.counted
    assert figures.problems
