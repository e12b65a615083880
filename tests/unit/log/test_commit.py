"""Group commit: who is released by which flush."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.errors import InvariantViolation, LimitReached, LogClosed, StorageError
from tailrace.log.commit import GroupCommit


def test_nothing_waits_nothing_begins() -> None:
    commit: GroupCommit[str] = GroupCommit()
    assert commit.begin() is None
    assert not commit.flushing
    assert commit.durable_end == 0
    assert commit.failure is None


def test_one_flush_serves_all_who_wait() -> None:
    commit: GroupCommit[str] = GroupCommit()
    commit.request(10, "a")
    commit.request(30, "b")
    commit.request(20, "c")
    assert commit.begin() == 30
    assert commit.flushing
    assert commit.finish(30) == ["a", "b", "c"]
    assert commit.durable_end == 30
    assert len(commit) == 0
    assert commit.begin() is None


def test_one_flush_at_a_time() -> None:
    commit: GroupCommit[str] = GroupCommit()
    commit.request(10, "a")
    assert commit.begin() == 10
    commit.request(20, "b")
    assert commit.begin() is None
    assert commit.finish(10) == ["a"]
    assert commit.begin() == 20
    assert commit.finish(20) == ["b"]


def test_a_flush_that_saved_more_releases_latecomers_too() -> None:
    commit: GroupCommit[str] = GroupCommit()
    commit.request(10, "a")
    commit.begin()
    commit.request(20, "b")
    commit.request(30, "c")
    commit.request(15, "d")
    assert commit.finish(20) == ["a", "b", "d"]
    assert commit.begin() == 30


def test_a_flush_cannot_fall_short_or_come_from_nowhere() -> None:
    commit: GroupCommit[str] = GroupCommit()
    with pytest.raises(InvariantViolation, match="never began"):
        commit.finish(10)
    commit.request(10, "a")
    commit.begin()
    with pytest.raises(InvariantViolation, match="flushed up to 9, asked for 10"):
        commit.finish(9)


def test_the_durable_end_never_falls() -> None:
    commit: GroupCommit[str] = GroupCommit(durable_end=100)
    commit.request(50, "retry of something old")
    assert commit.begin() == 50
    assert commit.finish(60) == ["retry of something old"]
    assert commit.durable_end == 100


def test_a_failed_flush_fails_everyone_for_good() -> None:
    commit: GroupCommit[str] = GroupCommit()
    commit.request(10, "a")
    commit.begin()
    commit.request(20, "b")
    error = StorageError("fsync: input/output error")
    assert commit.fail(error) == ["a", "b"]
    assert commit.failure is error
    assert commit.begin() is None
    with pytest.raises(StorageError) as raised:
        commit.request(30, "c")
    assert raised.value is error
    assert commit.finish(20) == []
    assert commit.durable_end == 0
    assert commit.fail(LogClosed("closed")) == []
    assert commit.failure is error


def test_the_number_of_waiters_is_bounded() -> None:
    commit: GroupCommit[int] = GroupCommit(waiters_max=2)
    commit.request(1, 1)
    commit.request(2, 2)
    with pytest.raises(LimitReached, match="2 appends"):
        commit.request(3, 3)
    commit.begin()
    assert commit.finish(2) == [1, 2]
    commit.request(3, 3)


def test_truncation_returns_those_whose_data_is_gone() -> None:
    commit: GroupCommit[str] = GroupCommit(durable_end=40)
    commit.request(45, "a")
    commit.request(55, "b")
    commit.request(50, "c")
    assert commit.truncate(50) == ["b"]
    assert commit.durable_end == 40
    assert commit.begin() == 50
    assert commit.truncate(30) == ["a", "c"]
    assert commit.durable_end == 30


def test_a_flush_from_before_a_truncation_says_nothing_of_what_came_after() -> None:
    commit: GroupCommit[str] = GroupCommit()
    commit.request(50, "old")
    assert commit.begin() == 50
    assert commit.truncate(30) == ["old"]
    assert commit.truncate(35) == []
    commit.request(40, "new data at 30")
    commit.request(30, "old data below 30")
    assert commit.finish(50) == ["old data below 30"]
    assert commit.durable_end == 30
    assert commit.begin() == 40
    assert commit.finish(40) == ["new data at 30"]


@given(data=st.data())
def test_every_waiter_comes_back_once_and_not_too_early(data: st.DataObject) -> None:
    commit: GroupCommit[tuple[int, int]] = GroupCommit()
    # The log as a list of the serial numbers of its records; what a flush began with is saved.
    log: list[int] = []
    disk: list[int] = []
    flushing: list[int] | None = None
    serial = 0
    waiting: list[tuple[int, int]] = []
    content: dict[tuple[int, int], list[int]] = {}
    for _ in range(data.draw(st.integers(1, 40))):
        action = data.draw(st.sampled_from(["append", "begin", "finish", "truncate"]))
        if action == "append":
            serial += 1
            log.append(serial)
            waiter = (len(log), serial)
            content[waiter] = list(log)
            waiting.append(waiter)
            commit.request(len(log), waiter)
        elif action == "begin":
            target = commit.begin()
            if target is not None:
                assert flushing is None
                assert target <= len(log)
                flushing = list(log)
        elif action == "finish" and flushing is not None:
            disk, flushing = flushing, None
            for waiter in commit.finish(len(disk)):
                waiting.remove(waiter)
                # All it waited for is on the disk, the very same records.
                assert disk[: waiter[0]] == content[waiter]
        elif action == "truncate":
            end = data.draw(st.integers(0, len(log)))
            del log[end:]
            gone = commit.truncate(end)
            assert gone == [waiter for waiter in waiting if waiter[0] > end]
            waiting = [waiter for waiter in waiting if waiter not in gone]
        assert disk[: commit.durable_end] == log[: commit.durable_end]
    if flushing is not None:
        for waiter in commit.finish(len(flushing)):
            waiting.remove(waiter)
    assert commit.fail(LogClosed("closed")) == waiting
