"""A bare attempt to connect: what it says about whoever should listen there."""

from __future__ import annotations

import asyncio
import errno
import socket

from tailrace.transport.addresses import Resolved, resolve
from tailrace.transport.rpc import Probe


async def probe(address: str, *, timeout_ms: int) -> Probe:
    try:
        async with asyncio.timeout(timeout_ms / 1_000):
            found = [await _knock(way) for way in await resolve(address)]
    except (TimeoutError, OSError):
        return Probe.SILENT
    # Who is not at one of several addresses may be at another.
    for answer in (Probe.OPEN, Probe.SILENT):
        if answer in found:
            return answer
    return Probe.REFUSED if found else Probe.SILENT


async def _knock(way: Resolved) -> Probe:
    with socket.socket(way.family, socket.SOCK_STREAM) as sock:
        sock.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(sock, way.target)
        except OSError as error:
            return Probe.REFUSED if error.errno == errno.ECONNREFUSED else Probe.SILENT
    return Probe.OPEN
