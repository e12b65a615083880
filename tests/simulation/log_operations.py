"""What is done to one partition's log, each time with what the model says of it beside.

An operation that the disk interrupts leaves `model.pending`: what it may have done by then. The
simulation around it (`simulation.log_driver`) crashes and reopens, and asks `reopened` whether
what is left is among that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Final

from simulation.log_model import (
    FRESH,
    Mismatch,
    Outcomes,
    PartitionModel,
    Request,
    Stored,
    Verdict,
    stored,
)
from simulation.log_requests import (
    APPEND_SIZES,
    BATCH_STEPS,
    LEADER_STEPS,
    POOL_SIZE,
    START_MS,
    STEP_MS,
    plain_request,
    pool,
    random_request,
    replicated_request,
    shown,
)
from simulation.proofs import DIVERGED, given_up
from simulation.storage import SimFiles
from tailrace.config import LogConfig, TimestampType
from tailrace.errors import (
    CorruptBatch,
    InvariantViolation,
    LogClosed,
    NonContiguousAppend,
    OffsetOutOfRange,
    OutOfOrderSequence,
    StorageError,
    TailraceError,
)
from tailrace.log.admission import BatchResult
from tailrace.log.cleaning.compaction import (
    CompactionWork,
    begin_compaction,
    end_compaction,
    fail_compaction,
)
from tailrace.log.flushing import FlushWork
from tailrace.log.log import PartitionLog
from tailrace.log.manager import LogManager
from tailrace.model import LeaderEpoch, TopicPartition
from tailrace.record.header import split

Trace = Callable[[str], None]

# How often a crash is made to come within an operation, beside those that come at any time.
APPEND_RISK: Final = 0.02
CUT_RISK: Final = 0.2
CRASH_WITHIN: Final = 15


@dataclass(slots=True)
class World:
    """What all partitions of a simulation share."""

    rng: Random
    files: SimFiles
    trace: Trace
    clock_ms: int = START_MS
    step: int = 0
    producer_ids_given: int = 0

    def new_producer_ids(self, count: int) -> list[int]:
        self.producer_ids_given += count
        return list(range(self.producer_ids_given - count, self.producer_ids_given))


@dataclass(slots=True)
class Partition:
    """One partition under test: its name, what it must answer, and those who write to it."""

    world: World
    name: TopicPartition
    config: LogConfig
    model: PartitionModel = field(default_factory=PartitionModel)
    producer_ids: list[int] = field(default_factory=list)
    # Counts what cut the log, so that a flush that began before knows.
    cuts: int = 0

    def operate(self, log: PartitionLog, manager: LogManager) -> None:
        """Do one thing at random, and see that the log then answers as the model does."""
        operations = _OPERATIONS if self.config.cleanup_policy.compacts else _OPERATIONS[:-1]
        weights = _WEIGHTS[: len(operations)]
        operation = self.world.rng.choices(operations, weights)[0]
        operation(self, log, manager)
        if log.is_open:
            self.check(log)

    def created(self) -> None:
        self.model.created()
        self.producer_ids = self.world.new_producer_ids(3)

    def reopened(self, log: PartitionLog, *, power_lost: bool, clean: bool) -> None:
        model = self.model
        model.reopened(
            start=log.log_start,
            end=log.log_end,
            content=read_all(log, self.world.rng),
            latest_epoch=int(log.epochs.latest),
            power_lost=power_lost,
            clean=clean,
        )
        # Opening flushes what it keeps, unless there was nothing to recover.
        require(log.recovery_point == log.log_end, "what was recovered is not durable")
        model.durable_end = log.log_end
        self.check(log)
        self.check_headers(log)

    # Appending.

    def append_as_leader(self, log: PartitionLog, _manager: LogManager) -> None:
        world, model = self.world, self.model
        requests = [
            random_request(world.rng, world.step, model, self.producer_ids)
            for _ in range(world.rng.choice(APPEND_SIZES))
        ]
        latest = int(log.epochs.latest)
        epoch = self._epoch(log) + world.rng.choice(LEADER_STEPS)
        verdicts = self._verdicts(log, requests)
        batches = self._placed(requests, verdicts, epoch)
        self._trace_append(requests, verdicts, epoch)
        data = b"".join(request.data for request in requests)
        with self._pending(log, Outcomes(appended=batches), risk=APPEND_RISK):
            try:
                results = log.append_as_leader(
                    data, leader_epoch=LeaderEpoch(epoch), now_ms=world.clock_ms
                )
            except StorageError as error:
                self._append_failed(log, error, epoch)
                return
        if epoch > latest:
            model.assigned = epoch
        for batch in batches:
            model.append(batch)
        self._check_results(results, verdicts, batches)

    def append_as_follower(self, log: PartitionLog, _manager: LogManager) -> None:
        world, model = self.world, self.model
        epoch = self._epoch(log)
        has_gap = world.rng.random() < 0.03
        base = model.log_end + has_gap
        batches: list[Stored] = []
        for _ in range(world.rng.choice(APPEND_SIZES)):
            request = replicated_request(world.rng, world.step, model, self.producer_ids, batches)
            epoch += world.rng.choice(BATCH_STEPS)
            batches.append(stored(request, base=base, epoch=epoch))
            base = batches[-1].end
        self._say(f"follow {[(batch.base, batch.end, batch.epoch) for batch in batches]}")
        data = b"".join(batch.data for batch in batches)
        outcomes = Outcomes(appended=[] if has_gap else batches)
        with self._pending(log, outcomes, risk=APPEND_RISK):
            try:
                end = log.append_as_follower(data, now_ms=world.clock_ms)
            except StorageError as error:
                self._append_failed(log, error, epoch)
                return
            except NonContiguousAppend:
                require(has_gap, "a follower's append was refused")
                return
        require(not has_gap, "a follower took a gap")
        for batch in batches:
            model.append(batch)
        require(end == model.log_end, f"a follower's append returned {end}")

    def append_rubbish(self, log: PartitionLog, _manager: LogManager) -> None:
        """Damaged bytes and old epochs are refused, and leave no trace."""
        rng, now_ms = self.world.rng, self.world.clock_ms
        request = plain_request(rng, self.world.step)
        latest = int(log.epochs.latest)
        if latest > 0 and rng.random() < 0.5:
            self._say(f"append in the old epoch {latest - 1}")
            with _refused(InvariantViolation, StorageError):
                log.append_as_leader(
                    request.data, leader_epoch=LeaderEpoch(latest - 1), now_ms=now_ms
                )
            return
        damaged = bytearray(request.data)
        damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
        self._say("append damaged bytes")
        if rng.random() < 0.5:
            with _refused(CorruptBatch):
                log.append_as_leader(
                    bytes(damaged), leader_epoch=LeaderEpoch(max(latest, 0)), now_ms=now_ms
                )
        else:
            with _refused(CorruptBatch, NonContiguousAppend):
                log.append_as_follower(bytes(damaged), now_ms=now_ms)

    def _epoch(self, log: PartitionLog) -> int:
        """An epoch that may go on: not below one that is still there, even below the log start."""
        batches = self.model.batches
        return max(0, int(log.epochs.latest), batches[-1].epoch if batches else 0)

    def _placed(self, requests: list[Request], verdicts: list[Verdict], epoch: int) -> list[Stored]:
        """The new ones among the batches, as the log must store them."""
        stamps = self.config.message_timestamp_type is TimestampType.LOG_APPEND_TIME
        stamp_ms = self.world.clock_ms if stamps else None
        batches: list[Stored] = []
        end = self.model.log_end
        for request, verdict in zip(requests, verdicts, strict=True):
            if verdict == FRESH:
                batches.append(stored(request, base=end, epoch=epoch, stamp_ms=stamp_ms))
                end = batches[-1].end
        return batches

    def _verdicts(self, log: PartitionLog, requests: list[Request]) -> list[Verdict]:
        """What each batch of one append must be answered; from the first error on all alike."""
        verdicts: list[Verdict] = []
        fresh: dict[int, Request] = {}
        for at, request in enumerate(requests):
            header = request.header
            verdict = self._verdict(log, request, fresh.get(header.producer_id))
            if verdict == FRESH and self._is_second_copy(request):
                # Its first copy was deleted and forgotten. Taking it again is right, but the
                # model would no longer know which copy a later retry is told of.
                requests[at] = pool()[0]
            elif verdict == FRESH and header.producer_id >= 0:
                fresh[header.producer_id] = request
            verdicts.append(verdict)
            if verdict.error is not None:
                verdicts += [verdict] * (len(requests) - len(verdicts))
                break
        return verdicts

    def _verdict(self, log: PartitionLog, request: Request, before: Request | None) -> Verdict:
        header = request.header
        if before is not None:
            expected = (before.header.producer_epoch, before.header.last_sequence + 1)
            found = (header.producer_epoch, header.base_sequence)
            return FRESH if found == expected else Verdict(error=OutOfOrderSequence)
        verdict = self.model.verdict(request)
        return _resolved(log, request, verdict) if verdict.loose else verdict

    def _is_second_copy(self, request: Request) -> bool:
        history = self.model.history(request.header.producer_id)
        return any(batch.request is request for batch in history)

    def _check_results(
        self, results: list[BatchResult], verdicts: list[Verdict], batches: list[Stored]
    ) -> None:
        require(len(results) == len(verdicts), f"{len(results)} results")
        fresh = iter(batches)
        for result, verdict in zip(results, verdicts, strict=True):
            if verdict.error is not None:
                require(type(result.error) is verdict.error, f"{result} is not {verdict.error}")
                continue
            is_duplicate = verdict.duplicate is not None
            batch = verdict.duplicate or next(fresh)
            time_ms = batch.max_time_ms
            if is_duplicate and batch.base < self.model.thinned_to:
                # Compaction may have taken the record that had the largest timestamp.
                time_ms = result.timestamp_ms
            expected = (batch.base, batch.end - 1, time_ms, is_duplicate, None)
            require(result == expected, f"{result}, expected {expected}")

    def _append_failed(self, log: PartitionLog, error: StorageError, epoch: int) -> None:
        """Nothing was stored, but a new epoch may have begun before the disk said no."""
        self._fails(error)
        known = self.model.epochs()
        if int(log.epochs.latest) == epoch and (not known or epoch > known[-1][0]):
            self.model.assigned = epoch

    # Rolling, flushing.

    def roll(self, log: PartitionLog, _manager: LogManager) -> None:
        self._say("roll")
        try:
            log.roll()
        except StorageError as error:
            self._fails(error)

    def flush(self, log: PartitionLog, _manager: LogManager) -> None:
        self._say(f"flush at {log.log_end}")
        try:
            point = log.flush()
        except StorageError as error:
            self._flush_failed(log, error)
            return
        require(point == log.log_end, f"flushed to {point} of {log.log_end}")
        self.model.flushed(point)

    def flush_beside(self, log: PartitionLog, manager: LogManager) -> None:
        """Another thread syncs while the owner of the log goes on."""
        try:
            work = log.begin_flush()
        except StorageError as error:
            self._fails(error)
            return
        self._say(f"begin a flush of {work and work.up_to}")
        if work is None:
            require(log.recovery_point == log.log_end, "nothing to flush, it is said")
            return
        cuts = self.cuts
        self._go_on(log, manager)
        self._end_flush(log, work, was_cut=cuts != self.cuts)

    def _end_flush(self, log: PartitionLog, work: FlushWork, *, was_cut: bool) -> None:
        self._say("end the flush")
        was_open = log.is_open
        try:
            work.run()
        except OSError as error:
            self._flush_failed(log, log.fail_flush(error))
            return
        log.end_flush(work)
        if was_open and not was_cut:
            self.model.flushed(work.up_to)
            require(log.recovery_point >= work.up_to, "a flush did not raise the recovery point")

    def _flush_failed(self, log: PartitionLog, error: Exception) -> None:
        """A log that goes on has not tried: it could not write what has to be synced."""
        self._fails(error)
        if not log.is_open:
            self.model.sync_failed = True

    # Cutting.

    def truncate(self, log: PartitionLog, _manager: LogManager) -> None:
        rng, model = self.world.rng, self.model
        low = model.log_start - 2 if rng.random() < 0.1 else model.log_start
        if rng.random() < 0.6:
            low = max(low, model.log_end - 8)
        offset = max(0, rng.randint(low, model.log_end + 1))
        self._say(f"truncate [{model.log_start}, {model.log_end}) to {offset}")
        starts_over = offset < model.log_start
        # The batch that holds the log start may be the one that is cut: then that goes back too.
        end = offset if starts_over else model.cut_end(offset)
        outcomes = Outcomes(cut_to=offset, restart_at=end if end < model.log_start else None)
        with self._pending(log, outcomes):
            try:
                done = log.truncate_to(offset, DIVERGED, now_ms=self.world.clock_ms)
            except StorageError as error:
                self._cut_failed(error)
                return
        require(done == (offset < model.log_end), f"truncate_to returned {done}")
        if not done:
            return
        self.cuts += 1
        if starts_over:
            model.restarted(offset)
        else:
            model.truncated(offset)

    def start_over(self, log: PartitionLog, _manager: LogManager) -> None:
        model = self.model
        offset = max(0, self.world.rng.randint(model.log_start - 5, model.log_end + 10))
        self._say(f"start over at {offset}")
        with self._pending(log, Outcomes(restart_at=offset, start_to=offset)):
            try:
                log.start_over_at(offset, DIVERGED)
            except StorageError as error:
                self._cut_failed(error)
                return
        self.cuts += 1
        model.restarted(offset)

    def advance_log_start(self, log: PartitionLog, _manager: LogManager) -> None:
        model = self.model
        offset = self.world.rng.randint(max(0, model.log_start - 1), model.log_end + 1)
        self._say(f"advance the log start {model.log_start} to {offset}")
        with self._pending(log, Outcomes(start_to=offset)):
            try:
                log.advance_log_start(offset, given_up(offset))
            except StorageError as error:
                self._start_failed(log, error)
                return
            except OffsetOutOfRange:
                require(offset > model.log_end, "the log start could not be advanced")
                return
        require(offset <= model.log_end, "the log start went beyond the log end")
        if offset > model.log_start:
            model.started_at(offset, durable=True)

    def retain(self, log: PartitionLog, _manager: LogManager) -> None:
        rng, model = self.world.rng, self.model
        mark = rng.choice((model.log_end, rng.randint(model.log_start, model.log_end)))
        before = model.log_start
        with self._pending(log, Outcomes(start_to=mark)):
            try:
                verdict = log.enforce_retention(now_ms=self.world.clock_ms, high_watermark=mark)
            except StorageError as error:
                self._start_failed(log, error)
                return
        self._say(f"retain below {mark}: {verdict.count} go, start at {verdict.new_log_start}")
        require(before <= log.log_start <= max(mark, before), f"retention to {log.log_start}")
        require(log.log_start == verdict.new_log_start, f"{log.log_start} is not {verdict}")
        model.started_at(log.log_start, durable=False)

    def expire_producers(self, log: PartitionLog, _manager: LogManager) -> None:
        now_ms = self.world.clock_ms
        before = {entry.producer_id: entry.last_update_ms for entry in log.producers.entries()}
        log.expire_producers(now_ms=now_ms)
        limit_ms = now_ms - self.config.producer_id_expiration_ms
        for producer_id, updated_ms in before.items():
            if producer_id in log.producers:
                continue
            self._say(f"producer {producer_id} expires")
            require(updated_ms < limit_ms, f"producer {producer_id} expired early")
            if producer_id in self.producer_ids:
                # A reopened log may know it again from its batches, so it is not used any more.
                at = self.producer_ids.index(producer_id)
                self.producer_ids[at : at + 1] = self.world.new_producer_ids(1)

    def _cut_failed(self, error: StorageError) -> None:
        self._fails(error)
        self.cuts += 1

    def _start_failed(self, log: PartitionLog, error: StorageError) -> None:
        """A log start that found no room changes nothing; other failures close the log."""
        self._fails(error)
        self.cuts += not log.is_open

    # Compacting.

    def compact(self, log: PartitionLog, manager: LogManager) -> None:
        """Another thread rewrites segments while the owner of the log goes on."""
        rng, model = self.world.rng, self.model
        cleaned_to = int(manager.cleaned_to(self.name))
        bound = rng.choice((model.log_end, rng.randint(model.log_start, model.log_end)))
        work = begin_compaction(
            log,
            cleaned_to=cleaned_to,
            bound=bound,
            now_ms=self.world.clock_ms,
            buffer_bytes=rng.choice((200, 1 << 20)),
        )
        self._say(f"begin a compaction from {cleaned_to} to {bound}: {work and 'work to do'}")
        if work is None:
            return
        work.dirty_chunk_bytes = work.clean_chunk_bytes = rng.choice((1000, 1 << 20))
        thorough = cleaned_to <= model.compacted_to
        if rng.random() < 0.3:
            self._go_on(log, manager)
        try:
            work.run()
        except (OSError, TailraceError) as error:
            failure = fail_compaction(log, work, error)
            self._fails(error)
            require(failure is None or isinstance(error, OSError), f"compaction: {error!r}")
            return
        if rng.random() < 0.3:
            self._go_on(log, manager)
        try:
            self._end_compaction(log, manager, work, thorough=thorough)
        finally:
            work.release()

    def _end_compaction(
        self, log: PartitionLog, manager: LogManager, work: CompactionWork, *, thorough: bool
    ) -> None:
        self._say("end the compaction")
        if not log.is_open:
            require(end_compaction(log, work) is None, "a log that had to stop was compacted")
            return
        with self._pending(log, Outcomes(compacted_ms=work.now_ms)):
            try:
                report = end_compaction(log, work)
            except StorageError as error:
                self._fails(error)
                return
        if report is None:
            return
        self.model.compacted(
            read_all(log, self.world.rng),
            up_to=report.cleaned_to,
            now_ms=work.now_ms,
            thorough=thorough,
        )
        self._say(f"cleaned to {report.cleaned_to}, {report.records_after} records are left")
        try:
            manager.set_cleaned(self.name, report.cleaned_to)
        except OSError as error:
            self._fails(error)

    def _go_on(self, log: PartitionLog, manager: LogManager) -> None:
        """What the owner of a log does while another thread works for it."""
        for _ in range(self.world.rng.randint(0, 3)):
            if log.is_open:
                self.world.rng.choice(_BESIDE)(self, log, manager)

    # Checking.

    def expect_closed(self, log: PartitionLog) -> None:
        self._say("refuses calls until it is reopened")
        with _refused(LogClosed):
            log.append_as_leader(
                pool()[0].data, leader_epoch=LeaderEpoch(9_999), now_ms=self.world.clock_ms
            )
        with _refused(LogClosed):
            log.flush()

    def check(self, log: PartitionLog) -> None:
        model, rng = self.model, self.world.rng
        found, expected = (log.log_start, log.log_end), (model.log_start, model.log_end)
        require(found == expected, f"the log is {found}, expected {expected}")
        point = max(model.durable_end, log.segments[0].base_offset)
        require(log.recovery_point <= point, f"recovery point {log.recovery_point} above {point}")
        self._check_read(log)
        time_ms = START_MS + rng.randint(-STEP_MS, POOL_SIZE * STEP_MS + STEP_MS)
        limit = rng.randint(model.log_start, model.log_end)
        timed, due = log.offset_for_time(time_ms, up_to=limit), model.at_time(time_ms, limit)
        require(timed == due, f"time {time_ms} up to {limit}: {timed}, expected {due}")
        epoch = rng.randint(0, max(int(log.epochs.latest), 0) + 1)
        model.check_epoch_end(epoch, log.epoch_end(LeaderEpoch(epoch)))

    def check_headers(self, log: PartitionLog) -> None:
        found = [(h.base_offset, h.next_offset, h.leader_epoch) for h in log.headers(log.log_start)]
        expected = [(batch.base, batch.end, batch.epoch) for batch in self.model.readable()]
        require(found == expected, f"headers {found}, expected {expected}")

    def _check_read(self, log: PartitionLog) -> None:
        model, rng = self.model, self.world.rng
        offset = rng.randint(model.log_start, model.log_end)
        limit = rng.randint(offset, model.log_end) if rng.random() < 0.3 else model.log_end
        bytes_max = rng.choice((1, 500, 1000, 2000, 1 << 20))
        min_one = rng.random() < 0.8
        data = log.read(offset, bytes_max=bytes_max, up_to=limit, min_one=min_one)
        first = at = model.index_of(offset)
        size = 0
        while size < len(data) and at < len(model.batches):
            batch = model.batches[at]
            same = data[size : size + len(batch.data)] == batch.data
            require(same, f"the batch at {batch.base} differs")
            require(batch.end <= limit, f"{batch.end} is beyond {limit}")
            size += len(batch.data)
            at += 1
        require(size == len(data), f"{len(data)} bytes from {offset}, {size} are known")
        require(size <= bytes_max or (min_one and at == first + 1), f"{size} of {bytes_max}")
        due = offset < limit and model.batches[first].end <= limit
        if due and (min_one or len(model.batches[first].data) <= bytes_max):
            require(size > 0, f"nothing read at {offset} up to {limit}")

    @contextmanager
    def _pending(
        self, log: PartitionLog, outcomes: Outcomes, *, risk: float = CUT_RISK
    ) -> Iterator[None]:
        """While inside, a crash leaves one of these outcomes; so does a log that had to stop."""
        self.model.pending = outcomes
        if self.world.rng.random() < risk:
            self.world.files.crash_at_operation(self.world.rng.randint(1, CRASH_WITHIN))
        yield
        if log.is_open:
            self.model.pending = None
        else:
            self.model.sync_failed = True

    def _say(self, what: str) -> None:
        self.world.trace(f"{self.name} {what}")

    def _fails(self, error: Exception) -> None:
        self.world.trace(f"  … fails: {error}")

    def _trace_append(self, requests: list[Request], verdicts: list[Verdict], epoch: int) -> None:
        parts = []
        for request, verdict in zip(requests, verdicts, strict=True):
            what = "new"
            if verdict.error is not None:
                what = verdict.error.__name__
            elif verdict.duplicate is not None:
                what = f"duplicate of {verdict.duplicate.base}"
            parts.append(f"{shown(request)} ({what})")
        self._say(f"append {', '.join(parts)} in epoch {epoch}")


Operation = Callable[[Partition, PartitionLog, LogManager], None]

# How often each is done; compaction, the last, only where the topic is compacted.
_WEIGHTED: Final[tuple[tuple[Operation, int], ...]] = (
    (Partition.append_as_leader, 45),
    (Partition.append_as_follower, 15),
    (Partition.append_rubbish, 2),
    (Partition.roll, 4),
    (Partition.flush, 8),
    (Partition.flush_beside, 6),
    (Partition.truncate, 6),
    (Partition.start_over, 2),
    (Partition.advance_log_start, 4),
    (Partition.retain, 5),
    (Partition.expire_producers, 2),
    (Partition.compact, 12),
)
_OPERATIONS: Final = [operation for operation, _ in _WEIGHTED]
_WEIGHTS: Final = [weight for _, weight in _WEIGHTED]

# What the owner of a log may do while a flush or a compaction is under way.
_BESIDE: Final[tuple[Operation, ...]] = (
    Partition.append_as_leader,
    Partition.append_as_leader,
    Partition.append_as_follower,
    Partition.roll,
    Partition.truncate,
    Partition.start_over,
    Partition.advance_log_start,
    Partition.retain,
)


def read_all(log: PartitionLog, rng: Random) -> bytes:
    parts = []
    offset = log.log_start
    while offset < log.log_end:
        data = log.read(offset, bytes_max=rng.choice((1, 1000, 3000, 1 << 20)))
        require(bool(data), f"nothing to read at {offset} of {log.log_end}")
        parts.append(data)
        *_, (_, last) = split(data)
        offset = last.next_offset
    return b"".join(parts)


def require(good: bool, what: str) -> None:
    if not good:
        raise Mismatch(what)


def _resolved(log: PartitionLog, request: Request, verdict: Verdict) -> Verdict:
    """Ask the log where the model cannot know: a duplicate must be the right one."""
    header = request.header
    try:
        found = log.producers.check(
            producer_id=header.producer_id,
            producer_epoch=header.producer_epoch,
            base_sequence=header.base_sequence,
            record_count=header.record_count,
        )
    except TailraceError as error:
        return Verdict(error=type(error))
    if found is None:
        return FRESH
    require(verdict.duplicate is not None, f"{found} is no duplicate of anything")
    return Verdict(verdict.duplicate)


@contextmanager
def _refused(*errors: type[TailraceError]) -> Iterator[None]:
    try:
        yield
    except errors:
        return
    raise Mismatch(f"{errors} was due")
