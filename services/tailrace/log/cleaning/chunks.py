"""Reading closed segments for a compaction: whole batches, verified, a chunk of the file at a time.

Every byte that is handed out passed its checksum, and the offsets follow one another without a
gap; anything else raises CorruptBatch. Only what was given up, below the log start, need not be
whole: it is handed out as it is, without columns. What is decoded refers to the bytes of its
chunk, which live as long as it does. Nothing here knows what compaction does with it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from tailrace.errors import BatchFault, CorruptBatch
from tailrace.log.cleaning.survivors import Offsets
from tailrace.log.files import OpenFile
from tailrace.record.header import HEADER_BYTES, BatchHeader, read_header
from tailrace.record.view import BatchView

ALL_OFFSETS: Final = range(2**63 - 1)
# A chunk ends early when its bodies would decompress to more than this; a single batch may.
DECODED_BYTES_MAX: Final = 128 << 20


class ReadBatch(NamedTuple):
    """A verified batch; it has no columns when it is not to be touched, or cannot be read."""

    header: BatchHeader
    data: memoryview
    columns: pa.RecordBatch | None
    problem: str = ""


Chunk = list[ReadBatch]


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSegment:
    """A segment that is being compacted: what of it never changes while it is closed."""

    path: str
    base_offset: int
    next_offset: int
    size_bytes: int
    index_bytes: int
    created_ms: int
    appended_ms: int


def read_chunks(
    file: OpenFile,
    source: SourceSegment,
    *,
    chunk_bytes: int,
    decoded: range,
    decoded_bytes_max: int = DECODED_BYTES_MAX,
    given_up: int = 0,
) -> Iterator[Chunk]:
    """All batches of a segment in chunks of about this size, those in a range of offsets decoded.

    A batch larger than a chunk is one of its own. Control batches are never decoded.
    """
    position, expected = 0, source.base_offset
    while position < source.size_bytes:
        left_bytes = source.size_bytes - position
        data = file.read_at(position, min(max(chunk_bytes, HEADER_BYTES), left_bytes))
        chunk = _split(data, decoded, decoded_bytes_max, given_up)
        if not chunk and len(data) >= HEADER_BYTES:
            length = read_header(data).length
            data = file.read_at(position, min(length, left_bytes))
            chunk = _split(data, decoded, decoded_bytes_max, given_up)
        if not chunk:
            raise CorruptBatch(BatchFault.CUT_SHORT, f"{source.path} at {position}")
        for batch in chunk:
            header = batch.header
            if header.base_offset != expected:
                detail = f"offset {header.base_offset} does not continue {expected}"
                raise CorruptBatch(BatchFault.BAD_HEADER, detail)
            expected = header.next_offset
            position += header.length
        yield chunk
    if expected != source.next_offset:
        raise CorruptBatch(BatchFault.CUT_SHORT, f"{source.path} ends at offset {expected}")


def row_offsets(chunk: Chunk) -> Offsets:
    """The offset of each row of the decoded batches."""
    parts: list[Offsets] = []
    # Batches that were never compacted have all their offsets: a row of them is one range.
    start = end = 0
    for header, _, columns, _ in chunk:
        if columns is None:
            continue
        if header.base_offset != end or header.is_compacted:
            parts.append(np.arange(start, end))
            start = end = header.next_offset
        if header.is_compacted:
            deltas = columns.column("offset_delta").to_numpy()
            parts.append(deltas.astype(np.int64) + header.base_offset)
        else:
            start = header.base_offset if start == end else start
            end = header.next_offset
    parts.append(np.arange(start, end))
    return np.concatenate(parts)


def _split(data: bytes, decoded: range, room_bytes: int, given_up: int) -> Chunk:
    """The whole batches in a buffer, as many as there is room for when they are decoded."""
    source, view = pa.py_buffer(data), memoryview(data)
    chunk: Chunk = []
    at, size = 0, len(data)
    while size - at >= HEADER_BYTES:
        batch = BatchView(source, at)
        header = batch.header
        end = at + header.length
        room_bytes -= header.body_bytes
        if end > size or (room_bytes < 0 and chunk):
            break
        is_whole = _is_whole(batch, given_up)
        columns, problem = None, ""
        if is_whole and header.next_offset > decoded.start and header.base_offset < decoded.stop:
            columns, problem = _columns(batch)
        chunk.append(ReadBatch(header, view[at:end], columns, problem))
        at = end
    return chunk


def _is_whole(batch: BatchView, given_up: int) -> bool:
    """Whether the checksum is right; if not, that is an error unless the batch was given up."""
    try:
        batch.verify()
    except CorruptBatch:
        if batch.header.next_offset > given_up:
            raise
        return False
    return True


def _columns(batch: BatchView) -> tuple[pa.RecordBatch | None, str]:
    if batch.header.is_control:
        return None, ""
    try:
        return batch.record_batch(), ""
    except CorruptBatch as error:
        # Its checksum is right: a client sent it so. It can be neither read nor judged.
        return None, str(error)
