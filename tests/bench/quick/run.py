"""`make bench-quick`: Tailrace beside bare gRPC and a bare disk, in two minutes, as ratios.

Three real brokers with etcd, a client in this process, and a gRPC server that does nothing, all on
this machine. In every round each workload runs next to its yardsticks; a figure is the median of
the rounds' ratios, so that what slows the machine slows both. It is compared with what was stored
(`tests/bench/quick.json`), and marked when it moved by more than runs of the same code did.

    make bench-quick                 # measure and compare
    make bench-quick STORE=add       # store this run too: three and more say how large the noise is
    make bench-quick STORE=new       # forget what was stored, begin with this run
    make bench-quick WORKLOADS=send  # only those with this in their name
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Final

from bench import machine
from bench.quick import workloads as w
from bench.quick.comparison import (
    NOTHING,
    Ratio,
    Stored,
    flow_ratios,
    from_json,
    judge,
    to_json,
    wait_ratios,
    with_run,
)
from bench.quick.measured import Flow, Waits, volume
from bench.quick.table import show
from bench.quick.yardsticks import BareDisk, BareGrpc, bare_grpc, frame
from tailrace.aio import Admin
from tailrace.dev.cluster import DevCluster, Plan
from tailrace.process import loop_factory, run_command

STORED: Final = Path(__file__).parents[1] / "quick.json"
ROUNDS: Final = 9
ROUND_S: Final = 0.4
"""How long a workload runs in a round, about."""

RUN_S_MAX: Final = 105.0
"""No round begins later than this."""

BYTES_MIN: Final = 4 * w.MIB
BYTES_MAX: Final = 400 * w.MIB
PROBE_BYTES: Final = 16 * w.MIB
BUSY: Final = 2.0
"""A machine with so much more load than before the stored runs is not compared with them."""
MEMORY: Final = Path("/dev/shm")
MEMORY_BYTES_MIN: Final = 6 << 30
READ_BYTES: Final = {100: 128 * w.MIB, w.KIB: 256 * w.MIB}
READ: Final = 0
"""The ground of those that read."""


@dataclass(frozen=True, slots=True)
class Throughput:
    """Measured by bytes a second, beside batches of `ground` bytes, or (READ) a stream."""

    name: str
    size: int
    ground: int
    work: w.Flowing


@dataclass(frozen=True, slots=True)
class Latency:
    """Measured by how long one record takes."""

    name: str
    size: int
    work: Callable[[w.Job], Awaitable[Waits]]


# Those with the same ground stand together: the yardstick is measured once for them in a round.
THROUGHPUT: Final = (
    Throughput("send() 1 KiB", w.KIB, w.MIB, w.send),
    Throughput("send() 100 B", 100, w.MIB, w.send),
    Throughput("send_batch() 1 KiB", w.KIB, w.MIB, w.send_columns),
    Throughput("send_batch() 100 B", 100, w.MIB, w.send_columns),
    Throughput("send() 1 KiB in 16 KiB batches", w.KIB, w.SMALL_BATCH, w.send_small),
    Throughput("send() 100 B in 16 KiB batches", 100, w.SMALL_BATCH, w.send_small),
    Throughput("consume 1 KiB, Arrow", w.KIB, READ, w.read_arrow),
    Throughput("consume 100 B, Arrow", 100, READ, w.read_arrow),
    Throughput("consume 1 KiB, rows", w.KIB, READ, w.read_rows),
    Throughput("consume 100 B, rows", 100, READ, w.read_rows),
)
LATENCY: Final = (
    Latency("one at a time, acknowledged, 1 KiB", w.KIB, w.acknowledged),
    Latency("one at a time, to a consumer, 1 KiB", w.KIB, w.to_consumer),
)
PING: Final = "bare gRPC, one at a time"


class Bench:
    """Rounds of all workloads and yardsticks; what they gave gathers by name."""

    def __init__(self, cluster: w.Cluster, grpc: BareGrpc, disk: BareDisk, wanted: str) -> None:
        self._cluster = cluster
        self._grpc = grpc
        self._disk = disk
        self._throughput = [each for each in THROUGHPUT if wanted in each.name]
        self._latency = [each for each in LATENCY if wanted in each.name]
        if not self._throughput and not self._latency:
            names = ", ".join(each.name for each in (*THROUGHPUT, *LATENCY))
            raise SystemExit(f"no workload has {wanted!r} in its name; there are: {names}")
        sizes = {1, *(each.ground for each in self._throughput if each.ground != READ)}
        self._frames = {size: frame(size, w.some_values(w.KIB)) for size in sizes}
        self._read_topics: dict[int, str] = {}
        # Bytes of a round, by name; empty in the first round, which finds them out.
        self._volumes: dict[str, int] = {}
        self.flows: dict[str, list[Flow]] = {}
        self.waits: dict[str, list[Waits]] = {}

    @property
    def ratios(self) -> list[Ratio]:
        found: list[Ratio] = []
        for each in self._throughput:
            grpc, disk = (self.flows[name] for name in _grounds(each.ground))
            found += flow_ratios(each.name, self.flows[each.name], grpc, disk)
        for one in self._latency:
            found += wait_ratios(one.name, self.waits[one.name], self.waits[PING])
        return found

    async def prepare(self) -> None:
        """Fill what is read, and one small round of everything, which warms up."""
        for size in {each.size for each in self._throughput if each.ground == READ}:
            topic = self._read_topics[size] = await self._cluster.new_topic()
            job = w.Job(self._cluster, topic, size, READ_BYTES[size] + w.MIB, ROUND_S)
            await w.send_columns(job)
        self._disk.fill()
        await self.round()
        for name, flows in self.flows.items():
            self._volumes[name] = volume(flows[0], ROUND_S, least=BYTES_MIN, most=BYTES_MAX)
        self.flows.clear()
        self.waits.clear()

    async def round(self) -> None:
        measured: set[int] = set()
        for each in self._throughput:
            if each.ground not in measured:
                measured.add(each.ground)
                await self._ground(each.ground)
            self._note(each.name, await self._one(each))
        if self._latency:
            ping = await self._grpc.ping(self._frames[1], ROUND_S)
            self.waits.setdefault(PING, []).append(ping)
        for one in self._latency:
            async with self._cluster.topic() as topic:
                found = await one.work(w.Job(self._cluster, topic, one.size, 0, ROUND_S))
            self.waits.setdefault(one.name, []).append(found)

    async def _one(self, each: Throughput) -> Flow:
        if each.ground == READ:
            wanted = min(self._volumes.get(each.name, PROBE_BYTES), READ_BYTES[each.size])
            topic = self._read_topics[each.size]
            return await w.flow(each.work, w.Job(self._cluster, topic, each.size, wanted, ROUND_S))
        async with self._cluster.topic() as topic:
            wanted = self._volumes.get(each.name, PROBE_BYTES)
            return await w.flow(each.work, w.Job(self._cluster, topic, each.size, wanted, ROUND_S))

    async def _ground(self, ground: int) -> None:
        grpc_name, disk_name = _grounds(ground)
        grpc_bytes = self._volumes.get(grpc_name, PROBE_BYTES)
        disk_bytes = self._volumes.get(disk_name, PROBE_BYTES)
        if ground == READ:
            self._note(grpc_name, await self._grpc.fetch(grpc_bytes))
            self._note(disk_name, self._disk.read(disk_bytes))
        else:
            self._note(grpc_name, await self._grpc.produce(self._frames[ground], grpc_bytes))
            self._note(disk_name, self._disk.write(self._frames[ground], disk_bytes))

    def _note(self, name: str, flow: Flow) -> None:
        self.flows.setdefault(name, []).append(flow)


def _grounds(ground: int) -> tuple[str, str]:
    """The names of both yardsticks."""
    name = "stream of 1 MiB" if ground == READ else f"batches of {ground // w.KIB} KiB"
    return f"bare gRPC, {name}", f"bare disk, {name}"


async def measure(folder: Path, wanted: str, rounds: int) -> Bench:
    began = perf_counter()
    dev = DevCluster(folder / "cluster")
    await dev.up(Plan(brokers=3, controllers=1, coordinators=0, etcd_fsync=False))
    try:
        async with Admin(dev.state.bootstrap) as admin, bare_grpc() as grpc:
            bench = Bench(w.Cluster(dev, admin), grpc, BareDisk(folder), wanted)
            await bench.prepare()
            for number in range(rounds):
                if perf_counter() - began > RUN_S_MAX:
                    print(f"no time for more than {number} rounds", file=sys.stderr)
                    break
                await bench.round()
    finally:
        await dev.down(wipe=True)
    print(f"{perf_counter() - began:.0f} s", file=sys.stderr)
    return bench


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workloads", default="", help="those with this in their name")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--store", choices=["", "add", "new"], default="", help="store this run")
    parser.add_argument("--json", action="store_true", help="print all rounds as one JSON object")
    parser.add_argument("--folder", default=_folder(), help="where brokers keep their data")
    given = parser.parse_args()
    before = machine.load()
    with tempfile.TemporaryDirectory(prefix="tailrace-bench-", dir=given.folder) as folder:
        work = measure(Path(folder), given.workloads, max(given.rounds, 1))
        bench = run_command(work, loop_factory())
    stored = from_json(STORED.read_text(encoding="utf-8")) if STORED.exists() else NOTHING
    if given.json:
        found: dict[str, Sequence[Flow | Waits]] = {**bench.flows, **bench.waits}
        print(json.dumps({name: [asdict(each) for each in found[name]] for name in found}))
    else:
        show(bench.flows, bench.waits, judge(bench.ratios, stored))
    _say_of_machine(stored, before)
    if given.store:
        kept = stored if given.store == "add" else NOTHING
        text = to_json(with_run(kept, bench.ratios, machine.facts(), before))
        STORED.write_text(text, encoding="utf-8")
    return 0


def _folder() -> str:
    """In memory if there is room: what the program costs shows, not what a busy disk does to it."""
    if MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > MEMORY_BYTES_MIN:
        return str(MEMORY)
    return tempfile.gettempdir()


def _recent(load: str) -> float:
    """The first of the three figures of a load: that of the last minute."""
    return float(load.split(maxsplit=1)[0])


def _say_of_machine(stored: Stored, before: str) -> None:
    print(f"load of the machine before and after: {before}; {machine.load()}", file=sys.stderr)
    if stored.loads:
        print(f"load before the stored runs: {'; '.join(stored.loads)}", file=sys.stderr)
        if _recent(before) > max(map(_recent, stored.loads)) + BUSY:
            print("the machine is busier than it was then: what fell may be that", file=sys.stderr)
    if stored.runs and machine.kind(dict(stored.machine)) != machine.kind(machine.facts()):
        print("the stored ratios are from another kind of machine", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
