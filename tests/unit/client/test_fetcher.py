"""Many partitions on few streams, against a model cluster, in virtual time."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from tailrace.client.fetch_plan import LATEST
from tailrace.client.fetcher import LEADERLESS_MS, Fetcher, FetchSettings
from tailrace.client.metadata import MetadataWatcher
from tailrace.model import TopicPartition
from tailrace.record.build import BatchBuilder
from tailrace.runtime import Tasks


class Harness:
    """A fetcher with what it needs around it."""

    def __init__(self, world: Any, *, bytes_max: int = 1 << 20) -> None:
        self.news = asyncio.Event()
        self.failures: list[str] = []
        self.metadata = MetadataWatcher(
            world.host, world.cluster.bootstrap, world.rng, on_change=self._changed
        )
        self.fetcher = Fetcher(
            self.metadata,
            FetchSettings(
                bytes_max=bytes_max,
                partition_bytes=1 << 18,
                min_bytes=1,
                max_wait_ms=200,
                topic_timeout_ms=5_000,
            ),
            network=world.host,
            clock=world.clock,
            rng=world.rng,
            on_news=self.news.set,
            on_failure=lambda name, error: self.failures.append(f"{name}: {error!r}"),
        )
        self.plan = self.fetcher.plan
        self.tasks = Tasks(lambda name, error: self.failures.append(f"{name}: {error!r}"))

    def _changed(self) -> None:
        self.fetcher.metadata_changed()

    async def __aenter__(self) -> Harness:
        self.tasks.spawn("metadata", self.metadata.run())
        self.tasks.spawn("fetch", self.fetcher.run())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.tasks.close()
        assert self.failures == []

    def read(self, topic: str, numbers: range, wanted: int | str = 0) -> None:
        for number in numbers:
            self.plan.seek(self.plan.add(TopicPartition(topic, number)), wanted)
        self.fetcher.poke()

    async def next(self) -> tuple[int, int]:
        while True:
            arrival = self.plan.take()
            if arrival is not None:
                assert arrival.fetched is not None
                header = arrival.fetched.header
                arrival.reading.position = header.next_offset
                for broker in self.fetcher.credit_due():
                    self.fetcher.give_credit(broker)
                return arrival.reading.partition.partition, header.base_offset
            self.news.clear()
            await self.news.wait()


def fill(world: Any, topic: str, number: int, count: int, size: int = 10) -> None:
    log = world.cluster.get(topic, number)
    for _ in range(count):
        builder = BatchBuilder()
        builder.append(bytes(size), timestamp_ms=5)
        log.store(builder.build(base_offset=log.end, leader_epoch=log.leader_epoch))
    log.commit(log.end)


def test_all_partitions_come_whole_and_in_order_while_leaders_move(simulate: Any) -> None:
    async def main(world: Any) -> None:
        cluster, rng = world.cluster, world.loop.fork_rng("disturb")
        cluster.create("t", 9)

        async def disturb() -> None:
            for _ in range(40):
                for number in range(9):
                    fill(world, "t", number, rng.randrange(5), size=2_000)
                if rng.random() < 0.5:
                    cluster.move(cluster.get("t", rng.randrange(9)), rng.choice([-1, 0, 1, 2]))
                if rng.random() < 0.2:
                    world.network.break_connections("client", f"b{rng.randrange(3)}")
                await asyncio.sleep(0.05)
            for number in range(9):
                cluster.move(cluster.get("t", number), number % 3)

        disturbing = asyncio.ensure_future(disturb())
        async with Harness(world, bytes_max=100_000) as harness:
            harness.read("t", range(9))
            due = dict.fromkeys(range(9), 0)
            await disturbing
            ends = {number: cluster.get("t", number).end for number in range(9)}
            while due != ends:
                number, offset = await harness.next()
                assert offset == due[number]
                due[number] = offset + 1
            assert len(harness.fetcher._streams) == 3, "one stream to each leader"

    simulate(main)


def test_a_seek_disturbs_no_other_partition(simulate: Any) -> None:
    async def main(world: Any) -> None:
        world.cluster.create("t", 2)
        for number in range(2):
            world.cluster.move(world.cluster.get("t", number), 1)
            fill(world, "t", number, 50, size=5_000)
        async with Harness(world) as harness:
            harness.read("t", range(2))
            first = await harness.next()
            stream = harness.fetcher._streams[1].task
            reading = harness.plan.readings[TopicPartition("t", 0)]
            harness.plan.seek(reading, 40)
            harness.fetcher.poke()
            found = [await harness.next() for _ in range(60 - (first[0] == 1))]
            assert sorted(offset for number, offset in found if number == 0) == list(range(40, 50))
            assert [offset for number, offset in found if number == 1][-1] == 49
            assert harness.fetcher._streams[1].task is stream, "the stream went on"

    simulate(main)


def test_credit_goes_back_when_another_leader_comes(simulate: Any) -> None:
    """An idle stream has all the credit; when a second one is opened it must give up half."""

    async def main(world: Any) -> None:
        world.cluster.create("t", 2)
        for number in range(2):
            world.cluster.move(world.cluster.get("t", number), 0)
        async with Harness(world, bytes_max=100_000) as harness:
            harness.read("t", range(2), LATEST)
            await asyncio.sleep(1)
            assert harness.plan.accounts[0].granted == 100_000
            world.cluster.move(world.cluster.get("t", 1), 2)
            await asyncio.sleep(1)
            for number in range(2):
                fill(world, "t", number, 100, size=5_000)
            await asyncio.sleep(1)
            assert sum(each.held for each in harness.plan.accounts.values()) < 112_000
            for _ in range(200):
                await harness.next()

    simulate(main)


def test_a_silent_leader_is_suspected_and_left(simulate: Any) -> None:
    async def main(world: Any) -> None:
        cluster = world.cluster
        cluster.create("t", 1)
        fill(world, "t", 0, 1)
        async with Harness(world) as harness:
            harness.read("t", range(1))
            await harness.next()
            world.processes["b0"].pause()
            await asyncio.sleep(30)
            cluster.alive[0] = False
            cluster.move(cluster.get("t"), 1)
            fill(world, "t", 0, 1)
            assert await harness.next() == (0, 1)

    simulate(main)


def test_partitions_that_are_added_one_after_the_other_share_from_the_start(simulate: Any) -> None:
    """The first stream is broken off in the moment it is opened: it had all the credit."""

    async def main(world: Any) -> None:
        world.cluster.create("t", 3)
        for number in range(3):
            fill(world, "t", number, 5)
        async with Harness(world, bytes_max=100_000) as harness:
            for number in range(3):
                harness.read("t", range(number, number + 1))
                for _ in range(number):
                    await asyncio.sleep(0)
            found = {await harness.next() for _ in range(15)}
            assert len(found) == 15

    simulate(main)


def test_a_leader_that_goes_away_in_the_moment_it_is_to_be_asked(simulate: Any) -> None:
    """The metadata can change between the plan and the task that does it (found by a nemesis)."""

    async def main(world: Any) -> None:
        world.cluster.create("t", 2)
        fill(world, "t", 0, 1)
        async with Harness(world) as harness:
            fetcher, metadata = harness.fetcher, harness.metadata
            await metadata.topic("t", timeout_ms=5_000)
            harness.read("t", range(1))
            harness.plan.seek(harness.plan.add(TopicPartition("t", 1)), LATEST)
            harness.plan.route(fetcher._view, now_ms=world.clock.monotonic_ms())
            fetcher._look_up()
            fetcher._serve()
            whole = metadata.picture
            metadata.picture = replace(whole, brokers={})
            await asyncio.sleep(0.1)
            metadata.picture = whole
            fetcher.metadata_changed()
            assert await harness.next() == (0, 0)
            fill(world, "t", 1, 1)
            assert await harness.next() == (1, 0)

    simulate(main)


def test_without_a_leader_for_long_another_broker_is_asked(simulate: Any) -> None:
    """Whom we follow may hear nothing any more (found by a nemesis)."""

    async def main(world: Any) -> None:
        world.cluster.create("t", 1)
        world.cluster.move(world.cluster.get("t", 0), -1)
        async with Harness(world) as harness:
            asked: list[int] = []
            harness.metadata.refresh = lambda: asked.append(world.clock.monotonic_ms())  # type: ignore[method-assign]
            await harness.metadata.topic("t", timeout_ms=5_000)
            harness.read("t", range(1))
            await asyncio.sleep(LEADERLESS_MS * 0.9 / 1000)
            assert asked == []
            await asyncio.sleep(LEADERLESS_MS * 2 / 1000)
            assert len(asked) == 2
            world.cluster.move(world.cluster.get("t", 0), 0)
            fill(world, "t", 0, 1)
            assert await harness.next() == (0, 0)

    simulate(main)


class SlowToClose:
    """A network whose channels take their time to close."""

    def __init__(self, network: Any) -> None:
        self._network = network

    def channel(self, address: str) -> Any:
        channel = self._network.channel(address)
        close = channel.close

        async def slowly() -> None:
            await asyncio.sleep(0.3)
            await close()

        channel.close = slowly
        return channel


def test_a_stream_that_is_not_wanted_while_it_ends_is_opened_again_later(simulate: Any) -> None:
    """A leader dies, another leads, then the first one again: its stream must not be lost."""

    async def main(world: Any) -> None:
        world.cluster.create("t", 1)
        log = world.cluster.get("t", 0)
        world.cluster.move(log, 0)
        async with Harness(world) as harness:
            harness.fetcher._network = SlowToClose(world.host)  # type: ignore[assignment]
            fill(world, "t", 0, 1)
            harness.read("t", range(1))
            assert await harness.next() == (0, 0)
            world.network.break_connections("client", "b0")
            await asyncio.sleep(0.1)
            world.cluster.move(log, 1)
            fill(world, "t", 0, 1)
            assert await harness.next() == (0, 1)
            world.cluster.move(log, 0)
            fill(world, "t", 0, 1)
            async with asyncio.timeout(60):
                assert await harness.next() == (0, 2)

    simulate(main)


def test_a_seek_before_the_question_is_on_its_way_is_no_failure(simulate: Any) -> None:
    """The consumer ended with KeyError('0') when a listener sought where it had just been given."""

    async def main(world: Any) -> None:
        world.cluster.create("t", 1)
        fill(world, "t", 0, 3)
        async with Harness(world) as harness:
            await harness.metadata.topic("t", timeout_ms=5_000)
            reading = harness.plan.add(TopicPartition("t", 0))
            harness.plan.seek(reading, LATEST)
            harness.plan.route(harness.fetcher._view, now_ms=world.clock.monotonic_ms())
            harness.fetcher._look_up()
            assert reading.is_looking
            # The task that asks has not begun yet.
            harness.plan.seek(reading, 1)
            harness.fetcher.poke()
            assert await harness.next() == (0, 1)

    simulate(main)


def test_a_channel_is_let_go_of_by_who_is_cancelled_twice(simulate: Any, monkeypatch: Any) -> None:
    """It was kept, and so was its connection, when a stream that was left ended with all others."""
    opened: list[str] = []
    closed: list[str] = []

    async def main(world: Any) -> None:
        kind = type(world.host.channel("b0:1"))
        close = kind.close

        async def noted(channel: Any) -> None:
            closed.append(channel.address)
            await close(channel)

        monkeypatch.setattr(kind, "close", noted)
        real = world.host.channel

        def channel(address: str) -> Any:
            opened.append(address)
            return real(address)

        monkeypatch.setattr(world.host, "channel", channel)
        world.cluster.create("t", 1)
        async with Harness(world) as harness:
            harness.read("t", range(1))
            fill(world, "t", 0, 1)
            await harness.next()
            [reading] = [
                each for each in asyncio.all_tasks() if each.get_name().startswith("fetch from")
            ]
            reading.cancel()
            # It is ending its tasks by now.
            await asyncio.sleep(0)
            reading.cancel()
            await asyncio.wait([reading])
        assert sorted(closed) == sorted(opened)

    simulate(main)
