"""Our own HTTP/2 behind the Network port: who shares a connection, and for how long."""

from __future__ import annotations

import asyncio

from simulation.transport_contract import ECHO, TALK
from tailrace.transport.http2.network import Http2Network
from tailrace.transport.limits import ServerLimits
from unit.transport.http2.peers import HANDLERS, eventually, serving


def test_networks_of_many_loops_one_after_another() -> None:
    async def once(number: int) -> bytes:
        async with serving() as server:
            network = Http2Network()
            channel = network.channel(server.address)
            answer = await channel.call(ECHO, b"%d" % number, timeout_ms=5_000)
            await network.close()
        return answer

    assert [asyncio.run(once(n)) for n in range(5)] == [b"%d" % n for n in range(5)]


async def test_all_users_of_an_address_use_one_connection() -> None:
    async with serving() as server:
        network = Http2Network()
        channels = [network.channel(server.address) for _ in range(10)]
        await asyncio.gather(*(each.call(ECHO, b"x", timeout_ms=5_000) for each in channels))
        assert len(server._open) == 1
        await asyncio.gather(*(each.close() for each in channels))
        await eventually(lambda: not server._open)


async def test_an_idle_connection_that_stays_is_used_again() -> None:
    async with serving() as server:
        network = Http2Network(idle_max=1)
        for _ in range(3):
            channel = network.channel(server.address)
            await channel.call(ECHO, b"x", timeout_ms=5_000)
            await channel.close()
        assert len(server._open) == 1
        await network.close()
        await eventually(lambda: not server._open)


async def test_connections_are_counted_while_they_are_used() -> None:
    limited = Http2Network(ServerLimits(connections_max=1))
    server = await limited.serve("127.0.0.1:0", HANDLERS)
    network = Http2Network()
    stream = network.channel(server.address).open(TALK)
    await stream.send(b"x")
    assert await stream.recv() == b"x"
    assert limited.connections() == (1, 0)
    stream.cancel()
    await eventually(lambda: limited.connections() == (0, 0))
    await network.close()
    await server.stop(grace_ms=0)


async def test_ipv6() -> None:
    network = Http2Network()
    server = await network.serve("[::1]:0", HANDLERS)
    assert server.address.startswith("[::1]:")
    assert await network.channel(server.address).call(ECHO, b"six", timeout_ms=5_000) == b"six"
    await network.close()
    await server.stop(grace_ms=0)
