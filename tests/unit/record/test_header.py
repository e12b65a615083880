"""Headers: what is read, what is refused, and setting a batch's place without touching its CRC."""

from __future__ import annotations

import struct

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fuzz.batches import resealed, samples
from tailrace.errors import BatchFault, BatchTooLarge, CorruptBatch
from tailrace.record import header as h
from tailrace.record.build import batch_from_columns
from tailrace.record.codec import Compression, crc32c
from tailrace.record.view import BatchView

SAMPLES = samples()
PLAIN = SAMPLES["plain-none"]
PACKED = SAMPLES["plain-zstd"]
COMPACTED = SAMPLES["compacted-none"]


def patched(batch: bytes, at: int, code: str, *numbers: int) -> bytes:
    """Overwrite fields and make the checksums match again."""
    out = bytearray(batch)
    struct.pack_into(f"<{code}", out, at, *numbers)
    return resealed(bytes(out))


def fault_of(data: bytes) -> BatchFault:
    with pytest.raises(CorruptBatch) as caught:
        h.verify(data, 0, h.read_header(data))
    return caught.value.fault


@pytest.mark.parametrize("name", SAMPLES)
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview, pa.py_buffer])
def test_samples_are_whole_in_any_buffer(name: str, kind: type) -> None:
    padded = kind(bytes(16) + SAMPLES[name])
    header = h.read_header(padded, 16)
    h.verify(padded, 16, header)
    assert header.length == len(SAMPLES[name])
    assert header == h.read_header(SAMPLES[name])


def test_the_fields_mean_what_they_are_called() -> None:
    header = h.read_header(SAMPLES["rich-zstd"])
    assert (header.base_offset, header.last_offset, header.next_offset) == (0, 8, 9)
    assert (header.producer_id, header.producer_epoch) == (7, 1)
    assert header.base_sequence == 2**31 - 4
    assert header.last_sequence == 4, "sequences wrap to 0 after 2**31 - 1"
    assert (header.first_timestamp_ms, header.max_timestamp_ms) == (0, 8)
    assert (header.record_count, header.delete_horizon_ms, header.leader_epoch) == (9, -1, -1)
    assert header.compression is Compression.ZSTD
    assert header.has_headers
    assert not header.is_compacted
    assert h.read_header(PLAIN).last_sequence == -1
    control = h.read_header(SAMPLES["control"])
    assert control.is_control
    assert control.is_transactional
    assert h.read_header(SAMPLES["append-time"]).is_append_time
    assert h.read_header(COMPACTED).delete_horizon_ms == 99


@pytest.mark.parametrize(
    ("fault", "data"),
    [
        (BatchFault.BAD_MAGIC, patched(PLAIN, 0, "q", 0).replace(b"\1\0\0\0", b"\2\0\0\0", 1)),
        (BatchFault.BAD_MAGIC, bytes(200)),
        (BatchFault.BAD_PREFIX_CRC, b"\1" + PLAIN[1:]),
        (BatchFault.BAD_CRC, PLAIN[:-1] + b"\1"),
        (BatchFault.BAD_HEADER, patched(PLAIN, 66, "H", 1)),
        (BatchFault.BAD_HEADER, patched(PLAIN, 76, "I", 1)),
        (BatchFault.BAD_HEADER, patched(PLAIN, 28, "H", 3)),
        (BatchFault.BAD_HEADER, patched(PLAIN, 28, "H", 0x100)),
        (BatchFault.BAD_HEADER, patched(PLAIN, 30, "B", 2)),
        (BatchFault.BAD_HEADER, patched(PLAIN, 31, "B", 8)),
        (BatchFault.BAD_HEADER, patched(PLAIN, 31, "B", 1)),
        (BatchFault.BAD_HEADER, patched(PLAIN, 0, "q", -1)),
        (BatchFault.BAD_HEADER, patched(PLAIN, 0, "q", 2**63 - 9)),
        (BatchFault.BAD_HEADER, patched(PLAIN, 12, "i", -2)),
        (BatchFault.BAD_HEADER, patched(PLAIN, 32, "i", -1)),
        (BatchFault.BAD_HEADER, patched(PLAIN, 32, "i", 9)),
        (BatchFault.BAD_HEADER, patched(PLAIN, 68, "I", 8)),
        (BatchFault.BAD_HEADER, patched(PLAIN, 68, "I", 0)),
        (BatchFault.BAD_HEADER, patched(COMPACTED, 68, "I", 10)),
        (BatchFault.BAD_HEADER, patched(PLAIN, 72, "I", 8)),
        (BatchFault.BAD_HEADER, patched(PACKED, 72, "I", 0)),
        (BatchFault.BAD_HEADER, patched(PACKED, 72, "I", 136)),
        (BatchFault.BAD_HEADER, patched(PACKED, 72, "I", 145)),
        (BatchFault.BAD_HEADER, patched(PLAIN, 40, "q", -2)),
        (BatchFault.BAD_HEADER, patched(PLAIN, 48, "q", 5)),
        (BatchFault.BAD_HEADER, patched(PLAIN, 80, "q", -2)),
        (BatchFault.BAD_HEADER, patched(PLAIN, 36, "i", 0)),
        (BatchFault.BAD_HEADER, patched(PLAIN, 64, "h", 0)),
        (BatchFault.BAD_HEADER, patched(PLAIN, 56, "q", 5)),
        (BatchFault.BAD_HEADER, patched(PLAIN, 56, "q", -2)),
        (BatchFault.TOO_LARGE, patched(PACKED, 72, "I", h.PRODUCED_BODY_BYTES_MAX + 8)),
        (BatchFault.TOO_LARGE, patched(SAMPLES["compacted-lz4"], 72, "I", h.BODY_BYTES_MAX + 8)),
    ],
)
def test_a_header_that_contradicts_itself_is_refused(fault: BatchFault, data: bytes) -> None:
    assert fault_of(data) is fault


@pytest.mark.parametrize("length", [0, 8, 88, 95, 100, h.BATCH_BYTES_MAX + 8, 2**32 - 8])
def test_a_length_that_cannot_be_is_refused(length: int) -> None:
    lying = h.prefix_for(0, length, 0) + PLAIN[h.PREFIX_BYTES :]
    assert fault_of(lying) is BatchFault.BAD_LENGTH


def test_reserved_bytes_beside_the_magic_must_be_zero() -> None:
    place = struct.pack("<qIiI", 0, len(PLAIN), 0, 0x0100_0001)
    lying = place + struct.pack("<I", crc32c(place)) + PLAIN[h.PREFIX_BYTES :]
    assert fault_of(lying) is BatchFault.BAD_HEADER


def test_the_body_need_not_be_there_for_its_header() -> None:
    head = PLAIN[: h.HEADER_BYTES]
    header = h.read_header(head)
    assert header.record_count == 9
    assert h.read_header(head, available=len(PLAIN)) == header
    for call in (
        lambda: h.read_header(head, available=len(PLAIN) - 1),
        lambda: h.verify(PLAIN[:-1], 0, header),
        lambda: h.read_header(PLAIN, -1),
        lambda: h.read_header(PLAIN, len(PLAIN) - h.HEADER_BYTES + 1),
    ):
        with pytest.raises(CorruptBatch) as caught:
            call()
        assert caught.value.fault is BatchFault.CUT_SHORT


def test_split_finds_every_batch() -> None:
    batches = list(SAMPLES.values())
    joined = b"".join(batches)
    found = list(h.split(joined))
    assert [joined[at : at + header.length] for at, header in found] == batches
    assert list(h.split(b"")) == []


@pytest.mark.parametrize("kept", [1, 87, 88, 89, len(PLAIN) - 1])
def test_split_at_a_partial_tail(kept: int) -> None:
    cut = PLAIN + PACKED + PLAIN[:kept]
    assert [at for at, _ in h.split(cut, partial_tail=True)] == [0, len(PLAIN)]
    with pytest.raises(CorruptBatch) as caught:
        list(h.split(cut))
    assert caught.value.fault is BatchFault.CUT_SHORT


@given(st.integers(0, 2**63 - 100), st.integers(-1, 2**31 - 1))
def test_a_new_place_leaves_the_crc_alone(base_offset: int, leader_epoch: int) -> None:
    stamped = bytearray(bytes(8) + PLAIN)
    h.stamp(stamped, 8, base_offset=base_offset, leader_epoch=leader_epoch)
    header = h.read_header(stamped, 8)
    h.verify(stamped, 8, header)
    assert (header.base_offset, header.leader_epoch) == (base_offset, leader_epoch)
    assert stamped[8 + h.PREFIX_BYTES :] == PLAIN[h.PREFIX_BYTES :]
    prefix = h.prefix_for(base_offset, len(PLAIN), leader_epoch)
    assert bytes(stamped[8:]) == prefix + PLAIN[h.PREFIX_BYTES :]


def test_stamp_through_a_memoryview() -> None:
    stamped = bytearray(PLAIN)
    h.stamp(memoryview(stamped), base_offset=5, leader_epoch=6)
    assert h.read_header(stamped).base_offset == 5


@pytest.mark.parametrize("name", SAMPLES)
def test_append_time_is_the_time_of_all_records(name: str) -> None:
    timed = h.append_time(SAMPLES[name], 77)
    view = BatchView(timed)
    view.verify()
    assert (view.header.first_timestamp_ms, view.header.max_timestamp_ms) == (77, 77)
    was = list(BatchView(SAMPLES[name]).records())
    assert list(view.records()) == [record._replace(timestamp_ms=77) for record in was]


def test_append_time_does_not_bless_damage() -> None:
    with pytest.raises(CorruptBatch):
        h.append_time(PLAIN[:-1] + b"\1", 77)


def test_assemble_refuses_what_could_not_be_read() -> None:
    header = h.read_header(PLAIN)
    body = PLAIN[h.HEADER_BYTES :]
    assert h.assemble(header, body) == PLAIN
    with pytest.raises(ValueError, match="negative"):
        h.assemble(header._replace(base_offset=-1), body)
    too_large = header._replace(attributes=1, body_bytes=h.PRODUCED_BODY_BYTES_MAX + 8)
    with pytest.raises(BatchTooLarge):
        h.assemble(too_large, body)


@given(st.data())
@settings(max_examples=300)
def test_header_fields_survive(data: st.DataObject) -> None:
    has_producer = data.draw(st.booleans())
    batch = batch_from_columns(
        None,
        pa.array([b"a", b"b"]),
        data.draw(st.integers(-1, 2**62)),
        base_offset=data.draw(st.integers(0, 2**63 - 3)),
        leader_epoch=data.draw(st.integers(-1, 2**31 - 1)),
        producer_id=data.draw(st.integers(0, 2**63 - 1)) if has_producer else -1,
        producer_epoch=data.draw(st.integers(0, 2**15 - 1)) if has_producer else -1,
        base_sequence=data.draw(st.integers(-1, 2**31 - 1)) if has_producer else -1,
    )
    header = h.read_header(batch)
    h.verify(batch, 0, header)
    assert h.assemble(header, batch[h.HEADER_BYTES :]) == batch
