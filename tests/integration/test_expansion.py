"""A cluster grows from three brokers to five and shrinks again, under load, with real processes."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path
from random import Random

import pytest

from integration.cluster_harness import Cluster, Load, connected, now_ms, start, stop
from tailrace.client.producer import ProducerCore
from tailrace.client.settings import ProducerSettings
from tailrace.clock import SystemClock
from tailrace.controller.placement import place
from tailrace.dev.cluster import Plan
from tailrace.model import BrokerId

pytestmark = pytest.mark.integration

PARTITIONS = 6
BULK_RECORDS = 9_600
BULK_VALUE_BYTES = 64 * 1024
THROTTLE = "20M"
MOVE_TIMEOUT_S = 150.0


@pytest.mark.by_hand
@pytest.mark.timeout(600)
def test_expansion_and_back_loses_nothing_and_ends_where_the_rule_says(tmp_path: Path) -> None:
    dev = start(tmp_path / "cluster")
    try:
        asyncio.run(_play(dev))
    finally:
        stop(dev)


async def _play(dev: object) -> None:
    async with connected(dev) as cluster:  # type: ignore[arg-type]
        await cluster.admin.create_topic("orders", partitions=PARTITIONS)
        await cluster.admin.create_topic("bulk", partitions=PARTITIONS)
        await _fill(cluster)
        filled = await _ends(cluster)
        load = Load(cluster, "orders", PARTITIONS, interval_ms=20.0)
        async with load.running():
            await load.flowing(since_ms=now_ms())
            began = now_ms()
            await asyncio.sleep(5)
            _report(load, "three brokers, nothing moves", began)
            await cluster.dev.up(Plan(brokers=5))
            for throttle in ("0", THROTTLE):
                for brokers in ([1, 2, 3, 4, 5], [1, 2, 3]):
                    began = now_ms()
                    done = await _reassign(cluster, brokers, throttle)
                    name = f"to {len(brokers)} brokers, " + (
                        f"throttled to {throttle}/s" if throttle != "0" else "no throttle"
                    )
                    _report(load, name, began, done)
                    await _check_placement(cluster, brokers)
        assert await _ends(cluster) == filled


async def _fill(cluster: Cluster) -> None:
    producer = ProducerCore(
        cluster.bootstrap,
        ProducerSettings(),
        network=cluster.network,
        clock=SystemClock(),
        rng=Random(),
    )
    value = Random(1).randbytes(BULK_VALUE_BYTES)
    for number in range(BULK_RECORDS):
        await producer.send("bulk", value, partition=number % PARTITIONS)
    await producer.flush()
    await producer.close()


async def _ends(cluster: Cluster) -> list[int]:
    return [each.offset for each in (await cluster.admin.list_offsets("bulk")).values()]


async def _reassign(cluster: Cluster, brokers: list[int], throttle: str) -> dict[str, int]:
    """By the command that operators use; it waits until all is done."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tailrace.cli.main", "topics", "reassign", "--json", "--yes"),
        *("--brokers", ",".join(map(str, brokers)), "--throttle", throttle),
        *("--bootstrap", ",".join(cluster.bootstrap)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(MOVE_TIMEOUT_S):
        out, problems = await process.communicate()
    assert process.returncode == 0, problems.decode()
    found: dict[str, int] = json.loads(out.splitlines()[-1])
    assert found["moved"] > 0
    return found


async def _check_placement(cluster: Cluster, brokers: list[int]) -> None:
    wanted = place(
        [BrokerId(each) for each in brokers], partitions=PARTITIONS, replication_factor=3
    )
    end = time.monotonic() + 30
    while True:
        topics = await cluster.admin.describe_topics(["orders", "bulk"])
        found = [each for topic in topics for each in topic.partitions]
        if all(
            each.replicas == wanted[each.partition] and sorted(each.isr) == sorted(each.replicas)
            for each in found
        ):
            return
        assert time.monotonic() < end, found
        await asyncio.sleep(0.1)


def _report(load: Load, what: str, began: float, done: dict[str, int] | None = None) -> None:
    ended = now_ms()
    waits = sorted(
        each.acked_ms - each.sent_ms
        for each in load.sent
        if each.acked_ms is not None and began <= each.sent_ms < ended
    )
    p50, p99, worst = (waits[min(len(waits) - 1, int(len(waits) * q))] for q in (0.5, 0.99, 1))
    moved = "" if done is None else f", {done['total_bytes'] / 2**20:.0f} MiB copied"
    print(
        f"\n{what}: {(ended - began) / 1000:.1f} s{moved}; producer p50 {p50:.1f} ms, "
        f"p99 {p99:.1f} ms, worst {worst:.1f} ms of {len(waits)}"
    )
