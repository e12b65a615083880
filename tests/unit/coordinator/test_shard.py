"""A shard: what is decided is what is read again from the changes, and limits have names."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.coordinator.group import NEVER_MS, Caller, GroupLimits, Joined
from tailrace.coordinator.offsets import TopicFacts
from tailrace.coordinator.records import (
    READER,
    Change,
    Member,
    Phase,
    Position,
    ShardTaken,
    decode,
    encode,
)
from tailrace.coordinator.shard import Asked, Outcome, Shard, ShardLimits
from tailrace.errors import (
    GroupNotEmpty,
    GroupNotFound,
    InvalidGroup,
    InvalidRequest,
    InvalidSessionTimeout,
    LimitReached,
    TailraceError,
    UnknownMember,
    UnknownTopic,
)
from tailrace.model import TopicPartition

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
TOPICS = {"t": TopicFacts("id-t", 2)}
LIMITS = ShardLimits(
    group=GroupLimits(initial_delay_ms=0), groups_max=3, joins_max=2, retention_ms=1_000
)
NOBODY = Caller("")


def member(member_id: str = "", session_ms: int = 10_000) -> Member:
    return Member(
        member_id=member_id,
        session_timeout_ms=session_ms,
        rebalance_timeout_ms=5_000,
        protocols=(("range", b""),),
    )


def asked(partition: TopicPartition, offset: int, kind: str = "consumer") -> Asked:
    return Asked(partition, Position(offset, -1, "", "", 100, kind))


def commit(shard: Shard, group: str, *positions: Asked, kind: str = "consumer") -> Outcome:
    outcome, results = shard.commit(group, NOBODY, positions, TOPICS, kind=kind, now_ms=0)
    assert not any(results)
    return outcome


def joined(shard: Shard, group: str, new_id: str = "m", now_ms: int = 0) -> Outcome:
    return shard.join(group, member(), "token", new_id=new_id, now_ms=now_ms, wall_ms=now_ms)


def copy_of(changes: list[Change]) -> Shard:
    """The shard as another coordinator reads it from the log."""
    other = Shard(LIMITS)
    for change in changes:
        found = decode(*encode(change))
        assert found is not None
        other.apply(found)
    other.resume(0)
    return other


def picture(shard: Shard) -> dict[str, object]:
    return {
        name: (shard.group(name).facts, shard.group(name).kind, shard.positions(name, []))
        for name in shard.names()
    }


def test_positions_are_stored_with_the_id_of_the_topic_and_refused_one_by_one() -> None:
    shard = Shard(LIMITS)
    outcome, results = shard.commit(
        "g",
        NOBODY,
        [asked(T0, 5), asked(TopicPartition("gone", 0), 1)],
        TOPICS,
        kind="consumer",
        now_ms=0,
    )
    assert results[0] is None
    assert isinstance(results[1], UnknownTopic)
    assert shard.positions("g", []) == [(T0, Position(5, -1, "id-t", "", 100))]
    assert shard.positions("other", [T1]) == [(T1, None)]
    assert picture(copy_of(outcome.changes)) == picture(shard)


def test_a_member_joins_and_its_generation_guards_its_commits() -> None:
    shard = Shard(LIMITS)
    outcome = joined(shard, "g")
    ((_, answer),) = outcome.answers
    assert isinstance(answer, Joined)
    synced = shard.sync("g", Caller("m", "", 1), {"m": b"all"}, "s", now_ms=0, wall_ms=0)
    assert shard.heartbeat("g", Caller("m", "", 1), now_ms=0) == 1
    found, _ = shard.commit(
        "g", Caller("m", "", 1), [asked(T0, 1)], TOPICS, kind="consumer", now_ms=0
    )
    for caller in (NOBODY, Caller("m", "", 2), Caller("x", "", 1)):
        with pytest.raises(TailraceError):
            shard.commit("g", caller, [asked(T0, 9)], TOPICS, kind="consumer", now_ms=0)
    changes = [*outcome.changes, *synced.changes, *found.changes]
    assert picture(copy_of(changes)) == picture(shard)
    with pytest.raises(GroupNotEmpty):
        shard.delete("g")
    with pytest.raises(GroupNotEmpty):
        shard.delete_positions("g", [T0])


def test_a_session_ends_by_the_clock_of_the_shard() -> None:
    shard = Shard(LIMITS)
    joined(shard, "g")
    shard.sync("g", Caller("m", "", 1), {}, "s", now_ms=0, wall_ms=0)
    assert shard.next_due_ms() <= 10_000
    shard.heartbeat("g", Caller("m", "", 1), now_ms=9_000)
    assert shard.tick(now_ms=10_000, wall_ms=0).changes == []
    assert shard.next_due_ms() == 19_000
    shard.tick(now_ms=19_000, wall_ms=0)
    assert shard.group("g").facts.phase is Phase.EMPTY
    assert shard.next_due_ms() == NEVER_MS


def test_members_leave_each_with_its_own_answer() -> None:
    shard = Shard(LIMITS)
    joined(shard, "g")
    outcome, results = shard.leave("g", [Caller("x"), Caller("m")], now_ms=0, wall_ms=0)
    assert isinstance(results[0], UnknownMember)
    assert results[1] is None
    assert shard.group("g").is_empty
    assert outcome.changes
    _, results = shard.leave("nobody", [Caller("m")], now_ms=0, wall_ms=0)
    assert isinstance(results[0], UnknownMember)


def test_a_group_that_is_deleted_leaves_nothing() -> None:
    shard = Shard(LIMITS)
    changes = commit(shard, "g", asked(T0, 5), asked(T1, 6)).changes
    changes += joined(shard, "g").changes
    changes += shard.leave("g", [Caller("m")], now_ms=0, wall_ms=0)[0].changes
    changes += shard.delete("g").changes
    assert shard.names() == []
    assert copy_of(changes).names() == []
    with pytest.raises(GroupNotFound):
        shard.delete("g")


def test_positions_are_deleted_one_by_one() -> None:
    shard = Shard(LIMITS)
    changes = commit(shard, "g", asked(T0, 5), asked(T1, 6)).changes
    outcome, results = shard.delete_positions("g", [T0, TopicPartition("x", 0)])
    assert results == [None, None]
    assert shard.positions("g", []) == [(T1, Position(6, -1, "id-t", "", 100))]
    assert picture(copy_of(changes + outcome.changes)) == picture(shard)


def test_old_positions_and_those_of_gone_topics_expire() -> None:
    shard = Shard(LIMITS)
    commit(shard, "g", asked(T0, 5))
    assert shard.expire([], wall_ms=1_100).changes == []
    assert len(shard.expire([], wall_ms=1_101).changes) == 1
    assert shard.names() == []
    commit(shard, "g", asked(T0, 5))
    (meant,) = shard.missing({})
    assert shard.missing(TOPICS) == []
    assert shard.expire([meant._replace(topic_id="another")], wall_ms=0).changes == []
    assert len(shard.expire([meant], wall_ms=0).changes) == 1
    joined(shard, "h")
    shard.leave("h", [Caller("m")], now_ms=0, wall_ms=0)
    assert shard.expire([], wall_ms=1_000).changes == []
    assert shard.expire([], wall_ms=1_001).changes
    assert shard.names() == []


def test_f29_without_a_time_that_is_believed_no_position_and_no_group_is_old() -> None:
    shard = Shard(LIMITS)
    commit(shard, "g", asked(T0, 5))
    joined(shard, "h")
    shard.leave("h", [Caller("m")], now_ms=0, wall_ms=0)
    assert shard.expire([], wall_ms=None).changes == []
    assert shard.names() == ["g", "h"]
    (meant,) = shard.missing({})
    assert len(shard.expire([meant], wall_ms=None).changes) == 1, "a deletion on record needs none"


def test_positions_of_a_group_with_members_do_not_expire() -> None:
    shard = Shard(LIMITS)
    commit(shard, "g", asked(T0, 5))
    joined(shard, "g")
    assert shard.expire([], wall_ms=9_000).changes == []


def test_a_reader_is_known_as_one_until_somebody_joins() -> None:
    shard = Shard(LIMITS)
    commit(shard, "r", asked(T0, 5, READER), kind=READER)
    assert shard.group("r").kind == READER
    joined(shard, "r")
    assert shard.group("r").kind == "consumer"


def test_limits_have_names() -> None:
    shard = Shard(LIMITS)
    for number in range(3):
        commit(shard, f"g{number}", asked(T0, 1))
    with pytest.raises(LimitReached, match=r"groups\.max"):
        commit(shard, "more", asked(T0, 1))
    with pytest.raises(LimitReached):
        joined(shard, "more")
    slow = Shard(ShardLimits(group=GroupLimits(initial_delay_ms=1_000), joins_max=2))
    joined(slow, "g", "a")
    joined(slow, "g", "b")
    with pytest.raises(LimitReached, match="wait already"):
        joined(slow, "g", "c")


@pytest.mark.parametrize("name", ["", "x" * 256, "a\nb"])
def test_names_that_cannot_be(name: str) -> None:
    with pytest.raises(InvalidGroup):
        joined(Shard(LIMITS), name)
    with pytest.raises(InvalidGroup):
        commit(Shard(LIMITS), name, asked(T0, 1))


def test_requests_that_make_no_sense() -> None:
    shard = Shard(LIMITS)
    for who in (member(session_ms=10), member(session_ms=10**9)):
        with pytest.raises(InvalidSessionTimeout):
            shard.join("g", who, "t", new_id="m", now_ms=0, wall_ms=0)
    nothing = Member(
        member_id="", session_timeout_ms=5_000, rebalance_timeout_ms=5_000, protocols=()
    )
    with pytest.raises(InvalidRequest):
        shard.join("g", nothing, "t", new_id="m", now_ms=0, wall_ms=0)
    with pytest.raises(InvalidRequest):
        commit(shard, "g", kind="other")
    assert len(shard) == 0
    ((_, answer),) = shard.join("g", member("old"), "t", new_id="m", now_ms=0, wall_ms=0).answers
    assert isinstance(answer, UnknownMember)
    ((_, answer),) = shard.sync("g", Caller("old"), {}, "t", now_ms=0, wall_ms=0).answers
    assert isinstance(answer, UnknownMember)
    with pytest.raises(UnknownMember):
        shard.heartbeat("g", Caller("old"), now_ms=0)
    with pytest.raises(UnknownMember):
        shard.commit("g", Caller("old", "", 3), [], TOPICS, kind="consumer", now_ms=0)
    assert shard.forget("g", "t", now_ms=0, wall_ms=0) == Outcome()


def test_an_owner_is_remembered_by_its_epoch() -> None:
    shard = Shard(LIMITS)
    shard.apply(ShardTaken(1, 5))
    shard.apply(ShardTaken(2, 4))
    assert shard.epoch == 5


@given(st.integers(0, 2**32))
def test_a_shard_that_is_read_again_is_the_same(seed: int) -> None:
    rng = random.Random(seed)
    shard = Shard(ShardLimits(group=GroupLimits(initial_delay_ms=0)))
    changes: list[Change] = []
    now_ms = 0
    for number in range(30):
        group = rng.choice("ab")
        now_ms += rng.choice([0, 0, 3_000])
        act = rng.randrange(6)
        outcome = shard.tick(now_ms=now_ms, wall_ms=now_ms)
        changes += outcome.changes
        try:
            if act == 0:
                outcome = shard.join(
                    group, member(), number, new_id=f"m{number}", now_ms=now_ms, wall_ms=now_ms
                )
            elif act == 1:
                facts = shard.group(group).facts
                outcome = shard.sync(
                    group,
                    Caller(facts.leader, "", facts.generation),
                    {},
                    number,
                    now_ms=now_ms,
                    wall_ms=now_ms,
                )
            elif act == 2:
                who = rng.choice([*shard.group(group).facts.members, "x"])
                outcome, _ = shard.leave(group, [Caller(who)], now_ms=now_ms, wall_ms=now_ms)
            elif act == 3:
                now = shard.group(group).facts if group in shard.names() else None
                caller = NOBODY if now is None else Caller(now.leader, "", now.generation)
                outcome, _ = shard.commit(
                    group, caller, [asked(T0, number)], TOPICS, kind="consumer", now_ms=now_ms
                )
            elif act == 4:
                outcome, _ = shard.delete_positions(group, [T0])
            else:
                outcome = shard.delete(group)
        except TailraceError:
            continue
        changes += outcome.changes
    assert picture(copy_of(changes)) == picture(shard)
