"""What a leader looks at before it takes a batch: whether every reader will be able to read it.

A header and a CRC say nothing of what is inside. Here the body is read as readers will read it,
and what would make one of them raise, or two of them disagree, is refused with CorruptBatch (or
InvalidTimestamp). Works on whole columns, never on single records. Nothing here is believed before
it was checked: sizes are compared with the header's before anything is allocated, offsets of the
metadata are followed by hand (`body`), and Arrow gets to see only what passed.

Most batches are what our own clients write, records without nulls and headers. Their metadata are
known byte for byte but for three numbers, so they are compared and not parsed, and what is left to
look at are offsets and times. All others take the general way; both come to the same verdict.
Invariant: a batch that `check_batch` with `FULL` let pass decodes, by `BatchView` and all that is
built on it, and says of its times what its header says.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import Any, Final, NamedTuple, cast

import pyarrow as pa
import pyarrow.compute as pc

from tailrace.config import BatchValidation
from tailrace.errors import BatchFault, CorruptBatch, InvalidTimestamp
from tailrace.model import NO_TIMESTAMP_MS
from tailrace.record.body import Array, plain_places
from tailrace.record.codec import FRAME_HEAD_BYTES, frame_problem
from tailrace.record.header import (
    ALIGNMENT,
    COMPACTED_BIT,
    COMPRESSION_MASK,
    HEADER_BYTES,
    HEADERS_BIT,
    BatchHeader,
)
from tailrace.record.view import BatchView

np: Any
try:
    # Servers have it, and it is three times as fast here. The base install has to do without.
    import numpy as np
except ImportError:
    np = None

# The last millisecond of the year 9999: what a timestamp of Arrow, Spark or Python can be.
TIMESTAMP_MS_MAX: Final = 253_402_300_799_999
# Up to this many rows Python's own functions are faster than calls into Arrow.
FEW_ROWS: Final = 24


class Times(NamedTuple):
    """The bounds of the times in a column."""

    first_ms: int
    least_ms: int
    largest_ms: int
    # The least of those that are known.
    earliest_ms: int


def check_batch(
    data: memoryview,
    position: int,
    header: BatchHeader,
    *,
    level: BatchValidation,
    times: bool = True,
    earliest_ms: int = 0,
) -> None:
    """Raise unless the batch, whose header was read and whose bytes are all there, can be read.

    `times` False: the broker gives the records another time, theirs do not count. `earliest_ms`:
    records with an earlier time are refused, those without a time are not.
    """
    if level is BatchValidation.NONE:
        return
    found = None
    if not header.attributes & COMPRESSION_MASK:
        found = _plain_times(data, position, header)
    elif level is BatchValidation.STRUCTURE:
        _check_frame(data, position, header)
        return
    if found is None:
        found = _decoded_times(data, position, header)
    if found is not None and times:
        _check_times(found, header, earliest_ms)


def _check_frame(data: memoryview, position: int, header: BatchHeader) -> None:
    first, end = position + HEADER_BYTES, position + header.length - header.padding
    head = data[first : min(end, first + FRAME_HEAD_BYTES)].tobytes()
    problem = frame_problem(header.compression, head, header.body_bytes)
    if problem is not None:
        raise CorruptBatch(BatchFault.BAD_COMPRESSION, problem)


def check_latest(header: BatchHeader) -> None:
    """Refuse a time that readers cannot show: some would raise, others wrap around."""
    if header.max_timestamp_ms > TIMESTAMP_MS_MAX:
        raise InvalidTimestamp(
            f"the time {header.max_timestamp_ms} is after the year 9999, "
            f"the latest is {TIMESTAMP_MS_MAX}"
        )


def _check_times(times: Times, header: BatchHeader, earliest_ms: int) -> None:
    if header.is_append_time:
        return
    if (
        times.first_ms != header.first_timestamp_ms
        or times.largest_ms != header.max_timestamp_ms
        or times.least_ms < NO_TIMESTAMP_MS
    ):
        raise CorruptBatch(
            BatchFault.BAD_BODY,
            f"times from {times.least_ms} to {times.largest_ms}, the first {times.first_ms}, where "
            f"the header says first {header.first_timestamp_ms}, largest {header.max_timestamp_ms}",
        )
    if NO_TIMESTAMP_MS < times.earliest_ms < earliest_ms:
        raise InvalidTimestamp(f"the time {times.earliest_ms} is before {earliest_ms}")


# What our own clients write.


def _plain_times(data: memoryview, position: int, header: BatchHeader) -> Times | None:
    """The times of a batch that is proved to be good; None: it is to be decoded.

    So it never refuses, and all that it does not know is left to the general way.
    """
    if header.attributes & (HEADERS_BIT | COMPACTED_BIT) or header.padding:
        return None
    count = header.record_count
    start = position + HEADER_BYTES
    places = plain_places(data, start, header.body_bytes, count)
    if places is None:
        return None
    if places.has_keys:
        if not _are_offsets(data, places.key_offsets, count, places.key_bytes):
            return None
    elif data[places.head : places.value_offsets].tobytes().strip(b"\0"):
        return None
    if not _are_offsets(data, places.value_offsets, count, places.value_bytes):
        return None
    return _times_in(data, places.times, count)


def _are_offsets(data: memoryview, at: int, count: int, size: int) -> bool:
    """Whether offsets at a place rise from 0 or more and stay within the bytes."""
    if count <= FEW_ROWS:
        found = _INTS[count + 1].unpack_from(data, at)
        is_within: bool = found[0] >= 0 and found[-1] <= size
        return is_within and (found[0] <= found[1] if count == 1 else sorted(found) == list(found))
    offsets = _aligned(data, at, 4 * (count + 1))
    try:
        # Which bytes they are makes no difference to offsets, only how many: those that follow.
        values = pa.py_buffer(data[at : at + size])
        column: Array = pa.Array.from_buffers(_BINARY, count, [None, offsets, values])
        column.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _times_in(data: memoryview, at: int, count: int) -> Times | None:
    if count == 1:
        (time_ms,) = _LONG.unpack_from(data, at)
        return Times(time_ms, time_ms, time_ms, time_ms)
    if count <= FEW_ROWS:
        found = _LONGS[count].unpack_from(data, at)
        ordered = sorted(found)
        return _times_of(found[0], ordered[0], ordered[-1])
    if np is not None:
        column = np.frombuffer(data, np.int64, count, at)
        return _times_of(int(column[0]), int(column.min()), int(column.max()))
    times: Array = pa.Array.from_buffers(pa.int64(), count, [None, _aligned(data, at, 8 * count)])
    bounds: Any = pc.min_max(times)
    return _times_of(times[0].as_py(), bounds["min"].as_py(), bounds["max"].as_py())


def _times_of(first_ms: int, least_ms: int, largest_ms: int) -> Times | None:
    """None where some have no time: whether the others are early takes another look."""
    if least_ms == NO_TIMESTAMP_MS < largest_ms:
        return None
    return Times(first_ms, least_ms, largest_ms, least_ms)


def _aligned(data: memoryview, at: int, size: int) -> pa.Buffer:
    """A column's bytes as Arrow wants them: copied only where the batch itself is not aligned."""
    found = pa.py_buffer(data[at : at + size])
    return pa.py_buffer(found.to_pybytes()) if found.address % ALIGNMENT else found


_BINARY: Final = pa.binary()
_LONG: Final = Struct("<q")
_INTS: Final = tuple(Struct(f"<{count}i") for count in range(FEW_ROWS + 2))
_LONGS: Final = tuple(Struct(f"<{count}q") for count in range(FEW_ROWS + 1))


# All others.


def _decoded_times(data: memoryview, position: int, header: BatchHeader) -> Times | None:
    """Decode as readers do; the times, or None where the body's do not count."""
    columns = BatchView.of(pa.py_buffer(data), position, header).record_batch()
    if header.is_append_time or not header.record_count:
        return None
    times: Array = columns.column("timestamp")
    bounds: Any = pc.min_max(times)
    least_ms, largest_ms = bounds["min"].as_py(), bounds["max"].as_py()
    known_ms = least_ms
    if least_ms == NO_TIMESTAMP_MS < largest_ms:
        is_known: Array = pc.greater(times, pa.scalar(NO_TIMESTAMP_MS, pa.int64()))
        known_ms = cast("int", pc.min(times.filter(is_known)).as_py())
    return Times(times[0].as_py(), least_ms, largest_ms, known_ms)


# How much there is to look at.


def steps(data: bytes | memoryview) -> Iterator[tuple[int, int, int]]:
    """Position and length of each batch, and how many bytes a look into it goes over; unchecked.

    Of a body that is not compressed only offsets and times are looked at: a small share counts.
    Ends at what cannot be a batch.
    """
    position, end = 0, len(data)
    while end - position >= HEADER_BYTES:
        length, attributes, body_bytes = _PEEK.unpack_from(data, position)
        if length <= HEADER_BYTES:
            return
        is_packed = attributes & COMPRESSION_MASK
        yield position, length, body_bytes if is_packed else length // PLAIN_SHARE
        position += length


def work_bytes(data: bytes | memoryview) -> int:
    """How many bytes a look into all of the batches goes over; unchecked."""
    return sum(work for _, _, work in steps(data))


PLAIN_SHARE: Final = 32
_PEEK: Final = Struct("<8xI16xH42xI")
