"""Produces that wait: each ends once, by its offset, an error or its deadline."""

from __future__ import annotations

import pytest

from tailrace.broker.waiting import Waiting
from tailrace.errors import NotLeader, Overloaded, RequestTimedOut
from tailrace.replication.purgatory import Purgatory
from unit.broker.trio import T0, T1


async def test_the_high_watermark_releases_those_below_it() -> None:
    waiting = Waiting()
    first, second = waiting.for_offset(T0, 3, 1_000), waiting.for_offset(T0, 6, 1_000)
    other = waiting.for_offset(T1, 1, 1_000)
    waiting.moved(T0, 2)
    assert not first.done()
    waiting.moved(T0, 5)
    assert first.result() is None
    assert not second.done()
    assert not other.done()
    assert len(waiting) == 2
    waiting.moved(T0, 6)
    assert second.result() is None
    assert len(waiting) == 1


async def test_a_role_change_fails_all_of_the_partition() -> None:
    waiting = Waiting()
    outcomes = [waiting.for_offset(T0, 3, 1_000), waiting.for_offset(T0, 6, 2_000)]
    other = waiting.for_offset(T1, 1, 1_000)
    error = NotLeader("somebody else leads")
    waiting.fail(T0, error)
    assert [each.result() for each in outcomes] == [error, error]
    assert not other.done()
    waiting.fail(T0, error)
    assert len(waiting) == 1


async def test_time_ends_a_wait_once() -> None:
    waiting = Waiting()
    late, early = waiting.for_offset(T0, 3, 2_000), waiting.for_offset(T0, 6, 1_000)
    waiting.expire(999)
    assert not early.done()
    waiting.expire(1_000)
    assert isinstance(early.result(), RequestTimedOut)
    assert "offset 5" in str(early.result())
    assert not late.done()
    waiting.moved(T0, 10)
    assert late.result() is None
    waiting.expire(5_000)
    assert len(waiting) == 0


async def test_their_number_is_bounded() -> None:
    waiting = Waiting(Purgatory(produces_max=1))
    waiting.for_offset(T0, 1, 1)
    with pytest.raises(Overloaded):
        waiting.for_offset(T0, 2, 1)
