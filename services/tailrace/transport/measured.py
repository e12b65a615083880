"""A network that counts what its servers are asked: calls and how long they took, and streams.

It changes nothing of what is asked and answered, and adds health checks and reflection, which are
not counted. Nothing is counted per message of a stream.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from tailrace.clock import Clock
from tailrace.metrics.common import NetworkView
from tailrace.metrics.values import Calls
from tailrace.transport.rpc import Channel, Handler, Kind, Method, Network, Probe, Server


class MeasuredNetwork:
    """A Network in front of another one."""

    def __init__(
        self,
        network: Network,
        clock: Clock,
        connections: Callable[[], tuple[int, int]] = lambda: (0, 0),
    ) -> None:
        """`connections`: how many the servers have, and how many they refused so far."""
        self._network = network
        self._clock = clock
        self._connections = connections
        self._calls: dict[str, Calls] = {}
        self._opened: Counter[str] = Counter()
        self._open: Counter[str] = Counter()
        # Why the service is not ready, as health checks are told; empty: it is. Set before `serve`.
        self.why_not_ready: Callable[[], str] = str

    def view(self) -> NetworkView:
        connected, refused = self._connections()
        return NetworkView(
            calls=dict(self._calls),
            opened=dict(self._opened),
            open=dict(self._open),
            connections=connected,
            refused=refused,
        )

    def channel(self, address: str) -> Channel:
        return self._network.channel(address)

    async def serve(self, address: str, handlers: Mapping[Method[Any, Any], Handler]) -> Server:
        measured = {
            method: self._timed(method, handler)
            if method.kind is Kind.UNARY
            else self._counted(method, handler)
            for method, handler in handlers.items()
        }
        return await self._network.serve(address, {**self._introspection(handlers), **measured})

    def _introspection(
        self, handlers: Mapping[Method[Any, Any], Handler]
    ) -> Mapping[Method[Any, Any], Handler]:
        """Health and reflection, which are not counted."""
        from tailrace.transport.introspection import introspection  # noqa: PLC0415 - servers only.

        return introspection(handlers, self.why_not_ready)

    async def probe(self, address: str, *, timeout_ms: int) -> Probe:
        return await self._network.probe(address, timeout_ms=timeout_ms)

    def _timed(self, method: Method[Any, Any], handler: Handler) -> Handler:
        calls = self._calls[_short(method)] = Calls()

        async def timed(request: Any) -> Any:
            began_ms = self._clock.monotonic_ms()
            failed = True
            try:
                answer = await handler(request)
                failed = False
                return answer
            finally:
                calls.done(self._clock.monotonic_ms() - began_ms, failed=failed)

        return timed

    def _counted(self, method: Method[Any, Any], handler: Handler) -> Handler:
        name = _short(method)

        async def counted(*arguments: Any) -> None:
            self._opened[name] += 1
            self._open[name] += 1
            try:
                await handler(*arguments)
            finally:
                self._open[name] -= 1

        return counted


def _short(method: Method[Any, Any]) -> str:
    """`/tailrace.v1.BrokerService/Produce` as `BrokerService/Produce`."""
    return method.name.rpartition(".")[2]
