from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.cli.formatting import (
    SHOWN_CHARACTERS,
    counted,
    data,
    iso_time,
    number,
    safe,
    size,
)


@pytest.mark.parametrize(
    ("timestamp_ms", "text"),
    [
        (0, "1970-01-01T00:00:00.000Z"),
        (1_700_000_000_123, "2023-11-14T22:13:20.123Z"),
        (-1, "-"),
        (2**62, f"{2**62} ms"),
    ],
)
def test_times_are_iso_in_utc(timestamp_ms: int, text: str) -> None:
    assert iso_time(timestamp_ms) == text


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (-1, "-"),
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (5 * 1024**2, "5.0 MiB"),
        (3 * 1024**3 // 2, "1.5 GiB"),
        (9000 * 1024**4, "9000.0 TiB"),
    ],
)
def test_sizes_have_units(size_bytes: int, text: str) -> None:
    assert size(size_bytes) == text


def test_numbers_are_grouped() -> None:
    assert number(1234567) == "1,234,567"
    assert number(-1) == "-"
    assert counted(1, "record") == "1 record"
    assert counted(2000, "record") == "2,000 records"


def test_bytes_are_text_or_hexadecimal() -> None:
    assert data(None) == "null"
    assert data(b"") == ""
    assert data("größer".encode()) == "größer"
    assert data(b"\xff\x00") == "0xff00"
    assert data(b"line\n") == "0x6c696e650a"


def test_long_bytes_are_cut() -> None:
    assert data(b"a" * 1000) == "a" * SHOWN_CHARACTERS + "… (1000 bytes)"
    assert data(b"\xff" * 1000).startswith("0xffff")
    assert data(b"a" * 1000, full=True) == "a" * 1000
    assert data("ä".encode() * 500) == "ä" * SHOWN_CHARACTERS + "… (1000 bytes)"
    # A character that the cut would split is no reason to take text for noise.
    assert data(b"a" + "€".encode() * 500).startswith("a€€€")


@given(st.one_of(st.binary(max_size=300), st.text(max_size=200).map(str.encode)), st.booleans())
def test_nothing_that_moves_the_cursor_gets_through(content: bytes, full: bool) -> None:
    assert data(content, full=full).isprintable()


@given(st.text())
def test_text_is_made_safe(text: str) -> None:
    assert safe(text).isprintable()


def test_safe_text_stays() -> None:
    assert safe("orders-0") == "orders-0"
    assert safe("a\x1b[2Jb\n") == r"a\x1b[2Jb\n"
