"""Opening the log of one partition, after a clean shutdown or a crash.

After a clean shutdown nothing is scanned: the marker says where the log ends. Otherwise what is
below the recovery point is trusted, what is above is scanned with its checksums, and the log is
cut at the first batch that is torn or damaged. Even what is trusted must have no segment missing
(`tailrace.log.continuity`): one that breaks off is scanned. Damage *below* the recovery point is
not cut away silently: those records were durable and may be acknowledged, so `DamagedLog` is
raised, and the caller repairs the replica from its leader: `accept_loss=True` verifies the whole
log, cuts it at the damage and opens what is before. What was given up (below the log start) cannot
be damaged: a segment that is damaged there and whole above is shortened from its front
(`tailrace.log.salvage`).

Opening is idempotent: killed at any point and started again it comes to the same log, and every
segment that was recovered is reported by `progress`, so that a loop of crashes still advances.
That it has cut something off is noted first (`tailrace.log.cuts`): the next opening says it, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from tailrace.config import LogConfig
from tailrace.epochs import EpochHistory
from tailrace.errors import CorruptBatch, CorruptCheckpoint, DamagedLog
from tailrace.log.checkpoints import (
    LEADER_EPOCHS,
    TEMPORARY_SUFFIX,
    CleanPartition,
    encode,
    read_or_none,
    write_atomically,
)
from tailrace.log.continuity import first_break, segments_crc
from tailrace.log.cuts import note_cut, noted_cut
from tailrace.log.facts import NO_FACTS, LogFacts, known_start
from tailrace.log.flushing import failed_sync_limit, forget_failed_sync, mark_failed_sync
from tailrace.log.log import LogCheckpoints, PartitionLog
from tailrace.log.producers import ProducerStates
from tailrace.log.salvage import copy_from, find_batch
from tailrace.log.segment import (
    LOG_SUFFIX,
    REMOVED_SUFFIX,
    Segment,
    Storage,
    segment_name,
)
from tailrace.log.snapshots import load_producers, remove_snapshots
from tailrace.log.swap import (
    CLEANED_SUFFIX,
    finish_swap,
    segment_bases,
    unfinished_swaps,
)
from tailrace.model import TopicPartition


@dataclass(slots=True)
class OpenReport:
    """What opening a log found and did."""

    partition: TopicPartition
    clean: bool
    scanned_bytes: int = 0
    cut: list[str] = field(default_factory=list)
    doubt: str = ""
    """What this opening or an earlier one cut off, as long as the cluster may not know of it."""
    mended: list[str] = field(default_factory=list)
    recovery_point: int = 0
    """Up to where it was known to be durable; what is cut without a word is above."""


def open_log(
    storage: Storage,
    folder: str,
    partition: TopicPartition,
    *,
    config: LogConfig,
    checkpoints: LogCheckpoints,
    recovery_point: int,
    log_start: int,
    clean: CleanPartition | None,
    now_ms: int,
    accept_loss: bool = False,
    facts: LogFacts = NO_FACTS,
    progress: Callable[[int], None] = lambda _: None,
) -> tuple[PartitionLog, OpenReport]:
    """Open the log in `folder`; see the module's description for what that promises."""
    opening = _Opening(storage, folder, partition, config, checkpoints, accept_loss, progress)
    opening.tidy()
    opening.report.doubt = noted_cut(storage.files, folder)
    limit = failed_sync_limit(storage, folder, recovery_point)
    if limit is not None:
        checkpoints.lower_recovery_point(limit)
        # Not the lower of the two: all below the limit was durable, even if that was not stored.
        recovery_point, clean = limit, None
    known = known_start(log_start, clean, facts)
    segments = opening.check_start(opening.segments(log_start, known), known, clean, facts)
    if clean is not None:
        # Whether or not the marker still fits: all this was durable.
        recovery_point = max(recovery_point, clean.log_end)
        log_start = max(log_start, clean.log_start)
    scan_from = opening.scan_from(segments, recovery_point, log_start, clean)
    if clean is not None and scan_from is None:
        opening.report.clean = True
        segments[-1].next_offset = recovery_point = clean.log_end
        epochs = opening.stored_epochs(segments, up_to=recovery_point, log_start=log_start)
    else:
        start = recovery_point if scan_from is None else scan_from
        epochs = opening.recover(segments, _Recovery(recovery_point, start, limit, log_start))
    if log_start > segments[-1].next_offset:
        segments = opening.start_over(segments, log_start)
        epochs = EpochHistory()
    log_end = opening.check_end(segments, facts.high_watermark if limit is None else 0)
    log_start = max(log_start, segments[0].base_offset, min(known, log_end))
    epochs.truncate_start(log_start)
    log = PartitionLog(
        storage,
        folder,
        partition,
        config=config,
        checkpoints=checkpoints,
        segments=segments,
        epochs=epochs,
        producers=opening.producers(segments, now_ms),
        log_start=log_start,
        recovery_point=min(max(recovery_point, segments[0].base_offset), segments[-1].next_offset),
        synced=opening.report.clean,
        start_cause=facts.start_cause,
    )
    if not opening.report.clean:
        # Before it is forgotten why the log ends here, nothing may say that it ended later.
        checkpoints.lower_recovery_point(log_end)
        log.flush()
        forget_failed_sync(storage, folder)
    return log, opening.report


def make_log(
    storage: Storage,
    folder: str,
    partition: TopicPartition,
    *,
    config: LogConfig,
    checkpoints: LogCheckpoints,
) -> PartitionLog:
    """The log of a new partition, in a folder that has never had one.

    There is nothing to scan and nothing to save: what is written first is synced with its names.
    """
    interval = config.index_interval_bytes
    return PartitionLog(
        storage,
        folder,
        partition,
        config=config,
        checkpoints=checkpoints,
        segments=[Segment.create(storage, folder, 0, index_interval_bytes=interval)],
        epochs=EpochHistory(),
        producers=ProducerStates(),
        log_start=0,
        recovery_point=0,
    )


class _Recovery(NamedTuple):
    """Where to scan from, and how to judge what is found.

    Nothing above `limit` is trusted. Damage below `recovery_point` is reported, unless all that
    was durable is below `log_start` and so was given up.
    """

    recovery_point: int
    scan_from: int
    limit: int | None
    log_start: int


@dataclass(slots=True)
class _Opening:
    """The steps of `open_log`, and what they have in common."""

    storage: Storage
    folder: str
    partition: TopicPartition
    config: LogConfig
    checkpoints: LogCheckpoints
    accept_loss: bool
    progress: Callable[[int], None]
    report: OpenReport = field(init=False)
    # Over the segments as the folder had them, to compare with the clean-shutdown marker.
    segments_crc: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self.report = OpenReport(self.partition, clean=False)

    def tidy(self) -> None:
        """Finish or undo what a crash interrupted."""
        files = self.storage.files
        for name in files.list(self.folder):
            if name.endswith((CLEANED_SUFFIX, REMOVED_SUFFIX, TEMPORARY_SUFFIX)):
                files.remove(f"{self.folder}/{name}")
                self.report.mended.append(f"removed {name}, left by a crash")
        for swap in unfinished_swaps(files, self.folder):
            finish_swap(files, self.folder, swap)
            self.report.mended.append(f"finished the compaction of {swap.base} to {swap.end}")
        # A reader of the log that was open before may have brought back files that are gone now.
        self.storage.cache.forget_folder(self.folder)

    def segments(self, log_start: int, known_start: int) -> list[Segment]:
        """The segments as the folder has them; each ends where the next begins."""
        bases = segment_bases(self.storage.files, self.folder)
        if not bases:
            return [self._new_segment(known_start)]
        segments = [self._found_segment(base) for base in bases]
        self.segments_crc = segments_crc(segments)
        for segment, after in pairwise(segments):
            segment.next_offset = after.base_offset
        self._drop_below(segments, log_start)
        return segments

    def check_start(
        self,
        segments: list[Segment],
        known_start: int,
        clean: CleanPartition | None,
        facts: LogFacts,
    ) -> list[Segment]:
        """Nothing that was given up is missing: segments go after the log start says so."""
        first = segments[0].base_offset
        if first <= known_start:
            return segments
        what = f"offsets {known_start} to {first - 1} are gone: the first segment begins at {first}"
        if not facts.start_is_known and clean is None:
            self.report.mended.append(f"{what}, and an earlier release did not store why")
            return segments
        if not self.accept_loss:
            damage = self._damaged(known_start, first, what)
            damage.is_headless = True
            raise damage
        self.report.mended.append(what)
        if not facts.anew:
            return segments
        self.checkpoints.lower_recovery_point(known_start)
        return self.start_over(segments, known_start)

    def scan_from(
        self,
        segments: list[Segment],
        recovery_point: int,
        log_start: int,
        clean: CleanPartition | None,
    ) -> int | None:
        """From which offset on the batches have to be read; None: the marker says all there is."""
        if self.accept_loss:
            # What is below the log start was given up: damage there costs nothing.
            return max(log_start, segments[0].base_offset)
        start: int | None = recovery_point
        if clean is not None and _matches(clean, segments[-1]):
            start = None
        elif clean is not None:
            self.report.mended.append("the clean-shutdown marker does not fit: scanning")
            start = min(recovery_point, segments[-1].base_offset)
        if clean is not None and clean.segments_crc == self.segments_crc:
            return start
        # What is above is scanned anyhow, what is below was given up.
        trusted = [
            each
            for each in segments
            if each.base_offset <= recovery_point and each.next_offset > log_start
        ]
        broken = first_break(self.storage, trusted)
        if broken is None:
            return start
        what = f"{broken.path} does not end where the next segment begins: scanning from there"
        self.report.mended.append(what)
        return broken.base_offset if start is None else min(start, broken.base_offset)

    def check_end(self, segments: list[Segment], high_watermark: int) -> int:
        """The log must not end below what was committed while it was here, however whole it is."""
        log_end = segments[-1].next_offset
        if log_end < high_watermark and not self.accept_loss:
            what = f"it ends at {log_end}, its high watermark was {high_watermark}: an older copy?"
            raise self._damaged(log_end, high_watermark, what)
        return log_end

    def stored_epochs(self, segments: list[Segment], *, up_to: int, log_start: int) -> EpochHistory:
        """The stored leader epochs, or what the batches below `up_to` say."""
        path = f"{self.folder}/{LEADER_EPOCHS.file_name}"
        try:
            entries = read_or_none(self.storage.files, path, LEADER_EPOCHS)
            if entries is not None:
                return EpochHistory(entries)
        except CorruptCheckpoint as error:
            self.report.mended.append(f"rebuilt leader epochs: {error}")
        epochs, offset = EpochHistory(), segments[0].base_offset
        try:
            for segment in segments:
                for _, header in segment.walk(0):
                    if header.base_offset >= up_to:
                        return epochs
                    if header.leader_epoch > epochs.latest:
                        epochs.assign(header.leader_epoch, header.base_offset)
                    offset = header.next_offset
        except CorruptBatch as error:
            # From `up_to` on nothing is trusted anyhow, and what is below the log start was given
            # up: the scan that follows decides.
            if max(offset, log_start) < up_to:
                raise self._damaged(offset, up_to, str(error)) from error
        return epochs

    def _drop_below(self, segments: list[Segment], log_start: int) -> None:
        """Remove again what was removed before and came back after a power loss.

        It need not be whole: it was perhaps never synced.
        """
        if len(segments) == 1 or segments[0].next_offset > log_start:
            return
        while len(segments) > 1 and segments[0].next_offset <= log_start:
            gone = segments.pop(0)
            gone.remove()
            self.report.mended.append(f"removed {gone.path}: it is below the log start")
        first = segments[0].base_offset
        remove_snapshots(self.storage, self.folder, lambda offset: offset < first)

    def recover(self, segments: list[Segment], recovery: _Recovery) -> EpochHistory:
        """Scan what may not be trusted, cut where it ends; return the epochs."""
        self.report.recovery_point = recovery.recovery_point
        first = next(
            (at for at, each in enumerate(segments[:-1]) if each.next_offset > recovery.scan_from),
            len(segments) - 1,
        )
        epochs = self.stored_epochs(
            segments[: first + 1], up_to=recovery.scan_from, log_start=recovery.log_start
        )
        epochs.truncate_end(recovery.scan_from)
        for at in range(first, len(segments)):
            segment = segments[at]
            following = segments[at + 1].base_offset if at + 1 < len(segments) else None
            problem = self._scan(segment, epochs, recovery)
            if problem is not None and segment.next_offset < recovery.log_start:
                salvaged = self._salvage(segment, recovery.log_start, problem)
                if salvaged is not None:
                    segment = segments[at] = salvaged
                    problem = self._scan(segment, epochs, recovery)
            if problem is None and following not in {None, segment.next_offset}:
                problem = f"offsets {segment.next_offset} to {following} are missing"
            if segment.next_offset < recovery.recovery_point and (problem or following is None):
                self._admit_loss(segment, recovery, problem or "the end is missing")
            if problem is not None:
                with self._saving(max(recovery.recovery_point, segment.base_offset)):
                    self._cut(segments, at, problem)
                break
            if following is not None:
                self._keep_progress(segment, epochs, recovery)
        if recovery.limit is not None:
            with self._saving(recovery.limit):
                segments[-1].cut(again=True)
        log_end = segments[-1].next_offset
        epochs.truncate_end(log_end)
        remove_snapshots(self.storage, self.folder, lambda offset: offset > log_end)
        self._save_epochs(epochs)
        return epochs

    def start_over(self, segments: list[Segment], log_start: int) -> list[Segment]:
        """Everything was given up by request; what is left of it goes."""
        for segment in reversed(segments):
            segment.remove()
        remove_snapshots(self.storage, self.folder, lambda _: True)
        self._save_epochs(EpochHistory())
        fresh = self._new_segment(log_start)
        self.storage.files.sync_folder(self.folder)
        self.report.mended.append(f"it begins anew, empty, at {log_start}")
        return [fresh]

    def producers(self, segments: list[Segment], now_ms: int) -> ProducerStates:
        try:
            return load_producers(self.storage, self.folder, segments, now_ms=now_ms)
        except CorruptBatch as error:
            # Only in what was not scanned, below the recovery point.
            base, log_end = segments[0].base_offset, segments[-1].next_offset
            raise self._damaged(base, log_end, str(error)) from error

    def _scan(self, segment: Segment, epochs: EpochHistory, recovery: _Recovery) -> str | None:
        """Take in the batches of a segment; return what is wrong with the first one left out."""
        size = segment.size
        position = segment.resume_at(recovery.scan_from)
        limit = recovery.limit
        self.report.scanned_bytes += size - position
        try:
            for _, header in segment.scan(position, size, given_up=recovery.log_start):
                if header.base_offset != segment.next_offset:
                    return f"offset {header.base_offset} does not continue {segment.next_offset}"
                if header.leader_epoch < epochs.latest and header.base_offset >= recovery.scan_from:
                    return f"epoch {header.leader_epoch} follows {epochs.latest}"
                if limit is not None and header.next_offset > limit:
                    return "a sync failed before it was durable"
                if header.leader_epoch > epochs.latest:
                    epochs.assign(header.leader_epoch, header.base_offset)
                segment.added(header)
        except CorruptBatch as error:
            return str(error)
        return None

    def _salvage(self, damaged: Segment, log_start: int, problem: str) -> Segment | None:
        """Give up the damaged front of a segment, if all of it was given up before; else None.

        What is left gets a file of its own, named by its first offset. Killed in between there are
        both: the old one is then below the log start as a whole, and goes for that.
        """
        files = self.storage.files
        found = find_batch(damaged, files.size(damaged.path), up_to=log_start)
        if found is None:
            return None
        position, base = found
        path = f"{self.folder}/{segment_name(base, LOG_SUFFIX)}"
        copy_from(files, damaged.path, position, path)
        files.sync_folder(self.folder)
        damaged.remove()
        files.sync_folder(self.folder)
        remove_snapshots(self.storage, self.folder, lambda offset: offset < base)
        self.report.mended.append(
            f"{damaged.path} begins at offset {base} now: {problem}, below the log start"
        )
        return self._found_segment(base)

    def _admit_loss(self, segment: Segment, recovery: _Recovery, problem: str) -> None:
        """The log ends below what was durable: refuse that, or make it so, durably."""
        if recovery.recovery_point > recovery.log_start:
            what = f"{segment.path} at byte {segment.size}: {problem}"
            if not self.accept_loss:
                raise self._damaged(segment.next_offset, recovery.recovery_point, what)
            lost = f"offsets {segment.next_offset} to {recovery.recovery_point}"
            self.report.mended.append(f"{lost} were durable and are lost: {what}")
        self.checkpoints.lower_recovery_point(segment.next_offset)

    def _damaged(self, offset: int, recovery_point: int, detail: str) -> DamagedLog:
        return DamagedLog(
            str(self.partition), offset=offset, recovery_point=recovery_point, detail=detail
        )

    def _cut(self, segments: list[Segment], at: int, problem: str) -> None:
        """End the log after the good batches of segment `at`."""
        if not self.accept_loss:
            note_cut(self.storage.files, self.folder, problem)
            self.report.doubt = self.report.doubt or problem
        while len(segments) > at + 1:
            gone = segments.pop()
            self.report.cut.append(f"removed {gone.path}: it follows a cut")
            gone.remove()
        self.storage.files.sync_folder(self.folder)
        segment = segments[at]
        self.report.cut.append(f"cut {segment.path} at byte {segment.size}: {problem}")
        segment.cut()

    @contextmanager
    def _saving(self, durable_end: int) -> Iterator[None]:
        """A sync that fails in here has lost what it had to save, though it can still be read."""
        try:
            yield
        except OSError as error:
            mark_failed_sync(self.storage, self.folder, durable_end, error)
            raise

    def _keep_progress(self, segment: Segment, epochs: EpochHistory, recovery: _Recovery) -> None:
        """Make a recovered segment durable, so that it need not be scanned again."""
        with self._saving(max(recovery.recovery_point, segment.base_offset)):
            segment.sync()
        segment.save_index(final=True)
        segment.release_index()
        self._save_epochs(epochs)
        self.progress(segment.next_offset)

    def _save_epochs(self, epochs: EpochHistory) -> None:
        path = f"{self.folder}/{LEADER_EPOCHS.file_name}"
        epochs.keep_newest(LEADER_EPOCHS.lines_max)
        data = encode(LEADER_EPOCHS, epochs.entries)
        write_atomically(self.storage.files, path, data, durable=True)

    def _new_segment(self, base: int) -> Segment:
        return Segment.create(
            self.storage, self.folder, base, index_interval_bytes=self.config.index_interval_bytes
        )

    def _found_segment(self, base: int) -> Segment:
        path = f"{self.folder}/{segment_name(base, LOG_SUFFIX)}"
        return Segment(
            self.storage,
            self.folder,
            base,
            next_offset=base,
            size=self.storage.files.size(path),
            index_interval_bytes=self.config.index_interval_bytes,
        )


def _matches(clean: CleanPartition, active: Segment) -> bool:
    return (active.base_offset, active.size) == (clean.active_base, clean.active_size_bytes)
