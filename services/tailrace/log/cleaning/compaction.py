"""Compaction of a log: the last record of every key stays, at its offset and in its order.

It goes in three steps, as a flush does. `begin_compaction`, on the thread that owns the log, says
what there is to do. `CompactionWork.run` does it, in any thread, while the owner goes on appending
(`advance` does it in steps): it reads closed segments and writes cleaned files beside them.
`end_compaction`, on the owner's thread, puts these in the place of the old segments, one after the
other, lowest first (`tailrace.log.swap`); the owner then stores `CompactionReport.cleaned_to` as
cleaner checkpoint.
At last `CompactionWork.release`, in any thread, lets go of the old files: only then does the
system give back their blocks, which takes longer than all that the owner's thread has to do.

The log has a clean part, below the checkpoint, and a dirty one. A pass maps the keys of the dirty
part to their last offsets, as far as they fit into the dedupe buffer, and then goes through all
segments from the first to where the map ends and writes what stays (`survivors` has the
rules). Chunks of which the map says that nothing stays were verified when it was made, and are not
read once more. A pass that did not come to the end is followed by another one.

Killed at any point the log is as before or as after for each swapped range. Since lower ranges are
swapped first, what supersedes a record is always still there when the record goes; and doing a
pass again gives the same. When the log is truncated or loses segments to retention while the work
runs, the work is thrown away: it read what is no longer so.

Kept for the sake of others:
- Control batches, and batches whose body does not decode (they are reported), stay as they are.
- The last batch of each living producer stays with its sequences, if need be without records, so
  that a replay knows the producer; so do batches of transactions that have records left.

Memory: the dedupe buffer, a chunk of a file (`DIRTY_CHUNK_BYTES` or `CLEAN_CHUNK_BYTES`, or a batch
if that is larger) as it is stored and what it decodes to, and one batch that is being merged. A
buffer too small for a single chunk of the dirty part is exceeded by the keys of that chunk.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Generator, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import partial
from itertools import accumulate
from typing import Final

import numpy as np
import pyarrow as pa

from tailrace.errors import (
    CorruptBatch,
    DamagedLog,
    LogClosed,
    StorageError,
    TailraceError,
)
from tailrace.log.cleaning.chunks import (
    ALL_OFFSETS,
    Chunk,
    Piece,
    ReadBatch,
    SourceSegment,
    SurveyedChunk,
    pieces_left,
    read_chunks,
    row_offsets,
    survey,
)
from tailrace.log.cleaning.cleanable import Dirtiness, SegmentSpan, dirty_segments
from tailrace.log.cleaning.rewriting import (
    MERGED_BATCH_BYTES,
    CleanedSegment,
    RewriteLimits,
    Rewriter,
)
from tailrace.log.cleaning.survivors import (
    NO_HORIZON_MS,
    KeyMap,
    LastOffsets,
    Mask,
    Offsets,
    kept_rows,
    tombstones,
)
from tailrace.log.cleaning.verdicts import Stretch, Verdict
from tailrace.log.file_cache import CachedFile
from tailrace.log.log import PartitionLog
from tailrace.log.segment import Segment, Storage
from tailrace.log.snapshots import remove_snapshots
from tailrace.model import NO_TIMESTAMP_MS, TopicPartition
from tailrace.record.header import BatchHeader
from tailrace.record.view import BatchView

# As `log.cleaner.dedupe.buffer.size` has it when nobody says otherwise.
DEDUPE_BUFFER_BYTES: Final = 128 << 20
# The dirty part is read twice, as far as something of it stays, in chunks of this size, small
# enough that their memory is used again, and that many of them are gone as a whole.
DIRTY_CHUNK_BYTES: Final = 4 << 20
# The clean part is read once in larger chunks, because each looks up its keys in the whole map,
# and making the map searchable takes as long for a small chunk as for a large one.
CLEAN_CHUNK_BYTES: Final = 64 << 20
# A merged batch this full (a share of what it may be) is copied rather than merged once more.
COPIED_FROM_SHARE: Final = 0.5
ALL_BYTES: Final = 2**63 - 1
# So many of the old files are kept open until `release`; the rest go when they are replaced.
HELD_FILES_MAX: Final = 64
# A retention that reaches beyond this never ends: the field in the header holds no more.
HORIZON_MS_MAX: Final = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionReport:
    """What a pass came to. `is_complete` says that it reached the end of the dirty part."""

    cleaned_to: int
    is_complete: bool
    segments_before: int
    segments_after: int
    bytes_before: int
    bytes_after: int
    records_before: int
    records_after: int
    tombstones_expired: int
    copied_blindly: tuple[str, ...]


def dirtiness(log: PartitionLog, *, cleaned_to: int, bound: int, now_ms: int) -> Dirtiness:
    """How dirty a log is; `bound` is its high watermark."""
    spans = _spans(log)
    dirty = _dirty(log, spans, cleaned_to=cleaned_to, bound=bound, now_ms=now_ms)
    sizes = [each.size_bytes for each in spans]
    return Dirtiness(sum(sizes[: dirty.start]), sum(sizes[dirty.start : dirty.stop]))


def begin_compaction(
    log: PartitionLog, *, cleaned_to: int, bound: int, now_ms: int, buffer_bytes: int
) -> CompactionWork | None:
    """The work of one pass over a log, or None when nothing is dirty.

    `cleaned_to` is the cleaner checkpoint, `bound` the high watermark. One work at a time.
    """
    dirty = _dirty(log, _spans(log), cleaned_to=cleaned_to, bound=bound, now_ms=now_ms)
    if not log.is_open or not dirty:
        return None
    segments = tuple(log.segments[: dirty.stop])
    config = log.config
    return CompactionWork(
        storage=log.storage,
        folder=log.folder,
        partition=log.partition,
        generation=log.generation,
        recovery_point=log.recovery_point,
        log_start=log.log_start,
        segments=segments,
        dirty_from=max(cleaned_to, segments[dirty.start].base_offset),
        producer_ids=frozenset(each.producer_id for each in log.producers.entries()),
        now_ms=now_ms,
        delete_retention_ms=config.delete_retention_ms,
        buffer_bytes=buffer_bytes,
        limits=RewriteLimits(
            batch_bytes=min(MERGED_BATCH_BYTES, config.max_message_bytes),
            segment_bytes=config.segment_bytes,
            segment_index_bytes=config.segment_index_bytes,
            index_interval_bytes=config.index_interval_bytes,
        ),
    )


def end_compaction(log: PartitionLog, work: CompactionWork) -> CompactionReport | None:
    """Swap in what the work wrote; None when the log was cut meanwhile and it was for nothing.

    Nor is a work of use that is not through: what it has not come to would count as compacted.
    An error of the disk stops the log, which is whole again once it is reopened.
    """
    if not work.is_done or work.is_stale(log):
        work.discard()
        return None
    for cleaned in work.outputs:
        old = log.swap_segments(cleaned.segment, cleaned.swap)
        _save_derived(log, cleaned.segment, {each.base_offset for each in old[1:]})
    return work.report()


def fail_compaction(
    log: PartitionLog, work: CompactionWork, error: OSError | TailraceError
) -> TailraceError | None:
    """The work failed: the log is as it was. Returns what to tell, None when it was cut meanwhile.

    DamagedLog means that durable records are damaged, and that the replica must be repaired.
    """
    work.discard()
    if work.is_stale(log):
        return None
    if isinstance(error, TailraceError):
        return error
    failure = StorageError(f"{log.partition}: compaction failed: {error}")
    failure.__cause__ = error
    return failure


def compact(
    log: PartitionLog,
    *,
    now_ms: int,
    cleaned_to: int = 0,
    bound: int | None = None,
    buffer_bytes: int = DEDUPE_BUFFER_BYTES,
) -> CompactionReport | None:
    """One pass, here and now; without a bound over all that is closed and durable."""
    work = begin_compaction(
        log,
        cleaned_to=cleaned_to,
        bound=log.log_end if bound is None else bound,
        now_ms=now_ms,
        buffer_bytes=buffer_bytes,
    )
    if work is None:
        return None
    try:
        work.run()
    except (OSError, TailraceError) as error:
        failure = fail_compaction(log, work, error)
        if failure is None:
            return None
        raise failure from error
    try:
        return end_compaction(log, work)
    finally:
        work.release()


@dataclass(slots=True)
class Progress:
    """How far the work is; other threads may look at it at any time."""

    records_before: int = 0
    records_after: int = 0
    bytes_read: int = 0
    tombstones_expired: int = 0


@dataclass(slots=True, kw_only=True)
class CompactionWork:
    """The blocking part of a pass; see the module's description."""

    storage: Storage
    folder: str
    partition: TopicPartition
    generation: int
    recovery_point: int
    log_start: int
    segments: tuple[Segment, ...]
    dirty_from: int
    producer_ids: frozenset[int]
    now_ms: int
    delete_retention_ms: int
    buffer_bytes: int
    limits: RewriteLimits
    dirty_chunk_bytes: int = DIRTY_CHUNK_BYTES
    clean_chunk_bytes: int = CLEAN_CHUNK_BYTES
    progress: Progress = field(default_factory=Progress)
    # Of the segments; found out by the first step, since their indexes may have to be read.
    sources: tuple[SourceSegment, ...] = ()
    is_done: bool = False
    _cancelled: bool = False
    _covered_to: int = 0
    _copied_blindly: list[str] = field(default_factory=list)
    # The base offset of the last batch of each living producer.
    _last_batches: dict[int, int] = field(default_factory=dict)
    # What was verified and mapped, by the path of its segment.
    _surveyed: dict[str, list[SurveyedChunk]] = field(default_factory=dict)
    _held: list[CachedFile] = field(default_factory=list)
    _rewriter: Rewriter = field(init=False)
    _steps: Generator[None, None, None] = field(init=False)

    def __post_init__(self) -> None:
        self._rewriter = Rewriter(self.storage, self.folder, self.limits)
        self._steps = self._all_steps()

    def run(self) -> None:
        """Map the keys, then write the cleaned files; any error leaves the log as it was."""
        while not self.advance(ALL_BYTES):
            pass

    def advance(self, step_bytes: int) -> bool:
        """Go on for about so many bytes, so that others get their turn; True when all is done.

        One thread at a time, which need not be the same each time. A step may take a chunk more,
        and making the map of keys, once they are read, is one step of its own.
        """
        before = self.moved_bytes
        return all(self.moved_bytes - before < step_bytes for _ in self._steps)

    @property
    def moved_bytes(self) -> int:
        """What was read and written so far."""
        return self.progress.bytes_read + self._rewriter.bytes_written

    def _all_steps(self) -> Generator[None, None, None]:
        self.sources = tuple(_source(each) for each in self.segments)
        key_map = KeyMap(limit_bytes=self.buffer_bytes)
        yield from self._map_keys(key_map)
        last = key_map.last_offsets()
        yield
        self._find_last_batches()
        rewriter = self._rewriter
        end_offset = self.dirty_from
        for source in self.sources:
            if source.base_offset >= self._covered_to:
                break
            rewriter.start_segment(source)
            is_gone = partial(self._is_gone, last, sorted(self._last_batches.values()))
            for part in pieces_left(source, self._surveyed.pop(source.path, []), is_gone):
                if isinstance(part, SurveyedChunk):
                    self._pass_over(part)
                else:
                    yield from self._rewrite_piece(source, part, last)
            end_offset = source.next_offset
            if len(self._held) < HELD_FILES_MAX:
                self._held.append(self.storage.cache.use(source.path))
        rewriter.finish(end_offset)
        self.is_done = True

    def cancel(self) -> None:
        """Make `run` raise LogClosed soon; may be called from any thread."""
        self._cancelled = True

    def is_stale(self, log: PartitionLog) -> bool:
        """Whether the log no longer has what the work read."""
        return (
            not log.is_open
            or log.generation != self.generation
            or len(log.segments) <= len(self.segments)
            or any(now is not then for now, then in zip(log.segments, self.segments, strict=False))
        )

    @property
    def outputs(self) -> list[CleanedSegment]:
        return self._rewriter.outputs

    def discard(self) -> None:
        """Remove what was written; no step may be under way."""
        self._steps.close()
        self._rewriter.discard()
        self.release()

    def release(self) -> None:
        """Let go of the files that were read; those that were replaced are gone with that."""
        held, self._held = self._held, []
        for file in held:
            file.release()

    def report(self) -> CompactionReport:
        """What the pass came to, once `run` is through."""
        done = [each for each in self.sources if each.base_offset < self._covered_to]
        return CompactionReport(
            cleaned_to=self._covered_to,
            is_complete=self._covered_to == self.sources[-1].next_offset,
            segments_before=len(done),
            segments_after=len(self.outputs),
            bytes_before=sum(each.size_bytes for each in done),
            bytes_after=self._rewriter.bytes_written,
            records_before=self.progress.records_before,
            records_after=self.progress.records_after,
            tombstones_expired=self.progress.tombstones_expired,
            copied_blindly=tuple(self._copied_blindly),
        )

    # Reading.

    def _map_keys(self, key_map: KeyMap) -> Iterator[None]:
        """Map keys of the dirty part to their last offsets, and note how far the map reaches."""
        dirty = range(self.dirty_from, ALL_OFFSETS.stop)
        for source in self.sources:
            if source.next_offset <= self.dirty_from:
                continue
            surveyed = self._surveyed[source.path] = []
            for chunk in self._chunks(source, source.whole, self.dirty_chunk_bytes, dirty):
                columns = [each.columns for each in chunk if each.columns is not None]
                if columns:
                    keys = pa.concat_arrays([each.column("key") for each in columns])
                    offsets = row_offsets(chunk)
                    skipped = int(np.searchsorted(offsets, self.dirty_from))
                    if not key_map.offer(keys.slice(skipped), offsets[skipped:]):
                        return
                self._covered_to = chunk[-1].header.next_offset
                start_bytes = surveyed[-1].piece.end_bytes if surveyed else 0
                surveyed.append(survey(chunk, start_bytes, dirty_from=self.dirty_from))
                self._note_last_batches(each.header for each in chunk)
                yield

    def _is_gone(self, last: LastOffsets, last_batches: list[int], chunk: SurveyedChunk) -> bool:
        """Whether nothing of a chunk stays, so that it need not be read once more."""
        if chunk.must_read:
            return False
        ends = (chunk.piece.base_offset, chunk.piece.next_offset)
        rows = np.searchsorted(last.offsets, ends)
        return bool(rows[0] == rows[1]) and bisect_left(last_batches, ends[0]) == bisect_left(
            last_batches, ends[1]
        )

    def _find_last_batches(self) -> None:
        """Look in the clean part for those producers that wrote nothing to the dirty one."""
        missing = self.producer_ids - self._last_batches.keys()
        if not missing:
            return
        found: dict[int, int] = {}
        for source, segment in zip(self.sources, self.segments, strict=True):
            if source.next_offset > self.dirty_from:
                break
            try:
                for _, header in segment.walk(0):
                    if header.producer_id in missing and header.base_sequence >= 0:
                        found[header.producer_id] = header.base_offset
            except CorruptBatch as error:
                raise self._damaged(source, source.base_offset, error) from error
        self._last_batches |= found

    def _note_last_batches(self, headers: Iterator[BatchHeader]) -> None:
        for header in headers:
            if header.producer_id in self.producer_ids and header.base_sequence >= 0:
                self._last_batches[header.producer_id] = header.base_offset

    def _chunks(
        self, source: SourceSegment, piece: Piece, chunk_bytes: int, decoded: range
    ) -> Iterator[Chunk]:
        offset = piece.base_offset
        try:
            with self.storage.cache.use(source.path) as file:
                chunks = read_chunks(
                    file,
                    source,
                    chunk_bytes=chunk_bytes,
                    decoded=decoded,
                    given_up=self.log_start,
                    piece=piece,
                )
                for chunk in chunks:
                    if self._cancelled:
                        raise LogClosed(f"the compaction of {self.partition} was cancelled")
                    self.progress.bytes_read += sum(each.header.length for each in chunk)
                    yield chunk
                    offset = chunk[-1].header.next_offset
        except CorruptBatch as error:
            raise self._damaged(source, offset, error) from error

    def _damaged(self, source: SourceSegment, offset: int, error: CorruptBatch) -> DamagedLog:
        detail = f"{source.path}: {error}"
        return DamagedLog(
            str(self.partition), offset=offset, recovery_point=self.recovery_point, detail=detail
        )

    # Writing.

    def _pass_over(self, chunk: SurveyedChunk) -> None:
        """Nothing of the chunk stays; its epochs do."""
        self.progress.records_before += chunk.records
        for each in chunk.epochs:
            self._rewriter.enter_epoch(each.leader_epoch, each.base_offset)

    def _rewrite_piece(
        self, source: SourceSegment, piece: Piece, last: LastOffsets
    ) -> Iterator[None]:
        is_clean = source.next_offset <= self.dirty_from
        chunk_bytes = self.clean_chunk_bytes if is_clean else self.dirty_chunk_bytes
        for chunk in self._chunks(source, piece, chunk_bytes, range(self._covered_to)):
            self._rewrite(chunk, last)
            yield

    def _rewrite(self, chunk: Chunk, last: LastOffsets) -> None:
        verdict = self._judge(chunk, last)
        stretch = Stretch(self._rewriter, chunk, verdict)
        for number, batch in enumerate(chunk):
            header = batch.header
            fate = self._fate(batch, verdict, number)
            if fate is _Fate.WHOLE:
                stretch.end()
                self._rewriter.enter(header)
                fate = _Fate.COPIED if self._rewriter.adjoins(header) else _Fate.MERGED
            if fate in _MERGING:
                stretch.add(number, gone=fate is _Fate.GONE)
                continue
            stretch.end()
            self._rewriter.enter(header)
            if fate is _Fate.COPIED:
                self._rewriter.copy(header, batch.data)
            else:
                data = verdict.rebuilt(number, batch)
                self._rewriter.copy(BatchView(data).header, data)
        stretch.end()

    def _judge(self, chunk: Chunk, last: LastOffsets) -> Verdict:
        """Decide on all rows of a chunk at once."""
        decoded = [each for each in chunk if each.columns is not None]
        counts = [each.header.record_count if each.columns is not None else 0 for each in chunk]
        bounds = list(accumulate(counts, initial=0))
        progress = self.progress
        progress.records_before += sum(each.header.record_count for each in chunk)
        blind = sum(each.header.record_count for each in chunk if each.columns is None)
        offsets, horizons = row_offsets(chunk), None
        kept = np.ones(0, np.bool_)
        if decoded:
            columns = [each.columns for each in decoded if each.columns is not None]
            keys = pa.chunked_array([each.column("key") for each in columns])
            values = pa.chunked_array([each.column("value") for each in columns])
            kept = kept_rows(
                keys, offsets, last, dirty_from=self.dirty_from, covered_to=self._covered_to
            )
            dead = tombstones(keys, values)
            if dead is not None:
                horizons = self._horizons(chunk, counts, kept, dead)
        progress.records_after += blind + int(np.count_nonzero(kept))
        return Verdict(offsets, kept, horizons, bounds)

    def _horizons(self, chunk: Chunk, counts: list[int], kept: Mask, dead: Mask) -> Offsets | None:
        """Drop the tombstones whose time has come; return for each other one when it will."""
        given = np.repeat([each.header.delete_horizon_ms for each in chunk], counts)
        expired = kept & dead & (given != NO_HORIZON_MS) & (given <= self.now_ms)
        kept[expired] = False
        self.progress.tombstones_expired += int(np.count_nonzero(expired))
        fresh = min(self.now_ms + self.delete_retention_ms, HORIZON_MS_MAX)
        horizons = np.where(given != NO_HORIZON_MS, given, fresh)
        horizons[~(kept & dead)] = NO_HORIZON_MS
        return horizons

    def _fate(self, batch: ReadBatch, verdict: Verdict, number: int) -> _Fate:
        header = batch.header
        if batch.columns is None:
            if batch.problem:
                self._copied_blindly.append(
                    f"{self.partition} at offset {header.base_offset}: {batch.problem}"
                )
            return _Fate.COPIED
        kept = verdict.kept_counts[number]
        is_untouched = kept == header.record_count and not verdict.needs_horizon(number, header)
        is_last = self._last_batches.get(header.producer_id) == header.base_offset
        if is_last or (header.is_transactional and kept):
            return _Fate.COPIED if is_untouched else _Fate.FIXED
        if not kept:
            return _Fate.GONE
        is_large = header.body_bytes >= self.limits.batch_bytes * COPIED_FROM_SHARE
        return _Fate.WHOLE if is_untouched and is_large else _Fate.MERGED


class _Fate(Enum):
    """What becomes of a batch."""

    COPIED = auto()  # As it is.
    FIXED = auto()  # Some rows go, its range and its producer stay.
    WHOLE = auto()  # Copied if nothing needs it to stretch, merged otherwise.
    MERGED = auto()
    GONE = auto()


_MERGING: Final = frozenset({_Fate.MERGED, _Fate.GONE})


def _spans(log: PartitionLog) -> list[SegmentSpan]:
    """The closed segments of a log; their ages only where the log's settings ask for them."""
    has_lag = log.config.min_compaction_lag_ms > 0
    return [
        SegmentSpan(
            each.base_offset,
            each.next_offset,
            each.size,
            _newest_ms(each) if has_lag else NO_TIMESTAMP_MS,
        )
        for each in log.segments[:-1]
    ]


def _newest_ms(segment: Segment) -> int:
    """When the last record came, as the log saw it, or else as the records say."""
    appended_ms = segment.index.appended_ms
    return appended_ms if appended_ms != NO_TIMESTAMP_MS else segment.max_timestamp_ms


def _dirty(
    log: PartitionLog, spans: list[SegmentSpan], *, cleaned_to: int, bound: int, now_ms: int
) -> range:
    return dirty_segments(
        spans,
        cleaned_to=cleaned_to,
        bound=min(bound, log.recovery_point),
        lag_ms=log.config.min_compaction_lag_ms,
        now_ms=now_ms,
    )


def _save_derived(log: PartitionLog, cleaned: Segment, gone: set[int]) -> None:
    """Save the index and drop the snapshots that stood at the ends of segments that are gone.

    Both only speed up a later opening: a full disk must not stop the log here.
    """
    try:
        cleaned.save_index(final=True)
        remove_snapshots(log.storage, log.folder, gone.__contains__)
    except OSError:
        with suppress(OSError):
            cleaned.remove_index_files()
    cleaned.release_index()


def _source(segment: Segment) -> SourceSegment:
    index = segment.index
    return SourceSegment(
        path=segment.path,
        base_offset=segment.base_offset,
        next_offset=segment.next_offset,
        size_bytes=segment.size,
        index_bytes=index.memory_bytes,
        created_ms=index.created_ms,
        appended_ms=index.appended_ms,
    )
