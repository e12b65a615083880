"""The load of a nemesis: producers that never give up, readers that never look away.

Each producer has keys of its own in every partition and numbers their records. What was sent, what
was acknowledged where and what was read goes to `verdict`; how long it took, into the report.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random

from integration.cluster_harness import Cluster, now_ms
from nemesis.verdict import Acked, Seen, Verdict, judge
from tailrace.client.asynchronous import Producer
from tailrace.client.delivery import RecordMetadata
from tailrace.client.reader import PartitionReader
from tailrace.clock import SystemClock
from tailrace.errors import TailraceError

PRODUCERS = 3
KEYS = 3
OPEN_MAX = 3_000
FINAL_READ_S = 120.0
PAUSES_SHOWN = 8
PAUSE_APART_MS = 1_500.0


@dataclass
class Pause:
    """A wait for an acknowledgement, from when to how long."""

    at_s: float
    ms: float
    partition: int


@dataclass
class Workload:
    """Start it with `run` in a task, end it with `finish`."""

    cluster: Cluster
    topic: str
    partitions: int
    began_ms: float = field(default_factory=now_ms)
    interval_ms: float = 15.0
    acked: dict[tuple[bytes, int], Acked] = field(default_factory=dict)
    sent: dict[bytes, int] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    live: dict[int, list[Seen]] = field(default_factory=dict)
    _live_readers: dict[int, PartitionReader] = field(default_factory=dict)
    _waits: list[Pause] = field(default_factory=list)
    _open: dict[tuple[bytes, int], float] = field(default_factory=dict)
    _stop: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(PRODUCERS):
                group.create_task(self._produce(number))
            for partition in range(self.partitions):
                group.create_task(self._read_live(partition))

    async def finish(self) -> tuple[Verdict, int]:
        """Stop, read everything from the start, judge; also how many records there are."""
        self._stop.set()
        end = now_ms() + FINAL_READ_S * 1000
        await _until(lambda: not self._open, end)
        if self._open:
            self.problems.append(f"{len(self._open)} records have no fate after the last calm")
        final = {}
        for partition in range(self.partitions):
            final[partition] = await self._read_all(partition)
        records = sum(map(len, final.values()))
        await _until(lambda: sum(map(len, self.live.values())) >= records, end)
        for partition, seen in final.items():
            if len(self.live[partition]) < len(seen):
                reader = self._live_readers.get(partition)
                self.problems.append(
                    f"the live reader of partition {partition} stands at "
                    f"{len(self.live[partition])} of {len(seen)}: "
                    f"{reader.trouble or 'no trouble known' if reader else 'it was closed'}"
                )
        return judge(self.acked, self.sent, final, self.live), records

    @property
    def open_records(self) -> int:
        return len(self._open)

    def pauses(self) -> list[Pause]:
        """The longest waits, no two of the same moment."""
        shown: list[Pause] = []
        for each in sorted(self._waits, key=lambda wait: -wait.ms):
            ends_ms = each.at_s * 1000 + each.ms
            if all(abs(other.at_s * 1000 + other.ms - ends_ms) > PAUSE_APART_MS for other in shown):
                shown.append(each)
            if len(shown) == PAUSES_SHOWN:
                break
        return shown

    async def _produce(self, number: int) -> None:
        rng, turn = Random(number), 0
        while not self._stop.is_set():
            try:
                async with Producer(self.cluster.bootstrap, client_id=f"n{number}") as producer:
                    while not self._stop.is_set():
                        await self._send_some(producer, number, turn)
                        turn += 1
                        await asyncio.sleep(self.interval_ms * rng.uniform(0.2, 2.0) / 1000)
                    await producer.flush()
            except TailraceError as error:
                # A producer is to outlive everything that is done here.
                self.problems.append(f"producer {number} failed: {type(error).__name__}: {error}")
                await asyncio.sleep(1)

    async def _send_some(self, producer: Producer, number: int, turn: int) -> None:
        for partition in range(self.partitions):
            if len(self._open) >= OPEN_MAX:
                return
            key = b"%d/%d/%d" % (number, partition, turn % KEYS)
            record = self.sent.get(key, 0)
            self.sent[key] = record + 1
            self._open[key, record] = now_ms()
            try:
                await producer.send(
                    self.topic,
                    b"%d" % record,
                    key,
                    partition=partition,
                    callback=self._noting(key, record, partition),
                )
            except TailraceError as error:
                self._ended(key, record, partition)
                self.failures.append(f"{key!r} {record}: {type(error).__name__}: {error}")

    def _noting(
        self, key: bytes, record: int, partition: int
    ) -> Callable[[RecordMetadata | None, TailraceError | None], None]:
        def note(metadata: RecordMetadata | None, error: TailraceError | None) -> None:
            self._ended(key, record, partition)
            if metadata is not None:
                self.acked[key, record] = Acked(metadata.partition, metadata.offset)
            else:
                self.failures.append(f"{key!r} {record}: {type(error).__name__}: {error}")

        return note

    def _ended(self, key: bytes, record: int, partition: int) -> None:
        sent_ms = self._open.pop((key, record))
        wait_ms = now_ms() - sent_ms
        if wait_ms > 100:
            self._waits.append(Pause((sent_ms - self.began_ms) / 1000, wait_ms, partition))

    async def _read_live(self, partition: int) -> None:
        seen = self.live.setdefault(partition, [])
        while True:
            try:
                async with self._reader(partition, len(seen)) as reader:
                    self._live_readers[partition] = reader
                    async for record in reader.records():
                        seen.append(_seen(record.offset, record.key, record.value))
            except TailraceError as error:
                self.problems.append(f"live reader of {partition}: {type(error).__name__}: {error}")
                await asyncio.sleep(1)

    async def _read_all(self, partition: int) -> list[Seen]:
        found = await self.cluster.admin.list_offsets(self.topic)
        end = found[partition].offset
        seen: list[Seen] = []
        if not end:
            return seen
        async with self._reader(partition, 0) as reader:
            with suppress(TimeoutError):
                async with asyncio.timeout(FINAL_READ_S):
                    async for record in reader.records():
                        seen.append(_seen(record.offset, record.key, record.value))
                        if record.offset + 1 >= end:
                            return seen
        self.problems.append(f"partition {partition} could only be read up to {len(seen)} of {end}")
        return seen

    def _reader(self, partition: int, offset: int) -> PartitionReader:
        return PartitionReader(
            self.cluster.bootstrap,
            self.topic,
            partition,
            offset,
            network=self.cluster.network,
            clock=SystemClock(),
            rng=Random(),
        )


async def _until(check: Callable[[], bool], end_ms: float) -> None:
    while not check() and now_ms() < end_ms:  # noqa: ASYNC110 - nobody tells.
        await asyncio.sleep(0.05)


def _seen(offset: int, key: bytes | None, value: bytes | None) -> Seen:
    return Seen(offset, key or b"", int(value or b"-1"))
