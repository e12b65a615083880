"""Clients that take nothing, or say nothing, are cut off by named limits."""

from __future__ import annotations

import asyncio

from tailrace.broker.clients import ClientStreams
from tailrace.clock import ManualClock
from tailrace.transport.rpc import CALLER


class _Wire:
    """The other side of a stream, which takes what is sent when it is told to."""

    def __init__(self) -> None:
        self.taking = asyncio.Event()
        self.cancelled = False

    async def send(self, _: object) -> None:
        await self.taking.wait()

    async def recv(self) -> None:
        return None

    async def finish(self) -> None: ...

    def cancel(self) -> None:
        self.cancelled = True


def make(clock: ManualClock, said: list[str]) -> ClientStreams:
    return ClientStreams(clock, stall_max_ms=1_000, idle_max_ms=5_000, say=said.append)


async def test_one_that_takes_nothing_is_cut_off() -> None:
    clock, said, wire = ManualClock(), list[str](), _Wire()
    clients = make(clock, said)
    known = CALLER.set(lambda: "ipv4:10.0.0.7:50112")
    client = clients.enter("fetch", wire)
    CALLER.reset(known)
    client.client_id = "slow"
    sending = asyncio.ensure_future(client.send(b"data"))
    await asyncio.sleep(0)
    clock.advance(999)
    clients.sweep()
    assert not wire.cancelled
    clock.advance(1)
    clients.sweep()
    assert (wire.cancelled, clients.cut_off, len(clients)) == (True, 1, 0)
    (line,) = said
    assert line.startswith("fetch stream of slow at ipv4:10.0.0.7:50112: cut off, ")
    assert line.endswith("it took nothing for client.stall.timeout.ms=1000")
    sending.cancel()


async def test_one_that_takes_slowly_is_left_alone() -> None:
    clock, said, wire = ManualClock(), list[str](), _Wire()
    clients = make(clock, said)
    client = clients.enter("fetch", wire)
    for _ in range(5):
        wire.taking.clear()
        sending = asyncio.ensure_future(client.send(b"data"))
        await asyncio.sleep(0)
        clock.advance(900)
        clients.sweep()
        wire.taking.set()
        await sending
    assert not wire.cancelled
    clients.leave(client)
    assert len(clients) == 0


async def test_one_that_says_nothing_is_closed() -> None:
    clock, said, wire = ManualClock(), list[str](), _Wire()
    clients = make(clock, said)
    client = clients.enter("produce", wire)
    clock.advance(4_000)
    client.heard()
    clock.advance(4_000)
    clients.sweep()
    assert len(clients) == 1
    clock.advance(1_000)
    clients.sweep()
    assert wire.cancelled
    assert "connections.max.idle.ms=5000" in said[0]


async def test_a_task_looks_after_them() -> None:
    clock, said, wire = ManualClock(), list[str](), _Wire()
    clients = ClientStreams(clock, stall_max_ms=10, idle_max_ms=20, say=said.append)
    clients.enter("produce", wire)
    clock.advance(20)
    task = asyncio.ensure_future(clients.run())
    async with asyncio.timeout(10):
        while not wire.cancelled:  # noqa: ASYNC110 - nobody tells.
            await asyncio.sleep(0.001)
    task.cancel()
