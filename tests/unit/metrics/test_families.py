from __future__ import annotations

import pytest

from tailrace.errors import InvariantViolation
from tailrace.metrics.families import Page, counter, gauge, histogram
from tailrace.metrics.values import Histogram

BYTES = counter("bytes_in", "Bytes.", "topic")
DEPTH = gauge("depth", "How deep.")
TIMES = histogram("produce_seconds", "How long.", "acks")


def _samples(page: Page) -> list[tuple[str, dict[str, str], float]]:
    return [
        (each.name, each.labels, each.value) for metric in page.metrics() for each in metric.samples
    ]


def test_counters_end_in_total_and_gauges_do_not() -> None:
    page = Page()
    page.put(BYTES, 7, "orders")
    page.put(BYTES, 9, "clicks")
    page.put(DEPTH, 3)
    assert _samples(page) == [
        ("tailrace_bytes_in_total", {"topic": "orders"}, 7),
        ("tailrace_bytes_in_total", {"topic": "clicks"}, 9),
        ("tailrace_depth", {}, 3),
    ]
    assert [each.type for each in page.metrics()] == ["counter", "gauge"]


def test_a_histogram_adds_up_in_seconds() -> None:
    times = Histogram((1, 250))
    for ms in (0, 200, 300):
        times.observe(ms)
    page = Page()
    page.put_times(TIMES, times, "all")
    assert _samples(page) == [
        ("tailrace_produce_seconds_bucket", {"acks": "all", "le": "0.001"}, 1),
        ("tailrace_produce_seconds_bucket", {"acks": "all", "le": "0.25"}, 2),
        ("tailrace_produce_seconds_bucket", {"acks": "all", "le": "+Inf"}, 3),
        ("tailrace_produce_seconds_sum", {"acks": "all"}, 0.5),
        ("tailrace_produce_seconds_count", {"acks": "all"}, 3),
    ]


def test_what_was_not_declared_so_is_refused() -> None:
    with pytest.raises(InvariantViolation, match="has the labels"):
        Page().put(BYTES, 1)
    with pytest.raises(InvariantViolation, match="takes histograms"):
        Page().put(TIMES, 1, "all")
