"""The simulated network: the contract of the transport, and the faults that it can inject."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest

from simulation.fabric import Weather
from simulation.loop import Process, SimLoop, run
from simulation.network import SimHost, SimNetwork
from simulation.storage import SimFiles
from simulation.transport_contract import ALL_SCENARIOS, COUNT, ECHO, TALK, Part, Scenario, Talk
from tailrace.errors import RequestTimedOut, Unreachable
from tailrace.log.file_cache import FileCache
from tailrace.log.files import Files
from tailrace.transport.rpc import Bytes, Handler, Link, Links, Method, Network, Probe
from tailrace.v1 import common_pb2

Main = Callable[["World"], Coroutine[Any, Any, None]]


@dataclass
class World:
    loop: SimLoop
    network: SimNetwork
    client: Network
    server: Network
    client_links: Links
    server_links: Links
    server_files: Files
    client_process: Process
    server_process: Process
    server_cache: FileCache
    server_folder: str = "/server"
    free_address: str = "server:0"

    def restart_server(self) -> SimHost:
        self.server_process = self.loop.process("server")
        return self.network.host("server", self.server_process)


def make_world(loop: SimLoop, *, strict: bool = True) -> World:
    network = SimNetwork(loop, strict=strict)
    client_process, server_process = loop.process("client"), loop.process("server")
    client, server = network.host("client", client_process), network.host("server", server_process)
    files = SimFiles(loop.fork_rng("files"))
    cache = FileCache(files, open_files_max=2)
    other = FileCache(SimFiles(), open_files_max=2)
    return World(
        loop,
        network,
        client,
        server,
        client.links(other),
        server.links(cache),
        files,
        client_process,
        server_process,
        cache,
    )


def simulate(main: Main, *, seed: int = 1, strict: bool = True) -> None:
    async def start(loop: SimLoop) -> None:
        world = make_world(loop, strict=strict)
        await main(world)

    run(start, seed)


@pytest.mark.parametrize("strict", [True, False], ids=["strict", "shared"])
@pytest.mark.parametrize("scenario", ALL_SCENARIOS, ids=lambda each: each.__name__)
def test_contract(scenario: Scenario, strict: bool) -> None:
    async def main(world: World) -> None:
        await scenario(world)
        # All that was opened is forgotten: nothing is left to break, deliver or count.
        await asyncio.sleep(60)
        assert world.network.connections == {}

    for seed in range(5):
        simulate(main, seed=seed, strict=strict)


async def echo(request: bytes) -> bytes:
    return request


async def talk(stream: Talk) -> None:
    while (message := await stream.recv()) is not None:
        await stream.send(message)


HANDLERS: dict[Method[bytes, bytes], Handler] = {ECHO: echo, TALK: talk}


def test_messages_are_not_shared() -> None:
    async def main(world: World) -> None:
        seen: list[common_pb2.TopicPartition] = []

        async def keep(request: common_pb2.TopicPartition) -> common_pb2.TopicPartition:
            seen.append(request)
            return request

        server = await world.server.serve("server:1", {ECHO: keep})
        message = common_pb2.TopicPartition(topic="sent")

        def partition_of(data: Bytes) -> common_pb2.TopicPartition:
            return common_pb2.TopicPartition.FromString(bytes(data))

        method = Method(
            ECHO.name,
            ECHO.kind,
            common_pb2.TopicPartition.SerializeToString,
            partition_of,
            common_pb2.TopicPartition.SerializeToString,
            partition_of,
        )
        channel = world.client.channel(server.address)
        answer = await channel.call(method, message, timeout_ms=100)
        message.topic = "changed"
        assert [each.topic for each in (*seen, answer)] == ["sent", "sent"]
        assert answer is not seen[0]

    simulate(main)


def test_a_silent_path_times_calls_out_and_breaks_streams_after_a_while() -> None:
    async def main(world: World) -> None:
        await world.server.serve("server:1", HANDLERS)
        channel = world.client.channel("server:1")
        stream = channel.open(TALK)
        await stream.send(b"1")
        assert await stream.recv() == b"1"
        world.network.partition(["client"], ["server"])
        with pytest.raises(RequestTimedOut):
            await channel.call(ECHO, b"", timeout_ms=500)
        assert world.loop.now_ms < 600
        assert await world.client.probe("server:1", timeout_ms=300) is Probe.SILENT
        await stream.send(b"2")
        with pytest.raises(Unreachable):
            await stream.recv()
        assert 5_000 <= world.loop.now_ms <= 20_000

    for seed in range(10):
        simulate(main, seed=seed)


def test_what_a_short_partition_held_up_arrives_in_order() -> None:
    async def main(world: World) -> None:
        await world.server.serve("server:1", HANDLERS)
        stream = world.client.channel("server:1").open(TALK)
        await stream.send(b"0")
        world.network.partition(["client"], ["server"])
        for n in range(1, 20):
            await stream.send(b"%d" % n)
            await asyncio.sleep(0.1)
        world.network.heal()
        for n in range(20, 25):
            await stream.send(b"%d" % n)
        assert [await stream.recv() for _ in range(25)] == [b"%d" % n for n in range(25)]

    for seed in range(10):
        simulate(main, seed=seed)


def test_a_one_way_partition_lets_the_other_way_through() -> None:
    async def main(world: World) -> None:
        arrived: list[bytes] = []

        async def note(request: bytes) -> bytes:
            arrived.append(request)
            return b""

        await world.server.serve("server:1", {ECHO: note})
        channel = world.client.channel("server:1")
        world.network.block("server", "client")
        with pytest.raises(RequestTimedOut):
            await channel.call(ECHO, b"1", timeout_ms=500)
        assert arrived == [b"1"]
        world.network.unblock("server", "client")
        world.network.block("client", "server")
        with pytest.raises(RequestTimedOut):
            await channel.call(ECHO, b"2", timeout_ms=500)
        assert arrived == [b"1"]

    simulate(main)


def test_a_connection_over_a_silent_path_fails_by_itself() -> None:
    async def main(world: World) -> None:
        await world.server.serve("server:1", HANDLERS)
        world.network.partition(["client"], ["server"])
        with pytest.raises(Unreachable):
            await world.client.channel("server:1").call(ECHO, b"", timeout_ms=3_600_000)
        assert 2_000 <= world.loop.now_ms <= 15_000

    simulate(main)


def test_a_request_that_was_held_up_arrives_after_its_caller_gave_up() -> None:
    async def main(world: World) -> None:
        arrived: list[bytes] = []
        cancelled: list[bytes] = []

        async def note(request: bytes) -> bytes:
            arrived.append(request)
            try:
                await asyncio.sleep(10)
            except asyncio.CancelledError:
                cancelled.append(request)
                raise
            return b""

        await world.server.serve("server:1", {ECHO: note})
        world.network.partition(["client"], ["server"])
        with pytest.raises(RequestTimedOut):
            await world.client.channel("server:1").call(ECHO, b"late", timeout_ms=500)
        world.network.heal()
        await asyncio.sleep(1)
        assert (arrived, cancelled) == ([b"late"], [b"late"])

    simulate(main)


def test_a_crash_breaks_all_connections_and_refuses_new_ones() -> None:
    async def main(world: World) -> None:
        ran: list[str] = []

        async def wait(request: bytes) -> bytes:
            try:
                await asyncio.sleep(3_600)
            finally:
                ran.append("finally")
            return b""

        await world.server.serve("server:1", {**HANDLERS, ECHO: wait})
        channel = world.client.channel("server:1")
        stream = channel.open(TALK)
        call = asyncio.ensure_future(channel.call(ECHO, b"", timeout_ms=60_000))
        await stream.send(b"1")
        assert await stream.recv() == b"1"
        world.server_process.kill()
        killed_ms = world.loop.now_ms
        with pytest.raises(Unreachable, match="died"):
            await stream.recv()
        with pytest.raises(Unreachable, match="died"):
            await call
        assert world.loop.now_ms - killed_ms < 5
        assert await world.client.probe("server:1", timeout_ms=100) is Probe.REFUSED
        with pytest.raises(Unreachable, match="refused"):
            await channel.call(ECHO, b"", timeout_ms=100)
        again = world.restart_server()
        await again.serve("server:1", HANDLERS)
        assert await channel.call(ECHO, b"again", timeout_ms=100) == b"again"
        await asyncio.sleep(20)
        # The dead do nothing, not even clean up.
        assert ran == []

    simulate(main)


def test_a_crash_lets_a_first_part_of_what_was_sent_arrive() -> None:
    counts: list[int] = []

    async def main(world: World) -> None:
        async def count(_: bytes, stream: Talk) -> None:
            for n in range(10):
                await stream.send(b"%d" % n)
            world.server_process.kill()

        await world.server.serve("server:1", {COUNT: count})
        stream = world.client.channel("server:1").open(COUNT, b"")
        received: list[bytes | None] = []
        with suppress(Unreachable):
            while True:
                received.append(await stream.recv())
        # None would be an end in order.
        assert received == [b"%d" % n for n in range(len(received))]
        counts.append(len(received))

    for seed in range(20):
        simulate(main, seed=seed)
    assert len(set(counts)) > 3


def test_a_paused_process_keeps_its_sockets_and_does_nothing() -> None:
    async def main(world: World) -> None:
        handled: list[int] = []

        async def note(request: bytes) -> bytes:
            handled.append(world.loop.now_ms)
            return request

        await world.server.serve("server:1", {**HANDLERS, ECHO: note})
        channel = world.client.channel("server:1")
        world.server_process.pause()
        assert await world.client.probe("server:1", timeout_ms=100) is Probe.OPEN
        with pytest.raises(RequestTimedOut):
            await channel.call(ECHO, b"", timeout_ms=1_000)
        late = asyncio.ensure_future(channel.call(ECHO, b"late", timeout_ms=4_000))
        await asyncio.sleep(1)
        assert handled == []
        resumed_ms = world.loop.now_ms
        world.server_process.resume()
        assert await late == b"late"
        # The first one too was in the socket, although its caller has given up.
        assert handled == [resumed_ms, resumed_ms]

    simulate(main)


def test_a_long_pause_breaks_streams_but_not_links() -> None:
    async def main(world: World) -> None:
        async def answer(link: Link) -> None:
            while (frame := await link.recv()) is not None:
                await link.send(frame.header)

        await world.server.serve("server:1", HANDLERS)
        await world.server_links.listen("server:2", answer)
        stream = world.client.channel("server:1").open(TALK)
        link = await world.client_links.connect("server:2", timeout_ms=100)
        await stream.send(b"1")
        assert await stream.recv() == b"1"
        world.server_process.pause()
        await link.send(b"2")
        with pytest.raises(Unreachable):
            await stream.recv()
        assert 5_000 <= world.loop.now_ms <= 16_000
        await asyncio.sleep(60)
        world.server_process.resume()
        frame = await link.recv()
        assert frame is not None
        assert frame.header == b"2"

    simulate(main)


def test_a_link_to_a_paused_process_breaks_when_its_buffers_are_full() -> None:
    async def main(world: World) -> None:
        async def push(link: Link) -> None:
            while True:
                await link.send(bytes(300_000))

        await world.server_links.listen("server:2", push)
        await world.client_links.connect("server:2", timeout_ms=100)
        await asyncio.sleep(1)
        assert len(world.network.connections) == 1
        world.client_process.pause()
        await asyncio.sleep(30)
        assert len(world.network.connections) == 0

    simulate(main)


def test_loss_breaks_the_connection_and_nothing_in_the_middle_is_missing() -> None:
    async def main(world: World) -> None:
        world.network.weather = Weather(loss_probability=0.05)
        await world.server.serve("server:1", HANDLERS)
        channel = world.client.channel("server:1")
        outcomes: list[bool] = []
        for _ in range(100):
            try:
                await channel.call(ECHO, b"", timeout_ms=1_000)
                outcomes.append(True)
            except Unreachable:
                outcomes.append(False)
        assert 50 < sum(outcomes) < 100
        stream = channel.open(TALK)
        received: list[bytes | None] = []
        with suppress(Unreachable):
            for n in range(10_000):
                await stream.send(b"%d" % n)
                received.append(await stream.recv())
        assert len(received) < 10_000
        assert received == [b"%d" % n for n in range(len(received))]

    simulate(main)


def test_a_lost_response_leaves_its_request_done() -> None:
    async def main(world: World) -> None:
        handled = 0

        async def note(request: bytes) -> bytes:
            nonlocal handled
            handled += 1
            return request

        await world.server.serve("server:1", {ECHO: note})
        world.network.set_weather("server", "client", Weather(loss_probability=1.0))
        with pytest.raises(Unreachable):
            await world.client.channel("server:1").call(ECHO, b"", timeout_ms=1_000)
        assert handled == 1
        world.network.set_weather("server", "client", None)
        world.network.set_weather("client", "server", Weather(loss_probability=1.0))
        with pytest.raises(Unreachable):
            await world.client.channel("server:1").call(ECHO, b"", timeout_ms=1_000)
        assert handled == 1

    simulate(main)


def test_a_request_can_arrive_twice() -> None:
    async def main(world: World) -> None:
        handled: list[bytes] = []

        async def note(request: bytes) -> bytes:
            handled.append(request)
            return request

        world.network.weather = Weather(duplicate_probability=1.0)
        await world.server.serve("server:1", {ECHO: note})
        assert await world.client.channel("server:1").call(ECHO, b"1", timeout_ms=1_000) == b"1"
        await asyncio.sleep(1)
        assert handled == [b"1", b"1"]
        assert world.network.connections == {}

    simulate(main)


def test_streams_overtake_each_other() -> None:
    orders: list[tuple[bytes, ...]] = []

    async def main(world: World) -> None:
        arrived: list[bytes] = []

        async def note(stream: Talk) -> None:
            while (message := await stream.recv()) is not None:
                arrived.append(message)

        await world.server.serve("server:1", {TALK: note})
        channel = world.client.channel("server:1")
        for n in range(5):
            await channel.open(TALK).send(b"%d" % n)
        await asyncio.sleep(1)
        orders.append(tuple(arrived))

    for seed in range(20):
        simulate(main, seed=seed)
    assert len(set(orders)) > 5


def test_a_payload_is_gone_with_the_next_recv() -> None:
    async def main(world: World) -> None:
        async def push(link: Link) -> None:
            file = world.server_files.open("/file", create=True)
            file.write_at(0, [b"payload"])
            await link.send(b"1", [Part("/file", 0, 7)])
            await link.send(b"2")
            await link.recv()

        await world.server_links.listen("server:2", push)
        link = await world.client_links.connect("server:2", timeout_ms=100)
        frame = await link.recv()
        assert frame is not None
        piece = frame.payload[2:5]
        assert bytes(piece) == b"ylo"
        await link.recv()
        assert bytes(piece) == b"\xdb" * 3

    simulate(main)


def test_a_host_has_one_process_that_listens() -> None:
    async def main(world: World) -> None:
        await world.server.serve("server:1", HANDLERS)
        with pytest.raises(ValueError, match="still runs"):
            world.restart_server()

    simulate(main)


def test_unknown_hosts_are_silent() -> None:
    async def main(world: World) -> None:
        assert await world.client.probe("nowhere:1", timeout_ms=50) is Probe.SILENT
        with pytest.raises(RequestTimedOut):
            await world.client.channel("nowhere:1").call(ECHO, b"", timeout_ms=50)

    simulate(main)
