"""Scans of sound and damaged segments: everything is accounted for, nothing raises."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tailrace.errors import BatchFault
from tailrace.log.audit.inspection import Batch, Damage, base_in_name, scan
from tailrace.log.segment import SCAN_CHUNK_BYTES
from tailrace.record.build import BatchBuilder
from tailrace.record.header import BATCH_BYTES_MAX, HEADER_BYTES, prefix_for


class Bytes:
    """A file in memory that notes how much is asked for at a time."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.largest_read = 0

    def read_at(self, position: int, size: int) -> bytes:
        self.largest_read = max(self.largest_read, size)
        return self.data[position : position + size]

    def size(self) -> int:
        return len(self.data)

    def close(self) -> None:
        """Nothing to close."""


def _batch(offset: int, count: int = 3, value: bytes = b"value") -> bytes:
    builder = BatchBuilder()
    for n in range(count):
        builder.append(value, timestamp_ms=offset + n)
    return builder.build(base_offset=offset, leader_epoch=1)


BATCHES = [_batch(offset) for offset in range(0, 30, 3)]
SEGMENT = b"".join(BATCHES)
STARTS = [sum(map(len, BATCHES[:n])) for n in range(len(BATCHES))]


def _scan(data: bytes) -> list[Batch | Damage]:
    return list(scan(Bytes(data), len(data)))


def _check_complete(found: list[Batch | Damage], size: int) -> None:
    """Each item begins where the one before ends, from the first byte to the last."""
    position = 0
    for each in found:
        assert each.position == position
        position = each.end if isinstance(each, Damage) else position + each.header.length
    assert position == size


def test_a_sound_segment() -> None:
    found = _scan(SEGMENT)
    assert [each.position for each in found] == STARTS
    assert all(isinstance(each, Batch) for each in found)
    _check_complete(found, len(SEGMENT))
    assert _scan(b"") == []


def test_from_a_position_on() -> None:
    found = list(scan(Bytes(SEGMENT), len(SEGMENT), start=STARTS[4]))
    assert [each.position for each in found] == STARTS[4:]


def test_a_damaged_body_costs_one_batch() -> None:
    data = bytearray(SEGMENT)
    data[STARTS[3] + HEADER_BYTES + 5] ^= 1
    found = _scan(bytes(data))
    (damage,) = [each for each in found if isinstance(each, Damage)]
    assert damage == Damage(STARTS[3], STARTS[4], BatchFault.BAD_CRC, "CRC does not match", 9)
    assert len(found) == len(BATCHES)


def test_headers_alone_do_not_see_a_damaged_body() -> None:
    data = bytearray(SEGMENT)
    data[STARTS[3] + HEADER_BYTES + 5] ^= 1
    found = list(scan(Bytes(bytes(data)), len(data), checksums=False))
    assert [each.position for each in found] == STARTS


def test_a_damaged_prefix_is_passed_over() -> None:
    data = bytearray(SEGMENT)
    data[STARTS[3]] ^= 1
    found = _scan(bytes(data))
    (damage,) = [each for each in found if isinstance(each, Damage)]
    assert (damage.position, damage.end) == (STARTS[3], STARTS[4])
    assert (damage.fault, damage.base_offset) == (BatchFault.BAD_PREFIX_CRC, -1)


def test_a_torn_tail() -> None:
    for size in range(STARTS[-1] + 1, len(SEGMENT)):
        found = _scan(SEGMENT[:size])
        damage = found[-1]
        assert isinstance(damage, Damage)
        assert (damage.position, damage.end) == (STARTS[-1], size)
        assert damage.fault is BatchFault.CUT_SHORT
        assert not damage.all_zeros


def test_zeros_to_the_end() -> None:
    for zeros in (1, 7, 8, 23, 24, 88, 5_000, 200_000):
        damage = _scan(SEGMENT + bytes(zeros))[-1]
        assert isinstance(damage, Damage)
        assert damage.all_zeros
        assert (damage.position, damage.end) == (len(SEGMENT), len(SEGMENT) + zeros)
    damage = _scan(SEGMENT + bytes(100_000) + b"\1")[-1]
    assert isinstance(damage, Damage)
    assert not damage.all_zeros


def test_a_hole_of_any_size_is_passed_over() -> None:
    for hole in (8, 64 * 1024 - 16, 64 * 1024, 1024 * 1024 - 8, 1024 * 1024 + 40):
        noise = b"\xee" * hole
        found = _scan(BATCHES[0] + noise + b"".join(BATCHES[1:]))
        assert len(found) == len(BATCHES) + 1
        damage = found[1]
        assert isinstance(damage, Damage)
        assert damage.end - damage.position == hole


def test_a_batch_in_a_value_is_not_taken_for_one() -> None:
    """Behind damage only what can follow is believed: the batch in here begins at offset 0."""
    inner = _batch(0, value=b"inner")
    outer = bytearray(_batch(30, value=inner + bytes(-len(inner) % 8)))
    outer[3] ^= 0x40
    found = _scan(SEGMENT + bytes(outer) + _batch(33))
    kinds = [type(each) for each in found[len(BATCHES) :]]
    assert kinds == [Damage, Batch]
    last = found[-1]
    assert isinstance(last, Batch)
    assert last.header.base_offset == 33


def test_a_lying_length_is_no_reason_to_read_much() -> None:
    data = prefix_for(30, BATCH_BYTES_MAX, 1) + bytes(2_000)
    file = Bytes(SEGMENT + data)
    found = list(scan(file, file.size()))
    assert isinstance(found[-1], Damage)
    assert file.largest_read <= SCAN_CHUNK_BYTES


def test_a_batch_larger_than_a_chunk_is_read_in_pieces() -> None:
    large = _batch(30, count=40, value=b"x" * 100_000)
    assert len(large) > 3 * SCAN_CHUNK_BYTES
    file = Bytes(SEGMENT + large + _batch(70))
    found = list(scan(file, file.size()))
    assert all(isinstance(each, Batch) for each in found)
    assert file.largest_read <= SCAN_CHUNK_BYTES
    data = bytearray(file.data)
    data[-2_000_000] ^= 1
    found = _scan(bytes(data))
    assert [type(each) for each in found[-2:]] == [Damage, Batch]


def test_a_file_that_shrinks_meanwhile_ends_there() -> None:
    found = list(scan(Bytes(SEGMENT[: STARTS[5] + 100]), len(SEGMENT)))
    assert isinstance(found[-1], Damage)
    large = _batch(30, count=40, value=b"x" * 100_000)
    found = list(scan(Bytes((SEGMENT + large)[:-5_000]), len(SEGMENT + large)))
    assert isinstance(found[-1], Damage)
    assert found[-1].fault is BatchFault.CUT_SHORT


@given(st.data())
def test_no_bytes_make_it_raise(data: st.DataObject) -> None:
    segment = bytearray(SEGMENT)
    for _ in range(data.draw(st.integers(1, 8))):
        at = data.draw(st.integers(0, len(segment) - 1))
        piece = data.draw(st.binary(min_size=1, max_size=40))
        segment[at : at + len(piece)] = piece
    size = data.draw(st.integers(0, len(segment)))
    for checksums in (True, False):
        found = list(scan(Bytes(bytes(segment)), size, checksums=checksums))
        _check_complete(found, size)


def test_names() -> None:
    assert base_in_name("00000000000000000042.log") == 42
    assert base_in_name("00000000000000000042.00000000000000000099.swap") == 42
    assert base_in_name("leader-epoch-checkpoint") is None
    assert base_in_name("42.log") is None
