"""Retention and compaction of a real broker, beside producers and readers that go on.

A compacted topic is written over and over while the broker compacts it, and a topic that keeps
little is filled. In the end a reader from the beginning knows the last value of every key, and
the producer was never kept waiting for long.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from statistics import median, quantiles

import pytest

from integration.cluster_harness import Cluster, connected, eventually, start, stop
from tailrace.client.producer import ProducerCore
from tailrace.client.reader import PartitionReader
from tailrace.client.settings import ProducerSettings
from tailrace.clock import SystemClock
from tailrace.dev.cluster import DevCluster

pytestmark = [pytest.mark.integration, pytest.mark.slow]

TABLE, QUEUE = "table", "queue"
KEYS = 200
VALUE_BYTES = 1_000
LOAD_S = 12.0
PATIENCE_S = 60.0
# Generous: other programs may have the machine.
WAIT_MS_MAX = 10_000.0


@pytest.fixture(scope="module")
def dev(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevCluster]:
    running = start(
        tmp_path_factory.mktemp("housekeeping"),
        brokers=1,
        controllers=1,
        log_retention_check_interval_ms="500",
        log_retention_clock_settle_ms="2000",
        log_cleaner_backoff_ms="500",
        log_cleaner_io_max_bytes_per_second=str(16 << 20),
        flush_interval_ms="500",
    )
    yield running
    stop(running)


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*.log"))


async def write(cluster: Cluster, last: dict[bytes, bytes], waits_ms: list[float]) -> int:
    """Values of a few keys over and over, and bulk for the other topic; returns the bytes."""
    rng, written = Random(5), 0
    producer = ProducerCore(
        cluster.bootstrap,
        ProducerSettings(),
        network=cluster.network,
        clock=SystemClock(),
        rng=Random(),
    )
    try:
        end_s = time.monotonic() + LOAD_S
        while time.monotonic() < end_s:
            began_s = time.monotonic()
            for _ in range(50):
                key, value = b"k%d" % rng.randrange(KEYS), rng.randbytes(VALUE_BYTES)
                await producer.send(TABLE, value, key, partition=0)
                await producer.send(QUEUE, value, partition=0)
                last[key] = value
                written += VALUE_BYTES
            await producer.flush()
            waits_ms.append((time.monotonic() - began_s) * 1000)
            await asyncio.sleep(0.01)
    finally:
        await producer.close()
    return written


async def read_table(cluster: Cluster, last: dict[bytes, bytes]) -> tuple[dict[bytes, bytes], int]:
    """What a new reader knows of each key at the end, and how many records that took."""
    found: dict[bytes, bytes] = {}
    count = 0
    async with PartitionReader(
        cluster.bootstrap,
        TABLE,
        0,
        "earliest",
        network=cluster.network,
        clock=SystemClock(),
        rng=Random(),
    ) as reader:
        async with asyncio.timeout(PATIENCE_S):
            async for record in reader.records():
                found[record.key or b""] = record.value or b""
                count += 1
                if found == last:
                    break
    return found, count


@pytest.mark.timeout(240)
async def test_a_broker_keeps_house_under_load(dev: DevCluster) -> None:
    data = dev.folder / "broker-1" / "data"
    last: dict[bytes, bytes] = {}
    waits_ms: list[float] = []
    async with connected(dev) as cluster:
        await cluster.admin.create_topic(
            TABLE,
            partitions=1,
            replication_factor=1,
            config={
                "cleanup.policy": "compact",
                "segment.bytes": str(1 << 20),
                "min.cleanable.dirty.ratio": "0.3",
            },
        )
        await cluster.admin.create_topic(
            QUEUE,
            partitions=1,
            replication_factor=1,
            config={"retention.bytes": str(2 << 20), "segment.bytes": str(1 << 20)},
        )
        written = await write(cluster, last, waits_ms)
        end_s = time.monotonic() + PATIENCE_S
        while size_of(data / f"{QUEUE}-0") > 5 << 20 or size_of(data / f"{TABLE}-0") > 4 << 20:
            assert time.monotonic() < end_s, dev.log_path("broker-1").read_text()[-3000:]
            await asyncio.sleep(0.2)
        found, count = await read_table(cluster, last)
    said = dev.log_path("broker-1").read_text()
    print(
        f"\n{written / 1e6:.0f} MB written twice; {said.count('compacted to offset')} compactions, "
        f"{said.count('segments gone')} removals; {count} records read for {len(last)} keys; "
        f"50 records each took {median(waits_ms):.0f} ms, p99 {quantiles(waits_ms, n=100)[-1]:.0f}"
    )
    assert found == last
    assert written > 8 << 20
    assert count < written // VALUE_BYTES
    assert said.count("compacted to offset") >= 1
    assert said.count("segments gone") >= 1
    await eventually("no compaction leaves anything", lambda: not list(data.glob("*/*.cleaned")))
    assert max(waits_ms) < WAIT_MS_MAX
