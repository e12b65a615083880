"""Peers of HTTP/2 that are as odd as a test needs them: bare sockets that write what they like."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, NamedTuple

import hpack

from simulation.transport_contract import COUNT, ECHO, TALK, Talk
from tailrace.transport.http2 import frames as h2
from tailrace.transport.http2.client import Http2Channel
from tailrace.transport.http2.network import Http2Network
from tailrace.transport.http2.server import Http2Server
from tailrace.transport.limits import ServerLimits
from tailrace.transport.rpc import Handler, Method

SOON_S: Final = 20.0
READ_BYTES: Final = 1 << 16


class Frame(NamedTuple):
    kind: int
    flags: int
    stream: int
    payload: bytes

    @property
    def code(self) -> int:
        """Of a reset, or of a GOAWAY."""
        return h2.read_uint32(self.payload, 4 if self.kind == h2.GOAWAY else 0)


class Raw:
    """A socket that speaks in frames. It answers nothing by itself."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.sock = sock
        self._unread = bytearray()
        self._decoder = hpack.Decoder()

    async def send(self, *data: bytes) -> None:
        async with asyncio.timeout(SOON_S):
            await asyncio.get_running_loop().sock_sendall(self.sock, b"".join(data))

    async def frame(self) -> Frame | None:
        """The next one; None when the other side has closed."""
        head = await self._read(h2.FRAME_HEAD.size)
        if head is None:
            return None
        high, low, kind, flags, stream = h2.FRAME_HEAD.unpack(head)
        payload = await self._read(high << 16 | low)
        return None if payload is None else Frame(kind, flags, stream, payload)

    async def until(self, kind: int, stream: int | None = None) -> Frame:
        """The next frame of this kind; all before it are thrown away."""
        while (found := await self.frame()) is not None:
            if found.kind == kind and stream in {None, found.stream}:
                return found
        raise AssertionError(f"it closed the connection instead of sending a frame {kind}")

    async def until_closed(self) -> list[Frame]:
        """All frames up to the end, which must come."""
        found = []
        while (each := await self.frame()) is not None:
            found.append(each)
        return found

    async def message(self, stream: int) -> bytes:
        """All data of a stream up to the next whole message, without its head."""
        data = b""
        while len(data) < 5 or len(data) < 5 + h2.read_uint32(data, 1):
            data += (await self.until(h2.DATA, stream)).payload
        return data[5:]

    async def status(self, stream: int) -> dict[str, str]:
        """The fields of the frame of headers that ends a stream."""
        while True:
            found = await self.until(h2.HEADERS, stream)
            fields = self.fields(found)
            if found.flags & h2.END_STREAM:
                return fields

    def fields(self, headers: Frame) -> dict[str, str]:
        return {str(name): str(value) for name, value in self._decoder.decode(headers.payload)}

    async def in_step(self) -> None:
        """Until the other side has dealt with all that was sent."""
        await self.send(h2.frame(h2.PING, 0, 0, b"in step?"))
        while (await self.until(h2.PING)).payload != b"in step?":
            pass

    async def _read(self, size: int) -> bytes | None:
        loop = asyncio.get_running_loop()
        while len(self._unread) < size:
            async with asyncio.timeout(SOON_S):
                try:
                    more = await loop.sock_recv(self.sock, READ_BYTES)
                except ConnectionError:
                    more = b""
            if not more:
                return None
            self._unread += more
        taken = bytes(self._unread[:size])
        del self._unread[:size]
        return taken

    def close(self) -> None:
        self.sock.close()


def request(
    stream: int, method: Method[Any, Any] = TALK, *fields: tuple[str, str], end: bool = False
) -> bytes:
    """The frame of headers that opens a stream."""
    return h2.frame(
        h2.HEADERS, h2.END_HEADERS | end * h2.END_STREAM, stream, request_block(method, *fields)
    )


def request_block(method: Method[Any, Any] = TALK, *fields: tuple[str, str]) -> bytes:
    common = [(":method", "POST"), (":scheme", "http"), (":path", method.name)]
    return h2.header_block([*common, ("content-type", "application/grpc"), *fields])


def message(payload: bytes) -> bytes:
    return h2.MESSAGE_HEAD.pack(0, len(payload)) + payload


def data(stream: int, payload: bytes, *, end: bool = False) -> bytes:
    return h2.frame(h2.DATA, end * h2.END_STREAM, stream, payload)


async def echo(asked: bytes) -> bytes:
    return bytes(asked)


async def talk(stream: Talk) -> None:
    while (heard := await stream.recv()) is not None:
        await stream.send(bytes(heard))


async def count(asked: bytes, stream: Talk) -> None:
    for number in range(int(asked)):
        await stream.send(b"%d" % number)


HANDLERS: Final[Mapping[Method[bytes, bytes], Handler]] = {ECHO: echo, TALK: talk, COUNT: count}


@asynccontextmanager
async def serving(
    handlers: Mapping[Method[bytes, bytes], Handler] = HANDLERS, limits: ServerLimits | None = None
) -> AsyncIterator[Http2Server]:
    """A server of ours, which ends with nothing left on it."""
    server = await Http2Network(limits).serve("127.0.0.1:0", handlers)
    try:
        yield server
    finally:
        await server.stop(grace_ms=0)
        assert not server._running
        assert not server._open


async def connected(server: Http2Server, *, greet: bool = True, source: str = "") -> Raw:
    """A bare client of a server of ours; `source`: another address of this machine."""
    host, _, port = server.address.rpartition(":")
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    sock.setblocking(False)
    if source:
        sock.bind((source, 0))
    await asyncio.get_running_loop().sock_connect(sock, (host, int(port)))
    raw = Raw(sock)
    if greet:
        await raw.send(h2.PREFACE, h2.settings(()))
        await raw.until(h2.WINDOW_UPDATE)
    return raw


@asynccontextmanager
async def bare_client(
    handlers: Mapping[Method[bytes, bytes], Handler] = HANDLERS, limits: ServerLimits | None = None
) -> AsyncIterator[Raw]:
    """A bare client with a server of its own."""
    async with serving(handlers, limits) as server:
        raw = await connected(server)
        try:
            yield raw
        finally:
            raw.close()


class BareServer:
    """Where clients of ours meet a bare socket."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self.address = "{}:{}".format(*sock.getsockname())
        self.network = Http2Network()
        self.accepted: list[Raw] = []

    def channel(self) -> Http2Channel:
        return self.network.channel(self.address)

    async def accept(self, *settings: tuple[int, int], greet: bool = True) -> Raw:
        async with asyncio.timeout(SOON_S):
            sock, _ = await asyncio.get_running_loop().sock_accept(self._sock)
        raw = Raw(sock)
        self.accepted.append(raw)
        if greet:
            await raw._read(len(h2.PREFACE))
            await raw.send(h2.settings(settings))
        return raw


@asynccontextmanager
async def bare_server() -> AsyncIterator[BareServer]:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        sock.setblocking(False)
        server = BareServer(sock)
        try:
            yield server
        finally:
            await server.network.close()
            for each in server.accepted:
                each.close()


def answer(stream: int, payload: bytes) -> bytes:
    """What a server says to a call that went well."""
    return begin(stream) + data(stream, message(payload)) + trailers(stream)


def begin(stream: int) -> bytes:
    block = h2.header_block([(":status", "200"), ("content-type", "application/grpc")])
    return h2.frame(h2.HEADERS, h2.END_HEADERS, stream, block)


def trailers(stream: int, status: int = 0, detail: str = "") -> bytes:
    block = h2.header_block([("grpc-status", str(status)), ("grpc-message", detail)])
    return h2.frame(h2.HEADERS, h2.END_HEADERS | h2.END_STREAM, stream, block)


async def eventually(*conditions: Callable[[], Any]) -> None:
    """Until all of them hold."""
    async with asyncio.timeout(SOON_S):
        while True:
            if all(each() for each in conditions):
                return
            await asyncio.sleep(0.005)


async def cancelled(task: asyncio.Task[Any]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
