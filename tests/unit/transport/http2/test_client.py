"""Calls and streams of ours to servers that are full, leave, fall silent, or are no servers."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import socket
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest

from simulation.transport_contract import COUNT, ECHO, TALK, Talk
from tailrace.errors import InvalidRequest, RequestTimedOut, TooManyConnections, Unreachable
from tailrace.transport.http2 import client as client_module
from tailrace.transport.http2 import connection as connection_module
from tailrace.transport.http2 import frames as h2
from tailrace.transport.http2.client import Http2Channel, told
from tailrace.transport.http2.network import Http2Network
from tailrace.transport.limits import ServerLimits
from unit.transport.http2.peers import (
    HANDLERS,
    answer,
    bare_server,
    begin,
    cancelled,
    data,
    eventually,
    message,
    serving,
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
        call = asyncio.ensure_future(channel.call(ECHO, b"2", timeout_ms=20_000))
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
            asyncio.ensure_future(channel.call(ECHO, b"%d" % n, timeout_ms=20_000))
            for n in range(2)
        ]
        first = await server.accept()
        await first.until(h2.DATA, 3)
        await first.send(h2.go_away(1, h2.NO_ERROR))
        with pytest.raises(Unreachable, match="closed the connection"):
            await calls[1]
        again = asyncio.ensure_future(channel.call(ECHO, b"2", timeout_ms=20_000))
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
        call = asyncio.ensure_future(channel.call(ECHO, b"", timeout_ms=20_000))
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
        call = asyncio.ensure_future(channel.call(ECHO, b"", timeout_ms=20_000))
        raw = await server.accept()
        await raw.until(h2.DATA, 1)
        await raw.send(answer(1, b"in time"))
        assert await call == b"in time"
        with pytest.raises(RequestTimedOut):
            await channel.call(ECHO, b"", timeout_ms=50)
        assert (await raw.until(h2.RST_STREAM, 3)).code == h2.CANCEL
        # The connection is as good as ever.
        again = asyncio.ensure_future(channel.call(ECHO, b"", timeout_ms=20_000))
        await raw.until(h2.DATA, 5)
        await raw.send(begin(3), data(3, message(b"too late")), answer(5, b"fine"))
        assert await again == b"fine"


async def test_who_dies_within_a_message_is_unreachable() -> None:
    async with bare_server() as server:
        call = asyncio.ensure_future(server.channel().call(ECHO, b"", timeout_ms=20_000))
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
            call = asyncio.ensure_future(server.channel().call(ECHO, b"", timeout_ms=20_000))
            raw = await server.accept()
            await raw.until(h2.DATA)
            await raw.send(said)
            with pytest.raises(Unreachable, match=reason):
                await call


async def test_another_program_that_speaks_http2() -> None:
    async with bare_server() as server:
        call = asyncio.ensure_future(server.channel().call(ECHO, b"", timeout_ms=20_000))
        raw = await server.accept()
        await raw.until(h2.DATA)
        block = h2.header_block([(":status", "404")])
        await raw.send(h2.frame(h2.HEADERS, h2.END_HEADERS | h2.END_STREAM, 1, block))
        with pytest.raises(Unreachable, match="HTTP status 404"):
            await call


async def test_a_call_that_is_cancelled_while_it_connects_leaves_nothing() -> None:
    async with bare_server() as server:
        channel = server.channel()
        call = asyncio.ensure_future(channel.call(ECHO, b"", timeout_ms=20_000))
        await asyncio.sleep(0)
        await cancelled(call)
        assert not channel._open
        # The attempt goes on, for whoever comes next.
        again = asyncio.ensure_future(channel.call(ECHO, b"", timeout_ms=20_000))
        raw = await server.accept()
        await raw.until(h2.DATA, 1)
        await raw.send(answer(1, b"there"))
        assert await again == b"there"


@pytest.mark.parametrize(
    ("status", "detail", "expected", "text"),
    [
        (3, "too many", InvalidRequest, "INVALID_ARGUMENT: too many"),
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


# ------------------------------------------------------------------------------------ cancellation


async def _call(channel: Http2Channel) -> None:
    assert await channel.call(ECHO, b"x" * 100, timeout_ms=20_000) == b"x" * 100


async def _call_with_much(channel: Http2Channel) -> None:
    assert await channel.call(ECHO, bytes(300_000), timeout_ms=20_000) == bytes(300_000)


async def _talk(channel: Http2Channel) -> None:
    stream = channel.open(TALK)
    try:
        await stream.send(bytes(200_000))
        await stream.send(b"y")
        assert len(await stream.recv() or b"") == 200_000
        assert await stream.recv() == b"y"
        await stream.finish()
        assert await stream.recv() is None
    finally:
        stream.cancel()


async def _count(channel: Http2Channel) -> None:
    stream = channel.open(COUNT, b"3")
    assert [await stream.recv() for _ in range(4)] == [b"0", b"1", b"2", None]


async def _close(channel: Http2Channel) -> None:
    await channel.call(ECHO, b"", timeout_ms=20_000)
    await channel.close()


@pytest.mark.parametrize("work", [_call, _call_with_much, _talk, _count, _close])
@pytest.mark.parametrize("is_fresh", [True, False])
async def test_whatever_is_cancelled_at_any_step_leaves_nothing_behind(
    work: Callable[[Http2Channel], Awaitable[None]],
    is_fresh: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """After so many turns of the loop, on a connection that is there or is only being made."""
    async with serving() as server:
        network = Http2Network(idle_max=1)
        await _call(kept := network.channel(server.address))
        for steps in range(40):
            used = Http2Network() if is_fresh else network
            channel = used.channel(server.address)
            task = asyncio.ensure_future(work(channel))
            for _ in range(steps):
                await asyncio.sleep(0)
            await cancelled(task)
            assert not channel._open
            with suppress(Unreachable):
                # It may be closed by now, as it was meant to be.
                await _call(channel)
            await channel.close()
            if is_fresh:
                await used.close()
        (connection,) = network._shared[server.address]._connections
        await eventually(lambda: not server._running, lambda: not connection.streams)
        await _call(kept)
        await network.close()
        await eventually(lambda: not server._open)
    gc.collect()
    await asyncio.sleep(0)
    assert [each.getMessage() for each in caplog.records] == []


async def test_a_send_that_is_cancelled_within_a_message_breaks_the_stream() -> None:
    async with bare_server() as server:
        stream = server.channel().open(TALK)
        sending = [asyncio.ensure_future(stream.send(bytes(200_000))) for _ in range(2)]
        raw = await server.accept()
        received = 0
        while received < h2.WINDOW_DEFAULT:
            received += len((await raw.until(h2.DATA, 1)).payload)
        await cancelled(sending[0])
        assert (await raw.until(h2.RST_STREAM, 1)).code == h2.CANCEL
        with pytest.raises(Unreachable):
            await sending[1]
        with pytest.raises(Unreachable):
            await stream.recv()


async def test_who_waits_for_a_peer_that_does_not_read_is_told_when_it_goes() -> None:
    async with bare_server() as server:
        stream = server.channel().open(TALK)
        first = asyncio.ensure_future(stream.send(b""))
        raw = await server.accept((h2.SETTING_WINDOW, h2.WINDOW_MAX))
        await raw.send(h2.window_update(0, 1 << 30))
        await first
        sending = asyncio.ensure_future(stream.send(bytes(60 << 20)))
        (connection,) = server.network._shared[server.address]._connections
        await eventually(lambda: connection._line)
        assert not sending.done()
        raw.close()
        with pytest.raises(Unreachable, match="closed the connection"):
            await sending


async def test_a_channel_that_closes_breaks_what_waits_to_connect() -> None:
    async with BlackHole() as address:
        network = Http2Network()
        channel = network.channel(address)
        call = asyncio.ensure_future(channel.call(ECHO, b"", timeout_ms=20_000))
        stream = channel.open(TALK)
        receiving = asyncio.ensure_future(stream.recv())
        await asyncio.sleep(0.02)
        await channel.close()
        for each in (call, receiving):
            with pytest.raises(Unreachable, match=r"closed|cancelled"):
                await each
        with pytest.raises(Unreachable, match="closed"):
            channel.open(TALK)
        await network.close()


# --------------------------------------------------------------------------------- time and silence


class BlackHole:
    """An address that answers nobody: its line of those who wait is full."""

    async def __aenter__(self) -> str:
        self._full = socket.create_server(("127.0.0.1", 0), backlog=0)
        self._fillers = [socket.socket() for _ in range(4)]
        for each in self._fillers:
            each.setblocking(False)
            each.connect_ex(self._full.getsockname())
        return "{}:{}".format(*self._full.getsockname())

    async def __aexit__(self, *_: object) -> None:
        for each in (self._full, *self._fillers):
            each.close()


async def test_who_does_not_take_connections_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "CONNECT_TIMEOUT_S", 0.05)
    async with BlackHole() as address:
        network = Http2Network()
        channel = network.channel(address)
        with pytest.raises(Unreachable, match="did not answer: the host is down"):
            await channel.call(ECHO, b"", timeout_ms=20_000)
        with pytest.raises(Unreachable, match="did not answer"):
            await channel.open(TALK).recv()
        with pytest.raises(RequestTimedOut):
            await channel.call(ECHO, b"", timeout_ms=10)
        await network.close()


async def test_who_takes_connections_and_says_nothing_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection_module, "TICK_S", 0.02)
    monkeypatch.setattr(connection_module, "HANDSHAKE_S", 0.05)
    async with bare_server() as server:
        receiving = asyncio.ensure_future(server.channel().open(TALK).recv())
        await server.accept(greet=False)
        with pytest.raises(Unreachable, match="does not answer as a server of ours"):
            await receiving


async def test_a_process_that_is_stopped_is_noticed_and_found_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection_module, "TICK_S", 0.02)
    monkeypatch.setattr(connection_module, "_KEEPALIVE_S", 0.5)
    monkeypatch.setattr(connection_module, "_KEEPALIVE_TIMEOUT_S", 1.5)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", _SERVER),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert process.stdout is not None
    address = (await process.stdout.readline()).decode().strip()
    network = Http2Network()
    channel = network.channel(address)
    try:
        stream = channel.open(TALK)
        await stream.send(b"there?")
        assert await stream.recv() == b"there?"
        process.send_signal(signal.SIGSTOP)
        with pytest.raises(Unreachable, match="it fell silent"):
            await stream.recv()
        process.send_signal(signal.SIGCONT)
        assert await channel.call(ECHO, b"back", timeout_ms=20_000) == b"back"
        # Killed in the middle of a message.
        stream = channel.open(TALK)
        sending = asyncio.ensure_future(stream.send(bytes(60 << 20)))
        await asyncio.sleep(0.01)
        process.kill()
        with pytest.raises(Unreachable):
            await stream.recv()
        with suppress(Unreachable):
            await sending
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        await network.close()


_SERVER = """
import asyncio
from tailrace.transport.http2.network import Http2Network
from unit.transport.http2.peers import HANDLERS
async def main():
    server = await Http2Network().serve("127.0.0.1:0", HANDLERS)
    print(server.address, flush=True)
    await asyncio.sleep(3_600)
asyncio.run(main())
"""


# ------------------------------------------------------------------------------------- many streams


async def test_more_calls_than_a_connection_takes_are_all_answered() -> None:
    """On a connection that has only just been made, whose limit nobody has heard yet."""
    limits = ServerLimits(streams_per_connection_max=connection_module.STREAMS_BEFORE_SETTINGS)
    async with serving(limits=limits) as server:
        network = Http2Network()
        channel = network.channel(server.address)
        calls = [channel.call(ECHO, b"%d" % n, timeout_ms=20_000) for n in range(350)]
        assert await asyncio.gather(*calls) == [b"%d" % n for n in range(350)]
        await network.close()


@pytest.mark.parametrize("is_kind", [True, False])
async def test_no_more_than_a_hundred_go_to_a_server_that_has_not_said_what_it_takes(
    is_kind: bool,
) -> None:
    before = connection_module.STREAMS_BEFORE_SETTINGS
    async with bare_server() as server:
        channel = server.channel()
        calls = [
            asyncio.ensure_future(channel.call(ECHO, b"", timeout_ms=20_000))
            for _ in range(before + 50)
        ]
        first = await server.accept(greet=False)
        assert await first._read(len(h2.PREFACE)) == h2.PREFACE
        await first.until(h2.DATA, 2 * before - 1)
        if not is_kind:
            first.close()
            ends = await asyncio.gather(*calls, return_exceptions=True)
            assert {type(each) for each in ends} == {Unreachable}
            return
        await first.send(h2.settings([(h2.SETTING_STREAMS_MAX, before + 20)]))
        await first.until(h2.DATA, 2 * (before + 20) - 1)
        # The rest goes elsewhere.
        second = await server.accept()
        await second.until(h2.DATA, 2 * 30 - 1)
        for raw, size in ((first, before + 20), (second, 30)):
            await raw.send(*(answer(2 * n + 1, b"there") for n in range(size)))
        assert await asyncio.gather(*calls) == [b"there"] * (before + 50)


async def test_streams_that_stay_open_beyond_the_limit_of_one_connection() -> None:
    limits = ServerLimits(streams_per_connection_max=2)
    async with serving(limits=limits) as server:
        network = Http2Network()
        channel = network.channel(server.address)
        await channel.call(ECHO, b"", timeout_ms=20_000)
        streams = [channel.open(TALK) for _ in range(2)]
        for number in range(7):
            if number >= 2:
                streams.append(channel.open(TALK))
            await streams[number].send(b"%d" % number)
            assert await streams[number].recv() == b"%d" % number
            # Its connection says by now how many it takes, unless the machine is very busy.
            await asyncio.sleep(0.05)
        # At least as many as needed; and they are shared.
        assert 4 <= len(server._open) < len(streams)
        for each in streams:
            await each.finish()
            assert await each.recv() is None
        # Those that are not the newest end with their streams.
        await eventually(lambda: len(server._open) == 1)
        await network.close()


async def test_a_stream_that_is_left_unread_takes_nothing_from_others() -> None:
    """Ended, never read, never cancelled: as many as would take up the window twice."""

    async def push(asked: bytes, stream: Talk) -> None:
        for _ in range(3):
            await stream.send(bytes(1 << 20))

    async with serving({**HANDLERS, COUNT: push}) as server:
        network = Http2Network()
        channel = network.channel(server.address)
        unread = [channel.open(COUNT, b"") for _ in range(50)]
        for each in unread:
            assert await each.recv() is not None
        await _call_with_much(channel)
        await network.close()


async def test_reconnecting_after_every_kind_of_end(caplog: pytest.LogCaptureFixture) -> None:
    network = Http2Network()
    address = ""
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            server = await network.serve(address or "127.0.0.1:0", HANDLERS)
            address = server.address
            channel = network.channel(address)
            for _ in range(2):
                await _call(channel)
            await server.stop(grace_ms=100)
            with pytest.raises(Unreachable, match="refused"):
                await _call(channel)
    assert caplog.records == []
    await network.close()
