"""F39: somebody reads a giant backlog from the beginning, from the disk, and producers go on.

The backlog is made cold before each round: synced, and dropped from the page cache. That it really
came from the disk is seen in what the kernel counted for the broker. The latency of a producer is
compared with that of the same producer in the pauses between, in the same run. On a quick disk this
is mostly what the work for the reader costs; that nobody waits for a slow one is shown in virtual
time (`tests/unit/broker/test_fetching.py`, F39).
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from statistics import median, quantiles
from typing import Any

import pyarrow as pa
import pytest

from integration.cluster_harness import Cluster, connected, start, stop
from tailrace.client.producer import ProducerCore
from tailrace.client.settings import ProducerSettings
from tailrace.clock import SystemClock
from tailrace.dev.cluster import DevCluster

pytestmark = [pytest.mark.integration, pytest.mark.slow]

BACKLOG, SMALL = "backlog", "small"
MIB = 1 << 20
BACKLOG_BYTES = 160 * MIB
RECORD_BYTES = 16 * 1024
RECORDS_AT_ONCE = 32
ROUNDS = 3
PROBE_EVERY_S = 0.005
# A machine that is busy with other things disturbs both alike, but not in the same moments.
RATIO_MAX = 5.0
# Where both are this quick the ratio says nothing.
QUICK_MS = 10.0
# What a broker holds for readers is bounded (`fetch.bytes.max`), and so is what a client holds.
MEMORY_BYTES_MAX = 128 * MIB


@pytest.fixture(scope="module")
def dev(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevCluster]:
    folder = tmp_path_factory.mktemp("cold")
    running = start(folder, brokers=1, controllers=1, segment_bytes=str(16 * MIB))
    yield running
    stop(running)


@dataclass
class Latencies:
    """How long acknowledgements took."""

    ms: list[float] = field(default_factory=list)

    @property
    def p90(self) -> float:
        return quantiles(self.ms, n=10)[-1]

    def __str__(self) -> str:
        return f"median {median(self.ms):.1f} ms, p90 {self.p90:.1f} ms of {len(self.ms)}"


def producer(cluster: Cluster) -> ProducerCore:
    return ProducerCore(
        cluster.bootstrap,
        ProducerSettings(),
        network=cluster.network,
        clock=SystemClock(),
        rng=Random(),
    )


async def fill(cluster: Cluster) -> int:
    """Write the backlog; return where it ends."""
    random = Random(39)
    writer = producer(cluster)
    count = 0
    try:
        for _ in range(BACKLOG_BYTES // (RECORD_BYTES * RECORDS_AT_ONCE)):
            values = [random.randbytes(RECORD_BYTES) for _ in range(RECORDS_AT_ONCE)]
            columns = {"value": pa.array(values, pa.binary())}
            await writer.send_batch(BACKLOG, columns, partition=0)
            count += RECORDS_AT_ONCE
        await writer.flush()
    finally:
        await writer.close()
    return count


def make_cold(folder: Path) -> None:
    for path in folder.glob("*.*"):
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)


def from_disk(pid: int) -> int:
    """The bytes that the kernel fetched from the disk for a process, ever."""
    lines = Path(f"/proc/{pid}/io").read_text(encoding="ascii").splitlines()
    return int(next(line for line in lines if line.startswith("read_bytes")).split()[1])


def memory_of(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) * 1024


async def probe(writer: ProducerCore, into: Latencies, until: asyncio.Future[Any]) -> None:
    """One record after the other, until something is over."""
    while not until.done():
        began_s = time.monotonic()
        await (await writer.send(SMALL, b"x", partition=0))
        into.ms.append((time.monotonic() - began_s) * 1000)
        await asyncio.sleep(PROBE_EVERY_S)


@asynccontextmanager
async def cold_reader(cluster: Cluster, end: int) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(Path(__file__).with_name("cold_reader.py")),
        ",".join(cluster.bootstrap),
        BACKLOG,
        str(end),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        assert await process.stdout.readline() == b"ready\n"
        yield process
    finally:
        process.kill()
        await process.wait()


async def read_once(reader: asyncio.subprocess.Process) -> dict[str, float]:
    assert reader.stdin is not None
    assert reader.stdout is not None
    reader.stdin.write(b"\n")
    await reader.stdin.drain()
    found: dict[str, float] = json.loads(await reader.stdout.readline())
    return found


@pytest.mark.timeout(300)
async def test_a_cold_reader_does_not_slow_producers_f39(dev: DevCluster) -> None:
    identity = dev.state.member("broker-1").identity
    assert identity is not None
    pid, folder = identity.pid, dev.folder / "broker-1" / "data" / f"{BACKLOG}-0"
    alone, beside = Latencies(), Latencies()
    speeds: list[float] = []
    async with connected(dev) as cluster:
        for topic in (BACKLOG, SMALL):
            await cluster.admin.create_topic(topic, partitions=1, replication_factor=1)
        end = await fill(cluster)
        writer = producer(cluster)
        async with cold_reader(cluster, end) as reader:
            memory_bytes = memory_of(pid)
            for _ in range(ROUNDS):
                make_cold(folder)
                quiet = asyncio.ensure_future(asyncio.sleep(1.5))
                await probe(writer, alone, quiet)
                before_bytes = from_disk(pid)
                reading = asyncio.ensure_future(read_once(reader))
                await probe(writer, beside, reading)
                found = await reading
                assert found["bytes"] >= BACKLOG_BYTES
                assert from_disk(pid) - before_bytes > BACKLOG_BYTES / 2, "it was not cold"
                speeds.append(found["bytes"] / found["seconds"] / 1e6)
                assert found["memory_bytes"] < MEMORY_BYTES_MAX
                assert memory_of(pid) - memory_bytes < MEMORY_BYTES_MAX
        await writer.close()
    ratio = median(beside.ms) / median(alone.ms)
    print(
        f"\nalone: {alone}\nbeside a cold reader at {median(speeds):.0f} MB/s: {beside}\n"
        f"ratio of medians {ratio:.2f}, of p90 {beside.p90 / alone.p90:.2f}; "
        f"broker grew by {(memory_of(pid) - memory_bytes) / MIB:.0f} MiB"
    )
    assert ratio < RATIO_MAX or median(beside.ms) < QUICK_MS
    assert beside.p90 / alone.p90 < 2 * RATIO_MAX or beside.p90 < 2 * QUICK_MS
