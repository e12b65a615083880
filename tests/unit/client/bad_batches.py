"""Stored batches that no reader can decode, although every checksum is right."""

from __future__ import annotations

from typing import Final

from tailrace.record.build import BatchBuilder
from tailrace.record.header import HEADER_BYTES, assemble, read_header

JUNK: Final = b"\xa5junk\x5a\x00\xff"


def batch(values: list[bytes], *, base_offset: int = 0, leader_epoch: int = 0) -> bytes:
    """A sound batch of these values."""
    builder = BatchBuilder()
    for value in values:
        builder.append(value, timestamp_ms=1_000)
    return bytes(builder.build(base_offset=base_offset, leader_epoch=leader_epoch))


def junk_body(sound: bytes) -> bytes:
    """The batch with the same header, other bytes in its body, and checksums that match."""
    header = read_header(sound)
    size = header.length - HEADER_BYTES - header.padding
    return bytes(assemble(header, (JUNK * (size // len(JUNK) + 1))[:size]))


def late_times(sound: bytes, timestamp_ms: int) -> bytes:
    """The batch with a body in which the last record has this time; the header does not say so."""
    header = read_header(sound)
    size = header.length - HEADER_BYTES - header.padding
    body = bytearray(sound[HEADER_BYTES : HEADER_BYTES + size])
    # The timestamps are the last column.
    body[-8:] = timestamp_ms.to_bytes(8, "little", signed=True)
    return bytes(assemble(header, bytes(body)))
