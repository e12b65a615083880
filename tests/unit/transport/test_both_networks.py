"""What holds for gRPC and for our own HTTP/2 alike: connections, reasons, limits, and silence."""

from __future__ import annotations

import asyncio
import gc
import logging
import socket
import warnings
from typing import Final, TypeAlias

import pytest

from simulation.transport_contract import COUNT, ECHO, TALK, Talk
from tailrace.errors import (
    AddressInUse,
    InvalidConfig,
    InvalidRequest,
    TooManyConnections,
    Unreachable,
)
from tailrace.transport import grpc_network
from tailrace.transport.grpc_network import GrpcNetwork
from tailrace.transport.http2.network import Http2Network
from tailrace.transport.limits import SPARE_CONNECTIONS, ServerLimits
from tailrace.transport.methods import CONTROL_STOP_REPLICA
from tailrace.transport.rpc import MESSAGE_BYTES_MAX, Probe
from tailrace.v1 import common_pb2, control_pb2

Make: TypeAlias = type[GrpcNetwork | Http2Network]
NETWORKS: Final[dict[str, Make]] = {"grpcio": GrpcNetwork, "ours": Http2Network}


@pytest.fixture(params=NETWORKS)
def make(request: pytest.FixtureRequest) -> Make:
    return NETWORKS[request.param]


async def echo(request: bytes) -> bytes:
    return request


async def test_protobuf_messages_travel(make: Make) -> None:
    async def stop(request: control_pb2.StopReplicaRequest) -> control_pb2.StopReplicaResponse:
        assert request.header.controller_epoch == 7
        return control_pb2.StopReplicaResponse(error=common_pb2.ERROR_CODE_STALE_CONTROLLER)

    network = make()
    server = await network.serve("127.0.0.1:0", {CONTROL_STOP_REPLICA: stop})
    request = control_pb2.StopReplicaRequest(header=control_pb2.OrderHeader(controller_epoch=7))
    channel = network.channel(server.address)
    response = await channel.call(CONTROL_STOP_REPLICA, request, timeout_ms=5_000)
    assert response.error == common_pb2.ERROR_CODE_STALE_CONTROLLER
    await network.close()
    await server.stop(grace_ms=0)


async def test_users_of_an_address_share_a_connection_and_close_what_is_theirs(
    make: Make,
) -> None:
    async def hello(stream: Talk) -> None:
        await stream.send(b"hello")
        await stream.recv()

    network = make()
    server = await network.serve("127.0.0.1:0", {ECHO: echo, TALK: hello})
    one, two = network.channel(server.address), network.channel(server.address)
    assert len(network._shared) == 1
    streams = [one.open(TALK), two.open(TALK)]
    assert [await stream.recv() for stream in streams] == [b"hello", b"hello"]
    await one.close()
    await one.close()
    with pytest.raises(Unreachable):
        await streams[0].recv()
    with pytest.raises(Unreachable, match="closed"):
        await one.call(ECHO, b"", timeout_ms=1_000)
    with pytest.raises(Unreachable, match="closed"):
        one.open(TALK)
    assert await two.call(ECHO, b"still", timeout_ms=1_000) == b"still"
    await two.close()
    assert len(network._shared) == 0
    await server.stop(grace_ms=0)


async def test_some_connections_stay_when_nobody_uses_them_and_dead_ones_do_not(make: Make) -> None:
    network = make(idle_max=2)
    servers = [await network.serve("127.0.0.1:0", {ECHO: echo}) for _ in range(3)]

    async def ask(number: int) -> None:
        channel = network.channel(servers[number].address)
        assert await channel.call(ECHO, b"x", timeout_ms=5_000) == b"x"
        await channel.close()

    for number in (0, 1):
        await ask(number)
    kept = dict(network._shared)
    for number in (1, 0):
        await ask(number)
    assert {each: network._shared[each] for each in kept} == kept, "the same connections"
    # The one that was used longest ago makes room.
    await ask(2)
    assert set(network._shared) == {servers[2].address, servers[0].address}
    # Nobody is there any more, and then somebody is: the first who asks gets an answer.
    address = servers[0].address
    await servers[0].stop(grace_ms=0)
    channel = network.channel(address)
    with pytest.raises(Unreachable):
        await channel.call(ECHO, b"x", timeout_ms=1_000)
    await channel.close()
    await asyncio.sleep(grpc_network.RECONNECT_MS_MIN / 1_000)
    servers[0] = await network.serve(address, {ECHO: echo})
    await ask(0)
    await network.close()
    for server in servers:
        await server.stop(grace_ms=0)


async def test_an_unknown_method_and_a_giant_message_are_invalid(make: Make) -> None:
    network = make()
    server = await network.serve("127.0.0.1:0", {ECHO: echo})
    channel = network.channel(server.address)
    with pytest.raises(InvalidRequest):
        await channel.open(TALK).recv()
    with pytest.raises(InvalidRequest):
        await channel.call(ECHO, bytes(MESSAGE_BYTES_MAX + 1), timeout_ms=5_000)
    with pytest.raises(InvalidRequest, match="takes a request"):
        channel.open(COUNT)
    large = bytes(8 << 20)
    assert await channel.call(ECHO, large, timeout_ms=5_000) == large
    await network.close()
    await server.stop(grace_ms=0)


async def test_nothing_is_sent_after_finish(make: Make) -> None:
    async def read(stream: Talk) -> None:
        while await stream.recv() is not None:
            pass
        await asyncio.sleep(1)

    network = make()
    server = await network.serve("127.0.0.1:0", {TALK: read})
    stream = network.channel(server.address).open(TALK)
    await stream.send(b"1")
    await stream.finish()
    await stream.finish()
    with pytest.raises(InvalidRequest, match="finished"):
        await stream.send(b"2")
    await network.close()
    await server.stop(grace_ms=0)


async def test_a_port_in_use_and_an_impossible_one(make: Make) -> None:
    network = make()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = "{}:{}".format(*taken.getsockname())
        with pytest.raises(AddressInUse, match=address):
            await network.serve(address, {ECHO: echo})
    with pytest.raises(InvalidConfig):
        await network.serve("192.0.2.1:0", {ECHO: echo})
    with pytest.raises(InvalidConfig):
        await network.serve("nonsense", {ECHO: echo})
    with pytest.raises(InvalidConfig):
        network.channel("nonsense")
    gc.collect()
    await asyncio.sleep(0.01)


async def test_probes(make: Make) -> None:
    network = make()
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = "{}:{}".format(*server.getsockname())
        assert await network.probe(address, timeout_ms=1_000) is Probe.OPEN
    assert await network.probe(address, timeout_ms=1_000) is Probe.REFUSED
    assert await network.probe("no.such.host.invalid:1", timeout_ms=1_000) is Probe.SILENT
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        fillers = [socket.socket() for _ in range(4)]
        for each in fillers:
            each.setblocking(False)
            each.connect_ex(full.getsockname())
        address = "{}:{}".format(*full.getsockname())
        assert await network.probe(address, timeout_ms=100) is Probe.SILENT
        for each in fillers:
            each.close()


async def test_a_call_fails_fast_when_nobody_listens_and_works_soon_after(
    make: Make,
) -> None:
    network = make()
    server = await network.serve("127.0.0.1:0", {ECHO: echo})
    address = server.address
    await server.stop(grace_ms=0)
    channel = network.channel(address)
    loop = asyncio.get_running_loop()
    began = loop.time()
    for _ in range(5):
        with pytest.raises(Unreachable):
            await channel.call(ECHO, b"", timeout_ms=10_000)
    assert loop.time() - began < 2
    server = await network.serve(address, {ECHO: echo})
    began = loop.time()
    while True:
        try:
            await channel.call(ECHO, b"", timeout_ms=10_000)
            break
        except Unreachable:
            await asyncio.sleep(0.01)
    assert loop.time() - began < 2 * grpc_network.RECONNECT_MS_MAX / 1_000
    await network.close()
    await server.stop(grace_ms=0)


async def test_whoever_comes_back_is_reached_by_the_first_who_asks(
    make: Make,
) -> None:
    """Others failed before: gRPC would wait longer and longer before it looked again."""

    async def talk(stream: Talk) -> None:
        while (message := await stream.recv()) is not None:
            await stream.send(message)

    network = make()
    server = await network.serve("127.0.0.1:0", {ECHO: echo, TALK: talk})
    address = server.address
    await server.stop(grace_ms=0)
    stubborn = network.channel(address)
    for _ in range(20):
        with pytest.raises(Unreachable):
            await stubborn.open(TALK).recv()
        await asyncio.sleep(0.05)
    server = await network.serve(address, {ECHO: echo, TALK: talk})
    newcomer = network.channel(address)
    stream = newcomer.open(TALK)
    await stream.send(b"hello")
    assert await stream.recv() == b"hello"
    assert await stubborn.call(ECHO, b"so can", timeout_ms=1_000) == b"so can"
    await newcomer.close()
    await stubborn.close()
    assert not network._shared
    assert not getattr(network, "_given_up", None)
    await server.stop(grace_ms=0)


async def test_a_handler_that_is_cancelled_here_tells_its_caller(make: Make) -> None:
    tasks: list[asyncio.Task[object]] = []
    started = asyncio.Event()

    async def wait(_: bytes) -> bytes:
        task = asyncio.current_task()
        assert task is not None
        tasks.append(task)
        started.set()
        await asyncio.sleep(3_600)
        return b""

    network = make()
    server = await network.serve("127.0.0.1:0", {ECHO: wait})
    call = asyncio.ensure_future(network.channel(server.address).call(ECHO, b"", timeout_ms=10_000))
    await started.wait()
    tasks[0].cancel()
    with pytest.raises(Unreachable, match="cancelled"):
        await call
    await network.close()
    await server.stop(grace_ms=0)


async def test_stop_waits_for_what_handlers_do_at_their_end(make: Make) -> None:
    ended: list[str] = []

    async def tidy(stream: Talk) -> None:
        try:
            await stream.send(b"hello")
            await stream.recv()
        finally:
            await asyncio.sleep(0.1)
            ended.append("tidy")

    network = make()
    server = await network.serve("127.0.0.1:0", {TALK: tidy})
    stream = network.channel(server.address).open(TALK)
    assert await stream.recv() == b"hello"
    await server.stop(grace_ms=0)
    assert ended == ["tidy"]
    await network.close()


def test_a_loop_that_ends_with_everything_open_is_quiet(
    make: Make, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    async def wait(stream: Talk) -> None:
        await stream.send(b"hello")
        await stream.recv()

    async def main() -> None:
        network = make()
        server = await network.serve("127.0.0.1:0", {TALK: wait, ECHO: echo})
        channel = network.channel(server.address)
        for _ in range(5):
            assert await channel.open(TALK).recv() == b"hello"
        unread = channel.open(TALK)
        await unread.send(b"never answered")
        tasks = [
            asyncio.ensure_future(channel.call(ECHO, b"", timeout_ms=10_000)) for _ in range(5)
        ]
        await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        await network.close()
        await server.stop(grace_ms=0)

    with warnings.catch_warnings(), caplog.at_level(logging.WARNING):
        warnings.simplefilter("error")
        asyncio.run(main())
        gc.collect()
    assert caplog.records == []
    assert "Task" not in capfd.readouterr().err


async def test_connections_are_limited_in_all_and_by_address(make: Make) -> None:
    async def hello(stream: Talk) -> None:
        await stream.send(b"hello")
        await stream.recv()

    limits = ServerLimits(connections_max=3, connections_per_ip_max=2, exempt=(COUNT.name,))
    serving = make(limits)
    server = await serving.serve("127.0.0.1:0", {ECHO: echo, TALK: hello, COUNT: hello_counted})
    networks = [make() for _ in range(3)]
    channels = [each.channel(server.address) for each in networks]
    streams = [channel.open(TALK) for channel in channels[:2]]
    assert [await stream.recv() for stream in streams] == [b"hello", b"hello"]
    with pytest.raises(TooManyConnections, match=r"max\.connections\.per\.ip=2"):
        await channels[2].open(TALK).recv()
    with pytest.raises(TooManyConnections):
        await channels[2].call(ECHO, b"", timeout_ms=5_000)
    # The control plane always gets through, and connections that are in go on.
    assert await channels[2].open(COUNT, b"").recv() == b"1"
    assert await channels[0].call(ECHO, b"more", timeout_ms=5_000) == b"more"
    streams[0].cancel()
    async with asyncio.timeout(10):
        while True:
            try:
                assert await channels[2].call(ECHO, b"now", timeout_ms=5_000) == b"now"
                break
            except TooManyConnections:
                await asyncio.sleep(0.01)
    for each in networks:
        await each.close()
    await server.stop(grace_ms=0)


async def hello_counted(_: bytes, stream: Talk) -> None:
    await stream.send(b"1")


async def test_connections_far_beyond_the_limit_are_closed_by_the_server(make: Make) -> None:
    """gRPC itself closes what comes after the spare ones; those that are in go on."""
    serving = make(ServerLimits(connections_max=1))
    server = await serving.serve("127.0.0.1:0", {ECHO: echo})
    host, _, port = server.address.rpartition(":")
    sockets = [socket.create_connection((host, int(port))) for _ in range(SPARE_CONNECTIONS + 40)]
    closed = 0
    async with asyncio.timeout(10):
        while closed < 30:
            await asyncio.sleep(0.05)
            closed = sum(_is_closed(each) for each in sockets)
    for each in sockets:
        each.close()
    await server.stop(grace_ms=0)


def _is_closed(sock: socket.socket) -> bool:
    sock.setblocking(False)
    try:
        while sock.recv(4_096):
            pass
    except BlockingIOError:
        return False
    except ConnectionError:
        return True
    return True


async def test_a_request_above_the_limit_is_told_from_one_that_is_absurd(make: Make) -> None:
    serving = make(ServerLimits(request_bytes_max=1 << 20))
    server = await serving.serve("127.0.0.1:0", {ECHO: echo})
    network = make()
    channel = network.channel(server.address)
    large = bytes(2 << 20)
    assert await channel.call(ECHO, large, timeout_ms=5_000) == large
    with pytest.raises(InvalidRequest, match="RESOURCE_EXHAUSTED"):
        await channel.call(ECHO, bytes(4 << 20), timeout_ms=5_000)
    await network.close()
    await server.stop(grace_ms=0)


async def test_who_is_out_of_reach_and_why_is_told_in_plain_words(make: Make) -> None:
    """The sentences hold for the gRPC that is installed: its own words change between versions."""

    async def http(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    other = await asyncio.start_server(http, "127.0.0.1", 0)
    port = other.sockets[0].getsockname()[1]
    network = make()
    for address, reason in (
        ("127.0.0.1:1", "it refused the connection: nobody listens there"),
        ("no.such.host.invalid:1", "the name of the host is not known"),
        (f"127.0.0.1:{port}", "it answers, but not as a server of ours: another program .*"),
    ):
        channel = network.channel(address)
        with pytest.raises(Unreachable, match=f"^{address}: {reason}$"):
            await channel.call(ECHO, b"", timeout_ms=10_000)
        stream = channel.open(TALK)
        with pytest.raises(Unreachable, match=f"^{address}: {reason}$"):
            await stream.recv()
        with pytest.raises(Unreachable, match=f"^{address}: {reason}$"):
            await stream.send(b"")
        assert not channel._open
    await network.close()
    other.close()
    await other.wait_closed()
