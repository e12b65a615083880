"""When a log rolls to a new segment, and which of its old segments it may delete.

Pure: facts and a time in, a decision with its reasons out. Invariant: what is deleted is a run of
whole segments from the oldest on, and nothing at or above the high watermark.

Timestamps of records come from producers and may be anything. What a segment can be judged by is
bounded by what the log itself saw: its records arrived after the segment was made and before the
next one was. A timestamp outside these bounds is read as the nearer bound, so that a record from
the far future does not keep its segment forever, and one from the far past does not have it
deleted at once. A bound that contradicts another one or the clock was noted under a wrong clock
and is not used; without bounds the timestamp is all there is. Doubt always keeps data longer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

from tailrace.model import NO_TIMESTAMP_MS

RELATIVE_OFFSET_MAX: Final = 2**31 - 1
"""Indexes hold offsets as 32-bit distances from the base offset of their segment."""


class SegmentFacts(NamedTuple):
    """What retention needs to know of a segment; `created_ms` is -1 when it is not known."""

    base_offset: int
    next_offset: int
    size_bytes: int
    max_timestamp_ms: int
    created_ms: int = NO_TIMESTAMP_MS


class ExpiryReason(Enum):
    """Why a segment may go."""

    BELOW_LOG_START = "all its records are below the log start offset"
    TIME = "older than retention.ms"
    BYTES = "the log is larger than retention.bytes"


@dataclass(frozen=True, slots=True)
class Expiry:
    """The oldest `count` segments may go, each for its reason; the log then starts there."""

    count: int
    reasons: tuple[ExpiryReason, ...]
    new_log_start: int


class RollReason(Enum):
    """Why the active segment gets no more batches."""

    BYTES = "segment.bytes reached"
    AGE = "segment.ms passed"
    INDEX_FULL = "an index is full"
    OFFSET_SPAN = "offsets do not fit the index any more"


def expired(
    segments: Sequence[SegmentFacts],
    *,
    now_ms: int,
    retention_ms: int,
    retention_bytes: int,
    high_watermark: int,
    log_start_offset: int,
) -> Expiry:
    """Return how many of the oldest segments may be deleted, and why.

    The last segment is the active one. It may be among them when it holds anything: old data must
    go even when nothing new is written. The caller then rolls first, so that an empty segment
    at the log end takes its place; an empty active segment never expires.
    """
    reasons: list[ExpiryReason] = []
    new_log_start = log_start_offset
    bytes_left = sum(segment.size_bytes for segment in segments)
    ages_from_ms = _ages_from(segments, now_ms)
    for position, segment in enumerate(segments):
        is_active = position == len(segments) - 1
        if segment.next_offset > high_watermark or (is_active and segment.size_bytes == 0):
            break
        bytes_left -= segment.size_bytes
        if segment.next_offset <= log_start_offset:
            reasons.append(ExpiryReason.BELOW_LOG_START)
        elif retention_ms >= 0 and now_ms - ages_from_ms[position] > retention_ms:
            reasons.append(ExpiryReason.TIME)
        elif 0 <= retention_bytes <= bytes_left:
            reasons.append(ExpiryReason.BYTES)
        else:
            break
        new_log_start = max(new_log_start, segment.next_offset)
    return Expiry(len(reasons), tuple(reasons), new_log_start)


def should_roll(
    *,
    base_offset: int,
    size_bytes: int,
    created_ms: int,
    index_full: bool,
    incoming_bytes: int,
    incoming_last_offset: int,
    now_ms: int,
    segment_bytes: int,
    segment_ms: int,
) -> RollReason | None:
    """Say why the active segment must be closed before a batch is appended, or None.

    An empty segment takes any batch, even one above `segment_bytes`, as long as its offsets fit.
    """
    if incoming_last_offset - base_offset > RELATIVE_OFFSET_MAX:
        return RollReason.OFFSET_SPAN
    if size_bytes == 0:
        return None
    if size_bytes + incoming_bytes > segment_bytes:
        return RollReason.BYTES
    # A segment made as far in the future was made under a wrong clock: rolling ends that.
    if created_ms != NO_TIMESTAMP_MS and abs(now_ms - created_ms) >= segment_ms:
        return RollReason.AGE
    return RollReason.INDEX_FULL if index_full else None


def _ages_from(segments: Sequence[SegmentFacts], now_ms: int) -> list[int]:
    """Return for each segment the time its age counts from."""
    not_before_ms = _not_before(segments, now_ms)
    ages_from_ms = [0] * len(segments)
    # When the segment in hand got its last record at the latest; lower bounds only rise, so what
    # is above that of a later segment is above this one's too.
    closed_ms = now_ms
    next_created_ms = NO_TIMESTAMP_MS
    for position in range(len(segments) - 1, -1, -1):
        segment = segments[position]
        low_ms = not_before_ms[position]
        if NO_TIMESTAMP_MS != low_ms <= next_created_ms <= now_ms:
            closed_ms = next_created_ms
        high_ms = closed_ms if low_ms != NO_TIMESTAMP_MS else now_ms
        ages_from_ms[position] = min(max(segment.max_timestamp_ms, low_ms), high_ms)
        next_created_ms = segment.created_ms
    return ages_from_ms


def _not_before(segments: Sequence[SegmentFacts], now_ms: int) -> list[int]:
    """Return for each segment a time that none of its records arrived before, or -1."""
    bounds: list[int] = []
    bound = NO_TIMESTAMP_MS
    for segment in segments:
        if segment.created_ms <= now_ms:
            bound = max(bound, segment.created_ms)
        bounds.append(bound)
    return bounds
