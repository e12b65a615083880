"""Random work on a LogManager over a simulated disk, step by step against `simulation.log_model`.

All chance comes from one seed: the same seed does the same steps, meets the same faults and shows
the same failure. After each step the log must answer as the model does; after each opening all of
it is read back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
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
    next_sequence,
    request_of,
    stored,
)
from simulation.storage import SimFiles, SimulatedCrash
from tailrace.config import UNLIMITED, FolderConfig, LogConfig, TimestampType
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
from tailrace.log.log import BatchResult, FlushWork, PartitionLog
from tailrace.log.manager import Identity, LogManager
from tailrace.model import BrokerId, LeaderEpoch, TopicId, TopicPartition
from tailrace.record.build import BatchBuilder
from tailrace.record.codec import Compression
from tailrace.record.header import HEADER_BYTES, assemble, split

STEPS_MIN: Final = 30
STEPS_MAX: Final = 60
STEP_MS: Final = 20
START_MS: Final = 1_700_000_000_000
POOL_SIZE: Final = 64
OPEN_ATTEMPTS_MAX: Final = 30
IDENTITY: Final = Identity("simulated", BrokerId(1), "incarnation")

Trace = Callable[[str], None]


@dataclass(slots=True)
class Partition:
    """One partition under test: its name, what it must answer, and those who write to it."""

    name: TopicPartition
    config: LogConfig
    model: PartitionModel = field(default_factory=PartitionModel)
    producer_ids: list[int] = field(default_factory=list)
    # Counts what cut the log, so that a flush that began before knows.
    cuts: int = 0


@dataclass(slots=True)
class Operation:
    run: Callable[[LogSimulation, Partition, PartitionLog], None]
    weight: int


class LogSimulation:
    """One sequence of steps; `run` raises Mismatch, or whatever the log raised and must not."""

    def __init__(self, seed: int, trace: Trace = lambda _: None) -> None:
        self.rng = Random(seed)
        self.trace = trace
        self.files = SimFiles(Random(seed + 1))
        self.step_number = 0
        self.operations_before = 0
        self.clock_ms = START_MS
        self.next_producer_id = 1
        # A failed sync whose marker could not be written either: nothing can be promised then.
        self.hopeless = False
        self.power_lost = False
        self.closed_cleanly = False
        self.full_until = 0
        folders = ("/data",) if self.rng.random() < 0.8 else ("/data", "/more")
        self.folders = FolderConfig(
            log_dirs=folders,
            open_files_max=16,
            index_cache_bytes=self.rng.choice((1024, 4096, 1 << 20)),
        )
        count = self.rng.choice((1, 1, 2, 3))
        self.partitions = [
            Partition(TopicPartition(f"t{number}", number), self._random_config())
            for number in range(count)
        ]
        self.manager = self._new_manager()

    def run(self) -> None:
        self._open()
        for _ in range(self.rng.randint(STEPS_MIN, STEPS_MAX)):
            self.step()
            if self.hopeless:
                return
        self.files.disk_bytes_max = None
        for _ in range(2):
            self._restart()
            if self.hopeless:
                return

    def step(self) -> None:
        self.step_number += 1
        self.operations_before = self.files.operations
        self.clock_ms += self.rng.randint(0, 2 * STEP_MS)
        if self.step_number >= self.full_until:
            self.files.disk_bytes_max = None
        self._maybe_arm_fault()
        draw = self.rng.random()
        if draw < 0.10:
            self._restart()
            return
        partition = self.rng.choice(self.partitions)
        log = self.manager.logs.get(partition.name)
        try:
            if log is None:
                self._create(partition)
            elif draw < 0.13:
                self._delete(partition)
            elif draw < 0.17:
                self._checkpoint()
            elif log.is_open:
                self._operate(partition, log)
            else:
                self._expect_closed(partition, log)
        except SimulatedCrash:
            self._died()
            self._restart(died=True)

    # Requests.

    def random_request(self, partition: Partition) -> Request:
        """A batch, half of the time of an idempotent producer: new, retried or out of order."""
        plain = _pool()[self._pool_index()]
        if self.rng.random() < 0.5:
            return plain
        model = partition.model
        producer_id = self.rng.choice(partition.producer_ids)
        history = model.history(producer_id)
        draw = self.rng.random()
        if not history:
            sequence = 0 if draw < 0.95 else 3
            return _produced(plain, producer_id, 0, sequence)
        if draw < 0.3:
            return self.rng.choice(history[:7]).request
        epoch = history[0].request.header.producer_epoch
        if draw < 0.35:
            return _produced(plain, producer_id, epoch + 1, self.rng.choice((0, 0, 0, 1)))
        if draw < 0.37 and epoch > 0:
            return _produced(plain, producer_id, epoch - 1, 0)
        sequence = next_sequence(history[0]) + (7 if draw > 0.97 else 0)
        return _produced(plain, producer_id, epoch, sequence)

    def _pool_index(self) -> int:
        at = self.step_number + self.rng.randint(-4, 4)
        return max(0, min(POOL_SIZE - 1, at))

    # Appending.

    def append_as_leader(self, partition: Partition, log: PartitionLog) -> None:
        model = partition.model
        requests = [self.random_request(partition) for _ in range(self.rng.choice((1, 1, 1, 2, 3)))]
        latest = int(log.epochs.latest)
        epoch = _epoch_of(model, log) + self.rng.choice((0,) * 8 + (1, 2))
        stamps = partition.config.message_timestamp_type is TimestampType.LOG_APPEND_TIME
        verdicts = self._verdicts(partition, log, requests)
        batches: list[Stored] = []
        end = model.log_end
        for request, verdict in zip(requests, verdicts, strict=True):
            if verdict.error is not None:
                break
            if verdict == FRESH:
                stamp_ms = self.clock_ms if stamps else None
                batches.append(stored(request, base=end, epoch=epoch, stamp_ms=stamp_ms))
                end = batches[-1].end
        self.trace(f"{partition.name} append {_shown(requests, verdicts)} in epoch {epoch}")
        data = b"".join(request.data for request in requests)
        with self._pending(partition, log, Outcomes(appended=batches)):
            try:
                results = log.append_as_leader(
                    data, leader_epoch=LeaderEpoch(epoch), now_ms=self.clock_ms
                )
            except StorageError as error:
                self._append_failed(partition, log, error, epoch)
                return
        if epoch > latest:
            model.assigned = epoch
        for batch in batches:
            model.append(batch)
        self._check_results(results, verdicts, batches)

    def append_as_follower(self, partition: Partition, log: PartitionLog) -> None:
        model = partition.model
        epoch = _epoch_of(model, log)
        batches: list[Stored] = []
        base = model.log_end + (1 if self.rng.random() < 0.03 else 0)
        gap = base != model.log_end
        for _ in range(self.rng.choice((1, 1, 2, 3))):
            request = self._replicated_request(partition, batches)
            epoch += self.rng.choice((0,) * 7 + (1,))
            batches.append(stored(request, base=base, epoch=epoch))
            base = batches[-1].end
        self.trace(f"{partition.name} follow {[(b.base, b.end, b.epoch) for b in batches]}")
        data = b"".join(batch.data for batch in batches)
        with self._pending(partition, log, Outcomes(appended=[] if gap else batches)):
            try:
                end = log.append_as_follower(data, now_ms=self.clock_ms)
            except StorageError as error:
                self._append_failed(partition, log, error, epoch)
                return
            except NonContiguousAppend:
                _require(gap, "a follower's append was refused")
                return
        _require(not gap, "a follower took a gap")
        for batch in batches:
            model.append(batch)
        _require(end == model.log_end, f"a follower's append returned {end}")

    def append_rubbish(self, partition: Partition, log: PartitionLog) -> None:
        """Damaged bytes and old epochs are refused, and leave no trace."""
        request = _pool()[self._pool_index()]
        latest = int(log.epochs.latest)
        if latest > 0 and self.rng.random() < 0.5:
            self.trace(f"{partition.name} append in the old epoch {latest - 1}")
            with _refused(InvariantViolation, StorageError):
                log.append_as_leader(
                    request.data, leader_epoch=LeaderEpoch(latest - 1), now_ms=self.clock_ms
                )
            return
        damaged = bytearray(request.data)
        damaged[self.rng.randrange(len(damaged))] ^= 1 << self.rng.randrange(8)
        self.trace(f"{partition.name} append damaged bytes")
        if self.rng.random() < 0.5:
            # The prefix of a produced batch is not used, but it must be good all the same.
            with _refused(CorruptBatch):
                log.append_as_leader(
                    bytes(damaged), leader_epoch=LeaderEpoch(max(latest, 0)), now_ms=self.clock_ms
                )
        else:
            with _refused(CorruptBatch, NonContiguousAppend):
                log.append_as_follower(bytes(damaged), now_ms=self.clock_ms)

    def _replicated_request(self, partition: Partition, before: list[Stored]) -> Request:
        plain = _pool()[self._pool_index()]
        if self.rng.random() < 0.6:
            return plain
        producer_id = self.rng.choice(partition.producer_ids)
        own = [batch for batch in before if batch.producer_id == producer_id]
        history = own[::-1] or partition.model.history(producer_id)
        if not history:
            return _produced(plain, producer_id, 0, 0)
        epoch = history[0].request.header.producer_epoch
        if self.rng.random() < 0.1:
            return _produced(plain, producer_id, epoch + 1, 0)
        return _produced(plain, producer_id, epoch, next_sequence(history[0]))

    def _verdicts(
        self, partition: Partition, log: PartitionLog, requests: list[Request]
    ) -> list[Verdict]:
        """What each batch of one append must be answered; from the first error on all alike."""
        verdicts: list[Verdict] = []
        fresh: dict[int, Request] = {}
        for at, request in enumerate(requests):
            verdict = partition.model.verdict(request)
            header = request.header
            before = fresh.get(header.producer_id)
            if before is not None:
                expected = (before.header.producer_epoch, before.header.last_sequence + 1)
                good = (header.producer_epoch, header.base_sequence) == expected
                verdict = FRESH if good else Verdict(error=OutOfOrderSequence)
            elif verdict.loose:
                verdict = _resolved(log, request, verdict)
                if verdict == FRESH and not _continues(partition.model, request):
                    # Its first copy was deleted and forgotten. Taking it again is right, but the
                    # model would no longer know which copy a later retry is told of.
                    requests[at], verdict = _pool()[0], FRESH
            if verdict == FRESH and header.producer_id >= 0 and requests[at] is request:
                fresh[header.producer_id] = request
            verdicts.append(verdict)
            if verdict.error is not None:
                del requests[at + 1 :]
                requests += [request] * (len(verdicts) - len(requests))
                break
        return verdicts

    def _check_results(
        self, results: list[BatchResult], verdicts: list[Verdict], batches: list[Stored]
    ) -> None:
        _require(len(results) == len(verdicts), f"{len(results)} results")
        fresh = iter(batches)
        for result, verdict in zip(results, verdicts, strict=True):
            if verdict.error is not None:
                _require(type(result.error) is verdict.error, f"{result} is not {verdict.error}")
                continue
            batch = verdict.duplicate or next(fresh)
            expected = (batch.base, batch.end - 1, verdict.duplicate is not None)
            found = (result.base_offset, result.last_offset, result.duplicate)
            _require(result.error is None, f"{result}, expected {expected}")
            _require(found == expected, f"{found}, expected {expected}")
            _require(result.timestamp_ms == batch.max_time_ms, f"time of {result}")

    def _append_failed(
        self, partition: Partition, log: PartitionLog, error: StorageError, epoch: int
    ) -> None:
        """Nothing was stored, but a new epoch may have begun before the disk said no."""
        self.trace(f"  … fails: {error}")
        model = partition.model
        latest = int(log.epochs.latest)
        known = model.epochs()
        if latest == epoch and (not known or epoch > known[-1][0]):
            model.assigned = epoch

    # Rolling, flushing, cutting.

    def roll(self, partition: Partition, log: PartitionLog) -> None:
        self.trace(f"{partition.name} roll")
        try:
            log.roll()
        except StorageError as error:
            self.trace(f"  … fails: {error}")

    def flush(self, partition: Partition, log: PartitionLog) -> None:
        self.trace(f"{partition.name} flush at {log.log_end}")
        try:
            point = log.flush()
        except StorageError as error:
            self._sync_failed(partition, log, error)
            return
        _require(point == log.log_end, f"flushed to {point} of {log.log_end}")
        partition.model.flushed(point)

    def flush_beside(self, partition: Partition, log: PartitionLog) -> None:
        """Another thread syncs while the owner of the log goes on."""
        try:
            work = log.begin_flush()
        except StorageError as error:
            self.trace(f"{partition.name} a flush does not begin: {error}")
            return
        self.trace(f"{partition.name} begin a flush {work and work.up_to}")
        if work is None:
            _require(log.recovery_point == log.log_end, "nothing to flush, it is said")
            return
        cuts = partition.cuts
        for _ in range(self.rng.randint(0, 3)):
            if not log.is_open:
                break
            _BESIDE[self.rng.randrange(len(_BESIDE))](self, partition, log)
        self._end_flush(partition, log, work, cut=cuts != partition.cuts)

    def _end_flush(
        self, partition: Partition, log: PartitionLog, work: FlushWork, *, cut: bool
    ) -> None:
        self.trace(f"{partition.name} end the flush")
        was_open = log.is_open
        try:
            work.run()
        except OSError as error:
            self._sync_failed(partition, log, log.fail_flush(error))
            return
        log.end_flush(work)
        if was_open and not cut:
            partition.model.flushed(work.up_to)
            _require(log.recovery_point >= work.up_to, "a flush did not raise the recovery point")

    def truncate(self, partition: Partition, log: PartitionLog) -> None:
        model = partition.model
        low = model.log_start - 2 if self.rng.random() < 0.1 else model.log_start
        if self.rng.random() < 0.6:
            low = max(low, model.log_end - 8)
        offset = max(0, self.rng.randint(low, model.log_end + 1))
        self.trace(f"{partition.name} truncate [{model.log_start}, {model.log_end}) to {offset}")
        restart_at = offset if offset < model.log_start else None
        outcomes = Outcomes(cut_to=offset, restart_at=restart_at, start_to=restart_at or 0)
        with self._pending(partition, log, outcomes):
            try:
                done = log.truncate_to(offset, now_ms=self.clock_ms)
            except StorageError as error:
                self._cut_failed(partition, error)
                return
        _require(done == (offset < model.log_end), f"truncate_to returned {done}")
        if done:
            partition.cuts += 1
            if restart_at is None:
                model.truncated(offset)
            else:
                model.restarted(offset)
            _require(log.recovery_point <= log.log_end, "the recovery point was not lowered")

    def start_over(self, partition: Partition, log: PartitionLog) -> None:
        model = partition.model
        offset = max(0, self.rng.randint(model.log_start - 5, model.log_end + 10))
        self.trace(f"{partition.name} start over at {offset}")
        outcomes = Outcomes(restart_at=offset, start_to=offset)
        with self._pending(partition, log, outcomes):
            try:
                log.start_over_at(offset)
            except StorageError as error:
                self._cut_failed(partition, error)
                return
        partition.cuts += 1
        model.restarted(offset)

    def advance_log_start(self, partition: Partition, log: PartitionLog) -> None:
        model = partition.model
        offset = self.rng.randint(max(0, model.log_start - 1), model.log_end + 1)
        self.trace(f"{partition.name} advance the log start {model.log_start} to {offset}")
        outcomes = Outcomes(start_to=offset)
        with self._pending(partition, log, outcomes):
            try:
                log.advance_log_start(offset)
            except StorageError as error:
                self._cut_failed(partition, error)
                return
            except OffsetOutOfRange:
                _require(offset > model.log_end, "the log start could not be advanced")
                return
        _require(offset <= model.log_end, "the log start went beyond the log end")
        if offset > model.log_start:
            model.started_at(offset, durable=True)

    def retain(self, partition: Partition, log: PartitionLog) -> None:
        model = partition.model
        mark = self.rng.randint(model.log_start, model.log_end)
        if self.rng.random() < 0.5:
            mark = model.log_end
        outcomes = Outcomes(start_to=mark)
        before = model.log_start
        with self._pending(partition, log, outcomes):
            try:
                verdict = log.enforce_retention(now_ms=self.clock_ms, high_watermark=mark)
            except StorageError as error:
                self._cut_failed(partition, error)
                return
        self.trace(f"{partition.name} retain below {mark}: {verdict}")
        _require(before <= log.log_start <= max(mark, before), f"retention to {log.log_start}")
        _require(log.log_start == verdict.new_log_start, f"{log.log_start} is not {verdict}")
        model.started_at(log.log_start, durable=False)

    def expire_producers(self, partition: Partition, log: PartitionLog) -> None:
        before = {entry.producer_id: entry.last_update_ms for entry in log.producers.entries()}
        log.expire_producers(now_ms=self.clock_ms)
        limit_ms = self.clock_ms - partition.config.producer_id_expiration_ms
        for producer_id, updated_ms in before.items():
            gone = producer_id not in log.producers
            _require(not gone or updated_ms < limit_ms, f"producer {producer_id} expired early")
            if gone:
                self.trace(f"{partition.name} producer {producer_id} expires")
                partition.model.retired.add(producer_id)
                if producer_id in partition.producer_ids:
                    at = partition.producer_ids.index(producer_id)
                    partition.producer_ids[at] = self._new_producer_id()

    def _sync_failed(self, partition: Partition, log: PartitionLog, error: Exception) -> None:
        """A log that goes on has not tried: it could not write what has to be synced."""
        self.trace(f"  … fails: {error}")
        partition.model.sync_failed = not log.is_open

    def _cut_failed(self, partition: Partition, error: StorageError) -> None:
        self.trace(f"  … fails: {error}")
        partition.cuts += 1

    def _expect_closed(self, partition: Partition, log: PartitionLog) -> None:
        self.trace(f"{partition.name} refuses calls until it is reopened")
        with _refused(LogClosed):
            log.append_as_leader(
                _pool()[0].data, leader_epoch=LeaderEpoch(9_999), now_ms=self.clock_ms
            )
        with _refused(LogClosed):
            log.flush()

    # The folder.

    def _create(self, partition: Partition) -> None:
        self.trace(f"{partition.name} create")
        model = partition.model
        _require(not model.exists or model.pending is not None, f"{partition.name} is missing")
        if model.pending is not None and model.pending.deleted:
            # A deletion failed half-way; only a restart tells whether it happened.
            self._restart()
            return
        model.pending = Outcomes(created=True)
        try:
            topic_id = TopicId(f"id-{self.step_number}")
            log = self.manager.create(partition.name, topic_id, now_ms=self.clock_ms)
        except (OSError, StorageError) as error:
            self.trace(f"  … fails: {error}")
            return
        model.created()
        partition.producer_ids = [self._new_producer_id() for _ in range(3)]
        _require(self.manager.topic_id(partition.name) == topic_id, "the topic id is lost")
        self._check(partition, log)

    def _delete(self, partition: Partition) -> None:
        self.trace(f"{partition.name} delete")
        model = partition.model
        outcomes = model.pending = model.pending or Outcomes()
        outcomes.deleted = True
        partition.cuts += 1
        try:
            self.manager.delete(partition.name)
        except OSError as error:
            self.trace(f"  … fails: {error}")
            return
        model.pending = None
        model.exists = False

    def _checkpoint(self) -> None:
        self.trace("checkpoint")
        try:
            self.manager.checkpoint()
        except OSError as error:
            self.trace(f"  … fails: {error}")
            return
        for partition in self.partitions:
            model = partition.model
            if model.exists and model.pending is None:
                model.durable_start = max(model.durable_start, model.log_start)

    # Restarting.

    def _restart(self, *, died: bool = False) -> None:
        """Go down in one of three ways (a clean one only by choice) and come up again."""
        draw = self.rng.random()
        if not died and draw < 0.4:
            died = not self._close()
        else:
            died = True
        if died or self.rng.random() < 0.2:
            self._crash()
        self._open()

    def _crash(self) -> None:
        power_loss = self.rng.random() < 0.5
        self.trace("POWER LOSS" if power_loss else "CRASH")
        self.files.crash(power_loss=power_loss)
        self.power_lost |= power_loss

    def _died(self) -> None:
        """The process died in a call. Had a sync failed in it, that may not have been noted."""
        self.trace("  … and dies in the middle")
        for number, what, path, _ in self.files._trace:
            if number > self.operations_before and what == "SYNC FAILS" and path.endswith(".log"):
                self.trace("  … right after a failed sync: nothing can be promised any more")
                self.hopeless = True

    def _close(self) -> bool:
        """Close in order; say whether that went well."""
        self.trace("close")
        broken = [
            partition.name
            for partition in self.partitions
            if partition.model.exists
            and partition.name in self.manager.logs
            and not self.manager.logs[partition.name].is_open
        ]
        sync_may_fail = self._sync_fault_is_armed()
        try:
            self.manager.close()
        except StorageError as error:
            self.trace(f"  … fails: {error}")
            _require(self.files.open_files == 0, f"{self.files.open_files} files are left open")
            for partition in self.partitions:
                partition.model.sync_failed = True
            return self.rng.random() < 0.5
        except SimulatedCrash:
            self._died()
            if sync_may_fail and not self._sync_fault_is_armed():
                for partition in self.partitions:
                    partition.model.sync_failed = True
            return False
        _require(not broken, f"{broken} cannot have been closed in order")
        _require(self.files.open_files == 0, f"{self.files.open_files} files are left open")
        for partition in self.partitions:
            model = partition.model
            if model.exists:
                model.flushed(model.log_end)
                model.durable_start = model.log_start
        self.closed_cleanly = all(partition.model.pending is None for partition in self.partitions)
        return True

    def _open(self) -> None:
        for _ in range(OPEN_ATTEMPTS_MAX):
            if self.hopeless:
                return
            self.manager = self._new_manager()
            try:
                report = self.manager.open(now_ms=self.clock_ms)
            except SimulatedCrash:
                self.trace("open …")
                self._died()
                self.closed_cleanly = False
                self._crash()
                continue
            except (OSError, StorageError) as error:
                self.trace(f"open … fails: {error}")
                self.closed_cleanly = False
                self.files.disk_bytes_max = None
                for partition in self.partitions:
                    partition.model.sync_failed = True
                _require(self.files.open_files == 0, f"{self.files.open_files} files left open")
                continue
            self.trace(f"open {[(str(r.partition), r.clean, r.cut) for r in report.opened]}")
            _require(not report.damaged, f"damaged: {report.damaged}")
            if self.closed_cleanly:
                scanned = [each for each in report.opened if not each.clean or each.scanned_bytes]
                _require(not scanned, f"scanned after a clean shutdown: {scanned}")
            clean = {each.partition for each in report.opened if each.clean}
            for partition in self.partitions:
                self._reopened(partition, clean=partition.name in clean)
            self.power_lost = self.closed_cleanly = False
            return
        raise Mismatch("the logs do not open")

    def _reopened(self, partition: Partition, *, clean: bool) -> None:
        model = partition.model
        log = self.manager.logs.get(partition.name)
        pending = model.pending or Outcomes()
        if log is None:
            _require(not model.exists or pending.deleted, f"{partition.name} is gone")
            model.exists, model.pending = False, None
            return
        _require(model.exists or pending.created, f"{partition.name} is back")
        if not model.exists:
            model.created()
            partition.producer_ids = [self._new_producer_id() for _ in range(3)]
        model.reopened(
            start=log.log_start,
            end=log.log_end,
            content=_read_all(log, self.rng),
            power_lost=self.power_lost,
            clean=clean,
        )
        # Opening flushes what it keeps, unless there was nothing to recover.
        _require(log.recovery_point == log.log_end, "what was recovered is not durable")
        model.durable_end = log.log_end
        self._check(partition, log)
        self._check_headers(partition, log)

    def _new_manager(self) -> LogManager:
        configs = {partition.name.topic: partition.config for partition in self.partitions}
        return LogManager(
            self.files, self.folders, identity=IDENTITY, log_config=configs.__getitem__
        )

    # Faults.

    def _maybe_arm_fault(self) -> None:
        draw = self.rng.random()
        if draw < 0.12:
            self.files.crash_at_operation(1 + min(30, int(self.rng.expovariate(0.2))))
        elif draw < 0.16:
            self.files.tear_next_write(self.rng.choice(("", ".log", ".log", ".tmp")))
        elif draw < 0.20 and self.files.disk_bytes_max is None:
            self.files.fail_next_sync(self.rng.choice(("", ".log", ".log", ".tmp")))
        elif draw < 0.22 and self.files.disk_bytes_max is None:
            self.files.fail_next_folder_sync()
        elif draw < 0.24 and not self._sync_fault_is_armed():
            self.full_until = self.step_number + self.rng.randint(1, 5)
            self.files.disk_bytes_max = self.files._used_bytes + self.rng.randint(0, 2000)
            self.trace(f"the disk is full at {self.files.disk_bytes_max} bytes")

    def _sync_fault_is_armed(self) -> bool:
        return self.files._fail_sync_suffix is not None or self.files._fail_folder_sync

    # Checking.

    def _operate(self, partition: Partition, log: PartitionLog) -> None:
        operation = self.rng.choices(_OPERATIONS, _WEIGHTS)[0]
        operation.run(self, partition, log)
        if log.is_open:
            self._check(partition, log)

    def _check(self, partition: Partition, log: PartitionLog) -> None:
        model, rng = partition.model, self.rng
        found, expected = (log.log_start, log.log_end), (model.log_start, model.log_end)
        _require(found == expected, f"the log is {found}, expected {expected}")
        point = max(model.durable_end, log.segments[0].base_offset)
        _require(
            log.recovery_point <= point, f"recovery point {log.recovery_point} above {point}"
        )
        self._check_read(partition, log)
        time_ms = START_MS + rng.randint(-STEP_MS, POOL_SIZE * STEP_MS + STEP_MS)
        limit = rng.randint(model.log_start, model.log_end)
        timed = log.offset_for_time(time_ms, up_to=limit)
        due = model.at_time(time_ms, limit)
        _require(timed == due, f"time {time_ms} up to {limit}: {timed}, expected {due}")
        epoch = rng.randint(0, max(int(log.epochs.latest), 0) + 1)
        model.check_epoch_end(epoch, tuple(log.epoch_end(LeaderEpoch(epoch))))

    def _check_read(self, partition: Partition, log: PartitionLog) -> None:
        model, rng = partition.model, self.rng
        offset = rng.randint(model.log_start, model.log_end)
        limit = rng.randint(offset, model.log_end) if rng.random() < 0.3 else model.log_end
        bytes_max = rng.choice((1, 500, 1000, 2000, 1 << 20))
        min_one = rng.random() < 0.8
        data = log.read(offset, bytes_max=bytes_max, up_to=limit, min_one=min_one)
        at = model.index_of(offset)
        first = at
        size = 0
        while size < len(data) and at < len(model.batches):
            batch = model.batches[at]
            _require(
                data[size : size + len(batch.data)] == batch.data, f"batch at {batch.base} differs"
            )
            _require(batch.end <= limit, f"{batch.end} is beyond {limit}")
            size += len(batch.data)
            at += 1
        _require(size == len(data), f"{len(data)} bytes from {offset}, {size} are known")
        _require(size <= bytes_max or (min_one and at == first + 1), f"{size} of {bytes_max}")
        due = offset < limit and model.batches[first].end <= limit
        if due and (min_one or len(model.batches[first].data) <= bytes_max):
            _require(size > 0, f"nothing read at {offset} up to {limit}")

    def _check_headers(self, partition: Partition, log: PartitionLog) -> None:
        model = partition.model
        found = [(h.base_offset, h.next_offset, h.leader_epoch) for h in log.headers(log.log_start)]
        expected = [(batch.base, batch.end, batch.epoch) for batch in model.readable()]
        _require(found == expected, f"headers {found}, expected {expected}")

    @contextmanager
    def _pending(
        self, partition: Partition, log: PartitionLog, outcomes: Outcomes
    ) -> Iterator[None]:
        """While inside, a crash leaves one of these outcomes; so does a log that had to stop."""
        partition.model.pending = outcomes
        yield
        if log.is_open:
            partition.model.pending = None
        else:
            partition.model.sync_failed = True

    # Chance.

    def _new_producer_id(self) -> int:
        self.next_producer_id += 1
        return self.next_producer_id

    def _random_config(self) -> LogConfig:
        choice = self.rng.choice
        return LogConfig(
            segment_bytes=choice((1024, 1500, 3000, 6000)),
            segment_ms=choice((3 * STEP_MS, 1_000_000)),
            segment_index_bytes=choice((600, 1 << 20, 1 << 20)),
            index_interval_bytes=choice((0, 1, 700, 2000)),
            retention_ms=choice((10 * STEP_MS, 30 * STEP_MS, UNLIMITED)),
            retention_bytes=choice((0, 2000, 8000, UNLIMITED)),
            producer_id_expiration_ms=choice((15 * STEP_MS, 1_000_000)),
            message_timestamp_type=choice((TimestampType.CREATE_TIME,) * 3
            + (TimestampType.LOG_APPEND_TIME,)),
        )


_OPERATIONS: Final = (
    Operation(LogSimulation.append_as_leader, 45),
    Operation(LogSimulation.append_as_follower, 15),
    Operation(LogSimulation.append_rubbish, 2),
    Operation(LogSimulation.roll, 4),
    Operation(LogSimulation.flush, 8),
    Operation(LogSimulation.flush_beside, 6),
    Operation(LogSimulation.truncate, 6),
    Operation(LogSimulation.start_over, 2),
    Operation(LogSimulation.advance_log_start, 4),
    Operation(LogSimulation.retain, 5),
    Operation(LogSimulation.expire_producers, 2),
)
_WEIGHTS: Final = [operation.weight for operation in _OPERATIONS]

# What the owner of a log may do while a flush is under way.
_BESIDE: Final = (
    LogSimulation.append_as_leader,
    LogSimulation.append_as_leader,
    LogSimulation.append_as_follower,
    LogSimulation.roll,
    LogSimulation.truncate,
    LogSimulation.start_over,
    LogSimulation.advance_log_start,
    LogSimulation.retain,
)


@cache
def _pool() -> list[Request]:
    """Batches of some sizes and times, built once: making one costs more than appending it."""
    rng = Random(0)
    requests = []
    for number in range(POOL_SIZE):
        codec = rng.choice((Compression.NONE, Compression.NONE, Compression.LZ4, Compression.ZSTD))
        builder = BatchBuilder(codec)
        times_ms = []
        for _ in range(rng.choice((1, 1, 2, 3, 5))):
            times_ms.append(START_MS + number * STEP_MS + rng.randint(-3 * STEP_MS, 3 * STEP_MS))
            value = None if rng.random() < 0.2 else bytes([number]) * rng.choice((0, 10, 200, 600))
            key = b"key-%d" % rng.randrange(6)
            headers = [("h", b"x")] if rng.random() < 0.1 else None
            builder.append(value, key, times_ms[-1], headers)
        requests.append(request_of(builder.build(), tuple(times_ms)))
    return requests


def _produced(plain: Request, producer_id: int, epoch: int, sequence: int) -> Request:
    """The batch with the marks of an idempotent producer."""
    header = plain.header._replace(
        producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence
    )
    stored_bytes = plain.data[HEADER_BYTES : len(plain.data) - header.padding]
    return request_of(assemble(header, stored_bytes), plain.times_ms)


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
    _require(verdict.duplicate is not None, f"{found} is no duplicate of anything")
    return Verdict(verdict.duplicate)


def _continues(model: PartitionModel, request: Request) -> bool:
    """Whether the batch is new: the next one of its producer, or the first of a newer epoch."""
    header = request.header
    newest = model.history(header.producer_id)[0]
    known = newest.request.header
    if header.producer_epoch != known.producer_epoch:
        return header.producer_epoch > known.producer_epoch
    return header.base_sequence == next_sequence(newest)


def _epoch_of(model: PartitionModel, log: PartitionLog) -> int:
    """An epoch that may go on: not below one that is still there, even below the log start."""
    return max(0, int(log.epochs.latest), model.batches[-1].epoch if model.batches else 0)


def _read_all(log: PartitionLog, rng: Random) -> bytes:
    parts = []
    offset = log.log_start
    while offset < log.log_end:
        data = log.read(offset, bytes_max=rng.choice((1, 1000, 3000, 1 << 20)))
        _require(bool(data), f"nothing to read at {offset} of {log.log_end}")
        parts.append(data)
        *_, (_, last) = split(data)
        offset = last.next_offset
    return b"".join(parts)


@contextmanager
def _refused(*errors: type[TailraceError]) -> Iterator[None]:
    try:
        yield
    except errors:
        return
    raise Mismatch(f"{errors} was due")


def _require(good: bool, what: str) -> None:
    if not good:
        raise Mismatch(what)


def _shown(requests: list[Request], verdicts: list[Verdict]) -> str:
    shown = []
    for request, verdict in zip(requests, verdicts, strict=False):
        header = request.header
        what = "new"
        if verdict.error is not None:
            what = verdict.error.__name__
        elif verdict.duplicate is not None:
            what = f"duplicate of {verdict.duplicate.base}"
        who = ""
        if header.producer_id >= 0:
            who = f" p{header.producer_id}/{header.producer_epoch}#{header.base_sequence}"
        shown.append(f"{header.record_count} records{who} ({what})")
    return ", ".join(shown)
