"""The stream to one broker, driven by a port of the test."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from simulation.model_cluster import Fate
from tailrace.client.accumulator import Accumulator, Pending
from tailrace.client.delivery import BatchOutcome
from tailrace.client.sender import GATHER_MAX_MS, GATHER_MS, SUSPECT_MS, Sender, Sent
from tailrace.client.settings import ProducerSettings
from tailrace.errors import RequestTimedOut, TailraceError
from tailrace.metrics.values import ProducerCounts
from tailrace.model import TopicPartition
from tailrace.v1 import broker_pb2 as pb

PARTITION = TopicPartition("t", 0)


class Port:
    """Hands out the batches it is given, and notes what becomes of them."""

    def __init__(self, world: Any, **settings: Any) -> None:
        self.settings = ProducerSettings(enable_idempotence=False, **settings)
        self.accumulator = Accumulator(self.settings, BatchOutcome)
        self.sender = Sender(
            self,
            self.settings,
            broker=0,
            address=world.cluster.brokers[0].address,
            network=world.host,
            clock=world.clock,
            counts=ProducerCounts(),
        )
        self.offsets: list[int] = []
        self.errors: list[TailraceError] = []
        self.suspicions = 0
        self.task = world.processes["client"].spawn("sender", self.sender.run())

    def put(self, number: int) -> None:
        queue = self.accumulator.queue(PARTITION)
        for _ in range(number):
            self.accumulator.open_batch(queue, b"x", None, None, 1, size=70, now_ms=0)
        self.sender.ready[PARTITION] = queue
        self.sender.wake.set()

    def take_for(self, sender: Sender) -> list[Pending[BatchOutcome]]:
        batch = self.accumulator.take(self.accumulator.queue(PARTITION), 0, leader_epoch=-1)
        if batch is None:
            sender.ready.clear()
            return []
        return [batch]

    def answered(self, sent: Sent, part: pb.PartitionProduced, at: int) -> None:
        self.accumulator.acknowledged(sent.batch)
        self.offsets.append(part.batches[0].base_offset)
        self.put(0)

    def unanswered(self, sent: Sent, error: TailraceError) -> None:
        self.errors.append(error)
        self.accumulator.unanswered(sent.batch, error, now_ms=0, pause_ms=0)
        self.put(0)

    def suspect(self) -> None:
        self.suspicions += 1

    def pause_ms(self, attempts: int) -> int:
        return 10 * attempts


def test_requests_go_out_in_order_and_no_more_than_allowed(simulate: Any) -> None:
    async def main(world: Any) -> None:
        world.cluster.create("t")
        world.cluster.commit_lag_s = lambda: 0.5
        port = Port(world, max_in_flight_requests_per_connection=2)
        assert port.sender.gather(world.clock.monotonic_ms()) == 0
        port.put(3)
        await asyncio.sleep(0.2)
        assert world.cluster.requests == 2
        now_ms = world.clock.monotonic_ms()
        assert port.sender.gather(now_ms) <= now_ms + GATHER_MS
        await asyncio.sleep(2)
        assert port.offsets == [0, 1, 2]

    simulate(main)


@pytest.mark.parametrize(("lag_s", "gather_ms"), [(0.0, 5), (0.04, 80), (0.5, 500)])
def test_the_longer_a_broker_takes_the_more_gathers(
    simulate: Any, lag_s: float, gather_ms: int
) -> None:
    """Over hundreds of partitions a busy broker got batches of a record or two each."""

    async def main(world: Any) -> None:
        world.cluster.create("t")
        world.cluster.commit_lag_s = lambda: lag_s
        port = Port(world, max_in_flight_requests_per_connection=1)
        for _ in range(40):
            port.put(1)
            await asyncio.sleep(lag_s + 0.05)
        world.cluster.commit_lag_s = lambda: 1.0
        port.put(1)
        await asyncio.sleep(0.01)
        now_ms = world.clock.monotonic_ms()
        waits_ms = port.sender.gather(now_ms) - now_ms + 10
        assert GATHER_MS <= waits_ms <= GATHER_MAX_MS
        assert waits_ms == pytest.approx(gather_ms, abs=20)

    simulate(main)


def test_what_a_broken_stream_carried_comes_back_and_goes_again(simulate: Any) -> None:
    async def main(world: Any) -> None:
        world.cluster.create("t")
        fates = [Fate.SERVED, Fate.LOST]
        world.cluster.fate = lambda: fates.pop(0) if fates else Fate.SERVED
        port = Port(world)
        port.put(4)
        await asyncio.sleep(1)
        assert len(set(port.offsets)) == 4
        assert len(port.errors) >= 1

    simulate(main)


def test_a_broker_that_does_not_answer_is_suspected_and_then_left(simulate: Any) -> None:
    async def main(world: Any) -> None:
        world.cluster.create("t")
        world.cluster.fate = lambda: Fate.IGNORED
        port = Port(world, request_timeout_ms=5_000)
        port.put(1)
        await asyncio.sleep(SUSPECT_MS / 1000 - 0.1)
        assert port.suspicions == 0
        await asyncio.sleep(0.3)
        assert port.suspicions == 1
        world.cluster.fate = lambda: Fate.SERVED
        await asyncio.sleep(4)
        assert [type(each) for each in port.errors] == [RequestTimedOut]
        assert port.offsets == [1], "it was appended twice: this producer has no numbers"

    simulate(main)


def test_a_broker_that_moves_is_followed_at_once(simulate: Any) -> None:
    async def main(world: Any) -> None:
        cluster = world.cluster
        cluster.create("t")
        port = Port(world)
        port.put(1)
        await asyncio.sleep(0.5)
        host = cluster.brokers[0].server.host
        await cluster.brokers[0].server.stop(grace_ms=0)
        port.put(1)
        await asyncio.sleep(5)
        assert port.offsets == [0]
        await cluster.brokers[0].start(host, "b0:0")
        port.sender.move_to(cluster.brokers[0].address)
        port.sender.move_to(cluster.brokers[0].address)
        await asyncio.sleep(0.01)
        assert port.offsets == [0, 1]

    simulate(main)


def test_a_sender_above_its_quota_waits_and_sends_one_at_a_time(simulate: Any) -> None:
    async def main(world: Any) -> None:
        world.cluster.create("t")
        world.cluster.throttle_ms = 2_000
        port = Port(world)
        port.put(4)
        await asyncio.sleep(1.5)
        # They were on their way before the first answer said so.
        assert (world.cluster.requests, port.offsets) == (4, [0, 1, 2, 3])
        port.put(3)
        await asyncio.sleep(0.3)
        assert world.cluster.requests == 4
        await asyncio.sleep(2)
        assert world.cluster.requests == 5
        world.cluster.throttle_ms = 0
        await asyncio.sleep(4)
        assert port.offsets == list(range(7))

    simulate(main)
