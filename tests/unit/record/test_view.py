"""Views: lazy, without copies where there need be none, within the caller's limit."""

from __future__ import annotations

from itertools import islice
from typing import Any

import pyarrow as pa
import pytest

from fuzz.batches import resealed, samples
from tailrace.errors import BatchFault, CorruptBatch
from tailrace.record.build import BatchBuilder, batch_from_columns, compacted_batch
from tailrace.record.codec import Compression
from tailrace.record.header import HEADER_BYTES, append_time
from tailrace.record.view import RECORDS_AT_ONCE, BatchView

SAMPLES = samples()


def buffers_of(columns: pa.RecordBatch) -> list[pa.Buffer]:
    found: list[pa.Buffer] = []
    for column in columns.columns:
        array: pa.Array[Any] = column
        found += [buffer for buffer in array.buffers() if buffer is not None and buffer.size]
    return found


@pytest.mark.parametrize("name", ["plain-none", "rich-none", "compacted-none"])
@pytest.mark.parametrize("position", [0, 8, 4096])
def test_an_uncompressed_body_is_not_copied(name: str, position: int) -> None:
    source = pa.py_buffer(bytes(position) + SAMPLES[name] + b"more")
    batch_start = source.address + position
    buffers = buffers_of(BatchView(source, position).record_batch())
    assert len(buffers) >= 5
    for buffer in buffers:
        assert batch_start + HEADER_BYTES <= buffer.address
        assert buffer.address + buffer.size <= batch_start + len(SAMPLES[name])
        assert buffer.address % 8 == 0


def test_columns_outlive_view_and_buffer() -> None:
    columns = BatchView(bytes(bytearray(SAMPLES["plain-none"]))).record_batch()
    assert columns.column("value")[8].as_py() == b"value 8 value 8 value 8 "


@pytest.mark.parametrize("name", SAMPLES)
@pytest.mark.parametrize("shift", [1, 4, 7])
def test_an_unaligned_buffer_is_read_all_the_same(name: str, shift: int) -> None:
    shifted = BatchView(bytes(shift) + SAMPLES[name], shift)
    shifted.verify()
    assert list(shifted.records()) == list(BatchView(SAMPLES[name]).records())
    assert all(buffer.address % 8 == 0 for buffer in buffers_of(shifted.record_batch()))


@pytest.mark.parametrize("name", SAMPLES)
def test_records_columns_and_offsets_agree(name: str) -> None:
    view = BatchView(SAMPLES[name])
    records = list(view.records())
    columns = view.record_batch()
    assert columns is view.record_batch(), "decoded once"
    assert [record.offset for record in records] == view.offsets().to_pylist()
    for attribute, column in (("key", "key"), ("value", "value"), ("timestamp_ms", "timestamp")):
        assert [getattr(record, attribute) for record in records] == columns.column(
            column
        ).to_pylist()
    if view.header.has_headers:
        assert columns.column("headers").to_pylist() == [
            [{"key": key, "value": value} for key, value in record.headers] for record in records
        ]


def test_many_records_are_made_a_slice_at_a_time() -> None:
    count = 2 * RECORDS_AT_ONCE + 3
    builder = BatchBuilder()
    for row in range(count):
        builder.append(b"%d" % row, None, row, [("n", b"%d" % row)] if row % 2 else None)
    view = BatchView(builder.build(base_offset=10))
    records = view.records()
    first = list(islice(records, 5))
    assert [record.offset for record in first] == [10, 11, 12, 13, 14]
    rest = list(records)
    assert len(first) + len(rest) == count
    for row, record in enumerate(first + rest):
        assert record.value == b"%d" % row
        assert record.headers == ((("n", b"%d" % row),) if row % 2 else ())


def test_append_time_replaces_the_timestamps_everywhere() -> None:
    timed = BatchView(append_time(SAMPLES["rich-lz4"], 77))
    assert timed.record_batch().column("timestamp").to_pylist() == [77] * 9
    columns = timed.record_batch()
    rows = pa.array([0, 4])
    compacted = BatchView(compacted_batch(timed.header, columns.take(rows), rows))
    assert compacted.header.is_append_time
    assert [record.timestamp_ms for record in compacted.records()] == [77, 77]
    assert compacted.header.max_timestamp_ms == 77


@pytest.mark.parametrize("codec", Compression)
def test_the_limit_is_checked_before_anything_is_allocated(codec: Compression) -> None:
    values = pa.array([bytes(1 << 20)])
    view = BatchView(batch_from_columns(None, values, 5, compression=codec))
    before = pa.total_allocated_bytes()
    with pytest.raises(CorruptBatch) as caught:
        view.record_batch(limit_bytes=1 << 20)
    assert caught.value.fault is BatchFault.TOO_LARGE
    assert pa.total_allocated_bytes() == before
    assert view.record_batch(limit_bytes=(1 << 20) + 1024).num_rows == 1


def test_a_view_of_a_cut_batch_has_a_header_only() -> None:
    view = BatchView(SAMPLES["plain-none"][:-1])
    assert view.header.record_count == 9
    assert len(view.offsets()) == 9
    for call in (view.verify, view.record_batch, lambda: next(view.records())):
        with pytest.raises(CorruptBatch) as caught:
            call()
        assert caught.value.fault is BatchFault.CUT_SHORT


def test_padding_that_is_not_zero_is_refused() -> None:
    batch = next(batch for batch in SAMPLES.values() if batch[31])
    with pytest.raises(CorruptBatch, match="padding"):
        BatchView(resealed(batch[:-1] + b"\1")).record_batch()
