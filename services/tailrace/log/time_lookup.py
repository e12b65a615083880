"""Look-ups by time: the first record at or after one, found by column and within a budget.

What to search is planned where the log is changed (`plan`); the search itself (`find`) reads and
decodes, may run on any thread, and looks at no state of the log that changes. A batch says how
large its body is before it is decoded, and whoever sent it may have lied about its times: so a
look-up decodes `DECODED_BYTES_MAX` at most. Beyond that it answers with the first offset of the
batch that it did not decode, and says that the time is not known: who begins to read there gets
all that was asked for, and some that is older.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from tailrace.errors import CorruptBatch
from tailrace.log.segment import Segment
from tailrace.record.header import BODY_BYTES_MAX, BatchHeader
from tailrace.record.view import BatchView

if TYPE_CHECKING:
    from tailrace.log.log import PartitionLog

# Of bodies, before compression, in one look-up: one batch of any size can be decoded.
DECODED_BYTES_MAX: Final = BODY_BYTES_MAX
TIME_UNKNOWN: Final = -1


class TimedOffset(NamedTuple):
    """A record's offset and its time; TIME_UNKNOWN when it was not read."""

    offset: int
    timestamp_ms: int


class _Place(NamedTuple):
    segment: Segment
    # None: the index may be on the disk, and says it when it is searched.
    position: int | None


class TimePlan(NamedTuple):
    """What is to be searched, as of one moment."""

    timestamp_ms: int
    log_start: int
    limit: int
    places: tuple[_Place, ...]


def plan(log: PartitionLog, timestamp_ms: int, *, up_to: int | None = None) -> TimePlan:
    """Say where records at or after a time, and below `up_to`, can be."""
    limit = log.log_end if up_to is None else min(up_to, log.log_end)
    active = log.segments[-1]
    places = tuple(
        # The index of the active segment grows under the hand of who appends: it is asked here.
        _Place(each, _begin(each, timestamp_ms, log.log_start) if each is active else None)
        for each in log.segments
        if each.base_offset < limit
        and each.next_offset > log.log_start
        and each.max_timestamp_ms >= timestamp_ms
    )
    return TimePlan(timestamp_ms, log.log_start, limit, places)


def find(plan: TimePlan, *, decoded_bytes_max: int = DECODED_BYTES_MAX) -> TimedOffset | None:
    """The first record of a plan, or None."""
    left = decoded_bytes_max
    for segment, known in plan.places:
        position = _begin(segment, plan.timestamp_ms, plan.log_start) if known is None else known
        for at, header in segment.walk(position):
            if header.base_offset >= plan.limit:
                return None
            if header.max_timestamp_ms < plan.timestamp_ms or header.record_count == 0:
                continue
            if not _is_plain(header):
                left -= header.body_bytes
            if left < 0:
                found: TimedOffset | None = TimedOffset(
                    max(header.base_offset, plan.log_start), TIME_UNKNOWN
                )
            else:
                found = _first_in(segment, at, header, plan)
            if found is not None:
                return found if found.offset < plan.limit else None
    return None


def _begin(segment: Segment, timestamp_ms: int, log_start: int) -> int:
    after = segment.base_offset + segment.index.before_time(timestamp_ms) + 1
    return segment.position_of(max(after, log_start))


def _is_plain(header: BatchHeader) -> bool:
    """Whether the header says all: every record has one time, and no offset is left out."""
    return header.is_append_time and not header.is_compacted


def _first_in(segment: Segment, at: int, header: BatchHeader, plan: TimePlan) -> TimedOffset | None:
    first = max(header.base_offset, plan.log_start)
    if _is_plain(header):
        found = TimedOffset(first, header.max_timestamp_ms)
        return found if first <= header.last_offset else None
    try:
        view = BatchView(segment.read(at, header.length))
        times = view.record_batch().column("timestamp")
        is_due = pc.greater_equal(times, pa.scalar(plan.timestamp_ms, pa.int64()))
        offsets = view.offsets()
    except CorruptBatch:
        # A client sent it so. Nobody can read its records, so none of them is the answer.
        return None
    if first > header.base_offset:
        is_due = pc.and_(is_due, pc.greater_equal(offsets, pa.scalar(first, pa.int64())))
    row = pc.index(is_due, pa.scalar(True)).as_py()
    return None if row < 0 else TimedOffset(offsets[row].as_py(), times[row].as_py())
