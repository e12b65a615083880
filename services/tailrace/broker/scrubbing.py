"""Reads everything that is durable, now and then, to find what rotted before somebody needs it.

A disk changes bytes without a word, and what nobody reads nobody verifies: a leader could hold such
records for years, while the other replicas that still have them go one by one. So the logs are read
and verified in turn, off the loop, no faster than `log.scrub.io.max.bytes.per.second`, and anew
`log.scrub.interval.ms` after the last round began. What is found goes the way of all damage
(`Replicas.damaged`): out of service, another leads, mended from there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from tailrace.broker.hosted import Hosted
from tailrace.broker.log_reads import LogReads
from tailrace.broker.replicas import Replicas
from tailrace.broker.settings import BrokerSettings
from tailrace.broker.upkeep import Pace
from tailrace.clock import Clock
from tailrace.errors import DamagedLog, InvariantViolation, OffsetOutOfRange, TailraceError
from tailrace.runtime import Blocking

# Read and verified before it rests: some milliseconds of work.
STEP_BYTES: Final = 1 << 20


class Scrubber:
    """Runs as a task, `scrub_forever`, until that is cancelled."""

    def __init__(
        self,
        settings: BrokerSettings,
        replicas: Replicas,
        *,
        clock: Clock,
        blocking: Blocking,
        say: Callable[[str], None],
    ) -> None:
        self._interval_ms = settings.scrub_interval_ms
        self._replicas = replicas
        self._clock = clock
        self._say = say
        self._pace = Pace(settings.scrub_io_bytes_per_s)
        self._reads = LogReads(blocking, cold_reads_max=1)
        self.rounds = 0
        self.verified_bytes = 0

    async def scrub_forever(self) -> None:
        while True:
            began_ms = self._clock.monotonic_ms()
            await self.scrub_all()
            left_ms = began_ms + self._interval_ms - self._clock.monotonic_ms()
            await asyncio.sleep(max(left_ms, 1) / 1000)

    async def scrub_all(self) -> None:
        """One round over all logs that are here now."""
        for hosted in self._replicas.hosted():
            try:
                await self._scrub(hosted)
            except DamagedLog as error:
                self._say(f"{hosted.partition}: damage was found before anybody read it")
                self._replicas.damaged(hosted, error)
            except InvariantViolation:
                raise
            except (TailraceError, OSError) as error:
                self._say(f"{hosted.partition}: not verified now: {error}")
        self.rounds += 1

    async def _scrub(self, hosted: Hosted) -> None:
        log, offset = hosted.log, 0
        while log.is_open and self._replicas.get(hosted.partition) is hosted:
            offset = max(offset, log.log_start)
            end = log.recovery_point
            if offset >= end:
                return
            began_ms = self._clock.monotonic_ms()
            try:
                found = await self._reads.read(
                    log, offset, bytes_max=STEP_BYTES, up_to=end, verified=True
                )
            except OffsetOutOfRange:
                # Retention was faster.
                continue
            if found is None:
                return
            offset = found.piece.next_offset
            self.verified_bytes += found.piece.size
            took_ms = self._clock.monotonic_ms() - began_ms
            rest_ms = self._pace.pause_ms(moved_bytes=found.piece.size, took_ms=took_ms)
            await asyncio.sleep(rest_ms / 1000)
