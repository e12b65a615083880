"""What metrics cost: the counters of a request, a scrape of 1,000 partitions, a whole cluster.

- `counters`: the additions that a produce request adds to a leader and its two followers, alone.
- `scrape`: a shipped broker (on a simulated disk and network) that leads 1,000 partitions: how long
  it takes to collect and to write the page, and how large that is.
- `--cluster`: two real clusters, one whose brokers are scraped every second and one without the
  endpoint, fed in turns: CPU seconds of all servers per GB of values. Needs a quiet machine.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import urllib.request
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from threading import Event, Thread
from time import perf_counter, process_time

from bench.quick.workloads import Cluster, Job, send
from integration.cluster_harness import start, stop
from simulation.loop import SimLoop, run
from tailrace.aio import Admin
from tailrace.broker.observing import ObservedBroker
from tailrace.broker.settings import BrokerSettings
from tailrace.clock import SystemClock
from tailrace.dev.cluster import DevCluster
from tailrace.meta.measured import MeasuredStore
from tailrace.metrics.endpoint import rendered
from tailrace.metrics.families import Page
from tailrace.metrics.values import BrokerCounts
from tailrace.model import TopicPartition
from tailrace.process import loop_factory
from tailrace.transport.measured import MeasuredNetwork
from tailrace.transport.wire import to_partition
from tailrace.v1 import control_pb2
from unit.broker.trio import TOPIC_ID, Trio

PARTITIONS = 1_000
REPEATS = 200_000
VALUE_BYTES = 1_024
SCRAPE_S = 1.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cluster", action="store_true", help="also measure real clusters")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--megabytes", type=int, default=200, help="of values in a round")
    arguments = parser.parse_args()
    each_ns = counters_ns()
    for topics in (1, 20, 1_000):
        run(partial(scrape, topics=topics), 1)
    if arguments.cluster:
        clusters(arguments.rounds, arguments.megabytes, each_ns)
    return 0


def counters_ns() -> float:
    clock, counts = SystemClock(), BrokerCounts()
    traffic = counts.traffic.of("t")

    def request() -> None:
        began_ms = clock.monotonic_ms()
        traffic.records_in += 1_000
        traffic.bytes_in += 1_000_000
        traffic.replica_bytes_out += 1_000_000
        traffic.replica_bytes_out += 1_000_000
        counts.produced["all"].observe(clock.monotonic_ms() - began_ms)
        # On the followers.
        traffic.replica_bytes_in += 1_000_000
        traffic.replica_bytes_in += 1_000_000

    best = min(_each_ns(request) for _ in range(5))
    print(f"counters of one produce request, leader and two followers: {best:.0f} ns")
    return best


def _each_ns(work: Callable[[], None]) -> float:
    began = process_time()
    for _ in range(REPEATS):
        work()
    return (process_time() - began) / REPEATS * 1e9


async def scrape(loop: SimLoop, *, topics: int) -> None:
    """A broker that leads all of them, and whose followers are not there."""
    trio = Trio(loop)
    await trio.start(0)
    orders = [
        control_pb2.PartitionOrder(
            partition=to_partition(TopicPartition(f"topic-{number % topics}", number // topics)),
            topic_id=TOPIC_ID,
            leader=0,
            leader_epoch=1,
            isr=(0, 1, 2),
            replicas=(0, 1, 2),
            revision=1,
            leader_link="b0:9093",
        )
        for number in range(PARTITIONS)
    ]
    for first in range(0, PARTITIONS, 50):
        await trio.send_order(0, *orders[first : first + 50])
    store = MeasuredStore(trio.etcd.connect(), trio.clock)
    network = MeasuredNetwork(trio.host, trio.clock)
    settings = BrokerSettings(broker_id=0)
    observed = ObservedBroker(trio.brokers[0], settings, store, network, trio.clock)
    collecting, writing, size, samples = [], [], 0, 0
    for _ in range(10):
        page = Page()
        began = process_time()
        await observed.fill(page)
        collected = process_time()
        text = rendered(page.metrics())
        writing.append(process_time() - collected)
        collecting.append(collected - began)
        size = len(text)
        samples = sum(len(metric.samples) for metric in page.metrics())
    print(
        f"scrape of {PARTITIONS} partitions in {topics} topics: {min(collecting) * 1e3:.1f} ms to "
        f"collect, {min(writing) * 1e3:.1f} ms to write, {samples} series, {size / 1e3:.0f} kB"
    )


def clusters(rounds: int, megabytes: int, each_ns: float) -> None:
    with tempfile.TemporaryDirectory(prefix="tailrace-bench-") as folder:
        on = start(Path(folder) / "on")
        off = start(Path(folder) / "off", metrics_listeners="")
        ended = Event()
        scraper = Thread(target=_scrape_all, args=(on, ended))
        scraper.start()
        try:
            with asyncio.Runner(loop_factory=loop_factory()) as runner:
                requests, cpu_s = runner.run(_in_turns(on, off, rounds, megabytes))
                share = requests * each_ns / 1e9 / cpu_s
                print(f"counting costs {share:.3%} of the CPU time of servers")
        finally:
            ended.set()
            scraper.join()
            stop(on)
            stop(off)


def _scrape_all(dev: DevCluster, ended: Event) -> None:
    addresses = [each["metrics"] for each in dev.status()["processes"] if each["role"] == "broker"]
    while not ended.wait(SCRAPE_S):
        for address in addresses:
            with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
                answer.read()


def _requests(dev: DevCluster) -> float:
    """How many produce requests with acks=all the brokers have answered, by their own metrics."""
    name = 'tailrace_produce_seconds_count{acks="all"} '
    total = 0.0
    for each in dev.status()["processes"]:
        if each["role"] == "broker":
            with urllib.request.urlopen(f"http://{each['metrics']}/metrics", timeout=10) as answer:
                lines = answer.read().decode().splitlines()
            total += sum(float(line.removeprefix(name)) for line in lines if line.startswith(name))
    return total


async def _in_turns(
    on: DevCluster, off: DevCluster, rounds: int, megabytes: int
) -> tuple[float, float]:
    """Produce requests, and CPU seconds of servers without an endpoint, per GB of values."""
    spent: dict[str, list[float]] = {"scraped every second": [], "without metrics": []}
    records = 0
    async with Admin(on.state.bootstrap) as on_admin, Admin(off.state.bootstrap) as off_admin:
        both = list(zip(spent, (Cluster(on, on_admin), Cluster(off, off_admin)), strict=True))
        for number in range(rounds + 1):
            for name, cluster in both if number % 2 else reversed(both):
                async with cluster.topic() as topic:
                    before_s, began = cluster.cpu_s(), perf_counter()
                    records = await send(Job(cluster, topic, VALUE_BYTES, megabytes * 1_000_000))
                    gigabytes = records * VALUE_BYTES / 1e9
                    cpu_s = (cluster.cpu_s() - before_s) / gigabytes
                    took_s = perf_counter() - began
                if number:
                    spent[name].append(cpu_s)
                    print(f"  {name}: {cpu_s:.3f} CPU-s per GB, {took_s:.1f} s", flush=True)
        requests = await asyncio.to_thread(_requests, on)
        gigabytes = records * VALUE_BYTES / 1e9 * (rounds + 1)
        print(f"{requests / gigabytes:.0f} produce requests per GB of values")
    for name, found in spent.items():
        print(f"{name}: median {median(found):.3f}, least {min(found):.3f} CPU-s per GB")
    return requests / gigabytes, min(spent["without metrics"])


if __name__ == "__main__":
    raise SystemExit(main())
