"""What is counted while a service works: plain numbers, once per request and never per record.

Nothing here knows Prometheus, and nothing here takes locks: all of it belongs to one event loop.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Container
from typing import Final

# Upper bounds in ms. Few: each one is a series for every histogram and label.
LATENCY_MS: Final = (1, 2, 5, 10, 25, 50, 100, 250, 1_000, 5_000)

# Topics with series of their own, on one broker; the others are shown as one.
TOPICS_SHOWN_MAX: Final = 500
ACKS: Final = ("all", "leader", "none")


class Histogram:
    """How long things took, in whole milliseconds; what took less than one counts as 0."""

    __slots__ = ("bounds_ms", "counts", "sum_ms")

    def __init__(self, bounds_ms: tuple[int, ...] = LATENCY_MS) -> None:
        self.bounds_ms = bounds_ms
        # One more than there are bounds: what is above all of them.
        self.counts = [0] * (len(bounds_ms) + 1)
        self.sum_ms = 0

    def observe(self, ms: int) -> None:
        self.counts[bisect_left(self.bounds_ms, ms)] += 1
        self.sum_ms += ms

    @property
    def count(self) -> int:
        return sum(self.counts)


class Calls:
    """Calls of one kind: how many went well, how many failed, how long they took."""

    __slots__ = ("failed", "times")

    def __init__(self) -> None:
        self.times = Histogram()
        self.failed = 0

    def done(self, ms: int, *, failed: bool = False) -> None:
        self.times.observe(ms)
        self.failed += failed


class Traffic:
    """What went in and out of the replicas of one topic on one broker."""

    __slots__ = (
        "bytes_in",
        "bytes_out",
        "records_in",
        "records_out",
        "replica_bytes_in",
        "replica_bytes_out",
    )

    def __init__(self) -> None:
        self.bytes_in = 0
        self.records_in = 0
        self.bytes_out = 0
        self.records_out = 0
        self.replica_bytes_in = 0
        self.replica_bytes_out = 0


class Traffics:
    """The traffic of each topic, of so many at most; those that come later share one.

    A topic keeps its numbers while it is known here, so that they never fall: Prometheus takes a
    counter that falls for one that began anew.
    """

    def __init__(self, topics_max: int = TOPICS_SHOWN_MAX) -> None:
        self._topics_max = topics_max
        self._topics: dict[str, Traffic] = {}
        self.other = Traffic()

    def of(self, topic: str) -> Traffic:
        found = self._topics.get(topic)
        if found is not None:
            return found
        if len(self._topics) >= self._topics_max:
            return self.other
        self._topics[topic] = made = Traffic()
        return made

    def shown(self) -> dict[str, Traffic]:
        return dict(self._topics)

    def keep_only(self, topics: Container[str]) -> None:
        """Forget topics that are not here any more, and make room for others."""
        for topic in [each for each in self._topics if each not in topics]:
            del self._topics[topic]


class BrokerCounts:
    """What a broker counts while it works."""

    def __init__(self) -> None:
        self.traffic = Traffics()
        # By acknowledgement: from when a request was read to when its answer was ready.
        self.produced = {acks: Histogram() for acks in ACKS}
        self.produce_refused: Counter[str] = Counter()
        self.fetch_responses = 0
        self.fetch_refused: Counter[str] = Counter()
        self.became_leader = 0
        self.became_follower = 0
        self.isr_shrinks = 0
        self.isr_expands = 0
        self.flushes = Calls()
        # Logs with durable records that cannot be read: at the start, and since.
        self.damage_found = 0
        # Replicas that kept what their leader lacked, and leaders that lacked what was committed.
        self.kept_records = 0
        self.conflicts = 0
        # Replicas that were deleted, each with its evidence, and logs that were cut.
        self.replicas_deleted = 0
        self.replicas_set_aside = 0
        self.strays_removed = 0
        self.log_starts_moved = 0
        self.logs_cut = 0

    def isr_changed(self, before: int, after: int) -> None:
        """The ISR of a partition that is led here has another size."""
        self.isr_shrinks += after < before
        self.isr_expands += after > before


class ControllerCounts:
    """What a controller counts, over all of its terms."""

    def __init__(self) -> None:
        self.terms = 0
        self.leader_changes = 0
        self.leaders_lost = 0
        self.losses = 0
        self.commits = 0
        self.refusals = 0


class CoordinatorCounts:
    """What a coordinator counts."""

    def __init__(self) -> None:
        self.generations = 0
        self.shards_taken = 0
        self.shards_lost = 0


class ProducerCounts:
    """What a producer counts: once for each batch or request, never for a record."""

    __slots__ = ("batches", "bytes", "failed", "records", "requests", "retries", "throttles")

    def __init__(self) -> None:
        self.records = 0
        self.bytes = 0
        self.batches = 0
        # Attempts after the first one, of batches whose end is known.
        self.retries = 0
        # Records that were given up, by the code of the error.
        self.failed: Counter[str] = Counter()
        # From when a request was sent to when its answer was read.
        self.requests = Histogram()
        # Answers that said to wait, for a quota is used up.
        self.throttles = 0

    def stored(self, records: int, size: int, attempts: int) -> None:
        """A batch was acknowledged."""
        self.records += records
        self.bytes += size
        self.batches += 1
        self.retries += max(attempts - 1, 0)

    def gave_up(self, records: int, attempts: int, code: str) -> None:
        self.failed[code] += records
        self.retries += max(attempts - 1, 0)

    def answered(self, ms: int, *, is_throttled: bool) -> None:
        self.requests.observe(ms)
        self.throttles += is_throttled

    def flat(self) -> dict[str, float]:
        """Plain numbers; times in ms."""
        return {
            "records": self.records,
            "bytes": self.bytes,
            "batches": self.batches,
            "retries": self.retries,
            "failed_records": self.failed.total(),
            "requests": self.requests.count,
            "request_ms_mean": self.requests.sum_ms / max(self.requests.count, 1),
            "throttles": self.throttles,
        }
