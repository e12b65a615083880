"""Reading the files of a log as they are, damaged or not: for tools that look and never touch.

Where the log itself stops at the first bad batch, this goes on: at the next batch when the prefix
of the bad one is good (its length is then known), else at the next place where a batch can begin.

Memory stays bounded whatever a file says: a segment is read a chunk at a time, and the checksum of
a batch that is larger than a chunk is worked out in pieces.
Invariant: no bytes make anything in here raise; what is wrong comes back as a value.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from struct import Struct
from typing import Final, NamedTuple

from tailrace.errors import BatchFault, CorruptBatch
from tailrace.log.audit.overlay import ReadOnlyFile
from tailrace.log.segment import SCAN_CHUNK_BYTES
from tailrace.record.codec import crc32c, crc32c_extend
from tailrace.record.header import (
    ALIGNMENT,
    BATCH_BYTES_MAX,
    CRC_START,
    HEADER_BYTES,
    MAGIC,
    PREFIX_BYTES,
    BatchHeader,
    prefix_for,
    read_header,
    verify,
)

# Headers alone are read this much at a time: many small batches, or the head of a large one.
HEADERS_CHUNK_BYTES: Final = 64 * 1024


class Batch(NamedTuple):
    """A batch that is whole, as far as it was looked at."""

    position: int
    header: BatchHeader


class Damage(NamedTuple):
    """Bytes [position, end) that are no whole batch.

    `base_offset` is -1 unless the prefix, which has a checksum of its own, is good.
    """

    position: int
    end: int
    fault: BatchFault
    reason: str
    base_offset: int = -1
    all_zeros: bool = False


def scan(
    file: ReadOnlyFile, size: int, *, start: int = 0, checksums: bool = True
) -> Iterator[Batch | Damage]:
    """Everything in the first `size` bytes of a segment from `start` on, without a gap.

    Without `checksums` only headers are read and the bodies are passed over.
    """
    window = _Window(file, size, SCAN_CHUNK_BYTES if checksums else HEADERS_CHUNK_BYTES)
    position, next_offset = start, 0
    while position < size:
        found = _read_one(window, position, checksums=checksums)
        if isinstance(found, Damage) and found.base_offset < 0:
            found = _skip(window, found, next_offset)
        yield found
        if isinstance(found, Batch):
            next_offset = found.header.next_offset
            position += found.header.length
        else:
            position = found.end


def base_in_name(name: str) -> int | None:
    """The base offset that a file of a segment bears in its name; None for any other file."""
    match = _NUMBERED.match(name)
    return int(match[1]) if match is not None else None


_NUMBERED: Final = re.compile(r"([0-9]{20})\.")
_PLACE: Final = Struct("<qIi")
_MAGIC_AT: Final = _PLACE.size
_MAGIC_WORD: Final = bytes((MAGIC, 0, 0, 0))


class _Window:
    """A file seen through one chunk at a time."""

    __slots__ = ("_chunk", "_chunk_bytes", "_file", "_start", "size")

    def __init__(self, file: ReadOnlyFile, size: int, chunk_bytes: int) -> None:
        self._file = file
        self._chunk_bytes = chunk_bytes
        self._start = 0
        self._chunk = b""
        self.size = size

    def at(self, position: int, wanted: int) -> tuple[bytes, int]:
        """A buffer and where in it `position` is; `wanted` bytes follow if the file has them.

        `wanted` is at most a chunk.
        """
        inside = position - self._start
        if inside < 0 or inside + min(wanted, self.size - position) > len(self._chunk):
            size = min(self._chunk_bytes, self.size - position)
            self._start, self._chunk, inside = position, self._file.read_at(position, size), 0
        return self._chunk, inside

    def verify(self, position: int, header: BatchHeader) -> None:
        """As `verify` of a batch in memory; one that is larger than a chunk is read in pieces."""
        if header.length <= self._chunk_bytes:
            verify(*self.at(position, header.length), header)
            return
        crc, end = crc32c(b""), position + header.length
        position += CRC_START
        while position < end:
            part = self._file.read_at(position, min(end - position, self._chunk_bytes))
            if not part:
                raise CorruptBatch(BatchFault.CUT_SHORT, f"{end - position} bytes are missing")
            crc = crc32c_extend(crc, part)
            position += len(part)
        if crc != header.crc:
            raise CorruptBatch(BatchFault.BAD_CRC)

    def is_zero_from(self, position: int) -> bool:
        """Whether nothing but zeros follows up to the end."""
        while position < self.size:
            size = min(self._chunk_bytes, self.size - position)
            part = self._file.read_at(position, size)
            if not part or part.strip(b"\0"):
                return False
            position += len(part)
        return True


def _read_one(window: _Window, position: int, *, checksums: bool) -> Batch | Damage:
    left = window.size - position
    chunk, at = window.at(position, HEADER_BYTES)
    try:
        header = read_header(chunk, at, available=left)
        if checksums:
            window.verify(position, header)
    except CorruptBatch as error:
        return _damage(chunk, at, position, left, error)
    return Batch(position, header)


def _damage(chunk: bytes, at: int, position: int, left: int, error: CorruptBatch) -> Damage:
    reason = str(error).removeprefix("corrupt batch: ")
    place = _place(chunk, at)
    if place is None:
        return Damage(position, position + left, error.fault, reason)
    base_offset, length = place
    return Damage(position, position + min(length, left), error.fault, reason, base_offset)


def _place(chunk: bytes, at: int) -> tuple[int, int] | None:
    """Base offset and length of the batch whose good prefix stands here, or None."""
    if len(chunk) - at < PREFIX_BYTES:
        return None
    base_offset, length, leader_epoch = _PLACE.unpack_from(chunk, at)
    if prefix_for(base_offset, length, leader_epoch) != chunk[at : at + PREFIX_BYTES]:
        return None
    if base_offset < 0 or not HEADER_BYTES < length <= BATCH_BYTES_MAX or length % ALIGNMENT:
        return None
    return base_offset, length


def _skip(window: _Window, damage: Damage, next_offset: int) -> Damage:
    """Find out where the damage ends: where the next batch can begin, or with the file.

    A batch below `next_offset` is not believed: it may be part of a value, or left from before.
    """
    position = damage.position + ALIGNMENT
    while position + PREFIX_BYTES <= window.size:
        chunk, at = window.at(position, HEADERS_CHUNK_BYTES)
        found = _find_prefix(chunk, at, next_offset)
        if found is not None:
            return damage._replace(end=position + found - at)
        # The last bytes of this chunk may be the beginning of a prefix that goes on in the next.
        searched = (len(chunk) - at - PREFIX_BYTES) // ALIGNMENT * ALIGNMENT + ALIGNMENT
        if searched <= 0:
            break
        position += searched
    return damage._replace(end=window.size, all_zeros=window.is_zero_from(damage.position))


def _find_prefix(chunk: bytes, at: int, next_offset: int) -> int | None:
    """Where, at `at` or an aligned distance behind it, a good prefix begins."""
    magic_at = chunk.find(_MAGIC_WORD, at + _MAGIC_AT)
    while magic_at >= 0:
        start = magic_at - _MAGIC_AT
        if (start - at) % ALIGNMENT == 0:
            place = _place(chunk, start)
            if place is not None and place[0] >= next_offset:
                return start
        magic_at = chunk.find(_MAGIC_WORD, magic_at + 1)
    return None
