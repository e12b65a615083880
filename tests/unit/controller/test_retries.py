"""Waits grow, with jitter, up to a limit, and start over."""

from __future__ import annotations

from random import Random

from tailrace.controller.retries import Backoff


def test_waits_double_up_to_the_limit_and_start_over() -> None:
    backoff = Backoff(50, 1_000, Random(1))
    waits = [backoff.next_s() for _ in range(10)]
    for wait_s, nominal_ms in zip(waits, [50, 100, 200, 400, 800, *[1_000] * 5], strict=True):
        assert nominal_ms / 2_000 <= wait_s <= nominal_ms / 1_000
    backoff.reset()
    assert backoff.next_s() <= 0.05


def test_two_that_wait_do_not_keep_step() -> None:
    one, other = Backoff(50, 1_000, Random(1)), Backoff(50, 1_000, Random(2))
    assert one.next_s() != other.next_s()
