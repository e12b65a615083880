"""The housekeeping of a broker: retention and compaction of its logs, beside the work for clients.

Leaders remove what is too old or too much; followers follow their leader's log start. Every
replica compacts its own log, never above its high watermark. One compaction runs at a time, in
steps off the loop with rests between them, so that it takes no more of disk and processor than
`log.cleaner.io.max.bytes.per.second` allows and nobody waits for it longer than for one step. What
a step may take of memory is bounded by `log.cleaner.dedupe.buffer.size`.

A compaction reads and verifies everything: where it finds durable records damaged, and others are
in sync, the replica goes out of service and is mended from its leader.

Replicas that were set aside go when they were kept for `stray.retention.ms`.

Ages are judged by a time that has to be believable (`clock.TrustedTime`). Nothing here decides
which records go: that is done by `log.retention` and `log.cleaning`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from tailrace.broker.hosted import Hosted
from tailrace.broker.replicas import Replicas
from tailrace.broker.settings import BrokerSettings
from tailrace.broker.upkeep import CleaningQueue, Pace
from tailrace.clock import Clock, TrustedTime
from tailrace.errors import (
    BatchFault,
    CorruptBatch,
    DamagedLog,
    InvariantViolation,
    TailraceError,
)
from tailrace.log.cleaning.cleanable import Dirtiness
from tailrace.log.cleaning.compaction import (
    CompactionReport,
    CompactionWork,
    begin_compaction,
    dirtiness,
    end_compaction,
    fail_compaction,
)
from tailrace.log.files import Files
from tailrace.log.manager import LogManager
from tailrace.log.segment import Segment
from tailrace.model import LogStartCause, TopicPartition
from tailrace.replication.partition import Role
from tailrace.runtime import Blocking

# A compaction moves about this much before it rests: some milliseconds of work.
STEP_BYTES: Final = 4 << 20
# So many logs are looked at before the loop gets its turn.
LOGS_PER_TURN: Final = 16


class Housekeeping:
    """Runs as two tasks, `expire_forever` and `clean_forever`, until they are cancelled."""

    def __init__(
        self,
        settings: BrokerSettings,
        manager: LogManager,
        replicas: Replicas,
        *,
        files: Files,
        clock: Clock,
        blocking: Blocking,
        say: Callable[[str], None],
    ) -> None:
        self._settings = settings
        self._manager = manager
        self._replicas = replicas
        self._files = files
        self._clock = clock
        self._blocking = blocking
        self._say = say
        self._time = TrustedTime(settle_ms=settings.retention_clock_settle_ms)
        self._pace = Pace(settings.cleaner_io_bytes_per_s)
        self._queue = CleaningQueue(backoff_ms=settings.cleaner_backoff_ms)
        self.now_cleaning: TopicPartition | None = None
        self.passes = 0
        # What all passes together have read, and left.
        self.bytes_before = 0
        self.bytes_after = 0

    async def expire_forever(self) -> None:
        """Look after the age and the size of the logs, again and again."""
        while True:
            await asyncio.sleep(self._settings.retention_check_interval_ms / 1000)
            await self.expire_all()

    async def clean_forever(self) -> None:
        """Compact whichever log is due, one after the other."""
        while True:
            hosted: Hosted | None = None
            try:
                hosted = await self._next_to_clean()
                if hosted is not None:
                    await self.clean(hosted)
            except InvariantViolation:
                raise
            except (OSError, TailraceError) as error:
                # Of one log, or of its disk: the others are looked at after a rest.
                self._say(f"compaction has to wait: {error}")
                hosted = None
            if hosted is None:
                await asyncio.sleep(self._settings.cleaner_backoff_ms / 1000)

    def now_ms(self) -> int | None:
        """The time that ages are judged by, None while the clock is not believed."""
        return self._time.now_ms(
            wall_ms=self._clock.wall_ms(), monotonic_ms=self._clock.monotonic_ms()
        )

    # Retention.

    async def expire_all(self) -> None:
        """One look at every log."""
        now_ms = self.now_ms()
        aside: list[str] = []
        await self._store_log_starts(now_ms)
        for number, hosted in enumerate(self._replicas.hosted()):
            if number % LOGS_PER_TURN == 0:
                await asyncio.sleep(0)
            if not self._is_here(hosted):
                continue
            try:
                await self._learn_ages(hosted)
                self._expire(hosted, now_ms, aside)
            except (TailraceError, OSError) as error:
                self._say(f"{hosted.partition}: retention has to wait: {error}")
        aside += self._replicas.take_removed()
        if aside:
            await self._blocking.run(lambda: self._remove(aside))
        try:
            await self._replicas.expire_strays(now_ms, self._settings.stray_retention_ms)
        except OSError as error:
            self._say(f"replicas that were set aside cannot be looked at: {error}")

    async def _learn_ages(self, hosted: Hosted) -> None:
        """Indexes that are not in memory are read off the loop, once for each segment."""
        unknown = [each for each in hosted.log.segments[:-1] if not each.is_age_known]
        if unknown:
            await self._blocking.run(lambda: _learn_ages(unknown))

    async def _store_log_starts(self, now_ms: int | None) -> None:
        """Where logs are about to begin, and why, is durable before anything of them goes.

        All of them at once, off the loop: the file holds every log of its folder.
        """
        moves: dict[TopicPartition, tuple[int, LogStartCause | None]] = {}
        for number, hosted in enumerate(self._replicas.hosted()):
            if number % LOGS_PER_TURN == 0:
                await asyncio.sleep(0)
            if not self._is_here(hosted):
                continue
            log = hosted.log
            move = (log.log_start, log.start_cause)
            if hosted.machine.role is Role.LEADER:
                await self._learn_ages(hosted)
                mark = hosted.machine.high_watermark
                verdict = log.expired(now_ms=now_ms, high_watermark=mark)
                if verdict.new_log_start > log.log_start:
                    move = (verdict.new_log_start, log.retention_cause(verdict))
            if move != (log.log_start, log.start_cause) or log.has_given_up:
                moves[hosted.partition] = move
        if not moves:
            return
        try:
            await self._blocking.run(lambda: self._manager.set_log_starts(moves))
        except OSError as error:
            self._say(f"log starts were not stored, retention tries each by itself: {error}")

    def _expire(self, hosted: Hosted, now_ms: int | None, aside: list[str]) -> None:
        log = hosted.log
        if not self._is_here(hosted):
            return
        if hosted.machine.role is Role.LEADER:
            before = log.log_start
            verdict = log.enforce_retention(
                now_ms=now_ms, high_watermark=hosted.machine.high_watermark, aside=aside
            )
            if verdict.count:
                reasons = sorted({reason.value for reason in verdict.reasons})
                self._say(f"{hosted.partition}: {verdict.count} segments gone, {reasons}")
            if log.log_start > before:
                self._replicas.note_log_start(hosted, before)
                hosted.mark_followers()
                hosted.mark_fetchers()
        else:
            log.drop_given_up(aside=aside)
        if now_ms is not None:
            log.expire_producers(now_ms=now_ms)

    def _remove(self, paths: list[str]) -> None:
        for path in paths:
            # What cannot be removed now goes when the log is opened next.
            with suppress(OSError):
                self._files.remove(path)

    # Compaction.

    async def _next_to_clean(self) -> Hosted | None:
        now_ms = self.now_ms()
        if now_ms is None:
            return None
        logs: dict[TopicPartition, Dirtiness] = {}
        ratios: dict[TopicPartition, float] = {}
        hosted_now = self._replicas.hosted()
        self._queue.keep_only({each.partition for each in hosted_now})
        for number, hosted in enumerate(hosted_now):
            if number % LOGS_PER_TURN == 0:
                await asyncio.sleep(0)
            if not self._is_here(hosted) or not hosted.log.config.cleanup_policy.compacts:
                continue
            self._close_when_old(hosted, now_ms)
            logs[hosted.partition] = dirtiness(
                hosted.log,
                cleaned_to=self._cleaned_to(hosted),
                bound=hosted.machine.high_watermark,
                now_ms=now_ms,
            )
            ratios[hosted.partition] = hosted.log.config.min_cleanable_dirty_ratio
        chosen = self._queue.choose(logs, ratios, now_ms=self._clock.monotonic_ms())
        return self._replicas.get(chosen) if chosen is not None else None

    def _close_when_old(self, hosted: Hosted, now_ms: int) -> None:
        """Only closed segments are compacted: one that nobody writes to any more is closed too."""
        log = hosted.log
        active = log.segments[-1]
        is_old = active.size > 0 and now_ms - active.created_ms >= log.config.segment_ms
        if is_old and active.next_offset <= hosted.machine.high_watermark:
            try:
                log.roll()
            except TailraceError as error:
                self._say(f"{hosted.partition}: {error}")

    async def clean(self, hosted: Hosted) -> CompactionReport | None:
        """One pass over one log; None when there was nothing to do, or it came to nothing."""
        now_ms = self.now_ms()
        if now_ms is None or not self._is_here(hosted):
            return None
        log = hosted.log
        work = begin_compaction(
            log,
            cleaned_to=self._cleaned_to(hosted),
            bound=hosted.machine.high_watermark,
            now_ms=now_ms,
            buffer_bytes=self._settings.folders.cleaner_dedupe_buffer_bytes,
        )
        if work is None:
            return None
        self.now_cleaning = hosted.partition
        try:
            return await self._clean(hosted, work)
        finally:
            self.now_cleaning = None
            self.passes += 1

    async def _clean(self, hosted: Hosted, work: CompactionWork) -> CompactionReport | None:
        log, partition = hosted.log, hosted.partition
        try:
            await self._advance(hosted, work)
            report = end_compaction(log, work)
            if report is not None:
                await self._blocking.run(
                    lambda: self._manager.set_cleaned(partition, report.cleaned_to)
                )
        except asyncio.CancelledError:
            work.discard()
            raise
        except (OSError, TailraceError, ValueError) as error:
            # ValueError is what Arrow and numpy say of bytes: the logs of others are compacted.
            cause = _told(error)
            failure = await self._blocking.run(lambda: fail_compaction(log, work, cause))
            if isinstance(failure, DamagedLog) and self._replicas.damaged(hosted, failure):
                return None
            wait_ms = self._queue.failed(partition, now_ms=self._clock.monotonic_ms())
            if failure is not None:
                self._say(f"{partition}: not compacted, again in {wait_ms} ms: {failure}")
            return None
        await self._blocking.run(work.release)
        if report is None:
            return None
        self._queue.succeeded(partition)
        self._tell(partition, report)
        return report

    async def _advance(self, hosted: Hosted, work: CompactionWork) -> None:
        """All steps of a pass, with a rest after each."""
        is_done = False
        while not is_done:
            before_ms, before_bytes = self._clock.monotonic_ms(), work.moved_bytes
            is_done = await self._step(work)
            if not self._is_here(hosted) or work.is_stale(hosted.log):
                # What was read is no longer so: the end of the pass will find that too.
                return
            pause_ms = self._pace.pause_ms(
                moved_bytes=work.moved_bytes - before_bytes,
                took_ms=self._clock.monotonic_ms() - before_ms,
            )
            await asyncio.sleep(pause_ms / 1000)

    async def _step(self, work: CompactionWork) -> bool:
        """One step off the loop. When we are cancelled it ends first, so that it can be undone."""
        step = asyncio.ensure_future(self._blocking.run(lambda: work.advance(STEP_BYTES)))
        try:
            return await asyncio.shield(step)
        except asyncio.CancelledError:
            work.cancel()
            while not step.done():
                with suppress(asyncio.CancelledError):
                    await asyncio.wait([step])
            raise

    def _tell(self, partition: TopicPartition, report: CompactionReport) -> None:
        self.bytes_before += report.bytes_before
        self.bytes_after += report.bytes_after
        self._say(
            f"{partition}: compacted to offset {report.cleaned_to}, "
            f"{report.records_before} records became {report.records_after}, "
            f"{report.bytes_before} bytes {report.bytes_after}"
        )
        for each in report.copied_blindly:
            self._say(f"compaction cannot read {each}")

    # Both.

    def _is_here(self, hosted: Hosted) -> bool:
        """Whether the partition is still the one that is hosted, and its log in use."""
        return hosted.log.is_open and self._replicas.get(hosted.partition) is hosted

    def _cleaned_to(self, hosted: Hosted) -> int:
        return int(self._manager.cleaned_to(hosted.partition))


def _told(error: OSError | TailraceError | ValueError) -> OSError | TailraceError:
    if isinstance(error, ValueError):
        told = CorruptBatch(BatchFault.BAD_BODY, f"compaction: {error}")
        told.__cause__ = error
        return told
    return error


def _learn_ages(segments: list[Segment]) -> None:
    for segment in segments:
        # Retention or compaction may have taken it away meanwhile.
        with suppress(OSError):
            segment.learn_age()
