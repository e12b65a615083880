"""What metrics cost: the counters of a request, a scrape of 1,000 partitions, a whole cluster.

- `counters`: the additions that a produce request adds to a leader and its two followers, alone.
- `scrape`: a shipped broker (on a simulated disk and network) that leads 1,000 partitions: how long
  it takes to collect and to write the page, and how large that is.
- `--cluster`: two real clusters, one with endpoints, one without. Idle, in the same seconds: what
  an endpoint and a scrape cost. Under load, in turns of short rounds: CPU seconds of brokers per GB
  of values, as differences of rounds that follow each other, with their 95 % interval; and how
  much of it is counting. CPU time, not speed: so it can be done on a machine that is shared.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import mean, median, stdev
from threading import Event, Thread
from time import process_time

from bench.quick.workloads import Cluster, Job, send
from bench.usage import fine_cpu_s
from integration.cluster_harness import start, stop
from simulation.loop import SimLoop, run
from tailrace.aio import Admin
from tailrace.broker.observing import ObservedBroker
from tailrace.broker.settings import BrokerSettings
from tailrace.clock import SystemClock
from tailrace.dev.cluster import DevCluster
from tailrace.dev.state import Role
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
BROKERS = 3
# Of brokers that do nothing: so many windows with scrapes and as many without, in turns.
IDLE_WINDOWS = 10
IDLE_WINDOW_S = 6.0
IDLE_SCRAPE_S = 0.5


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cluster", action="store_true", help="also measure real clusters")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--megabytes", type=int, default=100, help="of values in a round")
    arguments = parser.parse_args()
    counters_ns()
    for topics in (1, 20, 1_000):
        run(partial(scrape, topics=topics), 1)
    if arguments.cluster:
        clusters(arguments.rounds, arguments.megabytes)
    return 0


def counters_ns(*, quietly: bool = False) -> float:
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

    found = [_each_ns(request) for _ in range(5)]
    if quietly:
        # Beside a load: as slow as that load is made by whatever else runs here.
        return median(found)
    best = min(found)
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


def clusters(rounds: int, megabytes: int) -> None:
    with tempfile.TemporaryDirectory(prefix="tailrace-bench-") as folder:
        on = start(Path(folder) / "on")
        off = start(Path(folder) / "off", metrics_listeners="")
        try:
            idle(on, off)
            with asyncio.Runner(loop_factory=loop_factory()) as runner:
                runner.run(_in_turns(on, off, rounds, megabytes))
        finally:
            stop(on)
            stop(off)


def idle(on: DevCluster, off: DevCluster) -> None:
    """What the endpoints cost brokers that do nothing else: both clusters in the same seconds."""
    alone: list[float] = []
    scraped: list[float] = []
    for number in range(2 * IDLE_WINDOWS):
        with _scraped(on, every_s=IDLE_SCRAPE_S if number % 2 else 0):
            before = _brokers_cpu_s(on), _brokers_cpu_s(off)
            time.sleep(IDLE_WINDOW_S)
            after = _brokers_cpu_s(on), _brokers_cpu_s(off)
        more_s = (after[0] - before[0]) - (after[1] - before[1])
        (scraped if number % 2 else alone).append(more_s / IDLE_WINDOW_S / BROKERS)
    print(f"an endpoint that nobody asks: {_interval(alone, 1e3)} ms of CPU a second of a broker")
    a_scrape = [(more - less) * IDLE_SCRAPE_S for more, less in zip(scraped, alone, strict=True)]
    print(f"a scrape of a broker with few partitions: {_interval(a_scrape, 1e3)} ms of CPU")


@contextmanager
def _scraped(dev: DevCluster, *, every_s: float) -> Iterator[None]:
    """Brokers are scraped at this pace in the meantime; with 0 they are not."""
    ended = Event()
    scraper = Thread(target=_scrape_all, args=(dev, ended, every_s))
    if every_s:
        scraper.start()
    try:
        yield
    finally:
        ended.set()
        if every_s:
            scraper.join()


def _brokers_cpu_s(dev: DevCluster) -> float:
    return sum(
        fine_cpu_s(each.identity.pid)
        for each in dev.state.members
        if each.role is Role.BROKER and each.identity is not None
    )


def _interval(found: list[float], unit: float = 1.0) -> str:
    """The mean, and within what it lies with 95 % (of a normal distribution)."""
    around = 1.96 * stdev(found) / len(found) ** 0.5
    return f"{mean(found) * unit:.3f} ± {around * unit:.3f}"


def _scrape_all(dev: DevCluster, ended: Event, every_s: float) -> None:
    addresses = [each["metrics"] for each in dev.status()["processes"] if each["role"] == "broker"]
    while not ended.wait(every_s):
        for address in addresses:
            with urllib.request.urlopen(f"http://{address}/metrics", timeout=60) as answer:
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


async def _in_turns(on: DevCluster, off: DevCluster, rounds: int, megabytes: int) -> None:
    """The same load in turns: pairs of rounds that follow each other are compared."""
    names = ("scraped every second", "not scraped", "without an endpoint")
    spent: dict[str, list[float]] = {name: [] for name in names}
    shares: list[float] = []
    async with Admin(on.state.bootstrap) as on_admin, Admin(off.state.bootstrap) as off_admin:
        with_endpoint, without = Cluster(on, on_admin), Cluster(off, off_admin)
        for number in range(rounds + 1):
            for name in names if number % 2 else reversed(names):
                dev = off if name == names[2] else on
                cluster = without if dev is off else with_endpoint
                asked = await asyncio.to_thread(_requests, on)
                with _scraped(on, every_s=SCRAPE_S if name == names[0] else 0):
                    used_s, gigabytes = await _send(cluster, dev, megabytes)
                if number:
                    spent[name].append(used_s / gigabytes)
                if number and name == names[1]:
                    requests = await asyncio.to_thread(_requests, on) - asked
                    # In the same seconds, so that a busy machine slows both.
                    shares.append(requests * counters_ns(quietly=True) / 1e9 / used_s)
    for name, found in spent.items():
        print(f"{name}: {_interval(found)} CPU-s of brokers per GB, median {median(found):.3f}")
    print(f"counting: {_interval(shares, 100)} % of the CPU time of brokers")
    for one, other in ((names[0], names[1]), (names[1], names[2])):
        more = [a / b - 1 for a, b in zip(spent[one], spent[other], strict=True)]
        print(f"{one} against {other}: {_interval(more, 100)} %, median {median(more):+.2%}")


async def _send(cluster: Cluster, dev: DevCluster, megabytes: int) -> tuple[float, float]:
    """CPU seconds of the brokers, and GB of values."""
    async with cluster.topic() as topic:
        before_s = _brokers_cpu_s(dev)
        records = await send(Job(cluster, topic, VALUE_BYTES, megabytes * 1_000_000))
        return _brokers_cpu_s(dev) - before_s, records * VALUE_BYTES / 1e9


if __name__ == "__main__":
    raise SystemExit(main())
