"""One stream: messages out of bytes in any pieces, and credit that is neither lost nor invented."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.transport.budget import Account
from tailrace.transport.http2 import frames as h2
from tailrace.transport.http2.stream import (
    STREAM_WINDOW_BYTES,
    Bytes,
    Credit,
    Http2Stream,
    StreamBroken,
)
from unit.transport.http2.peers import message

MESSAGE_BYTES_MAX = 1 << 20


class Paper:
    """A wire that only writes down what it is told to send."""

    def __init__(self, window: int = h2.WINDOW_DEFAULT) -> None:
        self.window = window
        self.frame_bytes_max = h2.FRAME_BYTES_DEFAULT
        self.written = bytearray()
        self.forgotten: list[int] = []
        self.waiting: dict[Http2Stream, None] = {}
        self.is_clogged = False
        self.account: Account | None = None
        self.messages_sent = 0
        self.is_gone = False

    def write(self, pieces: Sequence[Bytes], size: int) -> None:
        if self.is_gone:
            raise StreamBroken("the wire is cut")
        data = b"".join(pieces)
        assert len(data) == size
        self.written += data

    async def drained(self) -> None:
        raise AssertionError("this wire is never clogged")

    def forget(self, stream: int) -> None:
        self.forgotten.append(stream)

    def on_reset_here(self, stream: int) -> None:
        """Nobody asks this one."""

    def frames(self) -> list[tuple[int, int, int, bytes]]:
        """What was written since the last look."""
        found = []
        while self.written:
            high, low, kind, flags, stream = h2.FRAME_HEAD.unpack_from(self.written)
            end = h2.FRAME_HEAD.size + (high << 16 | low)
            found.append((kind, flags, stream, bytes(self.written[h2.FRAME_HEAD.size : end])))
            del self.written[:end]
        return found


class Told:
    """Who uses a stream, and remembers what it was told."""

    def __init__(self) -> None:
        self.refused: list[int] = []
        self.broken: list[str] = []

    def on_headers(self, fields: dict[str, str], *, end: bool) -> None: ...

    def on_refused(self, status: int, detail: str) -> None:
        self.refused.append(status)

    def on_broken(self, reason: str) -> None:
        self.broken.append(reason)


def stream_on(wire: Paper, window: int = h2.WINDOW_DEFAULT) -> Http2Stream:
    return Http2Stream(wire, 1, window=window, message_bytes_max=MESSAGE_BYTES_MAX)


def feed(stream: Http2Stream, data: bytes) -> None:
    """As the connection does: large ones go where they belong."""
    room = stream.room(len(data))
    if room is not None:
        size = len(room)
        room[:] = data[:size]
        stream.on_filled(size)
        stream.on_counted(size)
        data = data[size:]
    if data:
        stream.on_data(memoryview(data))
        stream.on_counted(len(data))


# ------------------------------------------------------------------------------------------ credit


@given(st.integers(2, 100), st.lists(st.tuples(st.integers(1, 60), st.booleans()), max_size=100))
def test_credit_never_gives_more_than_came_and_withholds_what_nobody_took(
    window: int, steps: list[tuple[int, bool]]
) -> None:
    """`window` is what the other side may send; it sends no more than that."""
    credit = Credit(window)
    allowed, came, given_back, unread = window, 0, 0, 0
    for size, takes in steps:
        if takes:
            credit.unread, unread = 0, 0
        elif size <= allowed:
            allowed -= size
            came += size
            unread += size
            credit.owed += size
            credit.unread += size
        due = credit.due()
        allowed += due
        given_back += due
        assert given_back <= came - unread
        assert 0 <= allowed <= window
        assert allowed + unread <= window
        # Who has taken everything gets at least half of the window.
        if not unread:
            assert allowed > window - window // 2 or due or credit.owed < window // 2
    assert credit.owed == came - given_back


def test_credit_is_given_in_lumps() -> None:
    credit = Credit(100)
    credit.owed += 49
    assert credit.due() == 0
    credit.owed += 1
    assert credit.due() == 50
    assert credit.due() == 0
    credit.owed, credit.unread = 100, 60
    assert credit.due() == 0
    credit.unread = 0
    assert credit.due() == 100


# --------------------------------------------------------------------------------------- receiving


@settings(max_examples=60)
@given(
    st.lists(st.binary(max_size=300) | st.integers(0, 200_000).map(bytes), max_size=6),
    st.lists(st.integers(1, 70_000), min_size=1, max_size=20),
)
def test_any_split_of_the_bytes_gives_the_same_messages(
    messages: list[bytes], sizes: list[int]
) -> None:
    async def run() -> None:
        wire = Paper()
        stream = stream_on(wire)
        data = b"".join(map(message, messages))
        turn = 0
        while data:
            size = sizes[turn % len(sizes)]
            turn += 1
            feed(stream, data[:size])
            data = data[size:]
        stream.on_end()
        received = []
        while (each := await stream.recv()) is not None:
            received.append(bytes(each))
        assert received == messages
        assert stream.credit.unread == 0

    asyncio.run(run())


async def test_bytes_one_at_a_time() -> None:
    stream = stream_on(Paper())
    for each in b"".join(map(message, (b"", b"one", b"", b"three", b""))):
        feed(stream, bytes((each,)))
    assert [await stream.recv() for _ in range(5)] == [b"", b"one", b"", b"three", b""]


async def test_a_large_message_gets_memory_of_its_own_and_only_that_is_filled() -> None:
    stream = stream_on(Paper())
    head = h2.MESSAGE_HEAD.pack(0, 200_000)
    assert stream.room(10) is None
    feed(stream, head + b"a" * 1_000)
    room = stream.room(500_000)
    assert room is not None
    assert len(room) == 199_000
    feed(stream, b"a" * 199_000 + message(b"next"))
    assert await stream.recv() == b"a" * 200_000
    assert await stream.recv() == b"next"


async def test_who_takes_gets_more_and_who_does_not_gets_none() -> None:
    wire = Paper()
    stream = stream_on(wire)
    chunk = message(bytes(STREAM_WINDOW_BYTES // 8))
    for _ in range(7):
        feed(stream, chunk)
    assert not wire.written, "nobody has taken anything"
    for _ in range(7):
        await stream.recv()
    updates = [h2.read_uint32(payload) for _, _, _, payload in wire.frames()]
    assert STREAM_WINDOW_BYTES // 2 <= sum(updates) <= 7 * len(chunk)
    assert sum(updates) + stream.credit.owed == 7 * len(chunk)


async def test_a_message_larger_than_the_window_is_given_credit_while_it_comes() -> None:
    wire = Paper()
    size = 2 * STREAM_WINDOW_BYTES
    stream = Http2Stream(wire, 1, window=0, message_bytes_max=size)
    feed(stream, h2.MESSAGE_HEAD.pack(0, size))
    for _ in range(16):
        feed(stream, bytes(size // 16))
    assert sum(h2.read_uint32(payload) for *_, payload in wire.frames()) >= size // 2
    received = await stream.recv()
    assert received is not None
    assert len(received) == size


async def test_recv_waits_and_is_woken_by_a_message_an_end_and_a_break() -> None:
    stream = stream_on(Paper())
    waiting = asyncio.ensure_future(stream.recv())
    await asyncio.sleep(0)
    feed(stream, message(b"x"))
    assert await waiting == b"x"
    waiting = asyncio.ensure_future(stream.recv())
    await asyncio.sleep(0)
    stream.on_end()
    assert await waiting is None
    broken = stream_on(Paper())
    waiting = asyncio.ensure_future(broken.recv())
    await asyncio.sleep(0)
    broken.on_broken("it fell")
    with pytest.raises(StreamBroken, match="it fell"):
        await waiting


# ----------------------------------------------------------------------------------------- sending


async def test_a_message_that_fits_goes_in_one_frame() -> None:
    wire = Paper()
    stream = stream_on(wire)
    await stream.send([b"ab", memoryview(b"cd")], before=b"", after=b"", end=True)
    assert wire.frames() == [(h2.DATA, h2.END_STREAM, 1, message(b"abcd"))]
    assert stream.window == wire.window == h2.WINDOW_DEFAULT - 9
    with pytest.raises(StreamBroken):
        await stream.send([b"more"])


@settings(max_examples=60)
@given(
    st.lists(st.binary(max_size=3_000), max_size=6),
    st.lists(st.integers(1, 2_000), min_size=1, max_size=10),
    st.booleans(),
)
def test_no_more_is_sent_than_the_windows_allow(
    pieces: list[bytes], grants: list[int], whole_connection: bool
) -> None:
    """The other side allows a few bytes at a time, now here and now there."""

    async def run() -> None:
        wire = Paper(window=0 if whole_connection else 1 << 20)
        stream = stream_on(wire, window=1 << 20 if whole_connection else -50)
        sending = asyncio.ensure_future(stream.send(pieces, end=True))
        received, turn = b"", 0
        while not sending.done():
            await asyncio.sleep(0)
            for kind, flags, _, payload in wire.frames():
                assert kind == h2.DATA
                assert len(payload) <= wire.frame_bytes_max
                received += payload
                assert bool(flags) == (len(received) == 5 + sum(map(len, pieces)))
            assert wire.window >= 0
            assert stream.window >= 0 or not received
            grant = grants[turn % len(grants)]
            turn += 1
            if whole_connection:
                wire.window += grant
                for each in wire.waiting:
                    each.on_window(0)
            else:
                stream.on_window(grant)
        await sending
        assert not wire.waiting
        assert received == message(b"".join(pieces))

    asyncio.run(run())


async def test_a_window_larger_than_any_is_a_bad_frame() -> None:
    stream = stream_on(Paper())
    with pytest.raises(h2.BadFrame):
        stream.on_window(h2.WINDOW_MAX)


async def test_senders_take_turns_by_whole_messages() -> None:
    wire = Paper()
    stream = stream_on(wire, window=10)
    sending = [asyncio.ensure_future(stream.send([b"%d" % n * 20])) for n in range(3)]
    data = b""
    while not all(each.done() for each in sending):
        await asyncio.sleep(0)
        data += b"".join(payload for *_, payload in wire.frames())
        stream.on_window(7)
    data += b"".join(payload for *_, payload in wire.frames())
    assert data == b"".join(message(b"%d" % n * 20) for n in range(3))
    await asyncio.gather(*sending)


async def test_a_stream_that_breaks_wakes_its_senders() -> None:
    wire = Paper()
    stream = stream_on(wire, window=0)
    told = stream.owner = Told()
    sending = [asyncio.ensure_future(stream.send([b"x"])) for _ in range(3)]
    await asyncio.sleep(0)
    stream.reset(h2.CANCEL, "enough")
    for each in sending:
        with pytest.raises(StreamBroken, match="enough"):
            await each
    assert wire.frames() == [(h2.RST_STREAM, 0, 1, h2.CANCEL.to_bytes(4, "big"))]
    assert told.broken == ["enough"]
    assert wire.forgotten == [1]
    stream.reset()
    assert not wire.written


async def test_a_wire_that_is_cut_breaks_what_is_sent() -> None:
    wire = Paper()
    stream = stream_on(wire)
    wire.is_gone = True
    with pytest.raises(StreamBroken, match="cut"):
        await stream.send([b"x"])
    stream.hang_up(h2.NO_ERROR)
    stream.reset()
    assert stream.broken is not None
