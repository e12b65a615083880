"""Checksums against the published vectors, and decompression that cannot be talked into more."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.errors import BatchFault, CorruptBatch
from tailrace.record.codec import Compression, compress, crc32c, crc32c_extend, decompress

REAL = [Compression.LZ4, Compression.ZSTD]


def frame_of(codec: Compression, data: bytes) -> pa.Buffer:
    return pa.py_buffer(bytes(memoryview(compress(codec, data))))


# Appendix B.4 of RFC 3720, and the check value of the CRC catalogue.
@pytest.mark.parametrize(
    ("data", "crc"),
    [
        (b"", 0),
        (b"123456789", 0xE3069283),
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
    ],
)
def test_crc32c_is_castagnoli(data: bytes, crc: int) -> None:
    assert crc32c(data) == crc
    assert crc32c(pa.py_buffer(data)) == crc


@given(st.binary(), st.binary())
def test_crc32c_extends(head: bytes, tail: bytes) -> None:
    assert crc32c_extend(crc32c(head), tail) == crc32c(head + tail)


@pytest.mark.parametrize("codec", Compression)
@given(data=st.binary(max_size=4000))
def test_decompress_undoes_compress(codec: Compression, data: bytes) -> None:
    assert decompress(codec, frame_of(codec, data), len(data)).to_pybytes() == data


@pytest.mark.parametrize("codec", Compression)
@given(data=st.binary(max_size=400), wrong=st.integers(-100, 100).filter(bool))
def test_another_size_than_promised_is_refused(codec: Compression, data: bytes, wrong: int) -> None:
    promised = max(0, len(data) + wrong)
    if promised != len(data):
        with pytest.raises(CorruptBatch) as caught:
            decompress(codec, frame_of(codec, data), promised)
        assert caught.value.fault is BatchFault.BAD_COMPRESSION


@pytest.mark.parametrize("codec", REAL)
@given(garbage=st.binary(min_size=1, max_size=200))
@settings(max_examples=300)
def test_garbage_is_refused(codec: Compression, garbage: bytes) -> None:
    with pytest.raises(CorruptBatch):
        decompress(codec, pa.py_buffer(garbage), 64)


@pytest.mark.parametrize("codec", REAL)
def test_a_frame_cut_at_any_byte_is_refused(codec: Compression) -> None:
    frame = frame_of(codec, b"some text, some text, more text " * 8)
    for end in range(frame.size):
        with pytest.raises(CorruptBatch):
            decompress(codec, frame.slice(0, end), 256)


@pytest.mark.parametrize("codec", REAL)
def test_a_bomb_allocates_no_more_than_promised(codec: Compression) -> None:
    bomb = frame_of(codec, bytes(64 << 20))
    pool = pa.proxy_memory_pool(pa.system_memory_pool())
    before = pool.bytes_allocated()
    default = pa.default_memory_pool()
    pa.set_memory_pool(pool)
    try:
        with pytest.raises(CorruptBatch):
            decompress(codec, bomb, 4096)
        peak = pool.max_memory() or 0
    finally:
        pa.set_memory_pool(default)
    assert peak - before < 1 << 20
