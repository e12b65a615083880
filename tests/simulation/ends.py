"""The ends of simulated connections: the answer to a call, streams, links, with back-pressure.

An end belongs to one process. What arrives comes from outside of it (`simulation.fabric`); what it
sends goes into its pipe. It knows what to do when the other end finishes, breaks or is behind.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, Generic, Protocol, TypeVar

from simulation.fabric import SILENCE_MS_MAX, Connection, Fabric, Pipe
from simulation.loop import Process
from tailrace.errors import InvalidRequest, RequestTimedOut, StorageError, Unreachable
from tailrace.log.file_cache import FileCache
from tailrace.transport.links import ReceivedFrame
from tailrace.transport.rpc import (
    LINK_HEADER_BYTES_MAX,
    LINK_PAYLOAD_BYTES_MAX,
    MESSAGE_BYTES_MAX,
    Encoded,
    Payload,
    joined,
)

Q = TypeVar("Q")
R = TypeVar("R")

# How far a sender may be ahead of the receiver: gRPC's window, and the kernel's buffers.
STREAM_BYTES_AHEAD_MAX: Final = 256 << 10
LINK_BYTES_AHEAD_MAX: Final = 1 << 20
FRAME_LENGTHS_BYTES: Final = 8
POISON: Final = 0xDB


class Host(Protocol):
    """Whose end it is."""

    name: str
    process: Process

    @property
    def network(self) -> Fabric: ...


class WireEnd:
    """One end of a connection; `out` leads away from it."""

    keepalive_by_process = True

    def __init__(self, host: Host, connection: Connection, out: Pipe) -> None:
        self.host = host
        self.connection = connection
        self.out = out
        self.into = connection.back if out is connection.there else connection.there
        self.into.end = self
        self.reason: str | None = None
        self.on_close: Callable[[], object] = _nothing

    def arrived(self, item: Any, size: int) -> None:
        raise NotImplementedError

    def ended(self) -> None:
        raise NotImplementedError

    def room(self) -> None: ...

    def broke(self, reason: str) -> None:
        """The connection is no more."""
        if self.reason is None:
            self.reason = reason
            self.out.shut()
            self._leave()

    def abandon(self, reason: str) -> None:
        """We want no more of it: tell the other side, which then breaks too."""
        if self.reason is None:
            self.reason = reason
            self.into.cut()
            self.out.put(0, self.out.break_end, reason)
            self.out.shut()
            self._leave()

    def _leave(self) -> None:
        self.connection.close_end(self.out)
        self.on_close()


class Answer(WireEnd, Generic[R]):
    """Waits for the one answer to a call, a knock or an attempt to connect."""

    def __init__(self, host: Host, connection: Connection) -> None:
        super().__init__(host, connection, connection.there)
        self._future: asyncio.Future[R] = host.network.loop.create_future()
        self.early: list[tuple[Any, int]] = []
        self.early_end: Callable[[WireEnd], None] | None = None

    async def within(self, timeout_ms: int) -> R:
        loop = self.host.network.loop
        timer = loop.call_later(timeout_ms / 1_000, self._timed_out, timeout_ms)
        try:
            return await self._future
        finally:
            timer.cancel()

    def arrived(self, item: Any, size: int) -> None:
        if self._future.done():
            self.early.append((item, size))
        else:
            self._future.set_result(item)

    def ended(self) -> None:
        self.early_end = lambda end: end.ended()

    def broke(self, reason: str) -> None:
        if not self._future.done():
            super().broke(reason)
            self._future.set_exception(Unreachable(f"{self.out.target}: {reason}"))
        else:
            self.early_end = lambda end: end.broke(reason)

    def abandon(self, reason: str) -> None:
        super().abandon(reason)
        if not self._future.done():
            self._future.set_exception(Unreachable(f"{self.out.target}: {reason}"))

    def close(self) -> None:
        """The call is over, one way or another; if it was not answered, its handler is told."""
        future = self._future
        failed = not future.done() or future.cancelled() or future.exception() is not None
        if failed:
            super().abandon("cancelled")
        elif self.reason is None:
            self.reason = "answered"
            self._leave()

    def _timed_out(self, timeout_ms: int) -> None:
        if not self._future.done():
            error = f"{self.out.target} did not answer within {timeout_ms} ms"
            self._future.set_exception(RequestTimedOut(error))


class Flow(WireEnd):
    """An end with a queue of what has arrived, and with back-pressure."""

    ahead_bytes_max = STREAM_BYTES_AHEAD_MAX

    def __init__(self, host: Host, connection: Connection, out: Pipe) -> None:
        super().__init__(host, connection, out)
        self._inbox: deque[tuple[Any, int]] = deque()
        self._finished = False
        self._receiving: asyncio.Future[None] | None = None
        self._sending: deque[asyncio.Future[None]] = deque()

    def arrived(self, item: Any, size: int) -> None:
        if self.reason is None:
            self._inbox.append((item, size))
            _wake(self._receiving)

    def ended(self) -> None:
        if self.reason is None:
            self._finished = True
            _wake(self._receiving)

    def room(self) -> None:
        if self.out.ahead_bytes <= self.ahead_bytes_max:
            while self._sending:
                _wake(self._sending.popleft())

    def _leave(self) -> None:
        super()._leave()
        _wake(self._receiving)
        while self._sending:
            _wake(self._sending.popleft())

    def abandon(self, reason: str) -> None:
        self._inbox.clear()
        super().abandon(reason)

    def _check_sendable(self) -> None:
        self.host.process.check_alive()
        if self.reason is not None:
            raise Unreachable(f"{self.out.target}: {self.reason}")

    async def _put(self, item: Any, size: int) -> None:
        """Send it, then wait until the other side is not too far behind."""
        self._check_sendable()
        if self.host.network.loses(self.out):
            self.connection.lose(self.out, "connection reset")
            return
        self.out.ahead_bytes += size
        self.out.put(size, self._hand_over, item, size)
        if self.out.ahead_bytes > self.ahead_bytes_max:
            await self._wait_for_room()

    async def _wait_for_room(self) -> None:
        loop = self.host.network.loop
        timer = None
        if not self.keepalive_by_process:
            # The kernel gives a connection up on which it gets rid of nothing.
            timer = loop.call_later(SILENCE_MS_MAX / 1_000, self.abandon, "nothing is taken")
        try:
            while self.out.ahead_bytes > self.ahead_bytes_max:
                waiter = loop.create_future()
                self._sending.append(waiter)
                await waiter
                self._check_sendable()
        finally:
            if timer is not None:
                timer.cancel()

    async def _take(self) -> Any:
        """The next item; None when the other side has finished."""
        self.host.process.check_alive()
        while not self._inbox:
            if self._finished:
                return None
            if self.reason is not None:
                raise Unreachable(f"{self.out.target}: {self.reason}")
            self._receiving = self.host.network.loop.create_future()
            try:
                await self._receiving
            finally:
                self._receiving = None
        item, size = self._inbox.popleft()
        self.into.ahead_bytes -= size
        peer = self.out.end
        if peer is not None:
            peer.room()
        return item

    def _hand_over(self, item: Any, size: int) -> None:
        peer = self.out.end
        if peer is not None:
            peer.arrived(item, size)

    def _end_peer(self) -> None:
        peer = self.out.end
        if peer is not None:
            peer.ended()


class SimStream(Flow, Generic[Q, R]):
    """One end of a stream; what it sends is `Q`."""

    def __init__(
        self,
        host: Host,
        connection: Connection,
        out: Pipe,
        codec: tuple[Callable[[Q], Encoded], Callable[[bytes], Q]],
    ) -> None:
        super().__init__(host, connection, out)
        self._codec = codec
        self._finishing = False

    async def send(self, message: Q) -> None:
        if self._finishing:
            raise InvalidRequest("this end has finished already")
        copy, size = copied(self.host.network, message, *self._codec)
        try:
            await self._put(copy, size)
        except asyncio.CancelledError:
            self.abandon("a send was cancelled")
            raise

    async def recv(self) -> R | None:
        try:
            received: R | None = await self._take()
        except asyncio.CancelledError:
            self.abandon("a recv was cancelled")
            raise
        return received

    async def finish(self) -> None:
        if not self._finishing and self.reason is None and self.out is self.connection.there:
            self._finishing = True
            self.out.put(0, self._end_peer)

    def cancel(self) -> None:
        self.abandon("cancelled")

    def completed(self) -> None:
        """At the client: the handler has returned; what came before can still be received."""
        self.ended()
        if self.reason is None:
            self.reason = "the stream has ended"
            self.out.shut()
            self._leave()


class ServerStream(SimStream[Q, R]):
    """The end of a stream in its handler, which is cancelled when the client is gone."""

    task: asyncio.Task[None] | None = None

    def broke(self, reason: str) -> None:
        if self.reason is None:
            # First: what waits must end by being cancelled, not by Unreachable.
            cancel_later(self.host, self.task)
            super().broke(reason)

    def complete(self) -> None:
        if self.reason is None:
            self.reason = "the handler has returned"
            self.into.cut()
            self.out.put(0, self._complete_peer)
            self._leave()

    def _complete_peer(self) -> None:
        peer = self.out.end
        if isinstance(peer, SimStream):
            peer.completed()


class ServerCall(WireEnd):
    """The end of a unary call in its handler."""

    task: asyncio.Task[None] | None = None

    def broke(self, reason: str) -> None:
        if self.reason is None:
            # First: what waits must end by being cancelled, not by Unreachable.
            cancel_later(self.host, self.task)
            super().broke(reason)

    def answer(self, response: Any, size: int) -> None:
        if self.reason is not None:
            return
        self.reason = "answered"
        if self.host.network.loses(self.out):
            self.connection.lose(self.out, "connection reset")
        else:
            self.out.put(size, self._hand_over, response, size)
        self._leave()

    def _hand_over(self, response: Any, size: int) -> None:
        peer = self.out.end
        if peer is not None:
            peer.arrived(response, size)


class SimLink(Flow):
    """One end of a replica link. Its payloads are read when they are sent."""

    ahead_bytes_max = LINK_BYTES_AHEAD_MAX
    # The kernel answers for a process that is paused.
    keepalive_by_process = False

    def __init__(
        self, host: Host, connection: Connection, out: Pipe, cache: FileCache | None, peer: str
    ) -> None:
        super().__init__(host, connection, out)
        self.peer = peer
        self.cache = cache
        self._last: bytearray | None = None
        self._turn = asyncio.Lock()

    async def send(self, header: bytes, payload: Sequence[Payload] = ()) -> None:
        size = sum(part.size for part in payload)
        if len(header) > LINK_HEADER_BYTES_MAX or size > LINK_PAYLOAD_BYTES_MAX:
            raise InvalidRequest(f"a frame of {len(header)} + {size} bytes is larger than allowed")
        async with self._turn:
            self._check_sendable()
            data = b"".join(self._read(part) for part in payload)
            try:
                await self._put((header, data), FRAME_LENGTHS_BYTES + len(header) + size)
            except asyncio.CancelledError:
                self.abandon("a send was cancelled")
                raise

    async def recv(self) -> ReceivedFrame | None:
        if self._last is not None:
            # Whoever still looks at the last payload must not see what was there.
            self._last[:] = bytes([POISON]) * len(self._last)
            self._last = None
        received = await self._take()
        if received is None:
            return None
        header, data = received
        if not self.host.network.strict:
            return ReceivedFrame(header, memoryview(data))
        self._last = bytearray(data)
        return ReceivedFrame(header, memoryview(self._last))

    def close(self) -> None:
        if self.reason is None:
            self.reason = "closed here"
            self.into.cut()
            self.out.put(0, self._end_peer)
            self._leave()
            self._inbox.clear()

    def ended(self) -> None:
        super().ended()
        # What is sent to a socket that was closed is answered with a reset.
        while self._sending:
            _wake(self._sending.popleft())

    def _check_sendable(self) -> None:
        super()._check_sendable()
        if self._finished:
            raise Unreachable(f"{self.peer} has closed the link")

    def _read(self, part: Payload) -> bytes:
        if self.cache is None:
            raise StorageError("this link has no files")
        try:
            with self.cache.use(part.path) as file:
                data = file.read_at(part.position, part.size)
        except OSError as error:
            raise StorageError(f"cannot send {part.path}: {error}") from error
        if len(data) != part.size:
            raise StorageError(f"{part.path} has {len(data)} of {part.size} bytes")
        return data


def copied(
    network: Fabric, message: Q, encode: Callable[[Q], Encoded], decode: Callable[[bytes], Q]
) -> tuple[Q, int]:
    """The message as it arrives, and its size."""
    data = joined(encode(message))
    if len(data) > MESSAGE_BYTES_MAX:
        raise InvalidRequest(f"a message of {len(data)} bytes is larger than allowed")
    return decode(data) if network.strict else message, len(data)


def cancel_later(host: Host, task: asyncio.Task[None] | None) -> None:
    """Cancel a handler, in its process: behind what that has been given to do before."""
    if task is not None:
        host.network.loop.call_soon(task.cancel, context=host.process.context)


def _wake(waiter: asyncio.Future[None] | None) -> None:
    if waiter is not None and not waiter.done():
        waiter.set_result(None)


def _nothing() -> None: ...
