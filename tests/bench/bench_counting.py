"""What counting costs a whole cluster under load: brokers switch it on and off all the time.

Three real brokers, etcd, real sockets and disks. Clients send single records and wait for each: as
many requests for as few bytes as can be, so counting weighs the most. What one record costs a
broker (CPU, as leader and as follower) is compared between slices of time that follow each other:
whatever else the machine does, it does in both. Two clusters in turns said nothing within 14 %.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Final, NamedTuple

from bench import toggled_broker
from integration.cluster_harness import stop
from tailrace.aio import Admin, Producer
from tailrace.dev.cluster import DevCluster, Plan
from tailrace.process import loop_factory

CLIENTS: Final = 24
PARTITIONS: Final = 6
VALUE: Final = b"v" * 100
# Slices in which less was done, at the start or while a client was held up, say nothing.
RECORDS_MIN: Final = 20
# Of the pairs that differ most so many are left out on both sides: a slice in which the machine did
# something else costs half as much again.
TRIMMED: Final = 0.1


class Slice(NamedTuple):
    """What a broker did in a slice of time."""

    counting: bool
    cpu_s: float
    records: int


class Share(NamedTuple):
    """How much more it is with counting, and within what that lies with 95 %."""

    more: float
    around: float
    pairs: int


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=300.0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tailrace-bench-") as name:
        folder = Path(name)
        dev = DevCluster(folder / "cluster", command_for=lambda *each: toggled(folder, *each))
        plan = Plan(brokers=3, controllers=1, coordinators=0, etcd_fsync=False)
        os.environ["PYTHONPATH"] = str(Path(__file__).resolve().parents[1])
        asyncio.run(dev.up(plan))
        try:
            with asyncio.Runner(loop_factory=loop_factory()) as runner:
                sent = runner.run(load(dev, given.seconds))
        finally:
            stop(dev)
        brokers = [read(each) for each in sorted(folder.glob("*.slices"))]
    logs = [each for broker in brokers for each in pairs(broker)]
    a_record = [each.cpu_s / each.records for broker in brokers for each in broker if each.records]
    found = share(logs)
    print(
        f"{sent:,} requests of one record; {mean(a_record) * 1e6:.0f} µs of each broker for one, "
        f"of which counting is {found.more:.2%} ± {found.around:.2%} ({found.pairs:,} pairs)"
    )
    return 0


def toggled(folder: Path, name: str, command: list[str]) -> list[str]:
    """Brokers switch; whatever else there is stays as it is."""
    python, *module, service = command[:4]
    if module != ["-m", "tailrace.cli.main"] or service != "broker":
        return command
    program = toggled_broker.__file__
    return [python, str(program), str(folder / f"{name}.slices"), service, *command[4:]]


async def load(dev: DevCluster, seconds: float) -> int:
    async with Admin(dev.state.bootstrap) as admin:
        await admin.create_topic("singles", partitions=PARTITIONS, replication_factor=3)
    end_s = time.monotonic() + seconds

    async def client(number: int) -> int:
        sent = 0
        async with Producer(dev.state.bootstrap, linger_ms=0) as producer:
            while time.monotonic() < end_s:
                await (await producer.send("singles", VALUE, partition=number % PARTITIONS))
                sent += 1
        return sent

    return sum(await asyncio.gather(*(client(number) for number in range(CLIENTS))))


def read(path: Path) -> list[Slice]:
    found = []
    for line in path.read_text().splitlines():
        counting, cpu_s, records = line.split()
        found.append(Slice(counting == "1", float(cpu_s), int(records)))
    return found


def pairs(slices: Sequence[Slice]) -> list[float]:
    """Of slices that follow each other: the logarithm of how much more it was with counting."""
    found = []
    for one, other in zip(slices[::2], slices[1::2], strict=False):
        if min(one.records, other.records) < RECORDS_MIN:
            continue
        counted, uncounted = (one, other) if one.counting else (other, one)
        costs = counted.cpu_s / counted.records, uncounted.cpu_s / uncounted.records
        found.append(math.log(costs[0] / costs[1]))
    return found


def share(logs: Sequence[float]) -> Share:
    """The trimmed mean; its error by that of the values that are pulled in to the ends."""
    ordered = sorted(logs)
    cut = int(len(ordered) * TRIMMED)
    kept = ordered[cut : len(ordered) - cut]
    winsorized = [kept[0]] * cut + kept + [kept[-1]] * cut
    error = stdev(winsorized) / ((1 - 2 * TRIMMED) * len(ordered) ** 0.5)
    return Share(math.expm1(mean(kept)), 1.96 * error, len(ordered))


if __name__ == "__main__":
    raise SystemExit(main())
