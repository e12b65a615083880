"""The machine of a drill: events and time in, effects and a report out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tailrace_operator.drills import (
    COUNT_MAX_MS,
    LATE_MAX_MS,
    SETTLE_MS,
    UNHEARD_MAX_MS,
    WARM_MAX_MS,
    Counted,
    CountRecords,
    Drill,
    Effect,
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
    Turn,
    Verdict,
    trouble,
    turn,
)
from tailrace_operator.ledger import Figures
from tailrace_operator.rollout import Health, Pod
from tailrace_operator.spec import DrillSpec

WELL = Health(reachable=True, brokers=frozenset({0, 1, 2}), controller=0, partitions=6)
ILL = replace(WELL, brokers=frozenset({0, 1}), under_replicated=6)
WARM = Figures(sent=100, acknowledged=100, read=100)
GOOD = replace(WARM, sent=500, acknowledged=500, read=500, unavailable_ms=800, counted=True)


class Bench:
    def __init__(self, kind: str = "kill-leader", **more: Any) -> None:
        self.now_ms = 1_000
        self.drill = Drill(DrillSpec(name="d", cluster="c", kind=kind, **more), self.now_ms)

    def look(
        self,
        health: Health = WELL,
        trouble: str = "",
        *,
        after_ms: int = 0,
        figures: Figures = WARM,
    ) -> list[Effect]:
        self.now_ms += after_ms
        event = Looked(health=health, trouble=trouble, figures=figures)
        return self.drill.handle(event, now_ms=self.now_ms)

    def tell(self, event: Any, *, after_ms: int = 0) -> list[Effect]:
        self.now_ms += after_ms
        return self.drill.handle(event, now_ms=self.now_ms)

    def until_struck(self) -> None:
        assert self.look() == [StartProbe()]
        assert self.look(after_ms=4_999) == []
        assert self.look(after_ms=1) == [Strike()]
        assert self.tell(Struck("broken")) == []


def report(effects: list[Effect]) -> Report:
    found = [each.report for each in effects if isinstance(each, Finish)]
    assert len(found) == 1
    return found[0]


def test_from_beginning_to_end() -> None:
    bench = Bench()
    bench.until_struck()
    assert bench.look(ILL, "broker 2 is not registered", after_ms=700) == []
    assert bench.look(after_ms=4_300) == []
    assert bench.drill.phase is Phase.SETTLING
    assert bench.look(after_ms=SETTLE_MS) == [Restore(), CountRecords()]
    effects = bench.tell(Counted(GOOD), after_ms=200)
    told = report(effects)
    assert told.verdict is Verdict.PASSED
    assert told.isr_recovery_ms == 5_000
    assert told.took_ms == 5_000 + 5_000 + SETTLE_MS + 200
    assert [what for _, what in told.timeline] == [
        "100 records written so far",
        "broken",
        "broker 2 is gone",
        "6 partitions are under-replicated",
        "broker 2 is registered",
        "0 partitions are under-replicated",
        "whole again",
        "passed: 500 acknowledged, none lost, none twice; writes waited 800 ms at most",
    ]
    shown = told.as_dict()
    assert (shown["lost"], shown["duplicated"], shown["isrRecoveryMs"]) == (0, 0, 5_000)
    assert shown["timeline"][1] == {"atMs": 5_000, "what": "broken"}
    # It is over: nothing more comes of it.
    assert bench.look() == []


@pytest.mark.parametrize("looks", [0, 1])
def test_a_question_without_an_answer_ends_nothing_that_was_not_begun(looks: int) -> None:
    bench = Bench()
    for _ in range(looks):
        bench.look()
    silent = (Health(), "the cluster does not answer")
    assert bench.look(*silent, after_ms=UNHEARD_MAX_MS - 1) == []
    assert bench.drill.phase is not Phase.DONE
    told = report(bench.look(*silent, after_ms=1))
    assert told.message == "nothing was done: the cluster does not answer"


def test_waits_count_from_the_strike_on() -> None:
    bench = Bench()
    assert bench.drill.waits_since_ms == 1_000
    bench.until_struck()
    assert bench.drill.waits_since_ms == 6_000


@pytest.mark.parametrize("warm", [False, True])
def test_a_cluster_that_is_not_whole_is_left_alone(warm: bool) -> None:
    bench = Bench()
    if warm:
        bench.look()
    effects = bench.look(ILL, "broker 2 is not registered")
    assert [type(each) for each in effects] == [Finish]
    told = report(effects)
    assert told.verdict is Verdict.ABORTED
    assert told.message == "nothing was done: broker 2 is not registered"
    # Nothing was counted, so nothing is said about it.
    assert "lost" not in told.as_dict()


def test_a_probe_that_reads_nothing_aborts() -> None:
    bench = Bench()
    bench.look()
    silent = Figures(sent=9, problems=("who are you?",))
    assert bench.look(after_ms=WARM_MAX_MS, figures=silent) == []
    told = report(bench.look(after_ms=5_001, figures=silent))
    assert told.message == "nothing was done: the probe reads nothing: who are you?"


@pytest.mark.parametrize("kind", ["stop-etcd", "drain-node"])
def test_what_does_not_heal_by_itself_is_held_and_put_right(kind: str) -> None:
    bench = Bench(kind, hold_s=20)
    bench.until_struck()
    assert bench.look(ILL, "no", after_ms=19_999) == []
    assert bench.look(ILL, "no", after_ms=1) == [Restore()]
    assert bench.drill.phase is Phase.RECOVERING


def test_a_cluster_that_falls_back_is_waited_for_again() -> None:
    bench = Bench()
    bench.until_struck()
    bench.look(after_ms=1_000)
    bench.look(ILL, "again", after_ms=1_000)
    assert bench.drill.phase is Phase.RECOVERING
    bench.look(after_ms=1_000)
    bench.look(after_ms=SETTLE_MS)
    assert report(bench.tell(Counted(GOOD))).isr_recovery_ms == 3_000


def test_one_that_never_recovers_fails_after_the_count() -> None:
    bench = Bench(timeout_s=60)
    bench.until_struck()
    assert bench.look(ILL, "broker 2 is not registered", after_ms=60_000) == []
    effects = bench.look(ILL, "broker 2 is not registered", after_ms=1)
    assert effects == [Restore(), CountRecords()]
    told = report(bench.tell(Counted(GOOD)))
    assert told.verdict is Verdict.FAILED
    assert told.message == "not whole again within 60 s: broker 2 is not registered"
    assert told.isr_recovery_ms is None


@pytest.mark.parametrize(
    ("figures", "message"),
    [
        (replace(GOOD, lost=2), "2 are lost"),
        (replace(GOOD, duplicated=1), "1 twice"),
        (replace(GOOD, misplaced=3), "3 not where they were told to be"),
        (replace(GOOD, failed=1, problems=("late",)), "1 writes failed: late"),
        (replace(GOOD, unavailable_ms=30_001), "writes waited 30001 ms, and 30000 ms are allowed"),
        (replace(GOOD, counted=False, problems=("no",)), "could not be counted: no"),
    ],
)
def test_what_fails_a_drill(figures: Figures, message: str) -> None:
    bench = Bench()
    bench.until_struck()
    bench.look(after_ms=1_000)
    bench.look(after_ms=SETTLE_MS)
    told = report(bench.tell(Counted(figures)))
    assert told.verdict is Verdict.FAILED
    assert message in told.message


def test_a_count_without_end_is_ended() -> None:
    bench = Bench()
    bench.until_struck()
    bench.look(after_ms=1_000)
    bench.look(after_ms=SETTLE_MS)
    assert bench.look(after_ms=COUNT_MAX_MS) == []
    assert report(bench.look(after_ms=1)).message == "the records could not be counted"


def test_stopped_early_everything_is_put_right_first() -> None:
    bench = Bench("stop-etcd")
    bench.until_struck()
    effects = bench.tell(Stopped("the Drill was deleted"))
    assert effects[0] == Restore()
    assert report(effects).verdict is Verdict.ABORTED


def test_a_strike_that_fails_is_put_right_too() -> None:
    bench = Bench()
    bench.look()
    bench.look(after_ms=5_000)
    effects = bench.tell(StrikeFailed("there is no pod"))
    assert effects[0] == Restore()
    assert report(effects).message == "there is no pod"


def pod(name: str, uid: str = "1", **more: Any) -> Pod:
    known: dict[str, Any] = {"ready": True, "terminating": False, "outdated": False, **more}
    return Pod(name=name, role="broker", ordinal=int(name[-1]), uid=uid, **known)


@pytest.mark.parametrize(
    ("health", "pods", "expected"),
    [
        (WELL, [pod("b-0", "2")], ""),
        (Health(), [pod("b-0", "2")], "the cluster does not answer"),
        (replace(WELL, brokers=frozenset({0, 2})), [], "broker 1 is not registered"),
        (replace(WELL, controller=-1), [], "no controller is active"),
        (replace(WELL, offline=1), [], "1 partitions are offline, 0 under-replicated"),
        (replace(WELL, moving=4), [], "4 partitions are moving"),
        (WELL, [pod("b-0", ready=False)], "b-0 is not ready, or not what is wanted"),
        (WELL, [pod("b-0", outdated=True)], "b-0 is not ready, or not what is wanted"),
        (WELL, [pod("b-0", "1")], "b-0 has not been replaced"),
        (WELL, [], "b-0 has not been replaced"),
    ],
)
def test_what_is_wrong_with_a_cluster(health: Health, pods: list[Pod], expected: str) -> None:
    assert trouble(health, brokers=3, pods=pods, struck={"b-0": "1"}) == expected


def test_whose_turn_it_is() -> None:
    once = DrillSpec(name="d", cluster="c", kind="roll")
    assert turn(once, ran=False, next_ms=None, now_ms=5) == Turn(now=True)
    assert turn(once, ran=True, next_ms=None, now_ms=5) == Turn(now=False)
    assert turn(replace(once, suspended=True), ran=False, next_ms=None, now_ms=5) == Turn(now=False)
    hourly = replace(once, schedule="0 * * * *")
    hour = 3_600_000
    assert turn(hourly, ran=False, next_ms=None, now_ms=5) == Turn(now=False, next_ms=hour)
    assert turn(hourly, ran=True, next_ms=hour, now_ms=hour - 1) == Turn(now=False, next_ms=hour)
    assert turn(hourly, ran=True, next_ms=hour, now_ms=hour) == Turn(now=True, next_ms=2 * hour)
    late = hour + LATE_MAX_MS + 1
    assert turn(hourly, ran=True, next_ms=hour, now_ms=late) == Turn(now=False, next_ms=2 * hour)
