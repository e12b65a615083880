"""The history of leader epochs, and where two logs that parted come together again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.epochs import (
    UNKNOWN_END,
    EpochHistory,
    agreed_end,
)
from tailrace.errors import InvariantViolation
from tailrace.model import NO_LEADER_EPOCH


def history(*entries: tuple[int, int]) -> EpochHistory:
    return EpochHistory(entries)


def entries_of(given: EpochHistory) -> list[tuple[int, int]]:
    return [(epoch, start) for epoch, start in given.entries]


def test_an_empty_history_knows_nothing() -> None:
    empty = EpochHistory()
    assert empty.latest == NO_LEADER_EPOCH
    assert empty.entries == ()
    assert len(empty) == 0
    assert empty.end_of(0, 10) == UNKNOWN_END
    assert empty.epoch_at(0) == NO_LEADER_EPOCH
    assert not empty.truncate_end(0)
    assert not empty.truncate_start(5)


@pytest.mark.parametrize(
    "entries",
    [[(1, 0), (1, 5)], [(2, 0), (1, 5)], [(1, 5), (2, 5)], [(1, 5), (2, 4)], [(-1, 0)], [(0, -1)]],
)
def test_entries_that_do_not_rise_are_refused(entries: list[tuple[int, int]]) -> None:
    with pytest.raises(InvariantViolation):
        EpochHistory(entries)


@pytest.mark.parametrize(
    ("epoch", "start", "changed", "after"),
    [
        (3, 20, False, [(1, 0), (3, 20)]),  # the same again
        (3, 25, False, [(1, 0), (3, 20)]),  # the same epoch goes on
        (3, 15, True, [(1, 0), (3, 15)]),  # it began earlier than known
        (3, 0, True, [(3, 0)]),
        (5, 30, True, [(1, 0), (3, 20), (5, 30)]),
        (5, 20, True, [(1, 0), (5, 20)]),  # epoch 3 wrote nothing
        (5, 10, True, [(1, 0), (5, 10)]),  # what epoch 3 wrote is gone
        (5, 0, True, [(5, 0)]),
    ],
)
def test_assign(epoch: int, start: int, changed: bool, after: list[tuple[int, int]]) -> None:
    given = history((1, 0), (3, 20))
    assert given.assign(epoch, start) is changed
    assert entries_of(given) == after


def test_an_epoch_never_falls() -> None:
    given = history((1, 0), (3, 20))
    with pytest.raises(InvariantViolation, match="epoch 2 was assigned at offset 30 after epoch 3"):
        given.assign(2, 30)
    assert entries_of(given) == [(1, 0), (3, 20)]


@pytest.mark.parametrize(("epoch", "start"), [(-1, 0), (0, -1)])
def test_assign_refuses_negative_numbers(epoch: int, start: int) -> None:
    with pytest.raises(InvariantViolation, match="neither may be negative"):
        EpochHistory().assign(epoch, start)


@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        (-1, UNKNOWN_END),
        (0, (0, 10)),  # older than all: it ended where the first begins, or before
        (2, (2, 20)),
        (3, (2, 20)),
        (4, (4, 30)),
        (6, (4, 30)),
        (7, (7, 44)),
        (8, UNKNOWN_END),
    ],
)
def test_end_of(asked: int, answer: tuple[int, int]) -> None:
    assert history((2, 10), (4, 20), (7, 30)).end_of(asked, log_end=44) == answer


@pytest.mark.parametrize(
    ("offset", "epoch"), [(0, -1), (9, -1), (10, 2), (19, 2), (20, 4), (30, 7), (999, 7)]
)
def test_epoch_at(offset: int, epoch: int) -> None:
    assert history((2, 10), (4, 20), (7, 30)).epoch_at(offset) == epoch


@pytest.mark.parametrize(
    ("offset", "after"),
    [
        (31, [(2, 10), (4, 20), (7, 30)]),
        (30, [(2, 10), (4, 20)]),
        (21, [(2, 10), (4, 20)]),
        (20, [(2, 10)]),
        (10, []),
        (0, []),
    ],
)
def test_truncate_end(offset: int, after: list[tuple[int, int]]) -> None:
    given = history((2, 10), (4, 20), (7, 30))
    assert given.truncate_end(offset) is (len(after) < 3)
    assert entries_of(given) == after


@pytest.mark.parametrize(
    ("offset", "after"),
    [
        (0, [(2, 10), (4, 20), (7, 30)]),
        (10, [(2, 10), (4, 20), (7, 30)]),
        (11, [(2, 11), (4, 20), (7, 30)]),
        (19, [(2, 19), (4, 20), (7, 30)]),
        (20, [(4, 20), (7, 30)]),
        (29, [(4, 29), (7, 30)]),
        (55, [(7, 55)]),
    ],
)
def test_truncate_start(offset: int, after: list[tuple[int, int]]) -> None:
    given = history((2, 10), (4, 20), (7, 30))
    assert given.truncate_start(offset) is (after != [(2, 10), (4, 20), (7, 30)])
    assert entries_of(given) == after


def test_a_copy_goes_its_own_way() -> None:
    original = history((1, 0))
    twin = original.copy()
    assert twin == original
    twin.assign(2, 5)
    assert twin != original
    assert entries_of(original) == [(1, 0)]
    assert original != "something else"
    assert repr(twin) == "EpochHistory(1 from 0, 2 from 5)"


@pytest.mark.parametrize(
    ("leader_epoch", "leader_end", "expected"),
    [
        (4, 40, (35, True)),  # the leader is ahead
        (4, 32, (32, True)),  # my tail is not its
        (2, 15, (15, True)),  # epoch 4 is foreign
        (2, 25, (20, True)),
        (3, 30, (20, False)),  # I lack epoch 3
        (1, 8, (8, True)),  # below all that I have
        (5, 50, (35, False)),  # not what I asked
    ],
)
def test_where_a_follower_truncates(
    leader_epoch: int, leader_end: int, expected: tuple[int, bool]
) -> None:
    mine = history((2, 10), (4, 20))
    answer = agreed_end(mine, log_end=35, leader_epoch=leader_epoch, leader_end=leader_end)
    assert answer == expected


def test_a_leader_that_does_not_know_my_epoch_is_no_reason_to_truncate() -> None:
    mine = history((2, 10))
    assert agreed_end(mine, log_end=35, leader_epoch=-1, leader_end=-1) is None
    assert agreed_end(mine, log_end=35, leader_epoch=2, leader_end=-1) is None


def test_an_empty_follower_takes_the_smaller_end() -> None:
    answer = agreed_end(EpochHistory(), log_end=35, leader_epoch=3, leader_end=20)
    assert answer == (20, True)


# A log in these tests is the list of the epochs that wrote its records: offset -> epoch.


def history_of(log: list[int]) -> EpochHistory:
    made = EpochHistory()
    for offset, epoch in enumerate(log):
        made.assign(epoch, offset)
    return made


rising_logs = st.lists(st.integers(0, 8), max_size=30).map(sorted)


@given(log=rising_logs, asked=st.integers(0, 10))
def test_end_of_agrees_with_the_log_itself(log: list[int], asked: int) -> None:
    answer = history_of(log).end_of(asked, len(log))
    if not log or asked > log[-1]:
        assert answer == UNKNOWN_END
        return
    not_above = [epoch for epoch in log if epoch <= asked]
    assert answer.end_offset == len(not_above)
    assert answer.epoch == (not_above[-1] if not_above else asked)


@given(log=rising_logs, cut=st.integers(0, 30), start=st.integers(0, 30))
def test_truncation_agrees_with_the_log_itself(log: list[int], cut: int, start: int) -> None:
    made = history_of(log)
    made.truncate_end(cut)
    assert made == history_of(log[:cut])
    made.truncate_start(start)
    kept = log[:cut]
    for offset in range(start, len(kept)):
        assert made.epoch_at(offset) == kept[offset]
    assert all(entry.start_offset >= start for entry in made.entries)
    EpochHistory(made.entries)


@st.composite
def parted_replicas(draw: st.DrawFn) -> list[list[int]]:
    """Logs of replicas after many elections, each of which made one of them the leader.

    The leader of an epoch appends to its own log; some followers copy a part of it, after they
    have truncated to what they share with it. A record's identity is its epoch and its offset.
    """
    logs: list[list[int]] = [[] for _ in range(draw(st.integers(2, 4)))]
    for epoch in range(draw(st.integers(1, 8))):
        leader = draw(st.integers(0, len(logs) - 1))
        logs[leader] += [epoch] * draw(st.integers(0, 4))
        for follower in range(len(logs)):
            if follower == leader or draw(st.booleans()):
                continue
            copied = draw(st.integers(0, 4))
            shared = common_prefix(logs[follower], logs[leader])
            logs[follower] = logs[leader][: shared + copied]
    return logs


def common_prefix(one: list[int], other: list[int]) -> int:
    length = 0
    for mine, its in zip(one, other, strict=False):
        if mine != its:
            break
        length += 1
    return length


@given(logs=parted_replicas())
def test_asking_until_settled_finds_the_longest_common_prefix(logs: list[list[int]]) -> None:
    leader, follower = logs[0], logs[1]
    next_epoch = max((epoch for log in logs for epoch in log), default=0) + 1
    leader_history = history_of(leader)
    leader_history.assign(next_epoch, len(leader))
    mine, log_end, rounds = history_of(follower), len(follower), 0
    while mine.latest != NO_LEADER_EPOCH:
        rounds += 1
        answer = leader_history.end_of(mine.latest, len(leader))
        step = agreed_end(
            mine, log_end=log_end, leader_epoch=answer.epoch, leader_end=answer.end_offset
        )
        assert step is not None
        assert step.offset <= log_end
        log_end = step.offset
        mine.truncate_end(log_end)
        if step.settled:
            break
    assert log_end == common_prefix(follower, leader)
    assert rounds <= len(history_of(follower)) + 1
