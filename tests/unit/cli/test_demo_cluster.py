"""The parts of the demo that need no cluster; tests/integration/test_dev.py runs all of it."""

from __future__ import annotations

from random import Random

from tailrace.cli.connecting import Connection
from tailrace.cli.demo_cluster import Flow
from tailrace.clock import ManualClock
from tailrace.transport.grpc_network import GrpcNetwork


def _flow() -> Flow:
    return Flow(Connection(("a:1",), GrpcNetwork(), ManualClock(), Random(), 1_000))


def test_the_longest_wait_counts_from_the_moment_that_matters() -> None:
    flow = _flow()
    # (sent, acknowledged): one before, one across and one after the moment.
    flow.waits_ms = [(0, 900), (900, 1_100), (1_010, 1_200)]
    assert flow.longest_wait_ms(1_000) == 190
    assert flow.longest_wait_ms(0) == 900
    assert flow.longest_wait_ms(2_000) == 0
