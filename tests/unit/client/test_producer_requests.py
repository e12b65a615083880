"""What goes together in a request of the producer, and what is done when that is too much."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from simulation.model_cluster import Fate
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


@pytest.mark.parametrize(("partitions", "batches_max"), [(300, 3), (3, 30)])
def test_over_many_partitions_the_answer_alone_sends_nothing(
    simulate: Any, partitions: int, batches_max: int
) -> None:
    """Half of the batches, and of the broker's work: they gather for as long again."""

    async def main(world: Any) -> None:
        world.cluster.create("t", partitions)
        world.cluster.commit_lag_s = lambda: 0.05
        producer = world.producer()
        for number in range(100 * partitions):
            await producer.send("t", b"x", partition=number % partitions)
            if number % partitions == 0:
                await asyncio.sleep(0.002)
        began_ms = world.loop.now_ms
        await producer.flush()
        assert world.loop.now_ms - began_ms < 200
        # 0.2 s of sending, answers of 0.05.
        assert producer.counts.batches <= batches_max * partitions
        await producer.close()

    simulate(main)


def test_a_full_buffer_does_not_wait_for_more(simulate: Any) -> None:
    async def main(world: Any) -> None:
        world.cluster.create("t", 300)
        world.cluster.commit_lag_s = lambda: 0.25
        producer = world.producer(buffer_memory=1 << 20)
        for number in range(6_000):
            await producer.send("t", bytes(1_000), partition=number % 300)
        await producer.flush()
        assert producer.counts.records == 6_000
        # Six times what the buffer holds; with the wait each would take half a second more.
        assert world.loop.now_ms < 4_500
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


def _on_one_broker(world: Any, partitions: int) -> None:
    world.cluster.create("t", partitions)
    for each in world.cluster.partitions.values():
        world.cluster.move(each, 0)


def test_an_answer_that_comes_late_is_of_what_was_known_when_it_was_given(simulate: Any) -> None:
    """A batch was refused since the one before it was missing, and told so only after that one had
    gone again and was stored: that was taken for a log that had lost records, and the batch failed.
    """

    async def main(world: Any) -> None:
        cluster = world.cluster
        _on_one_broker(world, 2)
        producer = world.producer(linger_ms=20)
        await (await producer.send("t", b"opens the stream", partition=1))
        fates, lags = [Fate.PARTLY], [0.2, 0.0, 1.0]
        cluster.fate = lambda: fates.pop(0) if fates else Fate.SERVED
        cluster.commit_lag_s = lambda: lags.pop(0) if lags else 0.0
        deliveries = []
        for value in (b"refused", b"behind it"):
            deliveries.append(await producer.send("t", value, partition=0))
            # Its partition makes the answer to both wait.
            deliveries.append(await producer.send("t", b"slow", partition=1))
            await asyncio.sleep(0.06)
        assert cluster.requests == 3, "the second went before the first was answered"
        await asyncio.sleep(0.6)
        assert deliveries[0].done()
        assert not deliveries[2].done()
        await producer.flush()
        assert [each.result().offset for each in deliveries] == [0, 1, 1, 2]
        assert (await producer.state())["producer_epoch"] == 0
        await producer.close()

    simulate(main)


def test_nothing_is_sent_in_an_epoch_that_is_being_left(simulate: Any) -> None:
    """What waited to be sent again went meanwhile, and the new epoch found it on its way: that
    ended the producer."""

    async def main(world: Any) -> None:
        cluster = world.cluster
        _on_one_broker(world, 2)
        producer = world.producer()
        for number in range(2):
            await (await producer.send("t", b"first", partition=number))
        cluster.get("t", 0).forget_producers()
        cluster.controller.lag_s = lambda: 0.5
        cluster.commit_lag_s = lambda: 1.0
        fates = [Fate.REFUSED]
        cluster.fate = lambda: fates.pop(0) if fates else Fate.SERVED
        waits = await producer.send("t", b"refused", partition=1)
        await asyncio.sleep(0.02)
        forgotten = await producer.send("t", b"forgotten", partition=0)
        assert (await forgotten).offset == (await waits).offset == 1
        assert (await producer.state())["producer_epoch"] == 1
        await producer.close()

    simulate(main)
