"""The numbers of producers and consumers as Prometheus gets them."""

from __future__ import annotations

from tailrace.metrics.client import (
    TOPICS_SHOWN_MAX,
    ConsumerView,
    ProducerView,
    put_consumers,
    put_producers,
)
from tailrace.metrics.families import OTHER, Page
from tailrace.metrics.values import ProducerCounts


def samples(page: Page) -> dict[tuple[str, ...], float]:
    found = [each for metric in page.metrics() for each in metric.samples]
    named = {(each.name, *each.labels.values()): each.value for each in found}
    # No series is there twice.
    assert len(named) == len(found)
    return named


def producer(client_id: str) -> ProducerView:
    counts = ProducerCounts()
    counts.stored(10, 1_000, 2)
    counts.gave_up(3, 1, "DELIVERY_TIMED_OUT")
    counts.answered(4, is_throttled=True)
    numbers = {**counts.flat(), "buffer_bytes": 7, "buffer_limit_bytes": 9, "requests_in_flight": 1}
    return ProducerView(
        client_id=client_id, numbers=numbers, requests=counts.requests, failed=counts.failed
    )


def test_producers_of_one_name_are_added_up() -> None:
    page = Page()
    put_producers(page, [producer("a"), producer("b"), producer("a")])
    found = samples(page)
    assert found["tailrace_producer_records_total", "a"] == 20
    assert found["tailrace_producer_records_total", "b"] == 10
    assert found["tailrace_producer_retries_total", "a"] == 2
    assert found["tailrace_producer_failed_records_total", "a", "DELIVERY_TIMED_OUT"] == 6
    assert found["tailrace_producer_request_seconds_count", "a"] == 2
    assert found["tailrace_producer_request_seconds_sum", "a"] == 0.008
    assert found["tailrace_producer_buffer_limit_bytes", "a"] == 18


def test_consumers_of_one_name_are_added_up() -> None:
    counted = ("polls", "records", "bytes", "resets", "skipped_batches", "commits")
    numbers = dict.fromkeys((*counted, "commit_failures", "rebalances"), 1)
    views = [
        ConsumerView("a", numbers, 2, {"t": 5}),
        ConsumerView("a", numbers, 1, {"t": 1, "u": 0}),
    ]
    page = Page()
    put_consumers(page, views)
    found = samples(page)
    assert found["tailrace_consumer_records_total", "a"] == 2
    assert found["tailrace_consumer_partitions", "a"] == 3
    assert found["tailrace_consumer_lag_records", "a", "t"] == 6
    assert found["tailrace_consumer_lag_records", "a", "u"] == 0


def test_topics_beyond_the_limit_share_a_series() -> None:
    lag = {f"t{number}": number for number in range(TOPICS_SHOWN_MAX + 3)}
    page = Page()
    put_consumers(page, [ConsumerView("", {}, 0, lag)])
    found = samples(page)
    assert found["tailrace_consumer_lag_records", "", OTHER] == 0 + 1 + 2
    assert len([each for each in found if each[0] == "tailrace_consumer_lag_records"]) == 101
