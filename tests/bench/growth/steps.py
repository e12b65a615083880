"""Measures a series: the shell around `series` and `measured`, on the stage of the peers' bench."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import MappingProxyType
from typing import Final

from bench import machine
from bench.growth.measured import FROM_DISK, Measurement
from bench.growth.series import (
    PROCESSES_MAX,
    READ_BYTES_MIN,
    SIZE,
    STEP_BYTES_MAX,
    STEP_S_MAX,
    WORK_S,
    Axis,
    Flow,
    Series,
)
from bench.peers.results import Figures
from bench.peers.sizes import Sizes, Volumes
from bench.peers.stage import Stage, drop_from_memory
from bench.peers.system import PARTITIONS, Name, System, resident_mib_of, topic_of
from bench.peers.workloads import Contender, Kind, Workload
from bench.usage import disk_bytes, peak_bytes, reset_peak

SIZES: Final = Sizes(seconds=WORK_S, run_bytes_max=STEP_BYTES_MAX)
WARM_BYTES: Final = 200_000_000
"""What a fresh cluster takes and gives before anything counts: memory is that of one in use."""
BACKLOG_TOPIC: Final = "backlog"
MIB: Final = 1 << 20


class Steps:
    """Runs series on a stage, until the time is over."""

    def __init__(self, stage: Stage, ends: float) -> None:
        self._stage = stage
        self._ends = ends
        # Of each flow at each step: how many records it takes.
        self._volumes: dict[tuple[Flow, int], Volumes] = {}
        # Of each topic: how many records it has, at least.
        self._written: Counter[str] = Counter()
        self._in_backlog = 0
        # Whether the cluster that runs is the one that this series began, and has not failed.
        self._is_fresh = False

    @property
    def _system(self) -> System:
        return self._stage.system(Name.TAILRACE)

    def run(self, series: Series) -> Iterator[Measurement]:
        """A cluster of its own for every series; rounds go through all steps, one after another."""
        run_step: Callable[[Series, int, int], Iterator[Measurement]] = {
            Axis.PARTITIONS: self._partitions,
            Axis.CLIENTS: self._clients,
            Axis.BACKLOG: self._backlog,
        }[series.axis]
        self._volumes.clear()
        self._is_fresh = False
        for number in range(1, series.rounds + 1):
            for step in series.steps:
                print(f"{series.label(step)}, round {number}", file=sys.stderr, flush=True)
                try:
                    self._renew()
                    yield from run_step(series, step, number)
                except Exception as error:  # noqa: BLE001 - whatever it is, the next steps go on.
                    told = f"{type(error).__name__}: {error}"
                    yield Measurement(
                        series.axis, step, series.flows[-1], number, machine.load(), failed=told
                    )
                    self._is_fresh = False

    def _renew(self) -> None:
        """Begin with a cluster that is fresh but for what warms it up, unless this one is good."""
        if self._is_fresh:
            return
        self._stage.clear()
        self._in_backlog = 0
        self._is_fresh = True
        with topic_of(self._system, self._stage.new_name()) as topic:
            for action in ("fill", "consume"):
                self._stage.fast(Name.TAILRACE, action, topic, WARM_BYTES // SIZE, SIZE)

    def _partitions(self, series: Series, step: int, number: int) -> Iterator[Measurement]:
        with topic_of(self._system, self._stage.new_name(), step) as topic:
            for flow in series.flows:
                one = partial(self._flow, flow, step, topic, partitions=step)
                yield self._measured(series, step, flow, number, one)

    def _clients(self, series: Series, step: int, number: int) -> Iterator[Measurement]:
        for flow in series.flows:
            if flow is Flow.CONSUME:
                topic, there = self._stage.filled(Name.TAILRACE, SIZE)
                self._written[topic] = there
                one = partial(self._flow, flow, step, topic, clients=step)
                yield self._measured(series, step, flow, number, one)
            else:
                with topic_of(self._system, self._stage.new_name()) as topic:
                    one = partial(self._flow, flow, step, topic, clients=step)
                    yield self._measured(series, step, flow, number, one)

    def _backlog(self, series: Series, step: int, number: int) -> Iterator[Measurement]:
        """The topic grows to what the step says, and is read whole."""
        if not self._in_backlog:
            self._system.create_topic(BACKLOG_TOPIC)
        yield self._measured(series, step, Flow.FILL, number, partial(self._fill, step // SIZE))
        yield self._measured(series, step, Flow.COLD, number, self._cold)

    def _measured(
        self, series: Series, step: int, flow: Flow, number: int, one: Callable[[], Figures]
    ) -> Measurement:
        """Figures, and what each broker held meanwhile."""
        system, load = self._system, machine.load()
        about = (series.axis, step, flow, number, load)
        if time.monotonic() > self._ends:
            return Measurement(*about, failed="the time of the run was over")
        for pid in system.broker_pids:
            reset_peak(pid)
        try:
            figures = one()
        except Exception as error:  # noqa: BLE001 - the other flows have figures all the same.
            return Measurement(*about, failed=f"{type(error).__name__}: {error}")
        peaks = [peak_bytes(pid) / MIB for pid in system.broker_pids]
        return Measurement(*about, figures, resident_mib_of(system.broker_pids), peaks)

    def _flow(
        self,
        flow: Flow,
        step: int,
        topic: str,
        *,
        partitions: int = PARTITIONS,
        clients: int = 1,
    ) -> Figures:
        """The first time twice: a few records tell how many the step takes."""
        crowd = min(clients, PROCESSES_MAX)
        is_first = (flow, step) not in self._volumes
        volumes = self._volumes.setdefault((flow, step), Volumes(SIZES, SIZE, crowd))
        options = {
            "partitions": partitions,
            "clients": clients // crowd,
            "way": "keyed" if flow is Flow.KEYED else "",
        }
        action = "consume" if flow is Flow.CONSUME else "produce"
        figures: Figures = {}
        for _ in range(2 if is_first else 1):
            records = volumes.records(flow)
            if flow is Flow.CONSUME:
                # A client reads no more than there is.
                least, most = READ_BYTES_MIN // SIZE, self._written[topic]
                records = min(max(records, least * clients // crowd), most * clients // crowd)
            figures = self._crowd(action, topic, records, crowd, options)
            if flow is not Flow.CONSUME:
                self._written[topic] += records * crowd
            volumes.note(flow, figures["records_per_s"])
        return figures

    def _crowd(
        self, action: str, topic: str, records: int, crowd: int, options: Mapping[str, object]
    ) -> Figures:
        contender = Contender("tailrace", Name.TAILRACE, "crowd", MappingProxyType(options))
        workload = Workload(action, Kind.PRODUCE, (contender,), size=SIZE, clients=crowd)
        return self._stage.flow(
            workload, contender, topic, records, action, meet=True, within_s=STEP_S_MAX
        )

    def _fill(self, records: int) -> Figures:
        contender = Contender("tailrace", Name.TAILRACE, "ours")
        workload = Workload("fill", Kind.PRODUCE, (contender,), size=SIZE)
        more, self._in_backlog = records - self._in_backlog, records
        return self._stage.flow(
            workload, contender, BACKLOG_TOPIC, more, "fill", within_s=STEP_S_MAX
        )

    def _cold(self) -> Figures:
        system = self._system
        drop_from_memory(system.folder)
        before = sum(map(disk_bytes, system.broker_pids))
        figures = self._crowd("consume", BACKLOG_TOPIC, self._in_backlog, 1, {"clients": 1})
        read = sum(map(disk_bytes, system.broker_pids)) - before
        return {**figures, FROM_DISK: read / (self._in_backlog * SIZE)}
