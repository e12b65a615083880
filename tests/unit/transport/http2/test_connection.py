"""A connection and its peers: those that keep to the rules in odd ways, and those that do not."""

from __future__ import annotations

import asyncio
import random
import socket
import struct
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulation.transport_contract import ECHO, TALK, Talk
from tailrace.transport.budget import BudgetLimits
from tailrace.transport.http2 import connection as connection_module
from tailrace.transport.http2 import frames as h2
from tailrace.transport.http2.connection import CHORES_MAX, CONNECTION_WINDOW_BYTES, Connection
from tailrace.transport.http2.stream import STREAM_WINDOW_BYTES
from tailrace.transport.limits import ServerLimits
from tailrace.transport.rpc import MESSAGE_BYTES_MAX
from unit.transport.http2.peers import (
    Raw,
    answer,
    bare_client,
    bare_server,
    connected,
    data,
    eventually,
    message,
    request,
    request_block,
    serving,
)

HELLO = h2.PREFACE + h2.settings(())
WIDE = h2.settings([(h2.SETTING_WINDOW, h2.WINDOW_MAX)]) + h2.window_update(0, 1 << 30)


async def wait(_: object) -> None:
    """A handler that neither reads nor writes: what comes stays where it is."""
    await asyncio.sleep(3_600)


async def is_served(raw: Raw, stream: int = 99_999) -> None:
    """Its connection is as good as ever."""
    await raw.send(request(stream, ECHO), data(stream, message(b"well?"), end=True))
    assert await raw.message(stream) == b"well?"


# --------------------------------------------------------------------- odd, but within the rules


async def test_a_call_whose_bytes_come_one_at_a_time() -> None:
    async with serving() as server:
        raw = await connected(server, greet=False)
        for each in HELLO + request(1, ECHO) + data(1, message(b"slow"), end=True):
            await raw.send(bytes((each,)))
        assert await raw.message(1) == b"slow"
        assert (await raw.status(1))["grpc-status"] == "0"
        raw.close()


# More would only take longer.
PIECES_MAX = 300


class Plan(NamedTuple):
    """Messages of a few streams, and how they are cut up."""

    talks: list[list[bytes]]
    frame_bytes: list[int]
    paddings: list[int]
    cuts: list[int]
    seed: int


PLANS = st.builds(
    Plan,
    st.lists(
        st.lists(st.binary(max_size=100) | st.integers(0, 100_000).map(bytes), max_size=4),
        min_size=1,
        max_size=4,
    ),
    st.lists(st.integers(0, 40_000), min_size=1, max_size=5).filter(any),
    st.lists(st.integers(-1, 255), min_size=1, max_size=5),
    st.lists(st.integers(1, 100_000), min_size=1, max_size=10),
    st.integers(0, 1_000),
)


@settings(max_examples=40)
@given(PLANS)
def test_any_frames_in_any_pieces_give_the_same_messages(plan: Plan) -> None:
    """Random messages, sizes of frames, padding and splits, of streams that are interleaved."""
    heard: dict[int, list[bytes]] = defaultdict(list)

    async def listen(stream: Talk) -> None:
        number = len(heard)
        heard[number] = []
        while (each := await stream.recv()) is not None:
            heard[number].append(bytes(each))

    async def run() -> None:
        async with bare_client({TALK: listen}) as raw:
            sent = b"".join(_interleaved(plan))
            turn, least = 0, len(sent) // PIECES_MAX
            while sent:
                size = max(plan.cuts[turn % len(plan.cuts)], least)
                turn += 1
                await raw.send(sent[:size])
                sent = sent[size:]
            for number in range(len(plan.talks)):
                await raw.send(data(2 * number + 1, b"", end=True))
                assert (await raw.status(2 * number + 1))["grpc-status"] == "0"
            await raw.in_step()

    asyncio.run(run())
    assert [heard[number] for number in range(len(plan.talks))] == plan.talks


def _interleaved(plan: Plan) -> Iterator[bytes]:
    rng = random.Random(plan.seed)
    left = {2 * n + 1: b"".join(map(message, talk)) for n, talk in enumerate(plan.talks)}
    yield from map(request, left)
    turn, least = 0, sum(map(len, left.values())) // PIECES_MAX
    while any(left.values()):
        stream = rng.choice([each for each in left if left[each]])
        size = plan.frame_bytes[turn % len(plan.frame_bytes)]
        size = max(size, least) if size else 0
        padding = plan.paddings[turn % len(plan.paddings)]
        turn += 1
        part, left[stream] = left[stream][:size], left[stream][size:]
        if padding < 0:
            yield data(stream, part)
        else:
            yield h2.frame(h2.DATA, h2.PADDED, stream, bytes((padding,)) + part + bytes(padding))


async def test_headers_that_are_continued_padded_and_have_a_priority() -> None:
    block = request_block(ECHO)
    async with bare_client() as raw:
        await raw.send(
            h2.frame(h2.HEADERS, 0, 1, block[:3]),
            h2.frame(h2.CONTINUATION, 0, 1, block[3:4]),
            h2.frame(h2.CONTINUATION, h2.END_HEADERS, 1, block[4:]),
            data(1, message(b"continued"), end=True),
        )
        assert await raw.message(1) == b"continued"
        flags = h2.END_HEADERS | h2.PADDED | h2.HAS_PRIORITY
        ended = h2.PADDED | h2.END_STREAM
        await raw.send(
            h2.frame(h2.HEADERS, flags, 3, b"\x07" + bytes(5) + block + bytes(7)),
            h2.frame(h2.PRIORITY, 0, 3, bytes(5)),
            h2.frame(h2.DATA, ended, 3, b"\x03" + message(b"padded") + bytes(3)),
        )
        assert await raw.message(3) == b"padded"


async def test_frames_of_kinds_that_nobody_knows_are_passed_over() -> None:
    async with bare_client() as raw:
        await raw.send(h2.frame(0x7B, 0xFF, 0, b"?" * 1_000), h2.frame(0xFF, 0, 99, b""))
        await is_served(raw)


async def test_windows_of_one_byte_and_windows_that_shrink() -> None:
    async with bare_client() as raw:
        await raw.send(h2.settings([(h2.SETTING_WINDOW, 1)]))
        await raw.send(request(1, TALK), data(1, message(b"abc")))
        received = (await raw.until(h2.DATA, 1)).payload
        while len(received) < 8:
            await raw.send(h2.window_update(1, 1))
            more = (await raw.until(h2.DATA, 1)).payload
            assert len(more) == 1
            received += more
        assert received == message(b"abc")
        # Ten more, then eleven less: the window of the stream is below nothing.
        for window in (11, 0):
            await raw.send(h2.settings([(h2.SETTING_WINDOW, window)]))
        await raw.send(data(1, message(b"d")), h2.window_update(1, 7))
        assert (await raw.until(h2.DATA, 1)).payload == message(b"d")


async def test_a_client_that_leaves_hears_the_answers_to_what_it_asked() -> None:
    async with bare_client() as raw:
        await raw.send(request(1, TALK), h2.go_away(0, h2.NO_ERROR))
        await raw.send(data(1, message(b"bye"), end=True))
        assert await raw.message(1) == b"bye"


async def test_a_reset_of_what_has_ended_is_nothing() -> None:
    async with bare_client() as raw:
        await raw.send(request(1, ECHO), data(1, message(b"x"), end=True))
        await raw.status(1)
        await raw.send(h2.reset(1, h2.CANCEL), h2.reset(1, h2.NO_ERROR), h2.window_update(1, 1))
        await is_served(raw)


# ------------------------------------------------------------------------------- against the rules

BAD: dict[str, bytes] = {
    "data-of-an-idle-stream": data(1, b"x"),
    "data-of-the-connection": request(1) + data(0, b"x"),
    "headers-on-stream-0": request(0),
    "headers-with-an-even-number": request(2),
    "headers-that-are-too-short": h2.frame(h2.HEADERS, h2.END_HEADERS | h2.PADDED, 1, b"\x05abc"),
    "more-padding-than-data": request(1) + h2.frame(h2.DATA, h2.PADDED, 1, b"\x05abc"),
    "padding-without-a-length": request(1) + h2.frame(h2.DATA, h2.PADDED, 1, b"") + bytes(9),
    "headers-that-are-not-continued": h2.frame(h2.HEADERS, 0, 1, b"") + data(1, b""),
    "headers-that-another-continues": h2.frame(h2.HEADERS, 0, 1, b"")
    + h2.frame(h2.CONTINUATION, h2.END_HEADERS, 3, b""),
    "a-continuation-of-nothing": h2.frame(h2.CONTINUATION, h2.END_HEADERS, 1, b""),
    "continuations-of-nothing-more": h2.frame(h2.HEADERS, 0, 1, b"")
    + h2.frame(h2.CONTINUATION, 0, 1, b""),
    "settings-of-a-strange-length": h2.frame(h2.SETTINGS, 0, 0, b"1234567"),
    "settings-of-a-stream": h2.frame(h2.SETTINGS, 0, 1, b""),
    "an-answer-that-says-something": h2.frame(h2.SETTINGS, h2.ACK, 0, bytes(6)),
    "a-window-larger-than-any": h2.settings([(h2.SETTING_WINDOW, 2**31)]),
    "frames-of-an-impossible-size": h2.settings([(h2.SETTING_FRAME_BYTES_MAX, 1)]),
    "a-promise": h2.frame(h2.PUSH_PROMISE, h2.END_HEADERS, 1, bytes(4)),
    "a-ping-that-is-too-long": h2.frame(h2.PING, 0, 0, bytes(9)),
    "a-reset-that-is-too-short": request(1) + h2.frame(h2.RST_STREAM, 0, 1, b""),
    "a-reset-of-an-idle-stream": h2.reset(1, h2.CANCEL),
    "a-window-of-an-idle-stream": h2.window_update(1, 1),
    "a-window-that-grows-by-nothing": h2.window_update(0, 0),
    "a-window-that-overflows": h2.window_update(0, h2.WINDOW_MAX),
    "windows-that-overflow-by-settings": request(1)
    + h2.window_update(1, h2.WINDOW_MAX - h2.WINDOW_DEFAULT)
    + h2.settings([(h2.SETTING_WINDOW, h2.WINDOW_DEFAULT + 1)]),
    "a-reset-that-is-too-long": request(1) + h2.frame(h2.RST_STREAM, 0, 1, bytes(5)),
    "a-window-of-a-strange-length": h2.frame(h2.WINDOW_UPDATE, 0, 0, bytes(5)),
    "a-ping-of-a-stream": h2.frame(h2.PING, 0, 1, bytes(8)),
    "a-leave-of-a-stream": h2.frame(h2.GOAWAY, 0, 1, bytes(8)),
    "a-giant-frame": h2.head(1 << 20, h2.PING, 0, 0),
    "headers-that-cannot-be-read": h2.frame(h2.HEADERS, h2.END_HEADERS, 1, b"\xff\xff\xff"),
    "headers-without-an-end": h2.frame(h2.HEADERS, 0, 1, bytes(16_000))
    + h2.frame(h2.CONTINUATION, 0, 1, bytes(16_000)) * 5,
    "more-data-than-was-allowed": request(1) + h2.head(STREAM_WINDOW_BYTES + 1, h2.DATA, 0, 1),
    "data-beyond-what-was-allowed": request(1)
    + data(1, message(bytes(STREAM_WINDOW_BYTES // 2))) * 2,
    "a-leave-that-is-too-short": h2.frame(h2.GOAWAY, 0, 0, bytes(4)),
    "pings-without-end": h2.frame(h2.PING, 0, 0, bytes(8)) * (CHORES_MAX + 1),
    "data-frames-without-data": request(1) + data(1, b"") * (CHORES_MAX + 1),
}


@pytest.mark.parametrize("name", BAD)
async def test_what_breaks_the_rules_breaks_the_connection(name: str) -> None:
    async with serving({TALK: wait}) as server:
        raw, other = await connected(server), await connected(server)
        sending = asyncio.ensure_future(_send_all(raw, BAD[name]))
        last = (await raw.until_closed())[-1]
        await sending
        assert last.kind == h2.GOAWAY
        assert last.code != h2.NO_ERROR
        raw.close()
        await other.in_step()
        other.close()
        await eventually(lambda: not server._running)


async def _send_all(raw: Raw, sent: bytes) -> None:
    try:
        await raw.send(sent)
    except ConnectionError:
        # It was hung up on in the middle of it.
        return


@pytest.mark.parametrize(
    "hello",
    [b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01", b"\0" * 100, b"PRI * HTTP/3"],
)
async def test_who_does_not_speak_our_language_is_hung_up_on(hello: bytes) -> None:
    async with serving() as server:
        raw = await connected(server, greet=False)
        await raw.send(hello)
        assert not [each for each in await raw.until_closed() if each.kind == h2.HEADERS]
        raw.close()


async def test_half_closed_sockets_are_closed() -> None:
    async with serving() as server:
        raw = await connected(server)
        await raw.send(request(1))
        raw.sock.shutdown(socket.SHUT_WR)
        await raw.until_closed()
        raw.close()
        assert not server._open


async def test_who_is_gone_before_it_was_greeted_leaves_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its socket is dead when it is taken: the number of it may be another's at once."""
    async with serving() as server:
        host, _, port = server.address.rpartition(":")
        for _ in range(20):
            with socket.create_connection((host, int(port))) as sock:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        raw = await connected(server)
        await is_served(raw)
        raw.close()
        await eventually(lambda: not server._open)
    assert caplog.records == []


# ------------------------------------------------------------------------------------------- time


async def test_who_says_nothing_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "TICK_S", 0.02)
    monkeypatch.setattr(connection_module, "HANDSHAKE_S", 0.5)
    async with serving() as server:
        silent, halting = [await connected(server, greet=False) for _ in range(2)]
        await halting.send(h2.PREFACE[:-1])
        greeted = await connected(server)
        for each in (silent, halting):
            await each.until_closed()
            each.close()
        await is_served(greeted)
        greeted.close()


async def test_who_falls_silent_is_asked_and_then_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "TICK_S", 0.01)
    monkeypatch.setattr(connection_module, "_KEEPALIVE_S", 0.05)
    monkeypatch.setattr(connection_module, "_KEEPALIVE_TIMEOUT_S", 1.0)
    async with serving({TALK: wait}) as server:
        dead, alive = await connected(server), await connected(server)
        await dead.send(request(1))
        for _ in range(8):
            asked = await alive.until(h2.PING)
            await alive.send(h2.frame(h2.PING, h2.ACK, 0, asked.payload))
        assert h2.PING in {each.kind for each in await dead.until_closed()}
        await eventually(lambda: not server._running)
        await alive.in_step()
        for each in (dead, alive):
            each.close()


# ------------------------------------------------------------------------------------ flow control


async def test_streams_that_nobody_reads_do_not_stop_others() -> None:
    """As many as would take up all that the connection allows, and one message above all limits."""
    async with bare_client({TALK: wait, ECHO: _same}) as raw:
        chunk = data(1, message(bytes(STREAM_WINDOW_BYTES // 2 - 5)))
        for stream in range(1, 2 * 20, 2):
            sent = chunk.replace(chunk[:9], h2.head(len(chunk) - 9, h2.DATA, 0, stream), 1)
            await raw.send(request(stream), sent, sent)
        large = 41
        await raw.send(request(large), data(large, h2.MESSAGE_HEAD.pack(0, MESSAGE_BYTES_MAX)))
        window, left = STREAM_WINDOW_BYTES - 5, MESSAGE_BYTES_MAX
        while left:
            size = min(left, window, 1 << 20)
            if not size:
                window += h2.read_uint32((await raw.until(h2.WINDOW_UPDATE, large)).payload)
                continue
            await raw.send(data(large, bytes(size)))
            window -= size
            left -= size
        await is_served(raw)


async def _same(asked: bytes) -> bytes:
    return bytes(asked)


async def test_no_credit_is_lost_whatever_becomes_of_the_streams() -> None:
    """Read to the end, left early, reset, refused, cancelled: the window is whole after all."""
    rng = random.Random(7)

    async def moody(stream: Talk) -> None:
        for _ in range(rng.choice((0, 1, 3, 1_000))):
            if await stream.recv() is None:
                return

    async with serving({TALK: moody, ECHO: _same}) as server:
        raw = await connected(server)
        (connection,) = server._open
        window, messages = CONNECTION_WINDOW_BYTES, 0
        for number in range(1, 2_000, 2):
            sent = request(number)
            for _ in range(10):
                padding = rng.choice((0, 9))
                payload = bytes((padding,)) + message(bytes(rng.choice((0, 10, 20_000))))
                sent += h2.frame(h2.DATA, h2.PADDED, number, payload + bytes(padding))
                window -= len(payload) + padding
                messages += 1
            sent += rng.choice((h2.reset(number, h2.CANCEL), b"", data(number, b"", end=True)))
            await raw.send(sent)
            if number % 100 == 99:
                window += await _given(raw)
        await raw.send(h2.settings(()))
        window += await _given(raw)
        assert messages == 5_000 * 2
        assert connection.credit.owed == CONNECTION_WINDOW_BYTES - window
        assert connection.credit.owed < CONNECTION_WINDOW_BYTES // 2
        assert connection.credit.unread == 0
        raw.close()


async def _given(raw: Raw) -> int:
    """What the other side allows again, up to now."""
    await raw.send(h2.frame(h2.PING, 0, 0, b"up to me"))
    found = 0
    while (each := await raw.frame()) is not None and each.payload != b"up to me":
        if each.kind == h2.WINDOW_UPDATE and each.stream == 0:
            found += h2.read_uint32(each.payload)
    return found


async def test_who_stops_reading_within_a_message_stops_nobody_else() -> None:
    """Neither its own other streams, as far as its windows go, nor other connections."""
    async with serving() as server:
        raw, other = await connected(server), await connected(server)
        await raw.send(h2.window_update(0, 1 << 20), request(1, TALK))
        await raw.send(data(1, message(bytes(200_000))))
        # Of stream 1 comes what its window allows, and of others what they have to say.
        received = 0
        while received < h2.WINDOW_DEFAULT:
            received += len((await raw.until(h2.DATA, 1)).payload)
        for stream in (3, 5, 7):
            await is_served(raw, stream)
        await is_served(other)
        await raw.send(h2.window_update(1, 1 << 20))
        while received < 200_005:
            received += len((await raw.until(h2.DATA, 1)).payload)
        raw.close()
        other.close()


async def _flood_or_tick(stream: Talk) -> None:
    """Large messages without end for who asks for them, small ones for others."""
    size = int(await stream.recv() or b"0")
    while True:
        await stream.send(bytes(size))


async def test_streams_take_turns_when_the_connection_allows_little() -> None:
    """One that always has something to send does not keep the others from sending."""
    async with bare_client({TALK: _flood_or_tick}) as raw:
        await raw.send(h2.settings([(h2.SETTING_WINDOW, 1 << 30)]))
        for stream, size in ((1, b"1000000"), (3, b"1000000"), (5, b"10")):
            await raw.send(request(stream), data(stream, message(size)))
        received: dict[int, int] = defaultdict(int)
        while sum(received.values()) < h2.WINDOW_DEFAULT:
            found = await raw.until(h2.DATA)
            received[found.stream] += len(found.payload)
        for _ in range(12):
            await raw.send(h2.window_update(0, 1_000))
            got = 0
            while got < 1_000:
                found = await raw.until(h2.DATA)
                received[found.stream] += len(found.payload)
                got += len(found.payload)
        assert set(received) == {1, 3, 5}


async def test_streams_take_turns_when_the_socket_takes_little() -> None:
    async with bare_client({TALK: _flood_or_tick}) as raw:
        await raw.send(WIDE)
        await raw.send(request(1), data(1, message(b"8000000")))
        await raw.until(h2.DATA, 1)
        # By now the line is full of it.
        await raw.send(request(3), data(3, message(b"10")))
        others = 0
        while (found := await raw.until(h2.DATA)).stream != 3:
            others += len(found.payload)
        assert others < 64 << 20


async def test_who_breaks_the_rules_while_it_is_sent_something_gets_no_other_bytes_within() -> None:
    """What it is told comes between two frames or not at all."""
    async with serving({ECHO: _large}) as server:
        raw = await connected(server)
        (connection,) = server._open
        await raw.send(WIDE, h2.settings([(h2.SETTING_FRAME_BYTES_MAX, 1 << 22)]))
        for stream in range(1, 40, 2):
            await raw.send(request(stream, ECHO), data(stream, message(b"x"), end=True))
        await eventually(lambda: connection._unsent)
        # There is room in the socket again, and a bad frame, before the connection looks.
        received = bytearray()
        with suppress(BlockingIOError):
            while True:
                received += raw.sock.recv(1 << 20)
        raw.sock.send(h2.window_update(0, 0))
        raw._unread[:0] = received
        await eventually(lambda: connection.ended)
        frames = await raw.until_closed()
        assert {each.kind for each in frames} <= {h2.SETTINGS, h2.HEADERS, h2.DATA}
        assert b"grows by nothing" not in raw._unread
        raw.close()


async def test_giant_messages_that_are_only_announced_take_no_memory() -> None:
    async with serving() as server:
        raw = await connected(server)
        before = _resident_bytes()
        head = h2.MESSAGE_HEAD.pack(0, MESSAGE_BYTES_MAX)
        for stream in range(1, 80, 2):
            await raw.send(request(stream), data(stream, head + b"x"))
        await raw.in_step()
        # Some pages of each are touched by who keeps the memory; that is all.
        assert _resident_bytes() - before < 40 * STREAM_WINDOW_BYTES
        raw.close()
        await eventually(lambda: not server._running)
    assert pa.total_allocated_bytes() < MESSAGE_BYTES_MAX


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * 4_096


# ------------------------------------------------------------------------------------------ floods


@pytest.mark.parametrize(
    "flood",
    [
        pytest.param(h2.frame(h2.PING, 0, 0, b"answer!!"), id="pings"),
        pytest.param(h2.settings(()), id="settings"),
        pytest.param(h2.settings([(h2.SETTING_WINDOW, 5)] * 3), id="large settings"),
    ],
)
async def test_a_peer_that_asks_and_never_reads_is_cut_off(
    flood: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the length of what waits for it: the limit on useless work is out of the way here."""
    monkeypatch.setattr(connection_module, "CHORES_MAX", 10**9)
    monkeypatch.setattr(connection_module, "UNREAD_BYTES_MAX", 100_000)
    limits = ServerLimits(budget=BudgetLimits(address_chores_max=10**9))
    async with serving(limits=limits) as server:
        raw = await connected(server)
        (connection,) = server._open
        connection._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4_096)
        other = await connected(server)
        sending = asyncio.ensure_future(_send_all(raw, flood * (64 << 20 >> 4)))
        await eventually(lambda: connection.ended)
        assert connection.ended == "it does not read what it asks for"
        assert connection._unsent < 2_000_000
        await sending
        await is_served(other)
        for each in (raw, other):
            each.close()


async def test_calls_whose_answers_nobody_reads_are_cut_off_or_wait() -> None:
    """However many come: answers wait for room, and errors do not pile up for ever."""
    async with serving({ECHO: _large}) as server:
        raw, other = await connected(server), await connected(server)
        await raw.send(WIDE)
        (connection, _) = server._open
        stream = 1
        for _ in range(60):
            for _ in range(50):
                # Half of them are taken back: their answers are in the line all the same.
                await raw.send(request(stream, ECHO), data(stream, message(b"x"), end=True))
                await raw.send(h2.reset(stream, h2.CANCEL) if stream % 4 == 1 else b"")
                stream += 2
            assert connection._unsent <= connection_module.UNREAD_BYTES_MAX
            assert not connection.ended, "it is only slow"
        await other.send(request(1, ECHO), data(1, message(b"x"), end=True))
        await other.until(h2.DATA, 1)
        for each in (raw, other):
            each.close()


async def _large(_: bytes) -> bytes:
    return bytes(1 << 20)


async def test_streams_that_are_opened_and_reset_at_once() -> None:
    """Thousands of them: few tasks at any time, and others are served meanwhile."""
    async with serving() as server:
        raw, other = await connected(server), await connected(server)
        most = 0
        for start in range(1, 4_000, 1_000):
            numbers = range(start, start + 1_000, 2)
            await raw.send(*(request(n) + h2.reset(n, h2.CANCEL) for n in numbers))
            most = max(most, len(server._running))
            await is_served(other, start)
        await raw.in_step()
        await eventually(lambda: not server._running)
        assert most <= 2_000
        # For ever is too long.
        numbers = range(10_001, 40_001, 2)
        flood = b"".join(request(n) + h2.reset(n, h2.CANCEL) for n in numbers)
        sending = asyncio.ensure_future(_send_all(raw, flood))
        assert (await raw.until(h2.GOAWAY)).code == h2.CALM_DOWN
        await sending
        await is_served(other, 10_001)
        for each in (raw, other):
            each.close()


# --------------------------------------------------------------------------------- a client's side


@pytest.mark.parametrize(
    "said",
    [
        h2.frame(h2.PUSH_PROMISE, h2.END_HEADERS, 1, bytes(4)),
        h2.frame(h2.HEADERS, h2.END_HEADERS, 2, b""),
        data(99, b""),
        data(2, b"x"),
        h2.frame(h2.HEADERS, h2.END_HEADERS, 1, b"\xff\xff\xff"),
    ],
)
async def test_a_server_that_breaks_the_rules_is_left(said: bytes) -> None:
    async with bare_server() as server:
        channel = server.channel()
        call = asyncio.ensure_future(channel.call(ECHO, b"", timeout_ms=20_000))
        raw = await server.accept()
        await raw.until(h2.DATA)
        await raw.send(said)
        with pytest.raises(Exception, match="does not keep to HTTP/2"):
            await call
        assert (await raw.until_closed())[-1].kind == h2.GOAWAY
        again = asyncio.ensure_future(channel.call(ECHO, b"", timeout_ms=20_000))
        raw = await server.accept()
        await raw.until(h2.DATA)
        await raw.send(answer(1, b"better"))
        assert await again == b"better"


async def test_a_connection_that_is_closed_by_who_is_told_that_it_closes() -> None:
    """`close` is entered again by those whom it wakes."""
    ends: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        sock = socket.create_connection(server.getsockname())
        accepted, _ = server.accept()
    connection = Connection(
        sock, message_bytes_max=1_000, on_end=lambda closed: ends.append(closed.ended)
    )

    class Closer:
        def on_headers(self, fields: dict[str, str], *, end: bool) -> None: ...

        def on_refused(self, status: int, detail: str) -> None: ...

        def on_broken(self, reason: str) -> None:
            connection.close("again")

    for _ in range(3):
        connection.open().owner = Closer()
    connection.close("first")
    assert ends == ["first"]
    assert connection.is_idle
    assert not connection.takes_streams
    accepted.close()
