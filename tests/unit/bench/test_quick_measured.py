"""Speeds, CPU and waits of a round."""

from __future__ import annotations

import pytest

from bench.quick.measured import Flow, Waits, volume, waits

FLOW = Flow(value_bytes=500_000_000, seconds=2.0, server_cpu_s=3.0, client_cpu_s=1.0)


def test_cpu_is_counted_for_a_gigabyte_of_values() -> None:
    assert FLOW.bytes_per_s == 250e6
    assert (FLOW.server_cpu_s_per_gb, FLOW.client_cpu_s_per_gb) == (6.0, 2.0)
    assert FLOW.cpu_s_per_gb == 8.0


def test_waits_are_told_in_milliseconds() -> None:
    assert waits([0.001] * 98 + [0.005] * 2) == Waits(1.0, 5.0)


@pytest.mark.parametrize(("seconds", "expected"), [(1.0, 250_000_000), (0.001, 10**6), (9, 10**9)])
def test_a_volume_keeps_within_its_bounds(seconds: float, expected: int) -> None:
    assert volume(FLOW, seconds, least=10**6, most=10**9) == expected
