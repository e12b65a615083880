"""What the clients of a program show: the numbers of producers and consumers → families. Pure.

Two clients of one program may have the same name: their numbers are added up, for Prometheus takes
no page on which a series is twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from tailrace.metrics.families import OTHER, Page, counter, gauge, histogram
from tailrace.metrics.values import Histogram

# Topics of one consumer with series of their own; the others are shown as one.
TOPICS_SHOWN_MAX: Final = 100

_CLIENTS: Final = "one for each `client_id` of the program"
_TOPICS: Final = f"as above; {TOPICS_SHOWN_MAX} topics and one `{OTHER}` for all others"

P_RECORDS = counter(
    "producer_records", "Records that were acknowledged.", "client_id", bound=_CLIENTS
)
P_BYTES = counter(
    "producer_bytes", "Bytes of batches that were acknowledged.", "client_id", bound=_CLIENTS
)
P_BATCHES = counter(
    "producer_batches", "Batches that were acknowledged.", "client_id", bound=_CLIENTS
)
P_RETRIES = counter(
    "producer_retries",
    "Attempts to send a batch after the first one, when its end is known.",
    "client_id",
    bound=_CLIENTS,
)
P_FAILED = counter(
    "producer_failed_records",
    "Records that were given up.",
    "client_id",
    "code",
    bound="as above; one for each error code that there was",
)
P_REQUESTS = histogram(
    "producer_request_seconds",
    "Produce requests: from when one was sent to when its answer was read.",
    "client_id",
    bound=_CLIENTS,
)
P_THROTTLES = counter(
    "producer_throttles",
    "Answers that said to wait, for a quota was used up.",
    "client_id",
    bound=_CLIENTS,
)
P_BUFFER = gauge(
    "producer_buffer_bytes",
    "Records that are not acknowledged yet, in memory.",
    "client_id",
    bound=_CLIENTS,
)
P_BUFFER_MAX = gauge(
    "producer_buffer_limit_bytes", "Its limit, buffer_memory.", "client_id", bound=_CLIENTS
)
P_IN_FLIGHT = gauge(
    "producer_requests_in_flight",
    "Requests that were sent and not answered.",
    "client_id",
    bound=_CLIENTS,
)

C_POLLS = counter("consumer_polls", "Calls of poll.", "client_id", bound=_CLIENTS)
C_RECORDS = counter(
    "consumer_records", "Records that were handed out.", "client_id", bound=_CLIENTS
)
C_BYTES = counter(
    "consumer_bytes", "Bytes of batches that were handed out.", "client_id", bound=_CLIENTS
)
C_COMMITS = counter("consumer_commits", "Commits that were stored.", "client_id", bound=_CLIENTS)
C_COMMIT_FAILURES = counter(
    "consumer_commit_failures", "Commits that were not.", "client_id", bound=_CLIENTS
)
C_REBALANCES = counter(
    "consumer_rebalances", "Rebalances that were taken part in.", "client_id", bound=_CLIENTS
)
C_RESETS = counter(
    "consumer_resets",
    "Positions that were not in the log any more and went where auto_offset_reset says.",
    "client_id",
    bound=_CLIENTS,
)
C_SKIPPED = counter(
    "consumer_skipped_batches",
    "Stored batches that could not be decoded and were passed over, as on_corrupt says.",
    "client_id",
    bound=_CLIENTS,
)
C_PARTITIONS = gauge(
    "consumer_partitions", "Partitions that are assigned.", "client_id", bound=_CLIENTS
)
C_LAG = gauge(
    "consumer_lag_records",
    "Offsets from the position (not what is committed) to the end, where both are known.",
    "client_id",
    "topic",
    bound=_TOPICS,
)

CLIENT: Final = (
    *(P_RECORDS, P_BYTES, P_BATCHES, P_RETRIES, P_FAILED, P_REQUESTS, P_THROTTLES),
    *(P_BUFFER, P_BUFFER_MAX, P_IN_FLIGHT),
    *(C_POLLS, C_RECORDS, C_BYTES, C_COMMITS, C_COMMIT_FAILURES, C_REBALANCES, C_RESETS),
    *(C_SKIPPED, C_PARTITIONS, C_LAG),
)

_PRODUCER: Final = {
    P_RECORDS: "records",
    P_BYTES: "bytes",
    P_BATCHES: "batches",
    P_RETRIES: "retries",
    P_THROTTLES: "throttles",
    P_BUFFER: "buffer_bytes",
    P_BUFFER_MAX: "buffer_limit_bytes",
    P_IN_FLIGHT: "requests_in_flight",
}
_CONSUMER: Final = {
    C_POLLS: "polls",
    C_RECORDS: "records",
    C_BYTES: "bytes",
    C_COMMITS: "commits",
    C_COMMIT_FAILURES: "commit_failures",
    C_REBALANCES: "rebalances",
    C_RESETS: "resets",
    C_SKIPPED: "skipped_batches",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerView:
    """One producer at one moment; `numbers` is what its `metrics` gives."""

    client_id: str
    numbers: Mapping[str, float]
    requests: Histogram = field(default_factory=Histogram)
    failed: Mapping[str, int] = field(default_factory=dict)


class ConsumerView(NamedTuple):
    """One consumer at one moment; lag by topic."""

    client_id: str
    numbers: Mapping[str, float]
    partitions: int
    lag: Mapping[str, int]


def put_producers(page: Page, producers: Iterable[ProducerView]) -> None:
    """Fill the families of producers; those of one name together."""
    numbers: dict[str, Counter[str]] = {}
    failed: dict[str, Counter[str]] = {}
    requests: dict[str, Histogram] = {}
    for each in producers:
        _add(numbers.setdefault(each.client_id, Counter()), each.numbers)
        _add(failed.setdefault(each.client_id, Counter()), each.failed)
        together = requests.setdefault(each.client_id, Histogram(each.requests.bounds_ms))
        together.counts = [
            a + b for a, b in zip(together.counts, each.requests.counts, strict=True)
        ]
        together.sum_ms += each.requests.sum_ms
    for client, found in sorted(numbers.items()):
        for family, name in _PRODUCER.items():
            page.put(family, found[name], client)
        for code, records in sorted(failed[client].items()):
            page.put(P_FAILED, records, client, code)
        page.put_times(P_REQUESTS, requests[client], client)


def put_consumers(page: Page, consumers: Iterable[ConsumerView]) -> None:
    """Fill the families of consumers; those of one name together."""
    numbers: dict[str, Counter[str]] = {}
    lags: dict[str, Counter[str]] = {}
    for each in consumers:
        mine = numbers.setdefault(each.client_id, Counter())
        _add(mine, {**each.numbers, "partitions": each.partitions})
        _add(lags.setdefault(each.client_id, Counter()), each.lag)
    for client, found in sorted(numbers.items()):
        for family, name in _CONSUMER.items():
            page.put(family, found[name], client)
        page.put(C_PARTITIONS, found["partitions"], client)
        for topic, lag in _shown(lags[client]):
            page.put(C_LAG, lag, client, topic)


def _add(total: Counter[str], numbers: Mapping[str, float]) -> None:
    for name, value in numbers.items():
        total[name] += value  # type: ignore[assignment]


def _shown(lag: Mapping[str, int]) -> list[tuple[str, int]]:
    """The furthest behind, and all others as one."""
    found = sorted(lag.items(), key=lambda each: (-each[1], each[0]))
    kept, rest = found[:TOPICS_SHOWN_MAX], found[TOPICS_SHOWN_MAX:]
    return [*kept, (OTHER, sum(records for _, records in rest))] if rest else kept
