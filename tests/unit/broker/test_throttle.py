"""A rate of bytes: bursts are small, debts are paid, the rate holds over time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tailrace.broker.throttle import BURST_MS, Throttle


def test_without_a_rate_anything_goes() -> None:
    throttle = Throttle()
    assert throttle.room(0) is None
    throttle.take(10**12, 0)
    assert throttle.wait_ms() == 0


def test_a_burst_then_a_wait_then_some_more() -> None:
    throttle = Throttle(10_000)
    assert throttle.room(0) == 1_000
    throttle.take(3_000, 0)
    assert throttle.room(0) == 0
    assert throttle.wait_ms() == 201
    assert throttle.room(201) == 10
    # Nothing is saved up beyond the burst.
    assert throttle.room(60_000) == 1_000


def test_the_rate_can_change_and_debts_stay() -> None:
    throttle = Throttle(1_000)
    throttle.room(0)
    throttle.take(1_100, 0)
    throttle.set_rate(10_000)
    assert throttle.room(50) == 0
    assert throttle.room(101) == 10
    throttle.set_rate(None)
    assert throttle.rate is None
    assert throttle.room(102) is None


@given(
    rate=st.integers(1_024, 10**9),
    steps=st.lists(st.tuples(st.integers(0, 500), st.integers(1, 10**7)), max_size=50),
)
def test_no_more_than_the_rate_and_one_batch_goes(rate: int, steps: list[tuple[int, int]]) -> None:
    throttle, now_ms, sent, largest = Throttle(rate), 0, 0, 0
    for wait_ms, size in steps:
        now_ms += wait_ms
        if throttle.room(now_ms):
            throttle.take(size, now_ms)
            sent += size
            largest = max(largest, size)
    assert sent <= rate * (now_ms + BURST_MS) / 1_000 + largest + 1


@given(rate=st.integers(1_024, 10**9), size=st.integers(1, 10**7))
def test_who_waits_as_long_as_it_is_told_finds_room(rate: int, size: int) -> None:
    throttle = Throttle(rate)
    assert throttle.room(0)
    throttle.take(size, 0)
    assert throttle.room(throttle.wait_ms())
