"""Pods that hang, volumes that are gone, volumes that are too small."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tailrace_operator.failover import (
    STUCK_AFTER_MS,
    UNPLACED_AFTER_MS,
    BrokerPod,
    Claim,
    FenceAndForget,
    GiveUpVolume,
    Grow,
    grow,
    heal,
    read_quantity,
)
from tailrace_operator.rollout import Health
from tailrace_operator.spec import InvalidSpec

GIB = 1024**3
WELL = Health(reachable=True, brokers=frozenset({0, 1}), under_replicated=4)
POD = BrokerPod(name="c-broker-2", ordinal=2, uid="p")
CLAIM = Claim(name="data-c-broker-2", uid="v", phase="Bound", bytes=GIB)
CONFLICT = "0/3 nodes are available: 1 node(s) had volume node affinity conflict."


def test_f22_a_pod_that_hangs_is_fenced_and_forgotten_after_its_time() -> None:
    going = replace(POD, gone_by_ms=1_000)
    assert heal([going], [], WELL, now_ms=1_000 + STUCK_AFTER_MS - 1) == []
    acts = heal([going, replace(POD, name="c-broker-1")], [], WELL, now_ms=1_000 + STUCK_AFTER_MS)
    assert acts == [FenceAndForget(going, "c-broker-2 should have been gone long ago")]


def test_f23_a_lost_volume_is_given_up() -> None:
    lost = replace(CLAIM, phase="Lost")
    why = "the volume of data-c-broker-2 is lost"
    assert heal([POD], [lost], WELL, now_ms=0) == [GiveUpVolume(lost, POD, why)]
    assert heal([], [lost], WELL, now_ms=0) == [GiveUpVolume(lost, None, why)]
    assert heal([POD], [replace(lost, going=True)], WELL, now_ms=0) == []


@pytest.mark.parametrize("health", [Health(), replace(WELL, offline=1)])
def test_a_volume_that_may_hold_the_last_copy_is_kept(health: Health) -> None:
    assert heal([POD], [replace(CLAIM, phase="Lost")], health, now_ms=0) == []


def test_f23_a_volume_on_a_node_that_is_gone_is_given_up_after_a_while() -> None:
    stuck = replace(POD, unplaced=CONFLICT, unplaced_since_ms=5)
    gone = replace(CLAIM, node="n1", node_is_gone=True)
    assert heal([stuck], [gone], WELL, now_ms=4 + UNPLACED_AFTER_MS) == []
    acts = heal([stuck], [gone], WELL, now_ms=5 + UNPLACED_AFTER_MS)
    why = "the volume of data-c-broker-2 was on n1, which is gone"
    assert acts == [GiveUpVolume(gone, stuck, why)]
    late = 10 * UNPLACED_AFTER_MS
    assert heal([stuck], [replace(gone, node_is_gone=False)], WELL, now_ms=late) == []
    assert heal([replace(stuck, unplaced="no memory")], [gone], WELL, now_ms=late) == []


def test_one_volume_at_a_time() -> None:
    claims = [replace(CLAIM, name=f"data-c-broker-{each}", phase="Lost") for each in range(3)]
    assert len(heal([], claims, WELL, now_ms=0)) == 1


def test_volumes_grow_and_never_shrink() -> None:
    larger = replace(CLAIM, name="data-c-broker-0", bytes=2 * GIB)
    assert grow([CLAIM, larger], "2Gi") == [Grow(CLAIM, "2Gi")]
    assert grow([larger], "2048Mi") == []
    with pytest.raises(InvalidSpec, match="data-c-broker-0 is larger already: volumes can grow"):
        grow([CLAIM, larger], "1Gi")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1024", 1024),
        ("1k", 1000),
        ("1Ki", 1024),
        ("1.5Gi", 3 * GIB // 2),
        ("2T", 2 * 10**12),
        ("1Ei", 2**60),
        ("1e3", 1000),
        ("12E-1", 2),
        # What Kubernetes makes of 1.0001Gi.
        ("1073849198182m", 1_073_849_199),
    ],
)
def test_quantities(text: str, expected: int) -> None:
    assert read_quantity(text) == expected


@pytest.mark.parametrize("text", ["", "ten", "1Xi", "1iG"])
def test_what_is_no_quantity(text: str) -> None:
    with pytest.raises(InvalidSpec, match="is no size"):
        read_quantity(text)
