"""A server of ours and its callers, those of gRPC among them."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest

from simulation.transport_contract import ECHO, TALK, Talk
from tailrace.transport.http2 import frames as h2
from tailrace.transport.limits import ServerLimits
from tailrace.transport.rpc import CALLER
from unit.transport.http2.peers import (
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
        block = h2.header_block([(":path", "/no/where"), ("content-type", "application/grpc")])
        await raw.send(h2.frame(h2.HEADERS, h2.END_HEADERS, 1, block))
        status = await raw.status(1)
        assert status["grpc-status"] == "12"
        assert "/no/where" in status["grpc-message"]
        block = h2.header_block([(":path", ECHO.name), ("content-type", "text/html")])
        await raw.send(h2.frame(h2.HEADERS, h2.END_HEADERS, 3, block))
        assert (await raw.status(3))["grpc-status"] == "12"
