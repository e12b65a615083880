"""Whether a log is worth a compaction, and which of its segments may take part.

Pure: sizes, offsets and times in, a decision out. Invariant: nothing at or above the bound, and
nothing younger than the lag, is ever part of it; nor is anything that comes after such a segment.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tailrace.model import NO_TIMESTAMP_MS, TopicPartition


class Dirtiness(NamedTuple):
    """How many bytes of a log were compacted before, and how many could be now."""

    clean_bytes: int
    dirty_bytes: int

    @property
    def ratio(self) -> float:
        total_bytes = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / total_bytes if total_bytes else 0.0


class SegmentSpan(NamedTuple):
    """What decides whether a closed segment may be compacted."""

    base_offset: int
    next_offset: int
    size_bytes: int
    newest_ms: int = NO_TIMESTAMP_MS


def dirty_segments(
    spans: Sequence[SegmentSpan], *, cleaned_to: int, bound: int, lag_ms: int, now_ms: int
) -> range:
    """Which of the closed segments are dirty and may be compacted now."""
    first = next((at for at, each in enumerate(spans) if each.next_offset > cleaned_to), len(spans))
    end = first
    while end < len(spans) and spans[end].next_offset <= bound:
        if lag_ms > 0 and now_ms - spans[end].newest_ms < lag_ms:
            break
        end += 1
    return range(first, end)


def dirtiest(
    logs: Mapping[TopicPartition, Dirtiness], ratio_min: Mapping[TopicPartition, float]
) -> TopicPartition | None:
    """The log with the largest share of dirty bytes among those that are dirty enough."""
    worth = [
        (found.ratio, found.dirty_bytes, partition)
        for partition, found in logs.items()
        if found.dirty_bytes and found.ratio >= ratio_min[partition]
    ]
    return max(worth)[2] if worth else None
