"""The console's HTTP server: three files, one stream of what the cluster is like, one of records.

Read-only, and on the loopback unless told otherwise: whoever reaches it sees every record. Limits:
CONNECTIONS_MAX at a time, TAILS_MAX of them tails (more are told so), HEADER_BYTES_MAX, REQUEST_MS
until the request is read. Of what is sent one piece at a time is kept, and a browser that does not
take it within STALL_MS is cut.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import suppress
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from tailrace.console import showing
from tailrace.console.http import (
    HEADER_BYTES_MAX,
    Refusal,
    Request,
    answer,
    event,
    parse,
    refused,
    stream_head,
)
from tailrace.console.tailing import Tail, TailConsumer
from tailrace.console.watching import Watcher
from tailrace.errors import TailraceError

CONNECTIONS_MAX: Final = 64
# Each reads every partition of its topic: many of them would keep the console, and brokers, busy.
TAILS_MAX: Final = 8
REQUEST_MS: Final = 10_000
STALL_MS: Final = 20_000
# A stream says something now and then, so that both ends notice when the other is gone.
BEAT_MS: Final = 10_000
DRILLS_BYTES_MAX: Final = 8 << 20
# What the system keeps of a connection; megabytes otherwise, and as much later is it noticed that
# nobody reads.
SEND_BUFFER_BYTES: Final = 64 << 10

_TYPES: Final = {
    "index.html": "text/html; charset=utf-8",
    "app.js": "text/javascript; charset=utf-8",
    "style.css": "text/css; charset=utf-8",
    "icon.svg": "image/svg+xml",
}


class Console:
    """Serves browsers; the cluster comes from a watcher and a way to read topics."""

    def __init__(
        self,
        watcher: Watcher,
        partitions_of: Callable[[str], int | None],
        open_consumer: Callable[[], TailConsumer],
        *,
        hosts: Collection[str],
        drills: Path | None = None,
    ) -> None:
        self._watcher = watcher
        self._partitions_of = partitions_of
        self._open_consumer = open_consumer
        self._hosts = hosts
        self._drills = drills
        self._open: dict[asyncio.StreamWriter, asyncio.Task[Any] | None] = {}
        self._tails = 0
        self._server: asyncio.Server | None = None

    async def start(self, sock: socket.socket) -> None:
        # Connections have it from the socket that they came to.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        self._server = await asyncio.start_server(self._serve, sock=sock, limit=HEADER_BYTES_MAX)

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for writer, task in list(self._open.items()):
            writer.transport.abort()
            if task is not None:
                task.cancel()
        while self._open:
            await asyncio.wait([each for each in self._open.values() if each is not None])
        if self._server is not None:
            await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open[writer] = asyncio.current_task()
        # Whoever waits until it can write on waits until all was taken: nothing is left at the end.
        writer.transport.set_write_buffer_limits(high=0)
        # Who breaks off, says nothing or takes nothing is cut, and all are at the end; there is
        # nobody to tell.
        with suppress(OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.CancelledError):
            try:
                async with asyncio.timeout(REQUEST_MS / 1_000):
                    request = await self._request(reader)
                await self._answer(request, writer)
            finally:
                del self._open[writer]
                # What somebody does not take is not kept for it: closing would wait until it does.
                if writer.transport.get_write_buffer_size():
                    writer.transport.abort()
                writer.close()

    async def _request(self, reader: asyncio.StreamReader) -> Request | Refusal:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            return Refusal(431, f"a request has at most {HEADER_BYTES_MAX} bytes")
        # Read first: an answer to what was not read may not arrive.
        if len(self._open) > CONNECTIONS_MAX:
            return Refusal(503, f"{CONNECTIONS_MAX} connections are open: close other pages")
        return parse(head, self._hosts)

    async def _answer(self, request: Request | Refusal, writer: asyncio.StreamWriter) -> None:
        if isinstance(request, Refusal):
            await _write(writer, refused(request))
        elif request.path == "/events":
            await _stream(writer, self._watcher.follow())
        elif request.path == "/tail":
            await self._tail(request, writer)
        elif request.path == "/groups":
            await _write(
                writer, _json(await self._watcher.find_groups(request.query.get("search", "")))
            )
        elif request.path == "/drills":
            await _write(writer, _json(await asyncio.to_thread(self._reports)))
        else:
            await _write(writer, page(request.path))

    async def _tail(self, request: Request, writer: asyncio.StreamWriter) -> None:
        topic = request.query.get("topic", "")
        partitions = self._partitions_of(topic)
        if partitions is None:
            await _write(writer, refused(Refusal(404, f"there is no topic {topic!r}")))
            return
        if self._tails >= TAILS_MAX:
            refusal = Refusal(503, f"{TAILS_MAX} tails are read: stop others, or close their pages")
            await _write(writer, refused(refusal))
            return
        tail = Tail(self._open_consumer, topic, partitions, request.query.get("search", ""))

        async def events() -> AsyncIterator[tuple[str, str]]:
            async for each in tail.pushes():
                yield "records", json.dumps(each, ensure_ascii=False, separators=(",", ":"))

        self._tails += 1
        try:
            await _stream(writer, events())
        finally:
            self._tails -= 1

    def _reports(self) -> dict[str, Any]:
        """Drills as the file has them now; what is wrong with it is told in their place."""
        if self._drills is None:
            how = "kubectl get drills.tailrace.dev -o json > FILE; tailrace console --drills FILE"
            return {"drills": [], "problem": f"To see how drills ended: {how}"}
        try:
            with self._drills.open("rb") as file:
                found = json.loads(file.read(DRILLS_BYTES_MAX))
            return {"drills": showing.drills(found), "problem": ""}
        except (OSError, ValueError, AttributeError) as error:
            return {"drills": [], "problem": f"{self._drills}: {error}"}


def _json(value: dict[str, Any]) -> bytes:
    return answer(200, json.dumps(value, ensure_ascii=False).encode(), "application/json")


def page(path: str) -> bytes:
    """One of the files of the page."""
    name = path.removeprefix("/") or "index.html"
    if name not in _TYPES:
        return refused(Refusal(404, "there is no such page"))
    body = files("tailrace.console").joinpath("page", name).read_bytes()
    return answer(200, body, _TYPES[name])


async def _stream(writer: asyncio.StreamWriter, events: AsyncIterator[tuple[str, str]]) -> None:
    """Send events as they come, a sign of life in between, until the browser goes away."""
    await _write(writer, stream_head())
    waiting: asyncio.Future[tuple[str, str]] | None = None
    try:
        while not writer.is_closing():
            if waiting is None:
                waiting = asyncio.ensure_future(anext(events))
            done, _ = await asyncio.wait([waiting], timeout=BEAT_MS / 1_000)
            if not done:
                await _write(writer, b": still here\n\n")
                continue
            finished, waiting = waiting, None
            await _write(writer, event(*finished.result()))
    except TailraceError as error:
        await _write(writer, event("trouble", json.dumps(str(error))))
    finally:
        if waiting is not None:
            waiting.cancel()
            with suppress(asyncio.CancelledError, TailraceError):
                await waiting
        await events.aclose()  # type: ignore[attr-defined]


async def _write(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(data)
    async with asyncio.timeout(STALL_MS / 1_000):
        await writer.drain()
