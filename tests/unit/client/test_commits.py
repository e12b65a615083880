"""Commits, one after the other: an older position never comes after a newer one."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tailrace.client.commits import Commits, Offsets, offsets_of
from tailrace.client.group_member import OffsetAndMetadata
from tailrace.errors import CommitFailed, InvalidRequest, TailraceError
from tailrace.model import TopicPartition
from tailrace.runtime import Tasks

A = TopicPartition("t", 0)


class Coordinator:
    """Takes commits slowly, and refuses some."""

    def __init__(self) -> None:
        self.taken: list[int] = []
        self.under_way = 0
        self.refuses = False
        self.failures: list[str] = []
        self.committed: list[Offsets] = []
        self.tasks = Tasks(lambda name, error: self.failures.append(f"{name}: {error!r}"))
        self.commits = Commits(
            self.commit, self.tasks, timeout_ms=1_000, on_commit=self.committed.append
        )

    async def commit(self, offsets: Offsets, *, timeout_ms: int) -> None:
        self.under_way += 1
        assert (self.under_way, timeout_ms) == (1, 1_000)
        await asyncio.sleep(0.01)
        self.under_way -= 1
        if self.refuses:
            raise CommitFailed("no")
        self.taken.append(offsets[A].offset)


def at(offset: int) -> Offsets:
    return {A: OffsetAndMetadata(offset)}


async def test_commits_go_in_order_and_those_that_wait_go_together() -> None:
    coordinator, told = Coordinator(), []
    commits = coordinator.commits
    for offset in range(1, 6):
        commits.later(at(offset), lambda offsets, error: told.append((offsets[A].offset, error)))
        await asyncio.sleep(0)
    await commits.now(at(6))
    assert coordinator.taken == [1, 5, 6], "one on its way, one that is next, and ours"
    assert told == [(offset, None) for offset in range(1, 6)]
    assert [each[A].offset for each in coordinator.committed] == [1, 5, 6]
    await commits.now({})
    assert coordinator.failures == []


async def test_a_refusal_is_told() -> None:
    coordinator, told = Coordinator(), []
    coordinator.refuses = True

    def tell(_: Any, error: TailraceError | None) -> None:
        told.append(error)

    coordinator.commits.later(at(1), tell)
    await coordinator.commits.drain()
    assert isinstance(told[0], CommitFailed)
    with pytest.raises(CommitFailed):
        await coordinator.commits.now(at(2))
    assert (coordinator.commits.failures, coordinator.committed) == (2, [])


async def test_what_was_lost_is_not_committed_any_more() -> None:
    coordinator = Coordinator()
    coordinator.commits.later(at(1))
    await asyncio.sleep(0.001)
    coordinator.commits.later(at(2))
    coordinator.commits.drop([A])
    await coordinator.commits.drain()
    assert coordinator.taken == [1]


def test_offsets_may_be_bare_numbers_and_nothing_else() -> None:
    first, second = TopicPartition("t", 0), TopicPartition("t", 1)
    with_more = OffsetAndMetadata(4, metadata="half a line")
    assert offsets_of({first: 3, second: with_more}) == {
        first: OffsetAndMetadata(3),
        second: with_more,
    }
    wrong: Any
    for wrong in ({first: "3"}, {("t", 0): 3}, [first], {first: None}):
        with pytest.raises(TypeError, match="offsets are"):
            offsets_of(wrong)
    with pytest.raises(InvalidRequest, match="t-0: offset -3 is below 0"):
        offsets_of({first: -3})


async def test_a_callback_that_fails_hurts_no_other_commit() -> None:
    coordinator, told = Coordinator(), []

    def fail(offsets: Offsets, error: TailraceError | None) -> None:
        raise LookupError("its own fault")

    commits = coordinator.commits
    commits.later(at(1), fail)
    commits.later(at(2), fail)
    commits.later(at(3), lambda offsets, error: told.append((offsets[A].offset, error)))
    await commits.drain()
    assert told == [(3, None)]
    await commits.now(at(4))
    assert (coordinator.taken[-1], coordinator.failures) == (4, [])
