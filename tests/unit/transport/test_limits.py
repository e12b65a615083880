"""Connections are counted by the calls that are open on them."""

from __future__ import annotations

from tailrace.errors import TooManyConnections
from tailrace.transport.limits import SPARE_CONNECTIONS, Connections, ServerLimits
from tailrace.transport.rpc import MESSAGE_BYTES_MAX

HERE, THERE = "ipv4:10.0.0.1", "ipv6:%5B::1%5D"


def test_calls_on_one_connection_count_once() -> None:
    connections = Connections(ServerLimits(connections_max=1))
    assert connections.enter(f"{HERE}:1") is None
    assert connections.enter(f"{HERE}:1") is None
    assert len(connections) == 1
    refusal = connections.enter(f"{HERE}:2")
    assert isinstance(refusal, TooManyConnections)
    assert "max.connections=1" in str(refusal)
    connections.leave(f"{HERE}:1")
    assert connections.enter(f"{HERE}:2") is not None
    connections.leave(f"{HERE}:1")
    assert connections.enter(f"{HERE}:2") is None
    assert connections.refused == 2


def test_one_address_cannot_take_all() -> None:
    connections = Connections(ServerLimits(connections_max=10, connections_per_ip_max=2))
    assert connections.enter(f"{HERE}:1") is None
    assert connections.enter(f"{HERE}:2") is None
    refusal = connections.enter(f"{HERE}:3")
    assert refusal is not None
    assert "max.connections.per.ip=2" in str(refusal)
    assert HERE in str(refusal)
    assert connections.enter(f"{THERE}:3") is None
    connections.leave(f"{HERE}:2")
    assert connections.enter(f"{HERE}:3") is None
    for peer in (f"{HERE}:1", f"{HERE}:3", f"{THERE}:3"):
        connections.leave(peer)
    assert len(connections) == 0
    assert connections._of_address == {}


def test_the_control_plane_is_not_counted() -> None:
    connections = Connections(ServerLimits())
    assert not connections.is_counted("/tailrace.v1.BrokerControlService/Health")
    assert connections.is_counted("/tailrace.v1.BrokerService/Produce")


def test_a_message_somewhat_too_large_is_read_so_that_it_can_be_answered() -> None:
    options = dict(ServerLimits(connections_max=5, request_bytes_max=1 << 20).options())
    assert options["grpc.max_receive_message_length"] == 3 << 20
    assert options["grpc.max_allowed_incoming_connections"] == 5 + SPARE_CONNECTIONS
    options = dict(ServerLimits(request_bytes_max=MESSAGE_BYTES_MAX).options())
    assert options["grpc.max_receive_message_length"] == MESSAGE_BYTES_MAX
