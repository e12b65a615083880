"""gRPC behind the Network port: what only it needs (the rest is in test_both_networks)."""

from __future__ import annotations

import asyncio

import pytest

from simulation.transport_contract import ECHO
from tailrace.transport import grpc_network
from tailrace.transport.grpc_network import GrpcNetwork


async def echo(request: bytes) -> bytes:
    return request


async def test_two_who_release_at_once_do_not_close_the_same_connections(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    network = GrpcNetwork(idle_max=1)
    server = await network.serve("127.0.0.1:0", {ECHO: echo})
    close = grpc_network._SharedChannel.close

    async def close_slowly(shared: grpc_network._SharedChannel) -> None:
        await asyncio.sleep(0.01)
        await close(shared)

    monkeypatch.setattr(grpc_network._SharedChannel, "close", close_slowly)
    old = [network.join(f"127.0.0.1:{port}") for port in (1, 2)]
    for each in old:
        # As one that was idle and dead when somebody came who needed it.
        each.users = 0
        network._given_up[network._shared.pop(each.address)] = None
    channels = [network.channel(server.address), network.channel("127.0.0.1:3")]
    await asyncio.gather(*(each.close() for each in channels))
    assert network._given_up == {}
    await server.stop(grace_ms=0)
