"""A producer that compares: what is in the log already is told, never taken for its own."""

from __future__ import annotations

from typing import Any

import pytest

from simulation.model_cluster import Fate
from tailrace.errors import InvalidConfig, OutOfOrderSequence, ProducerFenced
from tailrace.model import TopicPartition

STATE = {"producer_id": 2**62 + 5, "producer_epoch": 3, "sequences": {}}


async def _send(world: Any, values: list[bytes], *, at: int = 0, epoch: int = 3) -> list[int]:
    producer = world.producer(expect_new=True)
    producer.resume({**STATE, "producer_epoch": epoch, "sequences": {"t/0": at} if at else {}})
    try:
        sent = [await producer.send("t", value, partition=0) for value in values]
        return [(await each).offset for each in sent]
    finally:
        await producer.close(timeout_ms=0)


def test_new_numbers_are_written(simulate: Any) -> None:
    async def main(world: Any) -> None:
        world.cluster.create("t")
        assert await _send(world, [b"a", b"b"]) == [0, 1]
        assert await _send(world, [b"c"], at=2) == [2]
        assert world.cluster.get("t").records() == [b"a", b"b", b"c"]

    simulate(main)


@pytest.mark.parametrize("values", [[b"a", b"b"], [b"x"], [b"x", b"y", b"z"]])
def test_numbers_that_are_taken_end_it(simulate: Any, values: list[bytes]) -> None:
    async def main(world: Any) -> None:
        world.cluster.create("t")
        await _send(world, [b"a", b"b"])
        with pytest.raises(OutOfOrderSequence, match="expected to be new") as caught:
            await _send(world, values)
        assert caught.value.due_sequence == 2
        assert caught.value.partition == TopicPartition("t", 0)
        assert world.cluster.get("t").records() == [b"a", b"b"]

    simulate(main)


def test_its_own_retry_is_told_as_well(simulate: Any) -> None:
    """An answer that got lost: the log has the batch, and only the program can compare."""

    async def main(world: Any) -> None:
        world.cluster.create("t")
        fates = iter([Fate.UNANSWERED])
        world.cluster.fate = lambda: next(fates, Fate.SERVED)
        with pytest.raises(OutOfOrderSequence):
            await _send(world, [b"a"])
        assert world.cluster.get("t").records() == [b"a"]

    simulate(main)


def test_an_older_epoch_is_fenced(simulate: Any) -> None:
    async def main(world: Any) -> None:
        world.cluster.create("t")
        await _send(world, [b"a"], epoch=4)
        with pytest.raises(ProducerFenced):
            await _send(world, [b"b"], epoch=3)

    simulate(main)


def test_a_log_that_knows_nothing_is_told_too(simulate: Any) -> None:
    async def main(world: Any) -> None:
        world.cluster.create("t")
        with pytest.raises(OutOfOrderSequence):
            await _send(world, [b"c"], at=2)

    simulate(main)


def test_it_never_asks_for_numbers(simulate: Any) -> None:
    async def main(world: Any) -> None:
        world.cluster.create("t")
        producer = world.producer(expect_new=True)
        with pytest.raises(OutOfOrderSequence, match="only `resume` gives numbers"):
            await (await producer.send("t", b"a"))
        await producer.close(timeout_ms=0)
        with pytest.raises(InvalidConfig, match="expect_new"):
            world.producer(expect_new=True, acks=1, enable_idempotence=False)

    simulate(main)
