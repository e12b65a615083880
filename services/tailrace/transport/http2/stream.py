"""One stream of a connection: messages in both directions, each within what the other side allows.

Messages are those of gRPC: five bytes of head and the message itself. One that arrives whole within
what was read from the socket is copied out of it once; a larger one gets memory of its own, into
which the connection reads the rest of it straight from the socket. A message is sent from where it
lies, in as few frames as the other side takes.

Memory is bounded: the other side may send STREAM_WINDOW_BYTES beyond what was taken, and the rest
of the message that it is in the middle of. What is held counts in the budget of the process, which
may have it given up (`shed`). The connection as a whole withholds nothing for what
nobody takes: otherwise a few streams that nobody reads would stop all others on it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, Protocol, TypeAlias

import pyarrow as pa

from tailrace.errors import Overloaded
from tailrace.transport.budget import Account
from tailrace.transport.http2.frames import (
    CANCEL,
    DATA,
    END_STREAM,
    FLOW_CONTROL_ERROR,
    MESSAGE_HEAD,
    MESSAGE_HEAD_BYTES,
    PROTOCOL_ERROR,
    WINDOW_MAX,
    BadFrame,
    head,
    reset,
    window_update,
)

Bytes: TypeAlias = bytes | memoryview

STREAM_WINDOW_BYTES: Final = 4 << 20
# From here on the memory of a message is Arrow's, which is not cleared before it is used.
ARROW_BYTES_MIN: Final = 64 << 10

# Not that of Arrow itself, which gives freed memory back soon: see process.keep_freed_memory.
_POOL: Final = pa.system_memory_pool()

STATUS_EXHAUSTED: Final = 8
STATUS_UNIMPLEMENTED: Final = 12


class Credit:
    """What the other side may send, in lumps of half a window; pure."""

    __slots__ = ("_half", "_window", "owed", "unread")

    def __init__(self, window: int) -> None:
        self._window = window
        self._half = window // 2
        # What came since we last gave credit, and how much of that nobody has taken yet.
        self.owed = 0
        self.unread = 0

    def due(self) -> int:
        """What is to be allowed again now; it counts as done."""
        free = self.owed - self.unread
        if free < self._half:
            return 0
        self.owed -= free
        return free

    def check(self, size: int) -> None:
        """Before so many bytes come: more than it may send breaks the rules."""
        if self.owed + size > self._window:
            raise BadFrame("more data than was allowed", FLOW_CONTROL_ERROR)


class StreamBroken(Exception):
    """The stream was reset by the other side, or its connection is gone."""


class Wire(Protocol):
    """What a stream needs of its connection."""

    window: int
    frame_bytes_max: int
    account: Account | None
    """Where bytes that are held are counted; none on the side of clients."""
    messages_sent: int
    waiting: dict[Http2Stream, None]
    """Streams that wait for a window, their own or that of the connection, in their order."""

    def write(self, pieces: Sequence[Bytes], size: int) -> None:
        """Raises StreamBroken when the connection is gone."""

    @property
    def is_clogged(self) -> bool: ...

    async def drained(self) -> None:
        """Until the connection is not clogged."""

    def forget(self, stream: int) -> None:
        """The stream has ended on both sides."""

    def on_reset_here(self, stream: int) -> None:
        """The other side is told that the stream is broken, and may not know it yet."""


class Owner(Protocol):
    """Who uses a stream, and is told what happens on it."""

    def on_headers(self, fields: dict[str, str], *, end: bool) -> None: ...

    def on_refused(self, status: int, detail: str) -> None:
        """What the other side sends is not taken; the stream is of no use any more."""

    def on_broken(self, reason: str) -> None: ...


class Http2Stream:
    """One stream; one task receives, any number may send."""

    __slots__ = (
        "_filled",
        "_head",
        "_inbox",
        "_message",
        "_message_bytes_max",
        "_receiver",
        "_sending",
        "_unsent",
        "_window_waiter",
        "at_end",
        "broken",
        "credit",
        "has_finished",
        "held",
        "is_deaf",
        "is_torn",
        "length_left",
        "number",
        "owner",
        "window",
        "wire",
    )

    def __init__(self, wire: Wire, number: int, *, window: int, message_bytes_max: int) -> None:
        self.wire = wire
        self.number = number
        self.window = window
        self.owner: Owner | None = None
        self.credit = Credit(STREAM_WINDOW_BYTES)
        # The other side has finished; we have; why nothing can be done any more.
        self.at_end = False
        self.has_finished = False
        self.broken: str | None = None
        # Nobody wants to hear what still comes: it is thrown away.
        self.is_deaf = False
        # Half a message of ours is on its way; unless somebody is sending, the rest will not come.
        self.is_torn = False
        # How much data is still to come, where the other side has said it.
        self.length_left: int | None = None
        # What counts in the budget: bytes that came and were not taken, and those of an answer
        # that waits for a window.
        self.held = 0
        self._unsent = 0
        self._message_bytes_max = message_bytes_max
        self._sending = asyncio.Lock()
        self._window_waiter: asyncio.Future[None] | None = None
        self._receiver: asyncio.Future[None] | None = None
        self._inbox: deque[Bytes] = deque()
        # The message that is coming: its head, then its bytes and how many there are.
        self._head = b""
        self._message: memoryview | None = None
        self._filled = 0

    def limit_messages(self, bytes_max: int) -> None:
        """Take no larger message than this, if that is less than what the connection takes."""
        self._message_bytes_max = min(self._message_bytes_max, bytes_max)

    # Sending.

    async def send(
        self,
        pieces: Sequence[Bytes],
        *,
        before: bytes = b"",
        after: bytes = b"",
        end: bool = False,
    ) -> None:
        """Send a message that consists of these pieces, between two runs of whole frames.

        What stands before it is sent at once, whatever comes after has to wait for.
        """
        async with self._sending:
            self._check_sending()
            size = sum(map(len, pieces))
            whole = size + MESSAGE_HEAD_BYTES
            wire = self.wire
            if wire.is_clogged:
                if before:
                    wire.write((before,), len(before))
                    before = b""
                await self._drained()
            flags = END_STREAM if end else 0
            wire.messages_sent += 1
            if whole <= self.window and whole <= wire.window and whole <= wire.frame_bytes_max:
                self.window -= whole
                wire.window -= whole
                start = before + head(whole, DATA, flags, self.number) + MESSAGE_HEAD.pack(0, size)
                wire.write((start, *pieces, after), len(start) + size + len(after))
            else:
                await self._send_parts((MESSAGE_HEAD.pack(0, size), *pieces), before, after, flags)
            if end:
                self.has_finished = True
                self._close_if_done()

    async def _send_parts(
        self, pieces: Sequence[Bytes], before: bytes, after: bytes, flags: int
    ) -> None:
        """Send a message in as many frames as it takes, as the other side gives credit."""
        rest = deque(memoryview(each) for each in pieces if each)
        left = sum(map(len, rest))
        wire = self.wire
        if before:
            wire.write((before,), len(before))
        while left:
            size = min(left, self.window, wire.window, wire.frame_bytes_max)
            if size <= 0:
                await self._more_window(left)
                continue
            self.window -= size
            wire.window -= size
            left -= size
            start = head(size, DATA, 0 if left else flags, self.number)
            wire.write((start, *_cut(rest, size)), len(start) + size)
            self.is_torn = left > 0
            if left and wire.is_clogged:
                await self._drained()
        if after:
            wire.write((after,), len(after))

    async def _more_window(self, left: int) -> None:
        """Who gets nothing of what is allowed keeps its place; who got something lines up anew."""
        wire = self.wire
        wire.waiting[self] = None
        self._unsent = left
        self._hold(left)
        try:
            while min(self.window, wire.window) <= 0:
                waiter = self._window_waiter = asyncio.get_running_loop().create_future()
                await waiter
                self._check_sending()
        finally:
            self._window_waiter = None
            wire.waiting.pop(self, None)
            # Nothing, when all that was held was given up meanwhile.
            size, self._unsent = self._unsent, 0
            self._release(size)

    async def _drained(self) -> None:
        await self.wire.drained()
        self._check_sending()

    async def finish(self, last: bytes) -> None:
        """Send the frames that end our side: nothing follows them."""
        async with self._sending:
            if self.wire.is_clogged:
                await self.wire.drained()
            if self.has_finished or self.broken is not None:
                return
            self.has_finished = True
            self.wire.write((last,), len(last))
            self._close_if_done()

    def reset(self, code: int = CANCEL, reason: str = "the stream was cancelled here") -> None:
        """Break it, and tell the other side."""
        if self.broken is not None:
            return
        if not (self.at_end and self.has_finished):
            self.wire.on_reset_here(self.number)
            # Who cannot be told needs not be told.
            with suppress(StreamBroken):
                self.wire.write((data := reset(self.number, code),), len(data))
        self.on_broken(reason)

    def hang_up(self, code: int) -> None:
        """Send no more, and tell the other side to send no more; what has come can be taken."""
        if self.broken is not None or (self.has_finished and self.at_end):
            return
        self.has_finished = True
        self.wire.on_reset_here(self.number)
        try:
            self.wire.write((data := reset(self.number, code),), len(data))
        except StreamBroken:
            # Who cannot be told needs not be told.
            return
        _wake(self._window_waiter)
        self.wire.forget(self.number)

    @property
    def is_sending(self) -> bool:
        """Whether somebody is in the middle of a message."""
        return self._sending.locked()

    def check(self) -> None:
        if self.broken is not None:
            raise StreamBroken(self.broken)

    def _check_sending(self) -> None:
        self.check()
        if self.has_finished:
            raise StreamBroken("the stream has ended")

    def _close_if_done(self) -> None:
        if self.at_end and self.has_finished:
            self.wire.forget(self.number)

    # Receiving.

    async def recv(self) -> Bytes | None:
        """The next message; None when the other side has finished."""
        inbox = self._inbox
        while not inbox:
            self.check()
            if self.at_end:
                return None
            waiter = self._receiver = asyncio.get_running_loop().create_future()
            try:
                await waiter
            finally:
                self._receiver = None
        message = inbox.popleft()
        size = len(message) + MESSAGE_HEAD_BYTES
        self.credit.unread -= size
        self._release(size)
        self._give_credit()
        return message

    def _hold(self, size: int) -> None:
        account = self.wire.account
        if account is not None:
            account.hold(self, size)

    def _release(self, size: int) -> None:
        account = self.wire.account
        if account is not None and size:
            account.release(self, size)

    def shed(self, detail: str) -> None:
        """The budget has no room for what is held here."""
        self.drop()
        self._refuse(STATUS_EXHAUSTED, f"{Overloaded.code}: {detail}")

    def _give_credit(self) -> None:
        due = self.credit.due()
        if due and not (self.is_deaf or self.at_end):
            update = window_update(self.number, due)
            self.wire.write((update,), len(update))

    # What the connection tells.

    def on_headers(self, fields: dict[str, str], *, end: bool) -> None:
        if end:
            self.on_end()
        if self.owner is not None:
            self.owner.on_headers(fields, end=end)

    def room(self, size: int) -> memoryview | None:
        """Where the next bytes of the message go, up to so many; None when they are to be told."""
        if self._message is None:
            return None
        return self._message[self._filled : self._filled + size]

    @property
    def is_inside(self) -> bool:
        """Whether a message has begun and not ended."""
        return self._message is not None or bool(self._head)

    def on_filled(self, size: int) -> None:
        """So many bytes stand in `room`."""
        self._fill(size)
        self._hold(size)

    def _fill(self, size: int) -> None:
        message = self._message
        assert message is not None
        self._filled += size
        if self._filled == len(message):
            self._message = None
            self._arrived(message)

    def on_data(self, data: memoryview) -> None:
        """Bytes of messages; they stand there only now."""
        self._take(data)
        if not self.is_deaf:
            self._hold(len(data))

    def _take(self, data: memoryview) -> None:
        at, end = 0, len(data)
        while at < end and not self.is_deaf:
            room = self.room(end - at)
            if room is not None:
                room[:] = data[at : at + len(room)]
                at += len(room)
                self._fill(len(room))
                continue
            missing = MESSAGE_HEAD_BYTES - len(self._head)
            self._head += data[at : at + missing]
            at += missing
            if at > end:
                return
            compressed, size = MESSAGE_HEAD.unpack(self._head)
            self._head = b""
            if compressed:
                self._refuse(STATUS_UNIMPLEMENTED, "compressed messages are not taken")
            elif size > self._message_bytes_max:
                limit = self._message_bytes_max
                self._refuse(STATUS_EXHAUSTED, f"a message of {size} bytes is larger than {limit}")
            elif size <= end - at:
                self._arrived(bytes(data[at : at + size]))
                at += size
            else:
                self._expect(size)

    def _expect(self, size: int) -> None:
        """A message of this size follows, in pieces. Its memory is not touched before they come."""
        self._filled = 0
        try:
            self._message = _memory(size)
        except MemoryError:
            self._refuse(STATUS_EXHAUSTED, f"there is no memory for a message of {size} bytes")

    def _refuse(self, status: int, detail: str) -> None:
        # What follows is the inside of a message: no head of another.
        self.is_deaf = True
        if self.owner is not None:
            self.owner.on_refused(status, detail)

    def _arrived(self, message: Bytes) -> None:
        self.credit.unread += len(message) + MESSAGE_HEAD_BYTES
        self._inbox.append(message)
        _wake(self._receiver)

    def on_counted(self, size: int) -> None:
        """So many bytes came, in whatever form: they count against what we allow."""
        self.credit.owed += size
        self._give_credit()

    def on_window(self, size: int) -> None:
        """So much more may be sent (or less)."""
        self.window += size
        if self.window > WINDOW_MAX:
            raise BadFrame("a window that is larger than any", FLOW_CONTROL_ERROR)
        _wake(self._window_waiter)

    def on_end(self) -> None:
        """The other side has finished."""
        self.at_end = True
        if self.is_inside:
            self.reset(PROTOCOL_ERROR, "it ended within a message")
            return
        if self.length_left:
            self.reset(PROTOCOL_ERROR, "it ended before the length that it had named")
            return
        _wake(self._receiver)
        self._close_if_done()

    def on_broken(self, reason: str) -> None:
        if self.broken is not None:
            return
        self.broken = reason
        self.drop()
        _wake(self._window_waiter)
        _wake(self._receiver)
        self.wire.forget(self.number)
        if self.owner is not None:
            self.owner.on_broken(reason)

    def drop(self) -> None:
        """What has come and was not taken will not be taken, nor what comes."""
        self.is_deaf = True
        self._message = None
        self._head = b""
        self.credit.unread = 0
        self._inbox.clear()
        self._unsent = 0
        self._release(self.held)


def _wake(waiter: asyncio.Future[None] | None) -> None:
    if waiter is not None and not waiter.done():
        waiter.set_result(None)


def _cut(rest: deque[memoryview], size: int) -> list[memoryview]:
    """Take so many bytes off the front."""
    taken: list[memoryview] = []
    while size:
        piece = rest.popleft()
        if len(piece) > size:
            rest.appendleft(piece[size:])
            piece = piece[:size]
        taken.append(piece)
        size -= len(piece)
    return taken


def _memory(size: int) -> memoryview:
    if size < ARROW_BYTES_MIN:
        return memoryview(bytearray(size))
    return memoryview(pa.allocate_buffer(size, _POOL)).cast("B")
