"""The server on a real socket: files, streams, refusals, and browsers that go away."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from tailrace.client.admin import AdminCore
from tailrace.console import server
from tailrace.console.server import Console, page
from tailrace.console.tailing import TailConsumer
from tailrace.console.watching import PARTS, Watcher


def _no_consumer() -> TailConsumer:
    raise OSError("nothing can be read here")


@asynccontextmanager
async def serving(drills: Path | None = None) -> AsyncIterator[tuple[Watcher, int]]:
    watcher = Watcher(cast("AdminCore", None))
    sock = socket.create_server(("127.0.0.1", 0))
    sock.setblocking(False)
    port = sock.getsockname()[1]
    console = Console(
        watcher,
        {"t": 1}.get,
        _no_consumer,
        hosts={f"127.0.0.1:{port}"},
        drills=drills,
    )
    await console.start(sock)
    try:
        yield watcher, port
    finally:
        await console.stop()


async def opened(port: int, path: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode())
    return reader, writer


async def got(port: int, path: str) -> tuple[int, bytes]:
    reader, writer = await opened(port, path)
    async with asyncio.timeout(20):
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    return int(head.split(b" ")[1]), body


async def event(reader: asyncio.StreamReader) -> tuple[str, Any]:
    async with asyncio.timeout(20):
        while not (line := (await reader.readline()).decode()).startswith("event: "):
            assert line, "the stream has ended"
        data = (await reader.readline()).decode().removeprefix("data: ")
    return line.removeprefix("event: ").strip(), json.loads(data)


@pytest.mark.parametrize("name", ["", "index.html", "app.js", "style.css", "icon.svg"])
def test_every_file_of_the_page_is_there(name: str) -> None:
    assert page(f"/{name}").startswith(b"HTTP/1.1 200 ")


def test_nothing_else_is() -> None:
    for path in ("/../server.py", "/page/app.js", "/etc/passwd"):
        assert page(path).startswith(b"HTTP/1.1 404 ")


async def test_a_browser_is_pushed_what_changes() -> None:
    async with serving() as (watcher, port):
        reader, writer = await opened(port, "/events")
        assert [(await event(reader))[0] for _ in PARTS] == list(PARTS)
        watcher._put("groups", [{"group": "billing"}])
        assert await event(reader) == ("groups", [{"group": "billing"}])
        writer.close()


async def test_a_tail_of_a_topic_and_of_none() -> None:
    async with serving() as (_, port):
        assert (await got(port, "/tail?topic=unknown"))[0] == 404
        reader, writer = await opened(port, "/tail?topic=t")
        name, push = await event(reader)
        assert (name, push["records"]) == ("records", [])
        assert "nothing can be read" in (await event(reader))[1]["problem"]
        writer.close()


async def test_drills_come_from_their_file_as_it_is_now(tmp_path: Path) -> None:
    path = tmp_path / "drills.json"
    async with serving(path) as (_, port):
        assert "No such file" in json.loads((await got(port, "/drills"))[1])["problem"]
        path.write_text('{"items": [{"metadata": {"name": "nightly"}}]}')
        found = json.loads((await got(port, "/drills"))[1])
        assert [each["name"] for each in found["drills"]] == ["nightly"]
        path.write_text("[]")
        assert json.loads((await got(port, "/drills"))[1])["problem"]
    async with serving() as (_, port):
        assert "--drills" in json.loads((await got(port, "/drills"))[1])["problem"]


async def test_groups_are_looked_for_by_name() -> None:
    async with serving() as (watcher, port):
        status, body = await got(port, "/groups?search=bill")
        assert (status, json.loads(body)) == (200, {"groups": [], "left_out": 0, "problem": ""})
        assert watcher.parts["groups"] == "null"


async def test_there_are_only_so_many_tails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "TAILS_MAX", 1)
    monkeypatch.setattr(server, "BEAT_MS", 100)
    async with serving() as (_, port):
        reader, writer = await opened(port, "/tail?topic=t")
        await event(reader)
        status, body = await got(port, "/tail?topic=t")
        assert status == 503
        assert b"1 tails are read" in body
        assert (await got(port, "/"))[0] == 200
        # Its place is free again when it is gone.
        writer.close()
        async with asyncio.timeout(20):
            while True:
                reader, writer = await opened(port, "/tail?topic=t")
                is_taken = b" 200 " in await reader.readline()
                writer.close()
                if is_taken:
                    break
                await asyncio.sleep(0.05)


async def test_what_a_browser_does_not_take_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Closed instead of cut, the connection would hold it for as long as the browser likes."""
    monkeypatch.setattr(server, "STALL_MS", 200)
    piece = "x" * (8 << 20)
    async with serving() as (watcher, port):
        watcher._put("story", piece)
        deaf = socket.create_connection(("127.0.0.1", port))
        deaf.sendall(f"GET /events HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode())
        await asyncio.sleep(1)
        # Meanwhile others are served.
        assert (await got(port, "/"))[0] == 200
        taken = await asyncio.to_thread(_taken, deaf)
        assert taken < len(piece)


def _taken(sock: socket.socket) -> int:
    """All that still comes, until the other side has ended."""
    sock.settimeout(20)
    taken = 0
    with sock:
        try:
            while data := sock.recv(1 << 20):
                taken += len(data)
        except ConnectionResetError:
            pass
    return taken


async def test_there_are_only_so_many_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "CONNECTIONS_MAX", 1)
    monkeypatch.setattr(server, "BEAT_MS", 100)
    async with serving() as (_, port):
        reader, writer = await opened(port, "/events")
        await event(reader)
        assert (await got(port, "/"))[0] == 503
        writer.close()
        async with asyncio.timeout(20):
            while (await got(port, "/"))[0] != 200:  # noqa: ASYNC110 - a socket ends by and by.
                await asyncio.sleep(0.05)


async def test_a_stream_shows_that_it_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "BEAT_MS", 10)
    async with serving() as (_, port):
        reader, writer = await opened(port, "/events")
        async with asyncio.timeout(20):
            while (await reader.readline()) != b": still here\n":
                pass
        writer.close()


async def test_too_much_is_no_request() -> None:
    """It is answered, or cut when the answer meets what was not read: never served."""
    async with serving() as (_, port):
        try:
            status, _ = await got(port, "/" + "x" * 20_000)
        except ConnectionResetError:
            return
        assert status == 431
