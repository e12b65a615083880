"""How values are written for people: times, sizes, bytes that may be text or anything.

Pure. Invariant: what comes out can be printed on a terminal, whatever came in: no control
character, and so no escape sequence, gets through.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

SHOWN_CHARACTERS: Final = 40
"""Longer keys and values are cut to this, unless all of them is asked for."""

NOTHING: Final = "-"

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_UNITS: Final = ("KiB", "MiB", "GiB", "TiB")


def iso_time(timestamp_ms: int) -> str:
    """A time in UTC as ISO 8601, to the millisecond; one that no calendar has as its number."""
    if timestamp_ms < 0:
        return NOTHING
    try:
        moment = _EPOCH + timedelta(milliseconds=timestamp_ms)
    except OverflowError:
        return f"{timestamp_ms} ms"
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def size(size_bytes: int) -> str:
    """A number of bytes in the unit that suits it."""
    if size_bytes < 0:
        return NOTHING
    if size_bytes < 1024:
        return f"{size_bytes} B"
    value = float(size_bytes)
    for unit in _UNITS:
        value /= 1024
        if value < 1024 or unit == _UNITS[-1]:
            break
    return f"{value:.1f} {unit}"


def number(value: int) -> str:
    """A whole number with thin groups of three; -1 means that there is none."""
    return NOTHING if value == -1 else f"{value:,}"


def data(content: bytes | None, *, full: bool = False) -> str:
    """Bytes as text when they are printable, else as hexadecimal; None is a null."""
    if content is None:
        return "null"
    # More bytes than this are never shown, so they need not be decoded.
    part = content if full else content[: SHOWN_CHARACTERS * 4]
    text = _printable(part) if full or len(part) == len(content) else _printable_start(part)
    if text is None:
        text = f"0x{part.hex()}"
    if full or (len(text) <= SHOWN_CHARACTERS and len(part) == len(content)):
        return text
    return f"{text[:SHOWN_CHARACTERS]}… ({len(content)} bytes)"


def safe(text: str) -> str:
    """Text with every character that is not printable written out."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)


def counted(count: int, what: str) -> str:
    """A number and the noun for it, in the plural where it should be."""
    return f"{count:,} {what}{'s' if count != 1 else ''}"


def _printable(content: bytes) -> str | None:
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        return None
    return text if text.isprintable() else None


def _printable_start(content: bytes) -> str | None:
    """As `_printable`, of bytes that may have been cut within a character."""
    for missing in range(4):
        text = _printable(content[: len(content) - missing])
        if text is not None:
            return text
    return None
