"""Calls and streams to one address over our own HTTP/2, for any server that speaks gRPC."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final, Generic, NoReturn, TypeVar

from tailrace.errors import (
    InvalidRequest,
    Overloaded,
    RequestTimedOut,
    TailraceError,
    TooManyConnections,
    Unreachable,
)
from tailrace.transport.http2 import frames as h2
from tailrace.transport.http2.connection import Connection
from tailrace.transport.http2.stream import (
    STATUS_EXHAUSTED,
    STATUS_UNIMPLEMENTED,
    Bytes,
    Http2Stream,
    StreamBroken,
)
from tailrace.transport.reasons import plain_reason
from tailrace.transport.rpc import MESSAGE_BYTES_MAX, Encoded, Kind, Method, Stream
from tailrace.transport.sockets import connected

CONNECT_TIMEOUT_S: Final = 2.0
HEADER_BLOCKS_MAX: Final = 4_096
NO_STATUS: Final = -1

_STATUS_NAMES: Final = (
    "OK",
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
)
_INVALID, _DEADLINE, _UNAVAILABLE = 3, 4, 14

Q = TypeVar("Q")
R = TypeVar("R")


class SharedConnection:
    """The way to one address: a connection that is made when first needed, and again."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.users = 0
        self._current: Connection | None = None
        self._connections: dict[Connection, None] = {}
        self._connecting: asyncio.Task[Connection] | None = None
        self._closed = False

    @property
    def current(self) -> Connection | None:
        """A connection that takes another stream, if there is one."""
        found = self._current
        return found if found is not None and found.takes_streams else None

    async def connect(self) -> Connection:
        """Raises Unreachable. All who ask meanwhile wait for the same attempt.

        The connection may be full by the time the caller gets it: then ask again.
        """
        fresh = self._current
        if fresh is not None and not (fresh.is_greeted or fresh.ended or fresh.is_retired):
            # How many streams it takes is not known yet.
            if why := await fresh.greeted():
                raise Unreachable(f"{self.address}: {plain_reason(why)}")
            return fresh
        if self._connecting is None:
            if self._closed:
                raise Unreachable(f"the channel to {self.address} is closed")
            loop = asyncio.get_running_loop()
            self._connecting = loop.create_task(self._connect(), name=f"connect {self.address}")
            self._connecting.add_done_callback(self._tried)
        try:
            return await asyncio.shield(self._connecting)
        except asyncio.CancelledError:
            if self._closed:
                raise_unless_cancelled(f"the channel to {self.address} is closed")
            raise

    async def _connect(self) -> Connection:
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                sock = await connected(self.address)
        except TimeoutError:
            reason = "it did not answer: the host is down, or something swallows packets"
            raise Unreachable(f"{self.address}: {reason}") from None
        except OSError as error:
            raise Unreachable(f"{self.address}: {_why(error)}") from error
        try:
            made = Connection(sock, message_bytes_max=MESSAGE_BYTES_MAX, on_end=self._ended)
        except OSError as error:
            sock.close()
            raise Unreachable(f"{self.address}: it closed the connection") from error
        if not made.takes_streams:
            # It was gone before it was greeted, and ends by itself.
            raise Unreachable(f"{self.address}: it closed the connection")
        if self._current is not None:
            # It is full, or the server leaves: it ends with the last of its streams.
            self._current.retire()
        self._current = made
        self._connections[made] = None
        return made

    def _tried(self, task: asyncio.Task[Connection]) -> None:
        self._connecting = None
        if not task.cancelled():
            # Whether or not anybody waits for it still.
            task.exception()

    def _ended(self, connection: Connection) -> None:
        self._connections.pop(connection, None)
        if self._current is connection:
            self._current = None

    async def close(self) -> None:
        self._closed = True
        connecting = self._connecting
        if connecting is not None:
            connecting.cancel()
        for each in list(self._connections):
            each.close()
        if connecting is not None:
            await asyncio.wait([connecting])


class Http2Channel:
    """Calls and streams to one address."""

    def __init__(self, shared: SharedConnection, release: Callable[[], Any]) -> None:
        self.address = shared.address
        self._shared = shared
        self._release = release
        # Those that are open, in order.
        self._open: dict[_Call, None] = {}
        self._closed = False

    async def call(self, method: Method[Q, R], request: Q, *, timeout_ms: int) -> R:
        self._check_open()
        made = _Call(self._shared, method, self._open, timeout_ms=timeout_ms)
        try:
            async with asyncio.timeout(timeout_ms / 1_000):
                await made.send(method.encode_request(request), end=True)
                message = await made.recv()
                # The status comes after the answer.
                more = None if message is None else await made.recv()
        except TimeoutError:
            made.break_off()
            raise RequestTimedOut(f"{self.address}: it did not answer in time") from None
        except BaseException:
            made.break_off()
            raise
        if message is None or more is not None:
            made.break_off()
            raise Unreachable(f"{self.address}: not one answer to a call")
        return method.decode_response(message)

    def open(self, method: Method[Q, R], request: Q | None = None) -> Stream[Q, R]:
        self._check_open()
        if method.kind is not Kind.SERVER_STREAM:
            made = _Call(self._shared, method, self._open)
            made.begin()
            return _ClientStream[Q, R](made, method)
        if request is None:
            raise InvalidRequest(f"{method.name} takes a request")
        first = method.encode_request(request)
        return _ClientStream[Q, R](_Call(self._shared, method, self._open), method, first)

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        for each in list(self._open):
            each.break_off()
        self._open.clear()
        await self._release()

    def _check_open(self) -> None:
        if self._closed:
            raise Unreachable(f"the channel to {self.address} is closed")


class _Call:
    """One call or stream: opened when there is a connection, and how it ended."""

    def __init__(
        self,
        shared: SharedConnection,
        method: Method[Any, Any],
        known: dict[_Call, None],
        timeout_ms: int = 0,
    ) -> None:
        self._shared = shared
        self._method = method
        self._timeout_ms = timeout_ms
        self._known = known
        self._stream: Http2Stream | None = None
        self._connecting = asyncio.Lock()
        self._status: int = NO_STATUS
        self._detail = ""
        self._has_ended = False
        self._finished = False
        known[self] = None

    def begin(self) -> None:
        """Open it at once if there is a connection; else the first who needs it waits for one."""
        connection = self._shared.current
        if connection is None:
            return
        try:
            _, data = self._open(connection)
            connection.write((data,), len(data))
        except StreamBroken as error:
            self.on_broken(str(error))

    async def send(self, message: Encoded, *, end: bool = False) -> None:
        if self._has_ended:
            self._raise(self._detail or "the stream has ended")
        if self._finished:
            raise InvalidRequest("this end has finished already")
        pieces = (message,) if isinstance(message, bytes) else message
        self._finished = end
        try:
            stream, before = (self._stream, b"") if self._stream else await self._opened()
            await stream.send(pieces, before=before, end=end)
        except StreamBroken as error:
            self._raise(str(error))

    async def recv(self) -> Bytes | None:
        try:
            stream = self._stream
            if stream is None:
                stream, data = await self._opened()
                if data:
                    stream.wire.write((data,), len(data))
            message = await stream.recv()
        except StreamBroken as error:
            self._raise(str(error))
        if message is None:
            self._ended()
            if self._status:
                self._raise("it ended without a status")
        return message

    async def finish(self) -> None:
        if self._finished:
            return
        self._finished = True
        try:
            stream, data = await self._opened()
            if data:
                stream.wire.write((data,), len(data))
            await stream.finish(h2.frame(h2.DATA, h2.END_STREAM, stream.number))
        except StreamBroken as error:
            self._raise(str(error))

    def break_off(self, reason: str = "the stream was cancelled here") -> None:
        if self._stream is not None:
            self._stream.reset(reason=reason)
        self.on_broken(reason)

    async def _opened(self) -> tuple[Http2Stream, bytes]:
        """The stream, and what is to be sent before all else on it.

        At once: streams must be heard of in the order of their numbers.
        """
        async with self._connecting:
            while (stream := self._stream) is None:
                if self._has_ended:
                    raise StreamBroken(self._detail)
                connection = self._shared.current or await self._connected()
                if connection.takes_streams and not self._has_ended:
                    return self._open(connection)
        return stream, b""

    async def _connected(self) -> Connection:
        try:
            return await self._shared.connect()
        except Unreachable as error:
            # Who wants to try again opens another.
            self.on_broken(str(error).removeprefix(f"{self._shared.address}: "))
            raise

    def _open(self, connection: Connection) -> tuple[Http2Stream, bytes]:
        stream = self._stream = connection.open()
        stream.owner = self
        timeout = h2.write_timeout(self._timeout_ms) if self._timeout_ms else ""
        block = _request_block(self._shared.address, self._method.name, timeout)
        return stream, h2.frame(h2.HEADERS, h2.END_HEADERS, stream.number, block)

    # What the stream tells.

    def on_headers(self, fields: dict[str, str], *, end: bool) -> None:
        status = fields.get("grpc-status", "")
        if status.isascii() and status.isdigit():
            self._status = int(status)
            self._detail = h2.read_detail(fields.get("grpc-message", ""))
        elif fields.get(":status", "200") != "200":
            self._status = _UNAVAILABLE
            self._detail = f"it answers as another program: HTTP status {fields[':status']}"
        if end:
            self._ended()

    def on_refused(self, status: int, detail: str) -> None:
        if self._status <= 0:
            # Else it is known already why this cannot be read.
            self._status, self._detail = status, detail
        self.break_off(detail)

    def on_broken(self, reason: str) -> None:
        if not self._has_ended:
            self._detail = self._detail or reason
            self._ended()

    def _ended(self) -> None:
        self._has_ended = True
        self._known.pop(self, None)
        stream = self._stream
        if stream is not None and stream.at_end:
            # The server has said its last word: what we would still say nobody hears.
            stream.hang_up(h2.CANCEL)

    def _raise(self, reason: str) -> NoReturn:
        self._ended()
        if self._status > 0:
            raise told(self._shared.address, self._status, self._detail)
        if self._status == 0:
            raise Unreachable(f"{self._shared.address}: the stream has ended: OK {self._detail}")
        raise Unreachable(f"{self._shared.address}: {plain_reason(reason)}")


class _ClientStream(Generic[Q, R]):
    """A stream that we opened."""

    def __init__(self, call: _Call, method: Method[Q, R], first: Encoded | None = None) -> None:
        """`first`: the one request of a stream from the server, which the first `recv` sends."""
        self._call = call
        self._method = method
        self._first = first

    async def send(self, message: Q) -> None:
        try:
            await self._call.send(self._method.encode_request(message))
        except asyncio.CancelledError:
            self._call.break_off()
            raise

    async def recv(self) -> R | None:
        try:
            first, self._first = self._first, None
            if first is not None:
                await self._call.send(first, end=True)
            message = await self._call.recv()
        except asyncio.CancelledError:
            self._call.break_off()
            raise
        return None if message is None else self._method.decode_response(message)

    async def finish(self) -> None:
        try:
            await self._call.finish()
        except asyncio.CancelledError:
            self._call.break_off()
            raise

    def cancel(self) -> None:
        self._call.break_off()


@lru_cache(HEADER_BLOCKS_MAX)
def _request_block(address: str, method: str, timeout: str) -> bytes:
    fields = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", method),
        (":authority", address),
        ("te", "trailers"),  # codespell:ignore
        ("content-type", "application/grpc"),
        ("user-agent", "tailrace"),
    ]
    return h2.header_block([*fields, ("grpc-timeout", timeout)] if timeout else fields)


def told(address: str, status: int, detail: str) -> TailraceError:
    """What a status of gRPC means for who called."""
    name = _STATUS_NAMES[status] if status < len(_STATUS_NAMES) else str(status)
    text = f"{address}: {name}: {detail}"
    if status == _DEADLINE:
        return RequestTimedOut(f"{address}: it did not answer in time")
    if status == STATUS_EXHAUSTED and detail.startswith(Overloaded.code):
        return Overloaded(f"{address}: {detail}")
    if status in {STATUS_UNIMPLEMENTED, STATUS_EXHAUSTED, _INVALID}:
        # No such method, or a message above a limit: it would fail again.
        return InvalidRequest(text)
    if detail.startswith(TooManyConnections.code):
        return TooManyConnections(f"{address}: {detail}")
    if status == _UNAVAILABLE:
        return Unreachable(f"{address}: {plain_reason(detail)}")
    return Unreachable(text)


def raise_unless_cancelled(reason: str) -> None:
    """Tell what was cancelled under us from a task that was: only the first is Unreachable."""
    task = asyncio.current_task()
    if task is None or task.cancelling() == 0:
        raise Unreachable(reason) from None


def _why(error: OSError) -> str:
    if isinstance(error, socket.gaierror):
        return "the name of the host is not known"
    # What asyncio says instead of the system's own words is of no use to people.
    return plain_reason(os.strerror(error.errno) if error.errno else str(error))
