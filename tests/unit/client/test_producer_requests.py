"""What goes together in a request of the producer, and what is done when that is too much."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tailrace.errors import BatchTooLarge, RequestTooLarge


def test_large_batches_are_cut_for_a_topic_that_wants_small_ones(simulate: Any) -> None:
    async def main(world: Any) -> None:
        world.cluster.create("t")
        world.cluster.get("t").batch_bytes_max = 3_000
        producer = world.producer(linger_ms=5)
        deliveries = [await producer.send("t", b"%04d" % n + bytes(500)) for n in range(40)]
        await producer.flush()
        assert [each.result().offset for each in deliveries] == list(range(40))
        with pytest.raises(BatchTooLarge):
            await (await producer.send("t", bytes(5_000)))
        assert (await (await producer.send("t", b"after"))).offset == 40
        await producer.close()

    simulate(main)


def test_a_broker_that_takes_small_requests_gets_small_ones(simulate: Any) -> None:
    """What fits alone goes alone, larger batches are cut, a record that is too large fails."""

    async def main(world: Any) -> None:
        cluster = world.cluster
        cluster.create("t", 6)
        cluster.request_bytes_max = 3_000
        producer = world.producer(linger_ms=5, client_id="me")
        single = [await producer.send("t", bytes(1_500), partition=n) for n in range(6)]
        many = [await producer.send("t", bytes(500), partition=0) for _ in range(20)]
        await producer.flush()
        assert [each.result().offset for each in single] == [0] * 6
        assert [each.result().offset for each in many] == list(range(1, 21))
        with pytest.raises(RequestTooLarge):
            await (await producer.send("t", bytes(5_000), partition=1))
        assert (await (await producer.send("t", b"after", partition=1))).offset == 1
        assert set(cluster.clients) == {"me"}
        await producer.close()

    simulate(main)


def test_small_batches_of_a_partition_go_together(simulate: Any) -> None:
    async def main(world: Any) -> None:
        world.cluster.create("t")
        producer = world.producer(batch_size=2_000)
        first = await producer.send("t", b"opens the stream")
        await first
        before = world.cluster.requests
        deliveries = [await producer.send("t", bytes(1_500)) for _ in range(20)]
        await producer.flush()
        assert [each.result().offset for each in deliveries] == list(range(1, 21))
        # Five batches are on their way at most; without gathering each would be a request.
        assert world.cluster.requests - before <= 8
        await producer.close()

    simulate(main)


def test_records_over_many_partitions_gather_from_the_first_answer_on(simulate: Any) -> None:
    """Before a broker was known to be slow, it got a record of each partition every 5 ms."""

    async def main(world: Any) -> None:
        partitions, rounds = 300, 100
        world.cluster.create("t", partitions)
        world.cluster.commit_lag_s = lambda: 0.2
        producer = world.producer()
        for number in range(rounds * partitions):
            await producer.send("t", b"%d" % number, partition=number % partitions)
            if number % partitions == 0:
                await asyncio.sleep(0.004)
        await producer.flush()
        logs = world.cluster.partitions.values()
        assert {len(each.records()) for each in logs} == {rounds}
        # 0.4 s and an answer of 0.2: two or three for each partition, 80 if each round went alone.
        assert producer.counts.batches <= 4 * partitions
        await producer.close()

    simulate(main)


def test_one_that_is_refused_for_good_does_not_take_others_with_it(simulate: Any) -> None:
    """A broker that refuses a batch refuses the whole request, whatever else is in it."""

    async def main(world: Any) -> None:
        world.cluster.create("t")
        world.cluster.get("t").batch_bytes_max = 2_000
        producer = world.producer(batch_size=3_000)
        await (await producer.send("t", b"opens the stream"))
        sizes = [1_000, 2_500, 1_000, 2_500, 1_000]
        deliveries = [await producer.send("t", bytes(size)) for size in sizes]
        await producer.flush()
        assert [each.exception() is None for each in deliveries] == [s < 2_000 for s in sizes]
        assert len(world.cluster.get("t").records()) == 4
        await producer.close()

    simulate(main)
