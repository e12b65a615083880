"""The members of a group: given these events, expect these answers and facts."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.coordinator.group import (
    NEVER_MS,
    Answer,
    Caller,
    Group,
    GroupLimits,
    Joined,
    Step,
    Synced,
)
from tailrace.coordinator.records import Member, Phase
from tailrace.errors import (
    FencedInstance,
    GroupFull,
    GroupNotEmpty,
    IllegalGeneration,
    InconsistentProtocol,
    RebalanceInProgress,
    TailraceError,
    UnknownMember,
)

SESSION_MS = 10_000
REBALANCE_MS = 30_000
LIMITS = GroupLimits(members_max=4, bytes_max=2_000, initial_delay_ms=100)


class World:
    """A group, the time, and what everybody was told."""

    def __init__(self) -> None:
        self.group = Group("g", LIMITS)
        self.now_ms = 1_000
        self.answers: dict[str, Answer] = {}
        self.stored = self.group.facts
        self.announced: list[str] = []
        self.ids = 0

    def took(self, step: Step) -> None:
        self.announced = step.announced
        if step.facts is not None:
            self.stored = step.facts
        assert self.stored is self.group.facts, "whatever changes is given out to be stored"
        for token, answer in step.answers:
            assert isinstance(token, str)
            assert token not in self.answers, "an answer comes once"
            self.answers[token] = answer

    @property
    def times(self) -> dict[str, int]:
        return {"now_ms": self.now_ms, "wall_ms": self.now_ms + 500}

    def join(self, token: str, member_id: str = "", **given: Any) -> str:
        """Gives the id that it has if it is new."""
        self.ids += 1
        new_id = f"id-{self.ids}"
        asked = Member(
            **{
                "member_id": member_id,
                "session_timeout_ms": SESSION_MS,
                "rebalance_timeout_ms": REBALANCE_MS,
                "protocols": (("range", b"r"), ("sticky", b"s")),
                **given,
            }
        )
        self.took(self.group.join(asked, token, new_id=new_id, **self.times))
        return new_id

    def sync(self, token: str, member_id: str, **given: Any) -> None:
        caller = Caller(
            member_id, given.pop("instance", ""), given.pop("generation", self.generation)
        )
        self.took(self.group.sync(caller, given.pop("assignments", {}), token, **self.times))

    def beat(self, member_id: str, instance: str = "", generation: int | None = None) -> None:
        generation = self.generation if generation is None else generation
        self.group.heartbeat(Caller(member_id, instance, generation), self.now_ms)

    def leave(self, member_id: str, instance: str = "") -> None:
        self.took(self.group.leave(Caller(member_id, instance), **self.times))

    def wait(self, ms: int) -> None:
        self.now_ms += ms
        self.took(self.group.tick(**self.times))

    @property
    def generation(self) -> int:
        return self.group.facts.generation

    def phase(self) -> Phase:
        return self.group.facts.phase

    def joined(self, token: str) -> Joined:
        found = self.answers[token]
        assert isinstance(found, Joined), found
        return found


def stable(members: int = 2) -> tuple[World, list[str]]:
    """A group with so many members; the first leads. What was told before is forgotten."""
    world = World()
    ids = [world.join(f"join-{number}") for number in range(members)]
    world.wait(LIMITS.initial_delay_ms)
    for number in reversed(range(members)):
        given = {member_id: member_id.encode() for member_id in ids} if number == 0 else {}
        world.sync(f"sync-{number}", ids[number], assignments=given)
    assert world.phase() is Phase.STABLE
    world.answers.clear()
    return world, ids


# ---------------------------------------------------------------------------------------- joining


def test_the_first_members_come_together() -> None:
    world = World()
    one = world.join("one")
    assert world.phase() is Phase.JOINING
    world.now_ms += 90
    two = world.join("two")
    world.wait(50)
    assert world.answers == {}, "each new one has the group wait a little more"
    assert world.group.next_due_ms() == world.now_ms + 50
    world.wait(50)
    assert world.joined("one") == Joined(
        one, 1, "range", one, tuple(world.group.facts.members.values())
    )
    assert world.joined("two") == Joined(two, 1, "range", one)
    assert list(world.group.facts.members) == [one, two]
    assert world.phase() is Phase.SYNCING


def test_the_leader_brings_the_assignment_and_all_get_theirs() -> None:
    world = World()
    one, two = world.join("one"), world.join("two")
    world.wait(100)
    world.sync("sync-two", two)
    assert "sync-two" not in world.answers
    world.sync("sync-one", one, assignments={one: b"1", two: b"2", "stranger": b"3"})
    assert world.answers["sync-two"] == Synced("range", b"2")
    assert world.answers["sync-one"] == Synced("range", b"1")
    assert world.phase() is Phase.STABLE
    world.sync("again", two)
    assert world.answers["again"] == Synced("range", b"2")


def test_a_new_member_makes_all_join_again_at_once() -> None:
    world, (one, two) = stable()
    three = world.join("three")
    assert world.announced == [one, two]
    assert world.phase() is Phase.JOINING
    for member_id in (one, two):
        with pytest.raises(RebalanceInProgress):
            world.beat(member_id)
    world.join("one", one)
    world.join("two", two)
    assert world.joined("three").generation == 2
    assert world.joined("one").leader == one
    assert list(world.group.facts.members) == [one, two, three]


def test_who_does_not_join_in_time_is_out() -> None:
    world, (one, two) = stable()
    world.join("three")
    world.join("one", one)
    for _ in range(5):
        world.wait(REBALANCE_MS // 5 - 1)
        with pytest.raises(RebalanceInProgress):
            world.beat(two)
    world.wait(5)
    assert world.joined("one").generation == 2
    assert two not in world.group.facts.members
    with pytest.raises(UnknownMember):
        world.beat(two)


def test_a_leader_that_goes_is_replaced() -> None:
    world, (one, two) = stable()
    world.leave(one)
    world.join("two", two)
    assert world.joined("two").leader == two
    assert [each.member_id for each in world.joined("two").members] == [two]


def test_one_that_asks_again_disturbs_nobody() -> None:
    world, (one, two) = stable()
    world.join("two", two)
    assert world.joined("two") == Joined(two, 1, "range", one)
    assert world.phase() is Phase.STABLE
    world.join("changed", two, protocols=(("range", b"other"),))
    assert world.phase() is Phase.JOINING
    world.join("one", one)
    assert world.joined("one").protocol == "range"


def test_a_leader_that_joins_again_wants_another_assignment() -> None:
    world, (one, _) = stable()
    world.join("one", one)
    assert world.phase() is Phase.JOINING


def test_an_answer_that_got_lost_is_given_again() -> None:
    world = World()
    one, two = world.join("one"), world.join("two")
    world.wait(100)
    world.join("again", two)
    assert world.joined("again") == world.joined("two")
    world.join("leader again", one)
    assert world.joined("leader again") == world.joined("one")
    assert world.phase() is Phase.SYNCING


def test_a_new_member_whose_answer_got_lost_is_known_by_the_id_that_it_wanted() -> None:
    world = World()
    one = world.join("one")
    world.wait(100)
    world.ids -= 1
    assert world.join("again") == one
    assert world.joined("again") == world.joined("one")
    assert list(world.group.facts.members) == [one]
    world.sync("sync", one, assignments={one: b"1"})
    world.ids -= 1
    world.join("once more")
    assert world.joined("once more").generation == 2


def test_a_second_join_takes_the_place_of_the_first() -> None:
    world, (one, _) = stable()
    world.join("first", one)
    world.join("second", one)
    assert isinstance(world.answers["first"], RebalanceInProgress)
    assert "second" not in world.answers


def test_the_protocol_is_the_one_that_most_prefer_of_those_that_all_know() -> None:
    world = World()
    world.join("one", protocols=(("a", b""), ("b", b""), ("c", b"")))
    world.join("two", protocols=(("b", b""), ("c", b"")))
    world.join("three", protocols=(("c", b""), ("b", b"")))
    world.wait(100)
    assert world.joined("one").protocol == "b"
    world.join("four", protocols=(("a", b""),))
    assert isinstance(world.answers["four"], InconsistentProtocol)


def test_a_group_has_its_limits() -> None:
    world = World()
    large = (("range", b"x" * 2_000),)
    world.join("large", protocols=large)
    assert isinstance(world.answers["large"], GroupFull)
    world.join("long names", client_id="\x01" * 300)
    assert isinstance(world.answers["long names"], GroupFull), "each takes six bytes in the record"
    for number in range(4):
        world.join(f"{number}")
    world.join("five")
    assert isinstance(world.answers["five"], GroupFull)
    world.wait(100)
    leader = world.joined("0").member_id
    world.sync("sync", leader, assignments={leader: b"x" * 2_100})
    assert isinstance(world.answers["sync"], GroupFull)
    world.join("grown", leader, protocols=large)
    assert isinstance(world.answers["grown"], GroupFull)
    assert world.phase() is Phase.SYNCING, "the others are not disturbed"


# ------------------------------------------------------------------------------ generations, death


def test_a_session_that_ends_starts_a_rebalance() -> None:
    world, (one, two) = stable()
    world.now_ms += SESSION_MS - 1
    world.beat(one)
    assert world.group.next_due_ms() == world.now_ms + 1
    world.wait(1)
    assert world.announced == [one]
    assert list(world.group.facts.members) == [one]
    with pytest.raises(UnknownMember):
        world.beat(two)


def test_the_last_one_leaves_an_empty_group_of_the_next_generation() -> None:
    world, (one, two) = stable()
    world.leave(one)
    world.leave(two)
    assert (world.phase(), world.generation) == (Phase.EMPTY, 2)
    assert world.group.next_due_ms() == NEVER_MS
    assert world.group.is_empty


def test_a_leader_that_never_syncs_holds_up_the_group_only_for_a_while() -> None:
    world = World()
    one, two = world.join("one"), world.join("two")
    world.wait(100)
    world.sync("sync-two", two)
    for _ in range(10):
        world.wait(REBALANCE_MS // 10)
        if world.phase() is not Phase.SYNCING:
            break
        world.beat(one)
        world.beat(two)
    assert one not in world.group.facts.members
    assert isinstance(world.answers["sync-two"], RebalanceInProgress | UnknownMember)
    world.join("again", two)
    assert world.joined("again").leader == two


def test_who_waits_for_the_assignment_keeps_its_place_when_the_leader_dies() -> None:
    world = World()
    _, two, three = (world.join(f"{number}") for number in range(3))
    world.wait(100)
    world.now_ms += 2
    world.sync("sync two", two)
    world.sync("sync three", three)
    world.wait(SESSION_MS - 2)
    assert list(world.group.facts.members) == [two, three]
    assert isinstance(world.answers["sync two"], RebalanceInProgress)
    # Its answer takes a while to get there, and so does the next join.
    world.wait(SESSION_MS - 1)
    world.join("again two", two)
    world.join("again three", three)
    assert world.joined("again two").generation == 2
    world.sync("waits", three)
    world.wait(SESSION_MS - 1)
    world.took(world.group.forget("waits", **world.times))
    world.wait(1)
    assert list(world.group.facts.members) == [three], "who hung up has a session to come back"
    world.wait(SESSION_MS)
    assert world.phase() is Phase.EMPTY


def test_requests_of_another_generation_are_refused() -> None:
    world, (one, _) = stable()
    with pytest.raises(IllegalGeneration):
        world.beat(one, generation=0)
    with pytest.raises(IllegalGeneration):
        world.group.check_commit(Caller(one, "", 0), world.now_ms)
    world.sync("old", one, generation=0)
    assert isinstance(world.answers["old"], IllegalGeneration)


def test_commits_are_taken_from_members_of_the_generation_only() -> None:
    world, (one, two) = stable()
    world.group.check_commit(Caller(one, "", 1), world.now_ms)
    with pytest.raises(GroupNotEmpty):
        world.group.check_commit(Caller(""), world.now_ms)
    with pytest.raises(UnknownMember):
        world.group.check_commit(Caller("stranger", "", 1), world.now_ms)
    world.join("three")
    world.group.check_commit(Caller(one, "", 1), world.now_ms)
    world.join("one", one)
    world.join("two", two)
    with pytest.raises(RebalanceInProgress):
        world.group.check_commit(Caller(one, "", 2), world.now_ms)
    world.group.check_commit(Caller(one, "", 2, keeps_partitions=True), world.now_ms)
    with pytest.raises(IllegalGeneration):
        world.group.check_commit(Caller(one, "", 1, keeps_partitions=True), world.now_ms)
    Group("empty", LIMITS).check_commit(Caller(""), 0)


def test_a_sync_during_the_joining_is_refused_and_one_that_waits_is_told() -> None:
    world = World()
    one, two = world.join("one"), world.join("two")
    world.wait(100)
    world.sync("sync-two", two)
    world.sync("two again", two)
    assert isinstance(world.answers["sync-two"], RebalanceInProgress)
    world.join("three")
    assert isinstance(world.answers["two again"], RebalanceInProgress)
    world.sync("sync-one", one)
    assert isinstance(world.answers["sync-one"], RebalanceInProgress)


# ------------------------------------------------------------------------------------ broken calls


def test_a_new_member_that_hangs_up_is_not_waited_for() -> None:
    world, (one, two) = stable()
    world.join("three")
    world.took(world.group.forget("three", **world.times))
    world.join("one", one)
    world.join("two", two)
    assert list(world.group.facts.members) == [one, two]
    empty = World()
    empty.join("one")
    empty.took(empty.group.forget("one", **empty.times))
    assert (empty.phase(), empty.generation) == (Phase.EMPTY, 1)


def test_a_member_that_hangs_up_has_its_session_to_come_back() -> None:
    world, (one, two) = stable()
    world.join("three")
    world.join("one", one)
    world.took(world.group.forget("one", **world.times))
    world.took(world.group.forget("nobody", **world.times))
    world.join("two", two)
    assert "two" not in world.answers
    world.wait(SESSION_MS)
    assert one not in world.group.facts.members
    assert world.joined("two").generation == 2
    world.sync("two waits", two)
    world.took(world.group.forget("two waits", **world.times))
    assert world.group.waiting == 0


def test_what_a_member_said_last_counts_though_it_hung_up() -> None:
    """Others came with an assignor that goes together with that alone."""

    def knows(*names: str) -> Any:
        return {"protocols": tuple((name, b"") for name in names)}

    world = World()
    one = world.join("one", instance_id="A", **knows("range"))
    two, three = (world.join(token, **knows("range", "sticky")) for token in ("two", "three"))
    world.wait(100)
    world.sync("sync", one, instance="A")
    world.join("one again", one, instance_id="A", **knows("sticky"))
    world.join("two again", two, **knows("sticky"))
    world.took(world.group.forget("one again", **world.times))
    for _ in range(REBALANCE_MS // (SESSION_MS // 2)):
        for member_id, instance in ((one, "A"), (three, "")):
            with pytest.raises(RebalanceInProgress):
                world.beat(member_id, instance)
        world.wait(SESSION_MS // 2)
    assert world.joined("two again").protocol == "sticky"
    assert set(world.group.facts.members) == {one, two}, "a static member keeps its place"


# ---------------------------------------------------------------------------------- static members


def static(world: World, token: str, name: str, **given: Any) -> str:
    return world.join(token, instance_id=name, **given)


def with_statics() -> tuple[World, str, str]:
    world = World()
    one, two = static(world, "one", "A"), static(world, "two", "B")
    world.wait(100)
    world.sync("s2", two, instance="B")
    world.sync("s1", one, instance="A", assignments={one: b"1", two: b"2"})
    world.answers.clear()
    return world, one, two


def test_a_static_member_that_restarts_keeps_its_place() -> None:
    world, one, two = with_statics()
    again = static(world, "again", "B")
    assert world.joined("again") == Joined(again, 1, "range", one)
    world.sync("sync", again, instance="B")
    assert world.answers["sync"] == Synced("range", b"2")
    assert world.phase() is Phase.STABLE
    with pytest.raises(FencedInstance):
        world.beat(two, "B")
    with pytest.raises(FencedInstance):
        world.group.check_commit(Caller(two, "B", 1), world.now_ms)
    world.join("old", two, instance_id="B")
    assert isinstance(world.answers["old"], FencedInstance)


def test_a_static_leader_that_restarts_need_not_assign() -> None:
    world, _, two = with_statics()
    again = static(world, "again", "A")
    found = world.joined("again")
    assert found.leader == again
    assert found.skip_assignment
    assert [each.member_id for each in found.members] == [again, two]


def test_a_static_member_that_comes_back_with_something_else_starts_a_rebalance() -> None:
    world, one, two = with_statics()
    again = static(world, "again", "B", protocols=(("range", b"new"),))
    assert world.announced == [one]
    world.join("one", one, instance_id="A")
    assert world.joined("again").member_id == again
    assert two not in world.group.facts.members


def test_a_static_member_that_is_away_keeps_its_place_until_its_session_ends() -> None:
    world, one, two = with_statics()
    world.join("three", rebalance_timeout_ms=1_000)
    world.join("one", one, instance_id="A")
    world.now_ms += REBALANCE_MS - SESSION_MS
    with pytest.raises(RebalanceInProgress):
        world.beat(two, "B")
    world.wait(SESSION_MS - 1)
    assert "one" not in world.answers
    world.wait(1)
    assert list(world.group.facts.members) == [one, world.joined("three").member_id]


def test_a_static_name_that_is_not_known_is_refused() -> None:
    world, one, _ = with_statics()
    world.join("stranger", "id-77", instance_id="C")
    assert isinstance(world.answers["stranger"], UnknownMember)
    with pytest.raises(FencedInstance):
        world.leave(one, "B")
    with pytest.raises(UnknownMember):
        world.leave("id-77", "C")
    world.leave("", "B")
    assert list(world.group.facts.members) == [one]


def test_two_processes_with_one_static_name_push_each_other_out_in_the_joining_too() -> None:
    world = World()
    static(world, "first", "A")
    second = static(world, "second", "A")
    assert isinstance(world.answers["first"], FencedInstance)
    world.wait(100)
    assert world.joined("second").member_id == second
    third = static(world, "third", "A")
    world.wait(0)
    assert world.joined("third").member_id == third
    assert list(world.group.facts.members) == [third]


def test_when_only_static_members_are_left_they_are_waited_for_while_their_sessions_last() -> None:
    world, _, two = with_statics()
    world.leave("", "A")
    world.now_ms += REBALANCE_MS - 1
    with pytest.raises(RebalanceInProgress):
        world.beat(two, "B")
    world.wait(1)
    assert list(world.group.facts.members) == [two]
    assert world.phase() is Phase.JOINING
    world.wait(SESSION_MS)
    assert world.phase() is Phase.EMPTY


# ---------------------------------------------------------------------------------- another owner


def test_f31_another_coordinator_goes_on_in_any_phase() -> None:
    world, (one, two) = stable()
    for events in range(4):
        other = World()
        other.group.apply(world.group.facts)
        other.stored = world.group.facts
        other.group.resume(other.now_ms)
        if world.phase() is Phase.STABLE:
            other.beat(one)
            other.wait(SESSION_MS)
            assert other.phase() is Phase.EMPTY
        else:
            other.join("a", one)
            other.join("b", two)
            other.wait(REBALANCE_MS)
            assert isinstance(other.answers["a"], Joined)
            assert other.joined("a").generation >= world.generation
        if events == 0:
            world.join("three")
        elif events == 1:
            world.join("one", one)
            world.join("two", two)
        elif events == 2:
            world.sync("sync", one, assignments={one: b"1"})


def test_a_rebalance_of_nobody_ends_at_once_after_a_takeover() -> None:
    world = World()
    world.join("one")
    other = Group("g", LIMITS)
    other.apply(world.group.facts)
    other.resume(0)
    assert other.next_due_ms() == 0
    assert other.tick(now_ms=0, wall_ms=0).facts == replace(
        world.group.facts, phase=Phase.EMPTY, generation=1, phase_ms=0
    )


# --------------------------------------------------------------------------------------- anything


class Anything:
    """Members that do whatever they like; the rules hold after each step."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.world = World()
        self.tokens = 0
        self.known: list[tuple[str, str]] = []
        self.waiting: set[str] = set()
        self.assigned: dict[int, dict[str, bytes]] = {}
        self.generations: list[int] = [0]

    def step(self) -> None:
        world, rng = self.world, self.rng
        self.tokens += 1
        token = f"t{self.tokens}"
        member_id, instance = rng.choice([*self.known, ("", "")])
        act = rng.choice(["join", "join", "new", "sync", "sync", "leave", "wait", "beat", "forget"])
        if act in {"join", "new"}:
            instance = rng.choice(["", "", "A", "B"]) if act == "new" else instance
            data = bytes([rng.randrange(2)])
            ranged = (("range", data),)
            world.join(
                token,
                "" if act == "new" else member_id,
                instance_id=instance,
                protocols=rng.choice([ranged, (("sticky", data),), (*ranged, ("sticky", data))]),
            )
            self.waiting.add(token)
        elif act == "sync":
            given = {each: each.encode() for each in world.group.facts.members}
            world.sync(token, member_id, instance=instance, assignments=given)
            self.waiting.add(token)
        elif act == "wait":
            world.wait(rng.choice([1, 60, 3_000, SESSION_MS, REBALANCE_MS]))
        elif act == "forget" and self.waiting:
            gone = rng.choice(sorted(self.waiting))
            self.waiting.discard(gone)
            world.took(world.group.forget(gone, **world.times))
        else:
            try:
                if act == "leave":
                    world.leave(member_id, instance)
                else:
                    world.beat(member_id, instance)
            except TailraceError:
                pass
        self.check()

    def check(self) -> None:
        world = self.world
        for token, answer in world.answers.items():
            self.waiting.discard(token)
            if isinstance(answer, Joined):
                member = world.group.facts.members.get(answer.member_id)
                self.known.append((answer.member_id, member.instance_id if member else ""))
        world.answers.clear()
        self.known = self.known[-6:]
        facts = world.group.facts
        assert facts.generation >= self.generations[-1], "generations only grow"
        self.generations.append(facts.generation)
        assert (facts.phase is Phase.EMPTY) <= (not facts.members)
        if facts.members and facts.phase in {Phase.SYNCING, Phase.STABLE}:
            assert facts.leader in facts.members
        if facts.phase is Phase.STABLE:
            now = {each.member_id: each.assignment for each in facts.members.values()}
            then = self.assigned.setdefault(facts.generation, now)
            assert sorted(now.values()) == sorted(then.values()), "one assignment a generation"
        if facts.phase in {Phase.JOINING, Phase.SYNCING}:
            assert world.group.next_due_ms() < NEVER_MS, "every rebalance ends"


@given(st.integers(0, 2**32))
def test_whatever_members_do_the_rules_hold(seed: int) -> None:
    anything = Anything(random.Random(seed))
    for _ in range(40):
        anything.step()
    world = anything.world
    # All fall silent: the group is empty in the end.
    for _ in range(6):
        world.wait(REBALANCE_MS + SESSION_MS)
    for token in sorted(anything.waiting):
        world.took(world.group.forget(token, **world.times))
    for _ in range(6):
        world.wait(REBALANCE_MS + SESSION_MS)
    assert world.phase() is Phase.EMPTY
    assert world.group.next_due_ms() == NEVER_MS
