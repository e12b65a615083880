"""The port: its limits fit together, and all implementations have its shape."""

from __future__ import annotations

from simulation.network import SimHost, SimLinks
from tailrace.transport import rpc
from tailrace.transport.grpc_network import GrpcNetwork
from tailrace.transport.http2.network import Http2Network
from tailrace.transport.links import SocketLinks


def networks() -> list[type[rpc.Network]]:
    """mypy checks what this says."""
    return [GrpcNetwork, Http2Network, SimHost]


def links() -> list[type[rpc.Links]]:
    return [SocketLinks, SimLinks]


def test_all_worlds_have_the_shape_of_the_port() -> None:
    for port, found in ((rpc.Network, networks()), (rpc.Links, links())):
        wanted = [name for name in vars(port) if not name.startswith("_")]
        assert [name for each in found for name in wanted if not hasattr(each, name)] == []


def test_a_frame_can_carry_what_a_message_can() -> None:
    assert rpc.LINK_PAYLOAD_BYTES_MAX >= rpc.MESSAGE_BYTES_MAX
    # Lengths on the wire have 32 bits.
    assert rpc.LINK_PAYLOAD_BYTES_MAX + rpc.LINK_HEADER_BYTES_MAX < 2**32


def test_a_method_is_known_by_identity() -> None:
    def make() -> rpc.Method[bytes, bytes]:
        return rpc.Method("/x/Y", rpc.Kind.UNARY, bytes, bytes, bytes, bytes)

    one, other = make(), make()
    assert one != other
    assert len({one: 1, other: 2}) == 2
