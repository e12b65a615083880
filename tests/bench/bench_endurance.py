"""Mixed load on a thousand partitions for as long as you like, and what memory becomes of it.

Real processes and a real etcd: writers that come and go (each a new producer id), partitions kept
by bytes and partitions kept by key, a group that reads and commits, readers that begin at the
start, topics made, changed and deleted. The report has the resident memory of every process from
one part of the time to the next: it is bounded when the last parts are like those before them.

    python tests/bench/bench_endurance.py --minutes 60
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests")]

from bench.usage import cpu_s, resident_bytes  # noqa: E402
from integration.cluster_harness import Cluster, connected, start, stop  # noqa: E402
from tailrace.aio import Consumer, Producer  # noqa: E402
from tailrace.client.reader import PartitionReader  # noqa: E402
from tailrace.clock import SystemClock  # noqa: E402
from tailrace.dev.cluster import DevCluster  # noqa: E402
from tailrace.errors import TailraceError  # noqa: E402

KEPT_BY_BYTES, KEPT_BY_KEY = "events", "state"
STATE_SHARE = 5
KEYS = 200
WRITER_LIFE_S = 20.0
BURST_RECORDS = 40
BURST_PAUSE_S = 0.6
COLD_WAIT_MS = 10_000
COLD_PAUSE_S = 4.0
CHURN_EVERY_S = 15.0
SAMPLE_S = 5.0
PARTS = 12
MB = 1e6
# Writers are remembered for minutes instead of a day: an hour has to show what comes and goes.
SETTINGS: dict[str, Any] = {
    "producer_id_expiration_ms": "300000",
    "retention_bytes": str(1 << 20),
    "segment_bytes": str(256 << 10),
    "log_retention_check_interval_ms": "5000",
}


class Mix:
    """All the load there is; every kind counts what it did and what was refused."""

    def __init__(self, cluster: Cluster, partitions: int) -> None:
        self._cluster = cluster
        self._state_partitions = max(partitions // STATE_SHARE, 1)
        self._partitions = {
            KEPT_BY_KEY: self._state_partitions,
            KEPT_BY_BYTES: partitions - self._state_partitions,
        }
        self.did: Counter[str] = Counter()
        self.trouble: Counter[str] = Counter()

    async def prepare(self) -> None:
        for topic, partitions in self._partitions.items():
            config = {"cleanup.policy": "compact"} if topic == KEPT_BY_KEY else {}
            await self._cluster.admin.create_topic(
                topic, partitions=partitions, config=config, timeout_ms=120_000
            )

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(2):
                group.create_task(self._forever("writing", self._write, number))
                group.create_task(self._forever("reading in a group", self._read_group, number))
            group.create_task(self._forever("reading from the start", self._read_cold, 7))
            group.create_task(self._forever("administration", self._administer, 8))

    async def _forever(self, what: str, act: object, number: int) -> None:
        rng = Random(number)
        while True:
            try:
                await act(rng)  # type: ignore[operator]
            except TailraceError as error:
                self.trouble[f"{what}: {type(error).__name__}"] += 1
                await asyncio.sleep(1)

    async def _write(self, rng: Random) -> None:
        """One writer's life; the next has an id of its own."""
        end = time.monotonic() + WRITER_LIFE_S
        async with Producer(self._cluster.bootstrap) as producer:
            while time.monotonic() < end:
                sent = []
                for _ in range(BURST_RECORDS):
                    topic = rng.choice(list(self._partitions))
                    sent.append(
                        producer.send(
                            topic,
                            rng.randbytes(rng.choice((100, 1_000, 4_000))),
                            key=b"key-%d" % rng.randrange(KEYS),
                            partition=rng.randrange(self._partitions[topic]),
                        )
                    )
                for each in asyncio.as_completed(sent):
                    await each
                self.did["written"] += len(sent)
                await asyncio.sleep(BURST_PAUSE_S)

    async def _read_group(self, rng: Random) -> None:
        """A member that leaves now and then; what it read, it commits."""
        end = time.monotonic() + rng.uniform(60, 180)
        async with Consumer(
            *self._partitions,
            bootstrap_servers=self._cluster.bootstrap,
            group_id="endurance",
            auto_offset_reset="latest",
            enable_auto_commit=False,
        ) as consumer:
            while time.monotonic() < end:
                records = await consumer.poll(timeout=1.0, max_records=500)
                if records:
                    self.did["read by the group"] += len(records)
                    await consumer.commit()
                    self.did["commits"] += 1

    async def _read_cold(self, rng: Random) -> None:
        topic = rng.choice(list(self._partitions))
        partition = rng.randrange(self._partitions[topic])
        starts = await self._cluster.admin.list_offsets(topic, "earliest", partitions=[partition])
        ends = await self._cluster.admin.list_offsets(topic, partitions=[partition])
        at, end = starts[partition].offset, ends[partition].offset
        reader = PartitionReader(
            self._cluster.bootstrap,
            topic,
            partition,
            offset=at,
            network=self._cluster.network,
            clock=SystemClock(),
            rng=rng,
        )
        async with reader:
            while at < end:
                fetched = await reader.next(timeout_ms=COLD_WAIT_MS)
                if fetched is None:
                    self.trouble["a cold read had to wait"] += 1
                    break
                at = fetched.header.next_offset
                self.did["batches read from the start"] += 1
        await asyncio.sleep(COLD_PAUSE_S)

    async def _administer(self, rng: Random) -> None:
        name = f"short-lived-{rng.randrange(10**9)}"
        admin = self._cluster.admin
        await admin.create_topic(name, partitions=3)
        await admin.alter_config("topics", name, {"retention.ms": "60000"})
        async with Producer(self._cluster.bootstrap) as producer:
            await producer.send(name, b"hello")
        await asyncio.sleep(CHURN_EVERY_S)
        await admin.delete_topic(name)
        self.did["topics made and deleted"] += 1


class Memory:
    """Resident memory of each process, in MB."""

    def __init__(self, dev: DevCluster) -> None:
        self._pids = {
            each.name: each.identity.pid for each in dev.state.members if each.identity is not None
        }
        self.samples: dict[str, list[float]] = {name: [] for name in self._pids}
        self._cpu_began = {name: cpu_s(pid) for name, pid in self._pids.items()}

    async def run(self) -> None:
        while True:
            for name, pid in self._pids.items():
                self.samples[name].append(resident_bytes(pid) / MB)
            await asyncio.sleep(SAMPLE_S)

    def by_part(self) -> dict[str, list[int]]:
        """The largest of each twelfth of the time."""
        found = {}
        for name, all_of_it in self.samples.items():
            size = max(len(all_of_it) // PARTS, 1)
            parts = [all_of_it[at : at + size] for at in range(0, len(all_of_it), size)]
            found[name] = [round(max(part)) for part in parts]
        return found

    def ended(self) -> list[str]:
        return [name for name, all_of_it in self.samples.items() if all_of_it and not all_of_it[-1]]

    def cpu_s(self) -> dict[str, float]:
        began = self._cpu_began
        return {name: round(cpu_s(pid) - began[name], 1) for name, pid in self._pids.items()}


async def measure(dev: DevCluster, minutes: float, partitions: int) -> dict[str, object]:
    async with connected(dev) as cluster:
        mix = Mix(cluster, partitions)
        await mix.prepare()
        memory = Memory(dev)
        tasks = [asyncio.ensure_future(mix.run()), asyncio.ensure_future(memory.run())]
        end = time.monotonic() + minutes * 60
        while (left := end - time.monotonic()) > 0:
            done, _ = await asyncio.wait(tasks, timeout=min(left, 60))
            for each in done:
                each.result()
            for name in memory.ended():
                # Nobody was killed here.
                raise RuntimeError(f"{name} ended: {cluster.last_words()}")
            print(f"{left / 60:5.1f} min left: {dict(mix.did)} {dict(mix.trouble)}", flush=True)
        for each in tasks:
            each.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.gather(*tasks, return_exceptions=True)
        return {
            "minutes": minutes,
            "partitions": partitions,
            "did": dict(mix.did),
            "trouble": dict(mix.trouble),
            "cpu_s": memory.cpu_s(),
            "memory_over_time_mb": memory.by_part(),
        }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--partitions", type=int, default=1_000)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tailrace-endurance-") as folder:
        dev = start(Path(folder) / "cluster", coordinators=1, **SETTINGS)
        try:
            report = asyncio.run(measure(dev, given.minutes, given.partitions))
            print(json.dumps(report, indent=2))
        finally:
            stop(dev)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
