"""The machine of a member: given events, expect effects and handovers."""

from __future__ import annotations

import pytest

from tailrace.client.assignors import CooperativeStickyAssignor, Member, RangeAssignor
from tailrace.client.membership import (
    NO_GENERATION,
    Effect,
    Handover,
    Join,
    Joined,
    Leave,
    Membership,
    State,
    Sync,
)
from tailrace.errors import (
    FencedInstance,
    IllegalGeneration,
    InconsistentProtocol,
    InvariantViolation,
    RebalanceInProgress,
    UnknownMember,
)
from tailrace.model import TopicPartition

A, B, C = (TopicPartition("t", number) for number in range(3))


def machine_of(*, cooperative: bool = True, static: bool = False) -> Membership:
    assignor = CooperativeStickyAssignor() if cooperative else RangeAssignor()
    machine = Membership([assignor], max_poll_interval_ms=1_000, is_static=static)
    machine.polled(0)
    return machine


def attempt_of(effects: list[Effect]) -> int:
    (effect,) = effects
    assert isinstance(effect, Join)
    return effect.attempt


def join(
    machine: Membership,
    effects: list[Effect],
    *,
    generation: int,
    gets: frozenset[TopicPartition],
    member_id: str = "me",
) -> None:
    """Answer a join and a sync."""
    attempt = attempt_of(effects)
    name = "cooperative-sticky" if machine.is_cooperative else "range"
    answer = Joined(member_id=member_id, generation=generation, protocol=name, leader="other")
    (sync,) = machine.joined(attempt, answer, {})
    assert isinstance(sync, Sync)
    assert (sync.generation, sync.member_id, sync.assignments) == (generation, member_id, {})
    assert machine.synced(attempt, gets) == []


def stable(*partitions: TopicPartition, cooperative: bool = True) -> Membership:
    """A member that owns these."""
    machine = machine_of(cooperative=cooperative)
    effects = machine.subscribed({"t"}, reason="subscribed")
    join(machine, effects, generation=1, gets=frozenset(partitions))
    if partitions:
        assert machine.handed_over() == []
    assert (machine.state, machine.owned) == (State.STABLE, frozenset(partitions))
    return machine


def test_joining_for_the_first_time() -> None:
    machine = machine_of()
    (effect,) = machine.subscribed({"t"}, reason="subscribed")
    assert effect == Join(
        attempt=1,
        member_id="",
        topics=frozenset({"t"}),
        owned=frozenset(),
        generation=-1,
        reason="subscribed",
    )
    assert machine.subscribed({"t"}, reason="again") == []
    assert not machine.is_beating
    join(machine, [effect], generation=1, gets=frozenset({A, B}))
    assert machine.handover == Handover(added=frozenset({A, B}))
    assert (machine.owned, machine.is_beating) == (frozenset(), True)
    machine.handed_over()
    assert (machine.owned, machine.state, machine.rebalances) == (
        frozenset({A, B}),
        State.STABLE,
        1,
    )
    with pytest.raises(InvariantViolation):
        machine.handed_over()


def test_the_leader_divides_what_members_want() -> None:
    machine = machine_of()
    attempt = attempt_of(machine.subscribed({"t"}, reason=""))
    members = (
        Member(member_id="me", topics=frozenset({"t"})),
        Member(member_id="you", topics=frozenset({"t", "u"})),
    )
    answer = Joined(
        member_id="me",
        generation=1,
        protocol="cooperative-sticky",
        leader="me",
        members=members,
    )
    (sync,) = machine.joined(attempt, answer, {"t": 2, "u": 1, "other": 5})
    assert isinstance(sync, Sync)
    assert sorted(each for mine in sync.assignments.values() for each in mine) == [
        *(A, B),
        TopicPartition("u", 0),
    ]
    assert machine.group_topics == {"t", "u"}
    machine.synced(attempt, frozenset({A}))
    machine.handed_over()
    assert len(machine.changed("more partitions")) == 1


def test_a_leader_that_is_told_so_divides_nothing() -> None:
    machine = machine_of(static=True)
    attempt = attempt_of(machine.subscribed({"t"}, reason=""))
    answer = Joined(
        member_id="me",
        generation=1,
        protocol="cooperative-sticky",
        leader="me",
        skip_assignment=True,
    )
    (sync,) = machine.joined(attempt, answer, {"t": 2})
    assert isinstance(sync, Sync)
    assert sync.assignments == {}


def test_only_the_leader_cares_for_new_partitions() -> None:
    assert stable(A).changed("more partitions") == []


def test_a_cooperative_member_keeps_what_it_has_and_gives_up_what_it_must() -> None:
    machine = stable(A, B)
    effects = machine.beaten(1, RebalanceInProgress("now"))
    (effect,) = effects
    assert isinstance(effect, Join)
    assert (effect.owned, effect.generation, effect.member_id) == (frozenset({A, B}), 1, "me")
    assert (machine.handover, machine.owned) == (None, frozenset({A, B}))
    join(machine, effects, generation=2, gets=frozenset({A}))
    assert machine.handover == Handover(revoked=frozenset({B}))
    (again,) = machine.handed_over()
    assert isinstance(again, Join), "so that the other one can have it"
    assert again.owned == {A}
    join(machine, [again], generation=3, gets=frozenset({A}))
    assert machine.rebalances == 3


def test_an_eager_member_gives_up_everything_first() -> None:
    machine = stable(A, B, cooperative=False)
    assert machine.beaten(1, RebalanceInProgress("now")) == []
    assert (machine.state, machine.handover) == (
        State.REVOKING,
        Handover(revoked=frozenset({A, B})),
    )
    assert machine.is_beating, "while the program is waited for"
    effects = machine.handed_over()
    (effect,) = effects
    assert isinstance(effect, Join)
    assert effect.owned == {A, B}, "a sticky assignor may want to know"
    join(machine, effects, generation=2, gets=frozenset({A}))
    assert machine.handover == Handover(added=frozenset({A}))


def test_topics_that_are_not_wanted_any_more_are_given_up_before_joining() -> None:
    machine = stable(A)
    assert machine.subscribed({"u"}, reason="changed") == []
    assert machine.handover == Handover(revoked=frozenset({A}))
    (effect,) = machine.handed_over()
    assert isinstance(effect, Join)
    assert (effect.topics, effect.owned) == (frozenset({"u"}), frozenset())


def test_answers_to_older_attempts_do_not_count() -> None:
    machine = machine_of()
    first = attempt_of(machine.subscribed({"t"}, reason=""))
    second = attempt_of(machine.subscribed({"t", "u"}, reason="more"))
    answer = Joined(member_id="old", generation=1, protocol="cooperative-sticky", leader="other")
    assert machine.joined(first, answer, {}) == []
    assert machine.refused(first, UnknownMember("old")) == []
    assert machine.member_id == ""
    assert len(machine.joined(second, answer, {})) == 1
    assert machine.synced(first, frozenset({A})) == []
    assert machine.handover is None


def test_news_of_another_rebalance_wait_until_the_assignment_is_taken() -> None:
    machine = machine_of()
    join(machine, machine.subscribed({"t"}, reason=""), generation=1, gets=frozenset({A}))
    assert machine.beaten(1, RebalanceInProgress("again")) == []
    (effect,) = machine.handed_over()
    assert isinstance(effect, Join)
    assert effect.owned == {A}


@pytest.mark.parametrize("kind", [UnknownMember, IllegalGeneration])
def test_a_member_that_was_thrown_out_has_lost_everything(kind: type[UnknownMember]) -> None:
    machine = stable(A)
    assert machine.beaten(0, kind("an old answer")) == []
    assert machine.beaten(1, kind("gone")) == []
    assert machine.handover == Handover(lost=frozenset({A}))
    assert (machine.generation, machine.is_beating) == (NO_GENERATION, False)
    (effect,) = machine.handed_over()
    assert isinstance(effect, Join)
    assert (effect.member_id, effect.owned) == ("" if kind is UnknownMember else "me", frozenset())


def test_one_that_owns_nothing_joins_anew_at_once() -> None:
    machine = stable()
    (effect,) = machine.beaten(1, UnknownMember("gone"))
    assert isinstance(effect, Join)
    attempt = effect.attempt
    (effect,) = machine.refused(attempt, RebalanceInProgress("again"), member_id="given")
    assert isinstance(effect, Join)
    assert effect.member_id == "given"


def test_what_can_never_succeed_ends_the_membership() -> None:
    for error in (FencedInstance("started again"), InconsistentProtocol("no assignor")):
        machine = stable(A)
        attempt = attempt_of(machine.beaten(1, RebalanceInProgress("now")))
        assert machine.refused(attempt, error) == []
        assert (machine.state, machine.error) == (State.FAILED, error)
        assert machine.handover == Handover(lost=frozenset({A}))
        assert machine.handed_over() == []
        assert machine.polled(1) == machine.left("closed") == []


def test_a_program_that_does_not_poll_leaves_until_it_does() -> None:
    machine = stable(A)
    machine.touch(500)
    assert machine.passed(1_499) == []
    assert machine.passed(1_500) == [Leave(member_id="me", reason="the program does not poll")]
    assert machine.handover == Handover(lost=frozenset({A}))
    assert machine.passed(9_000) == []
    assert len(machine.handed_over()) == 1
    machine = stable()
    machine.passed(1_500)
    assert machine.state is State.OUT
    (effect,) = machine.polled(2_000)
    assert isinstance(effect, Join)
    assert "max_poll_interval_ms" in effect.reason


def test_leaving() -> None:
    machine = stable(A)
    assert machine.left("closed") == [Leave(member_id="me", reason="closed")]
    assert (machine.state, machine.owned, machine.member_id) == (State.OUT, frozenset(), "")
    static = machine_of(static=True)
    join(static, static.subscribed({"t"}, reason=""), generation=1, gets=frozenset({A}))
    assert static.left("closed") == [], "its place is kept"
    machine = stable(A)
    machine.subscribed(set(), reason="a pattern that finds nothing any more")
    assert machine.handed_over() == [Leave(member_id="me", reason="unsubscribed")]
