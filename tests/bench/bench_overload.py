"""What three brokers do when they are asked for ten times what they can carry.

First the peak: a few producers, as fast as they are answered. Then 50 producers that each have five
requests on their way and 20 readers that give credit and take next to nothing, for some minutes.
Then one producer again. The report: goodput against the peak, every kind of refusal, whether each
had a hint, the brokers' memory from second to second, and how long until all was as before.

    python tests/bench/bench_overload.py --minutes 5
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from time import perf_counter
from typing import Any

from bench.usage import resident_bytes
from integration.cluster_harness import Cluster, connected, start, stop
from tailrace.dev.cluster import DevCluster
from tailrace.dev.state import Role
from tailrace.errors import Overloaded, Unreachable
from tailrace.record.build import BatchBuilder
from tailrace.transport import envelopes, methods
from tailrace.transport.http2.network import Http2Network
from tailrace.transport.wire import code_name
from tailrace.v1 import broker_pb2 as pb
from tailrace.v1.common_pb2 import TopicPartition

TOPIC = "load"
PARTITIONS = 6
REQUEST_BYTES = 256 << 10
IN_FLIGHT = 5
PEAK_PRODUCERS = 4
PRODUCERS = 50
READERS = 20
PHASE_S = 10.0
# One response a second is next to nothing.
READER_PAUSE_S = 1.0
READER_CREDIT_BYTES = 64 << 20
NORMAL_MS = 250.0
MB = 1e6
# Little is kept, so that the disk is not what is measured, and little may wait, so that it fills.
SETTINGS: dict[str, Any] = {
    "produce_bytes_max": str(8 << 20),
    "retention_bytes": str(64 << 20),
    "segment_bytes": str(16 << 20),
    "log_retention_check_interval_ms": "1000",
    "client_stall_timeout_ms": "10000",
}


@dataclass
class Tally:
    """What became of the requests of one phase."""

    acked_bytes: int = 0
    refusals: Counter[str] = field(default_factory=Counter)
    without_hint: int = 0
    broken: int = 0
    seconds: float = 0.0

    @property
    def mb_per_s(self) -> float:
        return self.acked_bytes / self.seconds / MB if self.seconds else 0.0


def request_data() -> bytes:
    builder, rng = BatchBuilder(), Random(1)
    value = rng.randbytes(4 << 10)
    for _ in range(REQUEST_BYTES // len(value)):
        builder.append(value, timestamp_ms=1)
    return builder.build()


class Pump:
    """One producer: so many requests on their way, each refusal waited out as it was hinted."""

    def __init__(self, addresses: dict[int, str], leaders: list[int], tally: Tally) -> None:
        self._network = Http2Network()
        self._addresses = addresses
        self._leaders = leaders
        self._tally = tally

    async def run(self, number: int, data: bytes) -> None:
        partition = number % PARTITIONS
        address = self._addresses[self._leaders[partition]]
        part = envelopes.PartitionBatches(
            partition=TopicPartition(topic=TOPIC, partition=partition),
            leader_epoch=-1,
            batches=data,
        )
        request = envelopes.ProduceRequest(
            acks=pb.ACKS_ALL,
            timeout_ms=20_000,
            partitions=[part],
            client_id=f"pump-{number}",
        )
        try:
            while True:
                with suppress(Unreachable):
                    await self._stream(address, request, len(data))
                self._tally.broken += 1
                await asyncio.sleep(0.1)
        finally:
            await self._network.close()

    async def _stream(self, address: str, request: envelopes.ProduceRequest, size: int) -> None:
        channel = self._network.channel(address)
        stream = channel.open(methods.BROKER_PRODUCE)
        try:
            for _ in range(IN_FLIGHT):
                await stream.send(request)
            while (answer := await stream.recv()) is not None:
                part = answer.partitions[0]
                if part.error:
                    self._refused(part)
                    await asyncio.sleep(part.retry_after_ms / 1000)
                else:
                    self._tally.acked_bytes += size
                await stream.send(request)
        finally:
            stream.cancel()
            await channel.close()

    def _refused(self, part: pb.PartitionProduced) -> None:
        code = code_name(part.error)
        self._tally.refusals[code] += 1
        if code == Overloaded.code and not part.retry_after_ms:
            self._tally.without_hint += 1


async def read_slowly(address: str, partition: int, tally: Counter[str]) -> None:
    """Give a lot of credit and take one response a second; begin again when cut off."""
    network = Http2Network()
    wanted = pb.FetchPartition(
        partition=TopicPartition(topic=TOPIC, partition=partition),
        leader_epoch=-1,
        last_epoch=-1,
    )
    try:
        while True:
            stream = network.channel(address).open(methods.BROKER_FETCH)
            with suppress(Unreachable):
                await stream.send(pb.FetchRequest(add=[wanted], credit_bytes=READER_CREDIT_BYTES))
                while (response := await stream.recv()) is not None:
                    for each in response.partitions:
                        if each.error:
                            # What it wanted is gone by retention: it is that slow.
                            wanted.offset = each.log_start
                            raise Unreachable(code_name(each.error))
                    tally["responses"] += 1
                    await asyncio.sleep(READER_PAUSE_S)
            tally["begun again"] += 1
            stream.cancel()
            await asyncio.sleep(READER_PAUSE_S)
    finally:
        await network.close()


class Memory:
    """The resident memory of each broker, in MB, from second to second."""

    def __init__(self, dev: DevCluster) -> None:
        brokers = [each for each in dev.state.members if each.role is Role.BROKER]
        self._pids = [each.identity.pid for each in brokers if each.identity is not None]
        self.samples: list[list[float]] = []

    async def run(self) -> None:
        while True:
            self.samples.append([resident_bytes(pid) / MB for pid in self._pids])
            await asyncio.sleep(1)

    def largest(self) -> float:
        return max(max(each) for each in self.samples)

    def by_minute(self) -> list[float]:
        """The largest of each sixth of the time: flat when the last are like the others."""
        size = max(len(self.samples) // 6, 1)
        parts = [self.samples[at : at + size] for at in range(0, len(self.samples), size)]
        return [round(max(max(each) for each in part)) for part in parts]


async def phase(
    cluster: Cluster, producers: int, seconds: float, *, readers: int = 0
) -> tuple[Tally, Counter[str]]:
    described = await cluster.admin.describe_topic(TOPIC)
    leaders = [each.leader for each in described.partitions]
    addresses = {
        each.broker_id: each.address for each in (await cluster.admin.describe_cluster()).brokers
    }
    tally, read, data = Tally(), Counter[str](), request_data()
    tasks = [
        asyncio.ensure_future(Pump(addresses, leaders, tally).run(each, data))
        for each in range(producers)
    ]
    for number in range(readers):
        partition = number % PARTITIONS
        address = addresses[leaders[partition]]
        tasks.append(asyncio.ensure_future(read_slowly(address, partition, read)))
    begun = perf_counter()
    await asyncio.sleep(seconds)
    tally.seconds = perf_counter() - begun
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return tally, read


async def until_normal(cluster: Cluster) -> float:
    """How long until ten single requests in a row are answered quickly, in s."""
    begun, good = perf_counter(), 0
    while good < 10:
        asked = perf_counter()
        tally, _ = await phase(cluster, 1, 0.2)
        waited_ms = (perf_counter() - asked) * 1000 - 200
        is_good = tally.acked_bytes > 0 and not tally.refusals and waited_ms < NORMAL_MS
        good = good + 1 if is_good else 0
        if perf_counter() - begun > 60:
            return float("inf")
    return perf_counter() - begun - 10 * 0.2


async def measure(dev: DevCluster, minutes: float) -> dict[str, object]:
    async with connected(dev) as cluster:
        await cluster.admin.create_topic(TOPIC, partitions=PARTITIONS)
        await phase(cluster, 1, 2.0)
        memory = Memory(dev)
        before_mb = max(resident_bytes(pid) / MB for pid in memory._pids)
        peak, _ = await phase(cluster, PEAK_PRODUCERS, PHASE_S)
        sampling = asyncio.ensure_future(memory.run())
        load, read = await phase(cluster, PRODUCERS, minutes * 60, readers=READERS)
        sampling.cancel()
        recovered_s = await until_normal(cluster)
        after, _ = await phase(cluster, PEAK_PRODUCERS, PHASE_S)
        return {
            "peak_mb_s": round(peak.mb_per_s, 1),
            "overload_mb_s": round(load.mb_per_s, 1),
            "goodput_share": round(load.mb_per_s / peak.mb_per_s, 2),
            "after_mb_s": round(after.mb_per_s, 1),
            "refusals": dict(load.refusals),
            "refusals_without_hint": load.without_hint,
            "broken_streams": load.broken,
            "slow_readers": dict(read),
            "memory_before_mb": round(before_mb),
            "memory_largest_mb": round(memory.largest()),
            "memory_over_time_mb": memory.by_minute(),
            "normal_again_s": round(recovered_s, 1),
        }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tailrace-overload-") as folder:
        dev = start(Path(folder), controllers=1, **SETTINGS)
        try:
            print(json.dumps(asyncio.run(measure(dev, given.minutes)), indent=2))
        finally:
            stop(dev)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
