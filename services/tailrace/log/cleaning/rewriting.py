"""Writing compacted segments: what stays becomes batches that cover what went.

A `Rewriter` is handed the batches of old segments one after the other, each as something to copy,
something fixed, or rows that may be merged with their neighbours, and writes cleaned files. It
knows nothing of keys: which rows stay is decided elsewhere (`tailrace.log.cleaning.survivors`).

Invariants of what is written:
- Batches follow one another without a gap in their offsets. Merged batches stretch over what went
  before and after their rows; where only batches stand that may not stretch, an empty batch fills
  the gap.
- A batch never spans two leader epochs, and every epoch that had a batch still has one.
- A file that is among the `outputs` is whole and synced.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from tailrace.log.cleaning.chunks import SourceSegment
from tailrace.log.cleaning.survivors import NO_HORIZON_MS, Offsets, horizon_runs, row_bytes
from tailrace.log.files import Buffer
from tailrace.log.index import SegmentIndex
from tailrace.log.retention import RELATIVE_OFFSET_MAX
from tailrace.log.segment import Segment, Storage
from tailrace.log.swap import SwapRange, cleaned_path
from tailrace.model import NO_LEADER_EPOCH, NO_PRODUCER_ID, NO_TIMESTAMP_MS
from tailrace.record.body import body_schema
from tailrace.record.build import EMPTY_BATCH_BYTES, compacted_batch
from tailrace.record.codec import Compression
from tailrace.record.header import (
    BODY_KIND_ARROW,
    COMPACTED_BIT,
    MAGIC,
    TRANSACTIONAL_BIT,
    BatchHeader,
    read_header,
)

# Survivors are merged into batches of this much body before compression: large enough for quick
# reads, small enough to be fetched one at a time.
MERGED_BATCH_BYTES: Final = 1 << 20
# Small writes are gathered up to this many bytes.
WRITE_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriteLimits:
    """How large batches and segments become, and how densely they are indexed."""

    batch_bytes: int
    segment_bytes: int
    segment_index_bytes: int
    index_interval_bytes: int


class CleanedSegment(NamedTuple):
    """A cleaned file, synced and ready to take the place of the segments in its range."""

    swap: SwapRange
    segment: Segment


class Rewriter:
    """See the module's description. One thread uses it; it touches no file but its own."""

    def __init__(self, storage: Storage, folder: str, limits: RewriteLimits) -> None:
        self._storage = storage
        self._folder = folder
        self._limits = limits
        self._output: _Output | None = None
        self._epoch = int(NO_LEADER_EPOCH)
        # All offsets below this one are covered by what is written.
        self._cursor = 0
        self._run = _Run()
        # Of the files as they were made. What was swapped in is the log's, under another name: a
        # discard that went by the segments would remove it from there.
        self._paths: list[str] = []
        self.outputs: list[CleanedSegment] = []
        self.bytes_written = 0

    def start_segment(self, source: SourceSegment) -> None:
        """Go on with the next old segment: in the same file while there is room, else in a new."""
        output = self._output
        if output is not None and not self._has_room(output, source):
            self._close_output(source.base_offset)
            output = None
        if output is None:
            self._cursor = source.base_offset
            output = self._output = _Output(self._storage, self._folder, source, self._limits)
            self._paths.append(output.segment.path)
        output.index.appended_ms = max(output.index.appended_ms, source.appended_ms)

    def enter(self, header: BatchHeader) -> None:
        """The batch comes next in the old segments, whatever is left of it."""
        self.enter_epoch(header.leader_epoch, header.base_offset)

    def enter_epoch(self, leader_epoch: int, base_offset: int) -> None:
        """The batches from this offset on are of this epoch, whatever is left of them."""
        if leader_epoch != self._epoch:
            self._cover(base_offset)
            self._epoch = leader_epoch

    def adjoins(self, header: BatchHeader) -> bool:
        """Whether the offsets up to this batch are covered without it, or can be."""
        return self._cursor == header.base_offset or self._run.is_used

    def copy(self, header: BatchHeader, data: Buffer) -> None:
        """Take over a batch as it is, or one that was rebuilt in its own range."""
        self._cover(header.base_offset)
        self._put(header, data)

    def merge(self, like: BatchHeader, rows: pa.RecordBatch, offsets: Offsets) -> None:
        """Take in rows without tombstones, of batches that all agree with `like`."""
        self._merge(like, rows, offsets, NO_HORIZON_MS)

    def merge_timed(
        self, like: BatchHeader, rows: pa.RecordBatch, offsets: Offsets, horizons: Offsets
    ) -> None:
        """Take in rows some of which are tombstones, each with its delete horizon."""
        for start, end, horizon_ms in horizon_runs(horizons):
            some = rows.slice(start, end - start)
            self._merge(like, some, offsets[start:end], horizon_ms)

    def finish(self, end_offset: int) -> None:
        """All old segments are through; the last of them ends here."""
        self._close_output(end_offset)

    def discard(self) -> None:
        """Remove every cleaned file that is still one; the rest goes at the next opening."""
        for path in self._paths:
            with suppress(OSError):
                self._storage.files.remove(path)
            self._storage.cache.forget(path)
        self._output, self.outputs, self._paths = None, [], []

    def _has_room(self, output: _Output, source: SourceSegment) -> bool:
        """Whether the segment fits in even if all of it stays.

        What it comes to is not known yet. Too much caution costs nothing for long: the next pass
        finds the small segments that this one left, and joins them.
        """
        waiting_bytes = self._run.size_bytes + EMPTY_BATCH_BYTES if self._run.is_used else 0
        size_bytes = output.size_bytes + waiting_bytes + source.size_bytes
        index_bytes = output.index.memory_bytes + source.index_bytes
        return (
            size_bytes <= self._limits.segment_bytes
            and index_bytes <= self._limits.segment_index_bytes
            and source.next_offset - 1 - output.segment.base_offset <= RELATIVE_OFFSET_MAX
        )

    def _merge(
        self, like: BatchHeader, rows: pa.RecordBatch, offsets: Offsets, horizon_ms: int
    ) -> None:
        run = self._run
        if run.is_used and not run.agrees(like, horizon_ms):
            self._end_run(int(offsets[0]))
        ends = np.cumsum(row_bytes(rows))
        start, before = 0, 0
        while start < len(offsets):
            room = self._limits.batch_bytes - run.size_bytes
            stop = int(np.searchsorted(ends, before + room, side="right"))
            if stop <= start and not run.is_used:
                # A record that is larger than a batch should be gets one of its own.
                stop = start + 1
            if stop > start:
                size_bytes = int(ends[stop - 1]) - before
                some = rows.slice(start, stop - start)
                run.add(like, some, offsets[start:stop], size_bytes, horizon_ms)
                start, before = stop, before + size_bytes
            if start < len(offsets):
                # Only now, when a row is there to go on with, is it sure that nothing needs this
                # run to stretch over what comes next.
                self._end_run(int(offsets[start]))

    def _cover(self, end_offset: int) -> None:
        """See to it that everything below this offset is covered."""
        if self._run.is_used:
            self._end_run(end_offset)
        elif self._cursor < end_offset:
            filler = _filler(self._cursor, end_offset, self._epoch)
            self._put(read_header(filler), filler)

    def _end_run(self, end_offset: int) -> None:
        data = self._run.batch(self._cursor, end_offset)
        self._run.clear()
        self._put(read_header(data), data)

    def _put(self, header: BatchHeader, data: Buffer) -> None:
        assert self._output is not None, "start_segment comes first"
        self._output.put(header, data)
        self._cursor = header.next_offset
        self.bytes_written += header.length

    def _close_output(self, end_offset: int) -> None:
        # Without one no segment was begun: there is nothing to cover either.
        if self._output is not None:
            self._cover(end_offset)
            self.outputs.append(self._output.close(end_offset))
            self._output = None


class _Run:
    """Rows that wait to become one batch."""

    __slots__ = ("_deltas_of", "_horizon_ms", "_like", "_pieces", "size_bytes")

    def __init__(self) -> None:
        self._like: BatchHeader | None = None
        self._pieces: list[pa.RecordBatch] = []
        self._deltas_of: list[Offsets] = []
        self._horizon_ms = NO_HORIZON_MS
        self.size_bytes = 0

    @property
    def is_used(self) -> bool:
        return bool(self._pieces)

    def agrees(self, like: BatchHeader, horizon_ms: int) -> bool:
        """Whether rows of such batches and with such tombstones may join."""
        mine = self._like
        return (mine is None or may_merge(mine, like)) and (
            NO_HORIZON_MS in {horizon_ms, self._horizon_ms} or horizon_ms == self._horizon_ms
        )

    def add(
        self,
        like: BatchHeader,
        rows: pa.RecordBatch,
        offsets: Offsets,
        size_bytes: int,
        horizon_ms: int,
    ) -> None:
        self._like = self._like or like
        self._pieces.append(rows)
        self._deltas_of.append(offsets)
        self._horizon_ms = max(self._horizon_ms, horizon_ms)
        self.size_bytes += size_bytes

    def batch(self, base_offset: int, end_offset: int) -> bytes:
        """The batch of all rows, which covers everything from `base_offset` to `end_offset`."""
        assert self._like is not None, "a run is used before it ends"
        header = self._like._replace(
            base_offset=base_offset,
            last_offset_delta=end_offset - 1 - base_offset,
            attributes=self._like.attributes & ~TRANSACTIONAL_BIT,
            producer_id=NO_PRODUCER_ID,
            producer_epoch=-1,
            base_sequence=-1,
        )
        rows = whole(pa.Table.from_batches(self._pieces))
        offsets = np.concatenate(self._deltas_of) - base_offset
        deltas = pa.array(offsets.astype(np.int32))
        return compacted_batch(header, rows, deltas, delete_horizon_ms=self._horizon_ms)

    def clear(self) -> None:
        self._like = None
        self._pieces = []
        self._deltas_of = []
        self._horizon_ms = NO_HORIZON_MS
        self.size_bytes = 0


class _Output:
    """One cleaned file while it is written, and its index, which grows with it."""

    __slots__ = ("_gathered", "_gathered_bytes", "index", "segment")

    def __init__(
        self, storage: Storage, folder: str, source: SourceSegment, limits: RewriteLimits
    ) -> None:
        self._gathered: list[tuple[BatchHeader, Buffer]] = []
        self._gathered_bytes = 0
        self.index = SegmentIndex()
        self.index.created_ms = source.created_ms
        self.segment = Segment(
            storage,
            folder,
            source.base_offset,
            next_offset=source.base_offset,
            size=0,
            index_interval_bytes=limits.index_interval_bytes,
            index=self.index,
        )
        number = next(storage.cleaned_numbers)
        self.segment.path = cleaned_path(folder, source.base_offset, number)
        with storage.cache.use(self.segment.path, create=True) as file:
            file.truncate(0)

    @property
    def size_bytes(self) -> int:
        return self.segment.size + self._gathered_bytes

    def put(self, header: BatchHeader, data: Buffer) -> None:
        self._gathered.append((header, data))
        self._gathered_bytes += header.length
        if self._gathered_bytes >= WRITE_BYTES:
            self._write()

    def close(self, end_offset: int) -> CleanedSegment:
        """Write and sync the rest, and say what the file stands for."""
        self._write()
        self.segment.sync()
        return CleanedSegment(SwapRange(self.segment.base_offset, end_offset), self.segment)

    def _write(self) -> None:
        if self._gathered:
            self.segment.write([data for _, data in self._gathered])
            for header, _ in self._gathered:
                self.segment.added(header)
            self._gathered = []
            self._gathered_bytes = 0


def may_merge(one: BatchHeader, other: BatchHeader) -> bool:
    """Whether rows of two batches may stand in one: it says for all its rows what they said.

    A batch with the time of its append has one timestamp for all its rows.
    """
    return (
        one.leader_epoch == other.leader_epoch
        and one.compression is other.compression
        and one.has_headers == other.has_headers
        and one.is_append_time == other.is_append_time
        and (not one.is_append_time or one.max_timestamp_ms == other.max_timestamp_ms)
    )


def rebuilt(
    header: BatchHeader, rows: pa.RecordBatch, offsets: Offsets, *, delete_horizon_ms: int
) -> bytes:
    """A batch in its own range and with its own producer, with only these rows left in it."""
    deltas = pa.array((offsets - header.base_offset).astype(np.int32))
    return compacted_batch(header, rows, deltas, delete_horizon_ms=delete_horizon_ms)


def without_deltas(batches: Iterable[pa.RecordBatch], *, headers: bool) -> pa.Table:
    """The columns that rows keep when they are merged."""
    names = body_schema(headers=headers, compacted=False).names
    return pa.Table.from_batches([each.select(names) for each in batches])


def whole(rows: pa.Table) -> pa.RecordBatch:
    """All rows as one batch; copied, unless they are one already."""
    batches = rows.combine_chunks().to_batches()
    if not batches:
        return pa.RecordBatch.from_pylist([], schema=rows.schema)
    return batches[0]


def _filler(base_offset: int, end_offset: int, leader_epoch: int) -> bytes:
    """An empty batch, where nothing is left and nothing can stretch."""
    header = BatchHeader(
        base_offset=base_offset,
        length=0,
        leader_epoch=leader_epoch,
        magic=MAGIC,
        prefix_crc=0,
        crc=0,
        attributes=COMPACTED_BIT,
        body_kind=BODY_KIND_ARROW,
        padding=0,
        last_offset_delta=end_offset - 1 - base_offset,
        base_sequence=-1,
        first_timestamp_ms=NO_TIMESTAMP_MS,
        max_timestamp_ms=NO_TIMESTAMP_MS,
        producer_id=NO_PRODUCER_ID,
        producer_epoch=-1,
        record_count=0,
        body_bytes=0,
        delete_horizon_ms=NO_HORIZON_MS,
    )
    schema = body_schema(headers=False, compacted=False)
    rows = pa.RecordBatch.from_pylist([], schema=schema)
    no_deltas = pa.array([], pa.int32())
    return compacted_batch(header, rows, no_deltas, compression=Compression.NONE)
