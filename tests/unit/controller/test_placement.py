"""Where replicas go: replica j of partition i on broker (i + j) mod n."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.controller.placement import place, placement_order
from tailrace.errors import InvalidTopic
from tailrace.model import BrokerId


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
