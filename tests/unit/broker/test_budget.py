"""A budget adds up, lets in who comes alone, and hints at how long the rest takes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tailrace.broker.budget import HINT_MAX_MS, HINT_MIN_MS, SPAN_MS, Budget


def test_what_is_over_the_limit_is_refused_until_there_is_room() -> None:
    budget = Budget(100)
    assert budget.admit(60)
    assert not budget.admit(41)
    assert budget.admit(40)
    assert (budget.bytes, budget.refused) == (100, 1)
    budget.release(60, 1)
    assert budget.admit(41)


def test_one_that_is_larger_than_the_limit_is_let_in_alone() -> None:
    budget = Budget(100)
    assert budget.admit(500)
    assert not budget.admit(1)
    budget.release(500, 1)
    assert budget.bytes == 0


def test_the_hint_is_the_time_for_half_of_what_is_in_hand() -> None:
    budget = Budget(1_000_000)
    assert HINT_MIN_MS <= budget.hint_ms() <= HINT_MAX_MS
    budget.admit(1_000_000)
    now_ms = 0
    for _ in range(SPAN_MS // 10):
        # 1000 bytes in 10 ms: 100,000 a second.
        now_ms += 10
        budget.release(1_000, now_ms)
        budget.admit(1_000)
    assert budget.hint_ms() == HINT_MAX_MS
    budget.release(970_000, now_ms + 1)
    assert 140 <= budget.hint_ms() <= 160
    budget.release(29_000, now_ms + 2)
    assert budget.hint_ms() == HINT_MIN_MS


@given(st.lists(st.tuples(st.integers(1, 50), st.booleans()), max_size=200), st.integers(1, 200))
def test_never_more_than_the_limit_but_for_one_alone(
    steps: list[tuple[int, bool]], limit: int
) -> None:
    budget, held = Budget(limit), list[int]()
    for now_ms, (size, comes) in enumerate(steps):
        if comes and budget.admit(size):
            held.append(size)
        elif held:
            budget.release(held.pop(), now_ms)
        assert budget.bytes == sum(held)
        assert budget.bytes <= limit or len(held) == 1
