"""Runs go into batches as their records would one by one."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.client.accumulator import Accumulator, Pending, Queue
from tailrace.client.delivery import BatchOutcome, Delivery
from tailrace.client.filling import Filling
from tailrace.client.handing import Run
from tailrace.client.lifetime import Lifetime
from tailrace.client.partitioner import Partitioner, by_key
from tailrace.client.settings import ProducerSettings
from tailrace.client.spreading import TopicQueues
from tailrace.errors import BatchTooLarge, BufferFull, ClientClosed, UnknownTopic
from tailrace.model import TopicPartition
from tailrace.record.view import BatchView


class Bench:
    """A producer's buffer without the rest of it."""

    def __init__(self, *, partitioner: Partitioner = by_key, **settings: Any) -> None:
        self.settings = ProducerSettings(**settings)
        self.accumulator = Accumulator(self.settings, BatchOutcome)
        self.accumulator.begin_epoch(7, 0)
        self.known = TopicQueues("t", partitioner, Random(1))
        self.known.queues = [self.accumulator.queue(TopicPartition("t", n)) for n in range(2)]
        self.lifetime = Lifetime("producer")
        self.waits: list[int] = []
        self.filling = Filling(
            self.accumulator,
            {"t": self.known},
            self.lifetime,
            buffer_memory=self.settings.buffer_memory,
            ready_for=self.ready_for,
            open_batch=self.open_batch,
        )

    async def ready_for(self, topic: str, size: int) -> TopicQueues:
        self.waits.append(size)
        if topic != "t":
            raise UnknownTopic(topic)
        if not self.accumulator.has_room(size):
            raise BufferFull("full")
        return self.known

    def open_batch(
        self,
        known: TopicQueues,
        queue: Queue[BatchOutcome],
        value: bytes,
        time_ms: int,
        size: int,
    ) -> Pending[BatchOutcome]:
        if queue is known.sticky:
            queue = known.choose()
            if batch := self.accumulator.add(queue, value, None, None, time_ms, size):
                return batch
        return self.accumulator.open_batch(queue, value, None, None, time_ms, size, now_ms=0)

    def fill(self, values: list[bytes], topic: str = "t") -> Run:
        run = Run(topic)
        run.values.extend(values)
        run.times.extend(range(1, len(values) + 1))
        asyncio.run(self.filling.fill(run))
        assert run.values == []
        return run

    def batches(self) -> list[list[tuple[bytes | None, int]]]:
        """What is in the batches, in the order in which they were begun."""
        self.accumulator.flush()
        found = []
        for queue in self.known.queues:
            for batch in queue.batches:
                assert batch.builder is not None
                records = list(BatchView(batch.builder.build()).records())
                assert batch.count == len(records)
                assert batch.builder.size_bytes <= self.settings.batch_size or batch.count == 1
                found.append([(each.value, each.timestamp_ms) for each in records])
        return sorted(found, key=lambda each: each[0][1])


@given(st.lists(st.binary(max_size=300), max_size=60), st.integers(1_024, 4_000))
def test_a_run_is_what_its_records_are_one_by_one(values: list[bytes], batch_size: int) -> None:
    together, alone = Bench(batch_size=batch_size), Bench(batch_size=batch_size)
    run = together.fill(values)
    for number, value in enumerate(values):
        single = Run("t")
        single.values.append(value)
        single.times.append(number + 1)
        asyncio.run(alone.filling.fill(single))
    assert together.accumulator.memory_bytes == alone.accumulator.memory_bytes
    found = together.batches()
    assert found == alone.batches()
    assert [each for batch in found for each in batch] == [
        (value, number + 1) for number, value in enumerate(values)
    ]
    assert all(isinstance(run.find(number), Delivery) for number in range(len(values)))


def test_each_record_is_told_its_place_in_its_batch() -> None:
    bench = Bench(batch_size=2_000)
    run = bench.fill([bytes(100)] * 40)
    for queue in bench.known.queues:
        for batch in queue.batches:
            batch.outcome.stored(0, batch.count, base_offset=1_000)
    places = [run.find(number) for number in range(40)]
    assert all(isinstance(each, Delivery) and each.done() for each in places)
    offsets = [each.result().offset for each in places if isinstance(each, Delivery)]
    assert offsets[0] == 1_000
    assert all(now in {before + 1, 1_000} for before, now in pairwise(offsets))


def test_a_partitioner_of_its_own_is_asked_about_each() -> None:
    turns = iter(range(100))
    bench = Bench(partitioner=lambda _, __, count: next(turns) % count)
    bench.fill([b"a", b"b", b"c", b"d"])
    assert bench.batches() == [[(b"a", 1), (b"c", 3)], [(b"b", 2), (b"d", 4)]]


def test_a_partitioner_that_raises_fails_its_record_and_no_other() -> None:
    """It hung the producer: nothing after that record was handed over, and no error was told."""

    def moody(_: str, __: bytes | None, count: int) -> int:
        if next(turns) == 1:
            raise KeyError("no idea")
        return 0

    turns = iter(range(3))
    run = Bench(partitioner=moody).fill([b"a", b"b", b"c"])
    assert isinstance(run.find(0), Delivery)
    assert isinstance(run.find(1), KeyError)
    assert isinstance(run.find(2), Delivery)


def test_one_that_is_too_large_is_refused_alone_and_a_full_buffer_one_by_one() -> None:
    bench = Bench(max_request_size=2_000, batch_size=2_000)
    run = bench.fill([b"a", bytes(5_000), b"c"])
    assert isinstance(run.find(1), BatchTooLarge)
    assert [isinstance(run.find(each), Delivery) for each in (0, 2)] == [True, True]
    small = Bench(buffer_memory=2_100, batch_size=1_024)
    run = small.fill([bytes(500)] * 5)
    assert [type(run.find(each)) for each in range(5)] == [Delivery] * 3 + [BufferFull] * 2
    assert small.accumulator.memory_bytes <= 2_100


@pytest.mark.parametrize("what", ["unknown", "closed"])
def test_what_no_record_can_survive_ends_the_whole_run(what: str) -> None:
    bench = Bench()
    if what == "closed":
        bench.lifetime.end()
    run = bench.fill([b"a", b"b"], "other" if what == "unknown" else "t")
    wanted = UnknownTopic if what == "unknown" else ClientClosed
    assert [type(run.find(each)) for each in range(2)] == [wanted, wanted]
    assert len(bench.waits) <= 1
