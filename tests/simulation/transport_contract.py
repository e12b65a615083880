"""What every Network and Links must do: scenarios that run on real sockets and on simulated wires.

Each scenario is an `async def` that takes a `World`. `tests/integration/test_transport.py` gives it
gRPC and sockets, `tests/unit/simulation/test_network.py` the simulated network.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final, NamedTuple, Protocol, TypeVar

import pytest

from tailrace.errors import AddressInUse, RequestTimedOut, StorageError, TailraceError, Unreachable
from tailrace.log.files import Files
from tailrace.transport.rpc import (
    Handler,
    Kind,
    Link,
    Links,
    Method,
    Network,
    Probe,
    Server,
    Stream,
)

ECHO: Final = Method[bytes, bytes]("/test.Test/Echo", Kind.UNARY, bytes, bytes, bytes, bytes)
COUNT: Final = Method[bytes, bytes](
    "/test.Test/Count", Kind.SERVER_STREAM, bytes, bytes, bytes, bytes
)
TALK: Final = Method[bytes, bytes]("/test.Test/Talk", Kind.BIDI_STREAM, bytes, bytes, bytes, bytes)

T = TypeVar("T")
Talk = Stream[bytes, bytes]
A_WHILE_S: Final = 5.0
LONG_MS: Final = 5_000


class Part(NamedTuple):
    """Bytes of a file, to be sent as payload."""

    path: str
    position: int
    size: int


class World(Protocol):
    """Where a scenario happens: one server process and one client process."""

    client: Network
    server: Network
    client_links: Links
    server_links: Links
    server_files: Files
    free_address: str
    """Of the server, with port 0."""
    server_folder: str


async def a_call_is_answered(world: World) -> None:
    async def echo(request: bytes) -> bytes:
        return request[::-1]

    server = await world.server.serve(world.free_address, {ECHO: echo})
    channel = world.client.channel(server.address)
    assert await channel.call(ECHO, b"abc", timeout_ms=LONG_MS) == b"cba"
    calls = [channel.call(ECHO, b"%d" % n, timeout_ms=LONG_MS) for n in range(50)]
    assert await asyncio.gather(*calls) == [(b"%d" % n)[::-1] for n in range(50)]
    await channel.close()
    await server.stop(grace_ms=0)


async def a_call_that_takes_too_long_times_out_and_its_handler_is_cancelled(world: World) -> None:
    cancelled = asyncio.Event()

    async def sleep(_: bytes) -> bytes:
        try:
            await asyncio.sleep(3_600)
        except asyncio.CancelledError:
            cancelled.set()
            raise
        return b""

    server = await world.server.serve(world.free_address, {ECHO: sleep})
    channel = world.client.channel(server.address)
    with pytest.raises(RequestTimedOut):
        await channel.call(ECHO, b"", timeout_ms=100)
    await _within(cancelled.wait())
    await channel.close()
    await server.stop(grace_ms=0)


async def a_cancelled_call_cancels_its_handler(world: World) -> None:
    started, cancelled = asyncio.Event(), asyncio.Event()

    async def sleep(_: bytes) -> bytes:
        started.set()
        try:
            await asyncio.sleep(3_600)
        except asyncio.CancelledError:
            cancelled.set()
            raise
        return b""

    server = await world.server.serve(world.free_address, {ECHO: sleep})
    channel = world.client.channel(server.address)
    task = asyncio.ensure_future(channel.call(ECHO, b"", timeout_ms=LONG_MS))
    await _within(started.wait())
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await _within(cancelled.wait())
    await channel.close()
    await server.stop(grace_ms=0)


async def nobody_listens(world: World) -> None:
    server = await world.server.serve(world.free_address, {})
    await server.stop(grace_ms=0)
    channel = world.client.channel(server.address)
    with pytest.raises(Unreachable):
        await channel.call(ECHO, b"", timeout_ms=LONG_MS)
    stream = channel.open(TALK)
    with pytest.raises(Unreachable):
        await _within(stream.recv())
    with pytest.raises(Unreachable):
        await stream.send(b"")
    await channel.close()


async def what_a_handler_raises_is_told(world: World) -> None:
    async def fail(_: bytes) -> bytes:
        raise ValueError("no such luck")

    async def fail_later(stream: Talk) -> None:
        await stream.send(b"first")
        raise ValueError("no such luck")

    server = await world.server.serve(world.free_address, {ECHO: fail, TALK: fail_later})
    channel = world.client.channel(server.address)
    with pytest.raises(Unreachable, match="no such luck"):
        await channel.call(ECHO, b"", timeout_ms=LONG_MS)
    stream = channel.open(TALK)
    assert await _within(stream.recv()) == b"first"
    with pytest.raises(Unreachable, match="no such luck"):
        await _within(stream.recv())
    with pytest.raises(Unreachable):
        await stream.send(b"")
    await channel.close()
    await server.stop(grace_ms=0)


async def a_talk_keeps_order_and_ends_in_order(world: World) -> None:
    async def echo(stream: Talk) -> None:
        while (message := await stream.recv()) is not None:
            await stream.send(message)
        await stream.send(b"bye")

    server = await world.server.serve(world.free_address, {TALK: echo})
    channel = world.client.channel(server.address)
    stream = channel.open(TALK)
    for n in range(100):
        await stream.send(b"%d" % n)
    await stream.finish()
    received = []
    while (message := await _within(stream.recv())) is not None:
        received.append(message)
    assert received == [*(b"%d" % n for n in range(100)), b"bye"]
    assert await stream.recv() is None
    await channel.close()
    await server.stop(grace_ms=0)


async def many_tasks_send_on_one_stream(world: World) -> None:
    async def echo(stream: Talk) -> None:
        while (message := await stream.recv()) is not None:
            await stream.send(message)

    server = await world.server.serve(world.free_address, {TALK: echo})
    channel = world.client.channel(server.address)
    stream = channel.open(TALK)
    await asyncio.gather(*(stream.send(b"%d" % n) for n in range(50)))
    received = [await _within(stream.recv()) for _ in range(50)]
    assert sorted(each or b"" for each in received) == sorted(b"%d" % n for n in range(50))
    stream.cancel()
    await channel.close()
    await server.stop(grace_ms=0)


async def a_server_streams(world: World) -> None:
    async def count(request: bytes, stream: Talk) -> None:
        for n in range(int(request)):
            await stream.send(b"%d" % n)

    server = await world.server.serve(world.free_address, {COUNT: count})
    channel = world.client.channel(server.address)
    stream = channel.open(COUNT, b"30")
    received = []
    while (message := await _within(stream.recv())) is not None:
        received.append(message)
    assert received == [b"%d" % n for n in range(30)]
    await channel.close()
    await server.stop(grace_ms=0)


async def cancelling_a_stream_cancels_its_handler(world: World) -> None:
    for way in ("cancel", "cancel recv", "close the channel"):
        started, cancelled = asyncio.Event(), asyncio.Event()

        async def wait(
            stream: Talk, started: asyncio.Event = started, cancelled: asyncio.Event = cancelled
        ) -> None:
            await stream.send(b"hello")
            started.set()
            try:
                await stream.recv()
            except asyncio.CancelledError:
                cancelled.set()
                raise

        server = await world.server.serve(world.free_address, {TALK: wait})
        channel = world.client.channel(server.address)
        stream = channel.open(TALK)
        assert await _within(stream.recv()) == b"hello"
        await _within(started.wait())
        receiving = asyncio.ensure_future(stream.recv())
        await asyncio.sleep(0.05)
        if way == "cancel recv":
            receiving.cancel()
            with pytest.raises(asyncio.CancelledError):
                await receiving
        else:
            if way == "cancel":
                stream.cancel()
            else:
                await channel.close()
            with pytest.raises(Unreachable):
                await _within(receiving)
        await _within(cancelled.wait())
        with pytest.raises(Unreachable):
            await _within(stream.recv())
        with pytest.raises(Unreachable):
            await _within(stream.send(b""))
        await channel.close()
        await server.stop(grace_ms=0)


async def a_handler_breaks_its_stream(world: World) -> None:
    async def leave(stream: Talk) -> None:
        await stream.recv()
        stream.cancel()
        await asyncio.sleep(3_600)

    server = await world.server.serve(world.free_address, {TALK: leave})
    channel = world.client.channel(server.address)
    stream = channel.open(TALK)
    await stream.send(b"")
    with pytest.raises(Unreachable):
        await _within(stream.recv())
    await channel.close()
    await server.stop(grace_ms=0)


async def a_sender_waits_for_a_slow_receiver(world: World) -> None:
    go = asyncio.Event()
    received = 0

    async def slow(stream: Talk) -> None:
        nonlocal received
        await go.wait()
        while (message := await stream.recv()) is not None:
            received += len(message)

    server = await world.server.serve(world.free_address, {TALK: slow})
    channel = world.client.channel(server.address)
    stream = channel.open(TALK)
    sent = 0
    chunk, chunks = b"x" * (1 << 20), 64

    async def send_all() -> None:
        nonlocal sent
        for _ in range(chunks):
            await stream.send(chunk)
            sent += 1
        await stream.finish()

    sending = asyncio.ensure_future(send_all())
    await asyncio.sleep(0.5)
    assert sent < chunks
    go.set()
    await _within(sending)
    assert await _within(stream.recv()) is None
    assert received == chunks * len(chunk)
    await channel.close()
    await server.stop(grace_ms=0)


async def a_server_stops_and_another_takes_its_address(world: World) -> None:
    async def echo(request: bytes) -> bytes:
        return request

    async def wait(stream: Talk) -> None:
        await stream.send(b"hello")
        await stream.recv()

    handlers: dict[Method[bytes, bytes], Handler] = {ECHO: echo, TALK: wait}
    server = await world.server.serve(world.free_address, handlers)
    channel = world.client.channel(server.address)
    stream = channel.open(TALK)
    assert await _within(stream.recv()) == b"hello"
    with pytest.raises(AddressInUse):
        await world.server.serve(server.address, handlers)
    await server.stop(grace_ms=50)
    with pytest.raises(Unreachable):
        await _within(stream.recv())
    again = await world.server.serve(server.address, handlers)
    answer = b""
    for _ in range(100):
        with suppress(Unreachable):
            answer = await channel.call(ECHO, b"again", timeout_ms=LONG_MS)
            break
        await asyncio.sleep(0.05)
    assert answer == b"again"
    await channel.close()
    await again.stop(grace_ms=0)


async def a_stopping_server_lets_calls_finish(world: World) -> None:
    started = asyncio.Event()

    async def slow(request: bytes) -> bytes:
        started.set()
        await asyncio.sleep(0.2)
        return request

    server = await world.server.serve(world.free_address, {ECHO: slow})
    channel = world.client.channel(server.address)
    call = asyncio.ensure_future(channel.call(ECHO, b"slow", timeout_ms=LONG_MS))
    await _within(started.wait())
    await server.stop(grace_ms=LONG_MS)
    assert await _within(call) == b"slow"
    await channel.close()


async def a_probe_tells_who_listens(world: World) -> None:
    server = await world.server.serve(world.free_address, {})
    assert await world.client.probe(server.address, timeout_ms=LONG_MS) is Probe.OPEN
    await server.stop(grace_ms=0)
    assert await world.client.probe(server.address, timeout_ms=LONG_MS) is Probe.REFUSED


# ----------------------------------------------------------------------------------------- links


async def frames_go_both_ways_with_bytes_of_files(world: World) -> None:
    slices = _write(world, [100, 20_000, 3_000_000, 1])

    async def push(link: Link) -> None:
        hello = await link.recv()
        assert hello is not None
        assert (hello.header, bytes(hello.payload)) == (b"hello", b"")
        await link.send(b"nothing")
        await link.send(b"one", slices[:1])
        await link.send(b"", slices[1:2])
        await link.send(b"large", slices)
        await link.recv()

    server = await world.server_links.listen(world.free_address, push)
    link = await world.client_links.connect(server.address, timeout_ms=LONG_MS)
    await link.send(b"hello")
    contents = [_content(each) for each in slices]
    expected = [
        (b"nothing", b""),
        (b"one", contents[0]),
        (b"", contents[1]),
        (b"large", b"".join(contents)),
    ]
    for header, payload in expected:
        frame = await _within(link.recv())
        assert frame is not None
        assert frame.header == header
        assert bytes(frame.payload) == payload
    link.close()
    await server.stop(grace_ms=LONG_MS)


async def a_link_that_is_closed_ends_in_order(world: World) -> None:
    got: list[bytes | None] = []

    async def read(link: Link) -> None:
        while (frame := await link.recv()) is not None:
            got.append(frame.header)
        got.append(None)

    server = await world.server_links.listen(world.free_address, read)
    link = await world.client_links.connect(server.address, timeout_ms=LONG_MS)
    for n in range(10):
        await link.send(b"%d" % n)
    link.close()
    link.close()
    with pytest.raises(Unreachable):
        await link.send(b"")
    with pytest.raises(Unreachable):
        await link.recv()
    await server.stop(grace_ms=LONG_MS)
    assert got == [*(b"%d" % n for n in range(10)), None]


async def the_end_of_accept_closes_the_link(world: World) -> None:
    async def leave(link: Link) -> None:
        await link.send(b"bye")

    server = await world.server_links.listen(world.free_address, leave)
    link = await world.client_links.connect(server.address, timeout_ms=LONG_MS)
    frame = await _within(link.recv())
    assert frame is not None
    assert frame.header == b"bye"
    assert await _within(link.recv()) is None
    link.close()
    await server.stop(grace_ms=0)


async def closing_wakes_who_waits(world: World) -> None:
    async def silent(link: Link) -> None:
        await asyncio.sleep(3_600)

    slices = _write(world, [1 << 20])
    server = await world.client_links.listen(world.free_address, silent)
    link = await world.server_links.connect(server.address, timeout_ms=LONG_MS)
    receiving = asyncio.ensure_future(link.recv())

    async def send_for_ever() -> None:
        while True:
            await link.send(b"", slices)

    sending = asyncio.ensure_future(send_for_ever())
    await asyncio.sleep(0.5)
    assert not receiving.done()
    assert not sending.done()
    link.close()
    with pytest.raises(Unreachable):
        await _within(receiving)
    with pytest.raises(Unreachable):
        await _within(sending)
    await server.stop(grace_ms=0)


async def a_link_waits_for_a_slow_receiver(world: World) -> None:
    slices = _write(world, [1 << 20])
    frames, sent = 64, 0

    async def push(link: Link) -> None:
        nonlocal sent
        for _ in range(frames):
            await link.send(b"%d" % sent, slices)
            sent += 1

    server = await world.server_links.listen(world.free_address, push)
    link = await world.client_links.connect(server.address, timeout_ms=LONG_MS)
    await asyncio.sleep(0.5)
    assert sent < frames
    for n in range(frames):
        frame = await _within(link.recv())
        assert frame is not None
        assert frame.header == b"%d" % n
        assert bytes(frame.payload) == _content(slices[0])
    assert await _within(link.recv()) is None
    link.close()
    await server.stop(grace_ms=0)


async def a_recv_that_is_cancelled_loses_nothing(world: World) -> None:
    async def push(link: Link) -> None:
        for n in range(20):
            await asyncio.sleep(0.01)
            await link.send(b"%d" % n)
        await link.recv()

    server = await world.server_links.listen(world.free_address, push)
    link = await world.client_links.connect(server.address, timeout_ms=LONG_MS)
    got: list[bytes] = []
    while len(got) < 20:
        with suppress(TimeoutError):
            async with asyncio.timeout(0.007):
                frame = await link.recv()
                assert frame is not None
                got.append(frame.header)
    assert got == [b"%d" % n for n in range(20)]
    link.close()
    await server.stop(grace_ms=0)


async def a_payload_that_is_gone_breaks_no_link(world: World) -> None:
    slices = _write(world, [100])
    missing = Part(world.server_folder + "/missing", 0, 10)
    too_long = Part(slices[0].path, slices[0].position, 1 << 10)

    async def push(link: Link) -> None:
        for bad in (missing, too_long):
            with pytest.raises(StorageError):
                await link.send(b"bad", [slices[0], bad])
        await link.send(b"good", slices)

    server = await world.server_links.listen(world.free_address, push)
    link = await world.client_links.connect(server.address, timeout_ms=LONG_MS)
    frame = await _within(link.recv())
    assert frame is not None
    assert frame.header == b"good"
    link.close()
    await server.stop(grace_ms=LONG_MS)


async def no_link_to_nobody(world: World) -> None:
    async def accept(link: Link) -> None:
        await link.recv()

    server = await world.server_links.listen(world.free_address, accept)
    with pytest.raises(AddressInUse):
        await world.server_links.listen(server.address, accept)
    await server.stop(grace_ms=0)
    with pytest.raises(Unreachable):
        await world.client_links.connect(server.address, timeout_ms=LONG_MS)
    again = await world.server_links.listen(server.address, accept)
    link = await world.client_links.connect(server.address, timeout_ms=LONG_MS)
    await again.stop(grace_ms=0)
    with suppress(TailraceError):
        assert await _within(link.recv()) is None
    link.close()


async def a_send_that_is_cancelled_within_a_frame_closes_the_link(world: World) -> None:
    slices = _write(world, [1 << 20])

    async def silent(link: Link) -> None:
        await asyncio.sleep(3_600)

    server: Server = await world.client_links.listen(world.free_address, silent)
    link = await world.server_links.connect(server.address, timeout_ms=LONG_MS)

    async def send_for_ever() -> None:
        while True:
            await link.send(b"", slices)

    sending = asyncio.ensure_future(send_for_ever())
    await asyncio.sleep(0.5)
    sending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sending
    with pytest.raises(Unreachable):
        await link.send(b"")
    await server.stop(grace_ms=0)


async def _within(work: Awaitable[T]) -> T:
    async with asyncio.timeout(A_WHILE_S):
        return await work


def _write(world: World, sizes: list[int]) -> list[Part]:
    """Files in the server's folder; each slice starts behind some bytes that are not to be sent."""
    world.server_files.make_folder(world.server_folder)
    slices = []
    for n, size in enumerate(sizes):
        found = Part(f"{world.server_folder}/file-{n}", 10 + n, size)
        file = world.server_files.open(found.path, create=True)
        file.write_at(0, [bytes(10 + n), _content(found)])
        file.close()
        slices.append(found)
    return slices


def _content(part: Part) -> bytes:
    pattern = bytes((part.position * 7 + n) % 251 for n in range(997))
    return (pattern * (part.size // len(pattern) + 1))[: part.size]


Scenario = Callable[[World], Awaitable[None]]

NETWORK_SCENARIOS: Final[list[Scenario]] = [
    a_call_is_answered,
    a_call_that_takes_too_long_times_out_and_its_handler_is_cancelled,
    a_cancelled_call_cancels_its_handler,
    nobody_listens,
    what_a_handler_raises_is_told,
    a_talk_keeps_order_and_ends_in_order,
    many_tasks_send_on_one_stream,
    a_server_streams,
    cancelling_a_stream_cancels_its_handler,
    a_handler_breaks_its_stream,
    a_sender_waits_for_a_slow_receiver,
    a_server_stops_and_another_takes_its_address,
    a_stopping_server_lets_calls_finish,
    a_probe_tells_who_listens,
]
LINK_SCENARIOS: Final[list[Scenario]] = [
    frames_go_both_ways_with_bytes_of_files,
    a_link_that_is_closed_ends_in_order,
    the_end_of_accept_closes_the_link,
    closing_wakes_who_waits,
    a_link_waits_for_a_slow_receiver,
    a_recv_that_is_cancelled_loses_nothing,
    a_payload_that_is_gone_breaks_no_link,
    no_link_to_nobody,
    a_send_that_is_cancelled_within_a_frame_closes_the_link,
]
ALL_SCENARIOS: Final = [*NETWORK_SCENARIOS, *LINK_SCENARIOS]
