"""What a log lets in: whole batches of allowed size, each once and in order of its producer."""

from __future__ import annotations

import pytest

from tailrace.config import LogConfig, TimestampType
from tailrace.errors import (
    BatchTooLarge,
    CorruptBatch,
    InvalidTimestamp,
    OutOfOrderSequence,
    UnknownProducer,
)
from tailrace.log.admission import Admission, BatchResult, validated
from tailrace.log.producers import ProducerStates
from tailrace.log.snapshots import note_producer
from tailrace.record.build import BatchBuilder
from tailrace.record.header import BatchHeader, read_header

NOW_MS = 1_700_000_000_000


def built(count: int, *, sequence: int | None = None, producer: int = 7) -> bytes:
    builder = BatchBuilder()
    for number in range(count):
        builder.append(b"value", timestamp_ms=number)
    if sequence is None:
        return builder.build()
    return builder.build(producer_id=producer, producer_epoch=0, base_sequence=sequence)


def header(count: int, sequence: int, producer: int = 7) -> BatchHeader:
    return read_header(built(count, sequence=sequence, producer=producer))


def check(data: bytes, config: LogConfig | None = None) -> list[BatchHeader]:
    found = validated(data, "orders", config or LogConfig(), now_ms=NOW_MS, control_allowed=False)
    return [each for each, _ in found]


def test_every_batch_of_the_bytes_is_checked() -> None:
    assert [each.record_count for each in check(built(2) + built(3))] == [2, 3]
    damaged = bytearray(built(2) + built(3))
    damaged[-9] ^= 1
    with pytest.raises(CorruptBatch):
        check(bytes(damaged))


def timed(*times_ms: int) -> bytes:
    builder = BatchBuilder()
    for time_ms in times_ms:
        builder.append(b"value", timestamp_ms=time_ms)
    return builder.build()


def test_f29_times_that_are_far_off_are_refused() -> None:
    limits = LogConfig(message_timestamp_before_max_ms=1_000, message_timestamp_after_max_ms=500)
    assert check(timed(NOW_MS - 1_000, NOW_MS + 500), limits)
    with pytest.raises(InvalidTimestamp, match=r"501 ms ahead, message\.timestamp\.after"):
        check(timed(NOW_MS, NOW_MS + 501), limits)
    with pytest.raises(InvalidTimestamp, match=r"1001 ms ago, message\.timestamp\.before"):
        check(timed(NOW_MS - 1_001, NOW_MS), limits)
    # Whoever asks for the time of the append does not mind what producers say.
    stamped = LogConfig(
        message_timestamp_type=TimestampType.LOG_APPEND_TIME,
        message_timestamp_before_max_ms=0,
        message_timestamp_after_max_ms=0,
    )
    (found,) = check(timed(5, NOW_MS * 1_000), stamped)
    assert found.max_timestamp_ms == NOW_MS


def test_f29_a_topic_that_says_nothing_takes_every_time() -> None:
    assert check(timed(0))
    assert check(timed(NOW_MS * 1_000))


def test_nothing_is_no_append() -> None:
    with pytest.raises(CorruptBatch):
        check(b"")


def test_a_batch_above_the_limit_of_its_topic_is_refused() -> None:
    with pytest.raises(BatchTooLarge, match=r"max\.message\.bytes"):
        check(built(200), LogConfig(max_message_bytes=1024))


def test_append_time_replaces_the_producers_time() -> None:
    config = LogConfig(message_timestamp_type=TimestampType.LOG_APPEND_TIME)
    (stamped,) = check(built(2), config)
    assert stamped.max_timestamp_ms == NOW_MS
    assert stamped.is_append_time


def test_batches_of_one_append_must_follow_one_another() -> None:
    admission = Admission(ProducerStates(), expiration_ms=1_000)
    assert admission.admit(header(2, 0), 10, NOW_MS) == BatchResult(10, 11, 1)
    assert admission.admit(header(1, 2), 12, NOW_MS).error is None
    assert isinstance(admission.admit(header(1, 9), 13, NOW_MS).error, OutOfOrderSequence)


def test_a_retry_is_answered_with_where_it_is() -> None:
    states = ProducerStates()
    first = header(2, 0)._replace(base_offset=40)
    note_producer(states, first, NOW_MS)
    result = Admission(states, expiration_ms=1_000).admit(header(2, 0), 50, NOW_MS)
    assert result == BatchResult(40, 41, 1, duplicate=True)


def test_an_unknown_producer_starts_at_zero() -> None:
    admission = Admission(ProducerStates(), expiration_ms=1_000)
    assert isinstance(admission.admit(header(1, 5), 0, NOW_MS).error, UnknownProducer)
