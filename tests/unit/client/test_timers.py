from __future__ import annotations

import asyncio
from collections import deque

from hypothesis import given
from hypothesis import strategies as st

from tailrace.client.timers import Deadlines, Timers


async def test_what_is_due_comes_out_in_order() -> None:
    timers: Timers[str] = Timers()
    timers.set(30, "c")
    timers.set(10, "a")
    timers.set(10, "b")
    assert [timers.pop(10), timers.pop(10), timers.pop(10)] == ["a", "b", None]
    assert timers.pop(30) == "c"
    assert timers.pop(99) is None


async def test_a_sleeper_is_woken_by_what_is_due_before_and_by_nothing_else() -> None:
    timers: Timers[str] = Timers()
    sleeping = asyncio.ensure_future(timers.sleep(0, 1_000_000))
    await asyncio.sleep(0)
    timers.wake_before(1_000_000)
    timers.set(1_000_001, "later")
    await asyncio.sleep(0.01)
    assert not sleeping.done()
    timers.set(999_999, "sooner")
    await asyncio.wait_for(sleeping, 10)
    # What was set before the sleep ends it in time.
    await asyncio.wait_for(timers.sleep(999_998, None), 10)


class Waiting:
    """A line of deadlines."""

    def __init__(self) -> None:
        self.is_watched = False
        self.deadlines: deque[int] = deque()

    def first_deadline_ms(self) -> int | None:
        return self.deadlines[0] if self.deadlines else None


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2), st.booleans())))
def test_the_earliest_deadline_of_all_lines_is_known(
    steps: list[tuple[int, int, bool]],
) -> None:
    """A step waits, puts something into a line or takes its first; now and then somebody asks."""
    lines, deadlines, now_ms = [Waiting() for _ in range(4)], Deadlines[Waiting](), 0
    for at, waits_ms, is_put in steps:
        now_ms += waits_ms
        if is_put:
            lines[at].deadlines.append(now_ms + 10)
            deadlines.watch(lines[at])
        elif lines[at].deadlines:
            lines[at].deadlines.popleft()
        if waits_ms:
            found = deadlines.first()
            firsts = [each.deadlines[0] for each in lines if each.deadlines]
            assert (None if found is None else found[0]) == min(firsts, default=None)
            assert found is None or found[1].deadlines[0] == found[0]


def test_a_line_is_known_once_however_often_it_is_empty() -> None:
    line, deadlines = Waiting(), Deadlines[Waiting]()
    for now_ms in range(100):
        line.deadlines.append(now_ms)
        deadlines.watch(line)
        assert deadlines.first() == (now_ms, line)
        line.deadlines.popleft()
        if now_ms % 3 == 0:
            assert deadlines.first() is None
    assert deadlines.first() is None
    assert not line.is_watched
