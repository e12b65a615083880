"""A thousand partitions on three brokers: made, written, failed over, taken over by a controller.

Real processes and a real etcd. Prints seconds for each step and how many requests etcd got by its
own count, and per second while nothing happens: no step may become a storm.

    .venv/bin/python tests/bench/bench_partitions.py --partitions 1000
"""

from __future__ import annotations

import argparse
import asyncio
import re
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from random import Random

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests")]

from integration.cluster_harness import Cluster, connected, start, stop  # noqa: E402
from tailrace.client.producer import ProducerCore  # noqa: E402
from tailrace.client.settings import ProducerSettings  # noqa: E402
from tailrace.clock import SystemClock  # noqa: E402
from tailrace.dev.cluster import DevCluster  # noqa: E402

TOPIC = "many"
PATIENCE_S = 300.0
IDLE_S = 5.0
_HANDLED = re.compile(
    r'^grpc_server_handled_total\{.*grpc_method="(\w+)".*\} ([0-9.e+]+)$', re.MULTILINE
)


class Steps:
    """Times each step, and what etcd was asked meanwhile."""

    def __init__(self, dev: DevCluster) -> None:
        self._etcd = dev.state.member("etcd").address
        self._asked = self._count()
        self._began = time.monotonic()

    def done(self, what: str) -> None:
        took_s, asked = time.monotonic() - self._began, self._count()
        new = {name: asked[name] - self._asked.get(name, 0) for name in asked}
        shown = ", ".join(f"{name} {count}" for name, count in sorted(new.items()) if count)
        total = sum(new.values())
        print(f"{what:42} {took_s:7.2f} s  etcd: {total:5} requests ({shown})", flush=True)
        self._asked, self._began = self._count(), time.monotonic()

    def _count(self) -> dict[str, int]:
        url = f"http://{self._etcd}/metrics"
        text = urllib.request.urlopen(url, timeout=10).read().decode()
        found: dict[str, int] = {}
        for method, count in _HANDLED.findall(text):
            found[method] = found.get(method, 0) + int(float(count))
        return found


async def bench(dev: DevCluster, partitions: int) -> None:
    async with connected(dev) as cluster:
        steps = Steps(dev)
        await cluster.admin.create_topic(TOPIC, partitions=partitions, timeout_ms=120_000)
        steps.done("created, all leaders known to clients")
        producer = _producer(cluster)
        await _write_all(producer, partitions)
        steps.done("all took a write (acks=all)")
        await _write_all(producer, partitions)
        steps.done("all took another write")
        await asyncio.sleep(IDLE_S)
        steps.done(f"nothing, for {IDLE_S:.0f} s")
        await cluster.kill("broker-1")
        steps.done("broker 1 killed, process gone")
        await _until(cluster, lambda leader, isr: leader not in {1, -1} and 1 not in isr)
        steps.done("all its leaders moved, known to clients")
        await _write_all(producer, partitions)
        steps.done("all took a write again")
        await dev.start("broker-1")
        await _until(cluster, lambda _, isr: len(isr) == 3)
        steps.done("broker 1 back, all in sync")
        first = await cluster.controller()
        await cluster.kill(first)
        while await cluster.controller() == first:  # noqa: ASYNC110 - nobody tells us.
            await asyncio.sleep(0.02)
        steps.done("controller killed, another is active")
        elected = await cluster.admin.elect_leaders(timeout_ms=60_000)
        steps.done(f"it elected {len(elected)} preferred leaders")
        await _write_all(producer, partitions)
        steps.done("all took a write again")
        await producer.close()


def _producer(cluster: Cluster) -> ProducerCore:
    return ProducerCore(
        cluster.bootstrap,
        ProducerSettings(delivery_timeout_ms=int(PATIENCE_S * 1000)),
        network=cluster.network,
        clock=SystemClock(),
        rng=Random(),
    )


async def _write_all(producer: ProducerCore, partitions: int) -> None:
    sent = [await producer.send(TOPIC, b"x", partition=each) for each in range(partitions)]
    await producer.flush()
    for each in sent:
        await each


async def _until(cluster: Cluster, holds: object) -> None:
    end = time.monotonic() + PATIENCE_S
    while True:
        described = await cluster.admin.describe_topic(TOPIC)
        if all(holds(each.leader, each.isr) for each in described.partitions):  # type: ignore[operator]
            return
        assert time.monotonic() < end, "it never came to hold"
        await asyncio.sleep(0.02)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--partitions", type=int, default=1_000)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        dev = start(Path(folder) / "cluster")
        try:
            asyncio.run(bench(dev, given.partitions))
        finally:
            stop(dev)


if __name__ == "__main__":
    main()
