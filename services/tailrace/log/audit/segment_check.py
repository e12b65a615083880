"""One pass over a segment and its indexes: what is wrong with them, and what the batches say.

It compares the files with each other and with the format, and knows nothing of recovery, of
checkpoints or of other segments but what the caller passes on (`Progression`).
Memory does not grow with the segment; the indexes of one segment are read whole.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from tailrace.errors import BatchFault, CorruptBatch
from tailrace.log.audit.findings import Kind, Symptom, Symptoms
from tailrace.log.audit.index_check import IndexCheck
from tailrace.log.audit.inspection import Batch, Damage, scan
from tailrace.log.audit.overlay import ReadOnlyFile, ReadOnlyFiles
from tailrace.log.segment import index_bytes_max
from tailrace.model import NO_LEADER_EPOCH
from tailrace.record.header import BatchHeader
from tailrace.record.view import BatchView

# Bytes between progress reports: often enough for a bar that moves, seldom enough to cost nothing.
PROGRESS_BYTES: Final = 4 * 1024 * 1024
GAPS_MAX: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentTask:
    """Which file to look at, and what it should be.

    `index_expected`: the segment was closed in order, so both index files should be there and
    speak for all of it. `following` is where the next segment begins; None for the last one.
    """

    folder: str
    path: str
    base: int
    following: int | None
    index_expected: bool
    has_indexes: bool = True
    deep: bool = False


@dataclass(slots=True)
class Progression:
    """What goes on from one batch to the next, also across segments."""

    next_offset: int = -1
    epoch: int = NO_LEADER_EPOCH
    epoch_starts: list[tuple[int, int]] = field(default_factory=list)
    # Offsets [first, end) of which nothing is known.
    gaps: list[tuple[int, int]] = field(default_factory=list)
    batches: int = 0
    records: int = 0

    def begin(self, base: int) -> None:
        """A segment with this base offset begins."""
        self._skip_to(base)
        self.next_offset = base

    def take(self, header: BatchHeader) -> None:
        self._skip_to(header.base_offset)
        if header.leader_epoch > self.epoch:
            self.epoch_starts.append((header.leader_epoch, header.base_offset))
        self.epoch = max(self.epoch, header.leader_epoch)
        self.next_offset = header.next_offset
        self.batches += 1
        self.records += header.record_count

    def _skip_to(self, offset: int) -> None:
        if not 0 <= self.next_offset < offset:
            return
        if len(self.gaps) < GAPS_MAX:
            self.gaps.append((self.next_offset, offset))
        else:
            # With so many of them nothing is certain any more.
            self.gaps[-1] = (self.gaps[-1][0], offset)


def check_segment(
    files: ReadOnlyFiles,
    task: SegmentTask,
    progression: Progression,
    symptoms: Symptoms,
    *,
    progress: Callable[[int], None] = lambda _: None,
) -> None:
    """Look at every byte of a segment; `progress` is told how many were read since last time."""
    progression.begin(task.base)
    size = files.size(task.path)
    indexes = None
    if task.has_indexes:
        indexes = IndexCheck(
            files,
            task.folder,
            task.base,
            symptoms,
            is_expected=task.index_expected,
            bytes_max=index_bytes_max(size),
        )
    file = files.open(task.path)
    try:
        checking = _SegmentCheck(task, file, size, progression, symptoms, indexes)
        told = 0
        for found in scan(file, size):
            checking.take(found)
            if found.position - told >= PROGRESS_BYTES:
                progress(found.position - told)
                told = found.position
        progress(size - told)
        checking.finish()
    finally:
        file.close()


@dataclass(slots=True)
class _SegmentCheck:
    task: SegmentTask
    file: ReadOnlyFile
    size: int
    progression: Progression
    symptoms: Symptoms
    indexes: IndexCheck | None
    # What lies before the next whole batch, if anything does.
    damage: list[Damage] = field(default_factory=list)
    is_first: bool = True
    is_whole: bool = True

    def take(self, found: Batch | Damage) -> None:
        if isinstance(found, Damage):
            self.is_whole = False
            if len(self.damage) < 2:
                self.damage.append(found)
            else:
                # One stretch is enough to say what is lost.
                self.damage[-1] = self.damage[-1]._replace(end=found.end)
            if self.indexes is not None:
                self.indexes.pass_over(found)
            return
        header = found.header
        self._place(found)
        if header.leader_epoch < self.progression.epoch:
            what = f"epoch {header.leader_epoch} follows epoch {self.progression.epoch}"
            self._add(Kind.EPOCH_FALLS, found.position, what, header.base_offset)
        if self.task.deep:
            self._decode(found)
        if self.indexes is not None:
            self.indexes.take(found)
        self.progression.take(header)
        self.is_first = False

    def finish(self) -> None:
        expected = self.progression.next_offset
        following = self.task.following
        if self.damage:
            self._tell_damage(following)
        elif following is not None and following != expected:
            kind = Kind.OFFSET_GAP if following > expected else Kind.OFFSET_OVERLAP
            what = (
                f"it ends before offset {expected:,}, but the next segment begins at {following:,}"
            )
            self._add(kind, self.size, what, expected)
        if self.indexes is not None:
            self.indexes.finish(self.size, is_whole=self.is_whole)

    def _place(self, found: Batch) -> None:
        """Compare the offset of a batch with the one that is due."""
        base_offset, expected = found.header.base_offset, self.progression.next_offset
        if self.damage:
            self._tell_damage(base_offset)
            self.damage.clear()
        elif base_offset == expected:
            return
        elif self.is_first:
            what = f"it is named for offset {self.task.base:,}, but begins with {base_offset:,}"
            self._add(Kind.MISNAMED_SEGMENT, found.position, what, expected)
        elif base_offset > expected:
            what = f"offsets {expected:,} to {base_offset - 1:,} are missing"
            self._add(Kind.OFFSET_GAP, found.position, what, expected)
        else:
            what = f"offset {base_offset:,} comes again: {expected:,} was due"
            self._add(Kind.OFFSET_OVERLAP, found.position, what, expected)

    def _tell_damage(self, next_offset: int | None) -> None:
        first, last = self.damage[0], self.damage[-1]
        expected = self.progression.next_offset
        is_tail = next_offset is None and last.end == self.size
        if is_tail and (first.all_zeros or first.fault is BatchFault.CUT_SHORT):
            kind = Kind.TORN_TAIL
            what = "zeros" if first.all_zeros else first.reason
            what += f", {last.end - first.position:,} bytes up to the end"
        else:
            kind = Kind.CORRUPT_BATCH
            what = f"{first.reason}, {last.end - first.position:,} bytes"
        if next_offset is not None and next_offset > expected:
            what += f", which held offsets {expected:,} to {next_offset - 1:,}"
        self._add(kind, first.position, what, expected)

    def _decode(self, found: Batch) -> None:
        header = found.header
        try:
            BatchView(self.file.read_at(found.position, header.length)).record_batch()
        except CorruptBatch as error:
            what = f"offsets {header.base_offset:,} to {header.last_offset:,}: {error}"
            self._add(Kind.UNREADABLE_BODY, found.position, what, header.base_offset)

    def _add(self, kind: Kind, position: int, what: str, offset: int) -> None:
        self.symptoms.add(
            Symptom(kind=kind, path=self.task.path, position=position, what=what, offset=offset)
        )
