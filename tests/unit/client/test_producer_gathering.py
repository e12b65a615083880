"""Batches that are not full wait while a request is on its way, but never for long."""

from __future__ import annotations

import asyncio
from typing import Any

import pyarrow as pa
import pytest

from tailrace.client.producer import ProducerCore


async def opened(world: Any, partitions: int, **settings: Any) -> ProducerCore:
    """A producer that has written to all partitions of a topic, which one broker leads."""
    world.cluster.create("t", partitions)
    for each in world.cluster.partitions.values():
        world.cluster.move(each, 0)
    producer: ProducerCore = world.producer(**settings)
    for number in range(partitions):
        await (await producer.send("t", b"opens", partition=number))
    return producer


def answers_after(world: Any, *lags_s: float) -> None:
    """The next commits take so long, those after them nothing."""
    left = list(lags_s)
    world.cluster.commit_lag_s = lambda: left.pop(0) if left else 0.0


async def goes_soon(world: Any, producer: ProducerCore, partition: int) -> None:
    """A record for an idle partition of a healthy broker."""
    began_ms = world.loop.now_ms
    await (await producer.send("t", b"R", partition=partition))
    assert world.loop.now_ms - began_ms < 1_000


@pytest.mark.parametrize("idempotent", [True, False])
def test_who_gathered_first_need_not_be_there_when_the_wait_is_over(
    simulate: Any, idempotent: bool
) -> None:
    """It had the only timer: what gathered with it waited for the slowest request, 10 s here."""

    async def main(world: Any) -> None:
        producer = await opened(world, 3, enable_idempotence=idempotent)
        answers_after(world, 0.002, 10.0)
        first = await producer.send("t", b"1", partition=0)
        await asyncio.sleep(0.001)
        await producer.send("t", b"goes with the answer, and is slow", partition=1)
        await first
        await asyncio.sleep(0)
        await goes_soon(world, producer, 2)
        await producer.close()

    simulate(main)


@pytest.mark.parametrize("leaves_by", ["a batch that was built whole", "a move of its leader"])
def test_a_queue_that_leaves_the_wait_takes_nobody_with_it(simulate: Any, leaves_by: str) -> None:
    async def main(world: Any) -> None:
        producer = await opened(world, 3)
        answers_after(world, 10.0)
        await producer.send("t", b"slow", partition=0)
        await asyncio.sleep(0.001)
        await producer.send("t", b"gathers", partition=1)
        await asyncio.sleep(0.001)
        waits = await producer.send("t", b"gathers too", partition=2)
        if leaves_by == "a move of its leader":
            world.cluster.move(world.cluster.get("t", 1), 1)
        else:
            await producer.send_batch("t", pa.table({"value": [b"more"]}), partition=1)
        began_ms = world.loop.now_ms
        await waits
        assert world.loop.now_ms - began_ms < 1_000
        await producer.close()

    simulate(main)


def test_a_busy_partition_does_not_starve_the_others(simulate: Any) -> None:
    """Each of its full batches began the wait anew: the record ended with DELIVERY_TIMED_OUT."""

    async def main(world: Any) -> None:
        producer = await opened(world, 2, batch_size=2_000)
        world.cluster.commit_lag_s = lambda: 0.02

        async def busy() -> None:
            while True:
                await producer.send("t", bytes(1_900), partition=0)
                await asyncio.sleep(0.008)

        task = world.processes["client"].spawn("busy", busy())
        await asyncio.sleep(1)
        await goes_soon(world, producer, 1)
        task.cancel()
        await producer.close()

    simulate(main)


@pytest.mark.parametrize("batch_size", [1_000, 2_500])
def test_a_resumed_producer_skips_what_the_log_has(simulate: Any, batch_size: int) -> None:
    """Several batches are told that at once: each was sent again, with growing pauses."""

    async def main(world: Any) -> None:
        world.cluster.create("t")
        values = [b"%04d" % number + bytes(900) for number in range(100)]
        first = world.producer(batch_size=2_000)
        await (await first.send("t", b"before"))
        state = await first.state()
        for value in values:
            await first.send("t", value)
        await first.close()
        again = world.producer(batch_size=batch_size)
        again.resume(state)
        began_ms = world.loop.now_ms
        for value in [*values, b"new"]:
            await again.send("t", value)
        await again.flush()
        assert world.loop.now_ms - began_ms < 1_000
        assert world.cluster.get("t").records() == [b"before", *values, b"new"]
        await again.close()

    simulate(main)
