"""A real cluster for tests: real processes and etcd, a load that never rests, and a checker.

`Load` is a continuous idempotent producer and a reader of everything it writes. It knows of each
record when it was handed over, when it was acknowledged and where it was read, and so can say what
was lost, written twice or out of order, and how long the producer had to wait.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from statistics import median

from tailrace.client.admin import AdminCore
from tailrace.client.delivery import RecordMetadata
from tailrace.client.producer import ProducerCore
from tailrace.client.reader import PartitionReader
from tailrace.client.settings import ProducerSettings
from tailrace.clock import SystemClock
from tailrace.dev.cluster import DevCluster, Plan
from tailrace.dev.processes import Life
from tailrace.dev.state import Member
from tailrace.errors import TailraceError
from tailrace.transport.http2.network import Http2Network

ROUNDS = int(os.environ.get("TAILRACE_ROUNDS", "1"))
KEYS_PER_PARTITION = 4
# Whatever is waited for in a test has come by then, also on a busy machine.
PATIENCE_S = 45.0


def now_ms() -> float:
    return time.monotonic() * 1000


async def eventually(what: str, check: Callable[[], bool], *, within_s: float = PATIENCE_S) -> None:
    """Wait until something is so; says what never was."""
    end = time.monotonic() + within_s
    while not check():
        assert time.monotonic() < end, f"not within {within_s} s: {what}"
        await asyncio.sleep(0.01)


class Cluster:
    """The processes, and an administrator who looks at them through the front door."""

    def __init__(self, dev: DevCluster, admin: AdminCore, network: Http2Network) -> None:
        self.dev = dev
        self.admin = admin
        self.network = network

    @property
    def bootstrap(self) -> list[str]:
        return self.dev.state.bootstrap.split(",")

    async def leader(self, topic: str, partition: int) -> str:
        described = await self.admin.describe_topic(topic)
        return f"broker-{described.partitions[partition].leader}"

    async def follower(self, topic: str, partition: int) -> str:
        found = (await self.admin.describe_topic(topic)).partitions[partition]
        return f"broker-{next(each for each in found.isr if each != found.leader)}"

    async def controller(self) -> str:
        described = await self.admin.describe_cluster()
        return f"controller-{described.controller_id}"

    async def epochs(self, topic: str) -> list[int]:
        described = await self.admin.describe_topic(topic)
        return [each.leader_epoch for each in described.partitions]

    async def kill(self, *names: str) -> None:
        """SIGKILL all of them in the same moment."""
        identities = [self.dev.state.member(name).identity for name in names]
        for identity in identities:
            assert identity is not None
            os.kill(identity.pid, signal.SIGKILL)
        for name in names:
            await self.until_gone(name)

    async def until_gone(self, name: str) -> None:
        member = self.dev.state.member(name)
        await eventually(f"{name} has ended", lambda: self.dev.life(member) is Life.EXITED)

    async def until_well(self, topic: str) -> None:
        """Every process listens, also who stands by, and every replica is in sync again."""
        end = time.monotonic() + PATIENCE_S
        while True:
            described = await self.admin.describe_topic(topic)
            if all(len(each.isr) == len(each.replicas) for each in described.partitions):
                deaf = [each.name for each in self.dev.state.members if not await listens(each)]
                if not deaf:
                    return
            assert time.monotonic() < end, f"still not well: {described}"
            await asyncio.sleep(0.05)

    def last_words(self) -> str:
        """The ends of all logs, for the report of a failure."""
        lines: list[str] = []
        for member in self.dev.state.members:
            path = self.dev.log_path(member.name)
            text = path.read_text(errors="replace") if path.exists() else ""
            lines += [f"== {member.name}", *text.splitlines()[-12:]]
        return "\n".join(lines)


def start(
    folder: Path,
    *,
    brokers: int = 3,
    controllers: int = 2,
    coordinators: int = 0,
    coordinator_settings: dict[str, str] | None = None,
    **settings: str,
) -> DevCluster:
    """Start a cluster, outside of any loop. Settings go to all brokers and controllers."""
    given = {name.replace("_", "."): value for name, value in settings.items()}
    lease = {k: v for k, v in given.items() if k.startswith("broker.lease")}
    dev = DevCluster(folder)
    plan = Plan(
        brokers=brokers,
        controllers=controllers,
        coordinators=coordinators,
        coordinator_settings=coordinator_settings or {},
        broker_settings=given,
        controller_settings=lease,
        etcd_fsync=False,
    )
    asyncio.run(dev.up(plan))
    return dev


def stop(dev: DevCluster) -> None:
    """End it the quick way: nobody needs it any more."""

    async def end() -> None:
        for member in dev.state.members:
            if dev.life(member) is not Life.EXITED:
                await dev.signal(member.name, signal.SIGKILL)

    asyncio.run(end())


@asynccontextmanager
async def connected(dev: DevCluster) -> AsyncIterator[Cluster]:
    network = Http2Network()
    admin = AdminCore(
        dev.state.bootstrap.split(","), network=network, clock=SystemClock(), rng=Random()
    )
    try:
        yield Cluster(dev, admin, network)
    finally:
        await admin.close()


@dataclass(slots=True)
class Sent:
    """One record, from the hand to the log and back."""

    partition: int
    key: bytes
    number: int
    sent_ms: float
    acked_ms: float | None = None
    offset: int = -1
    error: TailraceError | None = None


@dataclass
class Load:
    """A producer that goes on and on, and readers of all it writes."""

    cluster: Cluster
    topic: str
    partitions: int
    interval_ms: float = 10.0
    sent: list[Sent] = field(default_factory=list)
    # By partition: what was read, in order, as (offset, key, number).
    seen: dict[int, list[tuple[int, bytes, int]]] = field(default_factory=dict)
    _stopped: bool = False
    _producer: ProducerCore | None = None
    _readers: dict[int, PartitionReader] = field(default_factory=dict)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Load]:
        """Everything goes on inside; at the end it is all checked."""
        async with asyncio.TaskGroup() as group:
            producing = group.create_task(self._produce())
            readers = [
                group.create_task(self._read(partition)) for partition in range(self.partitions)
            ]
            try:
                yield self
            except BaseException:
                producing.cancel()
                for reader in readers:
                    reader.cancel()
                raise
            self._stopped = True
            await producing
            try:
                await self._until_read()
            finally:
                for reader in readers:
                    reader.cancel()
        self.check()

    async def flowing(self, *, since_ms: float, records: int = 5) -> None:
        """Wait until records handed over after a moment are acknowledged, in all partitions."""

        def flows() -> bool:
            done = [0] * self.partitions
            for each in reversed(self.sent):
                if each.sent_ms < since_ms:
                    break
                done[each.partition] += each.acked_ms is not None
            return min(done) >= records

        await eventually("records are acknowledged again", flows)

    def pause_ms(self, since_ms: float) -> float:
        """The longest wait for an acknowledgement since a moment."""
        waits = [
            (each.acked_ms or now_ms()) - max(each.sent_ms, since_ms)
            for each in self.sent
            if each.acked_ms is None or each.acked_ms >= since_ms
        ]
        return max(waits, default=0.0)

    def check(self) -> None:
        """Nothing acknowledged is lost; nothing is there twice or out of order."""
        failed = [each for each in self.sent if each.error is not None or each.acked_ms is None]
        assert failed == []
        for partition in range(self.partitions):
            seen = self.seen.get(partition, [])
            offsets = [offset for offset, _, _ in seen]
            assert offsets == list(range(offsets[0], offsets[0] + len(offsets))) if seen else True
            by_key: dict[bytes, list[int]] = {}
            for _, key, number in seen:
                by_key.setdefault(key, []).append(number)
            for key, numbers in by_key.items():
                assert numbers == list(range(len(numbers))), f"{key!r}: {_first_wrong(numbers)}"
            places = {(key, number): offset for offset, key, number in seen}
            for each in self.sent:
                if each.partition == partition:
                    found = places.get((each.key, each.number))
                    assert found == each.offset, f"{each} was read at {found}"

    async def _produce(self) -> None:
        producer = self._producer = ProducerCore(
            self.cluster.bootstrap,
            ProducerSettings(),
            network=self.cluster.network,
            clock=SystemClock(),
            rng=Random(),
        )
        numbers: dict[bytes, int] = {}
        turn = 0
        try:
            while not self._stopped:
                for partition in range(self.partitions):
                    key = b"%d/%d" % (partition, turn % KEYS_PER_PARTITION)
                    number = numbers[key] = numbers.get(key, -1) + 1
                    record = Sent(partition, key, number, now_ms())
                    self.sent.append(record)
                    await producer.send(
                        self.topic,
                        b"%d" % number,
                        key,
                        partition=partition,
                        callback=_noting(record),
                    )
                turn += 1
                await asyncio.sleep(self.interval_ms / 1000)
            async with asyncio.timeout(PATIENCE_S):
                await producer.flush()
        finally:
            await producer.close(timeout_ms=1_000)

    async def _read(self, partition: int) -> None:
        seen = self.seen.setdefault(partition, [])
        reader = PartitionReader(
            self.cluster.bootstrap,
            self.topic,
            partition,
            "earliest",
            network=self.cluster.network,
            clock=SystemClock(),
            rng=Random(),
        )
        self._readers[partition] = reader
        try:
            async for record in reader.records():
                seen.append((record.offset, record.key or b"", int(record.value or b"-1")))
        finally:
            await reader.close()

    async def _until_read(self) -> None:
        wanted = [sum(each.partition == p for each in self.sent) for p in range(self.partitions)]

        def is_read() -> bool:
            return all(len(self.seen[p]) >= wanted[p] for p in range(self.partitions))

        try:
            await eventually("all records are read", is_read)
        except AssertionError as error:
            for partition, reader in self._readers.items():
                error.add_note(
                    f"partition {partition}: {len(self.seen[partition])} of {wanted[partition]}, "
                    f"high watermark {reader.high_watermark}, trouble {reader.trouble!r}"
                )
            raise


@dataclass
class Pauses:
    """How long the producer waited, fault by fault."""

    what: str
    ms: list[float] = field(default_factory=list)
    records: int = 0

    def __str__(self) -> str:
        return (
            f"{self.what}: median {median(self.ms):.0f} ms, worst {max(self.ms):.0f} ms "
            f"of {len(self.ms)}"
        )


def _noting(
    record: Sent,
) -> Callable[[RecordMetadata | None, TailraceError | None], None]:
    def note(metadata: RecordMetadata | None, error: TailraceError | None) -> None:
        record.acked_ms = now_ms()
        record.error = error
        if metadata is not None:
            record.offset = metadata.offset

    return note


async def listens(member: Member) -> bool:
    try:
        _, writer = await asyncio.open_connection(member.host, member.port)
    except OSError:
        return False
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()
    return True


def _first_wrong(numbers: list[int]) -> str:
    for at, number in enumerate(numbers):
        if at != number:
            return f"{number} came where {at} was due, after {numbers[max(at - 3, 0) : at]}"
    return "all in order"
