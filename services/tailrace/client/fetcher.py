"""The streams on which a client reads: one to each leader, for all partitions that it leads.

What is read, where it stands and how much may come is decided in `fetch_plan`; here its decisions
are carried out. Leader moves, broken connections and partitions without a leader are waited out.
A leader that says nothing although it has credit is suspected to hang, and in the end left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from typing import Final

from tailrace.client.fetch_plan import EARLIEST, LATEST, NEVER_MS, FetchPlan, Place, Reading
from tailrace.client.metadata import MetadataWatcher
from tailrace.clock import Clock
from tailrace.errors import (
    FencedEpoch,
    NotLeader,
    OffsetOutOfRange,
    RequestTimedOut,
    TailraceError,
    Truncated,
)
from tailrace.model import TopicPartition
from tailrace.runtime import Tasks
from tailrace.transport import methods
from tailrace.transport.envelopes import FetchResponse, PartitionFetched
from tailrace.transport.rpc import REQUEST_ENTRIES_MAX, Network, Stream
from tailrace.transport.wire import error_of, to_partition
from tailrace.v1 import broker_pb2 as pb

LOOK_UP_TIMEOUT_MS: Final = 5_000
CONNECTION_KEPT_MS: Final = 1_000
"""A connection on which offsets were looked up is there when reading begins."""
LEADERLESS_MS: Final = 3_000
"""So long without a leader, and the metadata is asked for elsewhere."""
# A leader with credit says something every `max_wait_ms`. One that is silent for so many of these
# (but not for less than the time below) is suspected to hang; in the end the stream is given up.
SILENT_WAITS: Final = 3
SILENT_MIN_MS: Final = 2_000
SILENT_BREAK_MS: Final = 10_000

_FetchStream = Stream[pb.FetchRequest, FetchResponse]


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchSettings:
    """How much is read ahead, and how long brokers wait for more."""

    bytes_max: int
    partition_bytes: int
    min_bytes: int
    max_wait_ms: int
    topic_timeout_ms: int
    # Quotas are by this name.
    client_id: str = ""


class Fetcher:
    """Reads what its plan says: `run` in a task, `poke` after the plan was changed."""

    def __init__(
        self,
        metadata: MetadataWatcher,
        settings: FetchSettings,
        *,
        network: Network,
        clock: Clock,
        rng: Random,
        on_news: Callable[[], None],
        on_failure: Callable[[str, BaseException], None],
    ) -> None:
        self._metadata = metadata
        self._settings = settings
        self._network = network
        self._clock = clock
        self._on_news = on_news
        self.plan = FetchPlan(
            bytes_max=settings.bytes_max,
            topic_timeout_ms=settings.topic_timeout_ms,
            jitter=lambda: rng.uniform(0.5, 1.0),
        )
        self._view = _MetadataView(metadata)
        self._tasks = Tasks(on_failure)
        self._streams: dict[int, _BrokerStream] = {}
        self._leaderless_ms = NEVER_MS
        self._due = asyncio.Event()

    async def run(self) -> None:
        try:
            while True:
                self._due.clear()
                now_ms = self._clock.monotonic_ms()
                due_ms = self.plan.route(self._view, now_ms=now_ms)
                due_ms = min(due_ms, self._look_elsewhere(now_ms))
                self._look_up()
                self._serve()
                if self.plan.arrivals:
                    self._on_news()
                with suppress(TimeoutError):
                    async with asyncio.timeout(
                        None if due_ms == NEVER_MS else max(due_ms - now_ms, 1) / 1000
                    ):
                        await self._due.wait()
        finally:
            await self._tasks.close()

    def _look_elsewhere(self, now_ms: int) -> int:
        """Whom we follow may know nothing new: after a while ask another broker who leads."""
        if not self.plan.is_leaderless:
            self._leaderless_ms = NEVER_MS
            return NEVER_MS
        self._leaderless_ms = min(self._leaderless_ms, now_ms)
        if now_ms - self._leaderless_ms >= LEADERLESS_MS:
            self._leaderless_ms = now_ms
            self._metadata.refresh()
        return self._leaderless_ms + LEADERLESS_MS

    def poke(self) -> None:
        """Something is to be read anew, or no longer, or elsewhere."""
        self._due.set()

    def metadata_changed(self) -> None:
        self.plan.hurry()
        self._due.set()

    def give_credit(self, broker: int) -> None:
        """What was taken may have made credit due."""
        if broker in self._streams:
            self._streams[broker].wake.set()

    def credit_due(self) -> list[int]:
        """Streams that could be given credit."""
        accounts = self.plan.accounts
        return [each for each in self._streams if each in accounts and accounts[each].is_due]

    # Streams.

    def _serve(self) -> None:
        wanted = self.plan.brokers()
        for broker in wanted:
            stream = self._streams.get(broker)
            if stream is None:
                # The plan reads only from brokers that the picture shows.
                address = self._metadata.picture.brokers[broker]
                stream = self._streams[broker] = _BrokerStream(broker, address)
                stream.task = self._tasks.spawn(f"fetch from broker {broker}", self._read(stream))
            elif self.plan.has_too_much(broker):
                stream.break_off()
            elif self.plan.is_changed(broker):
                stream.wake.set()
        for broker, stream in self._streams.items():
            if broker not in wanted:
                stream.break_off()

    async def _read(self, mine: _BrokerStream) -> None:
        """Read from one broker until the stream breaks or nothing is wanted from it."""
        broker, trouble = mine.broker, ""
        try:
            await self._read_on(mine)
        except TailraceError as error:
            trouble = str(error)
        finally:
            # Nothing is waited for here: whoever ends this task, the stream is known to be gone.
            del self._streams[broker]
            self.plan.closed(
                broker,
                spoke=mine.spoke or mine.is_left,
                trouble=trouble,
                now_ms=self._clock.monotonic_ms(),
            )
            self._due.set()

    async def _read_on(self, mine: _BrokerStream) -> None:
        broker = mine.broker
        channel = self._network.channel(mine.address)
        stream: _FetchStream = channel.open(methods.BROKER_FETCH)
        mine.heard_ms = self._clock.monotonic_ms()
        tasks = Tasks(lambda _, __: stream.cancel())
        try:
            places = self.plan.opened(broker)
            mine.is_open = True
            # It may be wanted no longer, or with another share.
            self._due.set()
            await stream.send(self._request(broker, places[:REQUEST_ENTRIES_MAX], [], opening=True))
            await self._send_all(stream, broker, places[REQUEST_ENTRIES_MAX:], [])
            tasks.spawn("tell the broker", self._tell(mine, stream))
            tasks.spawn("watch the broker", self._watch(mine, stream))
            while (response := await stream.recv()) is not None:
                mine.spoke = True
                # Above its quota a client hears nothing for a while.
                mine.heard_ms = self._clock.monotonic_ms() + response.throttle_ms
                self.receive(broker, response)
        finally:
            # It ends already: it must not be broken off in the middle of that.
            mine.is_open = False
            stream.cancel()
            await tasks.close_and(channel.close)

    async def _tell(self, mine: _BrokerStream, stream: _FetchStream) -> None:
        """Tell the broker what is read elsewhere from now on, and give it credit."""
        while True:
            await mine.wake.wait()
            mine.wake.clear()
            places, left = self.plan.changed(mine.broker)
            await self._send_all(stream, mine.broker, places, left)

    async def _send_all(
        self,
        stream: _FetchStream,
        broker: int,
        places: list[Place],
        left: list[TopicPartition],
    ) -> None:
        """A request has no more partitions than a broker takes at once."""
        size = REQUEST_ENTRIES_MAX
        # What is left may be among the places again, so it comes first.
        while len(left) > size:
            await stream.send(self._request(broker, [], left[:size]))
            left = left[size:]
        for start in range(0, max(len(places), 1), size):
            request = self._request(broker, places[start : start + size], left)
            left = []
            if request.ByteSize():
                await stream.send(request)

    async def _watch(self, mine: _BrokerStream, stream: _FetchStream) -> None:
        """Suspect a broker that is silent."""
        limit_ms = max(SILENT_MIN_MS, SILENT_WAITS * self._settings.max_wait_ms)
        while True:
            await asyncio.sleep(limit_ms / 1000)
            silent_ms = self._clock.monotonic_ms() - mine.heard_ms
            if self.plan.accounts[mine.broker].is_starved:
                # It is silent because we are.
                mine.heard_ms = self._clock.monotonic_ms()
            elif silent_ms >= SILENT_BREAK_MS:
                stream.cancel()
            elif silent_ms >= limit_ms:
                self._metadata.refresh()

    def _request(
        self,
        broker: int,
        places: list[Place],
        left: list[TopicPartition],
        *,
        opening: bool = False,
    ) -> pb.FetchRequest:
        request = pb.FetchRequest(
            add=[
                pb.FetchPartition(
                    partition=to_partition(each.partition),
                    topic_id=each.topic_id,
                    offset=each.offset,
                    leader_epoch=each.leader_epoch,
                    last_epoch=each.last_epoch,
                    bytes_max=self._settings.partition_bytes,
                    tag=each.tag,
                    end_offset=each.end,
                )
                for each in places
            ],
            remove=[to_partition(each) for each in left],
            credit_bytes=self.plan.grant(broker),
        )
        if opening:
            request.min_bytes = self._settings.min_bytes
            request.max_wait_ms = self._settings.max_wait_ms
            request.client_id = self._settings.client_id
        return request

    # Data.

    def receive(self, broker: int, response: FetchResponse) -> None:
        """Put what came where the program finds it."""
        now_ms = self._clock.monotonic_ms()
        plan = self.plan
        for part in response.partitions:
            partition = TopicPartition(part.partition.topic, part.partition.partition)
            reading = plan.find(partition, part.tag)
            error = error_of(part.error, part.message) if part.error else None
            if error is not None:
                if reading is not None:
                    self._refused(broker, reading, part, error)
                continue
            if reading is not None:
                plan.heard(reading, high_watermark=part.high_watermark, log_start=part.log_start)
            if part.batches:
                plan.receive(broker, reading, part.batches, now_ms=now_ms)
                if reading is not None and reading.tag != part.tag:
                    # Damaged: it is to be asked for again.
                    self._due.set()
        if plan.accounts[broker].is_due:
            # Data of the past was dropped.
            self.give_credit(broker)
        self._on_news()

    def _refused(
        self, broker: int, reading: Reading, part: PartitionFetched, error: TailraceError
    ) -> None:
        """Take the facts that came with the error, then the error."""
        if isinstance(error, Truncated):
            error.agreed_offset = part.agreed_offset
        if isinstance(error, OffsetOutOfRange):
            error = OffsetOutOfRange(
                reading.arrived, log_start=part.log_start, log_end=part.high_watermark
            )
        self.plan.refused(reading, error, now_ms=self._clock.monotonic_ms())
        if isinstance(error, NotLeader):
            self._metadata.hint(reading.partition, part.leader, part.leader_epoch)
        if isinstance(error, FencedEpoch):
            # It leads in a newer epoch than we knew of.
            self._metadata.hint(reading.partition, broker, part.leader_epoch)
        if error.refresh_metadata:
            self._metadata.refresh()
        self._due.set()

    # Where to begin.

    def _look_up(self) -> None:
        by_leader: dict[int, list[Reading]] = {}
        for reading in self.plan.look_ups():
            leader, _ = self._view.leader_of(reading.partition)
            if leader >= 0:
                reading.is_looking = True
                by_leader.setdefault(leader, []).append(reading)
        for leader, readings in by_leader.items():
            address = self._metadata.picture.brokers[leader]
            # Written down now: when the task runs, the program may have sought somewhere else.
            versions = [each.version for each in readings]
            queries = [
                pb.OffsetQuery(
                    partition=to_partition(each.partition), position=_POSITIONS[str(each.wanted)]
                )
                for each in readings
            ]
            asking = self._ask(address, readings, versions, queries)
            self._tasks.spawn("look offsets up", asking)

    async def _ask(
        self,
        address: str,
        readings: list[Reading],
        versions: list[int],
        queries: list[pb.OffsetQuery],
    ) -> None:
        channel = self._network.channel(address)
        try:
            response = await channel.call(
                methods.BROKER_LIST_OFFSETS,
                pb.ListOffsetsRequest(queries=queries),
                timeout_ms=LOOK_UP_TIMEOUT_MS,
            )
            found = [(each.offset, error_of(each.error, each.message)) for each in response.offsets]
            self._looked_up(readings, versions, found)
            await asyncio.sleep(CONNECTION_KEPT_MS / 1000)
        except TailraceError as error:
            self._looked_up(readings, versions, [(-1, error)] * len(readings))
        finally:
            await channel.close()

    def _looked_up(
        self,
        readings: list[Reading],
        versions: list[int],
        found: list[tuple[int, TailraceError | None]],
    ) -> None:
        now_ms = self._clock.monotonic_ms()
        for reading, version, (offset, problem) in zip(readings, versions, found, strict=True):
            if reading.version != version:
                continue
            reading.is_looking = False
            if problem is None:
                self.plan.looked_up(reading, version, offset)
                continue
            self.plan.refused(reading, problem, now_ms=now_ms)
            if problem.refresh_metadata or isinstance(problem, RequestTimedOut):
                self._metadata.refresh()
        self._due.set()


class _BrokerStream:
    """The stream to one broker, from the moment that it is wanted."""

    def __init__(self, broker: int, address: str) -> None:
        self.broker = broker
        self.address = address
        self.task: asyncio.Task[None] | None = None
        self.wake = asyncio.Event()
        self.heard_ms = 0
        self.spoke = False
        self.is_open = False
        self.is_left = False

    def break_off(self) -> None:
        """We end it ourselves: nothing is wrong with the broker."""
        if self.task is not None and self.is_open and not self.is_left:
            self.is_left = True
            # Not the stream: one that is cancelled before gRPC has begun it may never say so.
            self.task.cancel()


class _MetadataView:
    """The metadata as the plan asks for it."""

    def __init__(self, metadata: MetadataWatcher) -> None:
        self._metadata = metadata

    def is_known(self) -> bool:
        return self._metadata.picture.revision >= 0

    def topic(self, name: str) -> tuple[str, int] | None:
        found = self._metadata.picture.topics.get(name)
        if found is None or found.deleting:
            return None
        return found.topic_id, len(found.partitions)

    def leader_of(self, partition: TopicPartition) -> tuple[int, int]:
        leader, epoch = self._metadata.leader_of(partition)
        return (leader, epoch) if leader in self._metadata.picture.brokers else (-1, epoch)


_POSITIONS: Final = {
    EARLIEST: pb.OFFSET_POSITION_EARLIEST,
    LATEST: pb.OFFSET_POSITION_LATEST,
}
