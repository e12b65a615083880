"""Whether a log is worth a compaction, and which of its segments may take part."""

from __future__ import annotations

import pytest

from tailrace.log.cleaning.cleanable import Dirtiness, SegmentSpan, dirtiest, dirty_segments
from tailrace.model import TopicPartition

SPANS = [
    SegmentSpan(0, 10, 100, newest_ms=1000),
    SegmentSpan(10, 20, 100, newest_ms=3000),
    SegmentSpan(20, 30, 100, newest_ms=2000),
]
A, B, C = (TopicPartition("t", number) for number in range(3))


@pytest.mark.parametrize(
    ("cleaned_to", "bound", "lag_ms", "expected"),
    [
        (0, 30, 0, range(3)),
        (10, 30, 0, range(1, 3)),
        (15, 30, 0, range(1, 3)),
        (10, 29, 0, range(1, 2)),
        (30, 30, 0, range(3, 3)),
        (99, 99, 0, range(3, 3)),
        (0, 9, 0, range(0)),
        (0, 30, 2000, range(3)),
        # The second is too young, and so all that follows has to wait.
        (0, 30, 2001, range(1)),
        (10, 30, 2001, range(1, 1)),
        (0, 30, 4001, range(0)),
    ],
)
def test_dirty_segments(cleaned_to: int, bound: int, lag_ms: int, expected: range) -> None:
    found = dirty_segments(SPANS, cleaned_to=cleaned_to, bound=bound, lag_ms=lag_ms, now_ms=5000)
    assert found == expected


def test_ratio() -> None:
    assert Dirtiness(0, 0).ratio == 0
    assert Dirtiness(300, 100).ratio == 0.25


def test_the_dirtiest_log_is_picked_if_it_is_dirty_enough() -> None:
    logs = {A: Dirtiness(100, 100), B: Dirtiness(100, 300), C: Dirtiness(0, 0)}
    assert dirtiest(logs, {A: 0.5, B: 0.5, C: 0.0}) == B
    assert dirtiest(logs, {A: 0.5, B: 0.8, C: 0.0}) == A
    assert dirtiest(logs, {A: 0.6, B: 0.8, C: 0.0}) is None
    assert dirtiest({}, {}) is None


def test_of_equally_dirty_logs_the_larger_one_is_picked() -> None:
    assert dirtiest({A: Dirtiness(0, 100), B: Dirtiness(0, 200)}, {A: 0.5, B: 0.5}) == B
