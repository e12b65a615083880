"""Where replicas go: replica j of partition i on broker (i + j) mod n."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.controller.placement import place, placement_order, plan_by_rule, plan_to_empty
from tailrace.errors import InvalidAssignment, InvalidTopic
from tailrace.model import BrokerId, TopicPartition


def brokers(racks: dict[int, str]) -> dict[BrokerId, str]:
    return {BrokerId(broker): rack for broker, rack in racks.items()}


def test_replica_j_of_partition_i_is_on_broker_i_plus_j() -> None:
    order = placement_order(brokers({3: "", 1: "", 2: ""}))
    assert order == [1, 2, 3]
    assert place(order, partitions=4, replication_factor=2) == {
        0: (1, 2),
        1: (2, 3),
        2: (3, 1),
        3: (1, 2),
    }


def test_adding_partitions_continues_the_count() -> None:
    order = [BrokerId(each) for each in (1, 2, 3)]
    whole = place(order, partitions=7, replication_factor=3)
    first = place(order, partitions=4, replication_factor=3)
    more = place(order, partitions=3, replication_factor=3, first=4)
    assert {**first, **more} == whole


def test_racks_take_turns() -> None:
    assert placement_order(brokers({1: "a", 2: "a", 3: "b", 4: "b", 5: "c"})) == [1, 3, 5, 2, 4]
    assert placement_order(brokers({1: "a", 2: "a"})) == [1, 2]
    assert placement_order(brokers({})) == []


@pytest.mark.parametrize(
    ("live", "message"),
    [((1,), "needs as many brokers, and 1 is live"), ((1, 2), "and 2 are live"), ((), "0 are")],
)
def test_more_replicas_than_brokers_cannot_be(live: tuple[int, ...], message: str) -> None:
    with pytest.raises(InvalidTopic, match=message):
        place([BrokerId(each) for each in live], partitions=1, replication_factor=3)


@given(
    racks=st.dictionaries(st.integers(0, 50), st.sampled_from("abc"), min_size=1),
    partitions=st.integers(1, 60),
    data=st.data(),
)
def test_replicas_are_spread_evenly_and_never_twice_on_one_broker(
    racks: dict[int, str], partitions: int, data: st.DataObject
) -> None:
    order = placement_order(brokers(racks))
    assert sorted(order) == sorted(racks)
    factor = data.draw(st.integers(1, len(order)))
    placed = place(order, partitions=partitions, replication_factor=factor)
    leaders = [replicas[0] for replicas in placed.values()]
    counts = [leaders.count(each) for each in order]
    assert max(counts) - min(counts) <= 1
    assert all(len({*replicas}) == factor for replicas in placed.values())


def test_as_many_racks_as_replicas_means_one_replica_in_each() -> None:
    racks = {broker: "abc"[broker % 3] for broker in range(9)}
    order = placement_order(brokers(racks))
    for replicas in place(order, partitions=30, replication_factor=3).values():
        assert {racks[each] for each in replicas} == {"a", "b", "c"}


# --------------------------------------------------------------------------------- plans of moves


def spread(brokers: int, partitions: int, replicas: int, topics: int = 2) -> dict[Any, Any]:
    order = [BrokerId(each) for each in range(1, brokers + 1)]
    return {
        TopicPartition(f"t{topic}", number): placed
        for topic in range(topics)
        for number, placed in place(
            order, partitions=partitions, replication_factor=replicas
        ).items()
    }


def racks(*brokers: int) -> dict[BrokerId, str]:
    return dict.fromkeys(map(BrokerId, brokers), "")


@given(
    old=st.integers(1, 6),
    new=st.sets(st.integers(1, 9), min_size=1, max_size=6),
    partitions=st.integers(1, 20),
    data=st.data(),
)
def test_a_plan_by_the_rule_is_the_rule_and_moves_nothing_that_is_right(
    old: int, new: set[int], partitions: int, data: st.DataObject
) -> None:
    replicas = data.draw(st.integers(1, min(old, len(new))))
    before = spread(old, partitions, replicas)
    brokers = racks(*new)
    plan = plan_by_rule(before, brokers)
    after = {**before, **plan.targets}
    wanted = place(placement_order(brokers), partitions=partitions, replication_factor=replicas)
    assert after == {each: wanted[each.partition] for each in before}
    assert all(plan.targets[each] != before[each] for each in plan.targets)
    # No plan with this end copies less: what a broker has not it must get.
    assert plan.copies(before) == sum(len({*after[each]} - {*before[each]}) for each in before)
    assert plan_by_rule(after, brokers).targets == {}


def test_three_to_five_brokers_and_back() -> None:
    before = spread(3, 10, 3, topics=1)
    out = plan_by_rule(before, racks(1, 2, 3, 4, 5))
    after = {**before, **out.targets}
    counts = Counter(each for replicas in after.values() for each in replicas)
    assert counts == dict.fromkeys(range(1, 6), 6)
    back = plan_by_rule(after, racks(1, 2, 3))
    assert {**after, **back.targets} == before


def test_a_rule_needs_as_many_brokers_as_replicas() -> None:
    with pytest.raises(InvalidAssignment, match="name more brokers"):
        plan_by_rule(spread(3, 1, 3), racks(1, 2))


@given(
    brokers=st.integers(2, 7),
    partitions=st.integers(1, 20),
    emptied=st.integers(1, 7),
    data=st.data(),
)
def test_emptying_a_broker_moves_its_replicas_and_no_others(
    brokers: int, partitions: int, emptied: int, data: st.DataObject
) -> None:
    replicas = data.draw(st.integers(1, brokers - 1))
    before = spread(brokers, partitions, replicas)
    others = {each: "" for each in racks(*range(1, brokers + 1)) if each != emptied}
    plan = plan_to_empty(before, BrokerId(emptied), others)
    assert set(plan.targets) == {each for each in before if emptied in before[each]}
    for partition, target in plan.targets.items():
        old = before[partition]
        assert emptied not in target
        assert len(set(target)) == len(old)
        assert [a for a, b in zip(old, target, strict=True) if a != b] == [emptied]
    assert plan.copies(before) == len(plan.targets)


def test_what_is_emptied_is_spread_evenly_and_over_racks() -> None:
    before = spread(3, 30, 1, topics=1)
    plan = plan_to_empty(before, BrokerId(1), racks(2, 3, 4))
    counts = Counter(each for r in {**before, **plan.targets}.values() for each in r)
    assert counts == {2: 10, 3: 10, 4: 10}
    partition = TopicPartition("t", 0)
    where = {BrokerId(2): "a", BrokerId(3): "a", BrokerId(4): "b"}
    plan = plan_to_empty({partition: (BrokerId(2), BrokerId(1))}, BrokerId(1), where)
    assert plan.targets[partition] == (2, 4)


def test_a_broker_whose_replicas_nobody_else_can_take_cannot_be_emptied() -> None:
    with pytest.raises(InvalidAssignment, match="there is no other broker"):
        plan_to_empty(spread(3, 1, 3), BrokerId(1), racks(2, 3))
