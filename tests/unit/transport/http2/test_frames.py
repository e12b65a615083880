"""The bytes of HTTP/2 and gRPC: what is written can be read, by us and by `hpack`."""

from __future__ import annotations

from typing import Any

import hpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.transport.http2 import frames as h2
from tailrace.transport.http2.frames import BadFrame, HeaderDecoder

NAMES = st.text("abcdefghijklmnopqrstuvwxyz-", min_size=1, max_size=20)
VALUES = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), max_size=300)
FIELDS = st.dictionaries(NAMES, VALUES, max_size=8)


@given(
    st.integers(0, h2.FRAME_BYTES_MAX),
    st.integers(0, 255),
    st.integers(0, 255),
    st.integers(0, h2.WINDOW_MAX),
)
def test_heads_of_frames(size: int, kind: int, flags: int, stream: int) -> None:
    head = h2.head(size, kind, flags, stream)
    assert len(head) == h2.FRAME_HEAD.size == 9
    assert int.from_bytes(head[:3], "big") == size
    assert (head[3], head[4], int.from_bytes(head[5:], "big")) == (kind, flags, stream)


@given(st.lists(st.tuples(st.integers(0, 2**16 - 1), st.integers(0, 2**32 - 1)), max_size=10))
def test_settings_come_back(values: list[tuple[int, int]]) -> None:
    written = h2.settings(values)
    assert h2.read_settings(written[h2.FRAME_HEAD.size :]) == values
    if values:
        with pytest.raises(BadFrame) as caught:
            h2.read_settings(written[h2.FRAME_HEAD.size + 1 :])
        assert caught.value.code == h2.FRAME_SIZE_ERROR


@given(st.integers(0, h2.WINDOW_MAX), st.integers(0, h2.WINDOW_MAX))
def test_small_frames(stream: int, number: int) -> None:
    for written, kind in (
        (h2.window_update(stream, number), h2.WINDOW_UPDATE),
        (h2.reset(stream, number), h2.RST_STREAM),
    ):
        assert written == h2.frame(kind, 0, stream, number.to_bytes(4, "big"))
        assert h2.read_uint32(written[9:]) == number
    leaving = h2.go_away(stream, number, "why")
    assert h2.read_uint32(leaving, 9) == stream
    assert h2.read_uint32(leaving, 13) == number
    assert leaving.endswith(b"why")


def test_a_payload_that_is_too_short_is_refused() -> None:
    for size, at in ((0, 0), (3, 0), (7, 4)):
        with pytest.raises(BadFrame):
            h2.read_uint32(bytes(size), at)


# --------------------------------------------------------------------------------------- headers


@given(FIELDS)
def test_others_read_what_we_write(fields: dict[str, str]) -> None:
    block = h2.header_block(fields.items())
    read = hpack.Decoder(max_header_list_size=1 << 20).decode(block)
    assert {str(name): str(value) for name, value in read} == fields
    assert HeaderDecoder().decode(block) == fields


@given(st.lists(st.tuples(FIELDS, st.booleans(), st.sampled_from(["hpack", "ours"])), max_size=8))
def test_we_read_what_others_write_block_after_block(
    blocks: list[tuple[dict[str, str], bool, str]],
) -> None:
    """Blocks of others fill tables, to which later blocks refer; ours in between change nothing."""
    encoder, decoder = hpack.Encoder(), HeaderDecoder()
    for fields, huffman, whose in blocks:
        if whose == "hpack":
            block = encoder.encode(list(fields.items()), huffman=huffman)
        else:
            block = h2.header_block(fields.items())
        assert decoder.decode(block) == fields


@given(st.lists(st.tuples(FIELDS, st.sampled_from([0, 64, 1_000, 4_096])), max_size=8))
def test_tables_change_their_size(blocks: list[tuple[dict[str, str], int]]) -> None:
    """As those of gRPC do when they hear that we keep none."""
    encoder, decoder = hpack.Encoder(), HeaderDecoder()
    for fields, size in blocks:
        encoder.header_table_size = size
        assert decoder.decode(encoder.encode(list(fields.items()))) == fields


def test_fields_of_all_lengths_around_the_marks_of_the_code() -> None:
    for size in (0, 1, 126, 127, 128, 254, 255, 256, 16_510, 16_511, 16_512, 60_000):
        block = h2.header_block([("x", "y" * size)])
        assert HeaderDecoder().decode(block) == {"x": "y" * size}
        assert [len(value) for _, value in hpack.Decoder().decode(block)] == [size]


def test_of_a_field_that_stands_twice_the_last_is_taken() -> None:
    fields = [("x", "first"), ("x", "last")]
    assert HeaderDecoder().decode(h2.header_block(fields)) == {"x": "last"}
    assert HeaderDecoder().decode(hpack.Encoder().encode(fields)) == {"x": "last"}


def test_bytes_that_are_no_text_are_kept() -> None:
    block = hpack.Encoder().encode([(b"x", b"\xff\xfe")], huffman=False)
    assert HeaderDecoder().decode(block) == {"x": "\xff\xfe"}


def test_a_table_larger_than_allowed_and_a_list_without_an_end_are_refused() -> None:
    with pytest.raises(BadFrame):
        HeaderDecoder().decode(b"\x3f\xff\xff\xff\x0f")
    encoder, decoder = hpack.Encoder(), HeaderDecoder()
    decoder.decode(encoder.encode([("bomb", "x" * 3_000)], huffman=False))
    # One byte for each, of three thousand.
    with pytest.raises(BadFrame):
        decoder.decode(encoder.encode([("bomb", "x" * 3_000)] * 1_000))


@given(st.binary(max_size=200))
def test_any_bytes_are_headers_or_are_refused(block: bytes) -> None:
    try:
        fields = HeaderDecoder().decode(block)
    except BadFrame:
        return
    assert all(isinstance(each, str) for pair in fields.items() for each in pair)
    # Where both our quick way and `hpack` read it, they read the same.
    assert {
        name.decode("latin-1"): value.decode("latin-1")
        for name, value in hpack.Decoder().decode(block, raw=True)
    } == fields


# ------------------------------------------------------------------------------------------ gRPC


@given(st.integers(1, 10**10))
def test_timeouts_come_back(ms: int) -> None:
    text = h2.write_timeout(ms)
    assert len(text) <= h2.TIME_DIGITS_MAX + 1
    read = h2.read_timeout_ms(text)
    assert read is not None
    assert ms - 1_000 < read <= ms
    if ms < 10**h2.TIME_DIGITS_MAX:
        assert read == ms


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("1H", 3_600_000),
        ("2M", 120_000),
        ("3S", 3_000),
        ("4m", 4),
        ("5000u", 5),
        ("6000000n", 6),
        ("0n", 0),
        ("99999999H", 99_999_999 * 3_600_000),
    ],
)
def test_timeouts_in_all_units(text: str, ms: float) -> None:
    assert h2.read_timeout_ms(text) == pytest.approx(ms)


@pytest.mark.parametrize("text", ["", "m", "1", "1s", "-1m", "1.5S", "123456789m", "\xb2m", "1 m"])
def test_what_is_no_timeout(text: str) -> None:
    assert h2.read_timeout_ms(text) is None


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=100))
def test_details_come_back(text: str) -> None:
    written = h2.write_detail(text)
    assert all(" " <= each <= "~" for each in written)
    assert h2.read_detail(written) == text


@pytest.mark.parametrize(
    ("text", "written"),
    [("plain: no such luck", "plain: no such luck"), ("100%", "100%25"), ("é\n", "%C3%A9%0A")],
)
def test_details_are_written_as_grpc_says(text: str, written: str) -> None:
    assert h2.write_detail(text) == written


@pytest.mark.parametrize("text", ["%", "%zz", "100% sure", "%ff"])
def test_a_detail_that_is_written_wrongly_can_be_read(text: str) -> None:
    assert isinstance(h2.read_detail(text), str)


def test_a_bad_frame_says_what_the_other_side_is_told() -> None:
    codes: dict[Any, int] = {BadFrame("x").code: h2.PROTOCOL_ERROR}
    codes[BadFrame("x", h2.CALM_DOWN).code] = h2.CALM_DOWN
    assert all(key == value for key, value in codes.items())
