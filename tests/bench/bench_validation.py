"""What a look into each batch costs a broker, as a share of all that it does for a produce request.

`PYTHONPATH=services:tests:spark-jobs .venv/bin/python tests/bench/bench_validation.py`

A real broker is sent the same requests, one after the other in flight, by topics that look into
everything (`batch.validation=full`) and that do not (`none`), in turns. Its CPU time a request is
what the kernel counted; what the look takes is measured by itself, in this process, since a few
microseconds drown in the noise of the rest.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from integration.cluster_harness import Cluster, connected, start, stop
from tailrace.config import BatchValidation
from tailrace.model import TopicPartition
from tailrace.record.build import BatchBuilder
from tailrace.record.codec import Compression
from tailrace.record.header import read_header
from tailrace.record.validation import check_batch, work_bytes
from tailrace.transport import methods
from tailrace.transport.envelopes import PartitionBatches, ProduceRequest
from tailrace.transport.wire import to_partition
from tailrace.v1 import broker_pb2

IN_FLIGHT = 5
SHAPES = ((1 << 20, 1024), (1 << 20, 100), (16 << 10, 1024), (16 << 10, 100), (100, 100))
TICKS = os.sysconf("SC_CLK_TCK")


def batch_of(total: int, size: int, codec: Compression) -> bytes:
    builder, rng = BatchBuilder(codec), random.Random(1)
    for row in range(max(total // size, 1)):
        half = size // 2
        builder.append((b"value %d " % row * size)[:half] + rng.randbytes(size - half), None, row)
    return builder.build()


def look_us(data: bytes, *, rounds: int) -> float:
    """CPU time that a look into one batch takes, the best of several."""
    header, view = read_header(data), memoryview(data)
    best = float("inf")
    for _ in range(15):
        began = time.process_time()
        for _ in range(rounds):
            work_bytes(data)
            check_batch(view, 0, header, level=BatchValidation.FULL)
        best = min(best, (time.process_time() - began) / rounds)
    return best * 1e6


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


async def request_us(cluster: Cluster, topic: str, data: bytes, count: int) -> float:
    """CPU time of the broker for one request."""
    pid = cluster.dev.state.member("broker-1").identity
    assert pid is not None
    stream = cluster.network.channel(cluster.bootstrap[0]).open(methods.BROKER_PRODUCE)
    part = PartitionBatches(
        partition=to_partition(TopicPartition(topic, 0)), leader_epoch=-1, batches=data
    )
    began, sent, answered = cpu_s(pid.pid), 0, 0
    while answered < count:
        while sent < count and sent - answered < IN_FLIGHT:
            await stream.send(
                ProduceRequest(
                    correlation=sent,
                    acks=broker_pb2.ACKS_ALL,
                    timeout_ms=30_000,
                    partitions=[part],
                    client_id="bench",
                )
            )
            sent += 1
        response = await stream.recv()
        assert response is not None
        assert not response.partitions[0].error, response.partitions[0].message
        answered += 1
    await stream.finish()
    return (cpu_s(pid.pid) - began) / count * 1e6


async def measure(cluster: Cluster, seconds: float) -> None:
    for level in ("full", "none"):
        await cluster.admin.create_topic(
            f"t-{level}",
            partitions=1,
            replication_factor=1,
            config={"batch.validation": level, "retention.bytes": str(64 << 20)},
        )
    print(f"{'batch':>8} {'record':>7} codec {'none us':>9} {'full us':>9} {'look us':>8} share")
    for codec in Compression:
        for total, size in SHAPES:
            data = batch_of(total, size, codec)
            count = max(int(seconds / (250e-6 + len(data) * 1.2e-9)), 20)
            found: dict[str, list[float]] = {"none": [], "full": []}
            for _ in range(3):
                for level, figures in found.items():
                    figures.append(await request_us(cluster, f"t-{level}", data, count))
            look = look_us(data, rounds=max(int(0.05 / (2e-5 + len(data) * 1e-9)), 5))
            none, full = min(found["none"]), min(found["full"])
            print(
                f"{total:>8} {size:>7} {codec.name.lower():>6} {none:>9.0f} {full:>9.0f} "
                f"{look:>9.1f} {look / none:.1%}",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=2.0)
    options = parser.parse_args()
    with TemporaryDirectory(dir="/dev/shm") as folder:
        dev = start(Path(folder), brokers=1, controllers=1)
        try:

            async def run() -> None:
                async with connected(dev) as cluster:
                    await measure(cluster, options.seconds)

            asyncio.run(run())
        finally:
            stop(dev)


if __name__ == "__main__":
    main()
