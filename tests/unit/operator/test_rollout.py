"""Given what is seen, the one next step."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace_operator.manifests import BROKER, CONTROLLER, COORDINATOR
from tailrace_operator.rollout import (
    Health,
    Observed,
    Pod,
    Restart,
    Scale,
    Settled,
    Spread,
    Uncordon,
    Wait,
    next_step,
)


def pod(role: str, ordinal: int, **changes: object) -> Pod:
    name = f"t-{role}-{ordinal}"
    made = Pod(
        name=name,
        role=role,
        ordinal=ordinal,
        uid=f"uid-{name}",
        ready=True,
        terminating=False,
        outdated=False,
    )
    return replace(made, **changes)  # type: ignore[arg-type]


WHOLE = Health(reachable=True, brokers=frozenset({0, 1, 2}), controller=1, partitions=6)
PODS = (
    *(pod(BROKER, each) for each in range(3)),
    *(pod(CONTROLLER, each) for each in range(2)),
    *(pod(COORDINATOR, each) for each in range(2)),
)
WELL = Observed(
    brokers_wanted=3,
    brokers_now=3,
    pods=PODS,
    health=WHOLE,
    placed_on=frozenset({0, 1, 2}),
    holding=frozenset({0, 1, 2}),
)


def seen(*outdated: str, **changes: object) -> Observed:
    pods = [replace(each, outdated=each.name in outdated) for each in PODS]
    return replace(WELL, pods=pods, **changes)  # type: ignore[arg-type]


ALL = tuple(each.name for each in PODS)


def test_a_cluster_that_is_as_wanted_is_left_alone() -> None:
    assert next_step(WELL) == Settled()


def test_brokers_go_first_and_the_active_controller_last() -> None:
    left, order = list(ALL), []
    while left:
        step = next_step(seen(*left))
        assert isinstance(step, Restart)
        order.append(step.pod.name)
        left.remove(step.pod.name)
    assert order == [
        *("t-broker-0", "t-broker-1", "t-broker-2"),
        *("t-coordinator-0", "t-coordinator-1"),
        *("t-controller-0", "t-controller-1"),
    ]


@pytest.mark.parametrize(
    ("health", "why"),
    [
        (Health(), "does not say"),
        (replace(WHOLE, under_replicated=1), "1 partitions are under-replicated"),
        (replace(WHOLE, offline=2), "2 partitions are offline"),
        (replace(WHOLE, brokers=frozenset({0, 2})), "broker 1 is not registered"),
    ],
)
def test_f24_no_broker_is_taken_while_the_cluster_is_not_whole(health: Health, why: str) -> None:
    step = next_step(seen("t-broker-2", health=health))
    assert isinstance(step, Wait)
    assert why in step.why


def test_one_pod_at_a_time() -> None:
    pods = [pod(BROKER, 0, terminating=True), pod(BROKER, 1, outdated=True), pod(BROKER, 2)]
    assert isinstance(next_step(replace(WELL, pods=pods)), Wait)


def test_a_broker_that_does_not_start_with_the_old_template_gets_the_new_one() -> None:
    pods = [pod(BROKER, 0), pod(BROKER, 1, outdated=True, ready=False), pod(BROKER, 2)]
    health = replace(WHOLE, brokers=frozenset({0, 2}), under_replicated=6)
    step = next_step(replace(WELL, pods=pods, health=health))
    assert isinstance(step, Restart)
    assert step.pod.ordinal == 1


def test_more_brokers_are_made_at_once_and_filled_when_they_are_there() -> None:
    assert next_step(replace(WELL, brokers_wanted=5)) == Scale(5, "5 brokers are wanted")
    grown = replace(WELL, brokers_wanted=5, brokers_now=5)
    assert isinstance(next_step(grown), Wait)
    there = replace(grown, health=replace(WHOLE, brokers=frozenset(range(5))))
    step = next_step(there)
    assert isinstance(step, Spread)
    assert step.brokers == (0, 1, 2, 3, 4)
    moving = replace(there, health=replace(there.health, moving=3))
    assert isinstance(next_step(moving), Wait)


def test_brokers_leave_only_when_they_hold_nothing() -> None:
    five = replace(
        WELL,
        brokers_now=5,
        health=replace(WHOLE, brokers=frozenset(range(5))),
        placed_on=frozenset(range(5)),
        holding=frozenset(range(5)),
    )
    step = next_step(five)
    assert isinstance(step, Spread)
    assert step.brokers == (0, 1, 2)
    assert isinstance(next_step(replace(five, health=Health())), Wait)
    moving = replace(five, health=replace(five.health, moving=1))
    assert isinstance(next_step(moving), Wait)
    empty = replace(five, holding=frozenset({0, 1, 2}))
    # A topic that is made now would be placed on them: they are cordoned first.
    assert isinstance(next_step(empty), Spread)
    cordoned = replace(five.health, cordoned=frozenset({3, 4}))
    assert isinstance(next_step(replace(empty, health=cordoned)), Scale)


def test_a_broker_that_is_away_leaves_only_when_others_hold_its_replicas() -> None:
    away = replace(
        WELL,
        brokers_now=4,
        health=replace(WHOLE, under_replicated=6),
        placed_on=frozenset(range(4)),
        holding=frozenset(range(4)),
    )
    step = next_step(away)
    assert isinstance(step, Spread)
    assert step.brokers == (0, 1, 2)
    assert isinstance(next_step(replace(away, holding=frozenset({0, 1, 2}))), Scale)


@pytest.mark.parametrize(("cordoned", "free"), [({1}, (1,)), ({3, 4}, (3, 4)), ({1, 5}, (1, 5))])
def test_who_stays_or_is_gone_is_cordoned_no_more(
    cordoned: set[int], free: tuple[int, ...]
) -> None:
    health = replace(WHOLE, cordoned=frozenset(cordoned))
    step = next_step(replace(WELL, health=health))
    assert isinstance(step, Uncordon)
    assert step.brokers == free
    still = replace(health, brokers=WHOLE.brokers | (frozenset(cordoned) - {1}))
    if 1 not in cordoned:
        assert isinstance(next_step(replace(WELL, health=still)), Settled)


_HEALTH = st.builds(
    Health,
    reachable=st.booleans(),
    brokers=st.frozensets(st.integers(0, 5)),
    controller=st.integers(-1, 2),
    under_replicated=st.integers(0, 1),
    offline=st.integers(0, 1),
    moving=st.integers(0, 1),
)
_POD = st.builds(
    pod,
    st.sampled_from([BROKER, CONTROLLER, COORDINATOR]),
    st.integers(0, 4),
    ready=st.booleans(),
    terminating=st.booleans(),
    outdated=st.booleans(),
)


@given(
    st.builds(
        Observed,
        brokers_wanted=st.integers(1, 5),
        brokers_now=st.integers(0, 5),
        pods=st.lists(_POD, max_size=8, unique_by=lambda each: each.name),
        health=_HEALTH,
        placed_on=st.none() | st.frozensets(st.integers(0, 5)),
        holding=st.frozensets(st.integers(0, 5)),
    )
)
def test_whatever_is_seen_a_serving_broker_goes_only_from_a_whole_cluster(
    observed: Observed,
) -> None:
    step = next_step(observed)
    if isinstance(step, Restart) and step.pod.role == BROKER:
        assert step.pod.outdated
        serves = step.pod.ready or step.pod.ordinal in observed.health.brokers
        assert not serves or observed.health.is_whole
        assert not any(each.terminating for each in observed.pods)
    if isinstance(step, Scale) and step.brokers < observed.brokers_now:
        leaving = range(step.brokers, observed.brokers_now)
        assert not observed.holding.intersection(leaving)
