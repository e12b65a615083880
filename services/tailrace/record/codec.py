"""Checksums and compression of record batches: the two things that touch every byte.

Knows nothing of headers or records. Invariant: `decompress` gives back exactly `body_bytes` bytes
or raises `CorruptBatch`; whatever the input says, it never produces or allocates more than
`body_bytes` and a constant (`DECOMPRESSOR_BYTES_MAX`).
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, TypeAlias, cast

import google_crc32c
import pyarrow as pa

from tailrace.errors import BatchFault, CorruptBatch

# An lz4 frame announces blocks of at most 4 MiB; its decompressor holds one coming in, one going
# out, 128 KiB of history, and Arrow 1 MiB to hand on. zstd decompresses in one call into the body.
DECOMPRESSOR_BYTES_MAX: Final = 10 << 20

Bytes: TypeAlias = bytes | pa.Buffer


class Compression(IntEnum):
    """How a body is compressed; the numbers are those of the attribute bits."""

    NONE = 0
    LZ4 = 1
    ZSTD = 2


def crc32c(data: Bytes) -> int:
    """Return the CRC-32C (Castagnoli) of the bytes."""
    return cast("int", google_crc32c.value(data))


def crc32c_extend(crc: int, data: Bytes) -> int:
    """Return the CRC-32C of what gave `crc`, followed by `data`."""
    return cast("int", google_crc32c.extend(crc, data))


def compress(codec: Compression, body: Bytes) -> Bytes:
    """Compress a whole body into one frame; with `NONE` it is handed back as it is."""
    if codec is Compression.NONE:
        return body
    return (_LZ4 if codec is Compression.LZ4 else _ZSTD).compress(body)


def decompress(codec: Compression, stored: pa.Buffer, body_bytes: int) -> pa.Buffer:
    """Undo `compress`; the caller has checked `body_bytes` against its limit.

    Raises CorruptBatch when the stored bytes are not one whole frame of exactly `body_bytes`.
    """
    try:
        if codec is Compression.NONE:
            body = stored
        elif codec is Compression.LZ4:
            body = _decompress_lz4(stored, body_bytes)
        else:
            # Arrow refuses a zstd frame whose content is longer or shorter than the size asked for.
            body = _ZSTD.decompress(stored, body_bytes)
    except (OSError, pa.ArrowException) as error:
        raise CorruptBatch(BatchFault.BAD_COMPRESSION, f"{codec.name}: {error}") from error
    if body.size != body_bytes:
        detail = f"{codec.name}: {body.size} bytes instead of {body_bytes}"
        raise CorruptBatch(BatchFault.BAD_COMPRESSION, detail)
    return body


def frame_problem(codec: Compression, stored: bytes, body_bytes: int) -> str | None:
    """What is wrong with the beginning of a compressed body, as far as it tells; or None."""
    if codec is Compression.LZ4:
        return None if stored.startswith(_LZ4_MAGIC) else "not an lz4 frame"
    if codec is not Compression.ZSTD:
        return None
    if not stored.startswith(_ZSTD_MAGIC) or len(stored) <= len(_ZSTD_MAGIC):
        return "not a zstd frame"
    said = _zstd_content_bytes(stored)
    if said is not None and said != body_bytes:
        return f"a zstd frame of {said} bytes instead of {body_bytes}"
    return None


FRAME_HEAD_BYTES: Final = 18
"""The longest beginning that `frame_problem` looks at."""
_LZ4_MAGIC: Final = b"\x04\x22\x4d\x18"
_ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"
_ZSTD_SIZES: Final = (0, 2, 4, 8)
_ZSTD_DICTIONARY_BYTES: Final = (0, 1, 2, 4)
_ZSTD_SIZE_BIAS: Final = 256


def _zstd_content_bytes(stored: bytes) -> int | None:
    """What the header of a zstd frame says of its content (RFC 8878, 3.1.1.1); None: nothing."""
    descriptor = stored[len(_ZSTD_MAGIC)]
    is_single = bool(descriptor & 0x20)
    size = _ZSTD_SIZES[descriptor >> 6] or int(is_single)
    at = len(_ZSTD_MAGIC) + 1 + (not is_single) + _ZSTD_DICTIONARY_BYTES[descriptor & 3]
    if not size or len(stored) < at + size:
        return None
    said = int.from_bytes(stored[at : at + size], "little")
    return said + _ZSTD_SIZE_BIAS if size == _ZSTD_SIZES[1] else said


_LZ4: Final = pa.Codec("lz4")
_ZSTD: Final = pa.Codec("zstd")


def _decompress_lz4(stored: pa.Buffer, body_bytes: int) -> pa.Buffer:
    """Decompress as a stream: Arrow's one-call lz4 leaves memory unset behind a short frame."""
    with pa.CompressedInputStream(pa.BufferReader(stored), "lz4") as stream:
        body = stream.read_buffer(body_bytes)
        if stream.read(1):
            raise CorruptBatch(BatchFault.BAD_COMPRESSION, f"LZ4: more than {body_bytes} bytes")
    return body
