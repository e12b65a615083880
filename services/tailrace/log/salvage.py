"""Finding the way again behind damage in a part of a segment that was given up.

Batches are found one after the other by their lengths; where a header is damaged the chain ends,
although all that matters may lie behind it. `find_batch` looks for the next batch of the chain.

Invariant: what it finds is whole, holds or comes before the offset that matters, and is followed
by whole batches without a gap up to that offset. So bytes within a record that look like a batch
are not taken for one, and nothing from that offset on is ever passed over.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import Final, NamedTuple

from tailrace.errors import CorruptBatch
from tailrace.log.checkpoints import TEMPORARY_SUFFIX
from tailrace.log.files import Files
from tailrace.log.segment import Segment
from tailrace.record.header import ALIGNMENT, HEADER_BYTES, MAGIC

SEARCH_CHUNK_BYTES: Final = 1 << 20
COPY_CHUNK_BYTES: Final = 4 << 20

# A header begins with the base offset; the magic is the low byte of a word whose others are zero.
_BASE_OFFSET: Final = Struct("<q")
_MAGIC_AT: Final = 16
_MAGIC_WORD: Final = bytes((MAGIC, 0, 0, 0))


class FoundBatch(NamedTuple):
    position: int
    base_offset: int


def find_batch(segment: Segment, size: int, *, up_to: int) -> FoundBatch | None:
    """The first batch behind the damage at which the known part of a segment ends, or None.

    `size` is that of the file; the offset that matters is `up_to`.
    """
    for position, base_offset in _candidates(segment, size, up_to):
        if _leads_to(segment, position, size, up_to):
            return FoundBatch(position, base_offset)
    return None


def copy_from(files: Files, source: str, position: int, target: str) -> None:
    """Make a file of what another holds from a position on; its bytes are durable on return."""
    beside = target + TEMPORARY_SUFFIX
    old, new = files.open(source), files.open(beside, create=True)
    try:
        new.truncate(0)
        done = 0
        while data := old.read_at(position + done, COPY_CHUNK_BYTES):
            new.write_at(done, [data])
            done += len(data)
        new.sync()
    finally:
        old.close()
        new.close()
    files.rename(beside, target)


def _candidates(segment: Segment, size: int, up_to: int) -> Iterator[FoundBatch]:
    """Where a header may stand: the bytes are searched for the magic, since there are many places.

    Without numpy: `tailrace log` rehearses an opening, and the base install has to do for it.
    """
    position = segment.size
    while size - position >= HEADER_BYTES:
        data = segment.read(position, min(SEARCH_CHUNK_BYTES + HEADER_BYTES, size - position))
        magic_at = data.find(_MAGIC_WORD, _MAGIC_AT)
        while magic_at >= 0:
            at = magic_at - _MAGIC_AT
            if at >= SEARCH_CHUNK_BYTES:
                break
            if at % ALIGNMENT == 0:
                (base_offset,) = _BASE_OFFSET.unpack_from(data, at)
                if segment.next_offset < base_offset <= up_to:
                    yield FoundBatch(position + at, base_offset)
            magic_at = data.find(_MAGIC_WORD, magic_at + 1)
        position += SEARCH_CHUNK_BYTES


def _leads_to(segment: Segment, position: int, size: int, up_to: int) -> bool:
    """Whether whole batches follow one another from a position on until one holds `up_to`."""
    expected: int | None = None
    try:
        for _, header in segment.scan(position, size):
            if expected not in {None, header.base_offset}:
                return False
            expected = header.next_offset
            if expected > up_to:
                return True
    except CorruptBatch:
        return False
    return expected == up_to
