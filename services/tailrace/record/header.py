"""The header of a record batch: what is known of a batch without decoding its body.

Pure functions on buffers: they read, check, place and split batches, and know nothing of files,
of the Arrow body or of records. The layout is written down in docs/record-format.md.
Invariant: a `BatchHeader` that `read_header` returned contradicts itself nowhere, and after
`verify` every byte of its batch is covered by one of two checksums that match.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from struct import Struct
from typing import Final, NamedTuple, NoReturn, TypeAlias

import pyarrow as pa

from tailrace.errors import BatchFault, BatchTooLarge, CorruptBatch
from tailrace.record.codec import Compression, crc32c, crc32c_extend

Buffer: TypeAlias = bytes | bytearray | memoryview | pa.Buffer

MAGIC: Final = 1
HEADER_BYTES: Final = 88
PREFIX_BYTES: Final = 24  # What the leader sets: base offset, length, epoch, magic, their CRC.
PREFIX_CRC_AT: Final = 20  # The prefix CRC covers [0, PREFIX_CRC_AT).
CRC_START: Final = 28  # The CRC covers [CRC_START, length).
ALIGNMENT: Final = 8
BODY_KIND_ARROW: Final = 1

COMPRESSION_MASK: Final = 0b0000_0111
APPEND_TIME_BIT: Final = 1 << 3
TRANSACTIONAL_BIT: Final = 1 << 4
CONTROL_BIT: Final = 1 << 5
COMPACTED_BIT: Final = 1 << 6
HEADERS_BIT: Final = 1 << 7
ATTRIBUTES_ALL: Final = 0xFF

# No body is larger than this before compression, whatever a topic allows.
BODY_BYTES_MAX: Final = 64 << 20
# A producer's body must leave room for the offset deltas (4 bytes on 16 or more for a record) that
# compaction may add.
PRODUCED_BODY_BYTES_MAX: Final = 48 << 20
# No batch is longer than this: a length above it is damage.
BATCH_BYTES_MAX: Final = HEADER_BYTES + BODY_BYTES_MAX
# An offset in each of two binary columns and a timestamp: no record takes less of a body.
RECORD_BYTES_MIN: Final = 16

OFFSET_MAX: Final = 2**63 - 1
SEQUENCE_MODULUS: Final = 2**31


class BatchHeader(NamedTuple):
    """The fields of a header, in their order; the reserved ones, always zero, are left out."""

    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    prefix_crc: int
    crc: int
    attributes: int
    body_kind: int
    padding: int
    last_offset_delta: int
    base_sequence: int
    first_timestamp_ms: int
    max_timestamp_ms: int
    producer_id: int
    producer_epoch: int
    record_count: int
    body_bytes: int
    delete_horizon_ms: int

    @property
    def last_offset(self) -> int:
        """The last offset that the batch takes, whether or not compaction left a record there."""
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        """The offset at which the batch that follows begins."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def last_sequence(self) -> int:
        """The sequence of the last record, which wraps to 0 after 2**31 - 1; -1 when none."""
        if self.base_sequence < 0:
            return -1
        return (self.base_sequence + self.last_offset_delta) % SEQUENCE_MODULUS

    @property
    def compression(self) -> Compression:
        """How the body is compressed."""
        return Compression(self.attributes & COMPRESSION_MASK)

    @property
    def is_append_time(self) -> bool:
        """Whether every record has the time of the append, `max_timestamp_ms`, as its own."""
        return self.attributes & APPEND_TIME_BIT != 0

    @property
    def is_transactional(self) -> bool:
        """Whether the batch belongs to a transaction."""
        return self.attributes & TRANSACTIONAL_BIT != 0

    @property
    def is_control(self) -> bool:
        """Whether the batch is a marker for brokers and clients, never shown to a user."""
        return self.attributes & CONTROL_BIT != 0

    @property
    def is_compacted(self) -> bool:
        """Whether the body has a column of offset deltas, since records may be missing."""
        return self.attributes & COMPACTED_BIT != 0

    @property
    def has_headers(self) -> bool:
        """Whether the body has a column of record headers."""
        return self.attributes & HEADERS_BIT != 0


def read_header(buffer: Buffer, position: int = 0, *, available: int | None = None) -> BatchHeader:
    """Read and check the header at `position`; the body need not be in the buffer.

    `available` is how many bytes the source (a file, a message) holds from `position` on, where
    that is known: a batch that is longer is cut short.
    """
    if position < 0 or len(buffer) - position < HEADER_BYTES:
        _refuse(BatchFault.CUT_SHORT, f"{len(buffer) - position} of {HEADER_BYTES} header bytes")
    # fmt: off
    (
        base_offset, length, leader_epoch, magic_word, prefix_crc, crc, attributes, body_kind,
        padding, last_offset_delta, base_sequence, first_timestamp_ms, max_timestamp_ms,
        producer_id, producer_epoch, reserved_66, record_count, body_bytes, reserved_76,
        delete_horizon_ms,
    ) = _HEADER.unpack_from(buffer, position)
    # fmt: on
    if magic_word & 0xFF != MAGIC:
        _refuse(BatchFault.BAD_MAGIC, f"{magic_word & 0xFF}")
    if crc32c(_PREFIX_BYTES.unpack_from(buffer, position)[0]) != prefix_crc:
        _refuse(BatchFault.BAD_PREFIX_CRC)
    if length <= HEADER_BYTES or length > BATCH_BYTES_MAX or length % ALIGNMENT:
        _refuse(BatchFault.BAD_LENGTH, f"{length}")
    if available is not None and length > available:
        _refuse(BatchFault.CUT_SHORT, f"{available} of {length} bytes")
    if magic_word != MAGIC or reserved_66 or reserved_76:
        _refuse(BatchFault.BAD_HEADER, "reserved bytes are not zero")
    # fmt: off
    header = BatchHeader(
        base_offset, length, leader_epoch, MAGIC, prefix_crc, crc, attributes, body_kind,
        padding, last_offset_delta, base_sequence, first_timestamp_ms, max_timestamp_ms,
        producer_id, producer_epoch, record_count, body_bytes, delete_horizon_ms,
    )
    # fmt: on
    problem = header_problem(header)
    if problem is not None:
        _refuse(BatchFault.BAD_HEADER, problem)
    if body_bytes > PRODUCED_BODY_BYTES_MAX and body_bytes > body_bytes_max(attributes):
        _refuse(BatchFault.TOO_LARGE, f"a body of {body_bytes} bytes")
    return header


def body_bytes_max(attributes: int) -> int:
    """Return how large the body of a batch with these attributes may be before compression."""
    return BODY_BYTES_MAX if attributes & COMPACTED_BIT else PRODUCED_BODY_BYTES_MAX


def header_problem(header: BatchHeader) -> str | None:
    """Say which rule of the format the fields break, or None when they break none.

    Length, checksums and magic are not looked at: they belong to the bytes, not to the fields.
    """
    # One unpacking instead of forty attribute look-ups: this runs for every batch.
    # fmt: off
    (
        base_offset, length, leader_epoch, _, _, _, attributes, body_kind, padding,
        last_offset_delta, base_sequence, first_timestamp_ms, max_timestamp_ms, producer_id,
        producer_epoch, record_count, body_bytes, delete_horizon_ms,
    ) = header
    # fmt: on
    stored_bytes = length - HEADER_BYTES - padding
    compression = attributes & COMPRESSION_MASK
    if attributes > ATTRIBUTES_ALL or compression > Compression.ZSTD:
        return f"unknown attributes {attributes:#06x}"
    if body_kind != BODY_KIND_ARROW:
        return f"unknown body kind {body_kind}"
    if base_offset < 0 or last_offset_delta < 0 or leader_epoch < -1 or delete_horizon_ms < -1:
        return "an offset, epoch or horizon is negative"
    if base_offset > OFFSET_MAX - 1 - last_offset_delta:
        return "the last offset is too large"
    if record_count != last_offset_delta + 1 and (
        not attributes & COMPACTED_BIT or record_count > last_offset_delta + 1
    ):
        return f"{record_count} records in {last_offset_delta + 1} offsets"
    if padding >= ALIGNMENT or stored_bytes <= 0:
        return f"{padding} bytes of padding"
    if not compression and stored_bytes != body_bytes:
        return f"a body of {body_bytes} bytes in a batch of {length}"
    if body_bytes % ALIGNMENT or body_bytes < record_count * RECORD_BYTES_MIN or not body_bytes:
        return f"{record_count} records in a body of {body_bytes} bytes"
    if not -1 <= first_timestamp_ms <= max_timestamp_ms:
        return f"timestamps from {first_timestamp_ms} to {max_timestamp_ms}"
    return _producer_problem(producer_id, producer_epoch, base_sequence)


def verify(data: Buffer, position: int, header: BatchHeader) -> None:
    """Check that the batch at `position` is all there and has the CRC that its header says."""
    source = data if isinstance(data, pa.Buffer) else pa.py_buffer(data)
    length = header.length
    if source.size - position < length:
        _refuse(BatchFault.CUT_SHORT, f"{source.size - position} of {length} bytes")
    if crc32c(source.slice(position + CRC_START, length - CRC_START)) != header.crc:
        _refuse(BatchFault.BAD_CRC)


def split(buffer: Buffer, *, partial_tail: bool = False) -> Iterator[tuple[int, BatchHeader]]:
    """Yield position and header of each whole batch in the buffer; their CRCs are not checked.

    A batch that the end of the buffer cuts is an error, or ends the walk with `partial_tail`.
    """
    position = 0
    end = len(buffer)
    while position < end:
        if partial_tail and end - position < HEADER_BYTES:
            return
        header = read_header(buffer, position)
        if header.length > end - position:
            if partial_tail:
                return
            _refuse(BatchFault.CUT_SHORT, f"{end - position} of {header.length} bytes")
        yield position, header
        position += header.length


def prefix_for(base_offset: int, length: int, leader_epoch: int) -> bytes:
    """Return the first `PREFIX_BYTES` bytes of a batch in its new place; its CRC stays."""
    place = _PLACE.pack(base_offset, length, leader_epoch, MAGIC)
    return place + _CRC.pack(crc32c(place))


def stamp(
    batch: bytearray | memoryview, position: int = 0, *, base_offset: int, leader_epoch: int
) -> None:
    """Give the batch at `position` its place, in the buffer itself; its CRC stays."""
    (length,) = _LENGTH.unpack_from(batch, position + 8)
    prefix = prefix_for(base_offset, length, leader_epoch)
    batch[position : position + PREFIX_BYTES] = prefix


def append_time(batch: Buffer, now_ms: int) -> bytes:
    """Return the batch with `now_ms` as the time of all its records and a new CRC."""
    header = read_header(batch)
    verify(batch, 0, header)
    stored_bytes = header.length - HEADER_BYTES - header.padding
    timed = header._replace(
        attributes=header.attributes | APPEND_TIME_BIT,
        first_timestamp_ms=now_ms,
        max_timestamp_ms=now_ms,
    )
    return assemble(timed, pa.py_buffer(batch).slice(HEADER_BYTES, stored_bytes))


def assemble(header: BatchHeader, stored: bytes | pa.Buffer) -> bytes:
    """Join header and stored body; length, padding, magic and both CRCs are worked out here.

    Raises ValueError or BatchTooLarge for what `read_header` would refuse.
    """
    length, tail = _length_and_tail(header, len(stored))
    zeros = bytes(length - HEADER_BYTES - len(stored))
    crc = crc32c_extend(crc32c_extend(crc32c(tail), stored), zeros)
    prefix = prefix_for(header.base_offset, length, header.leader_epoch)
    return b"".join((prefix, _CRC.pack(crc), tail, stored, zeros))


def numbered(
    batch: bytes | memoryview, producer_id: int, producer_epoch: int, base_sequence: int
) -> bytes:
    """Return the batch with these numbers of its producer and a new CRC."""
    header = read_header(batch)._replace(
        producer_id=producer_id, producer_epoch=producer_epoch, base_sequence=base_sequence
    )
    stored_bytes = header.length - header.padding - HEADER_BYTES
    return assemble(header, pa.py_buffer(batch).slice(HEADER_BYTES, stored_bytes))


def number(
    batch: bytes | memoryview, producer_id: int, producer_epoch: int, base_sequence: int
) -> bytes | memoryview:
    """As `numbered`, in the buffer itself where `assemble_pieces` made it."""
    whole = batch.obj if isinstance(batch, memoryview) else None
    if not isinstance(whole, bytearray) or len(whole) != len(batch):
        return numbered(batch, producer_id, producer_epoch, base_sequence)
    header = read_header(batch)._replace(
        producer_id=producer_id, producer_epoch=producer_epoch, base_sequence=base_sequence
    )
    _, tail = _length_and_tail(header, header.length - header.padding - HEADER_BYTES)
    whole[_TAIL_AT:HEADER_BYTES] = tail
    whole[PREFIX_BYTES:_TAIL_AT] = _CRC.pack(crc32c(pa.py_buffer(whole).slice(_TAIL_AT)))
    return batch


def assemble_pieces(header: BatchHeader, pieces: Sequence[bytes | pa.Buffer]) -> memoryview:
    """As `assemble`, for a body in pieces that is not compressed: each is copied just once."""
    whole = bytearray().join((_BLANK, *pieces))
    body_bytes = len(whole) - HEADER_BYTES
    length, tail = _length_and_tail(header._replace(body_bytes=body_bytes), body_bytes)
    whole += bytes(length - len(whole))
    whole[_TAIL_AT:HEADER_BYTES] = tail
    crc = crc32c(pa.py_buffer(whole).slice(_TAIL_AT))
    whole[:_TAIL_AT] = prefix_for(header.base_offset, length, header.leader_epoch) + _CRC.pack(crc)
    return memoryview(whole).toreadonly()


def _length_and_tail(header: BatchHeader, stored_bytes: int) -> tuple[int, bytes]:
    """The length of a batch with so many bytes of body, and the part of its header after the CRC.

    ValueError or BatchTooLarge for what `read_header` would refuse.
    """
    padding = -stored_bytes % ALIGNMENT
    length = HEADER_BYTES + stored_bytes + padding
    problem = header_problem(header._replace(length=length, padding=padding))
    if problem is not None:
        raise ValueError(f"not a batch: {problem}")
    if length > BATCH_BYTES_MAX or header.body_bytes > body_bytes_max(header.attributes):
        raise BatchTooLarge(f"a batch of {length} bytes, its body {header.body_bytes}")
    # fmt: off
    tail = _TAIL.pack(
        header.attributes, header.body_kind, padding, header.last_offset_delta,
        header.base_sequence, header.first_timestamp_ms, header.max_timestamp_ms,
        header.producer_id, header.producer_epoch, 0, header.record_count, header.body_bytes, 0,
        header.delete_horizon_ms,
    )
    # fmt: on
    return length, tail


_HEADER: Final = Struct("<qIiIIIHBBiiqqqhHIIIq")
_PREFIX_BYTES: Final = Struct(f"{PREFIX_CRC_AT}s")
_PLACE: Final = Struct("<qIiI")  # Magic and the three reserved bytes after it are one word.
_LENGTH: Final = Struct("<I")
_CRC: Final = Struct("<I")
_TAIL: Final = Struct("<HBBiiqqqhHIIIq")
_TAIL_AT: Final = HEADER_BYTES - _TAIL.size
_BLANK: Final = bytes(HEADER_BYTES)


def _producer_problem(producer_id: int, producer_epoch: int, base_sequence: int) -> str | None:
    if producer_id == -1:
        if producer_epoch != -1 or base_sequence != -1:
            return f"epoch {producer_epoch} and sequence {base_sequence} without a producer"
    elif producer_id < -1 or producer_epoch < 0 or base_sequence < -1:
        return f"producer {producer_id} with epoch {producer_epoch}, sequence {base_sequence}"
    return None


def _refuse(fault: BatchFault, detail: str = "") -> NoReturn:
    raise CorruptBatch(fault, detail)
