"""Bodies: Arrow messages by other writers are read, those that lie are not."""

from __future__ import annotations

from struct import pack

import pyarrow as pa
import pytest

from fuzz.batches import (
    BLANK,
    Message,
    arrow_message,
    arrow_with_body_compression,
    attacks,
    laid_out,
    one_row,
    with_body,
)
from tailrace.errors import CorruptBatch
from tailrace.record.body import body_schema, decode, deltas_problem
from tailrace.record.header import COMPACTED_BIT, HEADERS_BIT
from tailrace.record.view import BatchView

ATTACKS = attacks()
NODES = [(1, 0)] * 3


def read(batch: bytes) -> None:
    view = BatchView(batch)
    view.verify()
    list(view.records())


@pytest.mark.parametrize("name", ATTACKS)
def test_a_body_that_lies_is_refused(name: str) -> None:
    batch, fault = ATTACKS[name]
    with pytest.raises(CorruptBatch) as caught:
        read(batch)
    assert caught.value.fault is fault


def test_arrow_would_have_fallen_for_the_hidden_bomb() -> None:
    """The check by hand is needed: Arrow decompresses such a message without asking."""
    message = pa.py_buffer(arrow_with_body_compression())
    schema = body_schema(headers=False, compacted=False)
    assert pa.ipc.read_record_batch(message, schema).nbytes > 1 << 20
    with pytest.raises(CorruptBatch):
        decode(message, record_count=1, headers=False)


@pytest.mark.parametrize("alignment", [8, 64])
def test_other_writers_may_align_to_64(alignment: int) -> None:
    places, body = laid_out(one_row(), alignment=alignment)
    message = arrow_message(Message(rows=1, nodes=NODES, buffers=places), body)
    (record,) = BatchView(with_body(message)).records()
    assert (record.key, record.value, record.timestamp_ms) == (b"", b"value", 0)


@pytest.mark.parametrize("rows", [1, 7, 8, 9, 16, 17])
def test_other_writers_may_write_bitmaps_without_nulls(rows: int) -> None:
    offsets = pack(f"<{rows + 1}i", *range(rows + 1))
    bitmap = (2**rows - 1).to_bytes((rows + 7) // 8, "little")
    parts = [bitmap, offsets, b"k" * rows, bitmap, offsets, b"v" * rows, bitmap, bytes(8 * rows)]
    places, body = laid_out(parts)
    message = Message(rows=rows, nodes=[(rows, 0)] * 3, buffers=places)
    header = BLANK._replace(record_count=rows, last_offset_delta=rows - 1)
    records = list(BatchView(with_body(arrow_message(message, body), header)).records())
    assert [(record.key, record.value) for record in records] == [(b"k", b"v")] * rows
    # One bit less, and the null count of 0 is a lie.
    parts[3] = (2 ** (rows - 1) - 1).to_bytes((rows + 7) // 8, "little")
    places, body = laid_out(parts)
    with pytest.raises(CorruptBatch):
        BatchView(with_body(arrow_message(message, body), header)).record_batch()


def test_no_rows_need_no_buffers() -> None:
    nodes = [(0, 0)] * 8
    message = Message(rows=0, nodes=nodes, buffers=[(0, 0)] * 19)
    header = BLANK._replace(record_count=0, attributes=HEADERS_BIT | COMPACTED_BIT)
    view = BatchView(with_body(arrow_message(message, b""), header))
    assert view.record_batch().num_rows == 0
    assert list(view.records()) == []


@pytest.mark.parametrize(
    ("deltas", "is_good"),
    [
        ([], True),
        ([0], True),
        ([9], True),
        ([10], False),
        ([-1], False),
        ([0, 3, 9], True),
        ([0, 3, 3], False),
        ([3, 0, 9], False),
    ],
)
def test_offset_deltas_rise_within_the_batch(deltas: list[int], *, is_good: bool) -> None:
    assert (deltas_problem(pa.array(deltas, pa.int32()), 9) is None) is is_good


def test_a_compacted_body_with_deltas_that_fall_is_refused() -> None:
    offsets = bytes(12)
    parts = [b"", offsets, b"", b"", offsets, b"", b"", bytes(16), b"", pack("<ii", 1, 0)]
    places, body = laid_out(parts)
    message = Message(rows=2, nodes=[(2, 0)] * 4, buffers=places)
    header = BLANK._replace(record_count=2, last_offset_delta=5, attributes=COMPACTED_BIT)
    with pytest.raises(CorruptBatch, match="do not rise"):
        BatchView(with_body(arrow_message(message, body), header)).record_batch()
