"""Which records a compaction keeps: arithmetic on whole columns, no file and no clock.

The rules, for a log whose part below `dirty_from` was compacted before and whose part from there
to `covered_to` is being compacted now:

- a record of the dirty part stays if no later record of the dirty part has its key;
- a record of the clean part stays if no record of the dirty part has its key;
- a record without a key always stays: nothing can ever supersede it, so dropping it would lose it;
- a tombstone (a key without a value) that would stay goes once its batch's delete horizon has come;
- a record at or above `covered_to` stays.

Invariant: every key of the dirty part keeps exactly its last record, or none if that is a
tombstone whose time has come; offsets and order never change.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Final, NamedTuple, TypeAlias, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.errors import InvariantViolation
from tailrace.record.body import Array
from tailrace.record.build import (
    HEADER_OVERHEAD_BYTES,
    HEADERS_OVERHEAD_BYTES,
    RECORD_OVERHEAD_BYTES,
)

Column: TypeAlias = "pa.ChunkedArray[Any]"
Offsets: TypeAlias = npt.NDArray[np.int64]
Mask: TypeAlias = npt.NDArray[np.bool_]

NO_HORIZON_MS: Final = -1
# What a key costs in memory beside its bytes: its last offset, its place in a column, and its
# share of the hash table that finds it.
KEY_OVERHEAD_BYTES: Final = 32
# Columns of keys have 32-bit positions; a larger buffer than this cannot be used.
KEY_MAP_BYTES_MAX: Final = 1 << 30
# The offset delta, which only compacted batches have.
DELTA_BYTES: Final = 4


class LastOffsets(NamedTuple):
    """The keys of the dirty part, and the offset of the last record of each, both columns whole.

    The offsets are sorted, so that row `n` of one has nothing to do with row `n` of the other.
    """

    keys: Array
    offsets: Offsets


class KeyMap:
    """The last offset of each key, gathered from columns within a limit of bytes.

    Rows wait until they might not fit any more, and are then grouped all at once. As long as all
    keys have one length they are grouped as a column of fixed width, a third faster.
    """

    __slots__ = (
        "_grouped",
        "_grouped_bytes",
        "_limit_bytes",
        "_waiting",
        "_waiting_bytes",
        "_width",
    )

    def __init__(self, *, limit_bytes: int) -> None:
        self._limit_bytes = min(limit_bytes, KEY_MAP_BYTES_MAX)
        self._grouped = _key_table([], [], 0)
        self._grouped_bytes = 0
        self._waiting: list[tuple[Array, Offsets]] = []
        self._waiting_bytes = 0
        # The length of all keys, 0 when they differ, None when there are none yet.
        self._width: int | None = None

    def offer(self, keys: Array, offsets: Offsets) -> bool:
        """Take in rows, or say that they might not fit; the first rows are taken in any case.

        So the limit is kept unless the very first rows alone exceed it. Rows without a key do
        not count. The columns are kept: they must not be slices of something large.
        """
        if keys.null_count:
            present = pc.is_valid(keys)
            keys, offsets = keys.filter(present), offsets[_mask(present)]
        if not len(keys):
            return True
        size_bytes = _key_bytes(keys)
        if self._grouped_bytes + self._waiting_bytes + size_bytes > self._limit_bytes:
            self._group()
            if self._grouped.num_rows and self._grouped_bytes + size_bytes > self._limit_bytes:
                return False
        width = _width(keys)
        self._width = width if self._width in {None, width} else 0
        self._waiting.append((keys, offsets))
        self._waiting_bytes += size_bytes
        return True

    def last_offsets(self) -> LastOffsets:
        self._group()
        keys: Array = self._grouped.column("key").combine_chunks().cast(pa.binary())
        return LastOffsets(keys, np.sort(self._grouped.column("offset").to_numpy()))

    def _group(self) -> None:
        if not self._waiting:
            return
        width = self._width or 0
        old_keys = self._grouped.column("key").cast(_key_type(width)).chunks
        new_keys = [_fixed(keys, width) if width else keys for keys, _ in self._waiting]
        offsets = [pa.array(each) for _, each in self._waiting]
        rows = _key_table(
            [*old_keys, *new_keys], [*self._grouped.column("offset").chunks, *offsets], width
        )
        # One thread: a compaction works beside those who read and write.
        grouped = rows.group_by("key", use_threads=False).aggregate([("offset", "max")])
        self._grouped = grouped.rename_columns(["key", "offset"])
        self._grouped_bytes = sum(_key_bytes(each) for each in self._grouped.column("key").chunks)
        self._waiting = []
        self._waiting_bytes = 0


def kept_rows(
    keys: Column, offsets: Offsets, last: LastOffsets, *, dirty_from: int, covered_to: int
) -> Mask:
    """Say for each row whether no later record supersedes it."""
    clean_end, dirty_end = (int(n) for n in np.searchsorted(offsets, (dirty_from, covered_to)))
    kept = np.ones(len(offsets), np.bool_)
    if clean_end:
        superseded = pc.is_in(keys.slice(0, clean_end), value_set=last.keys)
        np.logical_not(_mask(superseded), out=kept[:clean_end])
    if dirty_end > clean_end:
        dirty = keys.slice(clean_end, dirty_end - clean_end)
        kept[clean_end:dirty_end] = _mask(pc.is_null(dirty)) if dirty.null_count else False
        low, high = offsets[clean_end], offsets[dirty_end - 1] + 1
        first, end = np.searchsorted(last.offsets, (low, high))
        wanted = last.offsets[first:end]
        is_dense = high - low == dirty_end - clean_end
        rows = wanted - low + clean_end if is_dense else np.searchsorted(offsets, wanted)
        if not np.array_equal(offsets[rows], wanted):
            raise InvariantViolation("a record that must stay was there once and is gone")
        kept[rows] = True
    return kept


def tombstones(keys: Column, values: Column) -> Mask | None:
    """Say for each row whether it deletes its key; None when none does."""
    if not values.null_count:
        return None
    found = _mask(pc.and_(pc.is_null(values), pc.is_valid(keys)))
    return found if found.any() else None


def horizon_runs(horizons: Offsets) -> list[tuple[int, int, int]]:
    """Cut rows into runs (start, end, horizon) in which all tombstones have one delete horizon.

    Rows that are no tombstones have no horizon and go with any. One batch has one horizon: were
    two of them in it, the older tombstone would have to wait for the younger, again and again.
    """
    marked = np.flatnonzero(horizons != NO_HORIZON_MS)
    if not len(marked):
        return [(0, len(horizons), NO_HORIZON_MS)]
    values = horizons[marked]
    changes = np.flatnonzero(values[1:] != values[:-1]) + 1
    starts = [0, *marked[changes].tolist(), len(horizons)]
    of_runs = [int(values[0]), *values[changes].tolist()]
    return [
        (start, end, horizon)
        for (start, end), horizon in zip(pairwise(starts), of_runs, strict=True)
    ]


def row_bytes(rows: pa.RecordBatch) -> Offsets:
    """What each row takes in a body before compression, about."""
    sizes = _lengths(rows.column("key")) + _lengths(rows.column("value"))
    sizes += RECORD_OVERHEAD_BYTES + DELTA_BYTES
    if "headers" in rows.schema.names:
        lists = cast("pa.ListArray[pa.StructScalar]", rows.column("headers"))
        ends = lists.offsets.to_numpy()
        entries = cast("pa.StructArray", lists.values.slice(ends[0], ends[-1] - ends[0]))
        each = _lengths(entries.field(0)) + _lengths(entries.field(1)) + HEADER_OVERHEAD_BYTES
        total = np.concatenate((np.zeros(1, np.int64), np.cumsum(each)))
        sizes += np.diff(total[ends - ends[0]]) + HEADERS_OVERHEAD_BYTES
    return sizes


def _key_type(width: int) -> Any:
    # The stubs of pyarrow ask for one certain type where any will do.
    return pa.binary(width) if width else pa.binary()


def _key_table(keys: list[Array], offsets: list[Array], width: int) -> pa.Table:
    columns = [pa.chunked_array(keys, _key_type(width)), pa.chunked_array(offsets, pa.int64())]
    return pa.table(columns, names=["key", "offset"])


def _width(keys: Array) -> int:
    """The length that all of these keys have, 0 when they differ."""
    lengths = np.diff(_positions(keys))
    width = int(lengths[0])
    return width if (lengths == width).all() else 0


def _fixed(keys: Array, width: int) -> Array:
    """Keys that all have this length as a column of that width, not copied."""
    start = int(_positions(keys)[0])
    data = cast("pa.Buffer", keys.buffers()[2]).slice(start, width * len(keys))
    return pa.Array.from_buffers(pa.binary(width), len(keys), [None, data])


def _key_bytes(keys: Array) -> int:
    return keys.nbytes + len(keys) * KEY_OVERHEAD_BYTES


def _lengths(column: Array) -> Offsets:
    """The length of each value; what a null has beneath it counts, which does no harm."""
    if not len(column):
        return np.empty(0, np.int64)
    return np.diff(_positions(column)).astype(np.int64)


def _positions(column: Array) -> npt.NDArray[np.int32]:
    """Where each value of a column that is not empty begins, and where the last one ends.

    Arrow lets the buffer be longer than it has to be, by any number of bytes.
    """
    buffer = memoryview(cast("bytes", column.buffers()[1]))
    end = column.offset + len(column) + 1
    positions: npt.NDArray[np.int32] = np.frombuffer(buffer, np.int32, end)
    return positions[column.offset :]


def _mask(column: Array | Column) -> Mask:
    if isinstance(column, pa.ChunkedArray):
        return cast("Mask", column.to_numpy())
    return cast("Mask", column.to_numpy(zero_copy_only=False))
