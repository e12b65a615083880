"""The producer: what a program calls, and the tasks that carry its records to the leaders.

The rules of order, numbering and retry are in `accumulator`, the streams to brokers in `sender`,
what the program learns in `delivery`. Here they are joined: records go to queues, queues to the
senders of their leaders, answers back to the queues. Nothing polls: a sender is woken when one of
its queues may have something to send, the clock's task sleeps until the next retry, linger or
deadline is due.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from random import Random
from typing import Any, Final

from tailrace.client.accumulator import (
    RECORD_OVERHEAD_BYTES,
    Accumulator,
    Ended,
    Pending,
    Queue,
    State,
    record_size,
)
from tailrace.client.arguments import Headers, check_columns, check_place, header_pairs
from tailrace.client.delivery import (
    NO_OFFSET,
    BatchDelivery,
    BatchOutcome,
    Callback,
    Delivery,
    wait_for,
)
from tailrace.client.filling import Filling
from tailrace.client.handing import Run
from tailrace.client.identity import Identity, read_state, written_state
from tailrace.client.lifetime import Lifetime
from tailrace.client.metadata import MetadataWatcher, TopicPicture
from tailrace.client.partitioner import Partitioner, by_key
from tailrace.client.refusals import Refused, Verdict, ahead_of, verdict
from tailrace.client.sender import Sender, Sent
from tailrace.client.settings import ProducerSettings
from tailrace.client.spreading import TopicQueues
from tailrace.client.tables import Columns, cut, spread
from tailrace.client.timers import Timers
from tailrace.client.traces import TracedSender
from tailrace.client.trouble import Trouble, because
from tailrace.clock import Clock
from tailrace.errors import (
    BufferFull,
    ClientClosed,
    InvalidRequest,
    NotLeader,
    OutOfOrderSequence,
    RequestTimedOut,
    TailraceError,
    Unreachable,
)
from tailrace.metrics.values import ProducerCounts
from tailrace.model import NO_TIMESTAMP_MS, TopicPartition
from tailrace.record.build import HeaderPair
from tailrace.record.header import SEQUENCE_MODULUS, read_header
from tailrace.runtime import Tasks
from tailrace.tracing import Tracer
from tailrace.transport.rpc import Network
from tailrace.transport.wire import error_of
from tailrace.v1 import broker_pb2 as pb

CLOSE_TIMEOUT_MS: Final = 30_000
TURN_BYTES: Final = 64 << 10
"""So much may be handed over before senders get their turn."""
GATHER_BYTES: Final = 64 << 10
"""Batches of one partition go together in a request up to so many bytes, and the one after."""

_LOG: Final = logging.getLogger(__name__)
# Times of records that need no closer look.
_TIMES: Final = (int, type(None))


class ProducerCore:
    """A producer on given ports. `tailrace.aio.Producer` makes one on the real ones."""

    def __init__(
        self,
        bootstrap: Sequence[str],
        settings: ProducerSettings,
        *,
        network: Network,
        clock: Clock,
        rng: Random,
        partitioner: Partitioner | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        self._make = Sender if tracer is None else partial(TracedSender, tracer)
        self._settings = settings
        self._network = network
        self._clock = clock
        self._wall_ms = clock.wall_ms
        self._rng = rng
        self._partition = partitioner or by_key
        self._accumulator = Accumulator(settings, BatchOutcome)
        self._metadata = MetadataWatcher(network, bootstrap, rng, on_change=self._metadata_changed)
        self._identity = Identity(settings, self._metadata, network, self.pause_ms)
        self._tasks = Tasks(self._task_failed)
        self._lifetime = Lifetime("producer")
        self.counts = ProducerCounts()
        self._senders: dict[int, Sender] = {}
        self._trouble = Trouble(self._accumulator, self._metadata, self._identity, self._senders)
        self._topics: dict[str, TopicQueues] = {}
        # Queues whose partition has no leader that we could reach.
        self._leaderless: dict[TopicPartition, Queue[BatchOutcome]] = {}
        self._leaders: dict[TopicPartition, tuple[int, int]] = {}
        self._timers: Timers[Callable[[], None]] = Timers()
        self._filling = Filling(
            self._accumulator,
            self._topics,
            self._lifetime,
            buffer_memory=settings.buffer_memory,
            ready_for=self._ready_for,
            open_batch=lambda known, queue, value, time_ms, size: self._open(
                known, queue, value, None, None, time_ms, size
            ),
        )
        self._room = asyncio.Event()
        self._epoch_due = asyncio.Event()
        self._epoch_begun = asyncio.Event()
        self._untaken_bytes = 0
        self._resumed = False
        self._started = False

    # What a program calls.

    async def start(self) -> None:
        """Begin to follow the cluster. Sending waits for what it needs by itself."""
        self._lifetime.check()
        if not self._started:
            self._started = True
            self._tasks.spawn("producer metadata", self._metadata.run())
            self._tasks.spawn("producer clock", self._keep_time())
            if self._settings.enable_idempotence:
                self._tasks.spawn("producer identity", self._keep_identity())

    async def send(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        *,
        callback: Callback | None = None,
    ) -> Delivery:
        """Hand over a record; the delivery ends when it is acknowledged or has failed.

        Waits only for room in the buffer and for the topic to be known, `max_block_ms` at most.
        A record that can never be sent (too large, no bytes, no such partition) raises here.
        """
        # This runs for every record: it is written out where a call would cost more than its work.
        if self._lifetime.is_over:
            self._lifetime.check()
        accumulator = self._accumulator
        size = RECORD_OVERHEAD_BYTES if value is None else RECORD_OVERHEAD_BYTES + len(value)
        pairs = header_pairs(headers) if headers else None
        if key is not None or pairs:
            size = record_size(value, key, pairs)
        if partition is not None or type(timestamp_ms) not in _TIMES:
            check_place(topic, partition, timestamp_ms)
        known = self._topics.get(topic)
        if known is None or accumulator.memory_bytes + size > self._settings.buffer_memory:
            known = await self._ready_for(topic, size)
        time_ms = self._wall_ms() if timestamp_ms is None else timestamp_ms
        if key is None and partition is None and known.is_sticky:
            queue = known.sticky or known.choose()
        else:
            queue = known.queue_for(key, partition)
        batch = accumulator.add(queue, value, key, pairs, time_ms, size)
        if batch is None:
            batch = self._open(known, queue, value, key, pairs, time_ms, size)
        delivery = Delivery(batch.outcome, batch.count - 1, time_ms)
        if callback is not None:
            delivery.call_back(callback)
        self._untaken_bytes += size
        if self._untaken_bytes >= TURN_BYTES:
            # Senders get their turn, also beside a program that never waits for anything.
            self._untaken_bytes = 0
            await asyncio.sleep(0)
        return delivery

    async def send_run(self, run: Run) -> None:
        """Hand over records that differ only in value and time; the run tells of each."""
        await self._filling.fill(run)

    async def send_batch(
        self,
        topic: str,
        columns: Columns,
        *,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> BatchDelivery:
        """Hand over whole columns; no single record is touched.

        Takes an Arrow RecordBatch or Table, or a mapping of columns: `value`, and if wanted `key`,
        `timestamp` (ms) and `headers`. Without a partition, records with keys are spread by key,
        others go together. Waits as `send` does.
        """
        self._lifetime.check()
        check_place(topic, partition, timestamp_ms)
        check_columns(columns)
        known = self._topics.get(topic) or await self._ready_for(topic, 0)
        time_ms = self._clock.wall_ms() if timestamp_ms is None else timestamp_ms
        outcomes: list[BatchOutcome] = []
        pieces = cut(columns, self._settings, time_ms)
        for piece in pieces:
            for part, chosen in spread(piece, self._partition, topic, len(known.queues), partition):
                data = part.build(self._settings)
                if not self._accumulator.has_room(len(data)):
                    await self._ready_for(topic, len(data))
                queue = known.queue_for(None, chosen)
                batch = self._accumulator.add_batch(
                    queue, data, count=part.rows, now_ms=self._clock.monotonic_ms()
                )
                outcomes.append(batch.outcome)
                self._opened(batch)
                await asyncio.sleep(0)
        return BatchDelivery(outcomes)

    async def partitions_of(self, topic: str, *, timeout_ms: int | None = None) -> int:
        """How many partitions a topic has; UnknownTopic, Unreachable."""
        return len((await self._ready_for(topic, 0, timeout_ms)).queues)

    def trouble(self) -> str:
        """Why what was handed over is not acknowledged yet, for people; empty: nothing is known."""
        return self._trouble.now() if self._started else ""

    async def flush(self) -> None:
        """Wait until everything handed over so far is acknowledged or has failed."""
        self._lifetime.check()
        outcomes = list(dict.fromkeys(batch.outcome for batch in self._accumulator.flush()))
        for queue in self._accumulator.busy():
            self._route(queue)
        for outcome in outcomes:
            if not outcome.is_over:
                await wait_for(outcome)

    async def close(self, *, timeout_ms: int = CLOSE_TIMEOUT_MS) -> None:
        """Send what is left, within the timeout, and end."""
        if self._started and not self._lifetime.is_over:
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout_ms / 1000):
                    await self.flush()
        if self._lifetime.end():
            self._end_all(
                ClientClosed("the producer was closed before the record was acknowledged")
            )
            await self._tasks.close()

    @property
    def is_over(self) -> bool:
        """Whether it was closed, has failed, or belongs to another process."""
        return self._lifetime.is_over

    def metrics(self) -> dict[str, float]:
        """What was sent so far, how it went, and what is on its way."""
        return {
            **self.counts.flat(),
            "buffer_bytes": self._accumulator.memory_bytes,
            "buffer_limit_bytes": self._settings.buffer_memory,
            "requests_in_flight": sum(each.in_flight for each in self._senders.values()),
        }

    async def state(self) -> dict[str, Any]:
        """Flush, then give ids and sequences, to be saved together with the input's position."""
        await self.start()
        await self.flush()
        accumulator = self._accumulator
        if not self._settings.enable_idempotence:
            raise InvalidRequest("only an idempotent producer has a state")
        try:
            async with asyncio.timeout(self._settings.max_block_ms / 1000):
                while accumulator.needs_epoch:
                    await self._epoch_begun.wait()
                    self._lifetime.check()
        except TimeoutError:
            raise Unreachable(f"the producer has no id: {self._identity.problem}") from None
        return written_state(
            accumulator.producer_id, accumulator.producer_epoch, accumulator.sequences()
        )

    def resume(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state, before anything is sent.

        What was sent after that state and is sent again, the same records in the same order to the
        same partitions, is recognised by the brokers and not written twice.
        """
        self._lifetime.check()
        if self._started or not self._settings.enable_idempotence:
            raise InvalidRequest("only an idempotent producer can resume, before it is started")
        self._accumulator.resume(*read_state(state))
        self._resumed = True

    # Filling.

    async def _ready_for(self, topic: str, size: int, timeout_ms: int | None = None) -> TopicQueues:
        """Wait until the topic is known and there is room, `max_block_ms` unless told otherwise."""
        check_place(topic)
        await self.start()
        most = self._settings.max_block_ms if timeout_ms is None else timeout_ms
        limit_ms = self._clock.monotonic_ms() + most
        if topic not in self._topics:
            wait = self._settings.unknown_topic_wait_ms
            found = await self._metadata.topic(topic, timeout_ms=most, unknown_ms=wait, create=True)
            self._learn_topic(topic, found)
        try:
            async with asyncio.timeout(max(limit_ms - self._clock.monotonic_ms(), 0) / 1000):
                while not self._accumulator.has_room(size):
                    self._room.clear()
                    for sender in self._senders.values():
                        sender.wake.set()
                    await self._room.wait()
        except TimeoutError:
            raise BufferFull(
                f"buffer_memory={self._settings.buffer_memory} was full for "
                f"max_block_ms={self._settings.max_block_ms}{because(self.trouble())}"
            ) from None
        self._lifetime.check()
        return self._topics.get(topic) or await self._ready_for(topic, size)

    def _open(  # noqa: PLR0917 - a record, as `send` has it.
        self,
        known: TopicQueues,
        queue: Queue[BatchOutcome],
        value: bytes | None,
        key: bytes | None,
        headers: Sequence[HeaderPair] | None,
        time_ms: int,
        size: int,
    ) -> Pending[BatchOutcome]:
        """There is no batch in which the record has room: begin one, elsewhere where that suits."""
        accumulator = self._accumulator
        if queue is known.sticky:
            # It may just have become full.
            self._route(queue)
            queue = known.choose()
            batch = accumulator.add(queue, value, key, headers, time_ms, size)
            if batch is not None:
                return batch
        now_ms = self._clock.monotonic_ms()
        batch = accumulator.open_batch(queue, value, key, headers, time_ms, size, now_ms=now_ms)
        self._opened(batch)
        return batch

    def _opened(self, batch: Pending[BatchOutcome]) -> None:
        self._route(batch.queue)
        self._timers.wake_before(batch.deadline_ms)

    # Where queues go.

    def _route(self, queue: Queue[BatchOutcome]) -> None:
        """Something of this queue may be sent: hand it to the sender of its leader."""
        if not queue.batches or self._lifetime.is_closed:
            return
        partition = queue.partition
        leader, epoch = self._metadata.leader_of(partition)
        sender = self._senders.get(leader) or self._make_sender(leader)
        if sender is None:
            self._accumulator.note(queue, NotLeader(f"{partition} has no leader (epoch {epoch})"))
            self._leaderless[partition] = queue
            return
        sender.offer(queue)

    def _make_sender(self, broker: int) -> Sender | None:
        address = self._metadata.picture.brokers.get(broker)
        if address is None:
            return None
        sender = self._senders[broker] = self._make(
            self,
            self._settings,
            broker=broker,
            address=address,
            network=self._network,
            clock=self._clock,
            counts=self.counts,
        )
        self._tasks.spawn(f"produce to broker {broker}", sender.run())
        return sender

    def _metadata_changed(self) -> None:
        if self._lifetime.is_closed:
            return
        picture = self._metadata.picture
        for broker, sender in self._senders.items():
            if broker in picture.brokers:
                sender.move_to(picture.brokers[broker])
        for topic in list(self._topics):
            found = picture.topics.get(topic)
            if found is None or found.deleting:
                del self._topics[topic]
            else:
                self._learn_topic(topic, found)
        for queue in self._accumulator.busy():
            leader, epoch = self._metadata.leader_of(queue.partition)
            if self._leaders.get(queue.partition) != (leader, epoch):
                self._leaders[queue.partition] = (leader, epoch)
                self._follow(queue, leader, epoch)
        waiting, self._leaderless = self._leaderless, {}
        for queue in waiting.values():
            self._route(queue)

    def _follow(self, queue: Queue[BatchOutcome], leader: int, epoch: int) -> None:
        """The partition has another leader: what the old one has not answered goes to it."""
        for batch in self._accumulator.moved(queue, epoch):
            self.unanswered(
                Sent(batch, batch.attempts),
                NotLeader(f"{queue.partition} has another leader since epoch {epoch}"),
                pause_ms=0,
            )
        self._route(queue)
        if leader in self._senders:
            self._senders[leader].hurry()

    def _learn_topic(self, name: str, picture: TopicPicture) -> None:
        known = self._topics.get(name)
        if known is None:
            known = self._topics[name] = TopicQueues(name, self._partition, self._rng)
        known.learn(picture, self._accumulator.queue)

    # What senders ask (SenderPort).

    def take_for(self, sender: Sender) -> list[Pending[BatchOutcome]]:
        """The batches of the next request to a broker, those of each partition in order.

        One of each partition that is ready, and more while they are small: a request costs both
        sides about as much as the bytes of GATHER_BYTES do.
        """
        now_ms = self._clock.monotonic_ms()
        taken: list[Pending[BatchOutcome]] = []
        room = sender.request_bytes_max
        gathers_until_ms = sender.gather(now_ms, is_pressed=self._accumulator.is_pressed)
        for partition, queue in list(sender.ready.items()):
            leader, epoch = self._metadata.leader_of(partition)
            if leader != sender.broker:
                del sender.ready[partition]
                self._route(queue)
                continue
            gathered = 0
            while gathered < (1 if queue.goes_alone else GATHER_BYTES):
                batch = self._take_from(queue, sender, now_ms, gathers_until_ms, room, epoch)
                if batch is None:
                    break
                taken.append(batch)
                gathered += len(batch.data)
                room -= len(batch.data)
            if gathered:
                self._leaders[partition] = (leader, epoch)
                if sender.ready.pop(partition, None) is not None:
                    # At the end of the line, for it may have more.
                    sender.ready[partition] = queue
        if sender.gathering and not now_ms < sender.timer_ms <= gathers_until_ms:
            sender.timer_ms = gathers_until_ms
            self._timers.set(gathers_until_ms, sender.wake.set)
        return taken

    def _take_from(
        self,
        queue: Queue[BatchOutcome],
        sender: Sender,
        now_ms: int,
        gathers_until_ms: int,
        room: int,
        epoch: int,
    ) -> Pending[BatchOutcome] | None:
        """The next batch of a partition, if it goes with this request."""
        accumulator = self._accumulator
        batch = accumulator.peek(queue)
        if batch is not None:
            if batch.size_bytes > room < sender.request_bytes_max:
                return None
            if batch.state is State.OPEN and gathers_until_ms > now_ms:
                sender.hold(queue, now_ms)
                return None
        batch = accumulator.take(queue, now_ms, leader_epoch=epoch)
        if batch is None:
            sender.ready.pop(queue.partition, None)
            due_ms = accumulator.due_ms(queue)
            if due_ms is not None:
                self._timers.set(due_ms, partial(self._route, queue))
        return batch

    def answered(self, sent: Sent, part: pb.PartitionProduced, at: int) -> None:
        batch = sent.batch
        result = part.batches[at] if at < len(part.batches) else None
        code, message = part.error, part.message
        if result is not None and result.error:
            code, message = result.error, result.message
        error = error_of(code, message)
        if error is None and result is None:
            error = RequestTimedOut("the broker said nothing of the batch")
        if error is None and result is not None:
            self._stored(batch, result)
        elif error is not None and not self._is_current(sent):
            pass
        elif error is not None and result is None and sent.together > 1 and not error.retriable:
            # Refused for what one of them is: alone, each gets an answer of its own.
            batch.queue.goes_alone = True
            now_ms = self._clock.monotonic_ms()
            self._fail(self._accumulator.refused(batch, error, now_ms=now_ms, pause_ms=0))
        elif error is not None:
            is_appended = result is not None and not result.error
            has_due = result is not None and result.HasField("due_sequence")
            due = result.due_sequence if result is not None and has_due else -1
            self._refused(sent, part, error, is_appended=is_appended, due_sequence=due)
        self._progress(batch.queue)

    def unanswered(self, sent: Sent, error: TailraceError, *, pause_ms: int | None = None) -> None:
        batch = sent.batch
        if self._is_current(sent):
            pause = self.pause_ms(batch.attempts) if pause_ms is None else pause_ms
            self._fail(
                self._accumulator.unanswered(
                    batch, error, now_ms=self._clock.monotonic_ms(), pause_ms=pause
                )
            )
            self._give_up_if_tired(batch)
            self._progress(batch.queue)

    def suspect(self) -> None:
        self._metadata.refresh()

    def pause_ms(self, attempts: int) -> int:
        growing = self._settings.retry_backoff_ms * 2 ** min(max(attempts - 1, 0), 20)
        limit = min(growing, self._settings.retry_backoff_max_ms)
        return int(limit * self._rng.uniform(0.5, 1.0))

    @staticmethod
    def _is_current(sent: Sent) -> bool:
        return sent.batch.state is State.IN_FLIGHT and sent.batch.attempts == sent.attempt

    # Outcomes.

    def _stored(self, batch: Pending[BatchOutcome], result: pb.BatchProduced) -> None:
        if result.duplicate and self._settings.expect_new:
            if batch.state is not State.ENDED:
                self._is_taken(batch, (batch.sequence + batch.count) % SEQUENCE_MODULUS)
        elif self._accumulator.acknowledged(batch):
            batch.queue.goes_alone = False
            self.counts.stored(batch.count, len(batch.data), batch.attempts)
            # The answer has the largest time of the batch, or else that of the append.
            largest_ms = read_header(batch.data).max_timestamp_ms
            is_append_time = 0 < result.timestamp_ms != largest_ms
            batch.outcome.stored(
                batch.first,
                batch.count,
                base_offset=result.base_offset,
                append_time_ms=result.timestamp_ms if is_append_time else NO_TIMESTAMP_MS,
            )

    def _refused(
        self,
        sent: Sent,
        part: pb.PartitionProduced,
        error: TailraceError,
        *,
        is_appended: bool,
        due_sequence: int,
    ) -> None:
        batch, pause_ms = sent.batch, max(self.pause_ms(sent.batch.attempts), part.retry_after_ms)
        if isinstance(error, NotLeader) and self._metadata.hint(
            batch.partition, part.leader, part.leader_epoch
        ):
            # Whoever leads now was told, and `_follow` has taken the batch back already.
            if not self._is_current(sent):
                return
            pause_ms = 0
        ahead = ahead_of(batch.sequence, due_sequence)
        refused = Refused(
            self._accumulator.is_first(batch, is_ahead=ahead > 0),
            is_appended,
            ahead,
            expect_new=self._settings.expect_new,
            resumed=self._resumed,
        )
        match verdict(error, refused):
            case Verdict.FENCED:
                self._become_fatal(error)
            case Verdict.IN_DOUBT:
                self.unanswered(sent, error, pause_ms=pause_ms)
            case Verdict.TAKEN:
                self._is_taken(batch, due_sequence)
            case Verdict.IN_LOG:
                first, records = batch.first, min(refused.ahead, batch.count)
                has_rest = self._accumulator.skip(batch, records)
                batch.outcome.stored(first, records, base_offset=NO_OFFSET, is_part=not has_rest)
            case Verdict.AGAIN:
                self._fail(
                    self._accumulator.refused(
                        batch, error, now_ms=self._clock.monotonic_ms(), pause_ms=pause_ms
                    )
                )
                self._give_up_if_tired(batch)
            case other:
                self._fail(self._ended_by(other, batch, error))

    def _ended_by(
        self, found: Verdict, batch: Pending[BatchOutcome], error: TailraceError
    ) -> list[Ended[BatchOutcome]]:
        """As it is the batch goes nowhere: what that ends."""
        if found is Verdict.FORGOTTEN:
            return self._accumulator.forgotten(batch, error)
        if found is Verdict.TOO_LARGE:
            return self._accumulator.split(batch, error)
        return self._accumulator.give_up(batch, error)

    def _is_taken(self, batch: Pending[BatchOutcome], due_sequence: int) -> None:
        """With `expect_new`: the program has to look at what the log holds, and start again."""
        error = OutOfOrderSequence(
            f"{batch.partition}: sequence {batch.sequence} was expected to be new, but the log "
            f"is at {due_sequence}"
        )
        error.due_sequence, error.partition = due_sequence, batch.partition
        self._become_fatal(error)

    def _give_up_if_tired(self, batch: Pending[BatchOutcome]) -> None:
        """`retries` counts attempts after the first one."""
        error = batch.last_error
        if batch.attempts > self._settings.retries and error is not None:
            self._fail(self._accumulator.give_up(batch, error))

    def _fail(self, ended: Iterable[Ended[BatchOutcome]]) -> None:
        for batch, error in ended:
            if not batch.outcome.is_awaited:
                who = self._settings.client_id or "producer"
                _LOG.warning("%s: %d of %s failed: %s", who, batch.count, batch.partition, error)
            self.counts.gave_up(batch.count, batch.attempts, error.code)
            batch.outcome.failed(batch.first, batch.count, error)

    def _progress(self, queue: Queue[BatchOutcome]) -> None:
        """Something was resolved: there may be room, something to send, or a new epoch due."""
        self._room.set()
        self._route(queue)
        self._check_epoch()

    def _check_epoch(self) -> None:
        accumulator = self._accumulator
        if accumulator.needs_epoch and self._settings.expect_new:
            self._become_fatal(OutOfOrderSequence("with expect_new only `resume` gives numbers"))
        elif accumulator.needs_epoch and accumulator.can_begin_epoch():
            self._epoch_due.set()

    def _become_fatal(self, error: TailraceError) -> None:
        self._end_all(self._lifetime.fail(error))

    def _end_all(self, error: TailraceError) -> None:
        self._fail(self._accumulator.end_all(error))
        self._room.set()
        self._epoch_begun.set()

    # Time and identity.

    async def _keep_time(self) -> None:
        """Retries, linger and deadlines become due."""
        while True:
            now_ms = self._clock.monotonic_ms()
            expired = self._accumulator.expire(now_ms, self._trouble.silence)
            if expired:
                self._fail(expired)
                for each in expired:
                    self._progress(each.batch.queue)
            while (look := self._timers.pop(now_ms)) is not None:
                look()
            await self._timers.sleep(now_ms, self._accumulator.next_deadline_ms())

    async def _keep_identity(self) -> None:
        """Get an id, and a new epoch whenever numbers were lost."""
        self._check_epoch()
        while True:
            await self._epoch_due.wait()
            self._epoch_due.clear()
            accumulator = self._accumulator
            if not (accumulator.needs_epoch and accumulator.can_begin_epoch()):
                continue
            accumulator.is_renewing = True
            producer_id, epoch = await self._identity.get(
                accumulator.producer_id, accumulator.producer_epoch
            )
            self._resumed = False
            accumulator.begin_epoch(producer_id, epoch)
            begun, self._epoch_begun = self._epoch_begun, asyncio.Event()
            begun.set()
            for queue in accumulator.busy():
                self._route(queue)

    def _task_failed(self, name: str, error: BaseException) -> None:
        failure = error if isinstance(error, TailraceError) else ClientClosed(f"{name}: {error!r}")
        self._become_fatal(failure)
