"""Sockets that do not block, as all of ours are: prepared, and connected."""

from __future__ import annotations

import asyncio
import socket
from typing import Final

from tailrace.transport.addresses import resolve
from tailrace.transport.rpc import KEEPALIVE_MS, KEEPALIVE_TIMEOUT_MS

UNSENT_BYTES_MAX: Final = 1 << 20
"""So much waits in the kernel of what was not sent yet; then a socket is not writable."""


def prepare(sock: socket.socket) -> None:
    """Send at once, do not hoard, and notice a machine that went away without a word."""
    sock.setblocking(False)
    tcp = socket.IPPROTO_TCP
    sock.setsockopt(tcp, socket.TCP_NODELAY, 1)
    sock.setsockopt(tcp, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES_MAX)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(tcp, socket.TCP_KEEPIDLE, KEEPALIVE_MS // 1_000)
    sock.setsockopt(tcp, socket.TCP_KEEPINTVL, KEEPALIVE_TIMEOUT_MS // 1_000)
    sock.setsockopt(tcp, socket.TCP_KEEPCNT, 1)
    sock.setsockopt(tcp, socket.TCP_USER_TIMEOUT, KEEPALIVE_MS + KEEPALIVE_TIMEOUT_MS)


async def connected(address: str) -> socket.socket:
    """Try the addresses of a host, one after the other; OSError says why none answered."""
    failure: OSError | None = None
    for way in await resolve(address):
        sock = socket.socket(way.family, socket.SOCK_STREAM)
        try:
            sock.setblocking(False)
            await asyncio.get_running_loop().sock_connect(sock, way.target)
        except OSError as error:
            sock.close()
            failure = error
        except BaseException:
            sock.close()
            raise
        else:
            return sock
    raise failure or OSError("the name has no address")
