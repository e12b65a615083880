"""The sparse indexes of a segment: look-ups, cutting, and files that cannot lie unnoticed."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.errors import CorruptCheckpoint
from tailrace.log.index import NOT_COVERED, SegmentIndex
from tailrace.model import NO_TIMESTAMP_MS

HUGE_BYTES = 2**31


def index_of(*entries: tuple[int, int], times: tuple[tuple[int, int], ...] = ()) -> SegmentIndex:
    index = SegmentIndex()
    for relative_offset, position in entries:
        index.add(relative_offset, position)
    for timestamp_ms, relative_offset in times:
        index.add_time(timestamp_ms, relative_offset)
    return index


def decoded(index: SegmentIndex, *, segment_bytes: int = HUGE_BYTES) -> SegmentIndex:
    return SegmentIndex.decode(
        index.offset_bytes(), index.time_bytes(), segment_bytes=segment_bytes
    )


def columns(index: SegmentIndex) -> tuple[list[int], ...]:
    return (
        list(index.offsets),
        list(index.positions),
        list(index.timestamps),
        list(index.time_offsets),
        [index.created_ms, index.appended_ms, index.covered_bytes],
    )


def test_an_empty_index_sends_everyone_to_the_start() -> None:
    index = SegmentIndex()
    assert index.floor(0) == (0, 0)
    assert index.floor(10**6) == (0, 0)
    assert index.floor_position(10**6) == (0, 0)
    assert index.before_time(10**15) == -1
    assert index.max_timestamp_ms == NO_TIMESTAMP_MS


@pytest.mark.parametrize(
    ("relative_offset", "found"),
    [(4, (0, 0)), (5, (5, 100)), (8, (5, 100)), (9, (9, 300)), (10**6, (9, 300))],
)
def test_floor_is_the_last_entry_at_or_below(relative_offset: int, found: tuple[int, int]) -> None:
    assert index_of((5, 100), (9, 300)).floor(relative_offset) == found


@pytest.mark.parametrize(
    ("position", "found"), [(99, (0, 0)), (100, (100, 5)), (299, (100, 5)), (300, (300, 9))]
)
def test_floor_position_is_the_last_batch_that_starts_by_then(
    position: int, found: tuple[int, int]
) -> None:
    assert index_of((5, 100), (9, 300)).floor_position(position) == found


@pytest.mark.parametrize(
    ("timestamp_ms", "after"), [(0, -1), (10, -1), (11, 3), (20, 3), (21, 7), (10**15, 7)]
)
def test_records_at_or_after_a_time_come_after_an_offset(timestamp_ms: int, after: int) -> None:
    assert index_of(times=((10, 3), (20, 7))).before_time(timestamp_ms) == after


def test_a_time_that_is_not_larger_adds_nothing() -> None:
    index = index_of(times=((10, 3), (10, 5), (9, 7), (11, 9)))
    assert list(zip(index.timestamps, index.time_offsets, strict=True)) == [(10, 3), (11, 9)]
    assert index.max_timestamp_ms == 11


def test_truncating_forgets_batches_from_a_position_on() -> None:
    index = index_of((0, 0), (5, 100), (9, 300), times=((10, 4), (20, 8), (30, 12)))
    index.truncate_to(position=300, relative_offset=9)
    assert columns(index)[:4] == ([0, 5], [0, 100], [10, 20], [4, 8])
    index.truncate_to(position=0, relative_offset=0)
    assert columns(index)[:4] == ([], [], [], [])


@given(
    st.lists(st.tuples(st.integers(0, 2**32 - 1), st.integers(0, HUGE_BYTES - 1)), max_size=50),
    st.lists(st.tuples(st.integers(-1, 2**62), st.integers(0, 2**32 - 1)), max_size=50),
    st.integers(-1, 2**62),
    st.integers(-1, 2**62),
)
def test_what_is_written_is_read_back(
    entries: list[tuple[int, int]],
    times: list[tuple[int, int]],
    created_ms: int,
    appended_ms: int,
) -> None:
    # Offsets and positions rise along a segment.
    offsets = sorted(offset for offset, _ in entries)
    positions = sorted(position for _, position in entries)
    index = index_of(*zip(offsets, positions, strict=True), times=tuple(times))
    index.created_ms, index.appended_ms = created_ms, appended_ms
    index.covered_bytes = HUGE_BYTES
    assert columns(decoded(index)) == columns(index)


def test_files_are_the_same_on_a_big_endian_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    index = index_of((1, 2), (3, 4), times=((5, 6),))
    as_little = (index.offset_bytes(), index.time_bytes())
    swapped = index_of(times=((5, 6),))
    swapped.offsets, swapped.positions = index.offsets[:], index.positions[:]
    for column in (swapped.offsets, swapped.positions, swapped.timestamps, swapped.time_offsets):
        column.byteswap()
    monkeypatch.setattr("tailrace.log.index.sys", SimpleNamespace(byteorder="big"))
    assert (swapped.offset_bytes(), swapped.time_bytes()) == as_little
    read = SegmentIndex.decode(*as_little, segment_bytes=HUGE_BYTES)
    assert columns(read) == columns(swapped)


def test_no_flipped_byte_goes_unnoticed() -> None:
    index = index_of((0, 0), (5, 100), times=((10, 4), (20, 8)))
    good = (index.offset_bytes(), index.time_bytes())
    for which in (0, 1):
        for position in range(len(good[which])):
            files = [bytearray(data) for data in good]
            files[which][position] ^= 0x40
            with pytest.raises(CorruptCheckpoint):
                SegmentIndex.decode(*map(bytes, files), segment_bytes=HUGE_BYTES)


def test_no_file_of_another_length_is_taken() -> None:
    index = index_of((0, 0), (5, 100), times=((10, 4), (20, 8)))
    offset_data, time_data = index.offset_bytes(), index.time_bytes()
    for size in range(len(offset_data)):
        with pytest.raises(CorruptCheckpoint, match="offset index"):
            SegmentIndex.decode(offset_data[:size], time_data, segment_bytes=HUGE_BYTES)
    for longer in (time_data + b"\0", time_data + bytes(12)):
        with pytest.raises(CorruptCheckpoint, match="time index"):
            SegmentIndex.decode(offset_data, longer, segment_bytes=HUGE_BYTES)


def test_the_two_files_cannot_be_mistaken_for_each_other() -> None:
    index = index_of((0, 0))
    with pytest.raises(CorruptCheckpoint, match="unknown magic"):
        SegmentIndex.decode(index.time_bytes(), index.offset_bytes(), segment_bytes=HUGE_BYTES)


def test_files_of_different_moments_do_not_go_together() -> None:
    index = index_of((0, 0), times=((10, 4),))
    index.covered_bytes = 100
    old = index.time_bytes()
    assert SegmentIndex.decode(index.offset_bytes(), old, segment_bytes=200).covered_bytes == 100
    index.covered_bytes = 200
    mixed = SegmentIndex.decode(index.offset_bytes(), old, segment_bytes=200)
    assert mixed.covered_bytes == NOT_COVERED


def test_an_entry_beyond_the_segment_is_refused() -> None:
    index = index_of((0, 0), (5, 100))
    assert columns(decoded(index, segment_bytes=101)) == columns(index)
    with pytest.raises(CorruptCheckpoint, match="beyond the end"):
        decoded(index, segment_bytes=100)


def test_memory_grows_with_the_entries() -> None:
    empty = SegmentIndex().memory_bytes
    assert index_of((0, 0), (1, 8)).memory_bytes == empty + 16
    assert index_of(times=((1, 1),)).memory_bytes == empty + 12
