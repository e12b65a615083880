"""The writing end of one shard: records gather while a batch is on its way, and go in the next one.

The shard's epoch is the epoch of its producer (`meta.shard_producers`). One batch at a time is on
its way, and it is sent again as it is until it is known to be in the log; so order and sequence
numbers need no more thought. Nothing is known here of brokers and time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from tailrace.coordinator.records import Encoded, ShardTaken, encode
from tailrace.errors import InvariantViolation, TailraceError
from tailrace.meta.shard_producers import producer_of
from tailrace.model import OFFSETS_TOPIC, TopicPartition
from tailrace.record.build import BatchBuilder
from tailrace.record.header import SEQUENCE_MODULUS

# A batch that has so much is full; one record more may still have gone in.
BATCH_BYTES: Final = 1 << 20
BATCH_BYTES_MAX: Final = 7 << 20

Then: TypeAlias = Callable[[TailraceError | None, int], None]
"""Told when records are on all replicas, with the offset of the last one; or why they are not."""


class Journal:
    """What one owner of a shard writes: `take` the batch to send, `settle` it when it is there."""

    def __init__(
        self, shard: int, owner: int, epoch: int, *, on_ready: Callable[[Journal], None]
    ) -> None:
        """`on_ready`: there is something to send, and nothing on its way."""
        self.partition = TopicPartition(OFFSETS_TOPIC, shard)
        self._producer = producer_of(shard, epoch)
        self._owner = encode(ShardTaken(owner, epoch))
        self._on_ready = on_ready
        self._pending: deque[tuple[Encoded, int]] = deque()
        self._parked: deque[tuple[int, Then]] = deque()
        # How many records were handed over, and are known to be in the log.
        self._written = 0
        self._committed = 0
        self._sequence = 0
        self._batch = b""
        self._batch_records = 0
        self._closed: TailraceError | None = None
        # Which attempt to send the batch counts.
        self.attempt = 0
        self.failures = 0

    @property
    def has_work(self) -> bool:
        return bool(self._batch or self._pending)

    @property
    def is_idle(self) -> bool:
        """Whether all that was written is in the log."""
        return not self.has_work

    @property
    def taken(self) -> int:
        """How many records the batch has that is on its way."""
        return self._batch_records

    @property
    def parked(self) -> int:
        """How many wait for the log."""
        return len(self._parked)

    def write(self, records: Sequence[Encoded], then: Then, *, now_ms: int) -> None:
        """Append records, and tell when they and all before them are in the log."""
        if self._closed is not None:
            then(self._closed, -1)
            return
        is_known = self.has_work
        for record in records:
            self._pending.append((record, now_ms))
        self._written += len(records)
        if self._written == self._committed:
            then(None, -1)
            return
        self._parked.append((self._written, then))
        if not is_known:
            self._on_ready(self)

    def prove(self, then: Then, *, now_ms: int) -> None:
        """Tell when the log has taken something that was sent after now: we still own the shard."""
        self.write([] if self._pending else [self._owner], then, now_ms=now_ms)

    def take(self) -> bytes:
        """The batch to send: the one that is not known to be there, else a new one."""
        if not self._batch:
            self._build()
        self.attempt += 1
        return self._batch

    def settle(self, base_offset: int) -> None:
        """The batch is in the log."""
        if not self._batch:
            raise InvariantViolation(f"{self.partition}: nothing was on its way")
        last_offset = base_offset + self._batch_records - 1
        self._sequence = (self._sequence + self._batch_records) % SEQUENCE_MODULUS
        self._committed += self._batch_records
        self._batch, self._batch_records, self.failures = b"", 0, 0
        # Those who are told may write more: that goes in the next batch, with what has gathered.
        while self._parked and self._parked[0][0] <= self._committed:
            _, then = self._parked.popleft()
            then(None, last_offset)
        if self._pending and self._closed is None:
            self._on_ready(self)

    def close(self, error: TailraceError) -> None:
        """The shard is not ours any more: whoever waits is told so."""
        if self._closed is not None:
            return
        self._closed = error
        self.attempt += 1
        self._pending.clear()
        self._batch = b""
        while self._parked:
            _, then = self._parked.popleft()
            then(error, -1)

    def _build(self) -> None:
        if not self._pending:
            raise InvariantViolation(f"{self.partition}: there is nothing to send")
        builder = BatchBuilder(limit_bytes=BATCH_BYTES_MAX)
        while self._pending and builder.size_bytes < BATCH_BYTES:
            (key, value), now_ms = self._pending.popleft()
            builder.append(value, key, now_ms)
        self._batch_records = builder.count
        self._batch = builder.build(
            producer_id=self._producer.producer_id,
            producer_epoch=self._producer.producer_epoch,
            base_sequence=self._sequence,
        )
