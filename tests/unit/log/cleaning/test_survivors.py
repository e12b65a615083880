"""Which records stay, column by column, against the same rules record by record."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.errors import InvariantViolation
from tailrace.log.cleaning.survivors import (
    KEY_OVERHEAD_BYTES,
    KeyMap,
    LastOffsets,
    Offsets,
    horizon_runs,
    kept_rows,
    row_bytes,
    tombstones,
)
from tailrace.record.body import Array
from tailrace.record.build import BatchBuilder
from tailrace.record.view import BatchView

KEY = st.sampled_from([b"a", b"b", b"cc", b"", None])
ROWS = st.lists(st.tuples(KEY, st.integers(1, 3)), max_size=30)


def keys_of(rows: list[bytes | None]) -> Array:
    return pa.array(rows, pa.binary())


def offsets_of(*offsets: int) -> Offsets:
    return np.array(offsets, np.int64)


def mapped(keys: list[bytes | None], offsets: Offsets, limit_bytes: int = 1 << 20) -> LastOffsets:
    key_map = KeyMap(limit_bytes=limit_bytes)
    assert key_map.offer(keys_of(keys), offsets)
    return key_map.last_offsets()


@given(ROWS, st.data())
def test_rows_stay_as_a_dict_says(
    rows: list[tuple[bytes | None, int]], data: st.DataObject
) -> None:
    keys = [key for key, _ in rows]
    offsets = np.cumsum([step for _, step in rows], dtype=np.int64)
    end = int(offsets[-1]) + 1 if rows else 1
    dirty_from = data.draw(st.integers(0, end))
    covered_to = data.draw(st.integers(dirty_from, end))
    parts = sorted(data.draw(st.lists(st.integers(0, len(rows)), max_size=4)))
    key_map = KeyMap(limit_bytes=data.draw(st.sampled_from([200, 1 << 20])))
    is_dirty = (offsets >= dirty_from) & (offsets < covered_to)
    for number in np.flatnonzero(is_dirty):
        if not key_map.offer(keys_of([keys[number]]), offsets[number : number + 1]):
            covered_to = int(offsets[number])
            break
    last = {
        key: offset
        for key, offset in zip(keys, offsets.tolist(), strict=True)
        if dirty_from <= offset < covered_to and key is not None
    }
    chunks = [keys_of(keys[a:b]) for a, b in zip([0, *parts], [*parts, len(keys)], strict=True)]
    found = kept_rows(
        pa.chunked_array(chunks, pa.binary()),
        offsets,
        key_map.last_offsets(),
        dirty_from=dirty_from,
        covered_to=covered_to,
    )
    assert found.tolist() == [
        key is None or offset >= covered_to or last.get(key, offset) == offset
        for key, offset in zip(keys, offsets.tolist(), strict=True)
    ]


def test_the_map_takes_what_fits() -> None:
    room = 4 * (KEY_OVERHEAD_BYTES + 20)
    key_map = KeyMap(limit_bytes=room)
    # The same keys again and again fill nothing.
    for start in range(0, 100, 2):
        assert key_map.offer(keys_of([b"a", b"b"]), offsets_of(start, start + 1))
    assert key_map.offer(keys_of([b"c"]), offsets_of(100))
    assert not key_map.offer(keys_of([b"d", b"e", b"f"]), offsets_of(101, 102, 103))
    last = key_map.last_offsets()
    assert set(last.keys.to_pylist()) == {b"a", b"b", b"c"}
    assert last.offsets.tolist() == [98, 99, 100]


def test_the_first_rows_are_taken_in_any_case() -> None:
    key_map = KeyMap(limit_bytes=1)
    assert key_map.offer(keys_of([None, None]), offsets_of(0, 1))
    assert key_map.offer(keys_of([b"a", b"b"]), offsets_of(2, 3))
    assert key_map.offer(keys_of([None]), offsets_of(4))
    assert not key_map.offer(keys_of([b"a"]), offsets_of(5))
    assert key_map.last_offsets().offsets.tolist() == [2, 3]


@pytest.mark.parametrize("more", [1, 2, 3, 8])
def test_offsets_with_bytes_behind_them(more: int) -> None:
    """Arrow allows them, so a client may send them: once they ended every broker (A4)."""
    keys = pa.array([b"a", b"bc", b"a"], pa.binary())
    _, offsets, data = keys.buffers()
    assert offsets is not None
    longer = pa.py_buffer(offsets.slice(0, 16).to_pybytes() + bytes(more))
    column: Array = pa.Array.from_buffers(pa.binary(), 3, [None, longer, data])
    column.validate(full=True)
    key_map = KeyMap(limit_bytes=1 << 20)
    assert key_map.offer(column, offsets_of(1, 2, 3))
    assert set(key_map.last_offsets().keys.to_pylist()) == {b"a", b"bc"}


def test_a_map_of_nothing() -> None:
    last = KeyMap(limit_bytes=1).last_offsets()
    keys = pa.chunked_array([keys_of([b"a", None])])
    found = kept_rows(keys, offsets_of(0, 1), last, dirty_from=9, covered_to=9)
    assert found.tolist() == [True, True]


def test_a_record_that_must_stay_cannot_be_missing() -> None:
    last = mapped([b"a", b"b"], offsets_of(3, 4))
    keys = pa.chunked_array([keys_of([b"a", b"b"])])
    with pytest.raises(InvariantViolation):
        kept_rows(keys, offsets_of(2, 4), last, dirty_from=0, covered_to=5)


def test_tombstones_have_a_key() -> None:
    keys = pa.chunked_array([keys_of([b"a", None, b"b"])])
    values = pa.chunked_array([keys_of([None, None, b"1"])])
    found = tombstones(keys, values)
    assert found is not None
    assert found.tolist() == [True, False, False]
    assert tombstones(keys, pa.chunked_array([keys_of([b"", None, b"1"])])) is None
    assert tombstones(keys, pa.chunked_array([keys_of([b"1", b"", b"2"])])) is None


@pytest.mark.parametrize(
    ("horizons", "expected"),
    [
        ([], [(0, 0, -1)]),
        ([-1, -1], [(0, 2, -1)]),
        ([-1, 5, -1, 5], [(0, 4, 5)]),
        ([5, -1, 7, -1, 7, 5], [(0, 2, 5), (2, 5, 7), (5, 6, 5)]),
    ],
)
def test_horizon_runs(horizons: list[int], expected: list[tuple[int, int, int]]) -> None:
    assert horizon_runs(np.array(horizons, np.int64)) == expected


def test_row_bytes_are_about_what_a_batch_takes() -> None:
    builder = BatchBuilder()
    headers = (("name", b"x" * 40), ("other", None))
    for number in range(200):
        builder.append(b"v" * number, b"k" * (number % 7), 0, headers if number % 2 else ())
    builder.append(None, None, 0)
    data = builder.build()
    rows = BatchView(data).record_batch()
    assert sum(row_bytes(rows)) == pytest.approx(len(data), rel=0.05)
    assert row_bytes(rows.slice(5, 100)).tolist() == row_bytes(rows)[5:105].tolist()
