"""Reading closed segments for a compaction: whole batches, verified, a chunk of the file at a time.

Every byte that is handed out passed its checksum, and the offsets follow one another without a
gap; anything else raises CorruptBatch. Only what was given up, below the log start, need not be
whole: it is handed out as it is, without columns. What is decoded refers to the bytes of its
chunk, which live as long as it does. Nothing here knows what compaction does with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
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


class Piece(NamedTuple):
    """A run of whole batches of a segment: where they lie, and the offsets that they take."""

    start_bytes: int
    end_bytes: int
    base_offset: int
    next_offset: int


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

    @property
    def whole(self) -> Piece:
        return Piece(0, self.size_bytes, self.base_offset, self.next_offset)


class Epoch(NamedTuple):
    """The leader epoch of the batches from this offset on."""

    leader_epoch: int
    base_offset: int


class SurveyedChunk(NamedTuple):
    """What is remembered of a chunk once all its bytes were verified and its keys mapped.

    `must_read` says that it has something which stays whatever the map of keys says.
    """

    piece: Piece
    epochs: tuple[Epoch, ...]
    records: int
    must_read: bool


def read_chunks(
    file: OpenFile,
    source: SourceSegment,
    *,
    chunk_bytes: int,
    decoded: range,
    decoded_bytes_max: int = DECODED_BYTES_MAX,
    given_up: int = 0,
    piece: Piece | None = None,
) -> Iterator[Chunk]:
    """All batches of a segment in chunks of about this size, those in a range of offsets decoded.

    A batch larger than a chunk is one of its own. Control batches are never decoded. With `piece`
    only the batches in there.
    """
    piece = piece or source.whole
    position, expected = piece.start_bytes, piece.base_offset
    while position < piece.end_bytes:
        left_bytes = piece.end_bytes - position
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
    if expected != piece.next_offset:
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


def survey(chunk: Chunk, start_bytes: int, *, dirty_from: int) -> SurveyedChunk:
    """Sum up a chunk that begins at this position of its segment."""
    first, last = chunk[0].header, chunk[-1].header
    end_bytes = start_bytes + sum(each.header.length for each in chunk)
    epochs: list[Epoch] = []
    for each in chunk:
        header = each.header
        if not epochs or epochs[-1].leader_epoch != header.leader_epoch:
            epochs.append(Epoch(header.leader_epoch, header.base_offset))
    return SurveyedChunk(
        Piece(start_bytes, end_bytes, first.base_offset, last.next_offset),
        tuple(epochs),
        sum(each.header.record_count for each in chunk),
        first.base_offset < dirty_from
        or any(each.columns is None or each.columns.column("key").null_count > 0 for each in chunk),
    )


def pieces_left(
    source: SourceSegment,
    surveyed: Sequence[SurveyedChunk],
    is_gone: Callable[[SurveyedChunk], bool],
) -> Iterator[Piece | SurveyedChunk]:
    """A segment as it is rewritten: what is gone as it was surveyed, between that what to read."""
    rest = source.whole
    for chunk in surveyed:
        if not is_gone(chunk):
            continue
        if chunk.piece.start_bytes > rest.start_bytes:
            yield Piece(
                rest.start_bytes, chunk.piece.start_bytes, rest.base_offset, chunk.piece.base_offset
            )
        yield chunk
        rest = rest._replace(start_bytes=chunk.piece.end_bytes, base_offset=chunk.piece.next_offset)
    if rest.start_bytes < rest.end_bytes:
        yield rest


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
