"""Assignors: everybody gets a fair share, nothing is given twice, and what can stay stays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from time import process_time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.client.assignors import (
    Assignment,
    Assignor,
    CooperativeStickyAssignor,
    Member,
    RangeAssignor,
    RoundRobinAssignor,
    StickyAssignor,
    assignors_for,
)
from tailrace.errors import InvalidConfig
from tailrace.model import TopicPartition

TOPICS = ["a", "b", "c"]
EAGER: list[Assignor] = [RangeAssignor(), RoundRobinAssignor(), StickyAssignor()]

Group = tuple[dict[str, int], list[Member]]


@st.composite
def groups(draw: st.DrawFn, *, equal: bool = False) -> Group:
    partitions = {topic: draw(st.integers(0, 12)) for topic in TOPICS}
    common = frozenset(draw(st.sets(st.sampled_from(TOPICS), min_size=1)))
    members = [
        Member(
            member_id=f"m{number}",
            instance_id=draw(st.sampled_from(["", f"i{9 - number}"])),
            topics=common if equal else frozenset(draw(st.sets(st.sampled_from(TOPICS)))),
        )
        for number in range(draw(st.integers(1, 7)))
    ]
    return partitions, members


def check_valid(
    partitions: Mapping[str, int], members: Sequence[Member], found: Assignment
) -> list[TopicPartition]:
    """Each partition goes to one member at most, and only to one that subscribes."""
    assert set(found) == {each.member_id for each in members}
    topics = {each.member_id: each.topics for each in members}
    given_ = [(member, each) for member, mine in found.items() for each in mine]
    assert len({each for _, each in given_}) == len(given_)
    assert all(each.topic in topics[member] for member, each in given_)
    assert all(0 <= each.partition < partitions[each.topic] for _, each in given_)
    return [each for _, each in given_]


def wanted(partitions: Mapping[str, int], members: Sequence[Member]) -> set[TopicPartition]:
    return {
        TopicPartition(topic, number)
        for topic, count in partitions.items()
        if any(topic in each.topics for each in members)
        for number in range(count)
    }


def after(members: Sequence[Member], found: Assignment, generation: int) -> list[Member]:
    """The members, as they join the next time."""
    return [
        Member(
            member_id=each.member_id,
            instance_id=each.instance_id,
            topics=each.topics,
            owned=frozenset(found.get(each.member_id, ())),
            generation=generation,
        )
        for each in members
    ]


@given(group=groups())
@settings(max_examples=150, deadline=None)
def test_every_partition_has_one_owner_that_wants_it(group: Group) -> None:
    partitions, members = group
    for assignor in EAGER:
        found = assignor.assign(partitions, members)
        assert set(check_valid(partitions, members, found)) == wanted(partitions, members)


@given(group=groups(equal=True))
@settings(max_examples=100, deadline=None)
def test_members_that_want_the_same_get_the_same(group: Group) -> None:
    partitions, members = group
    assignor: Assignor
    for assignor in EAGER[1:]:
        sizes = [len(each) for each in assignor.assign(partitions, members).values()]
        assert max(sizes) - min(sizes) <= 1
    by_topic = RangeAssignor().assign(partitions, members)
    for topic in TOPICS:
        sizes = [sum(each.topic == topic for each in mine) for mine in by_topic.values()]
        assert max(sizes) - min(sizes) <= 1


@given(group=groups())
@settings(max_examples=100, deadline=None)
def test_sticky_changes_nothing_when_nothing_changed(group: Group) -> None:
    partitions, members = group
    first = StickyAssignor().assign(partitions, members)
    assignors: list[Assignor] = [StickyAssignor(), CooperativeStickyAssignor()]
    for assignor in assignors:
        assert assignor.assign(partitions, after(members, first, 1)) == first


@given(group=groups(equal=True), seed=st.integers(0, 10**6))
@settings(max_examples=100, deadline=None)
def test_a_member_that_leaves_moves_only_its_own(group: Group, seed: int) -> None:
    partitions, members = group
    first = StickyAssignor().assign(partitions, members)
    if len(members) == 1:
        return
    left = Random(seed).choice(members)
    rest = after([each for each in members if each is not left], first, 1)
    second = StickyAssignor().assign(partitions, rest)
    for member in rest:
        assert set(first[member.member_id]) <= set(second[member.member_id])


@given(equal=st.booleans(), data=st.data())
@settings(max_examples=150, deadline=None)
def test_cooperation_takes_few_rounds_and_nobody_gets_what_another_has(
    equal: bool, data: st.DataObject
) -> None:
    """Members come, go and change their minds; when all want the same, two rounds do."""
    group = data.draw(groups(equal=equal))
    more = data.draw(groups(equal=equal))
    assignor = CooperativeStickyAssignor()
    partitions, members = group
    first = assignor.assign(partitions, members)
    partitions = {topic: max(partitions[topic], more[0][topic]) for topic in TOPICS}
    owned = {each.member_id: each for each in after(members, first, 1)}
    joined = [
        Member(
            member_id=each.member_id,
            topics=each.topics,
            owned=owned[each.member_id].owned if each.member_id in owned else frozenset(),
            generation=1 if each.member_id in owned else -1,
        )
        for each in more[1]
    ]
    found: Assignment = {}
    for round_ in range(2, 4 if equal else 8):
        found = assignor.assign(partitions, joined)
        given_ = check_valid(partitions, joined, found)
        owners = {partition: each.member_id for each in joined for partition in each.owned}
        for member, mine in found.items():
            assert all(owners.get(each, member) == member for each in mine)
        joined = after(joined, found, round_)
        if set(given_) == wanted(partitions, joined):
            break
    else:
        raise AssertionError(f"not all is given: {found}")
    assert assignor.assign(partitions, joined) == found, "and then it is calm"


def test_many_partitions_that_move_take_no_longer_each() -> None:
    """The leader does this on the loop that its heartbeats are sent from."""

    def effort_s(partitions: int) -> float:
        owned = frozenset(TopicPartition("t", number) for number in range(partitions))
        topics = frozenset(["t"])
        members = [
            Member(member_id="old", topics=topics, owned=owned, generation=1),
            Member(member_id="new", topics=topics),
        ]
        began_s = process_time()
        found = StickyAssignor().assign({"t": partitions}, members)
        assert [len(each) for each in found.values()] == [partitions // 2] * 2
        return process_time() - began_s

    # With each move as long as there are partitions it would be 256 times.
    assert min(effort_s(8_000) for _ in range(3)) < 100 * min(effort_s(500) for _ in range(3))


def test_what_two_claim_belongs_to_the_later_generation() -> None:
    both = frozenset({TopicPartition("a", 0), TopicPartition("a", 1)})
    members = [
        Member(member_id="old", topics=frozenset("a"), owned=both, generation=3),
        Member(member_id="new", topics=frozenset("a"), owned=both, generation=5),
        Member(member_id="late", topics=frozenset("a"), owned=both, generation=5),
    ]
    found = StickyAssignor().assign({"a": 2}, members[:2])
    assert {member: len(mine) for member, mine in found.items()} == {"old": 1, "new": 1}
    kept = CooperativeStickyAssignor().assign({"a": 2}, members[:2])
    assert (kept["old"], len(kept["new"])) == ([], 1), "what the new one has is not given away yet"
    found = StickyAssignor().assign({"a": 2}, members)
    assert sum(len(mine) for mine in found.values()) == 2


def test_range_gives_neighbours_and_round_robin_goes_by_hash() -> None:
    members = [Member(member_id=name, topics=frozenset("a")) for name in ("x", "y")]
    found = RangeAssignor().assign({"a": 5}, members)
    assert [[each.partition for each in found[name]] for name in ("x", "y")] == [[0, 1, 2], [3, 4]]
    robin = RoundRobinAssignor().assign({"a": 5}, members)
    assert {len(mine) for mine in robin.values()} == {2, 3}
    assert robin != found


def test_names_and_own_assignors() -> None:
    class First:
        name = "first"
        is_cooperative = False

        def assign(self, partitions: Mapping[str, int], members: Sequence[Member]) -> Assignment:
            return {members[0].member_id: [TopicPartition("a", 0)]}

    own = First()
    assert [each.name for each in assignors_for(["range", own, "sticky"])] == [
        *("range", "first", "sticky"),
    ]
    assert assignors_for(own) == (own,)
    with pytest.raises(InvalidConfig, match="roundrobin"):
        assignors_for("nonsense")
    with pytest.raises(InvalidConfig, match="no assignor"):
        assignors_for([])
