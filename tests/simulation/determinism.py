"""Programs that use all of the simulator, to show that one seed gives one run.

`python -m simulation.determinism SEED` prints what must be equal from interpreter to interpreter,
whatever PYTHONHASHSEED is: sets of text have another order in each.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress
from random import Random

from simulation.fabric import Weather
from simulation.loop import InlineBlocking, Process, SimLoop
from simulation.network import SimHost, SimNetwork
from simulation.storage import SimFiles
from simulation.transport_contract import ECHO, TALK, Part, Talk
from tailrace.errors import TailraceError
from tailrace.log.file_cache import FileCache
from tailrace.runtime import Tasks
from tailrace.transport.rpc import Link

NODES = 4


def loop_program(seed: int, *, trace: bool = True) -> SimLoop:
    """Tasks, timers, events, pauses and deaths; returns the loop after its run."""

    async def main(loop: SimLoop) -> None:
        rng: Random = loop.fork_rng("program")
        event = asyncio.Event()

        async def worker(n: int) -> None:
            for _ in range(20):
                await asyncio.sleep(rng.random())
                if n % 5 == 0:
                    event.set()
                else:
                    await event.wait()
                loop.note(f"worker {n}")

        tasks = Tasks(lambda *_: None)
        processes = [loop.process(f"p{n}") for n in range(4)]
        for n in range(20):
            processes[n % 4].spawn(f"worker {n}", worker(n))
        for n in range(5):
            tasks.spawn(f"mine {n}", worker(n))
        await asyncio.sleep(3)
        processes[1].pause()
        await asyncio.sleep(1)
        processes[2].kill()
        processes[1].resume()
        with suppress(TimeoutError):
            async with asyncio.timeout(0.5):
                await asyncio.sleep(1)
        await tasks.close()

    loop = SimLoop(seed, trace=trace)
    loop.run(main)
    return loop


class Node:
    """A process that talks to all others in every way that there is."""

    def __init__(self, loop: SimLoop, network: SimNetwork, number: int) -> None:
        self.name = f"node-{number}"
        self.loop = loop
        self.process: Process = loop.process(self.name)
        self.host: SimHost = network.host(self.name, self.process)
        self.rng = loop.fork_rng(f"{self.name}/{loop.now_us}")
        files = SimFiles(self.rng)
        file = files.open("/file", create=True)
        file.write_at(0, [bytes(range(256)) * 64])
        self.links = self.host.links(FileCache(files, open_files_max=4))
        self.blocking = InlineBlocking(loop, self.name)
        self.process.spawn("main", self.main())

    async def main(self) -> None:
        tasks = Tasks(lambda *_: None)
        await self.host.serve(f"{self.name}:1", {ECHO: self.echo, TALK: self.talk})
        await self.links.listen(f"{self.name}:2", self.accept)
        for n in range(NODES):
            if f"node-{n}" != self.name:
                tasks.spawn(f"call {n}", self.again(self.call, f"node-{n}:1"))
                tasks.spawn(f"stream {n}", self.again(self.stream, f"node-{n}:1"))
                tasks.spawn(f"link {n}", self.again(self.link, f"node-{n}:2"))
        await asyncio.sleep(3_600)

    async def again(self, work, address: str) -> None:  # type: ignore[no-untyped-def]
        while True:
            try:
                await work(address)
            except TailraceError as error:
                self.loop.note(f"{self.name} {work.__name__} {address}: {error}")
            await asyncio.sleep(self.rng.random())

    async def echo(self, request: bytes) -> bytes:
        return await self.blocking.run(lambda: request)

    async def talk(self, stream: Talk) -> None:
        while (message := await stream.recv()) is not None:
            await stream.send(message)

    async def accept(self, link: Link) -> None:
        while (frame := await link.recv()) is not None:
            await link.send(b"%d" % len(frame.payload))

    async def call(self, address: str) -> None:
        channel = self.host.channel(address)
        request = b"%d" % self.rng.randrange(1_000)
        assert await channel.call(ECHO, request, timeout_ms=500) == request
        await channel.close()

    async def stream(self, address: str) -> None:
        channel = self.host.channel(address)
        stream = channel.open(TALK)
        for n in range(self.rng.randrange(20)):
            message = b"%d" % n * self.rng.randrange(2_000)
            await stream.send(message)
            assert await stream.recv() == message
        if self.rng.random() < 0.5:
            await stream.finish()
            assert await stream.recv() is None
        await channel.close()

    async def link(self, address: str) -> None:
        link = await self.links.connect(address, timeout_ms=500)
        try:
            for _ in range(self.rng.randrange(20)):
                size = self.rng.randrange(1 << 14)
                await link.send(b"frame", [Part("/file", 0, size)])
                frame = await link.recv()
                if frame is None:
                    return
                assert frame.header == b"%d" % size
        finally:
            link.close()


def network_program(seed: int, *, trace: bool = True, seconds: int = 8) -> SimLoop:
    """Nodes that talk, while everything that can happen to a network happens."""

    async def main(loop: SimLoop) -> None:
        rng = loop.fork_rng("faults")
        network = SimNetwork(loop)
        nodes = [Node(loop, network, n) for n in range(NODES)]
        while loop.now_ms < seconds * 1_000:
            await asyncio.sleep(rng.random() * 2)
            _one_fault(rng, network, nodes)
        network.heal()
        for node in nodes:
            node.process.resume()
        await asyncio.sleep(3)
        # Calls that are just under way, two streams and two links a pair: nothing is left over.
        assert len(network.connections) < 6 * NODES * NODES
        assert network.handler_failures == []

    loop = SimLoop(seed, trace=trace)
    loop.run(main)
    return loop


def _one_fault(rng: Random, network: SimNetwork, nodes: list[Node]) -> None:
    one, other = rng.sample(range(NODES), 2)
    here, there = nodes[one].name, nodes[other].name
    kind = rng.randrange(8)
    if kind == 0:
        network.block(here, there)
    elif kind == 1:
        network.partition([here], [there])
    elif kind == 2:
        network.heal()
    elif kind == 3:
        network.weather = Weather(
            loss_probability=rng.random() / 100,
            duplicate_probability=rng.random() / 10,
            spike_probability=rng.random() / 10,
        )
    elif kind == 4:
        nodes[one].process.kill()
        nodes[one] = Node(nodes[one].loop, network, one)
    elif kind == 5:
        nodes[one].process.pause()
    elif kind == 6:
        nodes[one].process.resume()
    else:
        network.break_connections(here, there)


def summary(seed: int) -> str:
    loops = [loop_program(seed), network_program(seed)]
    return " ".join(f"{loop.fingerprint}/{loop.steps}/{loop.now_us}" for loop in loops)


if __name__ == "__main__":
    sys.stdout.write(summary(int(sys.argv[1])) + "\n")
