"""What a log remembers of each idempotent producer, so that a retry never makes a duplicate.

Pure: it gets header fields and times, and knows neither files nor batches nor a clock. `check`
decides before the append and changes nothing; `update` applies what was appended, on a leader, on
a follower and on replay alike, so that all replicas come to the same state from the same log.

Invariant: a batch is accepted as new only when it directly continues what the log holds of its
producer, or starts a producer or an epoch with sequence 0. The state is bounded; when it is full,
new producers are refused rather than known ones forgotten, because a forgotten producer that
retries its first batch would write it twice without anyone noticing.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Iterator
from typing import Final, NamedTuple, NoReturn

from tailrace.errors import (
    CorruptCheckpoint,
    InvariantViolation,
    LimitReached,
    OutOfOrderSequence,
    ProducerFenced,
    UnknownProducer,
)
from tailrace.record.codec import crc32c
from tailrace.record.header import SEQUENCE_MODULUS

BATCHES_PER_PRODUCER: Final = 5
"""As many as a producer may have in flight: a retry is never older than these."""

PRODUCERS_PER_PARTITION_MAX: Final = 50_000
"""One producer takes at most about 450 bytes of memory and 180 bytes of a snapshot."""

PRODUCER_IDLE_MIN_MS: Final = 15 * 60 * 1000
"""Idle for this long, a producer may be forgotten early when room is short.

It must be well above the longest delivery timeout of a client: after it nothing is retried.
"""

PRODUCERS_SLACK: Final = 1_000
"""How far `update` may go beyond the limit: one append may bring several new producers, all
checked before the first of them is applied."""


class Duplicate(NamedTuple):
    """The batch is in the log already: answer with where it is."""

    base_offset: int
    last_offset: int
    timestamp_ms: int


class ProducedBatch(NamedTuple):
    base_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int
    timestamp_ms: int


class ProducerEntry(NamedTuple):
    """One producer's state as people and tools see it; the batches are oldest first."""

    producer_id: int
    producer_epoch: int
    last_update_ms: int
    batches: tuple[ProducedBatch, ...]


class ProducerStates:
    """The producers of one partition, least recently written first."""

    __slots__ = ("_producers", "_producers_max")

    def __init__(self, *, producers_max: int = PRODUCERS_PER_PARTITION_MAX) -> None:
        self._producers: OrderedDict[int, _Producer] = OrderedDict()
        self._producers_max = producers_max

    def check(
        self,
        *,
        producer_id: int,
        producer_epoch: int,
        base_sequence: int,
        record_count: int,
        arriving: int = 0,
    ) -> Duplicate | None:
        """Decide on a batch that wants to be appended: None to append it, or where it is already.

        Raises ProducerFenced (an older epoch), UnknownProducer (nothing known, yet not the first
        batch), OutOfOrderSequence (a gap, or a duplicate too old to say where it is) or
        LimitReached (a new producer and no room: `expire` and try again; `arriving` new ones were
        let in already and will be applied later).
        """
        producer = self._producers.get(producer_id)
        if producer is None:
            if base_sequence != 0:
                raise UnknownProducer(
                    f"producer {producer_id} (epoch {producer_epoch}) sent sequence "
                    f"{base_sequence}, but the log has no state of it; only sequence 0 may start"
                )
            if len(self._producers) + arriving >= self._producers_max:
                raise LimitReached(
                    f"producer {producer_id} is new and the partition already keeps the state "
                    f"of {self._producers_max} producers, its limit"
                )
            return None
        if producer_epoch == producer.epoch:
            if base_sequence == producer.next_sequence:
                return None
            return producer.find(producer_id, base_sequence, record_count)
        if producer_epoch < producer.epoch:
            raise ProducerFenced(
                f"producer {producer_id} with epoch {producer_epoch} was replaced by epoch "
                f"{producer.epoch}"
            )
        if base_sequence != 0:
            raise OutOfOrderSequence(
                f"producer {producer_id} started epoch {producer_epoch} (after "
                f"{producer.epoch}) with sequence {base_sequence} instead of 0"
            )
        return None

    def update(
        self,
        *,
        producer_id: int,
        producer_epoch: int,
        base_sequence: int,
        last_sequence: int,
        base_offset: int,
        last_offset: int,
        timestamp_ms: int,
        now_ms: int,
    ) -> None:
        """Remember a batch that the log now holds.

        The log is the truth: nothing is checked, since a replay may start in the middle of a
        sequence. A `base_sequence` of -1 (a control batch) only sets the epoch. `timestamp_ms` is
        what a duplicate is answered with; `now_ms` is when this log got the batch and is what
        expiry counts from, because a producer's own timestamps may say anything.
        """
        producers = self._producers
        producer = producers.get(producer_id)
        if producer is None:
            if producer_id < 0:
                raise InvariantViolation(f"{producer_id} is not the id of a producer")
            producer = self._add(producer_id, _Producer(producer_epoch))
        else:
            producers.move_to_end(producer_id)
            if producer.epoch != producer_epoch:
                producer.epoch = producer_epoch
                producer.history = b""
                producer.next_sequence = 0
        producer.last_update_ms = now_ms
        if base_sequence >= 0:
            packed = _BATCH_PACK(
                base_sequence, last_sequence, base_offset, last_offset, timestamp_ms
            )
            producer.history = (producer.history + packed)[-_HISTORY_BYTES_MAX:]
            producer.next_sequence = (last_sequence + 1) % SEQUENCE_MODULUS

    def expire(self, now_ms: int, expiration_ms: int) -> int:
        """Forget producers that have not written for `expiration_ms`; return how many.

        While the partition is more than half full, PRODUCER_IDLE_MIN_MS is enough.
        """
        expired = self._drop_idle(now_ms - expiration_ms, down_to=0)
        if expiration_ms > PRODUCER_IDLE_MIN_MS:
            expired += self._drop_idle(
                now_ms - PRODUCER_IDLE_MIN_MS, down_to=self._producers_max // 2
            )
        return expired

    def entries(self) -> Iterator[ProducerEntry]:
        for producer_id, producer in self._producers.items():
            batches = tuple(map(ProducedBatch._make, _BATCH.iter_unpack(producer.history)))
            yield ProducerEntry(producer_id, producer.epoch, producer.last_update_ms, batches)

    def ids(self) -> list[int]:
        """The ids of all producers."""
        return list(self._producers)

    def __len__(self) -> int:
        return len(self._producers)

    def epoch_of(self, producer_id: int) -> int | None:
        """The epoch in which a producer wrote last; None: nothing is known of it."""
        producer = self._producers.get(producer_id)
        return None if producer is None else producer.epoch

    def __contains__(self, producer_id: object) -> bool:
        return producer_id in self._producers

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ProducerStates):
            return NotImplemented
        return list(self.entries()) == list(other.entries())

    __hash__ = None  # type: ignore[assignment]  # It changes, so it must not be a key.

    def to_bytes(self, offset: int) -> bytes:
        """Return a snapshot: the state that the log below `offset` leads to."""
        parts = [_HEAD.pack(_MAGIC, _VERSION, 0, len(self._producers), offset)]
        for producer_id, producer in self._producers.items():
            batch_count = len(producer.history) // _BATCH.size
            parts.append(
                _ENTRY.pack(producer_id, producer.last_update_ms, producer.epoch, batch_count, 0)
            )
            parts.append(producer.history)
        body = b"".join(parts)
        return body + _CRC.pack(crc32c(body))

    @classmethod
    def from_bytes(
        cls, data: bytes, *, producers_max: int = PRODUCERS_PER_PARTITION_MAX
    ) -> tuple[int, ProducerStates]:
        """Return the offset and the state of a snapshot; CorruptCheckpoint when it is bad.

        A snapshot of more producers than fit gives the most recently written ones.
        """
        if len(data) < _HEAD.size + _CRC.size:
            _corrupt(f"{len(data)} bytes are too few")
        body = data[: -_CRC.size]
        if _CRC.unpack_from(data, len(body))[0] != crc32c(body):
            _corrupt("CRC does not match")
        magic, version, reserved, count, offset = _HEAD.unpack_from(body)
        if magic != _MAGIC or version != _VERSION or reserved != 0 or offset < 0:
            _corrupt(f"not a snapshot of version {_VERSION}")
        states = cls(producers_max=producers_max)
        position = _HEAD.size
        for _ in range(count):
            position = states._load(body, position)
        if position != len(body):
            _corrupt(f"{len(body) - position} bytes too many")
        return offset, states

    def _load(self, body: bytes, position: int) -> int:
        batches_at = position + _ENTRY.size
        if batches_at > len(body):
            _corrupt("fewer producers than promised")
        producer_id, last_update_ms, epoch, batch_count, reserved = _ENTRY.unpack_from(
            body, position
        )
        end: int = batches_at + batch_count * _BATCH.size
        if batch_count > BATCHES_PER_PRODUCER or end > len(body) or reserved != 0:
            _corrupt(f"producer {producer_id} has {batch_count} batches that are not there")
        if producer_id < 0 or epoch < 0 or producer_id in self._producers:
            _corrupt(f"producer {producer_id} with epoch {epoch} cannot be here")
        producer = _Producer(epoch)
        producer.last_update_ms = last_update_ms
        producer.history = body[batches_at:end]
        for base_sequence, last_sequence, base, last, _ in _BATCH.iter_unpack(producer.history):
            if base_sequence < 0 or last_sequence < 0 or not 0 <= base <= last:
                _corrupt(f"producer {producer_id} has an impossible batch")
            producer.next_sequence = (last_sequence + 1) % SEQUENCE_MODULUS
        self._add(producer_id, producer)
        return end

    def _add(self, producer_id: int, producer: _Producer) -> _Producer:
        if len(self._producers) >= self._producers_max + PRODUCERS_SLACK:
            # `check` lets no new producer in when there is no room, so this is a follower or a
            # replay. It must follow its log, but its memory has to stay bounded as well.
            self._producers.popitem(last=False)
        self._producers[producer_id] = producer
        return producer

    def _drop_idle(self, before_ms: int, *, down_to: int) -> int:
        # The order is that of the log. A clock that was set back can only make a producer stay
        # longer here, until those written before it have expired too.
        dropped = 0
        producers = self._producers
        while len(producers) > down_to:
            oldest = next(iter(producers))
            if producers[oldest].last_update_ms >= before_ms:
                break
            del producers[oldest]
            dropped += 1
        return dropped


# The history of a producer is kept packed, exactly as a snapshot holds it: a third of the memory
# of tuples, and a snapshot is a join. Only the rare duplicate has to be unpacked.
_BATCH: Final = struct.Struct("<iiqqq")
_BATCH_PACK: Final = _BATCH.pack
_HISTORY_BYTES_MAX: Final = _BATCH.size * BATCHES_PER_PRODUCER

_MAGIC: Final = b"TRPS"
_VERSION: Final = 1
_HEAD: Final = struct.Struct("<4sHHIq")
_ENTRY: Final = struct.Struct("<qqhBB")
_CRC: Final = struct.Struct("<I")

SNAPSHOT_BYTES_MAX: Final = (
    _HEAD.size
    + (PRODUCERS_PER_PARTITION_MAX + PRODUCERS_SLACK) * (_ENTRY.size + _HISTORY_BYTES_MAX)
    + _CRC.size
)
"""No snapshot of a partition within the limit is larger: a reader refuses a larger file unread."""


class _Producer:
    __slots__ = ("epoch", "history", "last_update_ms", "next_sequence")

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.next_sequence = 0
        self.last_update_ms = 0
        self.history = b""

    def find(self, producer_id: int, base_sequence: int, record_count: int) -> Duplicate:
        """Find the batch among the last ones, or raise OutOfOrderSequence."""
        if record_count > 0:
            last_sequence = (base_sequence + record_count - 1) % SEQUENCE_MODULUS
            for batch in map(ProducedBatch._make, _BATCH.iter_unpack(self.history)):
                if batch.base_sequence == base_sequence and batch.last_sequence == last_sequence:
                    return Duplicate(batch.base_offset, batch.last_offset, batch.timestamp_ms)
        # Sequences wrap, so what lies less than half a turn behind is old and the rest is ahead.
        behind = (self.next_sequence - base_sequence) % SEQUENCE_MODULUS
        what = "an old duplicate" if behind <= SEQUENCE_MODULUS // 2 else "a gap"
        error = OutOfOrderSequence(
            f"producer {producer_id} (epoch {self.epoch}) sent sequence {base_sequence} where "
            f"{self.next_sequence} was due: {what}"
        )
        error.due_sequence = self.next_sequence
        raise error


def _corrupt(what: str) -> NoReturn:
    raise CorruptCheckpoint(f"producer snapshot: {what}")
