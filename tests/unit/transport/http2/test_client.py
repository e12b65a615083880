"""Calls and streams of ours to servers that are full, leave, fall silent, or are no servers."""

from __future__ import annotations

import asyncio

import pytest

from simulation.transport_contract import ECHO, TALK
from tailrace.errors import InvalidRequest, RequestTimedOut, TooManyConnections, Unreachable
from tailrace.transport.http2 import frames as h2
from tailrace.transport.http2.client import told
from unit.transport.http2.peers import (
    answer,
    bare_server,
    begin,
    cancelled,
    data,
    message,
    trailers,
)


async def test_a_call_and_what_it_looks_like_on_the_wire() -> None:
    async with bare_server() as server:
        call = asyncio.ensure_future(server.channel().call(ECHO, b"ask", timeout_ms=60_000))
        raw = await server.accept()
        headers = await raw.until(h2.HEADERS)
        fields = raw.fields(headers)
        assert headers.stream == 1
        assert fields[":path"] == ECHO.name
        assert fields[":authority"] == server.address
        assert fields["grpc-timeout"] == "60000m"
        assert "trailers" in fields.values()
        found = await raw.until(h2.DATA)
        assert found.payload == message(b"ask")
        assert found.flags == h2.END_STREAM
        await raw.send(answer(1, b"tell"))
        assert await call == b"tell"


async def test_a_server_that_is_full_gets_a_second_connection() -> None:
    async with bare_server() as server:
        channel = server.channel()
        stream = channel.open(TALK)
        sending = asyncio.ensure_future(stream.send(b"1"))
        first = await server.accept((h2.SETTING_STREAMS_MAX, 1))
        await sending
        await first.until(h2.DATA, 1)
        await first.send(begin(1), data(1, message(b"one")))
        assert await stream.recv() == b"one"
        call = asyncio.ensure_future(channel.call(ECHO, b"2", timeout_ms=5_000))
        second = await server.accept((h2.SETTING_STREAMS_MAX, 1))
        await second.until(h2.DATA, 1)
        await second.send(answer(1, b"two"))
        assert await call == b"two"
        # The first goes on with what it has, and ends with it.
        await first.send(data(1, message(b"more")), trailers(1))
        assert await stream.recv() == b"more"
        assert await stream.recv() is None
        await first.until_closed()


async def test_a_server_that_leaves_ends_what_it_took_and_others_go_elsewhere() -> None:
    async with bare_server() as server:
        channel = server.channel()
        calls = [
            asyncio.ensure_future(channel.call(ECHO, b"%d" % n, timeout_ms=5_000)) for n in range(2)
        ]
        first = await server.accept()
        await first.until(h2.DATA, 3)
        await first.send(h2.go_away(1, h2.NO_ERROR))
        with pytest.raises(Unreachable, match="closed the connection"):
            await calls[1]
        again = asyncio.ensure_future(channel.call(ECHO, b"2", timeout_ms=5_000))
        second = await server.accept()
        await second.until(h2.DATA, 1)
        await second.send(answer(1, b"again"))
        assert await again == b"again"
        await first.send(answer(1, b"late"))
        assert await calls[0] == b"late"
        await first.until_closed()


async def test_a_server_that_leaves_with_an_error_or_nothing_to_do() -> None:
    async with bare_server() as server:
        channel = server.channel()
        call = asyncio.ensure_future(channel.call(ECHO, b"", timeout_ms=5_000))
        raw = await server.accept()
        await raw.until(h2.DATA)
        await raw.send(h2.go_away(99, h2.CALM_DOWN))
        with pytest.raises(Unreachable, match="closed"):
            await call
        await raw.until_closed()


@pytest.mark.parametrize("code", [h2.NO_ERROR, h2.CANCEL, h2.REFUSED_STREAM, h2.CALM_DOWN, 1_234])
async def test_a_stream_that_is_reset_is_unreachable(code: int) -> None:
    async with bare_server() as server:
        stream = server.channel().open(TALK)
        sending = asyncio.ensure_future(stream.send(b"1"))
        raw = await server.accept()
        await sending
        await raw.send(begin(1), h2.reset(1, code))
        for _ in range(2):
            with pytest.raises(Unreachable):
                await stream.recv()
            with pytest.raises(Unreachable):
                await stream.send(b"2")
        stream.cancel()


async def test_a_deadline_resets_the_stream() -> None:
    async with bare_server() as server:
        channel = server.channel()
        call = asyncio.ensure_future(channel.call(ECHO, b"", timeout_ms=50))
        raw = await server.accept()
        with pytest.raises(RequestTimedOut):
            await call
        assert (await raw.until(h2.RST_STREAM, 1)).code == h2.CANCEL
        # The connection is as good as ever.
        again = asyncio.ensure_future(channel.call(ECHO, b"", timeout_ms=5_000))
        await raw.until(h2.DATA, 3)
        await raw.send(begin(1), data(1, message(b"too late")), answer(3, b"fine"))
        assert await again == b"fine"


async def test_who_dies_within_a_message_is_unreachable() -> None:
    async with bare_server() as server:
        call = asyncio.ensure_future(server.channel().call(ECHO, b"", timeout_ms=5_000))
        raw = await server.accept()
        await raw.until(h2.DATA)
        await raw.send(begin(1), data(1, message(bytes(1_000_000))[:100_000]))
        raw.close()
        with pytest.raises(Unreachable, match="closed the connection"):
            await call


async def test_an_answer_that_ends_within_a_message_or_without_a_status() -> None:
    for said, reason in (
        (begin(1) + data(1, b"\0\0\0\0\5he") + trailers(1), "ended"),
        (begin(1) + data(1, message(b"hello"), end=True), "without a status"),
        (begin(1) + trailers(1), "not one answer"),
        (begin(1) + data(1, message(b"1") + message(b"2")) + trailers(1), "not one answer"),
    ):
        async with bare_server() as server:
            call = asyncio.ensure_future(server.channel().call(ECHO, b"", timeout_ms=5_000))
            raw = await server.accept()
            await raw.until(h2.DATA)
            await raw.send(said)
            with pytest.raises(Unreachable, match=reason):
                await call


async def test_another_program_that_speaks_http2() -> None:
    async with bare_server() as server:
        call = asyncio.ensure_future(server.channel().call(ECHO, b"", timeout_ms=5_000))
        raw = await server.accept()
        await raw.until(h2.DATA)
        block = h2.header_block([(":status", "404")])
        await raw.send(h2.frame(h2.HEADERS, h2.END_HEADERS | h2.END_STREAM, 1, block))
        with pytest.raises(Unreachable, match="HTTP status 404"):
            await call


async def test_a_call_that_is_cancelled_while_it_connects_leaves_nothing() -> None:
    async with bare_server() as server:
        channel = server.channel()
        call = asyncio.ensure_future(channel.call(ECHO, b"", timeout_ms=5_000))
        await asyncio.sleep(0)
        await cancelled(call)
        assert not channel._open
        # The attempt goes on, for whoever comes next.
        again = asyncio.ensure_future(channel.call(ECHO, b"", timeout_ms=5_000))
        raw = await server.accept()
        await raw.until(h2.DATA, 1)
        await raw.send(answer(1, b"there"))
        assert await again == b"there"


@pytest.mark.parametrize(
    ("status", "detail", "expected", "text"),
    [
        (4, "", RequestTimedOut, "in time"),
        (8, "large", InvalidRequest, "RESOURCE_EXHAUSTED: large"),
        (12, "what?", InvalidRequest, "UNIMPLEMENTED: what?"),
        (13, "boom", Unreachable, "INTERNAL: boom"),
        (14, "Connection reset by peer", Unreachable, "it closed the connection"),
        (14, f"{TooManyConnections.code}: full", TooManyConnections, "full"),
        (99, "new", Unreachable, "99: new"),
    ],
)
def test_what_a_status_means(status: int, detail: str, expected: type, text: str) -> None:
    error = told("host:1", status, detail)
    assert type(error) is expected
    assert text in str(error)
