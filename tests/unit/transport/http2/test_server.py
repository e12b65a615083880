"""A server of ours and its callers, those of gRPC among them."""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import socket
from contextlib import suppress
from typing import Any

import grpc
import pytest

from simulation.transport_contract import COUNT, ECHO, TALK, Talk
from tailrace.errors import InvalidRequest, Unreachable
from tailrace.transport.http2 import frames as h2
from tailrace.transport.http2 import server as server_module
from tailrace.transport.http2.network import Http2Network
from tailrace.transport.limits import ServerLimits
from tailrace.transport.rpc import CALLER, MESSAGE_BYTES_MAX, Kind, Method
from unit.transport.http2.peers import (
    HANDLERS,
    bare_client,
    connected,
    data,
    eventually,
    message,
    request,
    serving,
)


async def test_a_caller_of_grpc_gets_deadlines_metadata_and_details() -> None:
    async def slow(asked: bytes) -> bytes:
        if asked == b"fail":
            raise ValueError("not in ASCII: é, 100%\n")
        await asyncio.sleep(float(asked))
        return CALLER.get()().encode()

    async with (
        serving({ECHO: slow}) as server,
        grpc.aio.insecure_channel(server.address) as channel,
    ):
        call: Any = channel.unary_unary(ECHO.name)
        metadata = (("x-some", "thing"), ("x-bin", b"\0\xff"), ("x-long", "y" * 2_000))
        assert (await call(b"0", metadata=metadata)).startswith(b"ipv4:127.0.0.1:")
        with pytest.raises(grpc.aio.AioRpcError) as late:
            await call(b"60", timeout=0.1)
        assert late.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        await eventually(lambda: not server._running)
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await call(b"fail")
        assert failed.value.code() is grpc.StatusCode.INTERNAL
        assert failed.value.details() == "ValueError: not in ASCII: é, 100%\n"


async def test_a_handler_is_cancelled_when_its_caller_is_gone() -> None:
    ended: list[str] = []

    async def wait(stream: Talk) -> None:
        try:
            await stream.send(b"hello")
            await asyncio.sleep(3_600)
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    async with serving({TALK: wait}) as server:
        for way in ("reset", "close"):
            raw = await connected(server)
            await raw.send(request(1))
            assert await raw.message(1) == b"hello"
            if way == "reset":
                await raw.send(h2.reset(1, h2.CANCEL))
            else:
                raw.close()
            await eventually(lambda: not server._running)
            raw.close()
    assert ended == ["cancelled"] * 2


async def test_what_comes_after_the_handler_has_returned_is_thrown_away() -> None:
    async def leave(stream: Talk) -> None:
        await stream.recv()

    async with bare_client({TALK: leave}) as raw:
        await raw.send(request(1), data(1, message(b"1")))
        assert (await raw.status(1))["grpc-status"] == "0"
        assert (await raw.until(h2.RST_STREAM, 1)).code == h2.NO_ERROR
        await raw.send(data(1, message(b"2")), data(1, message(b"3"), end=True))
        await raw.in_step()


async def test_streams_beyond_the_limit_are_refused_one_by_one() -> None:
    async with bare_client(limits=ServerLimits(streams_per_connection_max=2)) as raw:
        await raw.send(*(request(number) for number in (1, 3, 5)))
        assert (await raw.until(h2.RST_STREAM)).code == h2.REFUSED_STREAM
        await raw.send(data(5, message(b"lost")), data(1, message(b"kept")))
        assert await raw.message(1) == b"kept"
        await raw.send(data(1, b"", end=True))
        await raw.status(1)
        await raw.send(request(7), data(7, message(b"room again")))
        assert await raw.message(7) == b"room again"


async def test_what_is_not_served_is_said_so() -> None:
    async with bare_client() as raw:
        common = [(":method", "POST"), (":scheme", "http")]
        grpc_type = ("content-type", "application/grpc")
        block = h2.header_block([*common, (":path", "/no/where"), grpc_type])
        await raw.send(h2.frame(h2.HEADERS, h2.END_HEADERS, 1, block))
        status = await raw.status(1)
        assert status["grpc-status"] == "12"
        assert "/no/where" in status["grpc-message"]
        block = h2.header_block([*common, (":path", ECHO.name), ("content-type", "text/html")])
        await raw.send(h2.frame(h2.HEADERS, h2.END_HEADERS, 3, block))
        assert (await raw.status(3))["grpc-status"] == "12"
        long = h2.header_block([*common, (":path", "/" + "é" * 10_000)])
        await raw.send(h2.frame(h2.HEADERS, h2.END_HEADERS, 5, long))
        assert (await raw.status(5))["grpc-status"] == "12"


async def test_calls_that_ask_nothing_or_nonsense_are_told_and_not_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    strict = Method[bytes, bytes](ECHO.name, Kind.UNARY, bytes, _decode, bytes, bytes)
    async with bare_client({strict: HANDLERS[ECHO]}) as raw:
        await raw.send(request(1, ECHO, end=True))
        assert (await raw.status(1))["grpc-status"] == "3"
        await raw.send(request(3, ECHO), data(3, message(b"nonsense"), end=True))
        status = await raw.status(3)
        assert (status["grpc-status"], "no number" in status["grpc-message"]) == ("3", True)
    assert caplog.records == []


def _decode(asked: bytes | memoryview) -> bytes:
    if not bytes(asked).isdigit():
        raise ValueError("no number")
    return bytes(asked)


async def test_messages_that_end_too_early_break_their_stream_alone() -> None:
    async with bare_client() as raw:
        await raw.send(request(1), data(1, message(bytes(100))[:50], end=True))
        assert (await raw.until(h2.RST_STREAM, 1)).code == h2.PROTOCOL_ERROR
        await raw.send(request(3), data(3, b"\0\0", end=True))
        assert (await raw.until(h2.RST_STREAM, 3)).code == h2.PROTOCOL_ERROR
        await raw.in_step()


@pytest.mark.parametrize("method", [ECHO, TALK, COUNT])
async def test_messages_that_are_not_taken_are_refused_with_a_reason(
    method: Method[bytes, bytes],
) -> None:
    """In the same breath as the call, before its handler has begun, and later."""
    limits = ServerLimits(request_bytes_max=1_000)
    too_large = h2.MESSAGE_HEAD.pack(0, limits.message_bytes_max + 1) + bytes(10_000)
    compressed = h2.MESSAGE_HEAD.pack(1, 3) + b"zip"
    async with serving(limits=limits) as server:
        raw = await connected(server)
        for number, (said, status) in enumerate(((too_large, "8"), (compressed, "12")) * 2):
            stream = 2 * number + 1
            await raw.send(request(stream, method, ("grpc-encoding", "gzip")))
            if number >= 2:
                await raw.in_step()
            await raw.send(data(stream, said), data(stream, said))
            assert (await raw.status(stream))["grpc-status"] == status
        await eventually(lambda: not server._running)
        raw.close()


async def test_a_caller_of_grpc_that_compresses_is_told_that_it_cannot() -> None:
    async with serving() as server:
        gzip = grpc.Compression.Gzip
        async with grpc.aio.insecure_channel(server.address, compression=gzip) as channel:
            call: Any = channel.unary_unary(ECHO.name)
            with pytest.raises(
                grpc.aio.AioRpcError, match="compressed messages are not taken"
            ) as no:
                await call(b"x" * 10_000)
            assert no.value.code() is grpc.StatusCode.UNIMPLEMENTED
            told = [*(no.value.initial_metadata() or ()), *(no.value.trailing_metadata() or ())]
            assert ("grpc-accept-encoding", "identity") in told or told == []
            # gRPC sends what would not become smaller as it is.
            assert await call(b"x") == b"x"


async def test_a_compressed_message_is_refused_as_grpc_says() -> None:
    zipped = h2.MESSAGE_HEAD.pack(1, 3) + b"zip"
    async with bare_client() as raw:
        await raw.send(request(1, ECHO, ("grpc-encoding", "gzip")), data(1, zipped, end=True))
        told = await raw.status(1)
        assert (told["grpc-status"], told["grpc-accept-encoding"]) == ("12", "identity")
        # Who never said how it compresses is at fault itself.
        await raw.send(request(3, ECHO), data(3, zipped, end=True))
        assert (await raw.status(3))["grpc-status"] == "13"


@pytest.mark.parametrize("method", [ECHO, TALK], ids=["unary", "stream"])
async def test_an_answer_is_not_larger_than_the_caller_takes(method: Method[bytes, bytes]) -> None:
    key = server_module.ANSWER_BYTES_MAX_KEY
    async with bare_client() as raw:
        await raw.send(request(1, method, (key, "100")), data(1, message(bytes(100)), end=True))
        assert await raw.message(1) == bytes(100)
        assert (await raw.status(1))["grpc-status"] == "0"
        await raw.send(request(3, method, (key, "100")), data(3, message(bytes(101))))
        told = await raw.status(3)
        assert told["grpc-status"] == "8"
        assert "an answer of 101 bytes; the caller takes 100" in told["grpc-message"]
        # What is no number is no limit.
        for number, value in ((5, "-1"), (7, "much"), (9, "9" * 30)):
            sent = data(number, message(bytes(200)), end=True)
            await raw.send(request(number, method, (key, value)), sent)
            assert await raw.message(number) == bytes(200)


async def test_the_largest_messages_go_both_ways_to_callers_of_grpc() -> None:
    sizes = [(f"grpc.max_{way}_message_length", MESSAGE_BYTES_MAX) for way in ("send", "receive")]
    large = bytes(range(256)) * (MESSAGE_BYTES_MAX // 256)
    async with serving() as server:
        async with grpc.aio.insecure_channel(server.address, options=sizes) as channel:
            call: Any = channel.unary_unary(ECHO.name)
            assert await call(large) == large
        network = Http2Network()
        ours = network.channel(server.address)
        assert await ours.call(ECHO, large, timeout_ms=60_000) == large
        with pytest.raises(InvalidRequest, match="larger than"):
            await ours.call(ECHO, large + b"x", timeout_ms=60_000)
        await network.close()


# ----------------------------------------------------------------------------------------- handlers


async def test_a_send_that_is_cancelled_breaks_the_stream_and_not_its_handler() -> None:
    ended: list[str] = []

    async def impatient(stream: Talk) -> None:
        asked = await stream.recv()
        with suppress(TimeoutError):
            async with asyncio.timeout(0.05):
                await stream.send(bytes(int(asked or b"0")))
        with pytest.raises(Unreachable):
            await stream.send(b"more")
        await asyncio.sleep(0)
        ended.append("by itself")

    async with bare_client({TALK: impatient}) as raw:
        # Half of it is on its way: nothing else can be said on this stream.
        await raw.send(request(1), data(1, message(b"100000")))
        assert (await raw.until(h2.RST_STREAM, 1)).code == h2.INTERNAL_ERROR
        # Nothing of it is, since the window of the connection is used up: it is told in words.
        await raw.send(request(3), data(3, message(b"100000")))
        assert (await raw.status(3))["grpc-status"] == "14"
        await raw.in_step()
    assert ended == ["by itself"] * 2


async def test_a_handler_that_times_out_is_not_a_caller_that_is_late(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def fail(_: bytes) -> bytes:
        async with asyncio.timeout(0):
            await asyncio.sleep(1)
        return b""

    async with bare_client({ECHO: fail}) as raw:
        sent = data(1, message(b""), end=True)
        await raw.send(request(1, ECHO, ("grpc-timeout", "1H")), sent)
        status = await raw.status(1)
        assert (status["grpc-status"], status["grpc-message"]) == ("13", "TimeoutError: ")
    assert [each.getMessage() for each in caplog.records] == [f"{ECHO.name} failed"]


@pytest.mark.parametrize("limit", ["20m", "1n", "0m"])
async def test_a_stream_has_a_deadline_too(limit: str) -> None:
    async with bare_client({TALK: _recv_for_ever}) as raw:
        await raw.send(request(1, TALK, ("grpc-timeout", limit)))
        assert (await raw.status(1))["grpc-status"] == "4"


async def _recv_for_ever(stream: Talk) -> None:
    while True:
        await stream.recv()


async def test_a_caller_that_resets_in_any_way_cancels_the_handler() -> None:
    """Also one that has said all and hangs up without calling it an error."""
    async with serving({TALK: _sleep}) as server:
        raw = await connected(server)
        for stream, code in ((1, h2.NO_ERROR), (3, h2.CANCEL), (5, 77)):
            await raw.send(request(stream, TALK, end=True))
            await eventually(lambda: server._running)
            await raw.send(h2.reset(stream, code))
            await eventually(lambda: not server._running)
        raw.close()


async def _sleep(_: Talk) -> None:
    await asyncio.sleep(3_600)


async def test_a_handler_whose_caller_is_gone_is_not_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    go = asyncio.Event()

    async def push(stream: Talk) -> None:
        try:
            while True:
                await stream.send(bytes(10_000))
                await asyncio.sleep(0)
        except asyncio.CancelledError:
            await stream.send(b"too late")
        finally:
            go.set()

    async with serving({TALK: push}) as server:
        raw = await connected(server)
        await raw.send(request(1))
        await raw.until(h2.DATA, 1)
        raw.close()
        await go.wait()
        await eventually(lambda: not server._running)
    assert caplog.records == []


# --------------------------------------------------------------------------------------------- ends


async def test_a_server_that_stops_lets_its_last_answers_arrive() -> None:
    """Although its handlers have returned before all of it was sent."""
    begun = asyncio.Event()

    async def large(asked: bytes) -> bytes:
        begun.set()
        await asyncio.sleep(0.05)
        return bytes(int(asked))

    async with serving({ECHO: large}) as server:
        network = Http2Network()
        channel = network.channel(server.address)
        sizes = [1, 4 << 20, 9 << 20]
        calls = [
            asyncio.ensure_future(channel.call(ECHO, b"%d" % size, timeout_ms=20_000))
            for size in sizes
        ]
        await begun.wait()
        began_s = asyncio.get_running_loop().time()
        await server.stop(grace_ms=20_000)
        assert [len(await each) for each in calls] == sizes
        assert asyncio.get_running_loop().time() - began_s < 15
        await network.close()


async def test_a_server_that_stops_waits_for_who_reads_slowly() -> None:
    async with serving({ECHO: _three_megabytes}) as server:
        raw = await connected(server)
        (connection,) = server._open
        connection._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4_096)
        windows = [(h2.SETTING_WINDOW, 1 << 30), (h2.SETTING_FRAME_BYTES_MAX, 1 << 23)]
        await raw.send(h2.settings(windows), h2.window_update(0, 1 << 30))
        await raw.send(request(1, ECHO), data(1, message(b""), end=True))
        await eventually(lambda: connection.is_behind, lambda: not server._running)
        stopping = asyncio.ensure_future(server.stop(grace_ms=20_000))
        await asyncio.sleep(2 * server_module.PARTING_S)
        assert len(await raw.message(1)) == 3 << 20
        raw.close()
        await stopping


async def _three_megabytes(_: bytes) -> bytes:
    return bytes(3 << 20)


async def test_a_server_that_stops_does_not_wait_long_for_who_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server_module, "PARTING_S", 0.05)
    async with serving() as server:
        raw = await connected(server)
        await raw.in_step()
        async with asyncio.timeout(10):
            await server.stop(grace_ms=20_000)
        assert [each.kind for each in await raw.until_closed()] == [h2.GOAWAY]
        raw.close()


async def test_calls_that_come_while_a_server_stops_are_refused() -> None:
    async with serving({TALK: _recv_for_ever}) as server:
        raw = await connected(server)
        await raw.send(request(1))
        await eventually(lambda: server._running)
        stopping = asyncio.ensure_future(server.stop(grace_ms=500))
        assert (await raw.until(h2.GOAWAY)).code == h2.NO_ERROR
        await raw.send(request(3))
        assert (await raw.until(h2.RST_STREAM, 3)).code == h2.REFUSED_STREAM
        await stopping
        raw.close()


async def test_connections_that_nobody_uses_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "IDLE_LOOK_S", 0.02)
    async with serving(limits=ServerLimits(idle_ms=500)) as server:
        used, idle = await connected(server), await connected(server)
        await used.send(request(1))
        assert [each.kind for each in await idle.until_closed()][-1] == h2.GOAWAY
        await used.send(data(1, message(b"still here"), end=True))
        assert await used.message(1) == b"still here"
        await used.until_closed()
        for each in (used, idle):
            each.close()


async def test_without_descriptors_it_waits_and_does_not_spin(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(server_module, "ACCEPT_AGAIN_S", 0.1)
    async with serving() as server:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        first = await connected(server)
        taken = [os.dup(0)]
        resource.setrlimit(resource.RLIMIT_NOFILE, (taken[0] + 20, hard))
        try:
            with suppress(OSError):
                while True:
                    taken.append(os.dup(0))
            # The one who connects gets the last descriptor, the server gets none.
            os.close(taken.pop())
            second = await connected(server, greet=False)
            with caplog.at_level(logging.WARNING):
                await asyncio.sleep(0.25)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            for each in taken:
                os.close(each)
        said = [each.getMessage() for each in caplog.records]
        assert all("cannot accept" in each for each in said)
        assert 1 <= len(said) <= 4
        await second.send(h2.PREFACE, h2.settings(()))
        await second.in_step()
        first.close()
        second.close()


# --------------------------------------------------------------------------------------------- many


async def test_a_thousand_calls_and_two_hundred_streams_at_a_time() -> None:
    async with serving() as server:
        network = Http2Network()
        channel = network.channel(server.address)
        calls = [channel.call(ECHO, b"%d" % n, timeout_ms=60_000) for n in range(1_000)]
        assert await asyncio.gather(*calls) == [b"%d" % n for n in range(1_000)]

        async def talk(number: int) -> None:
            stream = channel.open(TALK)
            for n in range(5):
                await stream.send(b"%d %d" % (number, n) * 1_000)
            await stream.finish()
            heard = [each async for each in _all(stream)]
            assert heard == [b"%d %d" % (number, n) * 1_000 for n in range(5)]

        await asyncio.gather(*map(talk, range(200)))
        await network.close()


async def _all(stream: Talk) -> Any:
    while (each := await stream.recv()) is not None:
        yield each
