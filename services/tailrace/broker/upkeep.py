"""What housekeeping decides: whose turn it is, how long it rests.

Pure: times and facts in, decisions out. `housekeeping` acts on them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from tailrace.log.cleaning.cleanable import Dirtiness, dirtiest
from tailrace.model import TopicPartition

# A compaction that fails again and again is tried no less often than this.
BACKOFF_MS_MAX: Final = 3_600_000


@dataclass(frozen=True, slots=True)
class Pace:
    """How long to rest between two steps, so that neither disk nor processor is taken whole."""

    bytes_per_s: int

    def pause_ms(self, *, moved_bytes: int, took_ms: int) -> int:
        """At most half of the time is spent working, however much the disk could do."""
        due_ms = moved_bytes * 1000 // self.bytes_per_s
        return max(due_ms - took_ms, took_ms, 1)


class _Failures(NamedTuple):
    times: int
    not_before_ms: int


class CleaningQueue:
    """Whose turn it is to be compacted: the dirtiest, unless it failed a short while ago."""

    def __init__(self, *, backoff_ms: int) -> None:
        self._backoff_ms = backoff_ms
        self._failures: dict[TopicPartition, _Failures] = {}

    def choose(
        self,
        logs: Mapping[TopicPartition, Dirtiness],
        ratio_min: Mapping[TopicPartition, float],
        *,
        now_ms: int,
    ) -> TopicPartition | None:
        """The next log, None when none is dirty enough and due; `now_ms` is monotonic."""
        due = {
            partition: found
            for partition, found in logs.items()
            if partition not in self._failures or self._failures[partition].not_before_ms <= now_ms
        }
        return dirtiest(due, ratio_min)

    def succeeded(self, partition: TopicPartition) -> None:
        self._failures.pop(partition, None)

    def failed(self, partition: TopicPartition, *, now_ms: int) -> int:
        """Let the log wait, longer each time; returns for how many milliseconds."""
        before = self._failures.get(partition)
        times = 1 if before is None else before.times + 1
        wait_ms = min(self._backoff_ms << min(times, 16), BACKOFF_MS_MAX)
        self._failures[partition] = _Failures(times, now_ms + wait_ms)
        return wait_ms

    def keep_only(self, partitions: Collection[TopicPartition]) -> None:
        """Forget those that are hosted no longer."""
        for partition in [each for each in self._failures if each not in partitions]:
            del self._failures[partition]
