"""Drill resources: whose turn it is, one at a time, and what a dead operator left."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

import pytest

from tailrace_operator.drill_rounds import RUNS_KEPT, DrillRounds
from tailrace_operator.drills import Phase, Report, Verdict
from tailrace_operator.kube import KubeError
from tailrace_operator.ledger import Figures
from tailrace_operator.metrics import Metrics
from unit.operator.fake_kubernetes import FakeCluster, FakeKubernetes

HOUR_MS = 3_600_000


class StillClock:
    def __init__(self) -> None:
        self.now_ms = 10 * HOUR_MS + 1

    def monotonic_ms(self) -> int:
        return self.now_ms

    def wall_ms(self) -> int:
        return self.now_ms


class FakeDrilling:
    """A run that ends when it is told to."""

    def __init__(self, spec: Any, topic: str) -> None:
        self.spec, self.topic = spec, topic
        self.stopped = ""
        self.ended = asyncio.Event()

    def stop(self, why: str) -> None:
        self.stopped = why
        self.ended.set()

    async def run(self, on_phase: Callable[[Phase], Any]) -> Report:
        await on_phase(Phase.WARMING)
        await self.ended.wait()
        return Report(
            verdict=Verdict.ABORTED if self.stopped else Verdict.PASSED,
            message=self.stopped or "fine",
            figures=Figures(acknowledged=7, counted=True),
            isr_recovery_ms=5,
            took_ms=9,
            timeline=((0, "begun"),),
        )


class Bench:
    def __init__(self) -> None:
        self.api = FakeKubernetes()
        self.clock = StillClock()
        self.runs: list[FakeDrilling] = []
        self.said: list[str] = []
        self.metrics = Metrics()
        self.rounds = DrillRounds(
            self.api,  # type: ignore[arg-type]
            clock=self.clock,
            moment=lambda ms: f"{ms // HOUR_MS} o'clock",
            say=self.said.append,
            metrics=self.metrics,
            make=self._make,  # type: ignore[arg-type]
        )
        self.links = {"events": FakeCluster(self.api)}
        self.paused: frozenset[str] = frozenset()

    def _make(self, _kube: Any, _link: Any, spec: Any, *, topic: str, **_: Any) -> FakeDrilling:
        self.runs.append(FakeDrilling(spec, topic))
        return self.runs[-1]

    def ask(self, name: str, **spec: Any) -> None:
        self.api.put(
            {
                "apiVersion": "tailrace.dev/v1alpha1",
                "kind": "Drill",
                "metadata": {"name": name},
                "spec": {"cluster": "events", "kind": "kill-leader", **spec},
            }
        )

    async def play(self) -> None:
        drills = [each for (kind, _), each in self.api.objects.items() if kind == "Drill"]
        await self.rounds.play(drills, self.links, self.paused)  # type: ignore[arg-type]
        for _ in range(5):
            await asyncio.sleep(0)

    def status(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.api.objects["Drill", name]["status"]
        return found


async def test_a_drill_runs_once_and_its_status_is_the_report() -> None:
    bench = Bench()
    bench.ask("one")
    await bench.play()
    assert bench.status("one")["phase"] == "Running"
    assert bench.status("one")["step"] == "Warming"
    assert bench.runs[0].topic == "drill-one-1"
    await bench.play()
    assert len(bench.runs) == bench.rounds.running == 1
    bench.runs[0].ended.set()
    await bench.play()
    status = bench.status("one")
    assert (status["phase"], status["report"]["acknowledged"]) == ("Passed", 7)
    assert status["report"]["timeline"] == [{"atMs": 0, "what": "begun"}]
    assert status["conditions"][0]["status"] == "True"
    assert bench.api.events == ["DrillPassed: fine"]
    await bench.play()
    assert len(bench.runs) == 1
    assert bench.rounds.running == 0
    labels = {"cluster": "events", "kind": "kill-leader", "verdict": "Passed"}
    assert bench.metrics.registry.get_sample_value("tailrace_operator_drills_total", labels) == 1


async def test_one_that_does_not_act_any_more_ends_its_drills_and_may_begin_again() -> None:
    bench = Bench()
    bench.ask("one")
    await bench.play()
    await bench.rounds.close()
    assert bench.rounds.running == 0
    bench.ask("two")
    await bench.play()
    # The one that was cut off is ended as one that a dead operator left.
    assert bench.status("one")["phase"] == "Aborted"
    assert [each.spec.name for each in bench.runs] == ["one", "two"]
    await bench.rounds.close()


async def test_one_at_a_time_for_each_cluster() -> None:
    bench = Bench()
    bench.ask("a")
    bench.ask("b")
    await bench.play()
    assert bench.status("b")["message"] == "another drill of this cluster is under way"
    bench.runs[0].ended.set()
    await bench.play()
    await bench.play()
    assert [each.spec.name for each in bench.runs] == ["a", "b"]
    await bench.rounds.close()


async def test_a_schedule_runs_when_its_hour_comes_and_remembers_some_runs() -> None:
    bench = Bench()
    bench.ask("nightly", schedule="0 * * * *")
    await bench.play()
    assert not bench.runs
    assert bench.status("nightly")["phase"] == "Pending"
    for hour in range(11, 11 + RUNS_KEPT + 3):
        assert bench.status("nightly")["nextAt"] == f"{hour} o'clock"
        bench.clock.now_ms = hour * HOUR_MS + 5
        await bench.play()
        assert bench.status("nightly")["phase"] == "Running"
        bench.runs[-1].ended.set()
        await bench.play()
    runs = bench.status("nightly")["runs"]
    assert len(runs) == RUNS_KEPT
    assert (runs[0]["run"], runs[0]["acknowledged"]) == (RUNS_KEPT + 3, 7)
    assert bench.runs[-1].topic == f"drill-nightly-{RUNS_KEPT + 3}"


async def test_a_drill_that_is_deleted_is_stopped() -> None:
    bench = Bench()
    bench.ask("one")
    await bench.play()
    del bench.api.objects["Drill", "one"]
    await bench.play()
    assert bench.runs[0].stopped == "the Drill was deleted"
    assert ("Drill", "one") not in bench.api.objects
    assert bench.rounds.running == 0


async def test_a_drill_whose_cluster_is_deleted_is_stopped() -> None:
    bench = Bench()
    bench.ask("one")
    await bench.play()
    bench.links.clear()
    await bench.play()
    assert bench.runs[0].stopped == "the Cluster events was deleted"
    assert bench.rounds.running == 0


async def test_f24_what_a_dead_operator_left_is_put_right_and_ended() -> None:
    bench = Bench()
    bench.ask("one", kind="drain-node")
    bench.api.cordoned.add("node-1")
    left = {"phase": "Running", "restore": {"node": "node-1"}, "run": 1, "topic": "drill-one-1"}
    bench.api.objects["Drill", "one"]["status"] = left
    bench.links["events"].topics = {"drill-one-1", "orders"}
    await bench.play()
    assert bench.links["events"].topics == {"orders"}
    assert not bench.api.cordoned
    assert bench.status("one")["phase"] == "Aborted"
    assert "the operator ended in the middle of it" in bench.status("one")["message"]
    assert not bench.runs


@pytest.mark.parametrize("phase", ["Running", "Passed"])
async def test_what_cannot_be_put_right_yet_is_told_and_tried_every_round(phase: str) -> None:
    bench = Bench()
    bench.ask("one", kind="drain-node")
    bench.ask("two")
    bench.api.cordoned.add("node-1")
    left = {"phase": phase, "restore": {"node": "node-1"}, "run": 1}
    bench.api.objects["Drill", "one"]["status"] = left
    bench.api.no_nodes = KubeError("Forbidden", HTTPStatus.FORBIDDEN)
    await bench.play()
    told = "what was stopped is not put right yet (node=node-1): Forbidden"
    assert bench.status("one")["message"] == told
    assert bench.status("one")["phase"] == phase
    # Nobody else waits for it.
    assert [each.spec.name for each in bench.runs] == ["two"]
    bench.api.no_nodes = None
    await bench.play()
    assert not bench.api.cordoned
    assert not bench.status("one")["restore"]
    assert bench.status("one")["phase"] == ("Aborted" if phase == "Running" else phase)


async def test_one_that_ended_after_the_list_was_made_is_no_dead_operators() -> None:
    bench = Bench()
    bench.ask("one")
    await bench.play()
    listed = copy.deepcopy(bench.api.objects["Drill", "one"])
    bench.runs[0].ended.set()
    for _ in range(5):
        await asyncio.sleep(0)
    assert bench.status("one")["phase"] == "Passed"
    await bench.rounds.play([listed], bench.links, bench.paused)  # type: ignore[arg-type]
    assert bench.status("one")["phase"] == "Passed"
    assert len(bench.runs) == 1


async def test_what_cannot_be_is_told() -> None:
    bench = Bench()
    bench.ask("nowhere", cluster="other")
    bench.ask("odd", kind="pull-plug")
    bench.ask("never", schedule="61 * * * *")
    await bench.play()
    assert bench.status("nowhere")["message"] == "there is no Cluster 'other' in this namespace"
    assert bench.status("odd")["message"].startswith("spec.kind is 'pull-plug': there are kill-")
    assert bench.status("never")["phase"] == "Refused"
    bench.paused = frozenset({"events"})
    bench.ask("waits")
    await bench.play()
    assert bench.status("waits")["message"] == "events is paused"
    assert not bench.runs
