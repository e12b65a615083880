"""A run of a simulated cluster: a workload, a schedule of faults, a healing, and the checks."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from simulation.administering import Administrator
from simulation.checkers import Violation, Witness, is_sound
from simulation.cluster import SimCluster
from simulation.compacted import CompactedWitness
from simulation.loop import SimLoop
from simulation.person import Person
from simulation.readers import Reading
from tailrace.errors import TailraceError
from tailrace.model import TopicPartition
from tailrace.replication.partition import Role

TOPIC = "orders"
SETTLE_S = 60.0
LOOK_EVERY_S = 0.05
# Of each producer: about twenty records a second, so that batches hold one to a few of them.
BURST_MAX = 4
BURST_EVERY_S = 0.125

Faults = Callable[["Run"], Awaitable[None]]


class Run:
    """One cluster under load."""

    def __init__(
        self,
        loop: SimLoop,
        *,
        partitions: int = 2,
        producers: int = 2,
        config: dict[str, str] | None = None,
        administered: bool = False,
    ) -> None:
        """`administered`: a broker more than replicas, and somebody who moves them about."""
        self.loop = loop
        self.rng = loop.fork_rng("scenario")
        self.cluster = SimCluster(loop, brokers=4 if administered else 3)
        self.administrator = (
            Administrator(self.cluster, TOPIC, loop.fork_rng("administrator"))
            if administered
            else None
        )
        is_compacted = (config or {}).get("cleanup.policy") == "compact"
        self.witness = (CompactedWitness if is_compacted else Witness)(self.cluster)
        self.sent: dict[bytes, list[bytes]] = {}
        self.failed = 0
        self.partitions = partitions
        self._config = config
        self._producers = producers
        self._stopping = False
        self.readings: list[Reading] = []
        self.person = Person(self.cluster, TOPIC)

    async def play(self, faults: Faults | None = None, *, load_s: float = 5.0) -> None:
        """Start, load, break, heal, and check."""
        cluster = self.cluster
        cluster.start_all()
        await cluster.create_topic(TOPIC, partitions=self.partitions, config=self._config)
        looking = self.loop.create_task(self._look())
        writers = [self._writer(number) for number in range(self._producers)]
        self.read_anew()
        if faults is None:
            await asyncio.sleep(load_s)
        else:
            await faults(self)
        self.heal()
        self._stopping = True
        if self.administrator is not None:
            await self.administrator.finish()
            self._read_added()
        await self._settle(writers)
        looking.cancel()
        if looking.done() and not looking.cancelled() and looking.exception():
            raise looking.exception()  # type: ignore[misc]
        self.witness.look()
        self.witness.check_end(self.sent)
        if self.administrator is not None:
            self.administrator.check_end()
        problems = cluster.problems + cluster.network.handler_failures
        problems += [f"I4: {r.name}: {r.ended_by!r}" for r in self.readings if r.ended_by]
        if problems:
            raise Violation("; ".join(problems))

    def read_anew(self) -> None:
        """Programs that know nothing yet read all partitions from the beginning."""
        self.readings = [
            Reading(self.cluster, self.witness, TopicPartition(TOPIC, number))
            for number in range(self.partitions)
        ]

    def _read_added(self) -> None:
        """Partitions that were added are read too."""
        for number in range(self.partitions, len(self.cluster.assignment(TOPIC))):
            partition = TopicPartition(TOPIC, number)
            self.readings.append(Reading(self.cluster, self.witness, partition))

    def heal(self) -> None:
        """End all faults and start everything that is down."""
        cluster = self.cluster
        cluster.network.heal()
        cluster.etcd.make_right()
        cluster.etcd.heal()
        for node in cluster.brokers:
            node.files.disk_bytes_max = None
        cluster.start_all()
        # What was still on its way to stop when the healing began comes back too.
        self.loop.create_task(self.person.run())

    def _writer(self, number: int) -> asyncio.Task[None]:
        name = f"p{number}"
        process, make = self.cluster.producer(name, delivery_timeout_ms=120_000)
        return process.spawn("write", self._write(name, make))

    async def _write(self, name: str, make: Callable[[], object]) -> None:
        """Send numbered records in bursts, a few keys in turn, without waiting for each."""
        producer = make()
        rng = self.loop.fork_rng(f"load of {name}")
        number = 0
        while not self._stopping:
            for _ in range(rng.randint(1, BURST_MAX)):
                key = f"{name}-{number % 3}".encode()
                value = f"{name}:{number}".encode()
                number += 1
                self.sent.setdefault(key, []).append(value)
                future = await producer.send(TOPIC, value, key=key)  # type: ignore[attr-defined]
                future.add_done_callback(lambda done, value=value: self._done(done, value))
            await asyncio.sleep(rng.expovariate(1 / BURST_EVERY_S))
        await producer.flush()  # type: ignore[attr-defined]
        await producer.close()  # type: ignore[attr-defined]

    def _done(self, future: asyncio.Future[object], value: bytes) -> None:
        if future.cancelled():
            return
        error = future.exception()
        if error is None:
            metadata = future.result()
            partition = TopicPartition(metadata.topic, metadata.partition)  # type: ignore[attr-defined]
            self.witness.acknowledged(partition, metadata.offset, value)  # type: ignore[attr-defined]
        elif isinstance(error, TailraceError):
            self.failed += 1
        else:
            raise error

    async def _look(self) -> None:
        while True:
            self.witness.look()
            await asyncio.sleep(LOOK_EVERY_S)

    async def _settle(self, writers: list[asyncio.Task[None]]) -> None:
        """I6: within a minute all is acknowledged and read, and all replicas are in sync."""
        try:
            async with asyncio.timeout(SETTLE_S):
                for writer in writers:
                    await writer
                while not (self._is_settled() and self._is_sound()):  # noqa: ASYNC110 - virtual.
                    await asyncio.sleep(0.1)
        except TimeoutError:
            raise Violation(
                f"I6: not settled {SETTLE_S} s after healing: {self._state()}"
            ) from None

    def is_settled_enough(self) -> bool:
        """Under load: every partition has a leader whose ISR is full."""
        for number, replicas in self.cluster.assignment(TOPIC).items():
            isrs = [
                len(hosted.machine.isr)
                for node in self.cluster.brokers
                if node.is_up and (hosted := node.hosted(TopicPartition(TOPIC, number))) is not None
                if hosted.machine.role is Role.LEADER
            ]
            if max(isrs, default=0) < len(replicas):
                return False
        return True

    def _is_settled(self) -> bool:
        if self.administrator is not None and not self.administrator.is_done():
            return False
        return all(
            self._is_partition_settled(TopicPartition(TOPIC, number), replicas)
            for number, replicas in self.cluster.assignment(TOPIC).items()
        )

    def _is_sound(self) -> bool:
        """Whether no replica has anything that rotted: somebody has found and mended it."""
        return all(
            is_sound(hosted)
            for node in self.cluster.brokers
            if node.broker is not None and node.broker.replicas is not None
            for hosted in node.broker.replicas.hosted()
        )

    def _is_partition_settled(self, partition: TopicPartition, replicas: tuple[int, ...]) -> bool:
        hosted = {node.number: node.hosted(partition) for node in self.cluster.brokers}
        there = {number: each for number, each in hosted.items() if each is not None}
        if {*there} != {*replicas}:
            return False
        ends = {(each.log.log_end, each.machine.high_watermark) for each in there.values()}
        leaders = [each for each in there.values() if each.machine.role is Role.LEADER]
        if len(leaders) != 1 or len(ends) != 1 or {*leaders[0].machine.isr} != {*replicas}:
            return False
        ((log_end, _),) = ends
        return self._is_read(partition.partition, log_end)

    def _is_read(self, number: int, log_end: int) -> bool:
        """Whether all of a partition was read, by those that could."""
        return all(
            reading.position == log_end or reading.ended_by is not None
            for reading in self.readings
            if reading.partition.partition == number
        )

    def _state(self) -> str:
        lines = []
        for node in self.cluster.brokers:
            if node.broker is None or node.broker.replicas is None:
                lines.append(f"{node.name}: not open")
                continue
            for hosted in node.broker.replicas.hosted():
                machine = hosted.machine
                lines.append(
                    f"{node.name} {hosted.partition} {machine.role.value} epoch "
                    f"{machine.leader_epoch} leader {machine.leader} isr {machine.isr} "
                    f"elr {machine.elr} hw {machine.high_watermark} end {hosted.log.log_end}"
                )
        lines += [
            f"{each.name} has read {each.partition} to {each.position}" for each in self.readings
        ]
        return "\n  ".join(["", *lines])
