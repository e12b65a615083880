"""The Network port over our own HTTP/2: what gRPC says on the wire, with batches copied once.

grpc.aio copies a message three times on its way in and twice on its way out, and takes ten times as
long for a small one (docs/adr/0025-own-http2.md). Both sides understand any other gRPC.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tailrace.transport.addresses import split_address
from tailrace.transport.budget import Budget, BudgetLimits
from tailrace.transport.http2.client import Http2Channel, SharedConnection
from tailrace.transport.probing import probe
from tailrace.transport.rpc import Handler, Method, Probe

if TYPE_CHECKING:
    from tailrace.transport.http2.server import Http2Server
    from tailrace.transport.limits import ServerLimits


class Http2Network:
    """The network of one process. All users of one address share one connection."""

    def __init__(self, limits: ServerLimits | None = None, *, idle_max: int = 0) -> None:
        """`limits`: those of its servers; without, they let in whatever comes.

        `idle_max`: so many connections stay when nobody uses them any more. Who asks the same few
        again and again would otherwise connect each time, which costs more than the question.
        """
        self._limits = limits
        self._idle_max = idle_max
        self._shared: dict[str, SharedConnection] = {}
        self._servers: list[Http2Server] = []
        # One for all servers of the process.
        self.budget = Budget(limits.budget if limits is not None else BudgetLimits())

    def channel(self, address: str) -> Http2Channel:
        split_address(address)
        shared = self._shared.get(address)
        if shared is None:
            shared = self._shared[address] = SharedConnection(address)
        shared.users += 1
        return Http2Channel(shared, lambda: self._leave(shared))

    async def serve(
        self, address: str, handlers: Mapping[Method[Any, Any], Handler]
    ) -> Http2Server:
        from tailrace.transport.http2.server import Http2Server  # noqa: PLC0415 - not for clients.

        server = Http2Server(handlers, self._limits, self.budget)
        await server.start(address)
        self._servers.append(server)
        return server

    def connections(self) -> tuple[int, int]:
        """How many connections the servers have, and how many they refused."""
        counted = [each.connections for each in self._servers if each.connections is not None]
        return sum(map(len, counted)), sum(each.refused for each in counted)

    async def probe(self, address: str, *, timeout_ms: int) -> Probe:
        return await probe(address, timeout_ms=timeout_ms)

    async def close(self) -> None:
        """Close what is still open; servers are stopped by those who started them."""
        left = list(self._shared.values())
        self._shared.clear()
        for shared in left:
            await shared.close()

    async def _leave(self, shared: SharedConnection) -> None:
        """One user less."""
        shared.users -= 1
        if self._shared.get(shared.address) is not shared:
            return
        if not shared.users:
            # The last in the line: it was used last.
            self._shared[shared.address] = self._shared.pop(shared.address)
        idle = [each for each in self._shared.values() if not each.users]
        unused = idle[: max(len(idle) - self._idle_max, 0)]
        for each in unused:
            del self._shared[each.address]
        for each in unused:
            await each.close()
