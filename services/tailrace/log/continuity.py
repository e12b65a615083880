"""Whether the segments of a log follow one another, told without reading what is in them.

An opening trusts what is below the recovery point and does not scan it, so a segment in the middle
could be missing there, or be shorter than it was. Two things tell. The clean-shutdown marker holds
a checksum over the segments as they were left. Without one that fits, the last batch of each
segment must end where the next one begins: a few small reads for each, by its index.

Invariant: nothing here is called damage. A break only says which segment has to be scanned, and
the scan of its batches decides: an index that is old or gone costs time, never a log that is whole.
This module changes nothing. Enter at `first_break`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

from tailrace.errors import CorruptBatch
from tailrace.log.index import INDEX_HEADER_BYTES, last_entry_places
from tailrace.log.segment import INDEX_SUFFIX, Segment, Storage, segment_name
from tailrace.record.codec import crc32c
from tailrace.record.header import HEADER_BYTES, read_header


def segments_crc(segments: Iterable[Segment]) -> int:
    """A checksum over where each segment begins and how long its file is."""
    lines = (f"{each.base_offset} {each.size}\n" for each in segments)
    return crc32c("".join(lines).encode("ascii"))


def first_break(storage: Storage, segments: Sequence[Segment]) -> Segment | None:
    """The first segment that does not end where the next one begins; None: there is none."""
    for segment, after in pairwise(segments):
        if _end_of(storage, segment) != after.base_offset:
            return segment
    return None


def _end_of(storage: Storage, segment: Segment) -> int:
    """The offset at which the batches of a segment end; from a damaged one on there are none."""
    position, end = _last_indexed(storage, segment)
    try:
        for _, header in segment.walk(position):
            if header.base_offset != end:
                break
            end = header.next_offset
    except CorruptBatch:
        # What is behind it cannot be told from here.
        return -1
    return end


def _last_indexed(storage: Storage, segment: Segment) -> tuple[int, int]:
    """Position and base offset of the last batch that the index has, or of the first one.

    The index is not read whole, so that its checksum proves nothing: the batch itself does.
    """
    first = (0, segment.base_offset)
    try:
        file = storage.files.open(
            f"{segment.folder}/{segment_name(segment.base_offset, INDEX_SUFFIX)}"
        )
    except FileNotFoundError:
        return first
    try:
        places = last_entry_places(file.read_at(0, INDEX_HEADER_BYTES))
        if places is None:
            return first
        relative, position = (int.from_bytes(file.read_at(place, 4), "little") for place in places)
    finally:
        file.close()
    offset = segment.base_offset + relative
    try:
        if read_header(segment.read(position, HEADER_BYTES)).base_offset == offset:
            return position, offset
    except CorruptBatch:
        pass
    return first
