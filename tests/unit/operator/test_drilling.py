"""Whole runs of drills on a Kubernetes in memory, in virtual time."""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Any

import pytest

from simulation.loop import LoopClock, SimLoop
from tailrace.clock import Clock
from tailrace_operator.drilling import Drilling
from tailrace_operator.drills import Phase, Report, Verdict
from tailrace_operator.kube import KubeError
from tailrace_operator.ledger import Ledger
from tailrace_operator.reconcile import reconcile
from tailrace_operator.spec import DrillSpec
from unit.operator.fake_kubernetes import MOMENTS, FakeCluster, FakeKubernetes, cluster_resource

SETTLE_EVERY_S = 1.0


class FakeProbe:
    """Everything it writes is there at once; `loses` says how much of it is gone later."""

    loses = 0

    def __init__(self, bootstrap: str, topic: str, *, partitions: int, rate: int, clock: Clock):
        self.ledger = Ledger()
        self._clock = clock
        self._rate = rate
        self._stop = asyncio.Event()
        self._written = 0

    async def run(self) -> None:
        while not self._stop.is_set():
            now_ms = self._clock.monotonic_ms()
            number = self.ledger.send(now_ms)
            self.ledger.acknowledged(number, partition=0, offset=number, now_ms=now_ms)
            self.ledger.read(number, now_ms)
            self._written = number + 1
            await asyncio.sleep(1 / self._rate)

    def stop(self) -> None:
        self._stop.set()

    async def count(self) -> None:
        for number in range(self._written - self.loses):
            self.ledger.found(number, partition=0, offset=number)
        self.ledger.counted()


class Losing(FakeProbe):
    loses = 2


class Bench:
    def __init__(self, loop: SimLoop, kind: str, probe: type[FakeProbe] = FakeProbe, **more: Any):
        self.api = FakeKubernetes()
        self.link = FakeCluster(self.api)
        self.api.put(cluster_resource())
        self.api.put({"kind": "Drill", "metadata": {"name": "d"}, "status": {}})
        self.phases: list[Phase] = []
        self.drilling = Drilling(
            self.api,  # type: ignore[arg-type]
            self.link,  # type: ignore[arg-type]
            DrillSpec(name="d", cluster="events", kind=kind, **more),
            topic="drill-d-1",
            clock=LoopClock(loop),
            timestamp=lambda: "2026-11-17T03:00:00Z",
            make_probe=probe,
        )

    async def rounds(self) -> None:
        """The operator's own rounds, and Kubernetes'."""
        while True:
            resource = self.api.objects["Cluster", "events"]
            await reconcile(resource, api=self.api, link=self.link, moments=MOMENTS, now_ms=0)
            self.api.settle()
            await asyncio.sleep(SETTLE_EVERY_S)

    async def run(self) -> Report:
        async def stepped(phase: Phase) -> None:
            self.phases.append(phase)

        async with asyncio.TaskGroup() as tasks:
            rounds = tasks.create_task(self.rounds())
            await asyncio.sleep(5 * SETTLE_EVERY_S)
            report = await self.drilling.run(stepped)
            rounds.cancel()
        return report


@pytest.mark.parametrize("kind", ["kill-leader", "kill-controller", "drain-node", "roll"])
def test_a_drill_runs_to_its_end(kind: str) -> None:
    async def main(loop: SimLoop) -> None:
        bench = Bench(loop, kind, hold_s=10)
        report = await bench.run()
        assert report.verdict is Verdict.PASSED, report
        assert report.figures.acknowledged > 200
        assert report.isr_recovery_ms is not None
        assert bench.phases[0] is Phase.WARMING
        assert bench.phases[-1] is Phase.DONE
        assert bench.api.deleted_pods
        assert not bench.api.cordoned
        assert not bench.link.topics

    SimLoop(1).run(main)


def test_the_topic_of_one_that_failed_stays() -> None:
    async def main(loop: SimLoop) -> None:
        bench = Bench(loop, "kill-leader", Losing)
        report = await bench.run()
        assert report.verdict is Verdict.FAILED
        assert report.figures.lost == 2
        assert bench.link.topics == {"drill-d-1"}

    SimLoop(1).run(main)


def test_one_that_is_stopped_puts_everything_right() -> None:
    async def main(loop: SimLoop) -> None:
        bench = Bench(loop, "drain-node", hold_s=3_600)

        async def delete() -> None:
            while not bench.api.cordoned:  # noqa: ASYNC110 - nobody tells.
                await asyncio.sleep(0.1)
            bench.drilling.stop("the Drill was deleted")

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(delete())
            report = await bench.run()
        assert report.verdict is Verdict.ABORTED
        assert report.message == "the Drill was deleted"
        assert not bench.api.cordoned

    SimLoop(1).run(main)


def test_what_cannot_be_put_right_stays_in_the_status_and_the_report_is_made() -> None:
    async def main(loop: SimLoop) -> None:
        bench = Bench(loop, "drain-node", hold_s=3_600)

        async def forbid() -> None:
            while not bench.api.cordoned:  # noqa: ASYNC110 - nobody tells.
                await asyncio.sleep(0.1)
            bench.api.no_nodes = KubeError("Forbidden", HTTPStatus.FORBIDDEN)
            bench.drilling.stop("the Drill was deleted")

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(forbid())
            report = await bench.run()
        assert report.verdict is Verdict.ABORTED
        assert bench.api.objects["Drill", "d"]["status"]["restore"] == {"node": "node-1"}

    SimLoop(1).run(main)


def test_a_cluster_that_does_not_answer_is_left_alone() -> None:
    async def main(loop: SimLoop) -> None:
        bench = Bench(loop, "kill-leader")
        bench.link.reachable = False
        report = await bench.run()
        assert report.verdict is Verdict.ABORTED
        assert report.message == "nothing was done: the cluster does not answer"
        assert not bench.api.deleted_pods

    SimLoop(1).run(main)
