"""What a leader's log takes: the bytes of every batch are checked, then its producer's state.

It changes neither the log nor the producers; it only says what an append would come to.
"""

from __future__ import annotations

from typing import Final, NamedTuple, TypedDict

import pyarrow as pa

from tailrace.config import BatchValidation, LogConfig, TimestampType
from tailrace.errors import (
    BatchFault,
    BatchTooLarge,
    CorruptBatch,
    InvalidRequest,
    InvalidTimestamp,
    LimitReached,
    OutOfOrderSequence,
    TailraceError,
)
from tailrace.log.producers import ProducerStates
from tailrace.log.snapshots import check_producer
from tailrace.model import NO_PRODUCER_ID, is_internal
from tailrace.record.header import (
    PREFIX_BYTES,
    SEQUENCE_MODULUS,
    BatchHeader,
    append_time,
    read_header,
    split,
    verify,
)
from tailrace.record.validation import check_batch, check_latest

# Batches of one partition that are checked and appended in one turn of the loop.
BATCHES_MAX: Final = 5_000


class BatchResult(NamedTuple):
    """What became of one batch of an append."""

    base_offset: int
    last_offset: int
    timestamp_ms: int
    duplicate: bool = False
    error: TailraceError | None = None


class BodyVerdict(NamedTuple):
    """What a look into the bodies of some batches, taken elsewhere, came to."""

    error: TailraceError | None = None


def check_bodies(
    data: bytes | bytearray | memoryview, topic: str, config: LogConfig, *, now_ms: int
) -> None:
    """Raise unless every reader will be able to read all of the batches.

    May run on any thread. It is also part of `validated`, for those who have not done it.
    """
    view, source, rules = memoryview(data), pa.py_buffer(data), _rules(topic, config, now_ms)
    for position, header in split(data):
        verify(source, position, header)
        check_batch(view, position, header, **rules)


def validated(
    data: bytes | bytearray | memoryview,
    topic: str,
    config: LogConfig,
    *,
    now_ms: int,
    control_allowed: bool,
    bodies: BodyVerdict | None = None,
) -> list[tuple[BatchHeader, memoryview]]:
    """Check the bytes of every batch; return each header with all that follows its prefix.

    `bodies`: what `check_bodies` came to for the same data, where it was called already.
    """
    if bodies is not None and bodies.error is not None:
        raise bodies.error
    view, source, rules = memoryview(data), pa.py_buffer(data), _rules(topic, config, now_ms)
    batches: list[tuple[BatchHeader, memoryview]] = []
    append_timestamps = config.message_timestamp_type is TimestampType.LOG_APPEND_TIME
    for position, header in split(data):
        _check_count(len(batches))
        verify(source, position, header)
        if header.length > config.max_message_bytes:
            raise BatchTooLarge(
                f"a batch of {header.length} bytes exceeds max.message.bytes="
                f"{config.max_message_bytes} of {topic}"
            )
        if header.is_compacted or header.delete_horizon_ms >= 0:
            raise CorruptBatch(BatchFault.BAD_HEADER, "only the broker compacts batches")
        if header.is_control and not control_allowed:
            raise CorruptBatch(BatchFault.BAD_HEADER, "only the broker writes control batches")
        end = position + header.length
        if not append_timestamps:
            _check_time(header, topic, config, now_ms)
        if bodies is None:
            check_batch(view, position, header, **rules)
        if append_timestamps:
            stamped = append_time(bytes(view[position:end]), now_ms)
            batches.append((read_header(stamped), memoryview(stamped)[PREFIX_BYTES:]))
        else:
            batches.append((header, view[position + PREFIX_BYTES : end]))
    if not batches:
        raise CorruptBatch(BatchFault.CUT_SHORT, "no batch at all")
    return batches


def _check_count(taken: int) -> None:
    if taken >= BATCHES_MAX:
        raise InvalidRequest(f"more than {BATCHES_MAX} batches of one partition in a request")


class _Rules(TypedDict):
    level: BatchValidation
    times: bool
    earliest_ms: int


def _rules(topic: str, config: LogConfig, now_ms: int) -> _Rules:
    """How far a topic has its batches looked into."""
    # What the cluster keeps for itself is looked at whatever anybody set.
    level = BatchValidation.FULL if is_internal(topic) else config.batch_validation
    if config.message_timestamp_type is TimestampType.LOG_APPEND_TIME:
        return {"level": level, "times": False, "earliest_ms": 0}
    earliest_ms = now_ms - config.message_timestamp_before_max_ms
    return {"level": level, "times": True, "earliest_ms": earliest_ms}


def _check_time(header: BatchHeader, topic: str, config: LogConfig, now_ms: int) -> None:
    """Refuse times that cannot be right: retention, and who reads by time, would go by them."""
    if header.is_append_time:
        raise InvalidTimestamp(f"{topic}: only the broker gives records the time of their append")
    check_latest(header)
    late_ms = header.max_timestamp_ms - now_ms
    if late_ms > config.message_timestamp_after_max_ms:
        raise InvalidTimestamp(
            f"{topic}: the time {header.max_timestamp_ms} is {late_ms} ms ahead, "
            f"message.timestamp.after.max.ms={config.message_timestamp_after_max_ms}"
        )
    early_ms = now_ms - header.first_timestamp_ms
    if early_ms > config.message_timestamp_before_max_ms and header.first_timestamp_ms >= 0:
        raise InvalidTimestamp(
            f"{topic}: the time {header.first_timestamp_ms} is {early_ms} ms ago, "
            f"message.timestamp.before.max.ms={config.message_timestamp_before_max_ms}"
        )


class Admission:
    """Asks of each batch of one append whether it is new, a duplicate or out of order."""

    __slots__ = ("_arriving", "_expiration_ms", "_pending", "_producers")

    def __init__(self, producers: ProducerStates, *, expiration_ms: int) -> None:
        self._producers = producers
        self._expiration_ms = expiration_ms
        # The last batch of each producer that this append has let in so far.
        self._pending: dict[int, BatchHeader] = {}
        # How many of them the states do not know yet.
        self._arriving = 0

    def admit(self, header: BatchHeader, offset: int, now_ms: int) -> BatchResult:
        """What the batch would come to at `offset`."""
        fresh = BatchResult(offset, offset + header.last_offset_delta, header.max_timestamp_ms)
        if header.producer_id == NO_PRODUCER_ID:
            return fresh
        before = self._pending.get(header.producer_id)
        try:
            if before is not None:
                _check_continues(before, header)
                duplicate = None
            else:
                try:
                    duplicate = check_producer(self._producers, header, arriving=self._arriving)
                except LimitReached:
                    self._producers.expire(now_ms, self._expiration_ms)
                    duplicate = check_producer(self._producers, header, arriving=self._arriving)
        except TailraceError as error:
            return BatchResult(-1, -1, -1, error=error)
        if duplicate is None:
            self._arriving += before is None and header.producer_id not in self._producers
            self._pending[header.producer_id] = header
            return fresh
        return BatchResult(
            duplicate.base_offset, duplicate.last_offset, duplicate.timestamp_ms, duplicate=True
        )


def _check_continues(before: BatchHeader, header: BatchHeader) -> None:
    """Two batches of one producer in one append: the second must follow the first."""
    if (
        header.producer_epoch != before.producer_epoch
        or header.base_sequence != (before.last_sequence + 1) % SEQUENCE_MODULUS
    ):
        raise OutOfOrderSequence(
            f"producer {header.producer_id}: sequence {header.base_sequence} does not follow "
            f"{before.last_sequence} in the same request"
        )
