"""Attacks on a server of ours, as the attacker sees them; an ordinary client is served meanwhile.

Everything is counted, nothing is timed. Attackers come from one address, the client from the same
one or another.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress

import pytest

from simulation.transport_contract import ECHO, TALK, Talk
from tailrace.errors import Overloaded
from tailrace.transport.budget import BudgetLimits
from tailrace.transport.http2 import connection as connection_module
from tailrace.transport.http2 import frames as h2
from tailrace.transport.http2 import server as server_module
from tailrace.transport.http2.connection import CHORES_MAX
from tailrace.transport.http2.network import Http2Network
from tailrace.transport.http2.server import Http2Server
from tailrace.transport.limits import SPARE_CONNECTIONS, ServerLimits
from unit.transport.http2.peers import (
    HANDLERS,
    Frame,
    Raw,
    connected,
    data,
    eventually,
    message,
    request,
    request_block,
    serving,
)

HOSTILE = "127.0.0.66"
WIDE = h2.settings([(h2.SETTING_WINDOW, 1 << 20)]) + h2.window_update(0, 1 << 30)
EXHAUSTED = "8"


async def is_served(raw: Raw, stream: int, payload: bytes = b"well?") -> None:
    await raw.send(request(stream, ECHO), data(stream, message(payload), end=True))
    assert await raw.message(stream) == payload


async def flood(raw: Raw, pieces: Iterable[bytes]) -> Frame:
    """Send until it is hung up on; gives the last frame that came."""

    async def send() -> None:
        try:
            for each in pieces:
                await raw.send(each)
        except ConnectionError:
            return

    sending = asyncio.ensure_future(send())
    last = (await raw.until_closed())[-1]
    await sending
    raw.close()
    return last


# ---------------------------------------------------------------------------------------------- A7


@pytest.mark.parametrize("source", ["", HOSTILE], ids=["same-address", "another-address"])
async def test_a7_unfinished_messages_over_many_connections_are_bounded(source: str) -> None:
    limits = ServerLimits(budget=BudgetLimits(bytes_max=1 << 20))
    async with serving({TALK: HANDLERS[TALK], ECHO: HANDLERS[ECHO]}, limits) as server:
        client = await connected(server)
        await client.send(WIDE)
        hostile = [await connected(server, source=source) for _ in range(10)]
        most = 0
        for turn in range(6):
            for raw in hostile:
                # A message of 100 KB of which the last byte never comes.
                head = h2.MESSAGE_HEAD.pack(0, 100_000)
                await raw.send(
                    request(2 * turn + 1, TALK), data(2 * turn + 1, head + bytes(99_999))
                )
                await raw.in_step()
                most = max(most, server.budget.bytes)
            await is_served(client, 2 * turn + 1, bytes(60_000))
        assert most <= 1 << 20
        # 60 were tried, and ten have room.
        assert server.budget.shed >= 60 - 11
        for each in [client, *hostile]:
            each.close()
        await eventually(lambda: not server._open)
        assert (server.budget.bytes, server.budget.calls) == (0, 0)


async def test_a7_who_is_shed_is_told_and_may_try_again() -> None:
    limits = ServerLimits(budget=BudgetLimits(bytes_max=250_000))
    async with serving(limits=limits) as server:
        raw = await connected(server)
        await raw.send(WIDE)
        for number in (1, 3, 5):
            head = h2.MESSAGE_HEAD.pack(0, 100_000)
            await raw.send(request(number, TALK), data(number, head + bytes(90_000)))
        told = await raw.status(1)
        assert told["grpc-status"] == EXHAUSTED
        assert told["grpc-message"].startswith("OVERLOADED: ")
        assert "queued.max.request.bytes=250000" in told["grpc-message"]
        # The other two are as they were.
        await raw.send(data(3, bytes(10_000)), data(5, bytes(10_000)))
        assert await raw.message(3) == bytes(100_000)
        assert await raw.message(5) == bytes(100_000)
        raw.close()


async def test_a7_messages_that_no_handler_reads_are_bounded() -> None:
    async def deaf(stream: Talk) -> None:
        await asyncio.sleep(3_600)

    limits = ServerLimits(budget=BudgetLimits(bytes_max=1 << 20))
    async with serving({TALK: deaf, ECHO: HANDLERS[ECHO]}, limits) as server:
        client, raw = await connected(server), await connected(server, source=HOSTILE)
        for number in range(1, 41, 2):
            await raw.send(request(number, TALK), data(number, message(bytes(1_000)) * 100))
            await raw.in_step()
            assert server.budget.bytes <= 1 << 20
        assert server.budget.shed >= 9
        await is_served(client, 1)
        for each in (client, raw):
            each.close()


async def test_a7_answers_that_wait_for_a_window_are_bounded() -> None:
    async def generous(stream: Talk) -> None:
        await stream.recv()
        await stream.send(bytes(200_000))

    limits = ServerLimits(budget=BudgetLimits(bytes_max=1 << 20))
    async with serving({TALK: generous, ECHO: HANDLERS[ECHO]}, limits) as server:
        client, raw = await connected(server), await connected(server, source=HOSTILE)
        await raw.send(h2.settings([(h2.SETTING_WINDOW, 1)]))
        for number in range(1, 41, 2):
            await raw.send(request(number, TALK), data(number, message(b"much")))
        # The attacker hears resets: half a message was sent, so nothing else can be said.
        for _ in range(20 - 5):
            assert (await raw.until(h2.RST_STREAM)).code == h2.CALM_DOWN
        assert server.budget.bytes <= 1 << 20
        await is_served(client, 1)
        for each in (client, raw):
            each.close()


async def test_a7_streams_over_all_connections_are_bounded_and_shared() -> None:
    limits = ServerLimits(budget=BudgetLimits(calls_max=50))
    async with serving(limits=limits) as server:
        hostile = [await connected(server, source=HOSTILE) for _ in range(5)]
        for raw in hostile:
            await raw.send(*(request(2 * n + 1, TALK) for n in range(20)))
            await raw.in_step()
        assert server.budget.calls == 50
        # The last of them was refused at least: the others had taken all there was.
        told = await _refused(hostile[0])
        assert (told["grpc-status"], "max.streams=50" in told["grpc-message"]) == (EXHAUSTED, True)
        for source in ("", HOSTILE):
            client = await connected(server, source=source)
            for number in (1, 3, 5):
                await is_served(client, number)
            client.close()
        for raw in hostile:
            raw.close()
        await eventually(lambda: not server._open, lambda: server.budget.calls == 0)


async def _refused(raw: Raw) -> dict[str, str]:
    while True:
        found = await raw.until(h2.HEADERS)
        fields = raw.fields(found)
        if fields.get("grpc-status") == EXHAUSTED:
            return fields


async def test_a7_our_client_takes_it_for_overload_and_may_try_again() -> None:
    limits = ServerLimits(budget=BudgetLimits(bytes_max=1_000))
    async with serving(limits=limits) as server:
        network = Http2Network()
        channel = network.channel(server.address)
        with pytest.raises(Overloaded, match=r"queued\.max\.request\.bytes=1000") as told:
            await channel.call(ECHO, bytes(100_000), timeout_ms=10_000)
        assert told.value.retriable
        assert await channel.call(ECHO, b"small", timeout_ms=10_000) == b"small"
        await network.close()


async def test_a7_silent_connections_make_room_for_those_who_ask() -> None:
    limits = ServerLimits(connections_max=10)
    room = 10 + SPARE_CONNECTIONS
    async with serving(limits=limits) as server:
        silent = [await connected(server, source=HOSTILE) for _ in range(room)]
        assert len(server._open) == room
        for source in ("", HOSTILE):
            client = await connected(server, source=source)
            await is_served(client, 1)
            client.close()
        assert len(server._open) <= room
        last = (await silent[0].until_closed())[-1]
        assert (last.kind, last.code) == (h2.GOAWAY, h2.CALM_DOWN)
        for each in silent:
            each.close()


async def test_a7_connections_with_calls_of_one_address_leave_room_for_another() -> None:
    limits = ServerLimits(connections_max=10)
    async with serving(limits=limits) as server:
        hostile = [await connected(server, source=HOSTILE) for _ in range(10)]
        for raw in hostile:
            await raw.send(request(1, TALK))
            await raw.in_step()
        # One more of its own is refused, and told why.
        more = await connected(server, source=HOSTILE)
        await more.send(request(1, TALK))
        assert (await more.status(1))["grpc-message"].startswith("TOO_MANY_CONNECTIONS")
        client = await connected(server)
        await is_served(client, 1)
        assert (await hostile[-1].until(h2.GOAWAY)).code == h2.CALM_DOWN
        for each in [*hostile, more, client]:
            each.close()


async def test_a7_a_connection_that_never_calls_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server_module, "FIRST_CALL_S", 0.05)
    monkeypatch.setattr(server_module, "IDLE_LOOK_S", 0.01)
    async with serving(limits=ServerLimits()) as server:
        used = await connected(server)
        await is_served(used, 1)
        silent = await connected(server)
        assert (await silent.until_closed())[-1].kind == h2.GOAWAY
        await is_served(used, 3)
        for each in (used, silent):
            each.close()


# ---------------------------------------------------------------------------------------------- A8

USELESS: dict[str, Callable[[int], bytes]] = {
    "resets": lambda n: request(2 * n + 1, TALK) + h2.reset(2 * n + 1, h2.CANCEL),
    "resets-of-what-is-gone": lambda _: h2.reset(1, h2.CANCEL),
    "priorities": lambda _: h2.frame(h2.PRIORITY, 0, 3, bytes(5)),
    "unknown-frames": lambda _: h2.frame(0x7B, 0, 0, b"?"),
    "pings": lambda _: h2.frame(h2.PING, 0, 0, bytes(8)),
    "answers-to-pings": lambda _: h2.frame(h2.PING, h2.ACK, 0, bytes(8)),
    "settings": lambda _: h2.settings(()),
    "windows-of-one-byte": lambda _: h2.window_update(0, 1),
    "stream-windows-of-one-byte": lambda _: h2.window_update(1, 1),
    "data-without-data": lambda _: data(1, b""),
    "data-of-one-byte": lambda _: data(1, b"\0"),
    "leaves": lambda _: h2.go_away(0, h2.NO_ERROR),
    "malformed-requests": lambda n: h2.frame(
        h2.HEADERS, h2.END_HEADERS, 2 * n + 3, h2.header_block([("x", "y")])
    ),
}
HEAVY = {"resets", "malformed-requests"}
SHORT_OF_THE_LIMIT = CHORES_MAX // 2


async def deaf(_: object) -> None:
    await asyncio.sleep(3_600)


def _opening(name: str) -> bytes:
    """A stream that stays open, with the head of a giant message for those who drip it."""
    if name == "resets":
        return b""
    return request(1, TALK) + data(1, h2.MESSAGE_HEAD.pack(0, 1 << 20))


@pytest.mark.parametrize("name", USELESS)
async def test_a8_useless_frames_are_cut_on_one_connection(name: str) -> None:
    async with serving({TALK: deaf, ECHO: HANDLERS[ECHO]}) as server:
        client, raw = await connected(server), await connected(server)
        weight = connection_module.CHORES_OF_RESET if name in HEAVY else 1
        useless = b"".join(USELESS[name](n) for n in range(CHORES_MAX // weight + 1))
        last = await flood(raw, [_opening(name), useless])
        assert (last.kind, last.code) == (h2.GOAWAY, h2.CALM_DOWN)
        assert b"keeps us busy" in last.payload
        await is_served(client, 1)
        client.close()
        await eventually(lambda: not server._running)


@pytest.mark.parametrize("name", ["resets", "priorities", "unknown-frames", "windows-of-one-byte"])
async def test_a8_below_the_limit_on_twenty_connections_of_one_address(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each alone would be let through; together they are cut, and the neighbour is not."""
    monkeypatch.setattr(connection_module, "TICK_S", 3_600.0)
    weight = connection_module.CHORES_OF_RESET if name == "resets" else 1
    each = SHORT_OF_THE_LIMIT // weight
    async with serving({TALK: deaf, ECHO: HANDLERS[ECHO]}) as server:
        neighbour = await connected(server)
        hostile = [await connected(server) for _ in range(20)]
        useless = _opening(name) + b"".join(USELESS[name](n) for n in range(each))
        ends = await asyncio.gather(*(_until_cut(raw, useless) for raw in hostile))
        assert sum(end is not None for end in ends) >= 10
        assert {end.code for end in ends if end is not None} == {h2.CALM_DOWN}
        await is_served(neighbour, 1)
        neighbour.close()
        await eventually(lambda: not server._running)


async def _until_cut(raw: Raw, useless: bytes) -> Frame | None:
    """The last word of the server, or None when it took all of it."""
    with suppress(ConnectionError):
        await raw.send(useless, h2.frame(h2.PING, 0, 0, b"in step?"))
    try:
        while (found := await raw.frame()) is not None:
            if found.kind == h2.GOAWAY:
                return found
            if found.kind == h2.PING and found.payload == b"in step?":
                return None
        return None
    finally:
        raw.close()


async def test_a8_windows_that_make_us_write_frames_of_one_byte() -> None:
    async def much(stream: Talk) -> None:
        await stream.recv()
        await stream.send(bytes(1 << 20))

    async with serving({TALK: much, ECHO: HANDLERS[ECHO]}) as server:
        client, raw = await connected(server), await connected(server)
        asked = h2.settings([(h2.SETTING_WINDOW, 1)]) + request(1, TALK)
        pieces = [asked + data(1, message(b"drip")), *[h2.window_update(1, 1) * 100] * 120]
        sending = asyncio.ensure_future(_send_slowly(raw, pieces))
        frames = await raw.until_closed()
        await sending
        assert (frames[-1].kind, frames[-1].code) == (h2.GOAWAY, h2.CALM_DOWN)
        assert sum(each.kind == h2.DATA for each in frames) <= CHORES_MAX + 1
        await is_served(client, 1)
        for each in (client, raw):
            each.close()


async def _send_slowly(raw: Raw, pieces: list[bytes]) -> None:
    try:
        for each in pieces:
            await raw.send(each)
            await asyncio.sleep(0)
    except ConnectionError:
        return


async def test_a8_settings_that_let_each_stream_write_one_byte_more() -> None:
    async def much(stream: Talk) -> None:
        await stream.recv()
        await stream.send(bytes(1 << 16))

    async with serving({TALK: much, ECHO: HANDLERS[ECHO]}) as server:
        client, raw = await connected(server), await connected(server)
        opening = h2.settings([(h2.SETTING_WINDOW, 1)]) + b"".join(
            request(2 * n + 1, TALK) + data(2 * n + 1, message(b"drip")) for n in range(500)
        )
        steps = [h2.settings([(h2.SETTING_WINDOW, n)]) for n in range(2, 500)]
        last = await flood(raw, [opening, *steps])
        assert (last.kind, last.code) == (h2.GOAWAY, h2.CALM_DOWN)
        await is_served(client, 1)
        client.close()
        await eventually(lambda: not server._running)


async def test_a8_continuations_of_one_byte_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "CHORES_MAX", 100)
    async with serving() as server:
        client, raw = await connected(server), await connected(server)
        block = request_block(ECHO)
        pieces = [h2.frame(h2.HEADERS, 0, 1, block[:1])]
        pieces += [h2.frame(h2.CONTINUATION, 0, 1, b"\0")] * 200
        last = await flood(raw, pieces)
        assert (last.kind, last.code) == (h2.GOAWAY, h2.CALM_DOWN)
        await is_served(client, 1)
        client.close()


async def test_a8_windows_and_pings_of_who_is_served_are_paid_for() -> None:
    """Clients of gRPC send a small window and a ping with each answer that they read."""
    async with serving() as server:
        raw = await connected(server)
        await raw.send(h2.window_update(0, 1 << 20))
        for number in range(1, 2 * (CHORES_MAX // 2) + 2_000, 2):
            extra = h2.window_update(0, 16) + h2.frame(h2.PING, h2.ACK, 0, bytes(8))
            await raw.send(request(number, ECHO), data(number, message(b"x"), end=True), extra)
            assert await raw.message(number) == b"x"
        await raw.in_step()
        raw.close()


async def test_a8_an_address_that_keeps_connecting_is_not_let_in() -> None:
    limits = ServerLimits(budget=BudgetLimits(address_chores_max=200))
    async with serving(limits=limits) as server:
        client = await connected(server)
        refused = 0
        for _ in range(200):
            raw = await _connection(server)
            refused += await _is_refused(raw)
            raw.close()
        assert refused >= 80
        await is_served(client, 1)
        client.close()


async def _connection(server: Http2Server) -> Raw:
    return await connected(server, greet=False, source=HOSTILE)


async def _is_refused(raw: Raw) -> bool:
    return await raw.frame() is None


# --------------------------------------------------------------------------------------------- A12


def _malformed(*fields: tuple[str, str]) -> bytes:
    return h2.frame(h2.HEADERS, h2.END_HEADERS, 1, h2.header_block(fields))


_OF_ALL = ((":method", "POST"), (":scheme", "http"), (":path", ECHO.name))
_GRPC = ("content-type", "application/grpc")
# What breaks one stream, and the code that says why.
A12: dict[str, tuple[bytes, int]] = {
    "uppercase": (_malformed(*_OF_ALL, _GRPC, ("X-Some", "thing")), h2.PROTOCOL_ERROR),
    "duplicate": (_malformed(_OF_ALL[0], *_OF_ALL, _GRPC), h2.PROTOCOL_ERROR),
    "late": (_malformed(*_OF_ALL[:2], _GRPC, _OF_ALL[2]), h2.PROTOCOL_ERROR),
    "missing": (_malformed(*_OF_ALL[1:], _GRPC), h2.PROTOCOL_ERROR),
    "unknown": (_malformed(*_OF_ALL, (":some", "thing"), _GRPC), h2.PROTOCOL_ERROR),
    "of-the-connection": (_malformed(*_OF_ALL, ("connection", "close")), h2.PROTOCOL_ERROR),
    "te": (_malformed(*_OF_ALL, ("te", "gzip")), h2.PROTOCOL_ERROR),  # codespell:ignore
    "response": (_malformed((":status", "200")), h2.PROTOCOL_ERROR),
    "less-than-the-length": (
        request(1, ECHO, ("content-length", "100")) + data(1, message(b"short"), end=True),
        h2.PROTOCOL_ERROR,
    ),
    "more-than-the-length": (
        request(1, ECHO, ("content-length", "3")) + data(1, message(b"long")),
        h2.PROTOCOL_ERROR,
    ),
    "a-length-without-data": (
        request(1, ECHO, ("content-length", "3"), end=True),
        h2.PROTOCOL_ERROR,
    ),
    "pseudo-fields-in-trailers": (
        request(1, ECHO)
        + h2.frame(
            h2.HEADERS,
            h2.END_HEADERS | h2.END_STREAM,
            1,
            h2.header_block([(":method", "POST")]),
        ),
        h2.PROTOCOL_ERROR,
    ),
    "trailers-that-end-nothing": (
        request(1, ECHO) + h2.frame(h2.HEADERS, h2.END_HEADERS, 1, h2.header_block([("x", "y")])),
        h2.PROTOCOL_ERROR,
    ),
    "data-after-the-end": (
        request(1, TALK, end=True) + data(1, message(b"x")),
        h2.STREAM_CLOSED,
    ),
    "headers-after-the-end": (request(1, TALK, end=True) + request(1), h2.STREAM_CLOSED),
    "data-after-a-reset": (
        request(1) + h2.reset(1, h2.CANCEL) + data(1, message(b"x")),
        h2.STREAM_CLOSED,
    ),
    "a-window-of-a-stream-that-overflows": (
        request(1) + h2.window_update(1, h2.WINDOW_MAX),
        h2.FLOW_CONTROL_ERROR,
    ),
}


@pytest.mark.parametrize("name", A12)
async def test_a12_what_is_wrong_with_one_stream_breaks_that_stream(name: str) -> None:
    sent, code = A12[name]
    async with serving({TALK: deaf, ECHO: HANDLERS[ECHO]}) as server:
        raw = await connected(server)
        await raw.send(sent)
        assert (await raw.until(h2.RST_STREAM, 1)).code == code
        await is_served(raw, 99)
        raw.close()
        await eventually(lambda: not server._running)


_SELF = h2._UINT32.pack(5) + b"\0"
# What breaks the connection, and the code that says why.
A12_FATAL: dict[str, tuple[bytes, int]] = {
    "a-priority-on-itself": (h2.frame(h2.PRIORITY, 0, 5, _SELF), h2.PROTOCOL_ERROR),
    "headers-that-depend-on-themselves": (
        h2.frame(h2.HEADERS, h2.END_HEADERS | h2.HAS_PRIORITY, 5, _SELF + request_block(ECHO)),
        h2.PROTOCOL_ERROR,
    ),
    "a-priority-of-the-connection": (h2.frame(h2.PRIORITY, 0, 0, bytes(5)), h2.PROTOCOL_ERROR),
    "a-priority-that-is-too-short": (h2.frame(h2.PRIORITY, 0, 1, bytes(4)), h2.FRAME_SIZE_ERROR),
    "push-2": (h2.settings([(h2.SETTING_PUSH, 2)]), h2.PROTOCOL_ERROR),
    "a-table-above-the-announced": (
        h2.frame(h2.SETTINGS, h2.ACK, 0)
        + h2.frame(h2.HEADERS, h2.END_HEADERS, 1, b"\x3f\x01" + request_block(ECHO)),
        h2.COMPRESSION_ERROR,
    ),
    "headers-that-cannot-be-read": (
        h2.frame(h2.HEADERS, h2.END_HEADERS, 1, b"\xff\xff\xff"),
        h2.COMPRESSION_ERROR,
    ),
    "headers-after-a-stream-was-closed": (
        request(1, ECHO) + h2.reset(1, h2.CANCEL) + request(1, ECHO),
        h2.STREAM_CLOSED,
    ),
    "a-number-that-was-left-out": (request(5, TALK) + request(3, TALK), h2.PROTOCOL_ERROR),
    "a-frame-above-the-announced": (
        request(1, TALK) + h2.head((4 << 20) + 1, h2.DATA, 0, 1),
        h2.FRAME_SIZE_ERROR,
    ),
}


@pytest.mark.parametrize("name", A12_FATAL)
async def test_a12_what_is_wrong_with_the_connection_ends_it(name: str) -> None:
    sent, code = A12_FATAL[name]
    async with serving({TALK: deaf, ECHO: HANDLERS[ECHO]}) as server:
        raw, other = await connected(server), await connected(server)
        await raw.send(sent)
        last = (await raw.until_closed())[-1]
        assert (last.kind, last.code) == (h2.GOAWAY, code)
        await is_served(other, 1)
        for each in (raw, other):
            each.close()
        await eventually(lambda: not server._running)


async def test_a12_what_was_on_its_way_when_we_broke_a_stream_is_forgiven() -> None:
    async def leave(stream: Talk) -> None:
        await stream.recv()

    async with serving({TALK: leave, ECHO: HANDLERS[ECHO]}) as server:
        raw = await connected(server)
        many = connection_module.RESETS_KNOWN_MAX + 10
        for number in range(1, 2 * many, 2):
            await raw.send(request(number), data(number, message(b"1")))
            assert (await raw.status(number))["grpc-status"] == "0"
        for number in (1, 3, 2 * many - 1):
            await raw.send(data(number, message(b"late")), data(number, b"", end=True))
        await is_served(raw, 2 * many + 1)
        raw.close()
