"""The frames of HTTP/2 as gRPC uses them: how they are written, and what stands in a header block.

Pure: bytes in, bytes out. What we send uses no compression of headers, so that a block is made once
and sent again and again; what others send may, and is read by `hpack`. A block that uses none
either (those of our own clients and servers) is taken apart here, which is many times faster, and
leaves the tables of `hpack` as they are, as it would itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from struct import Struct
from typing import Final
from urllib.parse import quote_from_bytes, unquote

import hpack

from tailrace.transport.http2.headers import Headers

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
FRAME_HEAD: Final = Struct(">BHBBI")
MESSAGE_HEAD: Final = Struct(">BI")
"""What stands before each message of gRPC: whether it is compressed, and its length."""
MESSAGE_HEAD_BYTES: Final = MESSAGE_HEAD.size

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE = range(9)
CONTINUATION: Final = 9

END_STREAM: Final = 0x1
ACK: Final = 0x1
END_HEADERS: Final = 0x4
PADDED: Final = 0x8
HAS_PRIORITY: Final = 0x20

SETTING_HEADER_TABLE_BYTES: Final = 1
SETTING_PUSH: Final = 2
SETTING_STREAMS_MAX: Final = 3
SETTING_WINDOW: Final = 4
SETTING_FRAME_BYTES_MAX: Final = 5
SETTING_HEADER_LIST_BYTES_MAX: Final = 6

NO_ERROR, PROTOCOL_ERROR, INTERNAL_ERROR, FLOW_CONTROL_ERROR = 0, 1, 2, 3
STREAM_CLOSED, FRAME_SIZE_ERROR, REFUSED_STREAM, CANCEL, COMPRESSION_ERROR = 5, 6, 7, 8, 9
CALM_DOWN: Final = 11

WINDOW_DEFAULT: Final = 65_535
WINDOW_MAX: Final = 2**31 - 1
FRAME_BYTES_DEFAULT: Final = 16_384
FRAME_BYTES_MAX: Final = 2**24 - 1
"""That can be written at all; what we take is less."""
TABLE_BYTES_DEFAULT: Final = 4_096
HEADER_LIST_BYTES_MAX: Final = 64 << 10
BLOCKS_KNOWN_MAX: Final = 1_024
KNOWN_BLOCK_BYTES_MAX: Final = 1_024

_SETTING: Final = Struct(">HI")
_UINT32: Final = Struct(">I")
_LITERAL: Final = 0x00
_MULTIPLE: Final = 0x7F
_TABLE_SIZE: Final = 0x20
TABLE_SHIFT_MAX: Final = 28
_TIME_UNITS_MS: Final = {"H": 3_600_000, "M": 60_000, "S": 1_000, "m": 1, "u": 1e-3, "n": 1e-6}
TIME_DIGITS_MAX: Final = 8


class BadFrame(Exception):
    """What the other side sent is not HTTP/2; `code` is what it is told."""

    def __init__(self, message: str, code: int = PROTOCOL_ERROR) -> None:
        super().__init__(message)
        self.code = code


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return head(len(payload), kind, flags, stream) + payload


def head(size: int, kind: int, flags: int, stream: int) -> bytes:
    return FRAME_HEAD.pack(size >> 16, size & 0xFFFF, kind, flags, stream)


def settings(values: Iterable[tuple[int, int]]) -> bytes:
    return frame(SETTINGS, 0, 0, b"".join(_SETTING.pack(*each) for each in values))


def read_settings(payload: bytes) -> list[tuple[int, int]]:
    if len(payload) % _SETTING.size:
        raise BadFrame("settings of a strange length", FRAME_SIZE_ERROR)
    return list(_SETTING.iter_unpack(payload))


def window_update(stream: int, size: int) -> bytes:
    return frame(WINDOW_UPDATE, 0, stream, _UINT32.pack(size))


def reset(stream: int, code: int) -> bytes:
    return frame(RST_STREAM, 0, stream, _UINT32.pack(code))


def go_away(last_stream: int, code: int, why: str = "") -> bytes:
    return frame(GOAWAY, 0, 0, _UINT32.pack(last_stream) + _UINT32.pack(code) + why.encode())


def read_only_uint32(payload: bytes) -> int:
    """Of a payload that is nothing else."""
    if len(payload) != _UINT32.size:
        raise BadFrame("a frame of a strange length", FRAME_SIZE_ERROR)
    return read_uint32(payload)


def read_uint32(payload: bytes, at: int = 0) -> int:
    """Of a payload that has at least so much."""
    if len(payload) < at + _UINT32.size:
        raise BadFrame("a frame that is too short", FRAME_SIZE_ERROR)
    value: int = _UINT32.unpack_from(payload, at)[0]
    return value


# --------------------------------------------------------------------------------------- headers


def header_block(fields: Iterable[tuple[str, str]]) -> bytes:
    """Header fields, written out in full."""
    block = bytearray()
    for name, value in fields:
        block.append(_LITERAL)
        for text in (name.encode(), value.encode()):
            block += _length(len(text)) + text
    return bytes(block)


def _length(size: int) -> bytes:
    if size < _MULTIPLE:
        return bytes((size,))
    size -= _MULTIPLE
    digits = bytearray((_MULTIPLE,))
    while size > 0x7F:
        digits.append(size & 0x7F | 0x80)
        size >>= 7
    digits.append(size)
    return bytes(digits)


class HeaderDecoder:
    """Reads the header blocks of one connection, in their order."""

    def __init__(self) -> None:
        self._tables: hpack.Decoder | None = None
        # How large a table the other side may ask for; less once it knows what we keep.
        self.table_bytes_max = TABLE_BYTES_DEFAULT

    def decode(self, block: bytes) -> Headers:
        """The fields, which may be malformed. Not to be changed."""
        plain = _plain(block) if len(block) <= KNOWN_BLOCK_BYTES_MAX else None
        if plain is not None:
            return plain
        if _table_bytes(block) > self.table_bytes_max:
            raise BadFrame("a table that is larger than allowed", COMPRESSION_ERROR)
        if self._tables is None:
            self._tables = hpack.Decoder(max_header_list_size=HEADER_LIST_BYTES_MAX)
        try:
            fields = self._tables.decode(block, raw=True)
        except hpack.HPACKError as error:
            raise BadFrame(f"headers that cannot be read: {error}", COMPRESSION_ERROR) from error
        return Headers((_text(name), _text(value)) for name, value in fields)


@lru_cache(BLOCKS_KNOWN_MAX)
def _plain(block: bytes) -> Headers | None:
    """A block whose fields are all written out in full; None for others. Not to be changed."""
    fields: list[tuple[str, str]] = []
    at, end = 0, len(block)
    while at < end:
        if block[at] != _LITERAL:
            return None
        at += 1
        texts = []
        for _ in range(2):
            if at >= end or block[at] >= _MULTIPLE:
                # Long, or in Huffman's code.
                return None
            start = at + 1
            at = start + block[at]
            if at > end:
                return None
            texts.append(_text(block[start:at]))
        fields.append((texts[0], texts[1]))
    return Headers(fields)


def _table_bytes(block: bytes) -> int:
    """The largest table that the beginning of a block asks for; 0 when it asks for none."""
    most, at = 0, 0
    while at < len(block) and block[at] & 0xE0 == _TABLE_SIZE:
        size = block[at] & 0x1F
        at += 1
        if size == 0x1F:
            shift = 0
            while at < len(block) and shift < TABLE_SHIFT_MAX:
                size += (block[at] & 0x7F) << shift
                shift += 7
                at += 1
                if block[at - 1] < 0x80:
                    break
        most = max(most, size)
    return most


def _text(data: bytes) -> str:
    return data.decode("latin-1")


# ------------------------------------------------------------------------------------------ gRPC


def read_timeout_ms(text: str) -> float | None:
    """`100m` and the like, as milliseconds; None for what is no time."""
    digits, unit = text[:-1], text[-1:]
    if not (digits.isascii() and digits.isdigit()) or len(digits) > TIME_DIGITS_MAX:
        return None
    factor = _TIME_UNITS_MS.get(unit)
    return None if factor is None else int(digits) * factor


def write_timeout(ms: int) -> str:
    return f"{ms}m" if ms < 10**TIME_DIGITS_MAX else f"{ms // 1_000}S"


def write_detail(text: str) -> str:
    """A message of a status, as headers may carry it."""
    return quote_from_bytes(text.encode(), safe=" !\"#$&'()*+,-./:;<=>?@[\\]^_`{|}~")


def read_detail(text: str) -> str:
    return unquote(text)
