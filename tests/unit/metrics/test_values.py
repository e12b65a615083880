from __future__ import annotations

from tailrace.metrics.values import (
    LATENCY_MS,
    BrokerCounts,
    Calls,
    Histogram,
    ProducerCounts,
    Traffics,
)


def test_each_time_is_counted_below_its_bound() -> None:
    times = Histogram((1, 5, 10))
    for ms in (0, 1, 2, 5, 6, 10, 11, 4_000):
        times.observe(ms)
    assert times.counts == [2, 2, 2, 2]
    assert times.count == 8
    assert times.sum_ms == 4_035


def test_bounds_are_few_and_rise() -> None:
    assert sorted(set(LATENCY_MS)) == list(LATENCY_MS)
    assert len(LATENCY_MS) <= 12


def test_calls_that_failed_took_time_too() -> None:
    calls = Calls()
    calls.done(3)
    calls.done(7, failed=True)
    assert (calls.times.count, calls.failed) == (2, 1)


def test_a_topic_keeps_its_numbers_while_it_is_here() -> None:
    traffics = Traffics(topics_max=2)
    traffics.of("a").bytes_in += 1
    traffics.of("a").bytes_in += 1
    traffics.of("b").bytes_in += 4
    assert traffics.of("c") is traffics.other
    traffics.keep_only({"a", "c"})
    assert {topic: each.bytes_in for topic, each in traffics.shown().items()} == {"a": 2}
    # There is room again; what comes back begins anew.
    assert traffics.of("b").bytes_in == 0


def test_an_isr_shrinks_or_expands() -> None:
    counts = BrokerCounts()
    counts.isr_changed(3, 2)
    counts.isr_changed(2, 3)
    counts.isr_changed(3, 1)
    counts.isr_changed(2, 2)
    assert (counts.isr_shrinks, counts.isr_expands) == (2, 1)


def test_a_producer_counts_batches_and_requests() -> None:
    counts = ProducerCounts()
    assert counts.flat()["request_ms_mean"] == 0
    counts.stored(10, 1_000, 1)
    counts.stored(5, 500, 3)
    counts.gave_up(2, 2, "NOT_LEADER")
    counts.answered(4, is_throttled=False)
    counts.answered(8, is_throttled=True)
    assert counts.flat() == {
        "records": 15,
        "bytes": 1_500,
        "batches": 2,
        "retries": 3,
        "failed_records": 2,
        "requests": 2,
        "request_ms_mean": 6.0,
        "throttles": 1,
    }
