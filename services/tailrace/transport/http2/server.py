"""Serves gRPC over our own HTTP/2: any client that speaks gRPC may call."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Mapping
from typing import Any, Final, Generic, TypeVar

from tailrace.errors import Unreachable
from tailrace.transport.addresses import join_address, listening_socket, split_address
from tailrace.transport.http2 import frames as h2
from tailrace.transport.http2.connection import Connection
from tailrace.transport.http2.stream import STATUS_UNIMPLEMENTED, Http2Stream, StreamBroken
from tailrace.transport.limits import SPARE_CONNECTIONS, Connections, ServerLimits
from tailrace.transport.rpc import CALLER, MESSAGE_BYTES_MAX, Encoded, Handler, Kind, Method

STREAMS_MAX: Final = 2_000
"""On one connection, where nothing else was said."""
# What is said to the caller of a handler that raised.
DETAIL_CHARACTERS_MAX: Final = 1_000
IDLE_LOOK_S: Final = 1.0
CANCEL_AGAIN_S: Final = 2.0

_OK, _DEADLINE, _INTERNAL, _UNAVAILABLE = 0, 4, 13, 14
_ANSWER: Final = h2.header_block([(":status", "200"), ("content-type", "application/grpc")])
_LOG: Final = logging.getLogger(__name__)

Q = TypeVar("Q")
R = TypeVar("R")


class Http2Server:
    """Serves a mapping of handlers; `start` once, `stop` once."""

    def __init__(
        self, handlers: Mapping[Method[Any, Any], Handler], limits: ServerLimits | None = None
    ) -> None:
        self.address = ""
        self.limits = limits
        self.connections = Connections(limits) if limits is not None else None
        self._methods = {each.name: (each, handler) for each, handler in handlers.items()}
        self._running: dict[asyncio.Task[Any], None] = {}
        self._open: dict[Connection, str] = {}
        self._sock: socket.socket | None = None
        self._looking: asyncio.TimerHandle | None = None

    async def start(self, address: str) -> None:
        host, _ = split_address(address)
        sock = self._sock = await listening_socket(address)
        self.address = join_address(host, int(sock.getsockname()[1]))
        asyncio.get_running_loop().add_reader(sock, self._on_connections)
        if self.limits is not None:
            self._look_for_idle()

    async def stop(self, *, grace_ms: int) -> None:
        """Take no new calls, let those under way finish within the grace, break the rest."""
        self._stop_listening()
        for connection in list(self._open):
            connection.go_away()
        mine = asyncio.current_task()
        left = [task for task in self._running if task is not mine]
        if left and grace_ms > 0:
            await asyncio.wait(left, timeout=grace_ms / 1_000)
        while left := [task for task in self._running if task is not mine]:
            for task in left:
                task.cancel()
            await asyncio.wait(left, timeout=CANCEL_AGAIN_S)
        for connection in list(self._open):
            connection.close()

    def _stop_listening(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
        if self._sock is not None:
            asyncio.get_running_loop().remove_reader(self._sock)
            self._sock.close()
            self._sock = None

    def _on_connections(self) -> None:
        assert self._sock is not None
        try:
            sock, peer = self._sock.accept()
        except (BlockingIOError, ConnectionError):
            return
        except OSError as error:
            # Out of descriptors, most likely. The connection stays in the backlog.
            _LOG.warning("cannot accept a connection on %s: %s", self.address, error)
            return
        limits = self.limits
        if limits is not None and len(self._open) >= limits.connections_max + SPARE_CONNECTIONS:
            sock.close()
            return
        family = "ipv6" if sock.family == socket.AF_INET6 else "ipv4"
        name = f"{family}:{join_address(str(peer[0]), int(peer[1]))}"

        def accept(stream: Http2Stream, fields: dict[str, str]) -> None:
            self._accept(stream, fields, name)

        try:
            connection = Connection(
                sock,
                message_bytes_max=limits.message_bytes_max if limits else MESSAGE_BYTES_MAX,
                streams_max=limits.streams_per_connection_max if limits else STREAMS_MAX,
                accept=accept,
                on_end=self._ended,
            )
        except (OSError, StreamBroken):
            sock.close()
            return
        self._open[connection] = name

    def _ended(self, connection: Connection) -> None:
        self._open.pop(connection, None)

    def _look_for_idle(self) -> None:
        """Connections on which nothing happens for long are closed."""
        loop = asyncio.get_running_loop()
        self._looking = loop.call_later(IDLE_LOOK_S, self._look_for_idle)
        assert self.limits is not None
        since_s = loop.time() - self.limits.idle_ms / 1_000
        for connection in list(self._open):
            if connection.is_idle and connection.used_s < since_s:
                connection.go_away()
                connection.close("nobody used it")

    def _accept(self, stream: Http2Stream, fields: dict[str, str], peer: str) -> None:
        found = self._methods.get(fields.get(":path", ""))
        if found is None or not fields.get("content-type", "").startswith("application/grpc"):
            _end_at_once(stream, STATUS_UNIMPLEMENTED, f"no method {fields.get(':path', '')!r}")
            return
        refusal = None
        connections = self.connections
        if connections is not None and connections.is_counted(found[0].name):
            refusal = connections.enter(peer)
            if refusal is not None:
                _end_at_once(stream, _UNAVAILABLE, f"{refusal.code}: {refusal}")
                return
        else:
            connections = None
        timeout_ms = h2.read_timeout_ms(fields.get("grpc-timeout", ""))
        serving = _Serving(stream, *found, peer)
        task = asyncio.get_running_loop().create_task(serving.run(timeout_ms))
        serving.task = task
        self._running[task] = None

        def done(task: asyncio.Task[None]) -> None:
            self._running.pop(task, None)
            serving.ended()
            if connections is not None:
                connections.leave(peer)

        task.add_done_callback(done)


class _Serving:
    """One call: its handler runs in a task, and every end is told to the caller."""

    def __init__(
        self, stream: Http2Stream, method: Method[Any, Any], handler: Handler, peer: str
    ) -> None:
        self.stream = stream
        self.method = method
        self.task: asyncio.Task[None] | None = None
        self._handler = handler
        self._peer = peer
        self._has_begun = False
        self._refusal = _UNAVAILABLE, "the handler was cancelled"
        stream.owner = self

    async def run(self, timeout_ms: float | None) -> None:
        CALLER.set(lambda: self._peer)
        try:
            if timeout_ms is None:
                await self._work()
            else:
                async with asyncio.timeout(timeout_ms / 1_000):
                    await self._work()
            await self._end(_OK)
        except TimeoutError:
            await self._end(_DEADLINE, "the time of the call is over")
        except asyncio.CancelledError:
            await self._end(*self._refusal)
        except StreamBroken:
            # The caller is gone.
            return
        except Exception as error:  # noqa: BLE001 - whatever it is, it is told.
            if self.stream.broken is None:
                _LOG.exception("%s failed", self.method.name)
            await self._end(_INTERNAL, f"{type(error).__name__}: {error}"[:DETAIL_CHARACTERS_MAX])

    async def _work(self) -> None:
        method = self.method
        talk = _ServerStream[Any, Any](self)
        if method.kind is Kind.BIDI_STREAM:
            await self._handler(talk)
            return
        request = await self.stream.recv()
        if request is None:
            raise Unreachable("a call without a request")
        asked = method.decode_request(request)
        if method.kind is Kind.SERVER_STREAM:
            await self._handler(asked, talk)
        else:
            answer = await self._handler(asked)
            await self.send(method.encode_response(answer), last=True)

    async def send(self, message: Encoded, *, last: bool = False) -> None:
        """Raises StreamBroken."""
        before = b"" if self._has_begun else self._headers()
        self._has_begun = True
        pieces = (message,) if isinstance(message, bytes) else message
        after = self._trailers(_OK, "") if last else b""
        await self.stream.send(pieces, before=before, after=after)
        if last:
            self._finished()

    async def _end(self, status: int, detail: str = "") -> None:
        stream = self.stream
        if stream.broken is not None or stream.has_finished:
            return
        if status != _OK and stream.is_sending:
            # Half a message is on its way, and may be for long.
            stream.reset(h2.INTERNAL_ERROR, detail)
            return
        try:
            if self._has_begun:
                await stream.finish(self._trailers(status, detail))
            else:
                await stream.finish(_only_trailers(stream.number, status, detail))
        except StreamBroken:
            # The caller is gone, and asks no more.
            return
        self._finished()

    def ended(self) -> None:
        """The task is over. One that was cancelled before it ran has told nobody."""
        stream = self.stream
        if stream.broken is None and not stream.has_finished:
            _end_at_once(stream, *self._refusal)

    def _finished(self) -> None:
        """All was said. What the caller still sends is of no interest."""
        stream = self.stream
        stream.drop()
        if stream.at_end:
            stream.has_finished = True
            stream.wire.forget(stream.number)
        else:
            stream.hang_up(h2.NO_ERROR)

    def _headers(self) -> bytes:
        return h2.frame(h2.HEADERS, h2.END_HEADERS, self.stream.number, _ANSWER)

    def _trailers(self, status: int, detail: str) -> bytes:
        flags = h2.END_HEADERS | h2.END_STREAM
        return h2.frame(h2.HEADERS, flags, self.stream.number, _status_block(status, detail))

    def cancel(self) -> None:
        if self.task is not None:
            self.task.cancel()

    # What the stream tells.

    def on_headers(self, fields: dict[str, str], *, end: bool) -> None:
        """Clients of gRPC send no trailers."""

    def on_refused(self, status: int, detail: str) -> None:
        self._refusal = status, detail
        self.cancel()

    def on_broken(self, reason: str) -> None:
        if not self.stream.has_finished:
            self.cancel()


class _ServerStream(Generic[Q, R]):
    """A stream in its handler: what comes is `Q`, what goes is `R`."""

    def __init__(self, serving: _Serving) -> None:
        self._serving = serving
        self._broken = False

    async def send(self, message: R) -> None:
        self._check()
        serving = self._serving
        try:
            await serving.send(serving.method.encode_response(message))
        except StreamBroken as error:
            raise Unreachable(f"the caller is gone: {error}") from error
        except asyncio.CancelledError:
            self._broken = True
            raise

    async def recv(self) -> Q | None:
        self._check()
        serving = self._serving
        try:
            message = await serving.stream.recv()
        except StreamBroken as error:
            raise Unreachable(f"the caller is gone: {error}") from error
        except asyncio.CancelledError:
            self._broken = True
            raise
        if message is None:
            return None
        received: Q = serving.method.decode_request(message)
        return received

    async def finish(self) -> None:
        """The stream ends when its handler returns."""

    def cancel(self) -> None:
        self._broken = True
        self._serving.cancel()

    def _check(self) -> None:
        if self._broken:
            raise Unreachable("the stream was broken here")


def _end_at_once(stream: Http2Stream, status: int, detail: str) -> None:
    """Answer a call that is not served."""
    data = _only_trailers(stream.number, status, detail)
    data += h2.reset(stream.number, h2.NO_ERROR)
    stream.has_finished = True
    stream.wire.write((data,), len(data))
    stream.on_broken("it is not served")


def _only_trailers(number: int, status: int, detail: str) -> bytes:
    block = _ANSWER + _status_block(status, detail)
    return h2.frame(h2.HEADERS, h2.END_HEADERS | h2.END_STREAM, number, block)


def _status_block(status: int, detail: str) -> bytes:
    if status == _OK:
        return _FINE
    return h2.header_block(
        [("grpc-status", str(status)), ("grpc-message", h2.write_detail(detail))]
    )


_FINE: Final = h2.header_block([("grpc-status", "0")])
