"""Ten thousand groups that commit once a second each: can two coordinators carry it, at what cost?

Real processes: three brokers, a controller, two coordinators. This process sends the commits of all
groups at a steady pace, each group one a second, over some streams to the coordinator that owns it,
and never waits for answers before the next is due: what a coordinator cannot carry shows as commits
that are not answered (the backlog). The generator shares the machine with what it measures, so a
message carries the commits of several groups (`--per-message`); 1 is what single consumers send.

    make bench-groups
    .venv/bin/python tests/bench/bench_groups.py --groups 10000 --seconds 60 --per-message 50
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests")]

from bench.usage import cpu_s, resident_bytes  # noqa: E402
from integration.cluster_harness import Cluster, connected, eventually, start, stop  # noqa: E402
from tailrace.client.metadata import MetadataWatcher  # noqa: E402
from tailrace.dev.cluster import DevCluster  # noqa: E402
from tailrace.model import shard_of  # noqa: E402
from tailrace.runtime import Tasks  # noqa: E402
from tailrace.transport import methods  # noqa: E402
from tailrace.transport.rpc import Channel  # noqa: E402
from tailrace.v1 import group_pb2 as pb  # noqa: E402

TOPIC = "orders"
TICK_S = 0.02
DRAIN_S = 30.0


@dataclass
class Usage:
    """What one process used."""

    cpu_s: float
    memory_mib: float


@dataclass
class Report:
    """What is printed, and given as JSON."""

    groups: int
    seconds: float
    per_message: int
    commits: int = 0
    refused: int = 0
    commits_per_s: float = 0.0
    backlog_max: int = 0
    backlog_end: int = 0
    # Not answered within DRAIN_S after the last was sent.
    unanswered: int = 0
    wait_ms_p50: float = 0.0
    wait_ms_p99: float = 0.0
    wait_ms_max: float = 0.0
    late_ms_max: float = 0.0
    cpu_of_a_core: dict[str, float] = field(default_factory=dict)
    memory_mib: dict[str, float] = field(default_factory=dict)


def usage_of(pid: int) -> Usage:
    return Usage(cpu_s(pid), resident_bytes(pid) / (1 << 20))


def usage(dev: DevCluster) -> dict[str, Usage]:
    found = {
        each.name: usage_of(each.identity.pid)
        for each in dev.state.members
        if each.identity is not None
    }
    return {**found, "this generator": usage_of(os.getpid())}


class Sender:
    """Some groups of one coordinator, on one stream: each commits once a second."""

    def __init__(self, channel: Channel, groups: list[str], per_message: int) -> None:
        self._stream: Any = channel.open(methods.GROUP_STREAM_COMMITS)
        self._frames = [groups[at : at + per_message] for at in range(0, len(groups), per_message)]
        self._sent: dict[int, tuple[float, int]] = {}
        self._number = 0
        self.groups = len(groups)
        self.sent = 0
        self.answered = 0
        self.problems: list[str] = []
        self.waits_ms: list[float] = []
        self.late_ms = 0.0

    @property
    def backlog(self) -> int:
        return self.sent - self.answered

    async def run(self, began: float, seconds: float) -> None:
        """Send each frame once a second, spread evenly over it."""
        frames = self._frames
        total = int(seconds * len(frames))
        for number in range(total):
            due = began + number / len(frames)
            wait_s = due - time.perf_counter()
            if wait_s > 0:
                await asyncio.sleep(max(wait_s, TICK_S))
            self.late_ms = max(self.late_ms, (time.perf_counter() - due) * 1_000)
            await self._send(frames[number % len(frames)], number // len(frames))
        await self._stream.finish()

    async def _send(self, names: list[str], offset: int) -> None:
        commits = [
            pb.CommitOffsetsRequest(
                group=name,
                generation=-1,
                offsets=[pb.OffsetToCommit(topic=TOPIC, offset=offset, leader_epoch=-1)],
            )
            for name in names
        ]
        self._number += 1
        self.sent += len(names)
        self._sent[self._number] = (time.perf_counter(), len(names))
        if len(commits) == 1:
            message = pb.StreamCommitsRequest(correlation=self._number, commit=commits[0])
        else:
            message = pb.StreamCommitsRequest(correlation=self._number, commits=commits)
        await self._stream.send(message)

    async def read(self) -> None:
        while (answer := await self._stream.recv()) is not None:
            sent, count = self._sent.pop(answer.correlation)
            self.answered += count
            self.waits_ms.append((time.perf_counter() - sent) * 1_000)
            if answer.result.error or any(each.error for each in answer.result.partitions):
                self.problems.append(str(answer.result))
            self.problems += [str(each.result) for each in answer.problems]


async def bench(dev: DevCluster, options: argparse.Namespace) -> Report:
    async with connected(dev) as cluster:
        await cluster.admin.create_topic(TOPIC, partitions=1)
        tasks = Tasks(lambda name, error: print(f"{name}: {error!r}", file=sys.stderr))
        metadata = MetadataWatcher(cluster.network, cluster.bootstrap, Random())
        tasks.spawn("metadata", metadata.run())
        try:
            await _until_owned(metadata, dev)
            await _warm_up(cluster, metadata)
            return await _measure(dev, cluster, metadata, tasks, options)
        finally:
            await tasks.close()


async def _until_owned(metadata: MetadataWatcher, dev: DevCluster) -> None:
    """Until every coordinator has shards."""
    wanted = sum(each.name.startswith("coordinator") for each in dev.state.members)
    await eventually(
        "every coordinator has shards",
        lambda: len({owner for owner, _ in metadata.picture.group_shards}) == wanted,
    )


async def _warm_up(cluster: Cluster, metadata: MetadataWatcher) -> None:
    """One commit in every shard: the topic is made, and all shards are read."""
    shards = len(metadata.picture.group_shards)
    names: dict[int, str] = {}
    number = 0
    while len(names) < shards:
        names.setdefault(shard_of(f"warm-{number}", shards), f"warm-{number}")
        number += 1
    for name in names.values():
        while True:
            channel = cluster.network.channel(metadata.picture.coordinator_of(name))
            answer = await channel.call(
                methods.GROUP_COMMIT_OFFSETS,
                pb.CommitOffsetsRequest(
                    group=name,
                    generation=-1,
                    offsets=[pb.OffsetToCommit(topic=TOPIC, offset=1, leader_epoch=-1)],
                ),
                timeout_ms=60_000,
            )
            await channel.close()
            if not answer.error and not any(each.error for each in answer.partitions):
                break
            await asyncio.sleep(0.1)


async def _measure(
    dev: DevCluster,
    cluster: Cluster,
    metadata: MetadataWatcher,
    tasks: Tasks,
    options: argparse.Namespace,
) -> Report:
    by_address: dict[str, list[str]] = {}
    for number in range(options.groups):
        name = f"group-{number}"
        by_address.setdefault(metadata.picture.coordinator_of(name), []).append(name)
    senders: list[Sender] = []
    for address, names in sorted(by_address.items()):
        channel = cluster.network.channel(address)
        senders += [
            Sender(channel, names[at :: options.streams], options.per_message)
            for at in range(options.streams)
        ]
    report = Report(options.groups, options.seconds, options.per_message)
    before, began = usage(dev), time.perf_counter()
    reading = [tasks.spawn("read", each.read()) for each in senders]
    sending = [tasks.spawn("send", each.run(began, options.seconds)) for each in senders]
    while not all(each.done() for each in sending):
        await asyncio.sleep(0.25)
        report.backlog_max = max(report.backlog_max, sum(each.backlog for each in senders))
    took_s, after = time.perf_counter() - began, usage(dev)
    report.backlog_end = sum(each.backlog for each in senders)
    # More than can be carried is a finding, and must not cost the report.
    await asyncio.wait(reading, timeout=DRAIN_S)
    report.unanswered = sum(each.backlog for each in senders)
    waits = sorted(wait for each in senders for wait in each.waits_ms)
    report.commits = sum(each.answered for each in senders)
    report.refused = sum(len(each.problems) for each in senders)
    report.commits_per_s = (report.commits + report.unanswered - report.backlog_end) / took_s
    report.wait_ms_p50 = waits[len(waits) // 2]
    report.wait_ms_p99 = waits[len(waits) * 99 // 100]
    report.wait_ms_max = waits[-1]
    report.late_ms_max = max(each.late_ms for each in senders)
    for name in after:
        report.cpu_of_a_core[name] = (after[name].cpu_s - before[name].cpu_s) / took_s
        report.memory_mib[name] = after[name].memory_mib
    for problem in {each for sender in senders for each in sender.problems[:3]}:
        print(problem, file=sys.stderr)
    return report


def show(report: Report) -> None:
    print(
        f"{report.groups:,} groups, {report.per_message} in a message: {report.commits:,} commits "
        f"({report.commits_per_s:,.0f}/s), {report.refused} refused; answered after p50 "
        f"{report.wait_ms_p50:.0f}, p99 {report.wait_ms_p99:.0f}, max {report.wait_ms_max:.0f} ms; "
        f"not answered at most {report.backlog_max}, at the end {report.backlog_end}, "
        f"{DRAIN_S:.0f} s later {report.unanswered}; "
        f"sent at most {report.late_ms_max:.0f} ms late"
    )
    print(f"{'':18}{'of a core':>10}{'memory':>12}")
    for name, share in report.cpu_of_a_core.items():
        print(f"{name:18}{share:>10.0%}{report.memory_mib[name]:>8.0f} MiB")
    print(f"{'together':18}{sum(report.cpu_of_a_core.values()):>10.0%}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--groups", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--per-message", type=int, default=50)
    parser.add_argument("--streams", type=int, default=4, help="to each coordinator")
    parser.add_argument("--coordinators", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    # `timeout` ends us by this: what was started is ended too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("broken off"))
    with tempfile.TemporaryDirectory(prefix="tailrace-bench-") as folder:
        dev = start(Path(folder), controllers=1, coordinators=options.coordinators)
        try:
            report = asyncio.run(bench(dev, options))
        finally:
            stop(dev)
    if options.json:
        print(json.dumps(asdict(report)))
    else:
        show(report)
    return 0


if __name__ == "__main__":
    sys.exit(main())
