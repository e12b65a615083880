"""A connection and its peers: those that keep to the rules in odd ways, and those that do not."""

from __future__ import annotations

import asyncio
import socket

import pytest

from simulation.transport_contract import ECHO, TALK
from tailrace.transport.http2 import frames as h2
from unit.transport.http2.peers import (
    bare_client,
    connected,
    data,
    message,
    request,
    request_block,
    serving,
)

HELLO = h2.PREFACE + h2.settings(())


async def test_a_call_whose_bytes_come_one_at_a_time() -> None:
    async with serving() as server:
        raw = await connected(server, greet=False)
        for each in HELLO + request(1, ECHO) + data(1, message(b"slow"), end=True):
            await raw.send(bytes((each,)))
        assert await raw.message(1) == b"slow"
        assert (await raw.status(1))["grpc-status"] == "0"
        raw.close()


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
        await raw.send(
            h2.frame(h2.HEADERS, flags, 3, b"\x07" + bytes(5) + block + bytes(7)),
            h2.frame(h2.PRIORITY, 0, 3, bytes(5)),
            h2.frame(
                h2.DATA, h2.PADDED | h2.END_STREAM, 3, b"\x03" + message(b"padded") + bytes(3)
            ),
        )
        assert await raw.message(3) == b"padded"


async def test_frames_of_kinds_that_nobody_knows_are_passed_over() -> None:
    async with bare_client() as raw:
        await raw.send(h2.frame(0x7B, 0xFF, 0, b"?" * 1_000), h2.frame(0xFF, 0, 99, b""))
        await raw.send(request(1, ECHO), data(1, message(b"known"), end=True))
        assert await raw.message(1) == b"known"


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
        await raw.send(
            h2.settings([(h2.SETTING_WINDOW, 11)]), h2.settings([(h2.SETTING_WINDOW, 0)])
        )
        await raw.send(data(1, message(b"d")), h2.window_update(1, 7))
        assert (await raw.until(h2.DATA, 1)).payload == message(b"d")


async def test_pings_are_answered() -> None:
    async with bare_client() as raw:
        await raw.send(h2.frame(h2.PING, 0, 0, b"12345678"))
        found = await raw.until(h2.PING)
        assert (found.flags, found.payload) == (h2.ACK, b"12345678")


BAD: dict[str, bytes] = {
    "data-of-an-idle-stream": data(1, b"x"),
    "headers-on-stream-0": request(0),
    "headers-with-an-even-number": request(2),
    "more-padding-than-data": request(1) + h2.frame(h2.DATA, h2.PADDED, 1, b"\x05abc"),
    "headers-that-are-not-continued": h2.frame(h2.HEADERS, 0, 1, b"") + data(1, b""),
    "a-continuation-of-nothing": h2.frame(h2.CONTINUATION, h2.END_HEADERS, 1, b""),
    "data-after-the-end": request(1, TALK, end=True) + data(1, message(b"x")),
    "settings-of-a-strange-length": h2.frame(h2.SETTINGS, 0, 0, b"1234567"),
    "settings-of-a-stream": h2.frame(h2.SETTINGS, 0, 1, b""),
    "a-window-larger-than-any": h2.settings([(h2.SETTING_WINDOW, 2**31)]),
    "frames-of-an-impossible-size": h2.settings([(h2.SETTING_FRAME_BYTES_MAX, 1)]),
    "a-promise": h2.frame(h2.PUSH_PROMISE, h2.END_HEADERS, 1, bytes(4)),
    "a-window-that-overflows": h2.window_update(0, h2.WINDOW_MAX),
    "a-stream-window-that-overflows": request(1) + h2.window_update(1, h2.WINDOW_MAX),
    "a-giant-frame": h2.head(1 << 20, h2.PING, 0, 0),
    "headers-that-cannot-be-read": h2.frame(h2.HEADERS, h2.END_HEADERS, 1, b"\xff\xff\xff"),
    "headers-without-an-end": h2.frame(h2.HEADERS, 0, 1, bytes(16_000))
    + h2.frame(h2.CONTINUATION, 0, 1, bytes(16_000)) * 5,
}


@pytest.mark.parametrize("name", BAD)
async def test_what_breaks_the_rules_breaks_the_connection(name: str) -> None:
    async with serving({TALK: _wait}) as server:
        raw, other = await connected(server), await connected(server)
        await raw.send(BAD[name])
        last = (await raw.until_closed())[-1]
        assert last.kind == h2.GOAWAY
        assert last.code != h2.NO_ERROR
        raw.close()
        await other.in_step()
        other.close()


async def _wait(stream: object) -> None:
    """Neither reads nor writes: what comes stays where it is."""
    await asyncio.sleep(3_600)


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
        raw.sock.shutdown(socket.SHUT_WR)
        await raw.until_closed()
        raw.close()
        assert not server._open
