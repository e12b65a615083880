"""Serves gRPC over our own HTTP/2: any client that speaks gRPC may call."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Mapping
from typing import Any, Final, Generic, TypeVar

from tailrace.errors import Overloaded, TooManyConnections, Unreachable
from tailrace.transport.addresses import join_address, listening_socket, split_address
from tailrace.transport.budget import Account, Budget, BudgetLimits
from tailrace.transport.http2 import frames as h2
from tailrace.transport.http2.connection import CHORES_OF_CONNECTION, Connection
from tailrace.transport.http2.headers import Headers
from tailrace.transport.http2.stream import (
    STATUS_EXHAUSTED,
    STATUS_UNIMPLEMENTED,
    Http2Stream,
    StreamBroken,
)
from tailrace.transport.limits import SPARE_CONNECTIONS, Connections, ServerLimits
from tailrace.transport.rpc import (
    CALLER,
    MESSAGE_BYTES_MAX,
    CallRefused,
    Encoded,
    Handler,
    Kind,
    Method,
)

STREAMS_MAX: Final = 2_000
"""On one connection, where nothing else was said."""
# What is said to the caller of a handler that raised.
DETAIL_CHARACTERS_MAX: Final = 1_000
IDLE_LOOK_S: Final = 1.0
# A connection that never made a call is closed after this; any client may open another.
FIRST_CALL_S: Final = 60.0
# A server that stops waits so long for those who have been sent everything to leave by themselves.
PARTING_S: Final = 0.5
# Without descriptors no connection can be taken: look again then.
ACCEPT_AGAIN_S: Final = 0.5
CANCEL_AGAIN_S: Final = 2.0

ANSWER_BYTES_MAX_KEY: Final = "tailrace-max-response-bytes"
"""Metadata in which a caller says the largest answer that it takes."""
ANSWER_DIGITS_MAX: Final = 12

_OK, _INVALID, _DEADLINE, _INTERNAL, _UNAVAILABLE = 0, 3, 4, 13, 14
_ANSWER: Final = h2.header_block([(":status", "200"), ("content-type", "application/grpc")])
_LOG: Final = logging.getLogger(__name__)

Q = TypeVar("Q")
R = TypeVar("R")


class _BadRequest(Exception):
    """The caller's fault: it is told, and nobody else."""


class Http2Server:
    """Serves a mapping of handlers; `start` once, `stop` once."""

    def __init__(
        self,
        handlers: Mapping[Method[Any, Any], Handler],
        limits: ServerLimits | None = None,
        budget: Budget | None = None,
    ) -> None:
        """`budget`: that of the process, which its servers share."""
        self.address = ""
        self.limits = limits
        self.budget = budget or Budget(limits.budget if limits is not None else BudgetLimits())
        self.connections = Connections(limits) if limits is not None else None
        self._methods = {each.name: (each, handler) for each, handler in handlers.items()}
        self._running: dict[asyncio.Task[Any], None] = {}
        self._open: dict[Connection, str] = {}
        self._sock: socket.socket | None = None
        self._looking: asyncio.TimerHandle | None = None
        self._accepting: asyncio.TimerHandle | None = None
        self._left: asyncio.Future[None] | None = None

    async def start(self, address: str) -> None:
        host, _ = split_address(address)
        sock = self._sock = await listening_socket(address)
        self.address = join_address(host, int(sock.getsockname()[1]))
        self._listen()
        if self.limits is not None:
            self._look_for_idle()

    async def stop(self, *, grace_ms: int) -> None:
        """Take no new calls, let those under way finish within the grace, break the rest."""
        until_s = asyncio.get_running_loop().time() + grace_ms / 1_000
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
        await self._part(until_s)
        for connection in list(self._open):
            connection.close()

    async def _part(self, until_s: float) -> None:
        """Let those who were answered last read it: they leave when they have."""
        loop = asyncio.get_running_loop()
        soon_s = loop.time() + PARTING_S
        while self._open:
            is_behind = any(each.is_behind for each in self._open)
            left_s = (until_s if is_behind else min(until_s, soon_s)) - loop.time()
            if left_s <= 0:
                return
            self._left = loop.create_future()
            await asyncio.wait([self._left], timeout=min(left_s, PARTING_S))

    def _stop_listening(self) -> None:
        for timer in (self._looking, self._accepting):
            if timer is not None:
                timer.cancel()
        if self._sock is not None:
            asyncio.get_running_loop().remove_reader(self._sock)
            self._sock.close()
            self._sock = None

    def _listen(self) -> None:
        if self._sock is not None:
            asyncio.get_running_loop().add_reader(self._sock, self._on_connections)

    def _on_connections(self) -> None:
        assert self._sock is not None
        try:
            sock, peer = self._sock.accept()
        except (BlockingIOError, ConnectionError):
            return
        except OSError as error:
            # Out of descriptors, most likely. The connection stays in the backlog.
            _LOG.warning("cannot accept a connection on %s: %s", self.address, error)
            loop = asyncio.get_running_loop()
            loop.remove_reader(self._sock)
            self._accepting = loop.call_later(ACCEPT_AGAIN_S, self._listen)
            return
        now_s = asyncio.get_running_loop().time()
        account = self.budget.account(str(peer[0]), now_s)
        if not self._has_room(account) or not account.opened(CHORES_OF_CONNECTION, now_s):
            sock.close()
            return
        family = "ipv6" if sock.family == socket.AF_INET6 else "ipv4"
        name = f"{family}:{join_address(str(peer[0]), int(peer[1]))}"
        try:
            self._open[self._connection(sock, account, name)] = name
        except OSError:
            account.closed()
            sock.close()

    def _connection(self, sock: socket.socket, account: Account, name: str) -> Connection:
        def accept(stream: Http2Stream, headers: Headers) -> None:
            self._accept(stream, headers, name, account)

        limits = self.limits
        connection = Connection(
            sock,
            message_bytes_max=limits.message_bytes_max if limits else MESSAGE_BYTES_MAX,
            streams_max=limits.streams_per_connection_max if limits else STREAMS_MAX,
            accept=accept,
            on_end=self._ended,
        )
        connection.account = account
        return connection

    def _has_room(self, account: Account) -> bool:
        """Whether one more connection of this peer is taken; others may have to go for it."""
        limits = self.limits
        if limits is None or len(self._open) < limits.connections_max + SPARE_CONNECTIONS:
            return True
        return self._make_room(account)

    def _make_room(self, account: Account) -> bool:
        """Close a connection of the address that has most: an idle one, else its newest.

        An address that has as many as any other only gives up what it does not use.
        """
        heaviest = self.budget.heaviest_address()
        if heaviest is None or heaviest.connections <= account.connections + 1:
            heaviest = account
        theirs = [each for each in self._open if each.account is heaviest]
        idle = [each for each in theirs if each.is_idle]
        if idle:
            victim = min(idle, key=lambda each: each.used_s)
        elif theirs and heaviest is not account:
            victim = theirs[-1]
        else:
            return False
        victim.turn_away("there is no room for all connections of its address")
        return True

    def _ended(self, connection: Connection) -> None:
        if self._open.pop(connection, None) is not None and connection.account is not None:
            connection.account.closed()
        if self._left is not None and not self._left.done():
            self._left.set_result(None)

    def _look_for_idle(self) -> None:
        """Connections on which nothing happens for long are closed."""
        loop = asyncio.get_running_loop()
        self._looking = loop.call_later(IDLE_LOOK_S, self._look_for_idle)
        assert self.limits is not None
        since_s = loop.time() - self.limits.idle_ms / 1_000
        unused_s = loop.time() - FIRST_CALL_S
        for connection in list(self._open):
            is_unused = not connection.has_served and connection.used_s < unused_s
            if connection.is_idle and (is_unused or connection.used_s < since_s):
                connection.go_away()
                connection.close("nobody used it")

    def _accept(self, stream: Http2Stream, fields: Headers, peer: str, account: Account) -> None:
        found = self._methods.get(fields.get(":path", ""))
        if found is None or not fields.get("content-type", "").startswith("application/grpc"):
            _end_at_once(stream, STATUS_UNIMPLEMENTED, f"no method {fields.get(':path', '')!r}")
            return
        serving = _Serving(stream, *found, peer)
        stream.limit_messages(found[0].request_bytes_max)
        serving.encoding = fields.get("grpc-encoding", "")
        serving.answer_bytes_max = _answer_bytes_max(fields)
        refusal = account.enter(peer, serving)
        if refusal:
            _end_at_once(stream, STATUS_EXHAUSTED, f"{Overloaded.code}: {refusal}")
            return
        connections = self.connections
        if connections is not None and connections.is_counted(found[0].name):
            full = self._enter(connections, peer, account)
            if full is not None:
                account.leave(peer, serving)
                _end_at_once(stream, _UNAVAILABLE, f"{full.code}: {full}")
                return
        else:
            connections = None
        stream.owner = serving
        timeout_ms = h2.read_timeout_ms(fields.get("grpc-timeout", ""))
        task = asyncio.get_running_loop().create_task(serving.run(timeout_ms))
        serving.task = task
        self._running[task] = None

        def done(task: asyncio.Task[None]) -> None:
            self._running.pop(task, None)
            # One that was cancelled before it ran has told nobody.
            serving.break_off()
            account.leave(peer, serving)
            if connections is not None:
                connections.leave(peer)

        task.add_done_callback(done)

    def _enter(
        self, connections: Connections, peer: str, account: Account
    ) -> TooManyConnections | None:
        """Let a connection in; when there are too many, at the cost of who has most."""
        if not connections.is_full_for(peer):
            return connections.enter(peer)
        heaviest = self.budget.busiest_address()
        if heaviest is None or len(heaviest.callers) <= len(account.callers) + 1:
            return connections.enter(peer)
        theirs = [each for each in self._open if each.account is heaviest and not each.is_idle]
        if theirs:
            theirs[-1].turn_away("there is no room for all connections of its address")
        return connections.enter(peer, is_room_made=bool(theirs))


class _Serving:
    """One call: its handler runs in a task, and every end is told to the caller."""

    def __init__(
        self, stream: Http2Stream, method: Method[Any, Any], handler: Handler, peer: str
    ) -> None:
        self.stream = stream
        self.method = method
        self.task: asyncio.Task[None] | None = None
        # How the caller compresses, and the largest answer that it takes; 0: any.
        self.encoding = ""
        self.answer_bytes_max = 0
        self._handler = handler
        self._peer = peer
        self._has_begun = False
        self._limit: asyncio.Timeout | None = None
        # What the caller is told when the handler is cancelled; and whether it was told of an end.
        self._refusal = _UNAVAILABLE, "the handler was cancelled"
        self._is_told = self._is_refused = False

    async def run(self, timeout_ms: float | None) -> None:
        CALLER.set(lambda: self._peer)
        try:
            if timeout_ms is None:
                await self._work()
            else:
                async with asyncio.timeout(timeout_ms / 1_000) as self._limit:
                    await self._work()
            await self._end()
        except StreamBroken:
            # The caller is gone.
            return
        except asyncio.CancelledError:
            self.break_off()
        except Exception as error:  # noqa: BLE001 - whatever it is, it is told.
            self._failed(error)

    def _failed(self, error: Exception) -> None:
        if self._is_refused or (self._is_late() and isinstance(error, TimeoutError)):
            self.break_off()
            return
        if isinstance(error, CallRefused):
            self._refusal = error.status, str(error)
        elif isinstance(error, _BadRequest):
            self._refusal = _INVALID, str(error)
        else:
            self._refusal = _INTERNAL, f"{type(error).__name__}: {error}"
            # It says that the stream is of no use, which is known already.
            is_gone = self._is_told and isinstance(error, Unreachable)
            is_gone = is_gone or isinstance(error.__cause__, StreamBroken)
            if not is_gone and self.stream.broken is None:
                _LOG.exception("%s failed", self.method.name)
        self.break_off()

    def _is_late(self) -> bool:
        return self._limit is not None and self._limit.expired()

    async def _work(self) -> None:
        method = self.method
        talk = _ServerStream[Any, Any](self)
        if method.kind is Kind.BIDI_STREAM:
            await self._handler(talk)
            return
        request = await self.stream.recv()
        if request is None:
            raise _BadRequest("a call without a request")
        try:
            asked = method.decode_request(request)
        except Exception as error:
            raise _BadRequest(f"a request that cannot be read: {error}") from error
        if method.kind is Kind.SERVER_STREAM:
            await self._handler(asked, talk)
        else:
            answer = await self._handler(asked)
            await self.send(method.encode_response(answer), last=True)

    async def send(self, message: Encoded, *, last: bool = False) -> None:
        """Raises StreamBroken."""
        if self.answer_bytes_max:
            self._check_size(message)
        before = b"" if self._has_begun else self._headers()
        self._has_begun = True
        pieces = (message,) if isinstance(message, bytes) else message
        after = self._last(_OK, "") if last else b""
        await self.stream.send(pieces, before=before, after=after)
        if last:
            self._finished()

    def _check_size(self, message: Encoded) -> None:
        size = len(message) if isinstance(message, bytes) else sum(map(len, message))
        if size > self.answer_bytes_max:
            detail = f"an answer of {size} bytes; the caller takes {self.answer_bytes_max}"
            self.on_refused(STATUS_EXHAUSTED, f"{detail} ({ANSWER_BYTES_MAX_KEY})")
            raise StreamBroken(detail)

    async def _end(self) -> None:
        """In order; what its tasks are in the middle of sending goes first."""
        if not self.stream.has_finished:
            await self.stream.finish(self._last(_OK, ""))
            self._finished()

    def break_off(self) -> None:
        """Tell the caller at once that it ends otherwise, unless it knows or is gone."""
        stream = self.stream
        if self._is_told or stream.broken is not None or stream.has_finished:
            return
        self._is_told = True
        refusal = (_DEADLINE, "the time of the call is over") if self._is_late() else self._refusal
        if stream.is_sending or stream.is_torn:
            # Within a message nothing else can be said.
            is_too_much = refusal[0] == STATUS_EXHAUSTED
            stream.reset(h2.CALM_DOWN if is_too_much else h2.INTERNAL_ERROR, refusal[1])
            return
        try:
            stream.wire.write((data := self._last(*refusal),), len(data))
        except StreamBroken:
            # Who is gone needs not be told.
            return
        self._finished()

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

    def _last(self, status: int, detail: str) -> bytes:
        """The frame that ends the stream."""
        if not self._has_begun:
            return _only_trailers(self.stream.number, status, detail)
        flags = h2.END_HEADERS | h2.END_STREAM
        return h2.frame(h2.HEADERS, flags, self.stream.number, _status_block(status, detail))

    def cancel(self) -> None:
        if self.task is not None:
            self.task.cancel()

    # What the stream tells.

    def on_headers(self, fields: dict[str, str], *, end: bool) -> None:
        """Clients of gRPC send no trailers."""

    def shed(self, detail: str) -> None:
        """The budget has no room for this call."""
        self.on_refused(STATUS_EXHAUSTED, f"{Overloaded.code}: {detail}")

    def on_refused(self, status: int, detail: str) -> None:
        if status == STATUS_UNIMPLEMENTED and self.encoding in {"", "identity"}:
            # As gRPC says of a compressed message of a caller that never said how.
            status, detail = _INTERNAL, "a compressed message without grpc-encoding"
        self._refusal = status, detail
        self._is_refused = True
        self.cancel()

    def on_broken(self, reason: str) -> None:
        if not self._is_told and not self.stream.has_finished:
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
            # The message is lost, or half of it: this cannot end in order any more.
            self._broken = True
            serving.break_off()
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
        try:
            received: Q = serving.method.decode_request(message)
        except Exception as error:
            raise _BadRequest(f"a message that cannot be read: {error}") from error
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
    stream.wire.on_reset_here(stream.number)
    stream.has_finished = True
    stream.wire.write((data,), len(data))
    stream.on_broken("it is not served")


def _only_trailers(number: int, status: int, detail: str) -> bytes:
    block = _ANSWER + _status_block(status, detail)
    return h2.frame(h2.HEADERS, h2.END_HEADERS | h2.END_STREAM, number, block)


def _status_block(status: int, detail: str) -> bytes:
    if status == _OK:
        return _FINE
    written = h2.write_detail(detail[:DETAIL_CHARACTERS_MAX])
    fields = [("grpc-status", str(status)), ("grpc-message", written)]
    if status == STATUS_UNIMPLEMENTED:
        fields.append(("grpc-accept-encoding", "identity"))
    return h2.header_block(fields)


def _answer_bytes_max(fields: Headers) -> int:
    text = fields.get(ANSWER_BYTES_MAX_KEY, "")
    is_number = text.isascii() and text.isdigit() and len(text) <= ANSWER_DIGITS_MAX
    return int(text) if is_number else 0


_FINE: Final = h2.header_block([("grpc-status", "0")])
