"""When a log rolls, and what it may delete."""

from __future__ import annotations

from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.config import UNLIMITED
from tailrace.log.retention import (
    RELATIVE_OFFSET_MAX,
    Expiry,
    ExpiryReason,
    RollReason,
    SegmentFacts,
    expired,
    should_roll,
)

BELOW, TIME, BYTES = ExpiryReason.BELOW_LOG_START, ExpiryReason.TIME, ExpiryReason.BYTES
NOW: Final = 1_000_000
FAR_FUTURE: Final = 10**15


def segments_at(*times: tuple[int, int], size: int = 100) -> list[SegmentFacts]:
    """Segments of ten records each, given by (max timestamp, created)."""
    return [
        SegmentFacts(10 * n, 10 * n + 10, size, max_timestamp_ms, created_ms)
        for n, (max_timestamp_ms, created_ms) in enumerate(times)
    ]


def verdict(
    segments: list[SegmentFacts],
    *,
    now_ms: int = NOW,
    retention_ms: int = UNLIMITED,
    retention_bytes: int = UNLIMITED,
    high_watermark: int = 10**9,
    log_start_offset: int = 0,
) -> Expiry:
    return expired(
        segments,
        now_ms=now_ms,
        retention_ms=retention_ms,
        retention_bytes=retention_bytes,
        high_watermark=high_watermark,
        log_start_offset=log_start_offset,
    )


THREE: Final = segments_at((NOW - 300, -1), (NOW - 200, -1), (NOW - 100, -1))


def test_nothing_expires_without_limits() -> None:
    assert verdict(THREE) == Expiry(0, (), 0)
    assert verdict([]) == Expiry(0, (), 0)


@pytest.mark.parametrize(
    ("retention_ms", "count"), [(300, 0), (299, 1), (200, 1), (199, 2), (100, 2), (99, 3), (0, 3)]
)
def test_time(retention_ms: int, count: int) -> None:
    assert verdict(THREE, retention_ms=retention_ms) == Expiry(count, (TIME,) * count, 10 * count)


def test_the_oldest_comes_first_even_when_a_younger_one_is_due() -> None:
    mixed = segments_at((NOW - 10, -1), (NOW - 900, -1), (NOW, -1))
    assert verdict(mixed, retention_ms=100).count == 0


@pytest.mark.parametrize(
    ("retention_bytes", "count"), [(300, 0), (201, 0), (200, 1), (101, 1), (100, 2), (1, 2), (0, 3)]
)
def test_bytes_keep_at_least_what_was_promised(retention_bytes: int, count: int) -> None:
    found = verdict(THREE, retention_bytes=retention_bytes)
    assert found == Expiry(count, (BYTES,) * count, 10 * count)


@pytest.mark.parametrize(
    ("log_start", "count"), [(0, 0), (9, 0), (10, 1), (19, 1), (20, 2), (29, 2), (30, 3)]
)
def test_below_the_log_start(log_start: int, count: int) -> None:
    found = verdict(THREE, log_start_offset=log_start)
    assert found == Expiry(count, (BELOW,) * count, log_start)


def test_each_segment_has_its_own_reason() -> None:
    found = verdict(THREE, log_start_offset=10, retention_ms=150, retention_bytes=0)
    assert found == Expiry(3, (BELOW, TIME, BYTES), 30)


@pytest.mark.parametrize(("high_watermark", "count"), [(0, 0), (19, 1), (20, 2), (29, 2), (30, 3)])
def test_nothing_above_the_high_watermark_goes(high_watermark: int, count: int) -> None:
    for limits in ({"retention_ms": 0}, {"retention_bytes": 0}, {"log_start_offset": 30}):
        assert verdict(THREE, high_watermark=high_watermark, **limits).count == count


def test_an_empty_active_segment_stays() -> None:
    log = [*THREE[:1], SegmentFacts(10, 10, 0, -1, -1)]
    assert verdict(log, retention_ms=0, retention_bytes=0) == Expiry(1, (TIME,), 10)
    assert verdict(log[1:], retention_ms=0, log_start_offset=10).count == 0


def test_an_empty_segment_before_the_active_one_goes() -> None:
    """Compaction may leave one."""
    log = [SegmentFacts(0, 10, 0, -1, -1), SegmentFacts(10, 20, 100, NOW, -1)]
    assert verdict(log, retention_ms=100).count == 1


# Timestamps that lie, F29 in the list of faults.


def test_a_timestamp_in_the_far_future_does_not_keep_its_segment_forever_f29() -> None:
    log = segments_at((FAR_FUTURE, NOW - 500), (NOW, NOW - 400), (NOW, NOW - 50))
    assert verdict(log, retention_ms=400).count == 0
    assert verdict(log, retention_ms=399).count == 1


def test_a_timestamp_in_the_far_past_does_not_expire_at_once() -> None:
    log = segments_at((5, NOW - 100), (6, NOW - 50))
    assert verdict(log, retention_ms=100).count == 0
    assert verdict(log, retention_ms=99) == Expiry(1, (TIME,), 10)
    assert verdict(log, retention_ms=49) == Expiry(2, (TIME, TIME), 20)


def test_an_active_segment_from_the_future_waits_for_its_roll() -> None:
    log = segments_at((FAR_FUTURE, NOW - 500))
    assert verdict(log, retention_ms=0).count == 0


def test_without_bounds_the_timestamp_counts() -> None:
    log = segments_at((5, -1), (FAR_FUTURE, -1), (NOW, -1))
    assert verdict(log, retention_ms=100).count == 1


def test_the_bound_of_an_earlier_segment_holds_for_the_next() -> None:
    log = segments_at((NOW - 90, NOW - 100), (5, -1), (NOW, NOW - 10))
    assert verdict(log, retention_ms=95).count == 0


def test_the_bound_of_a_later_segment_holds_for_those_before() -> None:
    log = segments_at((FAR_FUTURE, NOW - 900), (FAR_FUTURE, -1), (NOW, NOW - 500))
    assert verdict(log, retention_ms=499).count == 2
    assert verdict(log, retention_ms=500).count == 0


def test_a_segment_made_under_a_clock_far_behind_expires_nothing_early() -> None:
    log = segments_at((NOW - 20, NOW - 100), (NOW - 10, 7), (NOW, NOW - 5))
    assert verdict(log, retention_ms=30).count == 0


def test_a_segment_made_under_a_clock_far_ahead_expires_nothing_early() -> None:
    log = segments_at((NOW - 20, FAR_FUTURE), (NOW - 10, NOW - 15), (NOW, NOW - 5))
    assert verdict(log, retention_ms=30).count == 0
    assert verdict(log, retention_ms=15).count == 1


def test_a_clock_that_was_set_back_keeps_everything() -> None:
    log = segments_at((NOW - 20, NOW - 30), (NOW - 10, NOW - 20), (NOW, NOW - 5))
    assert verdict(log, now_ms=10, retention_ms=5).count == 0


facts = st.lists(
    st.tuples(
        st.integers(0, 20),
        st.integers(0, 300),
        st.one_of(st.just(-1), st.integers(0, 2_000), st.just(FAR_FUTURE)),
        st.one_of(st.just(-1), st.integers(0, 2_000)),
    ),
    min_size=1,
    max_size=8,
)
limits = st.one_of(st.just(UNLIMITED), st.integers(0, 1_500))


@given(
    rows=facts,
    retention_ms=limits,
    retention_bytes=limits,
    high_watermark=st.integers(0, 200),
    log_start=st.integers(0, 100),
)
def test_whatever_the_facts_the_rules_hold(
    rows: list[tuple[int, int, int, int]],
    retention_ms: int,
    retention_bytes: int,
    high_watermark: int,
    log_start: int,
) -> None:
    log: list[SegmentFacts] = []
    offset = 0
    for records, size, timestamp, created in rows:
        log.append(SegmentFacts(offset, offset + records, size, timestamp, created))
        offset += records
    found = verdict(
        log,
        now_ms=1_000,
        retention_ms=retention_ms,
        retention_bytes=retention_bytes,
        high_watermark=high_watermark,
        log_start_offset=log_start,
    )
    gone, kept = log[: found.count], log[found.count :]
    assert len(found.reasons) == found.count
    assert all(segment.next_offset <= high_watermark for segment in gone)
    assert found.new_log_start == max([log_start, *(segment.next_offset for segment in gone)])
    assert not gone or kept or log[-1].size_bytes > 0
    if BYTES in found.reasons:
        last = max(n for n, reason in enumerate(found.reasons) if reason is BYTES)
        assert sum(segment.size_bytes for segment in log[last + 1 :]) >= retention_bytes >= 0
    for segment, reason in zip(gone, found.reasons, strict=True):
        if reason is TIME:
            # Neither its own timestamp nor its creation speaks for keeping it.
            assert retention_ms >= 0
            assert not 1_000 - retention_ms <= segment.created_ms <= 1_000


# Rolling.


def roll(
    *,
    base_offset: int = 0,
    size_bytes: int = 500,
    created_ms: int = NOW,
    index_full: bool = False,
    incoming_bytes: int = 500,
    incoming_last_offset: int = 100,
    now_ms: int = NOW,
) -> RollReason | None:
    return should_roll(
        base_offset=base_offset,
        size_bytes=size_bytes,
        created_ms=created_ms,
        index_full=index_full,
        incoming_bytes=incoming_bytes,
        incoming_last_offset=incoming_last_offset,
        now_ms=now_ms,
        segment_bytes=1_000,
        segment_ms=60_000,
    )


def test_a_segment_takes_what_fits() -> None:
    assert roll() is None
    assert roll(incoming_bytes=501) is RollReason.BYTES


def test_an_empty_segment_takes_any_batch_whose_offsets_fit() -> None:
    assert roll(size_bytes=0, incoming_bytes=10**9, index_full=True, created_ms=0) is None
    too_far = RELATIVE_OFFSET_MAX + 1
    assert roll(size_bytes=0, incoming_last_offset=too_far) is RollReason.OFFSET_SPAN


@pytest.mark.parametrize(
    ("created_ms", "reason"),
    [
        (NOW - 59_999, None),
        (NOW - 60_000, RollReason.AGE),
        (NOW + 59_999, None),  # a clock set back a little
        (NOW + 60_000, RollReason.AGE),  # made under a wrong clock
        (-1, None),
    ],
)
def test_age(created_ms: int, reason: RollReason | None) -> None:
    assert roll(created_ms=created_ms) is reason


def test_index_full() -> None:
    assert roll(index_full=True) is RollReason.INDEX_FULL


@pytest.mark.parametrize(
    ("last_offset", "reason"),
    [(77 + RELATIVE_OFFSET_MAX, None), (78 + RELATIVE_OFFSET_MAX, RollReason.OFFSET_SPAN)],
)
def test_offsets_must_fit_the_index(last_offset: int, reason: RollReason | None) -> None:
    assert roll(base_offset=77, incoming_last_offset=last_offset) is reason
