"""Programs that read a simulated cluster as a user's would, and believe nothing that they are told.

Each reads one partition with the shipped `PartitionReader`, saves its place as a program should
(offset, epoch, topic id), ends now and then and goes on from there. I4: offsets never go back or
leave anything out, and what was read never becomes something else: the witness compares it with
all that any leader shows, before and after.
"""

from __future__ import annotations

from random import Random

from simulation.checkers import Violation, Witness
from simulation.cluster import SimCluster
from simulation.loop import LoopClock
from tailrace.client.fetch_plan import Fetched
from tailrace.client.reader import PartitionReader
from tailrace.errors import OffsetOutOfRange, TailraceError
from tailrace.model import NO_LEADER_EPOCH, TopicPartition

LOOK_MS = 200
LIVES_PER_S = 0.2


class Reading:
    """One program and what it has read; `ended_by` is the error that it could not go on from."""

    def __init__(self, cluster: SimCluster, witness: Witness, partition: TopicPartition) -> None:
        self.partition = partition
        self.name = f"r{partition.partition}"
        self.position = 0
        self.last_epoch: int = NO_LEADER_EPOCH
        self.topic_id = ""
        self.ended_by: TailraceError | None = None
        self.lives = 0
        self._cluster = cluster
        self._witness = witness
        self._process, self._host, self._rng = cluster.client_host(self.name)
        self._life_rng: Random = cluster.loop.fork_rng(f"lives of {self.name}")
        self._process.spawn("read", self._read())

    async def _read(self) -> None:
        try:
            while True:
                try:
                    await self._live()
                except OffsetOutOfRange as error:
                    self._start_again(error)
        except TailraceError as error:
            self._cluster.loop.note(f"{self.name} ends: {error}")
            self.ended_by = error
        except Violation as violation:
            self._cluster.problems.append(str(violation))

    def _start_again(self, error: OffsetOutOfRange) -> None:
        """Retention was faster than this program: it goes on with what is left.

        From there on it has no epoch to tell, so a leader of the past, which does not know how far
        others have come, cannot say so either: then it is asked again.
        """
        if error.log_start > self.position:
            self.position, self.last_epoch = error.log_start, NO_LEADER_EPOCH
        elif self.last_epoch != NO_LEADER_EPOCH or self.position == 0:
            raise error

    async def _live(self) -> None:
        """From one start of the program to its end."""
        self.lives += 1
        until_ms = self._cluster.loop.now_ms + 1_000 * self._life_rng.expovariate(LIVES_PER_S)
        async with PartitionReader(
            self._cluster.bootstrap,
            self.partition.topic,
            self.partition.partition,
            self.position,
            network=self._host,
            clock=LoopClock(self._cluster.loop),
            rng=self._rng,
            topic_id=self.topic_id,
            last_epoch=self.last_epoch,
        ) as reader:
            while self._cluster.loop.now_ms < until_ms:
                fetched = await reader.next(timeout_ms=LOOK_MS)
                self.topic_id = reader.topic_id
                if fetched is not None:
                    self._take(fetched)

    def _take(self, fetched: Fetched) -> None:
        header = fetched.header
        if not header.base_offset <= self.position < header.next_offset:
            raise Violation(
                f"I4: {self.name} was to read offset {self.position} of {self.partition} and got "
                f"{header.base_offset} to {header.last_offset}"
            )
        self._witness.read(self.partition, self.topic_id, fetched.view, to=self.name)
        self.position = header.next_offset
        self.last_epoch = header.leader_epoch
