"""Which of many lines has the earliest deadline."""

from __future__ import annotations

from collections import deque

from hypothesis import given
from hypothesis import strategies as st

from tailrace.client.deadlines import Deadlines


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
