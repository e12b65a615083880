"""Everything in the folder of one partition, compared with itself and with the checkpoints.

It looks at all files (the segments through `log.segment_check`), then has the opening of the log
rehearsed and asks what becomes of each symptom. Nothing is written.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from tailrace.epochs import EpochEntry, EpochHistory
from tailrace.errors import CorruptCheckpoint
from tailrace.log.audit.findings import Finding, Kind, Symptom, Symptoms
from tailrace.log.audit.inspection import Batch, base_in_name, scan
from tailrace.log.audit.overlay import ReadOnlyFiles, read_small
from tailrace.log.audit.rehearsal import LogRehearsal, rehearsed_log
from tailrace.log.audit.remedies import foretell
from tailrace.log.audit.segment_check import Progression, SegmentTask, check_segment
from tailrace.log.checkpoints import (
    LEADER_EPOCHS,
    PARTITION_METADATA,
    TEMPORARY_SUFFIX,
    CleanPartition,
    decode,
)
from tailrace.log.cuts import CUT_FILE
from tailrace.log.facts import NO_FACTS, LogFacts, known_start
from tailrace.log.flushing import MARKER_BYTES_MAX, SYNC_FAILED_FILE, decode_marker
from tailrace.log.log import PartitionLog
from tailrace.log.producers import SNAPSHOT_BYTES_MAX, ProducerStates
from tailrace.log.segment import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    REMOVED_SUFFIX,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    segment_name,
)
from tailrace.log.swap import CLEANED_SUFFIX, SWAP_SUFFIX, SwapRange, swap_path
from tailrace.model import TopicPartition

_SEGMENT_SUFFIXES: Final = (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX)
_SWAP_NAME: Final = re.compile(r"([0-9]{20})\.([0-9]{20})\.swap")
_KNOWN_NAMES: Final = {
    CUT_FILE,
    LEADER_EPOCHS.file_name,
    PARTITION_METADATA.file_name,
    SYNC_FAILED_FILE,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredOffsets:
    """What the checkpoints of the data folder say of one partition."""

    recovery_point: int = 0
    log_start: int = 0
    clean: CleanPartition | None = None
    recovery_point_path: str = ""
    log_start_path: str = ""
    clean_path: str = ""
    # Offsets that the log should reach, by the file that says so.
    others: tuple[tuple[str, int], ...] = ()
    facts: LogFacts = NO_FACTS
    # There is a second copy of its topic's id.
    has_topic_id: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionVerdict:
    """What was found in the folder of one partition, and how it will open."""

    name: str
    folder: str
    segments: int
    size_bytes: int
    batches: int
    records: int
    first_offset: int
    end_offset: int
    recovery_point: int
    opening: str
    findings: tuple[Finding, ...]
    left_out: int


def check_partition(
    files: ReadOnlyFiles,
    folder: str,
    stored: StoredOffsets,
    *,
    now_ms: int,
    deep: bool = False,
    in_use: bool = False,
    progress: Callable[[int], None] = lambda _: None,
) -> PartitionVerdict:
    """Look at every file of a partition's folder and foretell what opening does."""
    check = _PartitionCheck(files, folder, stored, deep=deep, in_use=in_use)
    check.run(progress)
    name = folder.rstrip("/").rpartition("/")[2]
    with rehearsed_log(
        files,
        folder,
        TopicPartition.parse(name) or TopicPartition(name, 0),
        recovery_point=stored.recovery_point,
        log_start=stored.log_start,
        clean=stored.clean,
        now_ms=now_ms,
        facts=stored.facts,
    ) as rehearsal:
        findings = tuple(
            foretell(symptom, rehearsal, known_end=check.known_end)
            for symptom in check.symptoms.found
        )
        opening = _opening(rehearsal)
    return PartitionVerdict(
        name=name,
        folder=folder,
        segments=len(check.layout),
        size_bytes=check.size_bytes,
        batches=check.progression.batches,
        records=check.progression.records,
        first_offset=check.layout[0].base if check.layout else stored.log_start,
        end_offset=check.known_end,
        recovery_point=stored.recovery_point,
        opening=opening,
        findings=findings,
        left_out=sum(check.symptoms.left_out.values()),
    )


@dataclass(frozen=True, slots=True)
class _Place:
    """A segment of the log as it will be once unfinished compactions are finished."""

    base: int
    path: str
    is_swap: bool = False


@dataclass(slots=True)
class _PartitionCheck:
    files: ReadOnlyFiles
    folder: str
    stored: StoredOffsets
    deep: bool
    in_use: bool
    symptoms: Symptoms = field(default_factory=Symptoms)
    progression: Progression = field(default_factory=Progression)
    layout: list[_Place] = field(default_factory=list)
    known_end: int = 0
    size_bytes: int = 0

    def run(self, progress: Callable[[int], None]) -> None:
        names = self.files.list(self.folder)
        self.layout = self._layout(names)
        self.known_end = 0 if self.layout else self.stored.log_start
        self._segments(progress)
        self._loose_files(names)
        self._snapshots(names)
        self._epochs()
        self._metadata(names)
        self._stored_offsets()
        if self.in_use:
            self._forget_motion()

    def _layout(self, names: list[str]) -> list[_Place]:
        places = {
            base: _Place(base, f"{self.folder}/{name}")
            for name in names
            if name.endswith(LOG_SUFFIX) and (base := _exact_base(name, LOG_SUFFIX)) is not None
        }
        for swap in _swaps(names):
            for base in [base for base in places if swap.base <= base < swap.end]:
                del places[base]
            path = swap_path(self.folder, swap)
            places[swap.base] = _Place(swap.base, path, is_swap=True)
            what = f"a compaction of offsets {swap.base} to {swap.end - 1} was not finished"
            self._add(Kind.UNFINISHED_SWAP, path, what)
        return [places[base] for base in sorted(places)]

    def _segments(self, progress: Callable[[int], None]) -> None:
        is_clean = self._clean_matches()
        bases: list[int | None] = [place.base for place in self.layout]
        for place, following in zip(self.layout, [*bases, None][1:], strict=True):
            task = SegmentTask(
                folder=self.folder,
                path=place.path,
                base=place.base,
                following=following,
                index_expected=following is not None or is_clean,
                has_indexes=not place.is_swap,
                deep=self.deep,
            )
            try:
                self.size_bytes += self.files.size(place.path)
                check_segment(self.files, task, self.progression, self.symptoms, progress=progress)
            except OSError as error:
                self._unreadable(place.path, error)
            self.known_end = max(self.known_end, self.progression.next_offset)

    def _clean_matches(self) -> bool:
        clean = self.stored.clean
        if clean is None or not self.layout:
            return False
        active = self.layout[-1]
        try:
            found = (active.base, self.files.size(active.path))
        except OSError:
            return False
        return found == (clean.active_base, clean.active_size_bytes)

    def _loose_files(self, names: list[str]) -> None:
        """Leftovers of crashes, the marker of a failed sync, and files that nobody knows."""
        bases = {place.base for place in self.layout}
        for name in names:
            path = f"{self.folder}/{name}"
            base = base_in_name(name)
            if name.endswith((TEMPORARY_SUFFIX, CLEANED_SUFFIX, REMOVED_SUFFIX)):
                self._add(Kind.LEFTOVER, path, "a crash left it half made")
            elif name == SYNC_FAILED_FILE:
                self._sync_failed(path)
            elif name.endswith((INDEX_SUFFIX, TIME_INDEX_SUFFIX)) and base not in bases:
                self._add(Kind.STRAY_FILE, path, "there is no segment that it belongs to")
            elif not self._is_known(name):
                self._add(Kind.STRAY_FILE, path, "it is no file of a log")

    def _is_known(self, name: str) -> bool:
        if name in _KNOWN_NAMES or name.endswith(SNAPSHOT_SUFFIX):
            return True
        if name.endswith(SWAP_SUFFIX):
            return _SWAP_NAME.fullmatch(name) is not None
        return any(_exact_base(name, suffix) is not None for suffix in _SEGMENT_SUFFIXES)

    def _sync_failed(self, path: str) -> None:
        try:
            data = self._read(path, MARKER_BYTES_MAX)
        except CorruptCheckpoint:
            data = b""
        if data is None:
            return
        offset = decode_marker(data, otherwise=self.stored.recovery_point)
        what = f"a sync failed: from offset {offset} on nothing can be trusted"
        self._add(Kind.SYNC_FAILED, path, what, offset=offset)

    def _snapshots(self, names: list[str]) -> None:
        for name in names:
            if not name.endswith(SNAPSHOT_SUFFIX):
                continue
            path = f"{self.folder}/{name}"
            try:
                data = self._read(path, SNAPSHOT_BYTES_MAX)
                if data is None:
                    continue
                offset, states = ProducerStates.from_bytes(data)
            except CorruptCheckpoint as error:
                self._add(Kind.SNAPSHOT_CORRUPT, path, str(error))
                continue
            problem = _snapshot_problem(name, offset, states, self.known_end)
            if problem is not None:
                self._add(Kind.SNAPSHOT_WRONG, path, problem, offset=offset)

    def _epochs(self) -> None:
        path = f"{self.folder}/{LEADER_EPOCHS.file_name}"
        seen = self.progression
        first = max(self.stored.log_start, self.layout[0].base if self.layout else 0)

        def is_mended(log: PartitionLog) -> bool:
            end = min(log.log_end, self.known_end)
            return _epochs_problem(log.epochs.entries, seen, first, end) is None

        try:
            data = read_small(self.files, path, LEADER_EPOCHS.bytes_max)
            entries = decode(LEADER_EPOCHS, data)
        except FileNotFoundError:
            if seen.epoch_starts:
                self._add(Kind.EPOCHS_MISSING, path, "it is missing", is_mended=is_mended)
            return
        except CorruptCheckpoint as error:
            self._add(Kind.EPOCHS_CORRUPT, path, str(error), is_mended=is_mended)
            return
        except OSError as error:
            self._unreadable(path, error)
            return
        problem = _epochs_problem(tuple(entries), seen, first, self.known_end)
        if problem is not None:
            self._add(Kind.EPOCHS_WRONG, path, problem, is_mended=is_mended)

    def _metadata(self, names: list[str]) -> None:
        is_mended = (lambda _: True) if self.stored.has_topic_id else None
        path = f"{self.folder}/{PARTITION_METADATA.file_name}"
        if PARTITION_METADATA.file_name not in names:
            if self.layout:
                self._add(Kind.METADATA_MISSING, path, "it is missing", is_mended=is_mended)
            else:
                self._add(Kind.NEVER_FINISHED, self.folder, "its creation was interrupted")
            return
        try:
            data = self._read(path, PARTITION_METADATA.bytes_max)
            if data is not None:
                decode(PARTITION_METADATA, data)
        except CorruptCheckpoint as error:
            self._add(Kind.CHECKPOINT_CORRUPT, path, str(error), is_mended=is_mended)

    def _stored_start(self) -> None:
        stored = self.stored
        start = known_start(stored.log_start, stored.clean, stored.facts)
        is_known = stored.facts.start_is_known or stored.clean is not None
        if is_known and self.layout and start < self.layout[0].base:
            first = self.layout[0]
            what = f"offsets {start} to {first.base - 1}, which nothing gave up, are missing before"
            self._add(Kind.OFFSET_GAP, first.path, f"{what} it", offset=start)

    def _stored_offsets(self) -> None:
        stored, end = self.stored, self.known_end
        if stored.log_start > end:
            what = f"the log is to start at {stored.log_start}, but ends before {end}"
            self._add(Kind.LOG_START_AHEAD, stored.log_start_path, what, offset=end)
        if stored.recovery_point > end:
            what = (
                f"everything below {stored.recovery_point} was durable, but the log ends at {end}"
            )
            self._add(Kind.RECOVERY_POINT_AHEAD, stored.recovery_point_path, what, offset=end)
        for path, offset in stored.others:
            if offset > end:
                self._add(Kind.OFFSET_AHEAD, path, f"it says {offset}, but the log ends at {end}")
        self._stored_start()
        clean = stored.clean
        if clean is None:
            return
        if not self._clean_matches():
            what = "the last segment is not as the marker says"
            self._add(Kind.CLEAN_MARKER_WRONG, stored.clean_path, what)
        elif clean.log_end != end:
            what = f"it says that the log ends at {clean.log_end}, but the batches end at {end}"
            self._add(
                Kind.CLEAN_MARKER_WRONG,
                stored.clean_path,
                what,
                is_mended=lambda log: log.log_end == end,
            )

    def _forget_motion(self) -> None:
        """Drop what was only an append or a checkpoint under way, and is whole or gone by now."""
        self.symptoms.found = [each for each in self.symptoms.found if not self._has_passed(each)]

    def _has_passed(self, symptom: Symptom) -> bool:
        if symptom.kind in {Kind.LEFTOVER, Kind.UNREADABLE_FILE}:
            return not self.files.exists(symptom.path)
        if symptom.kind is not Kind.TORN_TAIL:
            return False
        try:
            size = self.files.size(symptom.path)
            file = self.files.open(symptom.path)
        except OSError:
            return True
        try:
            found = next(scan(file, size, start=symptom.position), None)
        finally:
            file.close()
        return found is None or isinstance(found, Batch)

    def _read(self, path: str, limit_bytes: int) -> bytes | None:
        """None when it cannot be read; CorruptCheckpoint when it is larger than it can be."""
        try:
            return read_small(self.files, path, limit_bytes)
        except OSError as error:
            self._unreadable(path, error)
            return None

    def _unreadable(self, path: str, error: OSError) -> None:
        self._add(Kind.UNREADABLE_FILE, path, f"it cannot be read: {error.strerror or error}")

    def _add(
        self,
        kind: Kind,
        path: str,
        what: str,
        *,
        offset: int = -1,
        is_mended: Callable[[PartitionLog], bool] | None = None,
    ) -> None:
        self.symptoms.add(
            Symptom(kind=kind, path=path, what=what, offset=offset, is_mended=is_mended)
        )


def _exact_base(name: str, suffix: str) -> int | None:
    base = base_in_name(name)
    return base if base is not None and name == segment_name(base, suffix) else None


def _swaps(names: list[str]) -> Iterable[SwapRange]:
    for name in names:
        match = _SWAP_NAME.fullmatch(name)
        if match is not None:
            yield SwapRange(int(match[1]), int(match[2]))


def _snapshot_problem(name: str, offset: int, states: ProducerStates, known_end: int) -> str | None:
    if name != segment_name(offset, SNAPSHOT_SUFFIX):
        return f"it holds the producers at offset {offset}, not those that its name says"
    if offset > known_end:
        return f"it is of offset {offset}, but the log ends at {known_end}"
    for producer in states.entries():
        if any(batch.last_offset >= offset for batch in producer.batches):
            return f"producer {producer.producer_id} has a batch at or above its offset {offset}"
    return None


def _epochs_problem(
    entries: tuple[EpochEntry, ...], seen: Progression, first: int, end: int
) -> str | None:
    """Where stored epochs and those of the batches differ, in offsets [first, end)."""
    if not seen.epoch_starts or first >= end:
        return None
    if not entries:
        return "it is empty, but the batches have leader epochs"
    stored = EpochHistory(entries)
    told = [(epoch, max(start, first)) for epoch, start in seen.epoch_starts if start < end]
    # An epoch that was over before the first offset says nothing about what is left.
    told = [each for each, after in pairwise([*told, (0, end)]) if each[1] < after[1]]
    for epoch, start in told:
        if stored.epoch_at(start) != epoch:
            return f"offset {start} was written in epoch {epoch}, not {stored.epoch_at(start)}"
    batches = EpochHistory(told)
    for epoch, start in entries:
        if any(lost <= start < lost_end for lost, lost_end in seen.gaps):
            continue
        if first <= start < end and batches.epoch_at(start) != epoch:
            return f"epoch {epoch} did not write offset {start}, {batches.epoch_at(start)} did"
    return None


def _opening(rehearsal: LogRehearsal) -> str:
    """How the log will open, in one sentence."""
    log, report = rehearsal.log, rehearsal.report
    if log is None or report is None:
        return f"does not open: {rehearsal.error}"
    how = "opens without a scan"
    if not report.clean:
        how = f"opens after a scan of {report.scanned_bytes:,} bytes"
    return f"{how}, offsets {log.log_start:,} to {log.log_end:,}"
