"""A reader of one partition: batches in order from an offset on, whoever leads meanwhile.

Bytes flow only as far as the reader has given credit, and credit comes back as the program takes
batches, so memory stays bounded however slow the program is. Every batch is checked (CRC, and that
it continues the one before) before anybody sees it.

What cannot be gone on from by itself is raised, and the reader stays where it is until `seek`:
OffsetOutOfRange, Truncated (records that were read are gone), UnknownTopicId (the topic was deleted
and made anew), UnknownTopic (deleted), CorruptBatch. All else (leader moves, broken connections, no
leader at the moment) is waited out.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from random import Random
from typing import Final, NamedTuple

from tailrace.client.lifetime import Lifetime
from tailrace.client.metadata import MetadataWatcher
from tailrace.clock import Clock
from tailrace.errors import (
    BatchFault,
    CorruptBatch,
    FencedEpoch,
    InvalidConfig,
    InvalidRequest,
    NotLeader,
    OffsetOutOfRange,
    RequestTimedOut,
    TailraceError,
    Truncated,
    UnknownTopic,
    UnknownTopicId,
    Unreachable,
)
from tailrace.model import NO_LEADER_EPOCH, TopicPartition
from tailrace.record.header import BatchHeader, split, verify
from tailrace.record.view import BatchView, Record
from tailrace.runtime import Tasks
from tailrace.transport import methods
from tailrace.transport.rpc import Channel, Network, Stream
from tailrace.transport.wire import error_of, to_partition
from tailrace.v1 import broker_pb2 as pb

CREDIT_BYTES: Final = 8 << 20
CREDIT_BYTES_MIN: Final = 64 << 10
PARTITION_BYTES: Final = 1 << 20
MAX_WAIT_MS: Final = 500
RETRY_MIN_MS: Final = 20
RETRY_MAX_MS: Final = 1_000
LOOK_UP_TIMEOUT_MS: Final = 5_000
TOPIC_TIMEOUT_MS: Final = 60_000
DELETED_WAIT_MS: Final = 1_000
# Bytes that arrive damaged are asked for again this often: the next copy may be a good one.
CORRUPT_ATTEMPTS_MAX: Final = 5
# A leader with credit says something every `max_wait_ms`. One that is silent for so many of these
# (but not for less than the time below) is suspected to hang; in the end the stream is given up.
SILENT_WAITS: Final = 3
SILENT_MIN_MS: Final = 2_000
SILENT_BREAK_MS: Final = 10_000

_FetchStream = Stream[pb.FetchRequest, pb.FetchResponse]


class Fetched(NamedTuple):
    """One batch as it is stored; `data` holds exactly its bytes, whose CRC has been checked."""

    header: BatchHeader
    data: bytes | memoryview

    @property
    def view(self) -> BatchView:
        return BatchView(self.data)


class PartitionReader:
    """Reads one partition. Use: `start` (or `async with`), `next` or iterate, `close`.

    `offset` is a number, "earliest" or "latest" (the end at the moment of the start).
    """

    def __init__(
        self,
        bootstrap: Sequence[str],
        topic: str,
        partition: int,
        offset: int | str = "earliest",
        *,
        network: Network,
        clock: Clock,
        rng: Random,
        credit_bytes: int = CREDIT_BYTES,
        partition_bytes: int = PARTITION_BYTES,
        min_bytes: int = 1,
        max_wait_ms: int = MAX_WAIT_MS,
        topic_id: str = "",
        last_epoch: int = NO_LEADER_EPOCH,
        topic_timeout_ms: int = TOPIC_TIMEOUT_MS,
    ) -> None:
        if isinstance(offset, str) and offset not in _POSITIONS:
            raise InvalidRequest(f"offset {offset!r} is no number, 'earliest' or 'latest'")
        if credit_bytes < CREDIT_BYTES_MIN:
            raise InvalidConfig(f"credit_bytes={credit_bytes} must be at least {CREDIT_BYTES_MIN}")
        self.partition = TopicPartition(topic, partition)
        self.topic_id = topic_id
        self.high_watermark = -1
        self.log_start = -1
        self.trouble = ""
        """Why nothing comes at the moment, for people; empty while all is well."""
        self._network = network
        self._clock = clock
        self._rng = rng
        self._credit_bytes = credit_bytes
        self._partition_bytes = min(partition_bytes, credit_bytes)
        self._min_bytes = min_bytes
        self._max_wait_ms = max_wait_ms
        self._topic_timeout_ms = topic_timeout_ms
        self._metadata = MetadataWatcher(network, bootstrap, rng)
        self._lifetime = Lifetime("reader")
        self._tasks = Tasks(self._task_failed)
        self._wanted: int | str = offset
        # Up to where batches have arrived, and the epoch of the last one.
        self._arrived = offset if isinstance(offset, int) else -1
        self._arrived_epoch = int(last_epoch)
        self._position = self._arrived
        self._position_epoch = self._arrived_epoch
        self._queue: deque[Fetched] = deque()
        self._queued_bytes = 0
        self._owed = 0
        self._news = asyncio.Event()
        self._credit_due = asyncio.Event()
        self._go_on = asyncio.Event()
        self._problem: TailraceError | None = None
        self._session: _FetchStream | None = None
        self._generation = 0
        self._corrupt_attempts = 0
        self._heard_ms = 0
        self._seen = False
        self._started = False

    # What a program calls.

    async def start(self) -> None:
        """Begin to read ahead."""
        self._lifetime.check()
        if not self._started:
            self._started = True
            self._tasks.spawn(f"metadata for {self.partition}", self._metadata.run())
            self._tasks.spawn(f"read {self.partition}", self._run())

    async def close(self) -> None:
        if self._lifetime.end():
            self._news.set()
            await self._tasks.close()

    async def __aenter__(self) -> PartitionReader:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def position(self) -> int:
        """The offset that the next batch holds; -1 while "earliest" or "latest" is looked up."""
        return self._position

    @property
    def last_epoch(self) -> int:
        """The leader epoch of the last batch taken; save it beside `position`."""
        return self._position_epoch

    def seek(self, offset: int | str, *, last_epoch: int = NO_LEADER_EPOCH) -> None:
        """Go on from another offset; what was read ahead is dropped, what was wrong forgotten."""
        self._lifetime.check()
        self._wanted = offset
        self._arrived = self._position = offset if isinstance(offset, int) else -1
        self._arrived_epoch = self._position_epoch = int(last_epoch)
        self._queue.clear()
        self._queued_bytes = self._owed = 0
        self._problem = None
        self._corrupt_attempts = 0
        self._generation += 1
        if self._session is not None:
            self._session.cancel()
            self._session = None
        self._go_on.set()

    async def next(self, *, timeout_ms: int | None = None) -> Fetched | None:
        """The next batch; None when none came in time. The first may begin below the offset."""
        self._lifetime.check()
        if not self._started:
            await self.start()
        if not self._queue:
            try:
                async with asyncio.timeout(None if timeout_ms is None else timeout_ms / 1000):
                    await self._wait_for_batch()
            except TimeoutError:
                return None
        return self._take()

    async def batches(self) -> AsyncIterator[BatchView]:
        """All batches from here on, for ever."""
        while True:
            fetched = await self.next()
            if fetched is not None:
                yield fetched.view

    async def records(self) -> AsyncIterator[Record]:
        """All records from here on, for ever; none below the offset, none of control batches."""
        while True:
            first = self._position
            fetched = await self.next()
            if fetched is None or fetched.header.is_control:
                continue
            for record in fetched.view.records():
                if record.offset >= first:
                    yield record

    def __aiter__(self) -> AsyncIterator[BatchView]:
        return self.batches()

    # Handing over.

    async def _wait_for_batch(self) -> None:
        while not self._queue:
            self._lifetime.check()
            if self._problem is not None:
                raise self._problem
            self._news.clear()
            await self._news.wait()

    def _take(self) -> Fetched:
        fetched = self._queue.popleft()
        size = fetched.header.length
        self._queued_bytes -= size
        self._owed += size
        self._position = fetched.header.next_offset
        self._position_epoch = fetched.header.leader_epoch
        # Credit goes back in lumps: a message for each batch would cost more than the batch.
        if self._owed * 4 >= self._credit_bytes:
            self._credit_due.set()
        return fetched

    # Reading ahead.

    async def _run(self) -> None:
        failures = 0
        while True:
            generation = self._generation
            try:
                await self._resolve()
                if await self._serve():
                    failures = 0
                    continue
            except _FINAL as error:
                if not self._is_worth_another_try(error):
                    if generation == self._generation:
                        await self._stop_with(error)
                    continue
                self.trouble = str(error)
            except TailraceError as error:
                self.trouble = str(error)
                if error.refresh_metadata or isinstance(error, RequestTimedOut):
                    self._metadata.refresh()
            failures += 1
            await self._pause(failures)

    def _is_worth_another_try(self, error: TailraceError) -> bool:
        self._corrupt_attempts += isinstance(error, CorruptBatch)
        return isinstance(error, CorruptBatch) and self._corrupt_attempts < CORRUPT_ATTEMPTS_MAX

    async def _pause(self, failures: int) -> None:
        """Wait a little, or until the metadata changed."""
        limit_ms = min(RETRY_MIN_MS * 2 ** min(failures - 1, 10), RETRY_MAX_MS)
        with suppress(TimeoutError):
            async with asyncio.timeout(limit_ms * self._rng.uniform(0.5, 1.0) / 1000):
                await self._metadata.changed()

    async def _stop_with(self, error: TailraceError) -> None:
        """Tell the program (after what has arrived) and wait until it seeks."""
        self._problem = error
        self._news.set()
        self._go_on.clear()
        await self._go_on.wait()

    async def _resolve(self) -> None:
        """Make sure that the topic is the one that was meant, and know where to begin."""
        # A topic that was there and is in the newest picture no longer was deleted.
        wait_ms = DELETED_WAIT_MS if self._seen else self._topic_timeout_ms
        topic = await self._metadata.topic(self.partition.topic, timeout_ms=wait_ms)
        self._seen = True
        if not self.topic_id:
            self.topic_id = topic.topic_id
        if topic.topic_id != self.topic_id:
            raise UnknownTopicId(
                f"{self.partition.topic} was deleted and made anew: its id is {topic.topic_id} "
                f"now, not {self.topic_id}"
            )
        if not 0 <= self.partition.partition < len(topic.partitions):
            raise UnknownTopic(
                f"{self.partition.topic} has partitions 0 to {len(topic.partitions) - 1}, "
                f"not {self.partition.partition}"
            )
        if self._arrived < 0 and isinstance(self._wanted, str):
            generation, wanted = self._generation, self._wanted
            found = await self._look_up(wanted)
            if generation == self._generation:
                self._arrived = self._position = found

    async def _look_up(self, wanted: str) -> int:
        channel, _, _ = self._channel()
        query = pb.OffsetQuery(partition=to_partition(self.partition), position=_POSITIONS[wanted])
        try:
            response = await channel.call(
                methods.BROKER_LIST_OFFSETS,
                pb.ListOffsetsRequest(queries=[query]),
                timeout_ms=LOOK_UP_TIMEOUT_MS,
            )
        finally:
            await channel.close()
        found = response.offsets[0]
        error = error_of(found.error, found.message)
        if error is not None:
            raise error
        return found.offset

    def _channel(self) -> tuple[Channel, int, int]:
        """A channel to the leader, its id and its epoch; NotLeader when there is none."""
        leader, epoch = self._metadata.leader_of(self.partition)
        address = self._metadata.picture.brokers.get(leader)
        if address is None:
            raise NotLeader(f"{self.partition} has no leader")
        return self._network.channel(address), leader, epoch

    async def _serve(self) -> bool:
        """Read from the leader until it leads no longer or something breaks; whether it spoke."""
        channel, leader, epoch = self._channel()
        stream: _FetchStream = channel.open(methods.BROKER_FETCH)
        self._session = stream
        self._heard_ms = self._clock.monotonic_ms()
        tasks = Tasks(lambda _, __: stream.cancel())
        heard = False
        try:
            await stream.send(self._opening(epoch))
            tasks.spawn("give credit", self._give_credit(stream))
            tasks.spawn("watch the leader", self._watch_leader(stream, epoch))
            while (response := await stream.recv()) is not None:
                heard = True
                self._heard_ms = self._clock.monotonic_ms()
                if self._session is stream:
                    self._receive(response, leader)
        except Unreachable as error:
            self.trouble = str(error)
        finally:
            self._session = None
            stream.cancel()
            await tasks.close()
            await channel.close()
        return heard

    def _opening(self, epoch: int) -> pb.FetchRequest:
        self._owed = 0
        return pb.FetchRequest(
            add=[
                pb.FetchPartition(
                    partition=to_partition(self.partition),
                    topic_id=self.topic_id,
                    offset=self._arrived,
                    leader_epoch=epoch,
                    last_epoch=self._arrived_epoch,
                    bytes_max=self._partition_bytes,
                )
            ],
            credit_bytes=max(self._credit_bytes - self._queued_bytes, 0),
            min_bytes=self._min_bytes,
            max_wait_ms=self._max_wait_ms,
        )

    async def _give_credit(self, stream: _FetchStream) -> None:
        while True:
            await self._credit_due.wait()
            self._credit_due.clear()
            owed, self._owed = self._owed, 0
            if owed:
                await stream.send(pb.FetchRequest(credit_bytes=owed))

    async def _watch_leader(self, stream: _FetchStream, epoch: int) -> None:
        """Leave a leader that leads no longer; suspect one that is silent."""
        limit_ms = max(SILENT_MIN_MS, SILENT_WAITS * self._max_wait_ms)
        while self._metadata.leader_of(self.partition)[1] <= epoch:
            try:
                async with asyncio.timeout(limit_ms / 1000):
                    await self._metadata.changed()
            except TimeoutError:
                silent_ms = self._clock.monotonic_ms() - self._heard_ms
                if self._queued_bytes + self._owed >= self._credit_bytes:
                    continue
                if silent_ms >= SILENT_BREAK_MS:
                    break
                if silent_ms >= limit_ms:
                    self._metadata.refresh()
        stream.cancel()

    def _receive(self, response: pb.FetchResponse, leader: int) -> None:
        for part in response.partitions:
            error = error_of(part.error, part.message)
            if error is not None:
                raise self._told(part, error, leader)
            self.trouble = ""
            self.log_start = part.log_start
            # A new leader may know less than the old one; what was readable stays readable.
            self.high_watermark = max(self.high_watermark, part.high_watermark)
            if part.batches:
                self._news.set()
                self._keep(part.batches)
                self._corrupt_attempts = 0

    def _told(self, part: pb.PartitionFetched, error: TailraceError, asked: int) -> TailraceError:
        """The error that a broker gave, with the facts that came with it."""
        if isinstance(error, NotLeader):
            self._metadata.hint(self.partition, part.leader, part.leader_epoch)
        if isinstance(error, FencedEpoch):
            # It leads in a newer epoch than we knew of.
            self._metadata.hint(self.partition, asked, part.leader_epoch)
        if isinstance(error, Truncated):
            error.agreed_offset = part.agreed_offset
        if isinstance(error, OffsetOutOfRange):
            return OffsetOutOfRange(
                self._arrived, log_start=part.log_start, log_end=part.high_watermark
            )
        if isinstance(error, UnknownTopic):
            # A broker that has not heard of it yet; if it is gone, the metadata will say so.
            return NotLeader(str(error))
        return error

    def _keep(self, data: bytes) -> None:
        """Check the batches and queue them; CorruptBatch leaves those before the bad one."""
        whole = memoryview(data)
        for position, header in split(data):
            verify(data, position, header)
            if header.next_offset <= self._arrived:
                continue
            if header.base_offset > self._arrived:
                raise CorruptBatch(
                    BatchFault.BAD_HEADER,
                    f"{self.partition}: offset {header.base_offset} came where {self._arrived} "
                    "was due",
                )
            is_all = header.length == len(data)
            piece = data if is_all else whole[position : position + header.length]
            self._queue.append(Fetched(header, piece))
            self._queued_bytes += header.length
            self._arrived = header.next_offset
            self._arrived_epoch = header.leader_epoch

    def _task_failed(self, name: str, error: BaseException) -> None:
        self._lifetime.fail(error if isinstance(error, TailraceError) else f"{name}: {error!r}")
        self._news.set()


_POSITIONS: Final = {
    "earliest": pb.OFFSET_POSITION_EARLIEST,
    "latest": pb.OFFSET_POSITION_LATEST,
}
_FINAL: Final = (OffsetOutOfRange, Truncated, UnknownTopic, UnknownTopicId, CorruptBatch)
