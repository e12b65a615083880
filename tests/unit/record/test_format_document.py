"""The example of docs/record-format.md, read by a reader that knows that page and nothing else.

It uses the standard library alone: if this reader works, one in another language can be written.
"""

from __future__ import annotations

import re
from pathlib import Path
from struct import unpack_from

import pytest

from tailrace.record.build import BatchBuilder
from tailrace.record.header import BATCH_BYTES_MAX, BODY_BYTES_MAX, PRODUCED_BODY_BYTES_MAX
from tailrace.record.view import BatchView, Record

DOCUMENT = (Path(__file__).parents[3] / "docs" / "record-format.md").read_text(encoding="utf-8")
EXAMPLE = bytes.fromhex(
    "".join(re.findall(r"^[0-9a-f]{4}: ([0-9a-f ]+)$", DOCUMENT, flags=re.MULTILINE))
)
RECORDS = [
    (42, 1_700_000_000_000, b"k1", b"hello"),
    (43, 1_700_000_000_001, b"k2", None),
]


def crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def read(batch: bytes) -> list[tuple[int, int, bytes | None, bytes | None]]:
    """Read an uncompressed batch without headers."""
    base_offset, length, _, magic, prefix_crc, crc = unpack_from("<qIiB3xII", batch, 0)
    attributes, body_kind, padding, _, _ = unpack_from("<HBBii", batch, 28)
    record_count, body_bytes = unpack_from("<II", batch, 68)
    assert (magic, attributes, body_kind, padding) == (1, 0, 1, 0)
    assert length == len(batch) == 88 + body_bytes
    assert prefix_crc == crc32c(batch[:20])
    assert crc == crc32c(batch[28:])

    continuation, metadata_bytes = unpack_from("<Ii", batch, 88)
    assert continuation == 0xFFFFFFFF
    metadata = batch[96 : 96 + metadata_bytes]
    body = batch[96 + metadata_bytes :]

    def field(table: int, index: int) -> int:
        vtable = table - unpack_from("<i", metadata, table)[0]
        return table + int(unpack_from("<H", metadata, vtable + 4 + 2 * index)[0])

    def follow(at: int) -> int:
        return at + int(unpack_from("<I", metadata, at)[0])

    message = follow(0)
    assert unpack_from("<h", metadata, field(message, 0)) == (4,)
    assert unpack_from("<B", metadata, field(message, 1)) == (3,)
    record_batch = follow(field(message, 2))
    assert unpack_from("<q", metadata, field(message, 3)) == (len(body),)
    assert unpack_from("<q", metadata, field(record_batch, 0)) == (record_count,)
    nodes, buffers = follow(field(record_batch, 1)), follow(field(record_batch, 2))
    assert unpack_from("<I", metadata, nodes) == (3,)
    assert unpack_from("<I", metadata, buffers) == (8,)

    def buffer(index: int) -> bytes:
        offset, size = unpack_from("<qq", metadata, buffers + 4 + 16 * index)
        return body[offset : offset + size]

    def binary(node: int, first_buffer: int) -> list[bytes | None]:
        rows, null_count = unpack_from("<qq", metadata, nodes + 4 + 16 * node)
        validity, data = buffer(first_buffer), buffer(first_buffer + 2)
        ends = unpack_from(f"<{rows + 1}i", buffer(first_buffer + 1))
        return [
            None
            if null_count and not validity[row // 8] >> row % 8 & 1
            else data[ends[row] : ends[row + 1]]
            for row in range(rows)
        ]

    offsets = range(base_offset, base_offset + record_count)
    timestamps = unpack_from(f"<{record_count}q", buffer(7))
    return list(zip(offsets, timestamps, binary(0, 0), binary(1, 3), strict=True))


def test_the_example_reads_as_the_page_says() -> None:
    assert read(EXAMPLE) == RECORDS


def test_tailrace_reads_the_example() -> None:
    view = BatchView(EXAMPLE)
    view.verify()
    assert list(view.records()) == [Record(*record, ()) for record in RECORDS]
    header = view.header
    assert (header.leader_epoch, header.producer_id, header.producer_epoch) == (7, 9, 0)
    assert (header.base_sequence, header.delete_horizon_ms) == (5, -1)


def test_what_tailrace_writes_the_reader_of_the_page_reads() -> None:
    builder = BatchBuilder()
    for _, timestamp_ms, key, value in RECORDS * 9:
        builder.append(value, key, timestamp_ms)
    batch = builder.build(base_offset=7)
    assert read(batch) == [record[:4] for record in BatchView(batch).records()]


@pytest.mark.parametrize(
    ("at", "text"), re.findall(r"^\| 0x([0-9a-f]+) \| (`[^|]+) \|", DOCUMENT, flags=re.MULTILINE)
)
def test_each_row_of_the_explanation_is_in_the_example(at: str, text: str) -> None:
    """The bytes before each "…" stand where the row says, one after the other where it has none."""
    position = int(at, 16)
    shown = re.findall(r"`([0-9a-f ]+)(…?)`", text)
    data = bytes.fromhex(shown[0][0])
    assert EXAMPLE[position : position + len(data)] == data
    if all(not dots for _, dots in shown):
        joined = bytes.fromhex("".join(part for part, _ in shown))
        assert EXAMPLE[position : position + len(joined)] == joined


def test_the_limits_on_the_page_are_those_of_the_code() -> None:
    assert (BATCH_BYTES_MAX, BODY_BYTES_MAX) == (88 + (64 << 20), 64 << 20)
    assert PRODUCED_BODY_BYTES_MAX == 48 << 20
    assert "at most 48 MiB (64 MiB in a compacted batch)" in DOCUMENT
    assert "at most 88 + 64 MiB" in DOCUMENT
