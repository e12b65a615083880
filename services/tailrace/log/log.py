"""The log of one partition: an ordered row of segments that gives back exactly what was written.

One thread owns a log and makes every change; work that may block (syncing files) is handed out as
a value (`FlushWork`) that any thread may run and whose outcome the owner reports back.

Invariants:
- Batches follow one another without a gap in their offsets, also across segments and also after
  compaction (what stays then covers what went); so a missing batch is always found. Leader epochs
  never fall along the log.
- Everything below `recovery_point` survives a power loss; everything below `log_end` survives the
  death of the process.
- The stored recovery point is never above what was synced: it is lowered durably *before* bytes
  below it are cut off, and raised only after a sync.
- After a failed sync nothing more is written until the log was reopened at its recovery point.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Protocol

from tailrace.config import UNLIMITED, LogConfig
from tailrace.epochs import EpochEnd, EpochHistory
from tailrace.errors import (
    CorruptBatch,
    InvariantViolation,
    LogClosed,
    NonContiguousAppend,
    OffsetOutOfRange,
    StorageError,
    is_no_room,
)
from tailrace.log import time_lookup
from tailrace.log.admission import Admission, BatchResult, BodyVerdict, validated
from tailrace.log.checkpoints import LEADER_EPOCHS, encode, write_atomically
from tailrace.log.evidence import LeaderDiverged, NothingHeld, cut_problem
from tailrace.log.files import Buffer
from tailrace.log.flushing import Flushes, FlushWork, mark_failed_sync, note_failed_sync
from tailrace.log.producers import ProducerStates
from tailrace.log.retention import (
    RELATIVE_OFFSET_MAX,
    Expiry,
    SegmentFacts,
    expired,
    should_roll,
)
from tailrace.log.segment import LOG_SUFFIX, Segment, Slice, Storage, segment_name
from tailrace.log.snapshots import (
    load_producers,
    note_producer,
    remove_snapshots,
    write_snapshot,
)
from tailrace.log.swap import SwapRange, swap_in
from tailrace.log.time_lookup import TimedOffset
from tailrace.model import (
    NO_PRODUCER_ID,
    RETENTION,
    LeaderEpoch,
    LogStartCause,
    TopicPartition,
)
from tailrace.record.header import (
    BatchHeader,
    prefix_for,
    split,
    verify,
)


class LogCheckpoints(Protocol):
    """Where the log keeps the two offsets that must be durable before it acts on them."""

    def lower_recovery_point(self, offset: int) -> None:
        """Make the stored recovery point and high watermark at most `offset`; durable on return."""

    def set_log_start(self, offset: int, cause: LogStartCause | None = None) -> None:
        """Store the first offset that may be read, and why; durable on return."""


class PartitionLog:
    """See the module's description. Open one with `tailrace.log.recovery.open_log`."""

    def __init__(
        self,
        storage: Storage,
        folder: str,
        partition: TopicPartition,
        *,
        config: LogConfig,
        checkpoints: LogCheckpoints,
        segments: list[Segment],
        epochs: EpochHistory,
        producers: ProducerStates,
        log_start: int,
        recovery_point: int,
        synced: bool = False,
        start_cause: LogStartCause | None = None,
    ) -> None:
        """`synced`: names and epochs in the folder are durable, as after a clean shutdown."""
        self.storage = storage
        self.folder = folder
        self.partition = partition
        self.config = config
        self.epochs = epochs
        self.producers = producers
        self.segments = segments
        self.log_start = log_start
        self.start_cause = start_cause
        self.recovery_point = recovery_point
        self.log_end = segments[-1].next_offset
        self._checkpoints = checkpoints
        self._bases = [segment.base_offset for segment in segments]
        self._generation = 0
        self._flushes = Flushes(synced=synced)
        self._closed: str | None = None
        self.is_unsynced = False
        """A sync failed: what is above the recovery point may not be on the disk."""

    # Appending.

    def append_as_leader(
        self,
        data: Buffer,
        *,
        leader_epoch: LeaderEpoch,
        now_ms: int,
        control_allowed: bool = False,
        bodies: BodyVerdict | None = None,
    ) -> list[BatchResult]:
        """Give the batches in `data` their offsets and store them.

        Bad bytes raise and store nothing. A batch that its producer state refuses gets the error
        in its result, and so do the batches after it; those before it are stored. Control batches
        are the broker's own: `control_allowed` says that it is the one that appends. `bodies`:
        what a look into them came to that was taken off the loop.
        """
        self._check_open()
        batches = validated(
            data,
            self.partition.topic,
            self.config,
            now_ms=now_ms,
            control_allowed=control_allowed,
            bodies=bodies,
        )
        span = sum(header.last_offset_delta + 1 for header, _ in batches)
        self._roll_when_due(len(data), now_ms, last_offset=self.log_end + span - 1)
        if leader_epoch > self.epochs.latest:
            self.assign_epoch(leader_epoch)
        elif leader_epoch < self.epochs.latest:
            raise InvariantViolation(
                f"{self.partition}: append in epoch {leader_epoch} after {self.epochs.latest}"
            )
        results: list[BatchResult] = []
        placed: list[BatchHeader] = []
        buffers: list[Buffer] = []
        offset = self.log_end
        admission = Admission(self.producers, expiration_ms=self.config.producer_id_expiration_ms)
        for header, body in batches:
            result = admission.admit(header, offset, now_ms)
            results.append(result)
            if result.error is not None:
                results += [result] * (len(batches) - len(results))
                break
            if result.duplicate:
                continue
            header = header._replace(base_offset=offset, leader_epoch=leader_epoch)  # noqa: PLW2901
            buffers += (prefix_for(offset, header.length, leader_epoch), body)
            placed.append(header)
            offset = header.next_offset
        if placed:
            self._write(buffers, placed, now_ms)
        return results

    def append_as_follower(
        self, data: Buffer, *, now_ms: int, leader_epoch: int | None = None
    ) -> int:
        """Store batches exactly as the leader has them; return the new log end.

        `leader_epoch` is the epoch in which the leader sent them: it can have none that is newer.
        """
        self._check_open()
        headers: list[BatchHeader] = []
        expected, epoch = self.log_end, int(self.epochs.latest)
        for position, header in split(data):
            verify(data, position, header)
            is_early = leader_epoch is not None and header.leader_epoch > leader_epoch
            if header.base_offset != expected or header.leader_epoch < epoch or is_early:
                raise NonContiguousAppend(
                    f"{self.partition}: offset {header.base_offset} in epoch "
                    f"{header.leader_epoch} does not continue {expected} in epoch {epoch}"
                )
            expected, epoch = header.next_offset, header.leader_epoch
            headers.append(header)
        view, start = memoryview(data), 0
        for part in _within_reach(headers):
            size = sum(header.length for header in part)
            self._roll_when_due(size, now_ms, last_offset=part[-1].last_offset)
            self._write([view[start : start + size]], part, now_ms)
            start += size
        return self.log_end

    def assign_epoch(self, epoch: LeaderEpoch) -> None:
        """Note that a leader epoch starts at the end of the log."""
        if self.epochs.assign(epoch, self.log_end):
            self._save_epochs(durable=False)

    def forget_empty_epoch(self) -> None:
        """A leadership that wrote nothing leaves no trace: batches of an older one may follow."""
        if self.epochs.truncate_end(self.log_end):
            self._save_epochs(durable=False)

    # Reading.

    def locate(
        self, offset: int, *, bytes_max: int, up_to: int | None = None, min_one: bool = True
    ) -> Slice | None:
        """Find whole batches from `offset` on, below `up_to`; None when there is nothing yet.

        The first batch is the one that holds `offset`, so it may start below it. `min_one` gives a
        first batch that is larger than `bytes_max` all the same.
        """
        limit = self.log_end if up_to is None else min(up_to, self.log_end)
        if offset < self.log_start or offset > self.log_end:
            raise OffsetOutOfRange(offset, log_start=self.log_start, log_end=self.log_end)
        if offset >= limit:
            return None
        segment = self.segment_at(offset)
        return segment.find(offset, up_to=limit, bytes_max=bytes_max, min_one=min_one)

    def segment_at(self, offset: int) -> Segment:
        """The segment that holds an offset, or the active one."""
        return self.segments[max(bisect_right(self._bases, offset) - 1, 0)]

    def read(
        self, offset: int, *, bytes_max: int, up_to: int | None = None, min_one: bool = True
    ) -> bytes:
        """The bytes that `locate` finds, as they are stored."""
        found = self.locate(offset, bytes_max=bytes_max, up_to=up_to, min_one=min_one)
        if found is None:
            return b""
        with self.storage.cache.use(found.path) as file:
            return file.read_at(found.position, found.size)

    def headers(self, offset: int) -> Iterator[BatchHeader]:
        """The header of every batch that ends after `offset`."""
        for segment in self.segments[max(bisect_right(self._bases, offset) - 1, 0) :]:
            start = segment.position_of(offset) if offset > segment.base_offset else 0
            for _, header in segment.walk(start):
                yield header

    def offset_for_time(self, timestamp_ms: int, *, up_to: int | None = None) -> TimedOffset | None:
        """The first record at or after a time, below `up_to`, or None."""
        return time_lookup.find(time_lookup.plan(self, timestamp_ms, up_to=up_to))

    def epoch_end(self, epoch: int) -> EpochEnd:
        """The largest epoch up to `epoch` that this log knows, and the offset where it ended."""
        return self.epochs.end_of(epoch, self.log_end)

    # Cutting.

    def truncate_to(self, offset: int, evidence: LeaderDiverged, *, now_ms: int) -> bool:
        """Remove `offset` and all after it (whole batches); durable on return.

        `evidence` is what proves that it may go; InvariantViolation when it does not.
        """
        self._check_open()
        self._check_offset(offset)
        if offset >= self.log_end:
            return False
        self._require(evidence, offset)
        if offset < self.log_start:
            self.start_over_at(offset, evidence)
            return True
        with self._cutting():
            self._truncate(offset, now_ms)
        return True

    def start_over_at(
        self, offset: int, evidence: LeaderDiverged | LogStartCause | NothingHeld
    ) -> None:
        """Remove everything and go on, empty, at `offset`; durable on return.

        `evidence` is what proves that it may go: the leader has another log there, or gave up all
        below, or there is nothing. InvariantViolation when it does not.
        """
        self._check_open()
        self._check_offset(offset)
        self._require(evidence, offset)
        cause = evidence if isinstance(evidence, LogStartCause) else None
        with self._cutting():
            # A crash may leave any part of the log, or an empty one at the stored log start: what
            # was given up must not show again.
            self._lower_recovery_point(0)
            self.start_cause = cause or self.start_cause
            self._checkpoints.set_log_start(max(offset, self.log_start), self.start_cause)
            while self.segments:
                self._drop_last_segment()
            remove_snapshots(self.storage, self.folder, lambda _: True)
            self.epochs = EpochHistory()
            self._save_epochs(durable=True)
            self._checkpoints.set_log_start(offset)
            self._add_segment(offset)
            self.storage.files.sync_folder(self.folder)
        self.producers = ProducerStates()
        self.log_start = self.log_end = self.recovery_point = offset
        self._forget_cause()

    def advance_log_start(
        self,
        offset: int,
        cause: LogStartCause,
        *,
        durable: bool = True,
        aside: list[str] | None = None,
    ) -> int:
        """Give up everything below `offset`; return how many segments went. Durable on return.

        `cause` is what proves that it may go, and is stored with the log start. Not `durable` is
        for who will be told again: nothing is removed then, and `drop_given_up` does that later.
        For `aside` see `enforce_retention`.
        """
        self._check_open()
        if offset > self.log_end:
            raise OffsetOutOfRange(offset, log_start=self.log_start, log_end=self.log_end)
        if offset <= self.log_start:
            return 0
        self._require(cause, offset)
        if offset == self.log_end:
            # Nothing of the active segment is left: its room must not wait for the next records.
            # Without room for a new one it does.
            with suppress(StorageError):
                self.roll()
        if durable:
            self._store_log_start(offset, cause)
        self.log_start, self.start_cause = offset, cause
        if self.epochs.truncate_start(offset):
            self._flushes.epochs.note()
        return self.drop_given_up(aside=aside) if durable else 0

    @property
    def has_given_up(self) -> bool:
        """Whether there are segments that `drop_given_up` would remove."""
        return len(self._bases) > 1 and self._bases[1] <= self.log_start

    def drop_given_up(self, *, aside: list[str] | None = None) -> int:
        """Remove the segments below the log start; return how many. It is stored before."""
        self._check_open()
        count = max(bisect_right(self._bases, self.log_start) - 1, 0)
        if count:
            self._store_log_start(self.log_start, self.start_cause)
            with self._cutting():
                self._drop_first_segments(count, aside)
        return count

    def expired(self, *, now_ms: int | None, high_watermark: int) -> Expiry:
        """Which segments are too old or too many; nothing changes."""
        deletes = self.config.cleanup_policy.deletes
        return expired(
            [_facts(segment) for segment in self.segments],
            now_ms=now_ms or 0,
            retention_ms=self.config.retention_ms if deletes and now_ms is not None else UNLIMITED,
            retention_bytes=self.config.retention_bytes if deletes else UNLIMITED,
            high_watermark=high_watermark,
            log_start_offset=self.log_start,
        )

    def enforce_retention(
        self, *, now_ms: int | None, high_watermark: int, aside: list[str] | None = None
    ) -> Expiry:
        """Remove the segments that are too old or too many; the active one is rolled first.

        Without a time none is too old. With `aside` the files only lose their names, and their new
        ones are added to the list: removing a large file takes long, and any thread can do it.
        """
        self._check_open()
        verdict = self.expired(now_ms=now_ms, high_watermark=high_watermark)
        if verdict.count >= len(self.segments):
            self.roll()
        if verdict.count:
            cause = self.start_cause
            if verdict.new_log_start > self.log_start:
                cause = self.retention_cause(verdict)
            self._store_log_start(verdict.new_log_start, cause)
            self.log_start, self.start_cause = verdict.new_log_start, cause
            with self._cutting():
                self._drop_first_segments(verdict.count, aside)
        return verdict

    def retention_cause(self, verdict: Expiry) -> LogStartCause:
        """What is kept with the log start that retention moves; the epoch is the leader's."""
        epoch = max(int(self.epochs.latest), 0)
        return LogStartCause(RETENTION, epoch, verdict.new_log_start)

    def _store_log_start(self, offset: int, cause: LogStartCause | None) -> None:
        """Before the first segments go: where no log start says so, they were not given up.

        Without room nothing goes, and the log is as it was.
        """
        try:
            self._checkpoints.set_log_start(offset, cause)
        except OSError as error:
            if not is_no_room(error):
                self._stop(f"its log start could not be stored ({error}); reopen it")
            raise StorageError(f"{self.partition}: {error}") from error

    def expire_producers(self, *, now_ms: int) -> None:
        self.producers.expire(now_ms, self.config.producer_id_expiration_ms)

    @property
    def generation(self) -> int:
        """Changes whenever offsets are given up at the end: what was read before may be gone."""
        return self._generation

    def swap_segments(self, cleaned: Segment, swap: SwapRange) -> list[Segment]:
        """Put a synced compacted segment in the place of those in its range; durable on return."""
        self._check_open()
        start, end = bisect_left(self._bases, swap.base), bisect_left(self._bases, swap.end)
        old = self.segments[:-1][start:end]
        theirs = (old[0].base_offset, old[-1].next_offset) if old else None
        if {(cleaned.base_offset, cleaned.next_offset), swap} != {theirs}:
            raise InvariantViolation(f"{self.partition}: no segments for {swap}")
        with self._cutting():
            swap_in(self.storage.files, self.folder, cleaned.path, swap)
        for each in (cleaned, *old):
            each.forget()
        cleaned.path = old[0].path
        self.segments[start:end], self._bases[start:end] = [cleaned], [swap.base]
        return old

    # Rolling, flushing, closing.

    def roll(self) -> None:
        """Close the active segment and start the next one where it ends."""
        self._check_open()
        old = self.segments[-1]
        if old.size == 0:
            return
        try:
            self._add_segment(self.log_end)
        except OSError as error:
            self._undo_segment(self.log_end)
            raise StorageError(f"{self.partition}: no new segment: {error}") from error
        self._save_derived(old)
        old.release_index()

    def begin_flush(self) -> FlushWork | None:
        """What must be synced so that all that is in the log now survives a power loss.

        Every work covers all that no ended one has confirmed, so several may be out at once.
        """
        self._check_open()
        self._check_flushes()
        names, epochs = self._flushes.names, self._flushes.epochs
        if self.recovery_point >= self.log_end and not (names.wait or epochs.wait):
            return None
        try:
            self.segments[-1].save_index()
        except OSError:
            # It only spares recovery some reading; a full disk must not keep data from the disk.
            self.segments[-1].remove_index_files()
        if epochs.wait:
            self._save_epochs(durable=False, must=True)
        return FlushWork(
            storage=self.storage,
            folder=self.folder,
            flushes=self._flushes,
            generation=self._generation,
            up_to=self.log_end,
            paths=tuple(s.path for s in self.segments if s.next_offset >= self.recovery_point),
            epochs=epochs.wait,
            names=names.wait,
            epochs_count=epochs.count,
            names_count=names.count,
        )

    def end_flush(self, work: FlushWork) -> None:
        """The work was done: what it covered is durable, unless the log was cut meanwhile.

        Raises StorageError, and stops the log, when another work has failed.
        """
        if work.flushes is not self._flushes:
            raise InvariantViolation(f"{self.partition}: this flush is of another log")
        if self._closed is not None:
            return
        self._check_flushes()
        if work.generation == self._generation:
            self.recovery_point = max(self.recovery_point, work.up_to)
            self._flushes.names.confirm(work.names_count)
            self._flushes.epochs.confirm(work.epochs_count)

    def fail_flush(self, error: OSError) -> StorageError:
        """The work failed: what was not durable before counts as lost, and the log stops."""
        if not self._flushes.is_stopped:
            # Otherwise the folder is another log's by now, and who took it over knew of this.
            self._closed = f"a sync failed ({error}); reopen it"
            self.is_unsynced = True
            mark_failed_sync(self.storage, self.folder, self.recovery_point, error)
        failure = StorageError(f"{self.partition}: sync failed: {error}")
        failure.__cause__ = error
        return failure

    def flush(self) -> int:
        """Flush here and now; return the new recovery point."""
        work = self.begin_flush()
        if work is not None:
            try:
                work.run()
            except OSError as error:
                raise self.fail_flush(error) from error
            self.end_flush(work)
        return self.recovery_point

    def close(self) -> None:
        """Flush, write what makes the next opening quick, and refuse everything from now on."""
        self.flush()
        self.segments[-1].save_index(final=True)
        write_snapshot(self.storage, self.folder, self.producers, self.log_end)
        # Those of earlier closings, amid a segment: a log closed often would gather them for ever.
        kept = {*self._bases, self.log_end}
        remove_snapshots(self.storage, self.folder, lambda at: at not in kept)
        self.abandon("it was closed")

    def abandon(self, reason: str) -> None:
        """Stop using the log without writing anything more; waits for a flush that runs."""
        self._flushes.stop()
        if self._closed is None and self._flushes.failure is not None:
            note_failed_sync(self.storage, self.folder, self.recovery_point)
        self._stop(reason)

    @property
    def is_open(self) -> bool:
        return self._closed is None

    @property
    def last_epoch(self) -> LeaderEpoch:
        """The epoch of the last batch, NO_LEADER_EPOCH when there is none."""
        return self.epochs.epoch_at(self.log_end - 1)

    @property
    def size_bytes(self) -> int:
        return sum(segment.size for segment in self.segments)

    # The parts of the above.

    def _check_open(self) -> None:
        if self._closed is not None:
            raise LogClosed(f"the log of {self.partition} takes no more calls: {self._closed}")

    def _require(self, evidence: LeaderDiverged | LogStartCause | NothingHeld, offset: int) -> None:
        """Nothing is cut without evidence that it may be."""
        problem = ""
        match evidence:
            case LeaderDiverged():
                problem = cut_problem(evidence, offset, last_epoch=self.last_epoch)
            case LogStartCause():
                if evidence.offset < offset:
                    problem = f"that gave up what is below {evidence.offset}"
            case NothingHeld():
                problem = "it holds records" if self.last_epoch >= 0 else ""
        if problem:
            raise InvariantViolation(
                f"{self.partition} is not cut at {offset}: {problem} ({evidence})"
            )

    def _check_offset(self, offset: int) -> None:
        if offset < 0:
            raise OffsetOutOfRange(offset, log_start=self.log_start, log_end=self.log_end)

    def _check_flushes(self) -> None:
        """A work that failed elsewhere counts at once, not when somebody comes to report it."""
        if self._flushes.failure is not None:
            raise self.fail_flush(self._flushes.failure) from self._flushes.failure

    def _stop(self, reason: str) -> None:
        self._closed = self._closed or reason
        for segment in self.segments:
            segment.forget()

    def _write(self, buffers: Sequence[Buffer], headers: list[BatchHeader], now_ms: int) -> None:
        active = self.segments[-1]
        try:
            active.write(buffers)
        except OSError as error:
            try:
                active.undo_write()
            except OSError as second:
                raise self.fail_flush(second) from error
            raise StorageError(f"{self.partition}: append failed: {error}") from error
        for header in headers:
            active.added(header, now_ms=now_ms)
            if header.leader_epoch > self.epochs.latest:
                self.epochs.assign(header.leader_epoch, header.base_offset)
                self._save_epochs(durable=False)
            if header.producer_id != NO_PRODUCER_ID:
                note_producer(self.producers, header, now_ms)
        self.log_end = active.next_offset

    def _roll_when_due(self, incoming_bytes: int, now_ms: int, *, last_offset: int) -> None:
        active = self.segments[-1]
        index = active.hold_index()
        reason = should_roll(
            base_offset=active.base_offset,
            size_bytes=active.size,
            created_ms=index.created_ms,
            index_full=index.entries_bytes >= self.config.segment_index_bytes,
            incoming_bytes=incoming_bytes,
            incoming_last_offset=last_offset,
            now_ms=now_ms,
            segment_bytes=self.config.segment_bytes,
            segment_ms=self.config.segment_ms,
        )
        if reason is not None:
            self.roll()

    def _truncate(self, offset: int, now_ms: int) -> None:
        self._lower_recovery_point(self._batch_start(offset))
        while len(self.segments) > 1 and self.segments[-1].base_offset >= offset:
            self._drop_last_segment()
        active = self.segments[-1]
        active.hold_index()
        if offset < active.next_offset:
            try:
                active.truncate(offset)
            except OSError as error:
                # The sync of the cut had to save all that was not durable below it as well.
                raise self.fail_flush(error) from error
        self.log_end = active.next_offset
        self.recovery_point = min(self.recovery_point, self.log_end)
        self.epochs.truncate_end(self.log_end)
        remove_snapshots(self.storage, self.folder, lambda at: at > self.log_end)
        self._save_epochs(durable=True)
        self.storage.files.sync_folder(self.folder)
        self.producers = load_producers(self.storage, self.folder, self.segments, now_ms=now_ms)
        if self.log_end < self.log_start:
            # The batch that was cut began below the log start.
            self._checkpoints.set_log_start(self.log_end)
            self.log_start = self.log_end
            self._forget_cause()

    def _forget_cause(self) -> None:
        """The log begins below what was given up: it is somebody else's log now."""
        if self.start_cause is not None and self.start_cause.offset > self.log_start:
            self.start_cause = None

    def _batch_start(self, offset: int) -> int:
        """The first offset of the batch that holds `offset`: where a cut at it really ends."""
        segment = self.segments[bisect_right(self._bases, offset) - 1]
        for _, header in segment.walk(segment.position_of(offset)):
            return header.base_offset
        return offset

    @contextmanager
    def _cutting(self) -> Iterator[None]:
        """An error of the disk in here leaves memory and disk at odds: the log must be reopened."""
        try:
            yield
        except (OSError, CorruptBatch) as error:
            self._stop(f"it failed while it was cut ({error}); reopen it")
            raise StorageError(f"{self.partition}: {error}") from error

    def _lower_recovery_point(self, offset: int) -> None:
        self._generation += 1
        # Also where nothing of it is durable: a high watermark above it must not stay either.
        self._checkpoints.lower_recovery_point(offset)
        self.recovery_point = min(self.recovery_point, offset)

    def _add_segment(self, base_offset: int) -> None:
        segment = Segment.create(
            self.storage,
            self.folder,
            base_offset,
            index_interval_bytes=self.config.index_interval_bytes,
        )
        self.segments.append(segment)
        self._bases.append(base_offset)
        self._flushes.names.note()

    def _undo_segment(self, base_offset: int) -> None:
        """Remove what a failed creation left, or stop: it would hide what is appended next."""
        path = f"{self.folder}/{segment_name(base_offset, LOG_SUFFIX)}"
        self.storage.cache.forget(path)
        try:
            if self.storage.files.exists(path):
                self.storage.files.remove(path)
        except OSError as error:
            self._stop(f"{path} can neither be used nor removed ({error}); reopen it")

    def _drop_last_segment(self) -> None:
        self.segments.pop().remove()
        self._bases.pop()

    def _drop_first_segments(self, count: int, aside: list[str] | None) -> None:
        if count <= 0:
            return
        gone, self.segments = self.segments[:count], self.segments[count:]
        del self._bases[:count]
        for segment in gone:
            if aside is None:
                segment.remove()
            else:
                aside.append(segment.put_aside())
        first = self.segments[0].base_offset
        remove_snapshots(self.storage, self.folder, lambda at: at < first)
        self.epochs.truncate_start(max(self.log_start, first))
        self.recovery_point = max(self.recovery_point, first)
        self._flushes.names.note()
        self._flushes.epochs.note()

    def _save_epochs(self, *, durable: bool, must: bool = False) -> None:
        """Store the history; what is not durable yet is made so by the next flush.

        Until then the batches above the recovery point tell the same, so a disk that is full does
        not stop an append here.
        """
        changes = self._flushes.epochs
        changes.note()
        path = f"{self.folder}/{LEADER_EPOCHS.file_name}"
        self.epochs.keep_newest(LEADER_EPOCHS.lines_max)
        data = encode(LEADER_EPOCHS, self.epochs.entries)
        try:
            write_atomically(self.storage.files, path, data, durable=durable)
        except OSError as error:
            if durable:
                raise
            if must:
                raise StorageError(f"{self.partition}: epochs cannot be stored: {error}") from error
        if durable:
            changes.confirm(changes.count)

    def _save_derived(self, closed: Segment) -> None:
        """Save what only speeds up later openings; a full disk must not stop the log here."""
        try:
            closed.save_index(final=True)
            write_snapshot(self.storage, self.folder, self.producers, self.log_end)
        except OSError:
            closed.remove_index_files()


def _facts(segment: Segment) -> SegmentFacts:
    return SegmentFacts(
        base_offset=segment.base_offset,
        next_offset=segment.next_offset,
        size_bytes=segment.size,
        max_timestamp_ms=segment.max_timestamp_ms,
        created_ms=segment.created_ms,
    )


def _within_reach(headers: list[BatchHeader]) -> Iterator[list[BatchHeader]]:
    """Batches in a row that one segment can hold: an index has no room for larger distances."""
    part: list[BatchHeader] = []
    for header in headers:
        if part and header.last_offset - part[0].base_offset > RELATIVE_OFFSET_MAX:
            yield part
            part = []
        part.append(header)
    if part:
        yield part
