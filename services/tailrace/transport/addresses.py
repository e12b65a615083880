"""Addresses of sockets: `host:port` taken apart, resolved, and listened on.

What goes wrong is told in typed errors: a port in use is AddressInUse, an address that is none is
InvalidConfig. Nothing is known here of what travels over the sockets.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from typing import Final, NamedTuple

from tailrace.errors import AddressInUse, InvalidConfig

LISTEN_BACKLOG: Final = 256
PORT_MAX: Final = 65_535


class Resolved(NamedTuple):
    """One way to reach an address: what `socket.socket` and `connect` or `bind` need."""

    family: int
    target: tuple[str, int] | tuple[str, int, int, int] | tuple[int, bytes]


def split_address(address: str) -> tuple[str, int]:
    """Take `host:port` or `[v6]:port` apart."""
    host, colon, port = address.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise InvalidConfig(f"{address!r}: an IPv6 address stands in brackets, as in [::1]:9092")
    if not colon or not host or not (port.isascii() and port.isdigit()) or int(port) > PORT_MAX:
        raise InvalidConfig(f"{address!r} is not host:port")
    return host, int(port)


def join_address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


async def resolve(address: str, *, passive: bool = False) -> list[Resolved]:
    """Look the host up; OSError (socket.gaierror) when it has no address."""
    host, port = split_address(address)
    found = await asyncio.get_running_loop().getaddrinfo(
        host,
        port,
        type=socket.SOCK_STREAM,
        flags=socket.AI_PASSIVE if passive else 0,
    )
    return [Resolved(family, target) for family, _, _, _, target in found]


async def listening_socket(address: str) -> socket.socket:
    """Listen on the first address that the host has. The socket does not block."""
    try:
        way = (await resolve(address, passive=True))[0]
    except OSError as error:
        raise InvalidConfig(f"cannot listen on {address}: {error}") from error
    sock = socket.socket(way.family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        # Connections of an earlier life that have not quite ended must not be in the way.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(way.target)
        sock.listen(LISTEN_BACKLOG)
    except OSError as error:
        sock.close()
        raise bind_error(address, error) from error
    except BaseException:
        sock.close()
        raise
    return sock


async def metrics_socket(address: str) -> socket.socket | None:
    """Where a service serves its metrics; None where it was told nothing."""
    if not address:
        return None
    try:
        return await listening_socket(address)
    except (AddressInUse, InvalidConfig) as error:
        raise type(error)(f"metrics.listeners: {error}") from error


def bind_error(address: str, error: OSError) -> AddressInUse | InvalidConfig:
    """What a failure to listen means for whoever chose the address."""
    if error.errno == errno.EADDRINUSE:
        return AddressInUse(f"another process listens on {address}")
    return InvalidConfig(f"cannot listen on {address}: {error.strerror or error}")
