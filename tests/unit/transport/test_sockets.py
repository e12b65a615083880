"""Sockets that do not block: how they are prepared, and how they find their way."""

from __future__ import annotations

import asyncio
import errno
import socket

import pytest

from tailrace.transport import sockets
from tailrace.transport.addresses import Resolved
from tailrace.transport.rpc import KEEPALIVE_MS, KEEPALIVE_TIMEOUT_MS
from tailrace.transport.sockets import UNSENT_BYTES_MAX, connected, prepare


def test_a_prepared_socket_sends_at_once_and_notices_silence() -> None:
    with socket.socket() as sock:
        prepare(sock)
        tcp = socket.IPPROTO_TCP
        assert not sock.getblocking()
        assert sock.getsockopt(tcp, socket.TCP_NODELAY) != 0
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) != 0
        assert sock.getsockopt(tcp, socket.TCP_NOTSENT_LOWAT) == UNSENT_BYTES_MAX
        assert sock.getsockopt(tcp, socket.TCP_KEEPIDLE) * 1_000 == KEEPALIVE_MS
        silence_ms = KEEPALIVE_MS + KEEPALIVE_TIMEOUT_MS
        assert sock.getsockopt(tcp, socket.TCP_USER_TIMEOUT) == silence_ms


@pytest.mark.parametrize(
    ("host", "family"), [("127.0.0.1", socket.AF_INET), ("::1", socket.AF_INET6)]
)
async def test_both_families_are_connected_to(host: str, family: int) -> None:
    with socket.create_server((host, 0), family=family) as server:
        port = server.getsockname()[1]
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        with await connected(address) as sock:
            assert not sock.getblocking()
            assert sock.getpeername()[:2] == (host, port)


async def test_who_is_not_at_one_address_may_be_at_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        ways = [Resolved(socket.AF_INET, ("127.0.0.1", at)) for at in (1, 2, port)]

        async def resolve(_address: str) -> list[Resolved]:
            return ways

        monkeypatch.setattr(sockets, "resolve", resolve)
        with await connected("some.host:1") as sock:
            assert sock.getpeername() == ("127.0.0.1", port)
        ways.pop()
        with pytest.raises(ConnectionRefusedError):
            await connected("some.host:1")
        ways.clear()
        with pytest.raises(OSError, match="no address"):
            await connected("some.host:1")


async def test_an_unknown_name_is_told() -> None:
    with pytest.raises(socket.gaierror):
        await connected("no.such.host.invalid:1")


async def test_an_attempt_that_is_given_up_leaves_no_socket() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        fillers = [socket.socket() for _ in range(4)]
        for each in fillers:
            each.setblocking(False)
            assert each.connect_ex(full.getsockname()) in {0, errno.EINPROGRESS}
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                # Were it not closed, its warning would fail the test.
                await connected("{}:{}".format(*full.getsockname()))
        for each in fillers:
            each.close()
