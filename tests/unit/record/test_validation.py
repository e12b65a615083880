"""What a leader refuses: each mutated batch is refused, or every reader reads it."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuzz.batches import attacks, samples
from fuzz.mutants import mutant, read_by_all
from tailrace.config import BatchValidation, LogConfig
from tailrace.errors import BatchFault, CorruptBatch, InvalidTimestamp, TailraceError
from tailrace.log.admission import validated
from tailrace.record import validation
from tailrace.record.body import Blobs, plain_message, plain_places
from tailrace.record.build import BatchBuilder, batch_from_columns
from tailrace.record.codec import Compression
from tailrace.record.header import HEADER_BYTES, BatchHeader, assemble, read_header
from tailrace.record.validation import TIMESTAMP_MS_MAX, check_batch

FULL = BatchValidation.FULL
ROWS = (1, 2, validation.FEW_ROWS, validation.FEW_ROWS + 1, 500)


def check(data: bytes, level: BatchValidation = FULL, *, earliest_ms: int = 0) -> None:
    check_batch(memoryview(data), 0, read_header(data), level=level, earliest_ms=earliest_ms)


def taken(data: bytes) -> bool:
    """Whether a leader of an ordinary topic would take it."""
    try:
        validated(data, "orders", LogConfig(), now_ms=0, control_allowed=False)
    except (CorruptBatch, InvalidTimestamp):
        return False
    return True


def built(rows: int, *, keys: bool = False, codec: Compression = Compression.NONE) -> bytes:
    builder = BatchBuilder(codec)
    for row in range(rows):
        builder.append(b"value %d" % row, b"key %d" % row if keys else None, 1_000 + row % 7)
    return builder.build()


def with_stored(data: bytes, stored: bytes, **changes: int) -> bytes:
    return assemble(read_header(data)._replace(**changes), stored)


def body_of(data: bytes) -> bytearray:
    header = read_header(data)
    return bytearray(data[HEADER_BYTES : header.length - header.padding])


@pytest.mark.parametrize("codec", Compression)
@pytest.mark.parametrize("keys", [False, True])
@pytest.mark.parametrize("rows", ROWS)
def test_what_clients_write_is_taken(rows: int, keys: bool, codec: Compression) -> None:
    data = built(rows, keys=keys, codec=codec)
    for level in BatchValidation:
        check(data, level)
    assert read_by_all(data) == rows


@pytest.mark.parametrize("name", samples())
def test_batches_of_every_shape_are_taken(name: str) -> None:
    check(samples()[name])


@pytest.mark.parametrize("name", attacks())
def test_f45_hostile_batches_are_refused(name: str) -> None:
    data, _ = attacks()[name]
    with pytest.raises(CorruptBatch):
        check(data)


@pytest.mark.parametrize("keys", [False, True])
@pytest.mark.parametrize("rows", ROWS)
def test_both_ways_come_to_the_same_times(rows: int, keys: bool) -> None:
    """What our clients write takes the short way, and the general one agrees."""
    data = built(rows, keys=keys)
    source, header = memoryview(data), read_header(data)
    short = validation._plain_times(source, 0, header)
    assert short is not None
    assert short == validation._decoded_times(source, 0, header)


def test_the_short_way_needs_no_alignment() -> None:
    data = built(500, keys=True)
    for shift in range(9):
        source = memoryview(bytes(shift) + data)
        check_batch(source, shift, read_header(data), level=FULL)


def test_offsets_that_fall_or_leave_the_data_are_refused() -> None:
    """In any row, of keys and of values."""
    for rows in ROWS:
        data = built(rows, keys=True)
        places = plain_places(memoryview(bytes(body_of(data))), 0, len(body_of(data)), rows)
        assert places is not None
        for first in (places.key_offsets, places.value_offsets):
            for row in {0, rows // 2, rows}:
                for number in (-1, 2**31 - 1, -(2**31)):
                    body = body_of(data)
                    body[first + 4 * row : first + 4 * row + 4] = number.to_bytes(
                        4, "little", signed=True
                    )
                    with pytest.raises(CorruptBatch):
                        check(with_stored(data, bytes(body)))


def test_keys_that_are_none_and_have_bytes_are_not_believed() -> None:
    for rows in ROWS:
        data = built(rows)
        places = plain_places(memoryview(bytes(body_of(data))), 0, len(body_of(data)), rows)
        assert places is not None
        assert not places.has_keys
        for at in (places.head, places.key_offsets, places.value_offsets - 8):
            body = body_of(data)
            body[at] ^= 1
            damaged = with_stored(data, bytes(body))
            if taken(damaged):
                assert read_by_all(damaged) == rows


def test_a9_times_of_records_are_those_of_the_header() -> None:
    for rows in ROWS:
        data = built(rows)
        header = read_header(data)
        at = header.body_bytes - 8 * rows
        for row in {0, rows // 2, rows - 1}:
            for number in (-2, 2**62, -(2**63), TIMESTAMP_MS_MAX):
                body = body_of(data)
                place = at + 8 * row
                body[place : place + 8] = number.to_bytes(8, "little", signed=True)
                with pytest.raises(CorruptBatch, match="where the header says"):
                    check(with_stored(data, bytes(body)))


def test_a9_compressed_times_are_looked_at_too() -> None:
    data = built(200, codec=Compression.ZSTD)
    stored = bytes(body_of(data))
    assert read_header(data).compression is Compression.ZSTD
    with pytest.raises(CorruptBatch, match="where the header says"):
        check(with_stored(data, stored, max_timestamp_ms=2_000))
    check(with_stored(data, stored, max_timestamp_ms=2_000), BatchValidation.STRUCTURE)


def test_records_without_a_time_are_not_early() -> None:
    for times in ([-1, -1], [5_000, -1, 5_000], [-1] * 50 + [5_000] * 50):
        data = batch_from_columns(None, pa.array([b"v"] * len(times)), pa.array(times))
        check(data, earliest_ms=5_000)
        if max(times) > 0:
            with pytest.raises(InvalidTimestamp, match="is before 5001"):
                check(data, earliest_ms=5_001)


@pytest.mark.parametrize("codec", [Compression.LZ4, Compression.ZSTD])
def test_f45_what_decompresses_to_another_size_is_refused(codec: Compression) -> None:
    data = built(500, codec=codec)
    stored = bytes(body_of(data))
    body_bytes = read_header(data).body_bytes
    for said in (body_bytes - 8, body_bytes + 8, 32 << 20):
        with pytest.raises(CorruptBatch) as caught:
            check(with_stored(data, stored, body_bytes=said))
        assert caught.value.fault is BatchFault.BAD_COMPRESSION
    with pytest.raises(CorruptBatch):
        check(with_stored(data, stored[: len(stored) // 2]))


def test_structure_sees_the_size_that_a_zstd_frame_says() -> None:
    data = built(500, codec=Compression.ZSTD)
    lie = with_stored(data, bytes(body_of(data)), body_bytes=16 << 20)
    with pytest.raises(CorruptBatch, match="a zstd frame of"):
        check(lie, BatchValidation.STRUCTURE)


def test_f45_a_bomb_is_refused_before_anything_is_allocated() -> None:
    """A header that says 48 MiB and a frame that says less, or nothing like it."""
    data = built(500, codec=Compression.ZSTD)
    before = pa.total_allocated_bytes()
    with pytest.raises(CorruptBatch):
        check(with_stored(data, b"\0" * 64, body_bytes=48 << 20))
    assert pa.total_allocated_bytes() == before


def test_nothing_is_looked_at_where_the_topic_says_so() -> None:
    data = built(3)
    check(with_stored(data, bytes(read_header(data).body_bytes)), BatchValidation.NONE)


def test_a_plain_message_of_another_size_takes_the_general_way() -> None:
    values = Blobs.of_list([b"a", b"bc"])
    body = b"".join(map(bytes, plain_message(2, None, values, bytes(16))))
    header: BatchHeader = read_header(built(2))._replace(
        first_timestamp_ms=0, max_timestamp_ms=0, body_bytes=len(body)
    )
    check(assemble(header, body))
    longer = assemble(header._replace(body_bytes=len(body) + 8), body + bytes(8))
    with pytest.raises(CorruptBatch, match="bytes follow the metadata"):
        check(longer)


@given(st.integers(0, 2**63))
def test_a4_each_mutant_is_refused_or_read_by_all(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(20):
        data = mutant(rng)
        if taken(data):
            read_by_all(data)


def test_mutants_are_of_both_kinds() -> None:
    """Else nothing is tested: some are taken, and most are not."""
    rng = random.Random(5)
    found = [taken(mutant(rng)) for _ in range(2_000)]
    assert 100 < sum(found) < 1_900


def test_errors_name_the_reason() -> None:
    data = built(3)
    with pytest.raises(TailraceError, match=r"corrupt batch: body .*: not an Arrow message"):
        check(with_stored(data, bytes(read_header(data).body_bytes)))
