"""The door to a cluster: the one module that makes clients on real connections.

A Python worker of Spark serves many tasks and micro-batches, one after the other. Its connections
and its picture of the cluster stay for all of them: one `Cluster` for each process and bootstrap.
A fork gets one of its own.

Each client is imported where it is made: the process that Spark starts for the planning of a stream
only asks, and everybody waits for its start.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass
from os import getpid
from random import Random
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, TypeVar

from tailrace.client.admin import AdminCore, FoundOffset, OffsetSpec
from tailrace.client.background import background
from tailrace.client.metadata import parse_bootstrap
from tailrace.clock import SystemClock
from tailrace.errors import TailraceError, UnknownTopic
from tailrace.model import TopicPartition
from tailrace.transport.http2.network import Http2Network
from tailrace_spark.offsets import Offsets, Position, ReadRange, TopicOffsets
from tailrace_spark.options import (
    BOOTSTRAP,
    InvalidOption,
    Kind,
    Place,
    Places,
    Selection,
)

if TYPE_CHECKING:
    from tailrace.client.named_reader import NamedReader
    from tailrace.client.producer import ProducerCore
    from tailrace.client.reader import PartitionReader
    from tailrace.client.settings import ProducerSettings

# A topic that was made a moment ago may not be known to the broker that we ask.
TOPIC_WAIT_S: Final = 2.0
TOPIC_POLL_S: Final = 0.1
# How many topics are looked up at once.
LOOK_UPS_MAX: Final = 16
# Tasks read much: brokers may send them as much at a time as they send anybody.
MESSAGE_BYTES: Final = 4 << 20
# Connections that stay between two triggers, or two tasks: those to the leaders of a topic.
IDLE_CONNECTIONS_MAX: Final = 16
# What a call may take beyond the deadline that it has itself.
CALL_GRACE_S: Final = 5.0

APPEND_TIME: Final = ("message.timestamp.type", "LogAppendTime")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """What a query has to know of a topic."""

    name: str
    topic_id: str
    partitions: tuple[int, ...]
    # The leader appends the time: it never falls from one record to the next.
    is_append_time: bool = False


class ClusterFailed(Exception):
    """A cluster that cannot be asked; says which, and why."""


class Cluster:
    """The clients of one process for one cluster. Its methods block; any thread may call them."""

    def __init__(self, bootstrap: str, *, timeout_ms: int) -> None:
        self.bootstrap = bootstrap
        self.network = Http2Network(idle_max=IDLE_CONNECTIONS_MAX)
        self.clock = SystemClock()
        self.rng = Random()
        self.addresses = parse_bootstrap(bootstrap)
        self._timeout_ms = timeout_ms
        self._background = background()
        self._admin = AdminCore(
            self.addresses,
            network=self.network,
            clock=self.clock,
            rng=self.rng,
            request_timeout_ms=timeout_ms,
        )

    def run(self, work: Coroutine[Any, Any, T], *, timeout_s: float | None = None) -> T:
        """Do something in the loop of the clients and wait for it."""
        return self._background.wait(work, timeout_s)

    def start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Do something in the loop of the clients, and go on meanwhile."""
        return self._background.start(work)

    @staticmethod
    def wait_for(begun: Future[Any], timeout_s: float) -> bool:
        """Wait for the end of what was started, so long at most; whether it has come."""
        return bool(wait([begun], timeout=timeout_s).done)

    def topics(self, selection: Selection, *, may_miss: bool = False) -> dict[str, TopicFacts]:
        """The topics that a query reads, with the partitions of each that it reads.

        UnknownTopic when one that was named is not there, unless that may be.
        """
        return self._ask(self._topics(selection, may_miss))

    def topic(self, name: str, option: str) -> TopicFacts:
        """One topic; `option` is where its name came from, for the message."""
        return self.topics(Selection(option=option, names=(name,)))[name]

    def latest(self, topics: Mapping[str, TopicFacts]) -> Offsets:
        """The ends of all partitions."""
        return self.positions(topics, _EVERY_END, too_late_is_end=True)

    def latest_of(self, selection: Selection, *, may_miss: bool) -> Offsets:
        """The ends of all partitions that a query reads now."""
        return self._ask(self._latest_of(selection, may_miss))

    def positions(
        self, topics: Mapping[str, TopicFacts], places: Places, *, too_late_is_end: bool
    ) -> Offsets:
        """The offsets of places. InvalidOption when no record is as late as asked for."""
        return self._ask(self._positions(topics, places, too_late_is_end))

    def reader(self, wanted: ReadRange, *, credit_bytes: int) -> PartitionReader:
        from tailrace.client.reader import PartitionReader  # noqa: PLC0415 - see above.

        return PartitionReader(
            self.addresses,
            wanted.topic,
            wanted.partition,
            wanted.start,
            end=wanted.end,
            network=self.network,
            clock=self.clock,
            rng=self.rng,
            credit_bytes=credit_bytes,
            partition_bytes=MESSAGE_BYTES,
            topic_id=wanted.topic_id,
            last_epoch=wanted.last_epoch,
            topic_timeout_ms=self._timeout_ms,
        )

    def named_reader(self, name: str) -> NamedReader:
        from tailrace.client.named_reader import NamedReader  # noqa: PLC0415 - see above.

        return NamedReader(
            self.addresses, name, network=self.network, clock=self.clock, rng=self.rng
        )

    async def ends(self, partition: TopicPartition) -> tuple[int, int]:
        """Where the log of a partition starts and ends; inside the loop."""
        number = [partition.partition]
        found = [
            await self._admin.list_offsets(partition.topic, spec, partitions=number)
            for spec in ("earliest", "latest")
        ]
        first, last = (each[partition.partition].offset for each in found)
        return first, last

    def producer(self, settings: ProducerSettings) -> ProducerCore:
        from tailrace.client.producer import ProducerCore  # noqa: PLC0415 - see above.

        return ProducerCore(
            self.addresses, settings, network=self.network, clock=self.clock, rng=self.rng
        )

    def _ask(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            return self.run(work, timeout_s=self._timeout_ms / 1000 + CALL_GRACE_S)
        except UnknownTopic:
            raise
        except TailraceError as error:
            raise ClusterFailed(f"{BOOTSTRAP}={self.bootstrap}: {error}") from error

    async def _latest_of(self, selection: Selection, may_miss: bool) -> Offsets:
        while True:
            topics = await self._topics(selection, may_miss)
            try:
                return await self._positions(topics, _EVERY_END, True)
            except UnknownTopic:
                # One went away in between: the next look at the topics tells.
                await asyncio.sleep(TOPIC_POLL_S)

    async def _topics(self, selection: Selection, may_miss: bool) -> dict[str, TopicFacts]:
        waits = int(TOPIC_WAIT_S / TOPIC_POLL_S)
        missing: list[str] = []
        for attempt in range(waits + 1):
            described = await self._admin.describe_topics()
            found = {
                each.topic: TopicFacts(
                    each.topic,
                    each.topic_id,
                    selection.partitions(each.topic, len(each.partitions)),
                    each.config.get(APPEND_TIME[0]) == APPEND_TIME[1],
                )
                for each in described
                if selection.matches(each.topic) and not each.deleting
            }
            missing = [name for name in selection.named if name not in found]
            if not missing or may_miss:
                return found
            if attempt < waits:
                await asyncio.sleep(TOPIC_POLL_S)
        raise UnknownTopic(
            f"{selection.option}: there is no topic {', '.join(map(repr, missing))} in the cluster "
            f"at {self.bootstrap}"
        )

    async def _positions(
        self, topics: Mapping[str, TopicFacts], places: Places, too_late_is_end: bool
    ) -> Offsets:
        places.check_topics(topics)
        gate = asyncio.Semaphore(LOOK_UPS_MAX)

        async def look_up(topic: TopicFacts) -> tuple[str, TopicOffsets]:
            async with gate:
                return topic.name, await self._topic_positions(topic, places, too_late_is_end)

        return Offsets(dict(await asyncio.gather(*map(look_up, topics.values()))))

    async def _topic_positions(
        self, topic: TopicFacts, places: Places, too_late_is_end: bool
    ) -> TopicOffsets:
        by_place: dict[Place, list[int]] = {}
        for number, place in places.of_topic(topic.name, topic.partitions).items():
            by_place.setdefault(place, []).append(number)
        positions: dict[int, Position] = {}
        for place, numbers in by_place.items():
            if place.kind is Kind.OFFSET:
                positions.update(dict.fromkeys(numbers, Position(place.number)))
                continue
            found = await self._look_up(topic.name, place, numbers)
            late = sorted(number for number, each in found.items() if each.offset < 0)
            if late and not too_late_is_end:
                raise InvalidOption(
                    f"{places.option}: {topic.name} has no record at or after "
                    f"{place.number} ms in partitions {late}; "
                    "startingOffsetsByTimestampStrategy=latest starts at their ends"
                )
            if late:
                found |= await self._look_up(topic.name, Place(Kind.LATEST), late)
            for number, each in found.items():
                positions[number] = Position(each.offset, each.leader_epoch)
        return TopicOffsets(topic.topic_id, positions)

    async def _look_up(
        self, topic: str, place: Place, partitions: Iterable[int]
    ) -> dict[int, FoundOffset]:
        spec: OffsetSpec = place.number
        if place.kind is not Kind.TIME:
            spec = "earliest" if place.kind is Kind.EARLIEST else "latest"
        return await self._admin.list_offsets(topic, spec, partitions=partitions)


_EVERY_END: Final = Places("", Place(Kind.LATEST))
_lock: Final = Lock()
_clusters: Final[dict[tuple[int, str, int], Cluster]] = {}


def cluster_for(bootstrap: str, *, timeout_ms: int) -> Cluster:
    """The cluster of this process, connected the first time."""
    key = (getpid(), bootstrap, timeout_ms)
    with _lock:
        found = _clusters.get(key)
        if found is None:
            # What a fork left behind belongs to the parent.
            for old in [each for each in _clusters if each[0] != getpid()]:
                del _clusters[old]
            found = _clusters[key] = Cluster(bootstrap, timeout_ms=timeout_ms)
        return found
