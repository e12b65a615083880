"""Records on their way from a producer to the brokers: batched, numbered, in order, retried. Pure.

Each partition has one queue. Records gather in its last batch until that is full or sent. A batch
gets its sequence when it is first sent, and as long as that counts its bytes never change, so that
the broker recognises a retry. The next batch to send is the first that waits, and only while
everything before it is on its way: order is kept whatever is retried. From the first batch that is
not resolved to the last that has a number there are never more than the broker remembers.

A batch is *in doubt* when an attempt to send it may have succeeded without our hearing of it. One
that is not in doubt and not on its way is in no log, so it may get another number or be cut in two.

Numbers can be lost: a batch that was sent and then given up leaves a gap, and the broker would
refuse everything after it. What stands behind the gap in doubt has to be given up too: it may be
in the log, and sent under a new number it would be there twice. Then `needs_epoch` is set; batches
that are in doubt elsewhere are still retried, and once nothing is in doubt or on its way, the shell
gets a new epoch (`begin_epoch`), in which every partition starts with sequence 0 again.

Invariant: a record is in one batch, a batch in one queue until it is acknowledged or given up, and
numbers in a queue follow one another without a gap.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum, auto
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from tailrace.client.deadlines import Deadlines
from tailrace.client.settings import ProducerSettings, record_too_large
from tailrace.errors import (
    BatchTooLarge,
    DeliveryTimedOut,
    InvariantViolation,
    OutOfOrderSequence,
    TailraceError,
)
from tailrace.model import NO_PRODUCER_ID, TopicPartition
from tailrace.record.build import RECORD_OVERHEAD_BYTES as BUILT_OVERHEAD_BYTES
from tailrace.record.build import BatchBuilder, HeaderPair, buffer_from_columns
from tailrace.record.header import SEQUENCE_MODULUS, number, numbered
from tailrace.record.view import BatchView


class Outcome(Protocol):
    """Whom to tell of a batch, which may be on its way in several parts."""

    parts: int


W = TypeVar("W", bound=Outcome)

RECORD_OVERHEAD_BYTES: Final = 64
"""What a waiting record takes in memory besides its key, value and headers, about."""

PRESSED_SHARE: Final = 0.9
"""A buffer that is so full has little room for batches to gather."""

SMALLEST_BATCH_BYTES: Final = 1_024
"""A topic may refuse batches as too large, but they are not made smaller than this for it."""

_NEVER: Final = -1


class State(Enum):
    """Where a batch is."""

    OPEN = auto()
    WAITING = auto()
    IN_FLIGHT = auto()
    ENDED = auto()


class Pending(Generic[W]):
    """One batch on its way. Only the accumulator changes it.

    `outcome` is the shell's: whom to tell. It belongs to the batch in which the records were put;
    parts of that (after a split) share it, and `first` says which record of it they begin with.
    """

    __slots__ = (
        "after_gap",
        "attempts",
        "builder",
        "count",
        "data",
        "deadline_ms",
        "first",
        "in_doubt",
        "last_error",
        "leader_epoch",
        "memory_bytes",
        "ordinal",
        "outcome",
        "queue",
        "ready_ms",
        "retry_ms",
        "sequence",
        "state",
        "went_first",
    )

    def __init__(self, queue: Queue[W], outcome: W, *, ready_ms: int, deadline_ms: int) -> None:
        self.queue = queue
        self.outcome = outcome
        self.ready_ms = ready_ms
        self.deadline_ms = deadline_ms
        self.builder: BatchBuilder | None = None
        self.data: bytes | memoryview = b""
        self.first = 0
        self.count = 0
        self.memory_bytes = 0
        self.state = State.OPEN
        self.sequence = _NEVER
        self.ordinal = _NEVER
        self.attempts = 0
        self.retry_ms = 0
        self.in_doubt = False
        self.after_gap = False
        self.last_error: TailraceError | None = None
        # The epoch of the leader that it was last sent to.
        self.leader_epoch = _NEVER
        # Whether nothing before it was unresolved when it was sent last.
        self.went_first = False

    @property
    def partition(self) -> TopicPartition:
        return self.queue.partition

    @property
    def size_bytes(self) -> int:
        """Its bytes, or an upper bound while it is not built."""
        return self.builder.size_bytes if self.builder is not None else len(self.data)


class Queue(Generic[W]):
    """The batches of one partition, oldest first."""

    __slots__ = (
        "batch_bytes",
        "batches",
        "goes_alone",
        "is_forgotten",
        "is_watched",
        "next_ordinal",
        "next_sequence",
        "partition",
    )

    def __init__(self, partition: TopicPartition, batch_bytes: int) -> None:
        self.partition = partition
        self.batches: deque[Pending[W]] = deque()
        self.batch_bytes = batch_bytes
        self.next_sequence = 0
        self.next_ordinal = 0
        # A request with several batches of it was refused: one at a time, until one is stored.
        self.goes_alone = False
        # The log said that it knows nothing of this producer: nothing that was sent is in it.
        self.is_forgotten = False
        self.is_watched = False

    def first_deadline_ms(self) -> int | None:
        """No later batch has an earlier one."""
        return self.batches[0].deadline_ms if self.batches else None


class Ended(NamedTuple, Generic[W]):
    """A batch that was given up, and why."""

    batch: Pending[W]
    error: TailraceError


class Accumulator(Generic[W]):
    """All batches of one producer. What its methods return has ended: the shell tells of it."""

    def __init__(
        self, settings: ProducerSettings, outcome_for: Callable[[TopicPartition], W]
    ) -> None:
        self._settings = settings
        self._outcome_for = outcome_for
        self._queues: dict[TopicPartition, Queue[W]] = {}
        self._busy: dict[TopicPartition, Queue[W]] = {}
        self._deadlines: Deadlines[Queue[W]] = Deadlines()
        self.memory_bytes = 0
        self.producer_id: int = NO_PRODUCER_ID
        self.producer_epoch = -1
        self.needs_epoch = settings.enable_idempotence
        # A new epoch is on its way: nothing more is sent in the old one.
        self.is_renewing = False

    # Filling.

    def queue(self, partition: TopicPartition) -> Queue[W]:
        """The queue of a partition; it stays the same one for ever."""
        found = self._queues.get(partition)
        if found is None:
            found = self._queues[partition] = Queue(partition, self._settings.batch_size)
        return found

    def has_room(self, size: int) -> bool:
        """Whether a record (or batch) of this size may be added; alone it always may."""
        return not self.memory_bytes or self.memory_bytes + size <= self._settings.buffer_memory

    @property
    def is_pressed(self) -> bool:
        """Whether the buffer is nearly full, so that little more can gather."""
        return self.memory_bytes >= PRESSED_SHARE * self._settings.buffer_memory

    def add(
        self,
        queue: Queue[W],
        value: bytes | None,
        key: bytes | None,
        headers: Sequence[HeaderPair] | None,
        timestamp_ms: int,
        size: int,
    ) -> Pending[W] | None:
        """Put a record into the open batch of its partition, as its last one; None: `open_batch`.

        A batch in which it has no room is full, and waits for nothing more.
        BatchTooLarge, TypeError or ValueError leave all as it was: it can never be sent.
        """
        batches = queue.batches
        if not batches:
            return None
        batch = batches[-1]
        builder = batch.builder
        if builder is None or batch.state is not State.OPEN:
            return None
        if builder.size_bytes + size > queue.batch_bytes:
            batch.state = State.WAITING
            return None
        builder.append(value, key, timestamp_ms, headers)
        batch.count += 1
        batch.memory_bytes += size
        self.memory_bytes += size
        return batch

    def add_run(
        self,
        queue: Queue[W],
        values: Sequence[bytes],
        times: array[int],
        ends: Sequence[int],
        at: int,
        end: int,
        *,
        room: int,
    ) -> int:
        """As `add` for the values from `at` to `end`, as many as have room; how many those are.

        `ends`: how many bytes all values up to each have. `room`: what may be added to the memory.
        """
        batch = queue.batches[-1] if queue.batches else None
        if batch is None or batch.builder is None or batch.state is not State.OPEN:
            return 0
        builder = batch.builder
        # Of the last one more is asked than it will take, as of any that is added alone.
        spare = (
            queue.batch_bytes - builder.size_bytes - RECORD_OVERHEAD_BYTES + BUILT_OVERHEAD_BYTES
        )
        taken = _fitting(ends, at, end, each=BUILT_OVERHEAD_BYTES, room=spare)
        if taken < end - at:
            # It is full, and waits for nothing more.
            batch.state = State.WAITING
        taken = min(taken, _fitting(ends, at, end, each=RECORD_OVERHEAD_BYTES, room=room))
        if not taken:
            return 0
        added = ends[at + taken - 1] - (ends[at - 1] if at else 0)
        builder.extend(values[at : at + taken], times[at : at + taken], added)
        batch.count += taken
        size = added + RECORD_OVERHEAD_BYTES * taken
        batch.memory_bytes += size
        self.memory_bytes += size
        return taken

    def open_batch(
        self,
        queue: Queue[W],
        value: bytes | None,
        key: bytes | None,
        headers: Sequence[HeaderPair] | None,
        timestamp_ms: int,
        size: int,
        *,
        now_ms: int,
    ) -> Pending[W]:
        """Put a record into a new batch; raises as `add` does."""
        builder = BatchBuilder(
            self._settings.compression, limit_bytes=self._settings.max_request_size
        )
        try:
            builder.append(value, key, timestamp_ms, headers)
        except BatchTooLarge:
            raise record_too_large(size, self._settings) from None
        batch = self._new_batch(queue, now_ms)
        batch.builder, batch.count = builder, 1
        self._enqueue(batch, size)
        return batch

    def add_batch(
        self, queue: Queue[W], data: bytes | memoryview, *, count: int, now_ms: int
    ) -> Pending[W]:
        """Put a batch that was built whole behind what is there."""
        batch = self._new_batch(queue, now_ms)
        batch.data, batch.count = data, count
        batch.state = State.WAITING
        self._enqueue(batch, len(data))
        return batch

    # Sending.

    def take(
        self, queue: Queue[W], now_ms: int, *, leader_epoch: int = _NEVER
    ) -> Pending[W] | None:
        """The next batch to send now, numbered and counted as on its way; None: not yet."""
        batch = self._next(queue)
        if batch is None or self._due_ms(batch) > now_ms:
            return None
        self._number(batch)
        batch.state = State.IN_FLIGHT
        batch.attempts += 1
        batch.leader_epoch = leader_epoch
        batch.went_first = queue.batches[0] is batch
        return batch

    def due_ms(self, queue: Queue[W]) -> int | None:
        """When `take` gives something; None: nothing waits, or what does must wait for others."""
        batch = self._next(queue)
        return None if batch is None else self._due_ms(batch)

    def peek(self, queue: Queue[W]) -> Pending[W] | None:
        """What `take` gives when it is due."""
        return self._next(queue)

    def busy(self) -> list[Queue[W]]:
        """The queues that hold anything."""
        return list(self._busy.values())

    def moved(self, queue: Queue[W], leader_epoch: int) -> list[Pending[W]]:
        """There is a new leader: what waits may be sent now; what the old one has is returned."""
        sent: list[Pending[W]] = []
        for batch in queue.batches:
            batch.retry_ms = 0
            if batch.state is State.IN_FLIGHT and batch.leader_epoch < leader_epoch:
                sent.append(batch)
        return sent

    def note(self, queue: Queue[W], error: TailraceError) -> None:
        """Why nothing of this queue can be sent: for the message, if it comes to that."""
        for batch in queue.batches:
            batch.last_error = error

    def flush(self) -> list[Pending[W]]:
        """Let nothing linger that is here now; return all of it."""
        found = [batch for queue in self._busy.values() for batch in queue.batches]
        for batch in found:
            if batch.state is State.OPEN:
                batch.state = State.WAITING
        return found

    def is_empty(self) -> bool:
        return not self._busy

    # Outcomes.

    def acknowledged(self, batch: Pending[W]) -> bool:
        """The broker has it; whether that is news."""
        if batch.state is State.ENDED:
            return False
        self._end(batch)
        return True

    def refused(
        self, batch: Pending[W], error: TailraceError, *, now_ms: int, pause_ms: int
    ) -> list[Ended[W]]:
        """The broker did not take it this time: it waits and is sent again."""
        if batch.state is not State.IN_FLIGHT:
            return []
        batch.state = State.WAITING
        batch.retry_ms = now_ms + pause_ms
        batch.last_error = error
        batch.in_doubt = batch.in_doubt and not batch.queue.is_forgotten
        return self._give_up_doubtful([batch])

    def unanswered(
        self, batch: Pending[W], error: TailraceError, *, now_ms: int, pause_ms: int
    ) -> list[Ended[W]]:
        """The connection broke or the answer says nothing for sure: as `refused`, but in doubt."""
        if batch.state is State.IN_FLIGHT and not batch.queue.is_forgotten:
            batch.in_doubt = True
        return self.refused(batch, error, now_ms=now_ms, pause_ms=pause_ms)

    def forgotten(self, batch: Pending[W], error: TailraceError) -> list[Ended[W]]:
        """The log knows nothing of this producer, although all before this batch was in it.

        So neither this batch nor any after it is in the log: they start anew in another epoch.
        """
        self.needs_epoch = True
        queue = batch.queue
        queue.is_forgotten = True
        for each in queue.batches:
            if each.state is not State.IN_FLIGHT or each is batch:
                each.in_doubt = False
            each.after_gap = each.sequence >= 0
        return self.refused(batch, error, now_ms=0, pause_ms=0)

    def give_up(self, batch: Pending[W], error: TailraceError) -> list[Ended[W]]:
        """It failed for good, and those with it that stand behind it in doubt."""
        if batch.state is State.ENDED:
            return []
        # A log that expects another number than this one will not take it from a later batch.
        others = self._lose_number(batch, is_wrong=isinstance(error, OutOfOrderSequence))
        self._end(batch)
        return [Ended(batch, error), *others]

    def split(self, batch: Pending[W], error: TailraceError) -> list[Ended[W]]:
        """The broker finds it too large: make two of it, and smaller ones from now on.

        One record alone cannot be cut; a batch in doubt must stay as it is. Those are given up.
        """
        if batch.state is State.ENDED:
            return []
        if batch.count < 2 or batch.in_doubt:
            return self.give_up(batch, error)
        queue = batch.queue
        queue.batch_bytes = max(min(queue.batch_bytes, len(batch.data)) // 2, SMALLEST_BATCH_BYTES)
        ended = self._lose_number(batch)
        half = batch.count // 2
        at = queue.batches.index(batch)
        parts = [self._part(batch, 0, half), self._part(batch, half, batch.count - half)]
        self._end(batch)
        batch.outcome.parts += 1
        for part in reversed(parts):
            queue.batches.insert(at, part)
            self._register(part)
        return ended

    def skip(self, batch: Pending[W], records: int) -> bool:
        """The log has its first records already (a resumed producer sends them again).

        Drop them and let the rest wait, with the numbers that it has; whether a rest is left.
        """
        if records >= batch.count:
            self._end(batch)
            return False
        part = self._part(batch, records, batch.count - records)
        self.memory_bytes += part.memory_bytes - batch.memory_bytes
        batch.data, batch.count, batch.first = part.data, part.count, part.first
        batch.memory_bytes = part.memory_bytes
        batch.sequence = (batch.sequence + records) % SEQUENCE_MODULUS
        batch.data = self._stamped(batch)
        batch.state = State.WAITING
        batch.in_doubt = False
        return True

    def is_first(self, batch: Pending[W], *, is_ahead: bool = False) -> bool:
        """Whether nothing before it in its partition is lost, or unresolved, or was when it went.

        What was resolved since then the broker may not have known, for answers come in any order,
        unless it says that the log has more than that (`is_ahead`).
        """
        batches = batch.queue.batches
        stands_first = bool(batches) and batches[0] is batch and not batch.after_gap
        return stands_first and (batch.went_first or is_ahead)

    def next_deadline_ms(self) -> int | None:
        """When `expire` has something to do."""
        first = self._deadlines.first()
        return None if first is None else first[0]

    def expire(self, now_ms: int, why: Callable[[Queue[W]], str] = lambda _: "") -> list[Ended[W]]:
        """Give up what is too old, on its way or not; `why` is asked if nobody ever refused it."""
        ended: list[Ended[W]] = []
        while (first := self._deadlines.first()) is not None and first[0] <= now_ms:
            batch = first[1].batches[0]
            if batch.state is State.IN_FLIGHT and not batch.queue.is_forgotten:
                batch.in_doubt = True
            ended += self.give_up(batch, self._too_late(batch, why(batch.queue)))
        return ended

    def end_all(self, error: TailraceError) -> list[Ended[W]]:
        """Give everything up, as when the producer was fenced or closed."""
        ended = [Ended(batch, error) for queue in self._busy.values() for batch in queue.batches]
        for each in ended:
            self._end(each.batch)
        return ended

    # Epochs.

    def can_begin_epoch(self) -> bool:
        """Whether nothing is left whose outcome under the old epoch is open."""
        return not any(
            batch.state is State.IN_FLIGHT or batch.in_doubt
            for queue in self._busy.values()
            for batch in queue.batches
        )

    def begin_epoch(self, producer_id: int, producer_epoch: int) -> None:
        """Number everything anew under a new identity."""
        if not self.can_begin_epoch():
            raise InvariantViolation("batches of the old epoch are still unresolved")
        self.producer_id, self.producer_epoch = producer_id, producer_epoch
        self.needs_epoch = self.is_renewing = False
        for queue in self._queues.values():
            queue.next_sequence = queue.next_ordinal = 0
            queue.is_forgotten = False
            for batch in queue.batches:
                batch.sequence = batch.ordinal = _NEVER
                batch.after_gap = False
                batch.retry_ms = 0

    def resume(
        self, producer_id: int, producer_epoch: int, sequences: dict[TopicPartition, int]
    ) -> None:
        """Go on with saved numbers: the next sequence of each partition."""
        self.begin_epoch(producer_id, producer_epoch)
        for partition, sequence in sequences.items():
            self.queue(partition).next_sequence = sequence

    def sequences(self) -> dict[TopicPartition, int]:
        """The next sequence of each partition, while nothing is on its way."""
        if self._busy:
            raise InvariantViolation("records are still on their way")
        return {
            partition: queue.next_sequence
            for partition, queue in self._queues.items()
            if queue.next_sequence or queue.next_ordinal
        }

    # Helpers.

    def _new_batch(self, queue: Queue[W], now_ms: int) -> Pending[W]:
        return Pending(
            queue,
            self._outcome_for(queue.partition),
            ready_ms=now_ms + self._settings.linger_ms,
            deadline_ms=now_ms + self._settings.delivery_timeout_ms,
        )

    def _enqueue(self, batch: Pending[W], size: int) -> None:
        queue = batch.queue
        if queue.batches and queue.batches[-1].state is State.OPEN:
            queue.batches[-1].state = State.WAITING
        queue.batches.append(batch)
        batch.memory_bytes = size
        self._register(batch)

    def _register(self, batch: Pending[W]) -> None:
        self._busy[batch.partition] = batch.queue
        self.memory_bytes += batch.memory_bytes
        self._deadlines.watch(batch.queue)

    def _next(self, queue: Queue[W]) -> Pending[W] | None:
        """The first batch that waits, if it may be sent at all; when is another question."""
        for batch in queue.batches:
            if batch.state is State.IN_FLIGHT:
                continue
            if self.needs_epoch and (self.is_renewing or batch.sequence < 0 or batch.after_gap):
                return None
            if batch.ordinal < 0:
                oldest = queue.batches[0].ordinal
                limit = self._settings.max_in_flight_requests_per_connection
                if oldest >= 0 and queue.next_ordinal - oldest >= limit:
                    return None
            return batch
        return None

    @staticmethod
    def _due_ms(batch: Pending[W]) -> int:
        if batch.state is State.WAITING:
            return batch.retry_ms
        return max(batch.ready_ms, batch.retry_ms)

    def _number(self, batch: Pending[W]) -> None:
        """Build the batch and give it its sequence, once in each epoch."""
        queue = batch.queue
        if batch.ordinal < 0:
            batch.ordinal = queue.next_ordinal
            queue.next_ordinal += 1
        is_numbered = self.producer_id != NO_PRODUCER_ID
        if is_numbered and batch.sequence < 0:
            batch.sequence = queue.next_sequence
            queue.next_sequence = (batch.sequence + batch.count) % SEQUENCE_MODULUS
            if batch.builder is None:
                batch.data = self._stamped(batch)
        if batch.builder is not None:
            batch.data = batch.builder.build_buffer(
                producer_id=self.producer_id,
                producer_epoch=self.producer_epoch,
                base_sequence=batch.sequence,
            )
            batch.builder = None

    def _stamped(self, batch: Pending[W]) -> bytes | memoryview:
        """The bytes of a batch that is built, under the numbers that it has now."""
        # What was sent once may still be read by a stream that is being given up.
        give = numbered if batch.attempts else number
        return give(batch.data, self.producer_id, self.producer_epoch, batch.sequence)

    def _part(self, batch: Pending[W], start: int, count: int) -> Pending[W]:
        """Some records of a batch as one of its own, without numbers."""
        columns = BatchView(batch.data).record_batch().slice(start, count)
        names = columns.schema.names
        part = Pending(
            batch.queue, batch.outcome, ready_ms=batch.ready_ms, deadline_ms=batch.deadline_ms
        )
        part.data = buffer_from_columns(
            columns.column("key"),
            columns.column("value"),
            columns.column("timestamp"),
            columns.column("headers") if "headers" in names else None,
            compression=self._settings.compression,
        )
        part.first, part.count = batch.first + start, count
        part.memory_bytes = len(part.data)
        part.state = State.WAITING
        part.attempts, part.last_error = batch.attempts, batch.last_error
        return part

    def _lose_number(self, batch: Pending[W], *, is_wrong: bool = False) -> list[Ended[W]]:
        """Its sequence will not be used by it; give up what can therefore not go on."""
        queue = batch.queue
        later = [each for each in queue.batches if each.ordinal > batch.ordinal >= 0]
        if batch.sequence < 0:
            return []
        if not (is_wrong or batch.in_doubt) and not any(
            each.in_doubt or each.state is State.IN_FLIGHT for each in later
        ):
            # None of these is in the log: the numbers are free again.
            queue.next_sequence, queue.next_ordinal = batch.sequence, batch.ordinal
            for each in later:
                each.sequence = each.ordinal = _NEVER
            return []
        self.needs_epoch = True
        for each in later:
            each.after_gap = True
        return self._give_up_doubtful(later)

    def _give_up_doubtful(self, batches: list[Pending[W]]) -> list[Ended[W]]:
        """Behind a gap, what is in doubt can neither be retried nor be numbered anew."""
        ended: list[Ended[W]] = []
        for batch in batches:
            if batch.after_gap and batch.in_doubt and batch.state is State.WAITING:
                self._end(batch)
                ended.append(Ended(batch, self._lost_with_another(batch)))
        return ended

    def _too_late(self, batch: Pending[W], silence: str) -> TailraceError:
        last = batch.last_error
        why = f", the last ended with {last.code}: {last}" if last is not None else ""
        why = why or (f": {silence}" if silence else "")
        count, attempts = batch.count, batch.attempts
        return DeliveryTimedOut(
            f"{batch.partition}: {count} record{'s' * (count != 1)} not acknowledged within "
            f"delivery_timeout_ms={self._settings.delivery_timeout_ms} "
            f"({attempts} attempt{'s' * (attempts != 1)}{why})"
        )

    def _lost_with_another(self, batch: Pending[W]) -> TailraceError:
        return DeliveryTimedOut(
            f"{batch.partition}: an earlier batch was given up; whether these {batch.count} "
            "records are in the log is not known"
        )

    def _end(self, batch: Pending[W]) -> None:
        batch.state = State.ENDED
        self.memory_bytes -= batch.memory_bytes
        queue = batch.queue
        if queue.batches[0] is batch:
            queue.batches.popleft()
        else:
            queue.batches.remove(batch)
        if not queue.batches:
            del self._busy[queue.partition]


def _fitting(ends: Sequence[int], at: int, end: int, *, each: int, room: int) -> int:
    """How many of the values from `at` to `end`, with so much beside each, have room."""
    before = (ends[at - 1] if at else 0) - each * (1 - at)
    return bisect_right(range(at, end), room, key=lambda i: ends[i] - before + each * i)


def record_size(
    value: bytes | None, key: bytes | None, headers: Sequence[HeaderPair] | None
) -> int:
    """What a record takes of the buffer, about."""
    size = RECORD_OVERHEAD_BYTES
    if value is not None:
        size += len(value)
    if key is not None:
        size += len(key)
    if headers:
        for name, each in headers:
            size += len(name) + (len(each) if each is not None else 0) + RECORD_OVERHEAD_BYTES
    return size
