"""What a log lets in: whole batches of allowed size, each once and in order of its producer."""

from __future__ import annotations

import pytest

from tailrace.config import BatchValidation, LogConfig, TimestampType
from tailrace.errors import (
    BatchTooLarge,
    CorruptBatch,
    InvalidRequest,
    InvalidTimestamp,
    OutOfOrderSequence,
    UnknownProducer,
)
from tailrace.log import admission
from tailrace.log.admission import (
    Admission,
    BatchResult,
    BodyVerdict,
    check_bodies,
    validated,
)
from tailrace.log.producers import ProducerStates
from tailrace.log.snapshots import note_producer
from tailrace.model import NO_TIMESTAMP_MS
from tailrace.record.build import BatchBuilder
from tailrace.record.codec import Compression
from tailrace.record.header import HEADER_BYTES, BatchHeader, append_time, assemble, read_header
from tailrace.record.validation import TIMESTAMP_MS_MAX

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
    assert check(timed(NO_TIMESTAMP_MS))
    assert check(timed(TIMESTAMP_MS_MAX))


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


def junk(*, codec: Compression = Compression.NONE) -> bytes:
    """A batch that is valid by its header and checksums, and unreadable inside."""
    good = read_header(built(3))._replace(attributes=codec)
    return assemble(good, bytes(good.body_bytes))


def test_a4_a_body_that_nobody_can_read_is_refused_with_the_reason() -> None:
    with pytest.raises(CorruptBatch, match="not an Arrow message"):
        check(junk())
    # One bad batch, and nothing of the append is taken.
    with pytest.raises(CorruptBatch, match="not an Arrow message"):
        check(built(2) + junk())


def test_f45_a_compressed_body_is_looked_into_as_its_topic_says() -> None:
    for codec in (Compression.LZ4, Compression.ZSTD):
        with pytest.raises(CorruptBatch, match="does not decompress"):
            check(junk(codec=codec))
        with pytest.raises(CorruptBatch, match="does not decompress"):
            check(junk(codec=codec), LogConfig(batch_validation=BatchValidation.STRUCTURE))
        assert check(junk(codec=codec), LogConfig(batch_validation=BatchValidation.NONE))


def test_f45_topics_of_the_cluster_are_looked_into_whatever_is_set() -> None:
    lax = LogConfig(batch_validation=BatchValidation.NONE)
    with pytest.raises(CorruptBatch):
        validated(junk(), "__consumer_offsets", lax, now_ms=NOW_MS, control_allowed=False)


def test_a9_times_that_the_header_does_not_say_are_refused() -> None:
    good = timed(5, 6, 7)
    header = read_header(good)
    body = good[HEADER_BYTES : header.length - header.padding]
    lies = (
        header._replace(max_timestamp_ms=6),
        header._replace(max_timestamp_ms=8),
        header._replace(first_timestamp_ms=4),
    )
    for lie in lies:
        with pytest.raises(CorruptBatch, match="where the header says"):
            check(assemble(lie, body))
    assert check(assemble(header, body))


def test_a9_a_time_that_no_reader_can_show_is_refused() -> None:
    for late_ms in (TIMESTAMP_MS_MAX + 1, 2**62):
        for level in BatchValidation:
            with pytest.raises(InvalidTimestamp, match="after the year 9999"):
                check(timed(late_ms), LogConfig(batch_validation=level))


def test_a9_a_record_in_the_middle_counts_for_the_bounds_of_the_topic_too() -> None:
    limits = LogConfig(message_timestamp_before_max_ms=1_000)
    early_ms = NOW_MS - 1_001
    assert check(timed(NOW_MS, NOW_MS - 1_000, NO_TIMESTAMP_MS, NOW_MS), limits)
    for times in ((NOW_MS, early_ms), (NOW_MS, NO_TIMESTAMP_MS, early_ms)):
        with pytest.raises(InvalidTimestamp, match="is before"):
            check(timed(*times), limits)


def test_only_the_broker_says_that_a_time_is_that_of_the_append() -> None:
    with pytest.raises(InvalidTimestamp, match="only the broker"):
        check(append_time(timed(5), 9))
    stamped = LogConfig(message_timestamp_type=TimestampType.LOG_APPEND_TIME)
    assert check(append_time(timed(5), 9), stamped)[0].max_timestamp_ms == NOW_MS


def test_bodies_that_were_looked_into_elsewhere_are_not_again() -> None:
    data = junk()
    with pytest.raises(CorruptBatch) as caught:
        check_bodies(data, "orders", LogConfig(), now_ms=NOW_MS)

    def with_verdict(verdict: BodyVerdict) -> int:
        found = validated(
            data, "orders", LogConfig(), now_ms=NOW_MS, control_allowed=False, bodies=verdict
        )
        return len(found)

    assert with_verdict(BodyVerdict()) == 1
    with pytest.raises(CorruptBatch, match="not an Arrow message"):
        with_verdict(BodyVerdict(caught.value))
    check_bodies(built(3) + built(1), "orders", LogConfig(), now_ms=NOW_MS)


def test_a6_so_many_batches_of_a_partition_and_no_more_are_checked_in_one_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(admission, "BATCHES_MAX", 3)
    assert len(check(built(1) * 3)) == 3
    with pytest.raises(InvalidRequest, match="more than 3 batches of one partition"):
        check(built(1) * 4)
