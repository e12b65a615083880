"""Speeds, CPU and waits of a round, and what they are as multiples of the ground."""

from __future__ import annotations

import pytest

from bench.figures import Better
from bench.quick.measured import Flow, Waits, flow_ratios, volume, wait_ratios, waits

FLOW = Flow(value_bytes=500_000_000, seconds=2.0, server_cpu_s=3.0, client_cpu_s=1.0)


def test_cpu_is_counted_for_a_gigabyte_of_values() -> None:
    assert FLOW.bytes_per_s == 250e6
    assert (FLOW.server_cpu_s_per_gb, FLOW.client_cpu_s_per_gb) == (6.0, 2.0)
    assert FLOW.cpu_s_per_gb == 8.0


def test_ratios_are_to_both_parts_of_the_ground() -> None:
    grpc = Flow(value_bytes=500_000_000, seconds=1.0, server_cpu_s=0.5, client_cpu_s=0.5)
    disk = Flow(value_bytes=1_000_000_000, seconds=1.0, server_cpu_s=0.0, client_cpu_s=2.0)
    assert flow_ratios(FLOW, grpc, disk) == [
        ("speed / gRPC", Better.MORE, 0.5),
        ("speed / disk", Better.MORE, 0.25),
        ("CPU / gRPC + disk", Better.LESS, 2.0),
    ]


def test_waits_are_told_in_milliseconds() -> None:
    found = waits([0.001] * 98 + [0.005] * 2)
    assert found == Waits(1.0, 5.0)
    assert [value for *_, value in wait_ratios(found, Waits(0.5, 1.0))] == [2.0, 5.0]


@pytest.mark.parametrize(("seconds", "expected"), [(1.0, 250_000_000), (0.001, 10**6), (9, 10**9)])
def test_a_volume_keeps_within_its_bounds(seconds: float, expected: int) -> None:
    assert volume(FLOW, seconds, least=10**6, most=10**9) == expected
