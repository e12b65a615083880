"""Who waits for a producer learns why, and so does who has waited too long."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from simulation.model_cluster import Fate
from tailrace.client.trouble import because
from tailrace.errors import BufferFull, DeliveryTimedOut, StoreUnavailable


def test_a_refusal_that_is_tried_again_is_named(simulate: Any) -> None:
    async def main(world: Any) -> None:
        world.cluster.create("t")
        producer = world.producer(
            delivery_timeout_ms=3_000, buffer_memory=10_000, batch_size=5_000, max_block_ms=100
        )
        assert producer.trouble() == "", "nothing was asked for yet"
        assert (await (await producer.send("t", b"0"))).offset == 0
        assert producer.trouble() == ""
        world.cluster.fate = lambda: Fate.REFUSED
        delivery = await producer.send("t", b"1")
        await asyncio.sleep(1)
        assert producer.trouble().startswith("OVERLOADED: ")
        with pytest.raises(DeliveryTimedOut, match=r"the last ended with OVERLOADED: "):
            await delivery

        async def fill() -> None:
            for _ in range(20):
                await producer.send("t", bytes(1_000))

        with pytest.raises(BufferFull, match=r"max_block_ms=100 \(OVERLOADED: "):
            await fill()
        await producer.close(timeout_ms=10)

    simulate(main)


def test_silence_is_named_too(simulate: Any) -> None:
    async def main(world: Any) -> None:
        world.cluster.create("t")
        producer = world.producer(delivery_timeout_ms=5_000)
        await (await producer.send("t", b"0"))
        world.cluster.fate = lambda: Fate.IGNORED
        delivery = await producer.send("t", b"1")
        await asyncio.sleep(1)
        assert producer.trouble() == "", "it may still answer"
        await asyncio.sleep(1)
        said = r"broker \d at b\d:\d+ has left a request unanswered for 2 s"
        assert re.fullmatch(said, producer.trouble())
        with pytest.raises(DeliveryTimedOut, match=r"\(1 attempt, .* broker \d did not answer"):
            await delivery
        await producer.close(timeout_ms=10)

    simulate(main)


def test_that_there_is_no_id_is_named(simulate: Any) -> None:
    async def main(world: Any) -> None:
        world.cluster.controller.errors = [StoreUnavailable("etcd is away")] * 1_000
        world.cluster.create("t")
        producer = world.producer(delivery_timeout_ms=2_000)
        delivery = await producer.send("t", b"0")
        await asyncio.sleep(1)
        reason = "the producer has no id: STORE_UNAVAILABLE: etcd is away"
        assert producer.trouble() == reason
        with pytest.raises(DeliveryTimedOut, match=rf"\(0 attempts: {reason}\)"):
            await delivery
        await producer.close(timeout_ms=10)

    simulate(main)


def test_that_nobody_answers_is_named(simulate: Any) -> None:
    async def main(world: Any) -> None:
        for name in ("b0", "b1", "b2"):
            world.processes[name].kill()
        producer = world.producer()
        await producer.start()
        await asyncio.sleep(1)
        assert producer.trouble().startswith("b")
        await producer.close(timeout_ms=10)

    simulate(main)


def test_the_end_of_a_sentence() -> None:
    assert because("") == ""
    assert because("it rains") == " (it rains)"
