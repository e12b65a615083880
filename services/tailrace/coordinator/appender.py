"""Carries the batches of all shards to the leaders of their partitions.

One stream to each broker. A request takes the batches of all shards that have something for that
broker, and the next one goes when the answer has come (or a little later, so that one partition
that waits for a replica does not hold up the others). A single commit leaves at once; the more
records there are in a second, the longer they gather (`Pace`), since it is batches that cost the
brokers work, and not the records in them. A batch whose fate is not known is sent again, to whoever
leads then, until the log has it or refuses it for good: `on_refused` is told.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from math import exp
from random import Random
from typing import Final, NamedTuple

from tailrace.client.metadata import MetadataWatcher
from tailrace.clock import Clock
from tailrace.coordinator.journal import Journal
from tailrace.errors import (
    BatchTooLarge,
    CorruptBatch,
    InvalidRequest,
    NotLeader,
    OutOfOrderSequence,
    ProducerFenced,
    RequestTimedOut,
    TailraceError,
    UnknownProducer,
    UnknownTopicId,
    Unreachable,
)
from tailrace.runtime import Tasks
from tailrace.transport import methods
from tailrace.transport.envelopes import PartitionBatches, ProduceRequest
from tailrace.transport.rpc import Network, Stream
from tailrace.transport.wire import error_of
from tailrace.v1 import broker_pb2 as pb

# How long the broker waits for replicas, and how long we wait for the broker.
REPLICAS_TIMEOUT_MS: Final = 10_000
ANSWER_TIMEOUT_MS: Final = 11_000
# A broker that leaves a request unanswered for so long may hang: somebody else may know more.
SUSPECT_MS: Final = 1_500
# While a request is on its way, the next one waits for its answer, but no longer than this.
GATHER_MS: Final = 10
REQUESTS_MAX: Final = 5
# Records that are told to be in the log before the loop gets its turn: some milliseconds of work.
TOLD_PER_TURN: Final = 200
# Records for one broker gather for a millisecond for each so many of them in a second, up to a
# limit: a commit that takes so much longer harms nobody.
PACE_RECORDS: Final = 30
PACE_MS_MAX: Final = 50
PACE_MEMORY_MS: Final = 500
REQUEST_BYTES: Final = 16 << 20
RETRY_MIN_MS: Final = 20
CLIENT_ID: Final = "coordinator"
RETRY_MAX_MS: Final = 1_000

_FOR_GOOD: Final = (
    BatchTooLarge,
    CorruptBatch,
    InvalidRequest,
    OutOfOrderSequence,
    ProducerFenced,
    UnknownProducer,
    UnknownTopicId,
)

_ProduceStream = Stream[ProduceRequest, pb.ProduceResponse]


class _Sent(NamedTuple):
    """One attempt to send a journal's batch: what is said of an older one does not count."""

    journal: Journal
    attempt: int


class _Request(NamedTuple):
    sent: list[_Sent]
    sent_ms: int


class Appender:
    """Sends what journals have: `submit` them, tell of new metadata."""

    def __init__(
        self,
        metadata: MetadataWatcher,
        *,
        network: Network,
        clock: Clock,
        rng: Random,
        tasks: Tasks,
        on_refused: Callable[[Journal, TailraceError], None],
    ) -> None:
        self._metadata = metadata
        self._network = network
        self._clock = clock
        self._rng = rng
        self._tasks = tasks
        self._on_refused = on_refused
        self._links: dict[int, _Link] = {}
        # Journals that wait for a leader, or for another try.
        self._waiting: dict[Journal, None] = {}
        # Which leader (and epoch) the batch of a journal went to.
        self._at: dict[Journal, tuple[int, int]] = {}
        self.requests = 0
        self.batches = 0

    def submit(self, journal: Journal) -> None:
        """There is something to send, and nothing of this journal is on its way."""
        leader, epoch = self._metadata.leader_of(journal.partition)
        link = self._links.get(leader) or self._make_link(leader)
        self._waiting.pop(journal, None)
        if link is None:
            self._waiting[journal] = None
            self._metadata.refresh()
            return
        self._at[journal] = (leader, epoch)
        link.ready[journal] = None
        link.wake.set()

    def metadata_changed(self) -> None:
        """Leaders may have moved: what the old ones did not answer goes to the new ones."""
        for broker, link in self._links.items():
            link.move_to(self._metadata.picture.brokers.get(broker, link.address))
        for journal, (leader, epoch) in list(self._at.items()):
            now = self._metadata.leader_of(journal.partition)
            if now[1] > epoch or (now[0] != leader and now[0] >= 0):
                self.give_up(journal)
        waiting, self._waiting = self._waiting, {}
        for journal in waiting:
            if journal.has_work:
                self.submit(journal)

    def give_up(self, journal: Journal) -> None:
        """Take back what the present leader has of a journal, and send it to who leads now."""
        found = self._at.pop(journal, None)
        if found is not None and found[0] in self._links:
            self._links[found[0]].ready.pop(journal, None)
        # Whatever is said of the last attempt does not count any more.
        journal.attempt += 1
        if journal.has_work:
            self.submit(journal)

    def forget(self, journal: Journal) -> None:
        """The journal is closed."""
        self._waiting.pop(journal, None)
        found = self._at.pop(journal, None)
        if found is not None and found[0] in self._links:
            self._links[found[0]].ready.pop(journal, None)

    def answered(self, sent: _Sent, part: pb.PartitionProduced | None) -> None:
        """What a broker said of one batch; None: it said nothing."""
        journal = sent.journal
        if sent.attempt != journal.attempt:
            return
        self._at.pop(journal, None)
        if part is None:
            self._later(journal, Unreachable("no answer"))
            return
        error = error_of(part.error, part.message)
        if error is None:
            journal.settle(part.batches[0].base_offset)
        elif isinstance(error, _FOR_GOOD):
            self._on_refused(journal, error)
        else:
            if isinstance(error, NotLeader):
                self._metadata.hint(journal.partition, part.leader, part.leader_epoch)
            self._later(journal, error)

    def suspect(self) -> None:
        """A broker does not answer: perhaps another one knows of a new leader."""
        self._metadata.refresh()

    def _later(self, journal: Journal, error: TailraceError) -> None:
        """Try again after a while, or when the metadata changes."""
        journal.failures += 1
        if error.refresh_metadata:
            self._metadata.refresh()
        limit_ms = min(RETRY_MIN_MS * 2 ** min(journal.failures - 1, 10), RETRY_MAX_MS)
        self._waiting[journal] = None
        asyncio.get_running_loop().call_later(
            limit_ms * self._rng.uniform(0.5, 1.0) / 1_000, self._again, journal
        )

    def _again(self, journal: Journal) -> None:
        if journal in self._waiting and journal.has_work:
            self.submit(journal)

    def _make_link(self, broker: int) -> _Link | None:
        address = self._metadata.picture.brokers.get(broker)
        if address is None:
            return None
        link = self._links[broker] = _Link(self, address, network=self._network, clock=self._clock)
        self._tasks.spawn(f"append at broker {broker}", link.run())
        return link


class Pace:
    """How long to gather records for one broker, by how many there were of late."""

    def __init__(self) -> None:
        self._recent = 0.0
        self._sent_ms = 0

    def sent(self, records: int, now_ms: int) -> None:
        self._recent = self._left(now_ms) + records
        self._sent_ms = now_ms

    def wait_ms(self, now_ms: int) -> int:
        """How long the next request waits from now on."""
        per_s = self._recent * 1_000 / PACE_MEMORY_MS
        return self._sent_ms + min(int(per_s / PACE_RECORDS), PACE_MS_MAX) - now_ms

    def _left(self, now_ms: int) -> float:
        return self._recent * exp((self._sent_ms - now_ms) / PACE_MEMORY_MS)


class _Link:
    """The stream to one broker."""

    def __init__(self, appender: Appender, address: str, *, network: Network, clock: Clock) -> None:
        self.address = address
        self.ready: dict[Journal, None] = {}
        self.wake = asyncio.Event()
        self._appender = appender
        self._network = network
        self._clock = clock
        self._stream: _ProduceStream | None = None
        self._requests: dict[int, _Request] = {}
        self._number = 0
        self._answers = 0
        self._sent_ms = 0
        self._pace = Pace()

    def move_to(self, address: str) -> None:
        if address != self.address:
            self.address = address
            if self._stream is not None:
                self._stream.cancel()

    async def run(self) -> None:
        failures = 0
        while True:
            while not self.ready:
                self.wake.clear()
                await self.wake.wait()
            answers = self._answers
            await self._serve()
            failures = 0 if self._answers > answers else failures + 1
            if failures:
                await asyncio.sleep(min(RETRY_MIN_MS * failures, RETRY_MAX_MS) / 1_000)

    async def _serve(self) -> None:
        """One life of the stream."""
        channel = self._network.channel(self.address)
        stream: _ProduceStream = channel.open(methods.BROKER_PRODUCE)
        self._stream = stream
        tasks = Tasks(lambda _, __: stream.cancel())
        reading = tasks.spawn("read answers", self._read(stream))
        tasks.spawn("watch answers", self._watch())
        try:
            while not reading.done():
                await self._send_ready(stream)
                await self.wake.wait()
        except Unreachable:
            pass
        finally:
            self._stream = None
            stream.cancel()
            try:
                await tasks.close_and(channel.close)
            finally:
                requests, self._requests = self._requests, {}
                for request in requests.values():
                    for sent in request.sent:
                        self._appender.answered(sent, None)

    async def _send_ready(self, stream: _ProduceStream) -> None:
        self.wake.clear()
        while self.ready and len(self._requests) < REQUESTS_MAX:
            wait_ms = self._pace.wait_ms(self._clock.monotonic_ms())
            if wait_ms > 0:
                await asyncio.sleep(wait_ms / 1_000)
            if self._requests and not await self._gathered():
                continue
            await self._send(stream)

    async def _gathered(self) -> bool:
        """While a request is on its way: wait for its answer, for more to send, or long enough."""
        wait_ms = self._sent_ms + GATHER_MS - self._clock.monotonic_ms()
        if wait_ms <= 0:
            return True
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_ms / 1_000):
                await self.wake.wait()
        if self._requests and self._clock.monotonic_ms() < self._sent_ms + GATHER_MS:
            self.wake.clear()
            return False
        return True

    async def _send(self, stream: _ProduceStream) -> None:
        sent: list[_Sent] = []
        parts: list[PartitionBatches] = []
        size = records = 0
        while self.ready and size < REQUEST_BYTES:
            journal = next(iter(self.ready))
            del self.ready[journal]
            if not journal.has_work:
                continue
            data = journal.take()
            size += len(data)
            records += journal.taken
            sent.append(_Sent(journal, journal.attempt))
            parts.append(
                PartitionBatches(partition=journal.partition, leader_epoch=-1, batches=data)
            )
        if not sent:
            return
        self._number += 1
        self._sent_ms = self._clock.monotonic_ms()
        self._requests[self._number] = _Request(sent, self._sent_ms)
        self._pace.sent(records, self._sent_ms)
        self._appender.requests += 1
        self._appender.batches += len(sent)
        await stream.send(
            ProduceRequest(
                correlation=self._number,
                acks=pb.ACKS_ALL,
                timeout_ms=REPLICAS_TIMEOUT_MS,
                partitions=parts,
                client_id=CLIENT_ID,
            )
        )

    async def _read(self, stream: _ProduceStream) -> None:
        try:
            while (response := await stream.recv()) is not None:
                request = self._requests.pop(response.correlation, None)
                if request is None:
                    continue
                self._answers += 1
                await self._take(request, response)
                self.wake.set()
        except Unreachable:
            pass
        finally:
            self.wake.set()

    async def _take(self, request: _Request, response: pb.ProduceResponse) -> None:
        """Tell the journals, and those who wait for them, some at a time: others have turns too.

        Thousands of answers in one go would keep the renewal of the lease waiting.
        """
        parts = {each.partition.partition: each for each in response.partitions}
        left, told = deque(request.sent), 0
        try:
            while left:
                told += left[0].journal.taken
                self._answered(left.popleft(), parts)
                if told >= TOLD_PER_TURN:
                    told = 0
                    await asyncio.sleep(0)
        finally:
            # Whoever ends this stream takes nothing back of what was said.
            for sent in left:
                self._answered(sent, parts)

    def _answered(self, sent: _Sent, parts: dict[int, pb.PartitionProduced]) -> None:
        self._appender.answered(sent, parts.get(sent.journal.partition.partition))

    async def _watch(self) -> None:
        """Suspect a broker that is slow to answer; break with one that never does."""
        while True:
            await asyncio.sleep(SUSPECT_MS / 2_000)
            oldest = next(iter(self._requests.values()), None)
            if oldest is None:
                continue
            age_ms = self._clock.monotonic_ms() - oldest.sent_ms
            if age_ms >= ANSWER_TIMEOUT_MS:
                raise RequestTimedOut(f"{self.address} did not answer within {age_ms} ms")
            if age_ms >= SUSPECT_MS:
                self._appender.suspect()
