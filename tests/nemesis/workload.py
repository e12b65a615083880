"""The load of one client: a producer that never gives up, readers and a member of a group.

The producer has keys of its own in every partition and numbers its records. What was sent, what was
acknowledged where, what was read and what the group processed is `observed`; `verdict` judges it.
It runs in a process of its own (`client`), so that it can be cut off from any other process.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from time import monotonic

from nemesis.verdict import Acked, Seen
from tailrace.aio import Consumer
from tailrace.client.asynchronous import Producer
from tailrace.client.delivery import RecordMetadata
from tailrace.client.reader import PartitionReader
from tailrace.clock import SystemClock
from tailrace.errors import CommitFailed, RequestTimedOut, TailraceError
from tailrace.model import TopicPartition
from tailrace.transport.http2.network import Http2Network

KEYS = 3
OPEN_MAX = 1_000
CATCH_UP_S = 120.0
WAIT_SHOWN_MS = 100
GROUP = "nemesis"
SESSION_MS = 10_000
COMMIT_TIMEOUT_S = 20


def now_ms() -> float:
    return monotonic() * 1_000


@dataclass
class Pause:
    """A wait for an acknowledgement: from when (ms of the monotonic clock), how long, where."""

    from_ms: float
    ms: float
    partition: int


@dataclass
class Observed:
    """All that one client knows at its end."""

    acked: dict[tuple[bytes, int], Acked] = field(default_factory=dict)
    sent: dict[bytes, int] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    live: dict[int, list[Seen]] = field(default_factory=dict)
    pauses: list[Pause] = field(default_factory=list)
    # By partition: offsets that the group's member processed, in order; highest commit that held.
    processed: dict[int, array[int]] = field(default_factory=dict)
    committed: dict[int, int] = field(default_factory=dict)


@dataclass
class Workload:
    """Start it with `run` in a task; `stop` ends the producer, `catch_up` waits for the readers."""

    number: int
    bootstrap: Sequence[str]
    topic: str
    partitions: int
    # The partitions that this client reads all along.
    live: Sequence[int]
    interval_ms: float = 15.0
    observed: Observed = field(default_factory=Observed)
    _network: Http2Network = field(default_factory=Http2Network)
    _live_readers: dict[int, PartitionReader] = field(default_factory=dict)
    _open: dict[tuple[bytes, int], float] = field(default_factory=dict)
    _keys: dict[bytes, bytes] = field(default_factory=dict)
    _stop: asyncio.Event = field(default_factory=asyncio.Event)
    _close: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._produce())
            readers = [group.create_task(self._read_live(each)) for each in self.live]
            member = group.create_task(self._process())
            await self._close.wait()
            await member
            for reader in readers:
                reader.cancel()
        await self._network.close()

    async def stop(self) -> None:
        """Send nothing more, and wait until every record has its fate."""
        self._stop.set()
        await _until(lambda: not self._open, CATCH_UP_S)
        if self._open:
            self.observed.problems.append(
                f"client {self.number}: {len(self._open)} records have no fate after the last calm"
            )

    async def catch_up(self, records: Mapping[int, int]) -> None:
        """Wait until the live readers have read so many records of each partition."""
        seen = self.observed.live
        await _until(lambda: all(len(seen[each]) >= records[each] for each in self.live), 30)
        for partition in self.live:
            if len(seen[partition]) < records[partition]:
                reader = self._live_readers.get(partition)
                trouble = (reader.trouble or "no trouble known") if reader else "it was closed"
                self.observed.problems.append(
                    f"the live reader of partition {partition} stands at "
                    f"{len(seen[partition])} of {records[partition]}: {trouble}"
                )

    def close(self) -> None:
        self._close.set()

    # Producing.

    async def _produce(self) -> None:
        rng, turn = Random(self.number), 0
        while not self._stop.is_set():
            try:
                async with Producer(self.bootstrap, client_id=f"n{self.number}") as producer:
                    while not self._stop.is_set():
                        await self._send_some(producer, turn)
                        turn += 1
                        await asyncio.sleep(self.interval_ms * rng.uniform(0.2, 2.0) / 1000)
                    await producer.flush()
            except TailraceError as error:
                # A producer is to outlive everything that is done here.
                self._problem("producer", error)
                await asyncio.sleep(1)

    async def _send_some(self, producer: Producer, turn: int) -> None:
        for partition in range(self.partitions):
            if len(self._open) >= OPEN_MAX:
                return
            key = b"%d/%d/%d" % (self.number, partition, turn % KEYS)
            record = self.observed.sent.get(key, 0)
            self.observed.sent[key] = record + 1
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
                self._failed(key, record, error)

    def _noting(
        self, key: bytes, record: int, partition: int
    ) -> Callable[[RecordMetadata | None, TailraceError | None], None]:
        def note(metadata: RecordMetadata | None, error: TailraceError | None) -> None:
            self._ended(key, record, partition)
            if metadata is not None:
                self.observed.acked[key, record] = Acked(metadata.partition, metadata.offset)
            else:
                self._failed(key, record, error)

        return note

    def _failed(self, key: bytes, record: int, error: TailraceError | None) -> None:
        self.observed.failures.append(f"{key!r} {record}: {type(error).__name__}: {error}")

    def _ended(self, key: bytes, record: int, partition: int) -> None:
        sent_ms = self._open.pop((key, record))
        wait_ms = now_ms() - sent_ms
        if wait_ms > WAIT_SHOWN_MS:
            self.observed.pauses.append(Pause(sent_ms, wait_ms, partition))

    # Reading.

    async def _read_live(self, partition: int) -> None:
        seen = self.observed.live.setdefault(partition, [])
        while True:
            reader = reader_of(
                self._network, self.bootstrap, TopicPartition(self.topic, partition), len(seen)
            )
            try:
                async with reader:
                    self._live_readers[partition] = reader
                    async for record in reader.records():
                        seen.append(self._seen(record.offset, record.key, record.value))
            except TailraceError as error:
                self._problem(f"live reader of {partition}", error)
                await asyncio.sleep(1)

    def _seen(self, offset: int, key: bytes | None, value: bytes | None) -> Seen:
        known = key or b""
        return Seen(offset, self._keys.setdefault(known, known), int(value or b"-1"))

    # The group.

    async def _process(self) -> None:
        """A member that processes each record before it commits."""
        while not self._close.is_set():
            try:
                async with Consumer(
                    self.topic,
                    bootstrap_servers=self.bootstrap,
                    group_id=GROUP,
                    auto_offset_reset="earliest",
                    enable_auto_commit=False,
                    session_timeout_ms=SESSION_MS,
                    heartbeat_interval_ms=SESSION_MS // 6,
                ) as consumer:
                    while not self._close.is_set():
                        await self._process_some(consumer)
            except TailraceError as error:
                self._problem("member of the group", error)
                await asyncio.sleep(1)

    async def _process_some(self, consumer: Consumer) -> None:
        records = await consumer.poll(1.0)
        positions: dict[int, int] = {}
        for each in records:
            done = self.observed.processed.setdefault(each.partition, array("q"))
            done.append(each.offset)
            positions[each.partition] = each.offset + 1
        if not positions:
            return
        try:
            await consumer.commit(timeout=COMMIT_TIMEOUT_S)
        except (CommitFailed, RequestTimedOut):
            # Refused, or nobody knows: whoever has the partitions now goes on from the last one.
            return
        for partition, position in positions.items():
            highest = self.observed.committed.get(partition, 0)
            self.observed.committed[partition] = max(position, highest)

    def _problem(self, who: str, error: TailraceError) -> None:
        self.observed.problems.append(
            f"client {self.number}, {who}: {type(error).__name__}: {error}"
        )


def reader_of(
    network: Http2Network, bootstrap: Sequence[str], partition: TopicPartition, offset: int
) -> PartitionReader:
    return PartitionReader(
        bootstrap,
        partition.topic,
        partition.partition,
        offset,
        network=network,
        clock=SystemClock(),
        rng=Random(),
    )


async def _until(check: Callable[[], bool], within_s: float) -> None:
    end = monotonic() + within_s
    while not check() and monotonic() < end:  # noqa: ASYNC110 - nobody tells.
        await asyncio.sleep(0.05)
