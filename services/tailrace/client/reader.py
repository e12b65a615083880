"""A reader of one partition: batches in order from an offset on, whoever leads meanwhile.

Bytes flow only as far as the reader has given credit, and credit comes back as the program takes
batches, so memory stays bounded however slow the program is. Every batch is checked (CRC, and that
it continues the one before) before anybody sees it. How that is done is in `fetcher`.

What cannot be gone on from by itself is raised, and the reader stays where it is until `seek`:
OffsetOutOfRange, Truncated (records that were read are gone), UnknownTopicId (the topic was deleted
and made anew), UnknownTopic (deleted), UnreadableBatch (after all batches before it; with
`on_corrupt="skip"` it is counted, logged and passed over). All else (leader moves, broken
connections, no leader at the moment) is waited out.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from random import Random
from typing import Final

from tailrace.client.fetch_plan import EARLIEST, LATEST, Fetched
from tailrace.client.fetcher import Fetcher, FetchSettings
from tailrace.client.lifetime import Lifetime
from tailrace.client.metadata import MetadataWatcher
from tailrace.client.unreadable import (
    RAISE,
    SKIP,
    UNDECODABLE,
    check_on_corrupt,
    log_skipped,
    unreadable_body,
)
from tailrace.clock import Clock
from tailrace.errors import InvalidConfig, InvalidRequest, TailraceError, UnreadableBatch
from tailrace.model import NO_LEADER_EPOCH, TopicPartition
from tailrace.record.header import BatchHeader
from tailrace.record.view import BatchView, Record
from tailrace.runtime import Tasks
from tailrace.transport.rpc import Network

CREDIT_BYTES: Final = 8 << 20
CREDIT_BYTES_MIN: Final = 64 << 10
PARTITION_BYTES: Final = 1 << 20
MAX_WAIT_MS: Final = 500
TOPIC_TIMEOUT_MS: Final = 60_000


class PartitionReader:
    """Reads one partition. Use: `start` (or `async with`), `next` or iterate, `close`.

    `offset` is a number, "earliest" or "latest" (the end at the moment of the start). With `end` no
    batch that begins there or later is sent: who waits for one waits in vain.
    """

    def __init__(
        self,
        bootstrap: Sequence[str],
        topic: str,
        partition: int,
        offset: int | str = EARLIEST,
        *,
        end: int = 0,
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
        client_id: str = "",
        on_corrupt: str = RAISE,
    ) -> None:
        if isinstance(offset, str) and offset not in {EARLIEST, LATEST}:
            raise InvalidRequest(f"offset {offset!r} is no number, 'earliest' or 'latest'")
        if credit_bytes < CREDIT_BYTES_MIN:
            raise InvalidConfig(f"credit_bytes={credit_bytes} must be at least {CREDIT_BYTES_MIN}")
        check_on_corrupt("on_corrupt", on_corrupt)
        self.partition = TopicPartition(topic, partition)
        self._skips = on_corrupt == SKIP
        self.skipped_batches = 0
        """How many batches could not be decoded and were passed over."""
        self._metadata = MetadataWatcher(network, bootstrap, rng, on_change=self._changed)
        self._lifetime = Lifetime("reader")
        self._tasks = Tasks(self._task_failed)
        self._news = asyncio.Event()
        self._fetcher = Fetcher(
            self._metadata,
            FetchSettings(
                bytes_max=credit_bytes,
                partition_bytes=min(partition_bytes, credit_bytes),
                min_bytes=min_bytes,
                max_wait_ms=max_wait_ms,
                topic_timeout_ms=topic_timeout_ms,
                client_id=client_id,
            ),
            network=network,
            clock=clock,
            rng=rng,
            on_news=self._news.set,
            on_failure=self._task_failed,
        )
        self._plan = self._fetcher.plan
        self._reading = self._plan.add(self.partition)
        self._reading.end = end
        self._plan.seek(self._reading, offset, last_epoch=last_epoch, topic_id=topic_id)
        self._started = False

    async def start(self) -> None:
        """Begin to read ahead."""
        self._lifetime.check()
        if not self._started:
            self._started = True
            self._tasks.spawn(f"metadata for {self.partition}", self._metadata.run())
            self._tasks.spawn(f"read {self.partition}", self._fetcher.run())

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
        return self._reading.position

    @property
    def last_epoch(self) -> int:
        """The leader epoch of the last batch taken; save it beside `position`."""
        return self._reading.position_epoch

    @property
    def topic_id(self) -> str:
        """The id of the topic that is read; empty while it is not known."""
        return self._reading.topic_id

    @property
    def high_watermark(self) -> int:
        """Everything below could be read when the leader last spoke; -1 before that."""
        return self._reading.high_watermark

    @property
    def log_start(self) -> int:
        """The first offset that could be read when the leader last spoke; -1 before that."""
        return self._reading.log_start

    @property
    def received_bytes(self) -> int:
        """What brokers have sent so far, also what nobody took."""
        return self._plan.received_bytes

    @property
    def trouble(self) -> str:
        """Why nothing comes at the moment, for people; empty while all is well."""
        return self._reading.trouble

    def seek(self, offset: int | str, *, last_epoch: int = NO_LEADER_EPOCH) -> None:
        """Go on from another offset; what was read ahead is dropped, what was wrong forgotten."""
        self._lifetime.check()
        self._plan.seek(self._reading, offset, last_epoch=last_epoch)
        self._fetcher.poke()

    async def next(self, *, timeout_ms: int | None = None) -> Fetched | None:
        """The next batch; None when none came in time. The first may begin below the offset.

        Its body is decoded already; UnreadableBatch when that is impossible.
        """
        return await self._next(self._take_decoded, timeout_ms)

    async def next_stored(self, *, timeout_ms: int | None = None) -> Fetched | None:
        """As `next`, with a body that nobody has looked at: who decodes it answers for it."""
        return await self._next(self._take, timeout_ms)

    async def _next(
        self, take: Callable[[], Fetched | None], timeout_ms: int | None
    ) -> Fetched | None:
        self._lifetime.check()
        if not self._started:
            await self.start()
        try:
            async with asyncio.timeout(None if timeout_ms is None else timeout_ms / 1000):
                while True:
                    if not self._plan.arrivals:
                        await self._wait_for_batch()
                    fetched = take()
                    if fetched is not None:
                        return fetched
        except TimeoutError:
            return None

    async def batches(self) -> AsyncIterator[BatchView]:
        """All batches from here on, for ever."""
        while True:
            fetched = await self.next()
            if fetched is not None:
                yield fetched.view

    async def records(self) -> AsyncIterator[Record]:
        """All records from here on, for ever; none below the offset, none of control batches."""
        while True:
            first = self.position
            fetched = await self.next()
            if fetched is None or fetched.header.is_control:
                continue
            for record in fetched.view.records():
                if record.offset >= first:
                    yield record

    def __aiter__(self) -> AsyncIterator[BatchView]:
        return self.batches()

    async def _wait_for_batch(self) -> None:
        while not self._plan.arrivals:
            self._lifetime.check()
            if self._reading.problem is not None:
                if self._is_passed(self._reading.problem):
                    continue
                # A traceback would grow with each time that it is raised.
                raise self._reading.problem.with_traceback(None)
            self._news.clear()
            await self._news.wait()

    def _take(self) -> Fetched | None:
        arrival = self._plan.take()
        if arrival is None:
            return None
        if arrival.fetched is None:
            assert arrival.problem is not None
            if self._is_passed(arrival.problem):
                return None
            raise arrival.problem.with_traceback(None)
        self._stand_behind(arrival.fetched.header)
        return arrival.fetched

    def _take_decoded(self) -> Fetched | None:
        """The next batch with its columns; the position moves when they are there."""
        arrival = self._plan.take()
        if arrival is None or arrival.fetched is None:
            if arrival is not None:
                self._plan.arrivals.appendleft(arrival)
            return self._take()
        fetched = arrival.fetched
        view = fetched.view
        try:
            if fetched.header.record_count and not fetched.header.is_control:
                view.record_batch()
        except UNDECODABLE as cause:
            error = unreadable_body(self.partition, fetched.header, cause)
            if not self._skips:
                self._plan.set_apart(self._reading, error)
                return None
            self._count_skipped(error)
            self._stand_behind(fetched.header)
            return None
        except BaseException:
            # Out of memory, Ctrl-C: the batch is the next one again.
            self._plan.put_back(arrival)
            raise
        self._stand_behind(fetched.header)
        return fetched._replace(decoded=view)

    def _stand_behind(self, header: BatchHeader) -> None:
        self._reading.position = header.next_offset
        self._reading.position_epoch = header.leader_epoch
        for broker in self._fetcher.credit_due():
            self._fetcher.give_credit(broker)

    def _is_passed(self, problem: TailraceError) -> bool:
        """Whether the settings say to go on behind what came damaged again and again."""
        if not self._skips or not isinstance(problem, UnreadableBatch):
            return False
        self._count_skipped(problem)
        self.seek(problem.last_offset + 1)
        return True

    def _count_skipped(self, error: UnreadableBatch) -> None:
        self.skipped_batches += 1
        log_skipped(error)

    def _changed(self) -> None:
        self._fetcher.metadata_changed()

    def _task_failed(self, name: str, error: BaseException) -> None:
        self._lifetime.fail(error if isinstance(error, TailraceError) else f"{name}: {error!r}")
        self._news.set()
