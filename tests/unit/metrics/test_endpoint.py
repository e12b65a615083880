from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tailrace.clock import ManualClock
from tailrace.metrics import endpoint as module
from tailrace.metrics.common import NetworkView, StoreView
from tailrace.metrics.endpoint import observing
from tailrace.metrics.families import Page, gauge
from tailrace.metrics.http import HEADER_BYTES_MAX
from tailrace.metrics.pulse import LIVE_MAX_MS

DEPTH = gauge("depth", "How deep it is.", "where")


class _Service:
    """A service that is ready when it is told to be."""

    role = "broker"
    number = 3

    def __init__(self) -> None:
        self.trouble = ""
        self.ran = False

    def why_not_ready(self) -> str:
        return self.trouble

    def store_view(self) -> StoreView:
        return StoreView(silence_ms=10)

    def network_view(self) -> NetworkView:
        return NetworkView()

    async def run(self) -> None:
        self.ran = True

    async def fill(self, page: Page) -> None:
        page.put(DEPTH, 42, 'a "deep" place')


class _Served:
    def __init__(self, service: _Service, clock: ManualClock, port: int, said: list[str]) -> None:
        self.service = service
        self.clock = clock
        self.port = port
        self.said = said

    async def get(self, path: str) -> tuple[int, str]:
        return await self.send(f"GET {path} HTTP/1.1\r\nHost: here\r\n\r\n".encode())

    async def send(self, sent: bytes) -> tuple[int, str]:
        async with asyncio.timeout(20):
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
            writer.write(sent)
            answer = b""
            # Who is cut may be told nothing.
            with suppress(ConnectionResetError):
                answer = await reader.read()
            writer.close()
        head, _, body = answer.partition(b"\r\n\r\n")
        return int(head.split(b" ")[1]) if head else 0, body.decode()


@asynccontextmanager
async def _serving() -> AsyncGenerator[_Served, None]:
    sock = socket.create_server(("127.0.0.1", 0))
    said: list[str] = []
    served = _Served(_Service(), ManualClock(), sock.getsockname()[1], said)
    async with observing(served.service, served.clock, sock, said.append):
        yield served


async def test_a_scrape_shows_the_service_and_its_process() -> None:
    async with _serving() as served:
        await served.get("/metrics")
        status, text = await served.get("/metrics")
        assert status == 200
        found = {
            (each.name, *each.labels.values()): each.value
            for family in text_string_to_metric_families(text)
            for each in family.samples
        }
        assert found[("tailrace_depth", 'a "deep" place')] == 42
        assert found[("tailrace_scrapes_total",)] == 1
        assert found[("tailrace_ready",)] == 1
        assert found[("process_resident_memory_bytes",)] > 1_000_000
        assert served.service.ran
        assert served.said == [f"metrics on http://127.0.0.1:{served.port}/metrics"]


async def test_ready_says_why_not_while_it_lives_all_the_same() -> None:
    async with _serving() as served:
        assert await served.get("/readyz") == (200, "ok\n")
        served.service.trouble = "its logs are being recovered"
        assert await served.get("/readyz") == (503, "its logs are being recovered\n")
        assert await served.get("/livez") == (200, "ok\n")
        _, text = await served.get("/metrics")
        assert "\ntailrace_ready 0.0\n" in text


async def test_a_loop_that_does_not_tick_does_not_live() -> None:
    async with _serving() as served:
        served.clock.advance(LIVE_MAX_MS + 1)
        status, text = await served.get("/livez")
        assert (status, "has not ticked" in text) == (503, True)
        assert (await served.get("/readyz"))[0] == 503


async def test_what_else_is_asked_for_is_refused() -> None:
    async with _serving() as served:
        assert (await served.get("/secrets"))[0] == 404
        assert (await served.send(b"POST /metrics HTTP/1.1\r\n\r\n"))[0] == 405
        assert await served.send(b"HEAD /metrics HTTP/1.1\r\n\r\n") == (200, "")
        too_long = b"GET /metrics HTTP/1.1\r\nCookie: " + b"c" * HEADER_BYTES_MAX + b"\r\n\r\n"
        assert (await served.send(too_long))[0] in {0, 431}


async def test_connections_and_their_time_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CONNECTIONS_MAX", 2)
    monkeypatch.setattr(module, "REQUEST_MS", 300)
    async with _serving() as served, asyncio.timeout(20):
        silent = [await asyncio.open_connection("127.0.0.1", served.port) for _ in range(2)]
        while (await served.get("/livez"))[0] != 0:
            pass
        for reader, writer in silent:
            # Whoever says nothing is cut.
            with suppress(ConnectionResetError):
                assert await reader.read() == b""
            writer.close()
        assert await served.get("/livez") == (200, "ok\n")


async def test_open_connections_do_not_hold_up_the_end() -> None:
    async with asyncio.timeout(20):
        async with _serving() as served:
            reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
            writer.write(b"GET /met")
            await served.get("/livez")
        with suppress(ConnectionResetError):
            assert await reader.read() == b""
        writer.close()


async def test_without_a_socket_nothing_is_served() -> None:
    said: list[str] = []
    async with observing(_Service(), ManualClock(), None, said.append):
        assert said == []
