"""One run of a drill: looks at the cluster, feeds `drills.Drill`, and does what it says.

The run has a topic of its own, which goes when it has ended, unless the drill failed or its spec
wants to keep it: then people can look for themselves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, Protocol

from tailrace.clock import Clock
from tailrace.errors import TailraceError
from tailrace.runtime import Tasks
from tailrace_operator.clusters import TIMEOUT_MS, ClusterLink
from tailrace_operator.drills import (
    Counted,
    CountRecords,
    Drill,
    Effect,
    Event,
    Finish,
    Looked,
    Phase,
    Report,
    Restore,
    StartProbe,
    Stopped,
    Strike,
    StrikeFailed,
    Struck,
    Verdict,
    trouble,
)
from tailrace_operator.kube import Kube, KubeError
from tailrace_operator.ledger import Figures, Ledger
from tailrace_operator.probe import Probe
from tailrace_operator.reconcile import pods_of
from tailrace_operator.rollout import Pod
from tailrace_operator.spec import DrillSpec
from tailrace_operator.strikes import CannotStrike, Striker

LOOK_EVERY_S: Final = 0.25
PODS_EVERY_MS: Final = 1_000


class Probing(Protocol):
    """What a drill asks of its probe (`probe.Probe`)."""

    ledger: Ledger

    async def run(self) -> None: ...
    def stop(self) -> None: ...
    async def count(self) -> None: ...


class Drilling:
    """Use: `run` once; `stop` ends it early, with everything put right."""

    def __init__(
        self,
        kube: Kube,
        link: ClusterLink,
        spec: DrillSpec,
        *,
        topic: str,
        clock: Clock,
        timestamp: Callable[[], str],
        make_probe: Callable[..., Probing] = Probe,
    ) -> None:
        self._kube = kube
        self._link = link
        self._spec = spec
        self._topic = topic
        self._clock = clock
        self._timestamp = timestamp
        self._drill = Drill(spec, clock.monotonic_ms())
        self._striker = Striker(kube, link, spec, topic=topic)
        self._probe = make_probe(
            link.bootstrap, topic, partitions=spec.partitions, rate=spec.rate, clock=clock
        )
        self._probing: asyncio.Task[None] | None = None
        self._report: Report | None = None
        self._seen: tuple[list[Pod], int] | None = None
        self._seen_ms = 0
        self._stopped = ""

    def stop(self, why: str) -> None:
        self._stopped = why

    async def run(self, on_phase: Callable[[Phase], Any]) -> Report:
        """Until the end; `on_phase` is awaited at each new phase."""
        tasks = Tasks(lambda _name, error: self.stop(f"the probe failed: {error!r}"))
        phase: Phase | None = None
        try:
            while self._report is None:
                event = Stopped(self._stopped) if self._stopped else await self._look()
                await self._feed(event, tasks)
                if self._drill.phase is not phase:
                    phase = self._drill.phase
                    await on_phase(phase)
                await asyncio.sleep(LOOK_EVERY_S)
        finally:
            # Cancelled or broken: whatever happens, nothing stays stopped or cordoned.
            await self._restore()
            await tasks.close()
        await self._tidy(self._report)
        return self._report

    # ------------------------------------------------------------------------------- doing

    async def _feed(self, event: Event, tasks: Tasks) -> None:
        todo = self._drill.handle(event, now_ms=self._clock.monotonic_ms())
        while todo:
            answer = await self._perform(todo.pop(0), tasks)
            if answer is not None:
                todo += self._drill.handle(answer, now_ms=self._clock.monotonic_ms())

    async def _perform(self, effect: Effect, tasks: Tasks) -> Event | None:
        match effect:
            case StartProbe():
                return await self._start(tasks)
            case Strike():
                # What was seen before does not tell who was replaced.
                self._seen = None
                try:
                    return Struck(await self._striker.strike(self._timestamp()))
                except CannotStrike as error:
                    return StrikeFailed(str(error))
            case Restore():
                await self._restore()
            case CountRecords():
                await self._end_probe()
                await self._probe.count()
                return Counted(self._figures())
            case Finish(report):
                await self._end_probe()
                self._report = report
        return None

    async def _start(self, tasks: Tasks) -> Event | None:
        try:
            admin = await self._link.admin()
            await admin.create_topic(
                self._topic, partitions=self._spec.partitions, timeout_ms=TIMEOUT_MS
            )
        except TailraceError as error:
            return Stopped(f"nothing was done: the probe's topic cannot be made: {error}")
        self._probing = tasks.spawn("probe", self._probe.run())
        return None

    async def _restore(self) -> None:
        """What cannot be put right now stands in the status, and is tried again every round."""
        with suppress(KubeError):
            await self._striker.restore()

    async def _end_probe(self) -> None:
        self._probe.stop()
        if self._probing is not None:
            await asyncio.wait([self._probing])
            self._probing = None

    async def _tidy(self, report: Report) -> None:
        if self._spec.keep_topic or report.verdict is Verdict.FAILED:
            return
        await delete_topic(self._link, self._topic)

    # ------------------------------------------------------------------------------ looking

    async def _look(self) -> Looked:
        health, _ = await self._link.health()
        try:
            pods, brokers = await self._pods()
            wrong = trouble(health, brokers=brokers, pods=pods, struck=self._striker.struck)
            wrong = wrong or await self._striker.still_away()
        except KubeError as error:
            wrong = str(error)
        return Looked(health=health, trouble=wrong, figures=self._figures())

    async def _pods(self) -> tuple[list[Pod], int]:
        """Pods are asked for less often than the cluster: that is four requests each time."""
        now_ms = self._clock.monotonic_ms()
        if self._seen is None or now_ms - self._seen_ms >= PODS_EVERY_MS:
            self._seen = await pods_of(self._spec.cluster, self._kube)
            self._seen_ms = now_ms
        return self._seen

    def _figures(self) -> Figures:
        return self._probe.ledger.figures(
            since_ms=self._drill.waits_since_ms, now_ms=self._clock.monotonic_ms()
        )


async def delete_topic(link: ClusterLink, topic: str) -> None:
    """A probe's own, as far as it can be done: it costs a little space, and nothing else."""
    with suppress(TailraceError):
        admin = await link.admin()
        await admin.delete_topic(topic, timeout_ms=TIMEOUT_MS)
