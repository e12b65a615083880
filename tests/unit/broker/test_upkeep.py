"""What housekeeping decides: whose turn it is, how long it rests."""

from __future__ import annotations

import pytest

from tailrace.broker.upkeep import BACKOFF_MS_MAX, CleaningQueue, Pace
from tailrace.log.cleaning.cleanable import Dirtiness
from tailrace.model import TopicPartition

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


@pytest.mark.parametrize(
    ("moved_bytes", "took_ms", "pause_ms"),
    [(1_000_000, 10, 990), (1_000_000, 900, 900), (1_000_000, 5_000, 5_000), (0, 0, 1), (1, 7, 7)],
)
def test_a_rest_keeps_the_rate_and_half_of_the_time(
    moved_bytes: int, took_ms: int, pause_ms: int
) -> None:
    assert Pace(1_000_000).pause_ms(moved_bytes=moved_bytes, took_ms=took_ms) == pause_ms


def test_the_dirtiest_log_comes_first_unless_it_failed() -> None:
    queue = CleaningQueue(backoff_ms=1_000)
    logs = {T0: Dirtiness(0, 100), T1: Dirtiness(50, 50)}
    ratios = {T0: 0.5, T1: 0.5}
    assert queue.choose(logs, ratios, now_ms=0) == T0
    assert queue.failed(T0, now_ms=0) == 2_000
    assert queue.choose(logs, ratios, now_ms=1_999) == T1
    assert queue.choose(logs, ratios, now_ms=2_000) == T0
    assert queue.failed(T0, now_ms=2_000) == 4_000
    queue.succeeded(T0)
    assert queue.choose(logs, ratios, now_ms=2_000) == T0
    assert queue.choose({T1: Dirtiness(51, 49)}, ratios, now_ms=0) is None


def test_a_log_that_fails_for_ever_is_tried_now_and_then() -> None:
    queue = CleaningQueue(backoff_ms=1_000)
    waits = [queue.failed(T0, now_ms=0) for _ in range(40)]
    assert waits[-1] == BACKOFF_MS_MAX
    queue.keep_only({T1})
    assert queue.failed(T0, now_ms=0) == waits[0]
