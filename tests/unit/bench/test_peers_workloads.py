"""The list of workloads: nothing in it may be misspelt, and every goal can be judged."""

from __future__ import annotations

import pytest

from bench.figures import Better
from bench.peers.kinds import RUNS
from bench.peers.results import FIGURES_OF
from bench.peers.workloads import (
    CONFLUENT,
    CONFLUENT_DEFAULTS,
    GO,
    NATS_PY,
    OURS_ASYNC,
    OURS_BLOCKING,
    WORKLOADS,
    Goal,
    Kind,
    Workload,
    chosen,
)

ids = [each.name for each in WORKLOADS]


def test_names_are_unique() -> None:
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize("workload", WORKLOADS, ids=ids)
def test_a_goal_is_about_contenders_and_figures_that_there_are(workload: Workload) -> None:
    names = [each.name for each in workload.contenders]
    assert len(set(names)) == len(names)
    for goal in workload.goals:
        assert goal.figure in FIGURES_OF[workload.kind]
        assert goal.ours.startswith("tailrace")
        assert goal.ours in names
        assert goal.peer in names
        assert not goal.peer.startswith("tailrace")


ASYNCIO = {"aiokafka", NATS_PY}
BLOCKING = {CONFLUENT, CONFLUENT_DEFAULTS, "kafka-python", GO}


def test_goals_of_producers_compare_like_with_like() -> None:
    kinds = {Kind.PRODUCE, Kind.SINGLE, Kind.ROUND_TRIP}
    goals = [goal for each in WORKLOADS if each.kind in kinds for goal in each.goals]
    assert {goal.peer for goal in goals if goal.ours == OURS_ASYNC} == ASYNCIO
    assert {goal.peer for goal in goals if goal.ours == OURS_BLOCKING} == BLOCKING


def test_contenders_do_what_their_names_say() -> None:
    for workload in WORKLOADS:
        for each in workload.contenders:
            if each.name in {OURS_ASYNC, OURS_BLOCKING}:
                assert (each.options["way"] == "blocking") is (each.name == OURS_BLOCKING)


def test_every_kind_can_be_run() -> None:
    assert set(RUNS) == set(Kind) == {each.kind for each in WORKLOADS}


@pytest.mark.parametrize(
    ("better", "ratio", "met"),
    [(Better.MORE, 2.0, True), (Better.MORE, 1.9, False), (Better.LESS, 2.1, False)],
)
def test_a_goal_bounds_a_ratio_from_its_side(better: Better, ratio: float, met: bool) -> None:
    assert Goal("p50_ms", "tailrace", "peer", 2.0, better).is_met(ratio) is met


def test_workloads_are_chosen_by_words_in_their_names() -> None:
    assert chosen("") == list(WORKLOADS)
    names = [each.name for each in chosen("idle, SIGTERM")]
    assert names == ["idle", "SIGTERM of the leader"]
    with pytest.raises(ValueError, match="no workload has 'nothing'"):
        chosen("nothing")
