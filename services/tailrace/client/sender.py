"""The stream from a producer to one broker: requests out, answers in, each matched to the other.

A stream is opened when there is something to send, and given up when the broker does not answer
for longer than a request may take. Whatever was on its way then is in doubt and is sent again.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from itertools import groupby
from typing import Final, NamedTuple, Protocol

from tailrace.client.accumulator import Pending, Queue
from tailrace.client.delivery import BatchOutcome
from tailrace.client.settings import ProducerSettings
from tailrace.clock import Clock
from tailrace.errors import (
    Overloaded,
    RequestTimedOut,
    RequestTooLarge,
    TailraceError,
    Unreachable,
)
from tailrace.metrics.values import ProducerCounts
from tailrace.model import TopicPartition
from tailrace.runtime import Tasks
from tailrace.transport import methods
from tailrace.transport.envelopes import PartitionBatches, ProduceRequest
from tailrace.transport.rpc import Network, Stream
from tailrace.transport.wire import error_code
from tailrace.v1 import broker_pb2 as pb

SUSPECT_MS: Final = 1_500
"""A broker that leaves a request unanswered for so long may hang: somebody else may know more."""

GATHER_MS: Final = 5
"""While a request is on its way, batches that are not full go with the answer, or after this."""
GATHER_ANSWERS: Final = 2
"""A busy broker takes long to answer. So many times as long they wait then: if they went sooner,
two requests would be on their way, each with half of the records and all of the partitions."""
GATHER_MAX_MS: Final = 500
"""But no longer than this.

Records over hundreds of partitions would go in batches of one or two each, and keep it busy."""
GATHER_PARTITIONS: Final = 64
"""With so many of them, what is on its way counts as an answer that takes as long as it has so far:
before the first answers have come, a producer would fill the broker's hands with small batches. And
the answer alone does not end the wait, since small batches cost more than their bytes."""

# The mean of their times follows so many answers.
ANSWERS_REMEMBERED: Final = 8

# The broker is told to answer a little before the client gives up.
ANSWER_MARGIN_MS: Final = 1_000

_ACKS: Final = {0: pb.ACKS_NONE, 1: pb.ACKS_LEADER, -1: pb.ACKS_ALL}
_TOO_LARGE: Final = error_code(RequestTooLarge.code)
_OVERLOADED: Final = error_code(Overloaded.code)
_ProduceStream = Stream[ProduceRequest, pb.ProduceResponse]


class Sent(NamedTuple):
    """One attempt to send a batch: an answer to an older attempt must not be taken for it."""

    batch: Pending[BatchOutcome]
    attempt: int
    # How many batches of its partition went with it, itself among them.
    together: int = 1


class SenderPort(Protocol):
    """What a sender asks of its producer."""

    def take_for(self, sender: Sender) -> list[Pending[BatchOutcome]]:
        """The batches of the next request."""

    def answered(self, sent: Sent, part: pb.PartitionProduced, at: int) -> None:
        """What the broker said of one batch, the one that stood at `at` in its partition."""

    def unanswered(self, sent: Sent, error: TailraceError) -> None:
        """The stream broke under it."""

    def suspect(self) -> None:
        """A broker does not answer."""

    def pause_ms(self, attempts: int) -> int:
        """How long to wait after so many failures in a row."""


class Request(NamedTuple):
    """What is on its way, and since when."""

    sent: list[Sent]
    sent_ms: int


class Sender:
    """Sends to one broker: `run` in a task; put queues into `ready` and set `wake`."""

    def __init__(
        self,
        port: SenderPort,
        settings: ProducerSettings,
        *,
        broker: int,
        address: str,
        network: Network,
        clock: Clock,
        counts: ProducerCounts,
    ) -> None:
        self._counts = counts
        self.broker = broker
        self.address = address
        # Queues that may have something to send, in turns.
        self.ready: dict[TopicPartition, Queue[BatchOutcome]] = {}
        # Those of which nothing goes before `gather` says so; who has more to send is ready.
        self.gathering: dict[TopicPartition, Queue[BatchOutcome]] = {}
        self._held_ms = 0
        self.wake = asyncio.Event()
        # When the producer's clock will wake it, the last time that was asked for.
        self.timer_ms = 0
        # The batches of one request; less than `max_request_size` when the broker takes less.
        self.request_bytes_max = settings.max_request_size
        self._port = port
        self._settings = settings
        self._network = network
        self._clock = clock
        self._acks = _ACKS[settings.acks_number]
        self._timeout_ms = min(settings.request_timeout_ms, settings.delivery_timeout_ms)
        margin_ms = min(ANSWER_MARGIN_MS, self._timeout_ms // 10)
        self._broker_timeout_ms = self._timeout_ms - margin_ms
        self._stream: _ProduceStream | None = None
        # The stream on which the broker was told who we are.
        self._known: _ProduceStream | None = None
        self._requests: dict[int, Request] = {}
        self._last_sent_ms = 0
        self._gather_ms = GATHER_MS
        # How long the broker takes to answer: a mean that follows the last ones, and the last one.
        self._answer_ms = 0.0
        self._last_answer_ms = 0
        # The broker said that we are above our quota.
        self._throttled_until_ms = 0
        self._is_throttled = False
        self._number = 0
        self._answers = 0
        self._sent_any = asyncio.Event()
        self._hurry = asyncio.Event()
        # What ended this life of the stream, as far as known: the first that is said counts.
        self._problem: TailraceError | None = None

    @property
    def in_flight(self) -> int:
        """Requests that were sent and not answered."""
        return len(self._requests)

    def silence(self) -> str:
        """That a request is unanswered for long, for people; empty when there is none."""
        oldest = next(iter(self._requests.values()), None)
        age_ms = 0 if oldest is None else self._clock.monotonic_ms() - oldest.sent_ms
        if age_ms < SUSPECT_MS:
            return ""
        where = f"broker {self.broker} at {self.address}"
        return f"{where} has left a request unanswered for {age_ms / 1000:.0f} s"

    def move_to(self, address: str) -> None:
        """The broker is somewhere else now."""
        if address != self.address:
            self.address = address
            self.hurry()
            self._break(Unreachable(f"broker {self.broker} moved to {address}"))

    def offer(self, queue: Queue[BatchOutcome]) -> None:
        """Something of this queue may be sent."""
        self.gathering.pop(queue.partition, None)
        self.ready[queue.partition] = queue
        self.wake.set()

    def hold(self, queue: Queue[BatchOutcome], now_ms: int) -> None:
        """Nothing of a queue that is ready goes yet."""
        if not self.gathering:
            self._held_ms = now_ms
        self.gathering[queue.partition] = self.ready.pop(queue.partition)

    def gather(self, now_ms: int, *, is_pressed: bool = False) -> int:
        """Until when a batch that is not full waits for more records; what gathered is ready then.

        At once when nothing is on its way. Else what gathers goes when the answer comes, or a
        little later: one slow partition must not hold up the others. Of many partitions it gathers
        for that long in any case, unless the producer is pressed for room in its buffer.
        """
        wait_ms = 0
        are_many = len(self.ready) + len(self.gathering) >= GATHER_PARTITIONS
        if self._requests:
            wait_ms = self._gather_ms
            if are_many:
                age_ms = now_ms - next(iter(self._requests.values())).sent_ms
                wait_ms = max(wait_ms, GATHER_ANSWERS * age_ms)
        elif are_many and not is_pressed:
            wait_ms = GATHER_ANSWERS * self._last_answer_ms
        # Not from each request on: a partition with much to send would hold up the others for ever.
        since_ms = min(self._last_sent_ms, self._held_ms) if self.gathering else self._last_sent_ms
        until_ms = since_ms + min(wait_ms, GATHER_MAX_MS)
        if until_ms <= now_ms:
            self.ready.update(self.gathering)
            self.gathering.clear()
        return until_ms

    def hurry(self) -> None:
        """There is reason to believe that the broker can be reached: do not wait to try again."""
        self._hurry.set()

    async def run(self) -> None:
        failures = 0
        while True:
            while not (self.ready or self.gathering):
                self.wake.clear()
                await self.wake.wait()
            answers = self._answers
            await self._serve()
            failures = 0 if self._answers > answers else failures + 1
            if failures:
                await self._pause(failures)

    async def _pause(self, failures: int) -> None:
        self._hurry.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._port.pause_ms(failures) / 1000):
                await self._hurry.wait()

    async def _serve(self) -> None:
        """One life of the stream."""
        channel = self._network.channel(self.address)
        stream: _ProduceStream = channel.open(methods.BROKER_PRODUCE)
        self._stream, self._problem = stream, None
        tasks = Tasks(lambda _, __: stream.cancel())
        reading = tasks.spawn("read answers", self._read_answers(stream))
        tasks.spawn("watch answers", self._watch_answers())
        try:
            while not reading.done():
                await self._until_allowed(reading)
                await self._send_all(stream)
                await self.wake.wait()
        except Unreachable as error:
            self._note(error)
        finally:
            self._stream = None
            stream.cancel()
            try:
                await tasks.close_and(channel.close)
            finally:
                self.give_back()

    async def _until_allowed(self, reading: asyncio.Task[None]) -> None:
        """Wait as long as the broker said that it would not read on."""
        while not reading.done():
            left_ms = self._throttled_until_ms - self._clock.monotonic_ms()
            if left_ms <= 0:
                return
            self.wake.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(left_ms / 1000):
                    await self.wake.wait()

    def give_back(self) -> TailraceError:
        """What was on its way is in doubt now; gives why."""
        problem = self._problem or Unreachable(f"the connection to {self.address} broke")
        requests, self._requests = self._requests, {}
        for request in requests.values():
            for sent in request.sent:
                self._port.unanswered(sent, problem)
        return problem

    async def _send_all(self, stream: _ProduceStream) -> None:
        settings, is_first = self._settings, stream is not self._known
        self.wake.clear()
        # What is on its way to a broker that does not read on would only grow old there.
        in_flight_max = settings.max_in_flight_requests_per_connection
        while len(self._requests) < (1 if self._is_throttled else in_flight_max):
            batches = self._port.take_for(self)
            if not batches:
                return
            self._number += 1
            parts = _parts(batches)
            sent = [Sent(each, each.attempts, len(part)) for _, part in parts for each in part]
            self._last_sent_ms = self._clock.monotonic_ms()
            self._requests[self._number] = Request(sent, self._last_sent_ms)
            self._sent_any.set()
            messages = [message for message, _ in parts]
            await stream.send(self.request(self._number, messages, sent, is_first=is_first))
            self._known, is_first = stream, False
            if settings.acks_number == 0:
                self.assume_sent(self._number)

    def request(
        self, number: int, parts: list[PartitionBatches], sent: list[Sent], *, is_first: bool
    ) -> ProduceRequest:
        """What goes to the broker; `sent` are the batches that are in it."""
        return ProduceRequest(
            # A stream says once who it is.
            client_id=self._settings.client_id if is_first else "",
            correlation=number,
            acks=self._acks,
            timeout_ms=self._broker_timeout_ms,
            partitions=parts,
        )

    def assume_sent(self, number: int) -> None:
        """acks=0: nobody answers, and nobody is sure."""
        request = self._requests.pop(number, None)
        self._answers += 1
        for sent in request.sent if request is not None else ():
            self._port.answered(
                sent, pb.PartitionProduced(batches=[pb.BatchProduced(base_offset=-1)]), 0
            )

    async def _read_answers(self, stream: _ProduceStream) -> None:
        try:
            while (response := await stream.recv()) is not None:
                request = self._requests.pop(response.correlation, None)
                if request is None:
                    continue
                self._answers += 1
                self._is_throttled = response.throttle_ms > 0
                now_ms = self._clock.monotonic_ms()
                self._counts.answered(now_ms - request.sent_ms, is_throttled=self._is_throttled)
                self._took(now_ms - request.sent_ms)
                if self._is_throttled:
                    self._throttled_until_ms = now_ms + response.throttle_ms
                self.take(request, response)
                self.wake.set()
            self._note(Unreachable(f"broker {self.broker} ended the stream"))
        except Unreachable as error:
            self._note(error)
        finally:
            self.wake.set()

    def _took(self, answer_ms: int) -> None:
        self._last_answer_ms = answer_ms
        self._answer_ms += (answer_ms - self._answer_ms) / ANSWERS_REMEMBERED
        wait_ms = int(GATHER_ANSWERS * self._answer_ms)
        self._gather_ms = min(max(wait_ms, GATHER_MS), GATHER_MAX_MS)

    def take(self, request: Request, response: pb.ProduceResponse) -> None:
        """Tell the producer what the broker answered."""
        parts = {
            (each.partition.topic, each.partition.partition): each for each in response.partitions
        }
        last, at = None, 0
        for sent in request.sent:
            partition = sent.batch.partition
            # The batches of a partition stand side by side, as they do in the answer.
            at = at + 1 if partition is last else 0
            last = partition
            part = parts.get((partition.topic, partition.partition))
            if part is not None and part.error == _TOO_LARGE and len(request.sent) > 1:
                # It is the request that was too large: its batches may fit one by one.
                size = sum(len(each.batch.data) for each in request.sent)
                self.request_bytes_max = min(self.request_bytes_max, max(size // 2, 1))
                part.error = _OVERLOADED
                self._port.answered(sent, part, at)
            elif part is None:
                error = Unreachable(f"broker {self.broker} left {partition} unanswered")
                self._port.unanswered(sent, error)
            else:
                self._port.answered(sent, part, at)

    async def _watch_answers(self) -> None:
        """Suspect a broker that is slow to answer; break with one that never does."""
        while True:
            oldest = next(iter(self._requests.values()), None)
            if oldest is None:
                self._sent_any.clear()
                await self._sent_any.wait()
                continue
            age_ms = self._clock.monotonic_ms() - oldest.sent_ms
            if age_ms >= self._timeout_ms:
                self._break(
                    RequestTimedOut(f"broker {self.broker} did not answer within {age_ms} ms")
                )
                return
            if age_ms >= SUSPECT_MS:
                self._port.suspect()
            wait_ms = min(max(SUSPECT_MS - age_ms, SUSPECT_MS // 3), self._timeout_ms - age_ms)
            await asyncio.sleep(max(wait_ms, 1) / 1000)

    def _break(self, problem: TailraceError) -> None:
        if self._stream is not None:
            self._note(problem)
            self._stream.cancel()

    def _note(self, problem: TailraceError) -> None:
        if self._problem is None:
            self._problem = problem


def _parts(
    batches: list[Pending[BatchOutcome]],
) -> list[tuple[PartitionBatches, list[Pending[BatchOutcome]]]]:
    """Batches of one partition, which stand side by side, go together."""
    parts: list[tuple[PartitionBatches, list[Pending[BatchOutcome]]]] = []
    for queue, found in groupby(batches, key=lambda batch: batch.queue):
        together = list(found)
        epoch, data = together[0].leader_epoch, together[0].data
        if len(together) > 1:
            data = b"".join([each.data for each in together])
        message = PartitionBatches(partition=queue.partition, leader_epoch=epoch, batches=data)
        parts.append((message, together))
    return parts
