"""Replica links on plain sockets: log bytes go from file to socket without passing through Python.

A frame is: u32 header length, u32 payload length (little endian), the header, the payload; what
they mean is no business of this module (`proto/tailrace/v1/replica.proto` says it). A payload is
sent with `sendfile` from the page cache and received into one buffer that is used again.

There are no queues here: what the other side does not take stays in the kernel's buffers, at most
UNSENT_BYTES_MAX of it on our side, and then `send` waits. What nobody receives is not read.

Links that were opened and have not said who they are (no whole frame came yet) are counted apart,
have little memory and little time: those who only connect cannot take the place of followers.

Invariant: frames never mix. Whatever ends a `send` or a frame half-way closes the link.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import struct
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from tailrace.errors import CorruptFrame, InvalidRequest, StorageError, Unreachable
from tailrace.log.file_cache import CachedFile, FileCache
from tailrace.log.files import OpenFile
from tailrace.runtime import Tasks
from tailrace.transport.addresses import join_address, listening_socket, split_address
from tailrace.transport.budget import peer_address
from tailrace.transport.rpc import (
    LINK_HEADER_BYTES_MAX,
    LINK_PAYLOAD_BYTES_MAX,
    Link,
    Payload,
)
from tailrace.transport.sockets import connected, prepare

# Links that have said who they are; and others, which have so much time and memory to do it.
LINKS_MAX: Final = 1_024
SILENT_LINKS_MAX: Final = 256
HELLO_TIMEOUT_S: Final = 5.0
HELLO_BYTES_MAX: Final = 64 << 10
HELLO_BUFFER_BYTES: Final = 1 << 10
# A sender that never has to wait lets others run after this many bytes.
BYTES_PER_TURN: Final = 4 << 20
# Up to here one copy and one system call are cheaper than `sendfile`.
COPIED_BYTES_MAX: Final = 8 << 10
# A receive buffer starts small, grows with the frames that come, and shrinks after a giant.
RECEIVE_BYTES_MIN: Final = 256 << 10
RECEIVE_BYTES_KEPT: Final = 4 << 20
# Beyond the frame that is being read, only so much of the next one: it would have to be moved.
READ_AHEAD_BYTES: Final = 4 << 10

_LENGTHS: Final = struct.Struct("<II")
# What `sendfile` (or `fileno`) says when this file cannot be sent so; TLS and simulated files too.
_NO_SENDFILE: Final = {errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EBADF}
_LOG: Final = logging.getLogger(__name__)


class ReceivedFrame(NamedTuple):
    """A frame; the payload is overwritten by the next `recv`."""

    header: bytes
    payload: memoryview


class SocketLinks:
    """Opens and accepts links of one process; payloads come from its `cache` of open files."""

    def __init__(self, cache: FileCache) -> None:
        self._cache = cache

    async def connect(self, address: str, *, timeout_ms: int) -> SocketLink:
        sock: socket.socket | None = None
        try:
            async with asyncio.timeout(timeout_ms / 1_000):
                sock = await connected(address)
            return SocketLink(sock, self._cache, peer=address)
        except (OSError, TimeoutError) as error:
            if sock is not None:
                sock.close()
            reason = str(error) or f"no answer within {timeout_ms} ms"
            raise Unreachable(f"cannot connect to {address}: {reason}") from error

    async def listen(
        self, address: str, accept: Callable[[Link], Awaitable[None]]
    ) -> SocketLinkServer:
        sock = await listening_socket(address)
        host, _ = split_address(address)
        return SocketLinkServer(sock, self._cache, join_address(host, _port(sock)), accept)


class SocketLinkServer:
    """Listens; each link that is opened gets a task."""

    def __init__(
        self,
        sock: socket.socket,
        cache: FileCache,
        address: str,
        accept: Callable[[Link], Awaitable[None]],
    ) -> None:
        self.address = address
        self._sock = sock
        self._cache = cache
        self._accept = accept
        self._tasks = Tasks(self._failed)
        # Links that have not said who they are, by when they came, with their address.
        self._silent: dict[SocketLink, str] = {}
        self._timers: dict[SocketLink, asyncio.TimerHandle] = {}
        self._stopped = False
        asyncio.get_running_loop().add_reader(sock, self._on_connections)

    async def stop(self, *, grace_ms: int) -> None:
        if not self._stopped:
            self._stopped = True
            asyncio.get_running_loop().remove_reader(self._sock)
            self._sock.close()
        if grace_ms > 0:
            await self._tasks.wait(timeout_s=grace_ms / 1_000)
        await self._tasks.close()

    def _on_connections(self) -> None:
        try:
            sock, peer = self._sock.accept()
        except (BlockingIOError, ConnectionError):
            return
        except OSError as error:
            # Out of descriptors, most likely. The connection stays in the backlog.
            _LOG.warning("cannot accept a link on %s: %s", self.address, error)
            return
        if len(self._tasks) - len(self._silent) >= LINKS_MAX:
            _LOG.warning("%s has %d links, more than it takes", self.address, LINKS_MAX)
            sock.close()
            return
        if len(self._silent) >= SILENT_LINKS_MAX:
            self._turn_away()
        name = join_address(str(peer[0]), int(peer[1]))
        try:
            link = SocketLink(sock, self._cache, peer=name, on_hello=self._said_hello)
        except OSError:
            sock.close()
            return
        self._silent[link] = peer_address(str(peer[0]))
        self._timers[link] = asyncio.get_running_loop().call_later(
            HELLO_TIMEOUT_S, self._give_up, link, f"it said nothing for {HELLO_TIMEOUT_S:g} s"
        )
        self._tasks.spawn(f"link from {name}", self._serve(link))

    def _turn_away(self) -> None:
        """Close the oldest silent link of the address that has most of them."""
        counts = Counter(self._silent.values())
        heaviest = max(counts, key=counts.__getitem__)
        link = next(each for each, address in self._silent.items() if address == heaviest)
        self._give_up(link, f"{SILENT_LINKS_MAX} others wait")

    def _give_up(self, link: SocketLink, why: str) -> None:
        self._said_hello(link)
        link.end(f"the link from {link.peer} was closed before it said who it is: {why}")

    def _said_hello(self, link: SocketLink) -> None:
        self._silent.pop(link, None)
        timer = self._timers.pop(link, None)
        if timer is not None:
            timer.cancel()

    async def _serve(self, link: SocketLink) -> None:
        try:
            await self._accept(link)
        finally:
            self._said_hello(link)
            link.close()

    def _failed(self, name: str, error: BaseException) -> None:
        if isinstance(error, Unreachable):
            _LOG.info("%s ended: %s", name, error)
        else:
            _LOG.error("%s failed", name, exc_info=error)


class SocketLink:
    """One end of a link, on a socket that does not block."""

    def __init__(
        self,
        sock: socket.socket,
        cache: FileCache,
        *,
        peer: str,
        on_hello: Callable[[SocketLink], None] | None = None,
    ) -> None:
        """`on_hello`: of a link that was accepted; the first frame is its hello."""
        self.peer = peer
        self._on_hello = on_hello
        self._loop = asyncio.get_running_loop()
        self._cache = cache
        prepare(sock)
        self._sock = sock
        self._ended: Unreachable | None = None
        self._sending = asyncio.Lock()
        self._in_frame = False
        self._send_waiter: asyncio.Future[None] | None = None
        self._receive_waiter: asyncio.Future[None] | None = None
        self._watched = False
        self._inbox = _Inbox(is_silent=on_hello is not None)

    async def send(self, header: bytes, payload: Sequence[Payload] = ()) -> None:
        size = 0
        for part in payload:
            size += part.size
        if len(header) > LINK_HEADER_BYTES_MAX or size > LINK_PAYLOAD_BYTES_MAX:
            raise InvalidRequest(f"a frame of {len(header)} + {size} bytes is larger than allowed")
        head = _LENGTHS.pack(len(header), size) + header
        async with self._sending:
            self._check_open()
            try:
                if size:
                    await self._send_with_payload(head, payload, size)
                else:
                    await self._send_bytes(head, 0)
            except OSError as error:
                raise self._end_by(error) from error
            except BaseException as error:
                if self._in_frame:
                    self._end(f"the link to {self.peer} was closed within a frame: {error!r}")
                raise
            self._in_frame = False

    async def recv(self) -> ReceivedFrame | None:
        inbox = self._inbox
        inbox.discard()
        while True:
            self._check_open()
            try:
                frame = inbox.take()
                if frame is not None:
                    if self._on_hello is not None:
                        self._on_hello(self)
                        self._on_hello = None
                    return frame
                if inbox.at_end:
                    return None
                inbox.fill(self._sock)
            except BlockingIOError:
                await self._news()
            except (OSError, EOFError, CorruptFrame) as error:
                raise self._end_by(error) from error

    def close(self) -> None:
        self._end(f"the link to {self.peer} was closed here")

    # Sending.

    async def _send_with_payload(self, head: bytes, payload: Sequence[Payload], size: int) -> None:
        # All files are opened before anything is sent, and stay open until all is sent.
        files: list[CachedFile] = []
        try:
            for part in payload:
                files.append(_pin(self._cache, part.path))  # noqa: PERF401 - one may be missing.
            if size <= COPIED_BYTES_MAX:
                parts = [_read(each.file, part) for each, part in zip(files, payload, strict=True)]
                await self._send_bytes(b"".join((head, *parts)), 0)
                return
            await self._send_bytes(head, socket.MSG_MORE)
            for each, part in zip(files, payload, strict=True):
                await self._send_part(each.file, part)
        finally:
            for each in files:
                each.release()

    async def _send_bytes(self, data: bytes, flags: int) -> None:
        try:
            sent = self._sock.send(data, flags)
        except BlockingIOError:
            sent = 0
        while sent < len(data):
            self._in_frame = self._in_frame or sent > 0
            await self._writable()
            with suppress(BlockingIOError):
                sent += self._sock.send(memoryview(data)[sent:], flags)
        self._in_frame = True

    async def _send_part(self, file: OpenFile, part: Payload) -> None:
        """From file to socket by the kernel alone, or by a copy where it cannot do that."""
        target, position, left, turn = self._sock.fileno(), part.position, part.size, BYTES_PER_TURN
        while left:
            try:
                sent = os.sendfile(target, file.fileno(), position, left)
            except BlockingIOError:
                await self._writable()
                turn = BYTES_PER_TURN
                continue
            except OSError as error:
                if error.errno not in _NO_SENDFILE:
                    raise
                await self._send_bytes(_read(file, _Rest(part.path, position, left)), 0)
                return
            if not sent:
                raise StorageError(f"{part.path} ends at {position}, {left} bytes too early")
            position += sent
            left -= sent
            turn -= sent
            if left and turn <= 0:
                await asyncio.sleep(0)
                self._check_open()
                turn = BYTES_PER_TURN

    async def _writable(self) -> None:
        """Wait until the socket takes more. Closing the link ends the wait with Unreachable."""
        waiter = self._send_waiter = self._loop.create_future()
        self._loop.add_writer(self._sock, _wake, waiter)
        try:
            await waiter
        finally:
            self._send_waiter = None
            if self._ended is None:
                self._loop.remove_writer(self._sock)
        self._check_open()

    # Receiving.

    async def _news(self) -> None:
        """Wait until a whole frame is there, or none will come, or the link has ended."""
        waiter = self._receive_waiter = self._loop.create_future()
        if not self._watched:
            self._watched = True
            self._loop.add_reader(self._sock, self._on_readable)
        try:
            await waiter
        finally:
            self._receive_waiter = None

    def _on_readable(self) -> None:
        waiter = self._receive_waiter
        if waiter is None or waiter.done():
            # Nobody asks: leave it in the kernel, so that the sender notices that we are behind.
            self._watched = False
            self._loop.remove_reader(self._sock)
            return
        try:
            self._inbox.fill(self._sock)
        except BlockingIOError:
            return
        except (OSError, EOFError, CorruptFrame) as error:
            self._end_by(error)
            return
        if self._inbox.has_news:
            waiter.set_result(None)

    # Ending.

    def _check_open(self) -> None:
        if self._ended is not None:
            raise type(self._ended)(str(self._ended))

    def _end_by(self, error: OSError | EOFError | CorruptFrame) -> Unreachable:
        if isinstance(error, CorruptFrame):
            return self._end(f"{self.peer} {error}", CorruptFrame)
        return self._end(f"the link to {self.peer} broke: {error}")

    def end(self, reason: str) -> None:
        """As `close`, for another reason."""
        self._end(reason)

    def _end(self, reason: str, kind: type[Unreachable] = Unreachable) -> Unreachable:
        if self._ended is None:
            self._ended = kind(reason)
            if self._watched:
                self._loop.remove_reader(self._sock)
            if self._send_waiter is not None:
                self._loop.remove_writer(self._sock)
                _wake(self._send_waiter)
            if self._receive_waiter is not None:
                _wake(self._receive_waiter)
            self._sock.close()
        return type(self._ended)(str(self._ended))


class _Inbox:
    """The receive buffer: bytes from `_start` to `_end` have come and were not taken yet."""

    __slots__ = ("_buffer", "_end", "_frame_bytes", "_is_silent", "_payload", "_start", "at_end")

    def __init__(self, *, is_silent: bool = False) -> None:
        """`is_silent`: the first frame is to be small, and there is little memory before it."""
        self._is_silent = is_silent
        # Memory comes with the first byte.
        self._buffer = memoryview(b"")
        self._start = 0
        self._end = 0
        # Of the frame at `_start`, with lengths and header; 0 while that is not known.
        self._frame_bytes = 0
        self._payload: memoryview | None = None
        self.at_end = False

    @property
    def has_news(self) -> bool:
        """Whether a whole frame is there, or none will come."""
        size = self._frame_bytes
        return self.at_end or (size > 0 and self._end - self._start >= size)

    def take(self) -> ReceivedFrame | None:
        """The frame at the start of the buffer, if all of it has come."""
        size = self._frame_bytes or self._read_lengths()
        start = self._start
        if not size or self._end - start < size:
            return None
        header_start = start + _LENGTHS.size
        header_end = header_start + _LENGTHS.unpack_from(self._buffer, start)[0]
        header = bytes(self._buffer[header_start:header_end])
        self._is_silent = False
        self._payload = payload = self._buffer[header_end : start + size]
        self._start = start + size
        self._frame_bytes = 0
        return ReceivedFrame(header, payload)

    def discard(self) -> None:
        """The payload that was taken last is used no longer."""
        if self._payload is not None:
            try:
                self._payload.release()
            except BufferError:
                # Somebody holds on to it all the same (in a traceback, for example): leave it.
                rest = self._buffer[self._start : self._end]
                self._buffer = memoryview(bytearray(len(self._buffer)))
                self._buffer[self._start : self._end] = rest
            self._payload = None
        if self._start == self._end:
            self._start = self._end = 0
            if not RECEIVE_BYTES_MIN <= len(self._buffer) <= RECEIVE_BYTES_KEPT:
                self._buffer = memoryview(b"")

    def fill(self, sock: socket.socket) -> None:
        """Read what has come. EOFError when the other side has closed within a frame."""
        size = self._frame_bytes
        if not self._buffer:
            first = HELLO_BUFFER_BYTES if self._is_silent else RECEIVE_BYTES_MIN
            self._buffer = memoryview(bytearray(first))
        if self._start + (size or _LENGTHS.size) > len(self._buffer):
            self._make_room(size)
        limit = len(self._buffer)
        if size > RECEIVE_BYTES_MIN:
            limit = min(limit, self._start + size + READ_AHEAD_BYTES)
        count = sock.recv_into(self._buffer[self._end : limit])
        if count:
            self._end += count
            if not size:
                self._read_lengths()
        elif self._end > self._start:
            raise EOFError("the other side closed it within a frame")
        else:
            self.at_end = True

    def _make_room(self, size: int) -> None:
        """Move what is there to the front; double the buffer when it is full even so.

        It grows with what has come, not with what was announced: who only talks gets no memory.
        """
        have = self._end - self._start
        source, target = self._buffer[self._start : self._end], self._buffer
        if have == len(self._buffer):
            target = memoryview(bytearray(min(2 * have, size + READ_AHEAD_BYTES)))
        target[:have] = source
        self._buffer = target
        self._start, self._end = 0, have

    def _read_lengths(self) -> int:
        if self._end - self._start < _LENGTHS.size:
            return 0
        header_bytes, payload_bytes = _LENGTHS.unpack_from(self._buffer, self._start)
        if header_bytes > LINK_HEADER_BYTES_MAX or payload_bytes > LINK_PAYLOAD_BYTES_MAX:
            raise CorruptFrame(f"announced a frame of {header_bytes} + {payload_bytes} bytes")
        if self._is_silent and header_bytes + payload_bytes > HELLO_BYTES_MAX:
            raise CorruptFrame(f"began with a frame of {header_bytes} + {payload_bytes} bytes")
        self._frame_bytes = int(_LENGTHS.size + header_bytes + payload_bytes)
        return self._frame_bytes


class _Rest(NamedTuple):
    path: str
    position: int
    size: int


def _pin(cache: FileCache, path: str) -> CachedFile:
    try:
        return cache.use(path)
    except OSError as error:
        raise StorageError(f"cannot send {path}: {error}") from error


def _read(file: OpenFile, part: Payload) -> bytes:
    try:
        data = file.read_at(part.position, part.size)
    except OSError as error:
        raise StorageError(f"cannot send {part.path}: {error}") from error
    if len(data) != part.size:
        raise StorageError(
            f"{part.path} has {len(data)} of the {part.size} bytes at {part.position}"
        )
    return data


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


def _port(sock: socket.socket) -> int:
    port: int = sock.getsockname()[1]
    return port
