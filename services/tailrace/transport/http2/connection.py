"""One connection of HTTP/2 on a socket: frames in and out, credit, pings, and how it ends.

What is read goes into one small buffer, except the inside of large messages, which the kernel puts
where it belongs (`Http2Stream.room`). What is written goes to the socket at once, from where it
lies; what the socket does not take waits in a line. As long as that is longer than UNSENT_BYTES_MAX
nobody begins a message, so it has an end; who asks for answers all the same is cut off.

Invariant: after `ended` is set nothing is read or written, and no stream is left that waits.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import count, islice
from typing import Final

from tailrace.transport.budget import Account
from tailrace.transport.http2 import frames as h2
from tailrace.transport.http2.frames import BadFrame, HeaderDecoder
from tailrace.transport.http2.headers import BlockKind, Headers
from tailrace.transport.http2.stream import (
    STREAM_WINDOW_BYTES,
    Bytes,
    Credit,
    Http2Stream,
    StreamBroken,
)
from tailrace.transport.rpc import KEEPALIVE_MS, KEEPALIVE_TIMEOUT_MS
from tailrace.transport.sockets import UNSENT_BYTES_MAX, prepare

CONNECTION_WINDOW_BYTES: Final = 64 << 20
RECEIVE_BYTES: Final = 64 << 10
# Beyond the frame that is being read into its place, only so much: it would have to be moved.
READ_AHEAD_BYTES: Final = 4 << 10
# A connection that always has more to read lets others run after so many reads.
READS_PER_TURN: Final = 8
# A larger frame holds up the other streams of a connection.
SENT_FRAME_BYTES_MAX: Final = 4 << 20
# Messages leave no more than this unsent. The rest are answers (to pings, settings, calls that are
# refused): who asks for that many and does not read them is cut off.
_UNSENT_MESSAGE_BYTES: Final = UNSENT_BYTES_MAX + SENT_FRAME_BYTES_MAX
UNREAD_BYTES_MAX: Final = _UNSENT_MESSAGE_BYTES + 2 * UNSENT_BYTES_MAX
# A data frame beyond this is more than a stream may send at all.
TAKEN_FRAME_BYTES_MAX: Final = STREAM_WINDOW_BYTES
# Chores: frames that cost us more than who sends them (resets, priorities, pings, settings, small
# windows, data without a message, unknown frames), between two ticks. Each message that we send
# pays for some: those of gRPC send windows and pings with what they read.
CHORES_MAX: Final = 10_000
CHORES_PER_MESSAGE: Final = 4
# A call that is broken off costs as much as a few frames, and so does a new connection.
CHORES_OF_RESET: Final = 4
CHORES_OF_CONNECTION: Final = 4
# What wakes many streams is a chore for each so many of them.
STREAMS_PER_CHORE: Final = 16
# Less than this, of a window or of data that ends no message, carries nothing.
SMALL_WINDOW_BYTES: Final = 1 << 10
SMALL_DATA_BYTES: Final = 16
# Bytes of a frame that nobody understands, for each chore.
UNKNOWN_BYTES_PER_CHORE: Final = 1 << 10
# Streams that were broken off here: what still comes on them was sent before that was known.
RESETS_KNOWN_MAX: Final = 1_024
SKIPS_KNOWN_MAX: Final = 16
# As long as the server did not say how many streams it takes; no server should take less.
STREAMS_BEFORE_SETTINGS: Final = 100
HANDSHAKE_S: Final = 10.0
TICK_S: Final = 2.0
PIECES_MAX: Final = 512
"""Of one system call; the kernel takes no more than 1,024."""

_KEEPALIVE_S: Final = KEEPALIVE_MS / 1_000
_KEEPALIVE_TIMEOUT_S: Final = KEEPALIVE_TIMEOUT_MS / 1_000
_PING: Final = b"tailrace"
_PRIORITY_BYTES: Final = 5
_TURNS: Final = count()
_FIRST_SETTINGS: Final = (
    (h2.SETTING_HEADER_TABLE_BYTES, 0),
    (h2.SETTING_PUSH, 0),
    (h2.SETTING_WINDOW, STREAM_WINDOW_BYTES),
    (h2.SETTING_FRAME_BYTES_MAX, TAKEN_FRAME_BYTES_MAX),
    (h2.SETTING_HEADER_LIST_BYTES_MAX, h2.HEADER_LIST_BYTES_MAX),
)
_LOG: Final = logging.getLogger(__name__)

Accept = Callable[[Http2Stream, Headers], None]


class Connection:
    """One end; `accept` makes it the server's."""

    # Stream and flags of the header block that is coming.
    _block_of = (0, 0)
    # Those who wait for it to be greeted.
    _greeting: asyncio.Future[None] | None = None
    # The server's: where what its peer holds and costs is counted.
    account: Account | None = None
    messages_sent = _messages_paid = 0
    # Whether there ever was a call.
    has_served = False

    def __init__(
        self,
        sock: socket.socket,
        *,
        message_bytes_max: int,
        streams_max: int = 0,
        accept: Accept | None = None,
        on_end: Callable[[Connection], None],
    ) -> None:
        """`streams_max`: how many the other side may open at a time.

        OSError when the socket is of no use; it is the caller's then, else ours. When the other
        side has gone, the connection takes no streams and ends soon.
        """
        prepare(sock)
        self._sock = sock
        self._loop = asyncio.get_running_loop()
        self._accept = accept
        self._on_end = on_end
        self._message_bytes_max = message_bytes_max
        self._accepted_max = streams_max
        self.ended = ""
        self.streams: dict[int, Http2Stream] = {}
        # Of what we send: credit, how large a frame may be, how many streams there may be.
        self.window = h2.WINDOW_DEFAULT
        self.frame_bytes_max = h2.FRAME_BYTES_DEFAULT
        self.streams_max = STREAMS_BEFORE_SETTINGS
        self._stream_window = h2.WINDOW_DEFAULT
        self.credit = Credit(CONNECTION_WINDOW_BYTES)
        # No stream is opened on it any more; the other side has said who it is.
        self.is_retired = self.is_greeted = False
        self._next_stream, self._last_stream = 1, 0
        self._headers = HeaderDecoder()
        self._block: bytearray | None = None
        # What was read and not understood yet, and what is left of the data frame that is read.
        # It gets memory with the first byte: those who only connect take none.
        self._view = memoryview(b"")
        self._start = self._end = 0
        self._data_of: Http2Stream | None = None
        self._data_left = self._padding_left = self._data_flags = self._data_bytes = 0
        self._closed = _ClosedStreams()
        # What was written and not sent yet.
        self._queue: deque[Bytes] = deque()
        self._unsent = self._chores = 0
        # Who waits until less is unsent, by when they came.
        self._line: dict[int, asyncio.Future[None]] = {}
        self.waiting: dict[Http2Stream, None] = {}
        # `used_s`: since when there is no stream.
        self._born_s = self._heard_s = self.used_s = self._loop.time()
        self._pinged_s = 0.0
        self._loop.add_reader(sock, self._on_readable)
        self._ticking = self._loop.call_later(TICK_S, self._tick)
        streams = ((h2.SETTING_STREAMS_MAX, streams_max),) if accept else ()
        hello = h2.settings((*_FIRST_SETTINGS, *streams))
        hello += h2.window_update(0, CONNECTION_WINDOW_BYTES - h2.WINDOW_DEFAULT)
        if accept is None:
            hello = h2.PREFACE + hello
        with suppress(StreamBroken):
            self.write((hello,), len(hello))

    @property
    def is_idle(self) -> bool:
        return not self.streams

    def retire(self) -> None:
        """The client's: it ends with the last of its streams."""
        self.is_retired = True
        if self.is_idle:
            self._loop.call_soon(self.close)

    @property
    def takes_streams(self) -> bool:
        return not (
            self.ended
            or self.is_retired
            or len(self.streams) >= self.streams_max
            or self._next_stream >= h2.WINDOW_MAX
        )

    def open(self) -> Http2Stream:
        """The client's: a stream whose headers are to be sent at once, before anything else."""
        stream = self._make(self._next_stream)
        self._next_stream += 2
        return stream

    def go_away(self) -> None:
        """The server's: take no new streams, and say so."""
        if not self.ended and not self.is_retired:
            self.is_retired = True
            # Who is gone needs not be told.
            with suppress(StreamBroken):
                self._tell(h2.go_away(self._last_stream, h2.NO_ERROR))

    async def greeted(self) -> str:
        """Wait until the other side has said what it takes; tells why it never will."""
        while not self.is_greeted and not self.ended:
            if self._greeting is None:
                self._greeting = self._loop.create_future()
            await asyncio.shield(self._greeting)
        return self.ended

    def close(self, reason: str = "the connection was closed here") -> None:
        """At once."""
        if self.ended:
            return
        self.ended = reason
        self._ticking.cancel()
        self._loop.remove_reader(self._sock)
        if self._unsent:
            self._loop.remove_writer(self._sock)
        self._sock.close()
        self._queue.clear()
        for stream in list(self.streams.values()):
            stream.on_broken(reason)
        self._wake_line()
        _wake(self._greeting)
        self._on_end(self)

    # Writing.

    def write(self, pieces: Sequence[Bytes], size: int) -> None:
        if self.ended:
            raise StreamBroken(self.ended)
        if self._unsent:
            self._queue.extend(pieces)
            self._unsent += size
            if self._unsent > UNREAD_BYTES_MAX:
                self._fail("it does not read what it asks for")
            return
        try:
            sent = self._sock.sendmsg(pieces[:PIECES_MAX])
        except BlockingIOError:
            sent = 0
        except OSError as error:
            reason = f"it closed the connection: {error}"
            self._fail(reason)
            raise StreamBroken(reason) from error
        if sent < size:
            self._queue.extend(pieces)
            self._unsent = size
            self._sent(sent)
            self._loop.add_writer(self._sock, self._on_writable)

    def _fail(self, reason: str) -> None:
        """Who writes is in the middle of something: all others are told after it."""
        self.is_retired = True
        self._loop.call_soon(self.close, reason)

    @property
    def is_behind(self) -> bool:
        """Whether something was written that is not sent yet."""
        return self._unsent > 0

    @property
    def is_clogged(self) -> bool:
        return self._unsent > UNSENT_BYTES_MAX

    async def drained(self) -> None:
        """Until it is not clogged. Who waited longest goes first, also when it must wait again."""
        turn = next(_TURNS)
        try:
            while self.is_clogged and not self.ended:
                self._line[turn] = waiter = self._loop.create_future()
                await waiter
        finally:
            self._line.pop(turn, None)

    def _wake_line(self) -> None:
        for turn in sorted(self._line):
            _wake(self._line[turn])

    def _tell(self, data: bytes) -> None:
        """An answer or a note of the connection itself."""
        self.write((data,), len(data))

    def _on_writable(self) -> None:
        try:
            while self._unsent:
                self._sent(self._sock.sendmsg(list(islice(self._queue, PIECES_MAX))))
        except BlockingIOError:
            pass
        except OSError as error:
            self.close(f"it closed the connection: {error}")
            return
        if not self._unsent:
            self._loop.remove_writer(self._sock)
        if not self.is_clogged:
            self._wake_line()

    def _sent(self, size: int) -> None:
        self._unsent -= size
        queue = self._queue
        while size:
            piece = queue.popleft()
            if len(piece) > size:
                queue.appendleft(memoryview(piece)[size:])
                return
            size -= len(piece)
        while queue and not queue[0]:
            queue.popleft()

    # Reading.

    def _on_readable(self) -> None:
        try:
            for _ in range(READS_PER_TURN):
                if not self._read():
                    return
        except (BlockingIOError, InterruptedError):
            return
        except (OSError, StreamBroken) as error:
            self.close(f"it closed the connection: {error}")
        except BadFrame as error:
            self._refuse(error)
        except Exception:
            _LOG.exception("a frame could not be dealt with")
            self.close("a frame could not be dealt with here")
            raise

    def _read(self) -> bool:
        """Read once and deal with what came; says whether there may be more."""
        if not self._view:
            self._view = memoryview(bytearray(RECEIVE_BYTES))
        stream = self._data_of
        room = stream.room(self._data_left) if stream is not None and self._data_left else None
        if room is not None and self._start == self._end:
            self._start = self._end = 0
            size = self._sock.recvmsg_into((room, self._view[:READ_AHEAD_BYTES]))[0]
            wanted = len(room)
            direct = min(size, wanted)
            if direct and stream is not None:
                self._data_left -= direct
                stream.on_filled(direct)
                stream.on_counted(direct)
                self._count(direct)
            self._end = size - direct
        else:
            wanted = len(self._view) - self._end
            size = self._sock.recv_into(self._view[self._end :])
            self._end += size
        if not size:
            self.close("it closed the connection")
            return False
        self._heard_s = self._loop.time()
        self._parse()
        return size >= wanted and not self.ended

    def _parse(self) -> None:
        while not self.ended:
            if self._data_of is not None or self._data_left or self._padding_left:
                if not self._take_data():
                    break
            elif not self._take_frame():
                break
        self._move()

    def _move(self) -> None:
        """Make room at the end of the buffer."""
        if self._start == self._end:
            self._start = self._end = 0
        elif self._start:
            rest = bytes(self._view[self._start : self._end])
            self._view[: len(rest)] = rest
            self._start, self._end = 0, len(rest)

    def _take_data(self) -> bool:
        """What is there of the data frame that is read; says whether that was all of it."""
        there = self._end - self._start
        size = min(there, self._data_left)
        stream = self._data_of
        if size:
            if stream is not None:
                stream.on_data(self._view[self._start : self._start + size])
                stream.on_counted(size)
            self._count(size)
            self._start += size
            self._data_left -= size
        padding = min(there - size, self._padding_left)
        if padding and not self._data_left:
            self._start += padding
            self._padding_left -= padding
            self._pass(padding)
        if self._data_left or self._padding_left:
            return False
        self._data_of = None
        if self._data_flags & h2.END_STREAM and stream is not None and stream.broken is None:
            stream.on_end()
        elif self._data_bytes < SMALL_DATA_BYTES and (stream is None or stream.is_inside):
            self._chore()
        return True

    def _pass(self, size: int) -> None:
        """Padding counts as if it were data."""
        if self._data_of is not None:
            self._data_of.on_counted(size)
        self._count(size)

    def _count(self, size: int) -> None:
        """So many bytes came: they may come again, whether or not anybody takes them.

        So a frame is never more than what is allowed: half of the window is larger than any.
        """
        self.credit.owed += size
        due = self.credit.due()
        if due:
            self._tell(h2.window_update(0, due))

    def _take_frame(self) -> bool:
        """The next frame, if it is there; of a data frame only its head."""
        there = self._end - self._start
        if self._accept is not None and not self.is_greeted:
            return self._take_preface(there)
        if there < h2.FRAME_HEAD.size:
            return False
        high, low, kind, flags, number = h2.FRAME_HEAD.unpack_from(self._view, self._start)
        size, number = high << 16 | low, number & h2.WINDOW_MAX
        if self._block is not None and (kind, number) != (h2.CONTINUATION, self._block_of[0]):
            raise BadFrame("headers that are not continued")
        if not self.is_greeted and kind != h2.SETTINGS:
            raise BadFrame("it does not begin with settings")
        if kind == h2.DATA:
            return self._begin_data(size, flags, number, there)
        if size > RECEIVE_BYTES - h2.FRAME_HEAD.size:
            raise BadFrame(f"a frame of {size} bytes that is no data", h2.FRAME_SIZE_ERROR)
        if there < h2.FRAME_HEAD.size + size:
            return False
        start = self._start + h2.FRAME_HEAD.size
        self._start = start + size
        payload = bytes(self._view[start : self._start])
        _HANDLERS.get(kind, _pass_over)(self, payload, flags, number)
        return True

    def _take_preface(self, there: int) -> bool:
        size = len(h2.PREFACE)
        found = bytes(self._view[self._start : self._start + min(there, size)])
        if found != h2.PREFACE[: len(found)]:
            raise BadFrame("it does not speak HTTP/2")
        if there < size:
            return False
        self._start += size
        self.is_greeted = True
        return True

    def _begin_data(self, size: int, flags: int, number: int, there: int) -> bool:
        if size > TAKEN_FRAME_BYTES_MAX:
            raise BadFrame(f"a frame of {size} bytes", h2.FRAME_SIZE_ERROR)
        padding = 0
        start = self._start + h2.FRAME_HEAD.size
        if flags & h2.PADDED:
            if there < h2.FRAME_HEAD.size + 1:
                return False
            padding = self._view[start]
            if padding >= size:
                raise BadFrame("more padding than data")
        stream = self._stream_of_data(number, size)
        self._start = start
        self._data_bytes = size - padding - bool(flags & h2.PADDED)
        if stream is not None and stream.length_left is not None:
            stream = self._within_length(stream, self._data_bytes)
        if not size:
            self._on_no_data(stream, flags)
            return True
        self._data_of, self._data_flags = stream, flags
        self._data_left, self._padding_left = size - padding, padding
        if flags & h2.PADDED:
            # The byte that says how much padding there is belongs to it, and is gone by now.
            self._start += 1
            self._data_left -= 1
            self._pass(1)
        return True

    def _stream_of_data(self, number: int, size: int) -> Http2Stream | None:
        """The stream that takes data; None when it is to be passed over."""
        stream = self.streams.get(number)
        if stream is None:
            if not self._was_open(number):
                raise BadFrame("data of a stream that was never opened")
            if not self._closed.is_forgiven(number):
                self._break_stream(number, h2.STREAM_CLOSED, "data of a stream that is closed")
        elif stream.at_end:
            self._break_stream(number, h2.STREAM_CLOSED, "data after the end of a stream")
            return None
        else:
            stream.credit.check(size)
        return stream

    def _within_length(self, stream: Http2Stream, size: int) -> Http2Stream | None:
        assert stream.length_left is not None
        stream.length_left -= size
        if stream.length_left >= 0:
            return stream
        self._break_stream(stream.number, h2.PROTOCOL_ERROR, "more data than it had named")
        return None

    def _on_no_data(self, stream: Http2Stream | None, flags: int) -> None:
        if not flags & h2.END_STREAM:
            self._chore()
        elif stream is not None:
            stream.on_end()

    # Frames that are no data.

    def _on_headers(self, payload: bytes, flags: int, number: int) -> None:
        start, end = 0, len(payload)
        if flags & h2.PADDED:
            start, end = 1, end - payload[0] if payload else -1
        if flags & h2.HAS_PRIORITY:
            _check_priority(payload[start : start + _PRIORITY_BYTES], number)
            start += _PRIORITY_BYTES
        if start > end or not number:
            raise BadFrame("headers that are too short")
        self._block = bytearray(payload[start:end])
        self._block_of = (number, flags)
        if flags & h2.END_HEADERS:
            self._headers_came()

    def _on_continuation(self, payload: bytes, flags: int, _number: int) -> None:
        if self._block is None:
            raise BadFrame("a continuation of nothing")
        self._chore()
        self._block += payload
        is_empty = not payload and not flags & h2.END_HEADERS
        if is_empty or len(self._block) > h2.HEADER_LIST_BYTES_MAX:
            raise BadFrame("headers without an end", h2.CALM_DOWN)
        if flags & h2.END_HEADERS:
            self._headers_came()

    def _headers_came(self) -> None:
        number, flags = self._block_of
        headers = self._headers.decode(bytes(self._block or b""))
        self._block = None
        end = bool(flags & h2.END_STREAM)
        stream = self.streams.get(number)
        if stream is not None:
            self._on_more_headers(stream, headers, end=end)
        elif self._accept is not None and number > self._last_stream:
            self._on_request(number, headers, end=end)
        elif not self._was_open(number) or self._closed.was_skipped(number):
            raise BadFrame("headers of a stream that was never opened")
        elif not self._closed.is_forgiven(number):
            raise BadFrame("headers of a stream that is closed", h2.STREAM_CLOSED)
        else:
            self._chore()

    def _on_request(self, number: int, headers: Headers, *, end: bool) -> None:
        if number % 2 == 0:
            raise BadFrame("a client's stream with an even number")
        if number > self._last_stream + 2:
            self._closed.skipped.append((self._last_stream, number))
        self._last_stream = number
        if headers.kind is not BlockKind.REQUEST:
            reason = headers.fault or f"{headers.kind.value} instead of a request"
            self._break_stream(number, h2.PROTOCOL_ERROR, reason)
            return
        if self.is_retired or len(self.streams) >= self._accepted_max:
            self._break_stream(number, h2.REFUSED_STREAM, "no more streams are taken")
            return
        assert self._accept is not None
        stream = self._make(number)
        stream.length_left = headers.length
        self.has_served = True
        self._accept(stream, headers)
        if end and stream.broken is None:
            stream.on_end()

    def _on_more_headers(self, stream: Http2Stream, headers: Headers, *, end: bool) -> None:
        """Trailers; a server's may also be the beginning of its answer."""
        number = stream.number
        if stream.at_end:
            self._break_stream(number, h2.STREAM_CLOSED, "headers after the end of a stream")
        elif headers.fault:
            self._break_stream(number, h2.PROTOCOL_ERROR, headers.fault)
        elif self._accept is not None and (headers.kind is not BlockKind.TRAILERS or not end):
            self._break_stream(number, h2.PROTOCOL_ERROR, "headers that are no trailers")
        else:
            stream.on_headers(headers, end=end)

    def _break_stream(self, number: int, code: int, reason: str) -> None:
        """What is wrong concerns one stream: the others go on."""
        self._chore(CHORES_OF_RESET)
        stream = self.streams.get(number)
        if stream is not None:
            stream.reset(code, f"it does not keep to HTTP/2: {reason}")
        else:
            self.on_reset_here(number)
            self._tell(h2.reset(number, code))

    def on_reset_here(self, stream: int) -> None:
        self._closed.on_reset_here(stream)

    def _on_settings(self, payload: bytes, flags: int, number: int) -> None:
        if number:
            raise BadFrame("settings of a stream")
        if flags & h2.ACK:
            if payload:
                raise BadFrame("an answer that says something", h2.FRAME_SIZE_ERROR)
            # From now on it knows that we keep no table.
            self._headers.table_bytes_max = 0
            return
        self._chore()
        if not self.is_greeted:
            self.is_greeted = True
            self.streams_max = h2.WINDOW_MAX
            _wake(self._greeting)
        # Of those that are said twice only the last counts.
        for name, value in dict(h2.read_settings(payload)).items():
            self._on_setting(name, value)
        self._tell(h2.frame(h2.SETTINGS, h2.ACK, 0))

    def _on_setting(self, name: int, value: int) -> None:
        if name == h2.SETTING_WINDOW:
            self._on_stream_window(value)
        elif name == h2.SETTING_FRAME_BYTES_MAX:
            if not h2.FRAME_BYTES_DEFAULT <= value <= h2.FRAME_BYTES_MAX:
                raise BadFrame("frames of a size that cannot be")
            self.frame_bytes_max = min(value, SENT_FRAME_BYTES_MAX)
        elif name == h2.SETTING_STREAMS_MAX:
            self.streams_max = value
        elif name == h2.SETTING_PUSH and value > 1:
            raise BadFrame("push that is neither on nor off")

    def _on_stream_window(self, size: int) -> None:
        if size > h2.WINDOW_MAX:
            raise BadFrame("a window that is larger than any", h2.FLOW_CONTROL_ERROR)
        change = size - self._stream_window
        per_chore = 1 if 0 < change < SMALL_WINDOW_BYTES else STREAMS_PER_CHORE
        self._chore(len(self.streams) // per_chore)
        self._stream_window = size
        for stream in list(self.streams.values()):
            stream.on_window(change)

    def _on_ping(self, payload: bytes, flags: int, number: int) -> None:
        if number:
            raise BadFrame("a ping of a stream")
        if len(payload) != len(_PING):
            raise BadFrame("a ping that is none", h2.FRAME_SIZE_ERROR)
        self._chore()
        if not flags & h2.ACK:
            self._tell(h2.frame(h2.PING, h2.ACK, 0, payload))

    def _on_window_update(self, payload: bytes, _flags: int, number: int) -> None:
        size = h2.read_only_uint32(payload) & h2.WINDOW_MAX
        if not size:
            raise BadFrame("a window that grows by nothing")
        if number:
            self._on_window_of_stream(number, size)
            return
        if size < SMALL_WINDOW_BYTES:
            self._chore(1 + len(self.waiting) // STREAMS_PER_CHORE)
        self.window += size
        if self.window > h2.WINDOW_MAX:
            raise BadFrame("a window that is larger than any", h2.FLOW_CONTROL_ERROR)
        for stream in self.waiting:
            stream.on_window(0)

    def _on_window_of_stream(self, number: int, size: int) -> None:
        stream = self.streams.get(number)
        if stream is None:
            self._chore()
            if not self._was_open(number):
                raise BadFrame("a window of a stream that was never opened")
            return
        if size < SMALL_WINDOW_BYTES:
            self._chore()
        if stream.window + size > h2.WINDOW_MAX:
            reason = "a window that is larger than any"
            self._break_stream(number, h2.FLOW_CONTROL_ERROR, reason)
            return
        stream.on_window(size)

    def _on_priority(self, payload: bytes, _flags: int, number: int) -> None:
        """Priorities are only hints."""
        if not number:
            raise BadFrame("a priority of the connection")
        _check_priority(payload, number)
        self._chore()

    def _on_reset(self, payload: bytes, _flags: int, number: int) -> None:
        code = h2.read_only_uint32(payload)
        stream = self.streams.get(number)
        if stream is not None:
            stream.on_broken(_RESETS.get(code, f"it broke the stream, code {code}"))
            self._chore(CHORES_OF_RESET)
            return
        self._chore()
        if not self._was_open(number):
            raise BadFrame("a reset of a stream that was never opened")

    def _on_go_away(self, payload: bytes, _flags: int, number: int) -> None:
        last, code = h2.read_uint32(payload), h2.read_uint32(payload, 4)
        if number:
            raise BadFrame("a farewell of a stream")
        self._chore()
        is_client = self._accept is None
        # A client that leaves still hears the answers to what it asked.
        self.is_retired = self.is_retired or is_client
        for each, stream in list(self.streams.items()):
            if code != h2.NO_ERROR or (is_client and each > last & h2.WINDOW_MAX):
                stream.on_broken("it closed the connection")
        if self.is_idle:
            self.close("it closed the connection")

    def _chore(self, weight: int = 1) -> None:
        """Something that costs us more than the other side."""
        self._chores += weight
        unpaid = self._chores - CHORES_PER_MESSAGE * (self.messages_sent - self._messages_paid)
        if unpaid <= 0:
            return
        account = self.account
        is_calm = account is None or account.is_calm(unpaid, weight, self._loop.time())
        if unpaid > CHORES_MAX or not is_calm:
            raise BadFrame("it keeps us busy with nothing", h2.CALM_DOWN)

    def turn_away(self, why: str) -> None:
        """The server's: room is needed for others."""
        self._refuse(BadFrame(why, h2.CALM_DOWN))

    def _refuse(self, error: BadFrame) -> None:
        """Say what is wrong as far as one can, and break off."""
        if self.ended:
            return
        if self.is_greeted:
            if not self._unsent:
                # Else it would be taken for the rest of the frame that is under way.
                with suppress(OSError):
                    self._sock.send(h2.go_away(self._last_stream, error.code, str(error)))
                    self._drain()
            self.close(f"it does not keep to HTTP/2: {error}")
        else:
            self.close("it answers, but not as a server of ours: another program listens there")

    def _drain(self) -> None:
        """Read some of what is left: what is unread when a socket closes undoes the last word."""
        for _ in range(READS_PER_TURN):
            if not self._sock.recv_into(self._view):
                return

    # Streams.

    def _make(self, number: int) -> Http2Stream:
        stream = self.streams[number] = Http2Stream(
            self, number, window=self._stream_window, message_bytes_max=self._message_bytes_max
        )
        return stream

    def forget(self, stream: int) -> None:
        self.streams.pop(stream, None)
        if not self.streams:
            self.used_s = self._loop.time()
            if self.is_retired and self._accept is None:
                # Nobody uses it, and nobody will.
                self._loop.call_soon(self.close)

    def _was_open(self, number: int) -> bool:
        last = self._next_stream - 2 if self._accept is None else self._last_stream
        return number % 2 == 1 and number <= last

    # Time.

    def _tick(self) -> None:
        now_s = self._loop.time()
        self._chores = 0
        self._messages_paid = self.messages_sent
        self._ticking = self._loop.call_later(TICK_S, self._tick)
        if not self.is_greeted and now_s - self._born_s >= HANDSHAKE_S:
            self.close("it takes connections but does not answer as a server of ours")
        elif now_s - self._heard_s < _KEEPALIVE_S:
            self._pinged_s = 0.0
        elif not self._pinged_s:
            self._pinged_s = now_s
            # That it is gone is what comes next.
            with suppress(StreamBroken):
                self._tell(h2.frame(h2.PING, 0, 0, _PING))
        elif now_s - self._pinged_s >= _KEEPALIVE_TIMEOUT_S:
            self.close("it fell silent")


class _ClosedStreams:
    """What is known of streams that are closed; pure."""

    def __init__(self) -> None:
        # Those that were broken off here, and up to which number they were forgotten.
        self._reset_here: dict[int, None] = {}
        self._forgotten = 0
        # Numbers that the other side left out, between two that it took.
        self.skipped: deque[tuple[int, int]] = deque(maxlen=SKIPS_KNOWN_MAX)

    def on_reset_here(self, number: int) -> None:
        known = self._reset_here
        known[number] = None
        if len(known) > RESETS_KNOWN_MAX:
            oldest = next(iter(known))
            del known[oldest]
            self._forgotten = max(self._forgotten, oldest)

    def is_forgiven(self, number: int) -> bool:
        """Whether what comes on a stream may be on its way since before it was broken off here."""
        return number in self._reset_here or number <= self._forgotten

    def was_skipped(self, number: int) -> bool:
        return any(before < number < after for before, after in self.skipped)


def _wake(waiter: asyncio.Future[None] | None) -> None:
    if waiter is not None and not waiter.done():
        waiter.set_result(None)


def _pass_over(connection: Connection, payload: bytes, _flags: int, _number: int) -> None:
    """A frame of a kind that nobody knows."""
    connection._chore(1 + len(payload) // UNKNOWN_BYTES_PER_CHORE)


def _check_priority(payload: bytes, number: int) -> None:
    if len(payload) != _PRIORITY_BYTES:
        raise BadFrame("a priority of a strange length", h2.FRAME_SIZE_ERROR)
    if h2.read_uint32(payload) & h2.WINDOW_MAX == number:
        raise BadFrame("a stream that depends on itself")


def _no_push(_connection: Connection, _payload: bytes, _flags: int, _number: int) -> None:
    raise BadFrame("it pushes what nobody asked for")


_HANDLERS: Final = {
    h2.HEADERS: Connection._on_headers,
    h2.PRIORITY: Connection._on_priority,
    h2.RST_STREAM: Connection._on_reset,
    h2.SETTINGS: Connection._on_settings,
    h2.PUSH_PROMISE: _no_push,
    h2.PING: Connection._on_ping,
    h2.GOAWAY: Connection._on_go_away,
    h2.WINDOW_UPDATE: Connection._on_window_update,
    h2.CONTINUATION: Connection._on_continuation,
}
_RESETS: Final = {
    h2.CANCEL: "the other side broke the stream",
    h2.REFUSED_STREAM: "it takes no more streams",
    h2.CALM_DOWN: "it is asked for too much",
}
