"""The sparse indexes of one segment: offset → position, and timestamp → offset.

Both are derived data: a missing or damaged index is rebuilt by walking the batch headers of its
segment, so nothing here needs to survive a power loss. They are kept as columns (arrays) in
memory, and on disk behind a header with a checksum:

    0   4s   magic, `TRIX` (offset index) or `TRTX` (time index)
    4   u16  version, 1
    6   u16  reserved, zero
    8   u32  number of entries
    12  u32  CRC-32C of everything else, these four bytes counted as zeros
    16  i64  created_ms: broker time of the segment's first append, -1 unknown
    24  i64  appended_ms: broker time of its last append, -1 unknown
    32  i64  covered_bytes: size of the segment when it was indexed
    40  …    first column, then second column

Neither file is synced, so a power loss may bring back an older one: `covered_bytes` tells.

An offset entry says: the batch with this base offset (relative to the segment's) starts at this
position. A time entry says: every record with a later timestamp comes after this offset.
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_left, bisect_right
from typing import Final

from tailrace.errors import CorruptCheckpoint
from tailrace.model import NO_TIMESTAMP_MS
from tailrace.record.codec import crc32c

OFFSET_ENTRY_BYTES: Final = 8
TIME_ENTRY_BYTES: Final = 12

NOT_COVERED: Final = -1
"""In `covered_bytes`: the two files were saved at different moments and do not go together."""

_HEADER: Final = struct.Struct("<4sHHIIqqq")
INDEX_HEADER_BYTES: Final = _HEADER.size
_CRC_AT: Final = 12
_VERSION: Final = 1
_OFFSET_MAGIC: Final = b"TRIX"
_TIME_MAGIC: Final = b"TRTX"


class SegmentIndex:
    """Both indexes of one segment, filled together while batches are appended or walked."""

    __slots__ = (
        "appended_ms",
        "covered_bytes",
        "created_ms",
        "offsets",
        "positions",
        "time_offsets",
        "timestamps",
    )

    def __init__(self) -> None:
        self.offsets = array("I")
        self.positions = array("I")
        self.timestamps = array("q")
        self.time_offsets = array("I")
        self.created_ms = NO_TIMESTAMP_MS
        self.appended_ms = NO_TIMESTAMP_MS
        self.covered_bytes = 0

    @property
    def memory_bytes(self) -> int:
        return self.entries_bytes + 512

    @property
    def entries_bytes(self) -> int:
        return len(self.offsets) * OFFSET_ENTRY_BYTES + len(self.timestamps) * TIME_ENTRY_BYTES

    @property
    def max_timestamp_ms(self) -> int:
        """The largest timestamp that was indexed."""
        return self.timestamps[-1] if self.timestamps else NO_TIMESTAMP_MS

    def add(self, relative_offset: int, position: int) -> None:
        self.offsets.append(relative_offset)
        self.positions.append(position)

    def add_time(self, timestamp_ms: int, relative_offset: int) -> None:
        """Note the largest timestamp so far; one that is not larger adds nothing."""
        if not self.timestamps or timestamp_ms > self.timestamps[-1]:
            self.timestamps.append(timestamp_ms)
            self.time_offsets.append(relative_offset)

    def floor(self, relative_offset: int) -> tuple[int, int]:
        """The last indexed batch at or below an offset, as (relative offset, position)."""
        at = bisect_right(self.offsets, relative_offset) - 1
        return (self.offsets[at], self.positions[at]) if at >= 0 else (0, 0)

    def floor_position(self, position: int) -> tuple[int, int]:
        """The last batch indexed at or below `position`, as (position, relative offset)."""
        at = bisect_right(self.positions, position) - 1
        return (self.positions[at], self.offsets[at]) if at >= 0 else (0, 0)

    def before_time(self, timestamp_ms: int) -> int:
        """A relative offset that every record at or after `timestamp_ms` comes after, or -1."""
        at = bisect_left(self.timestamps, timestamp_ms) - 1
        return self.time_offsets[at] if at >= 0 else -1

    def truncate_to(self, *, position: int, relative_offset: int) -> None:
        """Forget the batches that start at `position` or later, or reach up to an offset."""
        keep = bisect_left(self.positions, position)
        del self.offsets[keep:], self.positions[keep:]
        keep = bisect_left(self.time_offsets, relative_offset)
        del self.timestamps[keep:], self.time_offsets[keep:]

    def offset_bytes(self) -> bytes:
        return self._encode(_OFFSET_MAGIC, self.offsets, self.positions)

    def time_bytes(self) -> bytes:
        return self._encode(_TIME_MAGIC, self.timestamps, self.time_offsets)

    @classmethod
    def decode(cls, offset_data: bytes, time_data: bytes, *, segment_bytes: int) -> SegmentIndex:
        """Read both files back; raise CorruptCheckpoint when either is not whole and plausible."""
        index = cls()
        of_offsets = index._decode(_OFFSET_MAGIC, offset_data, index.offsets, index.positions)
        of_times = index._decode(_TIME_MAGIC, time_data, index.timestamps, index.time_offsets)
        index.created_ms, index.appended_ms, covered_bytes = map(max, of_offsets, of_times)
        index.covered_bytes = covered_bytes if of_offsets == of_times else NOT_COVERED
        if index.positions and index.positions[-1] >= segment_bytes:
            raise CorruptCheckpoint("offset index points beyond the end of its segment")
        return index

    def _encode(self, magic: bytes, first: array[int], second: array[int]) -> bytes:
        columns = _little_endian(first) + _little_endian(second)
        saved = (self.created_ms, self.appended_ms, self.covered_bytes)
        blank = _HEADER.pack(magic, _VERSION, 0, len(first), 0, *saved)
        crc = crc32c(blank + columns)
        return _HEADER.pack(magic, _VERSION, 0, len(first), crc, *saved) + columns

    @staticmethod
    def _decode(
        magic: bytes, data: bytes, first: array[int], second: array[int]
    ) -> tuple[int, int, int]:
        """Fill the columns; return created_ms, appended_ms and covered_bytes."""
        what = "offset index" if magic == _OFFSET_MAGIC else "time index"
        if len(data) < _HEADER.size:
            raise CorruptCheckpoint(f"{what} is cut short: {len(data)} bytes")
        found, version, reserved, count, crc, *saved = _HEADER.unpack_from(data)
        if found != magic or version != _VERSION or reserved != 0:
            raise CorruptCheckpoint(f"{what} has an unknown magic or version")
        if len(data) != _HEADER.size + count * (first.itemsize + second.itemsize):
            raise CorruptCheckpoint(f"{what} does not have the length its header promises")
        if crc32c(data[:_CRC_AT] + b"\0\0\0\0" + data[_CRC_AT + 4 :]) != crc:
            raise CorruptCheckpoint(f"{what} fails its checksum")
        split = _HEADER.size + count * first.itemsize
        first.frombytes(data[_HEADER.size : split])
        second.frombytes(data[split:])
        if sys.byteorder == "big":
            first.byteswap()
            second.byteswap()
        created_ms, appended_ms, covered_bytes = saved
        return created_ms, appended_ms, covered_bytes


def last_entry_places(header: bytes) -> tuple[int, int] | None:
    """Where in the file of an offset index its last entry stands: its offset, its position.

    None where there is none. The checksum is over the whole file, so what stands there is a hint.
    """
    if len(header) < _HEADER.size:
        return None
    magic, version, _, count, *_ = _HEADER.unpack_from(header)
    if magic != _OFFSET_MAGIC or version != _VERSION or count == 0:
        return None
    column_bytes = count * (OFFSET_ENTRY_BYTES // 2)
    last = _HEADER.size + column_bytes - OFFSET_ENTRY_BYTES // 2
    return last, last + column_bytes


def _little_endian(column: array[int]) -> bytes:
    if sys.byteorder == "little":
        return column.tobytes()
    swapped = array(column.typecode, column)
    swapped.byteswap()
    return swapped.tobytes()
