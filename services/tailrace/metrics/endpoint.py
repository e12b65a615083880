"""`/metrics`, `/livez` and `/readyz` of a service, on a port of their own.

It runs on the service's own event loop, so that an answer says something about that loop. What a
page shows is collected there too, at scrape time; turning it into text is left to a thread. It
is up before the service is: while logs are recovered, `/livez` is well and `/readyz` says why not.

Every connection serves one request. Limits: CONNECTIONS_MAX at a time (more are cut at once),
HEADER_BYTES_MAX, and REQUEST_MS for all of it, after which the connection is cut.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Final, Protocol

from prometheus_client import ProcessCollector, generate_latest
from prometheus_client.metrics_core import Metric

from tailrace import __version__
from tailrace.clock import Clock
from tailrace.metrics.common import (
    Identity,
    NetworkView,
    ProcessView,
    StoreView,
    put_common,
)
from tailrace.metrics.families import Page
from tailrace.metrics.http import HEADER_BYTES_MAX, Answer, Request, parse, said
from tailrace.metrics.pulse import Pulse
from tailrace.metrics.values import Histogram
from tailrace.metrics.watchdog import Watchdog
from tailrace.runtime import Tasks

CONNECTIONS_MAX: Final = 32
REQUEST_MS: Final = 10_000
# The text format that every Prometheus reads.
CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


class Observed(Protocol):
    """A service, as its endpoint asks it."""

    role: str
    number: int

    def why_not_ready(self) -> str:
        """Why the service is not ready, in a few words; empty: it is."""

    def store_view(self) -> StoreView: ...

    def network_view(self) -> NetworkView: ...

    async def run(self) -> None:
        """What has to go on between two scrapes; it may end."""

    async def fill(self, page: Page) -> None:
        """What this service shows besides what all of them do."""


class Endpoint:
    """Serves the three pages of one service."""

    def __init__(
        self, observed: Observed, pulse: Pulse, clock: Clock, watchdog: Watchdog | None = None
    ) -> None:
        self._watchdog = watchdog
        self._observed = observed
        self._pulse = pulse
        self._clock = clock
        self._process = ProcessCollector(registry=None)
        self._open: dict[asyncio.StreamWriter, None] = {}
        self._server: asyncio.Server | None = None
        self._scraping = asyncio.Lock()
        self._scrapes = 0
        self._last_scrape_ms = 0
        self._who = Identity(role=observed.role, number=observed.number, version=__version__)

    async def start(self, sock: socket.socket) -> None:
        """Listen on a socket, which is closed with the server."""
        self._server = await asyncio.start_server(self._serve, sock=sock, limit=HEADER_BYTES_MAX)

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for writer in list(self._open):
            writer.transport.abort()
        if self._server is not None:
            await self._server.wait_closed()

    async def answer(self, request: Request) -> Answer:
        """The page that is asked for."""
        if request.path == "/livez":
            return _verdict(self._pulse.trouble())
        if request.path == "/readyz":
            return _verdict(self._pulse.trouble() or self._observed.why_not_ready())
        if request.path == "/metrics":
            return await self._scrape()
        return said(404, "there are /metrics, /livez and /readyz")

    async def _scrape(self) -> Answer:
        async with self._scraping:
            began_ms = self._clock.monotonic_ms()
            metrics = [*self._process.collect(), *await self._collect()]
            text = await asyncio.to_thread(rendered, metrics)
            self._scrapes += 1
            self._last_scrape_ms = self._clock.monotonic_ms() - began_ms
            return Answer(200, text, CONTENT_TYPE)

    async def _collect(self) -> list[Metric]:
        page = Page()
        process = ProcessView(
            is_ready=not self._observed.why_not_ready(),
            wall_ms=self._clock.wall_ms(),
            lateness=self._pulse.lateness,
            worst_ms=self._pulse.worst_ms,
            scrapes=self._scrapes,
            last_scrape_ms=self._last_scrape_ms,
            stalls=Histogram() if self._watchdog is None else self._watchdog.stalls,
            stall_worst_ms=0 if self._watchdog is None else self._watchdog.worst_ms,
        )
        store, network = self._observed.store_view(), self._observed.network_view()
        put_common(page, self._who, process, store, network)
        await self._observed.fill(page)
        return page.metrics()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._open) >= CONNECTIONS_MAX:
            writer.transport.abort()
            return
        self._open[writer] = None
        # Who breaks off, says nothing or takes nothing is cut; there is nobody to tell.
        with suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
            try:
                async with asyncio.timeout(REQUEST_MS / 1_000):
                    writer.write(await self._answered(reader))
                    await writer.drain()
                    writer.close()
                    await writer.wait_closed()
            finally:
                del self._open[writer]
                writer.transport.abort()

    async def _answered(self, reader: asyncio.StreamReader) -> bytes:
        try:
            header = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            return said(431, f"a request has at most {HEADER_BYTES_MAX} bytes").encoded()
        request = parse(header)
        if isinstance(request, Answer):
            return request.encoded()
        return (await self.answer(request)).encoded(head_only=request.head_only)


@asynccontextmanager
async def observing(
    observed: Observed,
    clock: Clock,
    sock: socket.socket | None,
    say: Callable[[str], None],
    watchdog: Watchdog | None = None,
) -> AsyncGenerator[None, None]:
    """Serve the pages of a service while the body runs; without a socket, nothing."""
    if sock is None:
        yield
        return
    pulse = Pulse(clock)
    endpoint = Endpoint(observed, pulse, clock, watchdog)
    tasks = Tasks(lambda name, error: say(f"{name} failed: {error!r}"))
    tasks.spawn("pulse", pulse.run())
    tasks.spawn("observation", observed.run())
    await endpoint.start(sock)
    host, port = sock.getsockname()[:2]
    say(f"metrics on http://{host}:{port}/metrics")
    try:
        yield
    finally:
        await endpoint.stop()
        await tasks.close()


def rendered(metrics: list[Metric]) -> bytes:
    """The page as text."""
    return generate_latest(_Collected(metrics))


class _Collected:
    """Metrics that are there already, where prometheus-client expects to collect them."""

    def __init__(self, metrics: list[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> list[Metric]:
        return self._metrics


def _verdict(trouble: str) -> Answer:
    return said(503, trouble) if trouble else said(200, "ok")
