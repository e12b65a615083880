"""Members that come, go, hang and lose their coordinator: at most one owner in a generation."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from simulation.fabric import Weather
from tailrace.client.consumer import ConsumerCore
from tailrace.client.group_member import OffsetAndMetadata
from tailrace.errors import CommitFailed, FencedInstance, UnknownTopic, WokenUp
from tailrace.model import TopicPartition
from unit.client.test_consumer import Listener, fill, in_group, numbers, until_calm, values

A = TopicPartition("t", 0)


def test_a_coordinator_that_hangs_is_left_for_its_successor(simulate: Any) -> None:
    async def main(world: Any) -> None:
        world.cluster.create("t", 1)
        consumer, listener = in_group(world), Listener()
        await consumer.subscribe(["t"], listener)
        await until_calm(consumer, partitions=1)
        world.processes["g200"].pause()
        await asyncio.sleep(2)
        world.cluster.move_groups(201)
        await asyncio.sleep(5)
        await consumer.commit(timeout_ms=5_000)
        await asyncio.sleep(5)
        assert len(world.cluster.coordinators.groups["g"].members) == 1, "heartbeats go there"
        assert [what for what, _ in listener.told] == ["assigned"]
        await consumer.close()

    simulate(main)


def test_a_second_process_of_a_static_name_fences_the_first(simulate: Any) -> None:
    async def main(world: Any) -> None:
        world.cluster.create("t", 1)
        first = in_group(world, group_instance_id="one")
        await first.subscribe(["t"])
        await until_calm(first, partitions=1)
        second = in_group(world, group_instance_id="one")
        await second.subscribe(["t"])
        await asyncio.sleep(1)
        with pytest.raises(FencedInstance):
            await first.poll(timeout_ms=10_000)
        with pytest.raises(FencedInstance):
            await first.commit({A: OffsetAndMetadata(1)})
        await until_calm(second, partitions=1)
        await first.close()
        await second.close()

    simulate(main)


@pytest.mark.parametrize("strategy", ["cooperative-sticky", "range"])
@pytest.mark.parametrize("seed", range(6))
def test_every_record_is_processed_and_none_twice_but_after_a_crash(
    simulate: Any, seed: int, strategy: str
) -> None:
    """Members crash, hang, leave and come; coordinators move; each commits what it processed."""

    async def main(world: Any) -> None:
        run = Turmoil(world, strategy)
        await run.play()

    simulate(main, seed=seed)


class Turmoil:
    """A group with 12 partitions whose members come and go."""

    partitions = 12

    def __init__(self, world: Any, strategy: str) -> None:
        self.world = world
        self.strategy = strategy
        self.rng = world.loop.fork_rng("turmoil")
        self.processed: dict[tuple[int, int], int] = {}
        self.again = 0
        self.crashes = 0
        self.in_doubt = 0
        self.members: list[tuple[ConsumerCore, asyncio.Task[None]]] = []
        self.is_over = False

    async def play(self) -> None:
        world = self.world
        world.cluster.create("t", self.partitions)
        written = [0] * self.partitions
        for step in range(60):
            for _ in range(3 if step < 50 else 0):
                number = self.rng.randrange(self.partitions)
                fill(world, number, numbers(written[number], written[number] + 3), each=3)
                written[number] += 3
            if len(self.members) < 2 or (step < 50 and self.rng.random() < 0.15):
                await self.add()
            chance = self.rng.random()
            if step < 50 and chance < 0.1 and self.members:
                await self.crash()
            elif step < 50 and chance < 0.15:
                world.cluster.move_groups(self.rng.choice([200, 201]))
            await asyncio.sleep(0.4)
        for _ in range(100):
            if len(self.processed) == sum(written):
                break
            await asyncio.sleep(0.5)
        assert len(self.processed) == sum(written), "every record was processed"
        assert self.again <= self.in_doubt, "again only what a crashed one had not committed"
        self.is_over = True
        for consumer, task in self.members:
            consumer.wakeup()
            await asyncio.wait([task])
            task.result()

    async def add(self) -> None:
        consumer = in_group(
            self.world,
            enable_auto_commit=False,
            partition_assignment_strategy=self.strategy,
            max_poll_records=5,
        )
        await consumer.subscribe(["t"])
        self.members.append((consumer, asyncio.ensure_future(self.work(consumer))))

    async def crash(self) -> None:
        """It ends without a word; what it processed since its last commit is in doubt."""
        consumer, task = self.members.pop(self.rng.randrange(len(self.members)))
        self.crashes += 1
        self.in_doubt += 5
        task.cancel()
        await asyncio.wait([task])
        member = consumer._member
        assert member is not None
        await member._tasks.close()
        await consumer._tasks.close()
        consumer._lifetime.end()

    async def work(self, consumer: ConsumerCore) -> None:
        try:
            while not self.is_over:
                records = await consumer.poll(timeout_ms=1_000)
                for record in records:
                    place = (record.partition, record.offset)
                    self.again += place in self.processed
                    self.processed[place] = self.processed.get(place, 0) + 1
                try:
                    if records:
                        await consumer.commit(timeout_ms=20_000)
                except CommitFailed:
                    self.in_doubt += len(records)
        except WokenUp:
            pass
        await consumer.close()


def test_commits_in_the_middle_of_a_rebalance_are_taken(simulate: Any) -> None:
    """A cooperative member owns what it keeps: its commits wait for the new generation."""

    async def main(world: Any) -> None:
        world.cluster.create("t", 2)
        fill(world, 0, numbers(0, 50))
        first = in_group(world, enable_auto_commit=False)
        await first.subscribe(["t"])
        await until_calm(first, partitions=2)
        await first.seek_to_beginning()
        second = in_group(world, enable_auto_commit=False)
        await second.subscribe(["t"])
        done = 0
        while done < 50:
            found = await values(first, 1, max_records=1) if A in first.assignment() else []
            found = found or await values(second, 1, max_records=1)
            done += len(found)
            owner = first if A in first.assignment() else second
            await owner.commit(timeout_ms=5_000)
        assert world.cluster.coordinators.groups["g"].offsets[A].offset == 50
        await first.close()
        await second.close()

    simulate(main)


@pytest.mark.parametrize(("strategy", "is_taken"), [("cooperative-sticky", True), ("range", False)])
def test_while_the_leader_of_a_group_hangs_who_stays_reads_and_commits(
    simulate: Any, strategy: str, is_taken: bool
) -> None:
    """Nobody has an assignment for as long as a dead leader's session lasts."""

    async def main(world: Any) -> None:
        world.cluster.create("t", 1)
        fill(world, 0, numbers(0, 50))
        given: Any = {"enable_auto_commit": False, "partition_assignment_strategy": strategy}
        first = in_group(world, **given)
        await first.subscribe(["t"])
        await until_calm(first, partitions=1)
        await first.seek_to_beginning()
        assert len(await values(first, 10, max_records=10)) == 10
        world.cluster.coordinators.assigning.clear()
        second = in_group(world, **given)
        await second.subscribe(["t"])
        group = world.cluster.coordinators.groups["g"]
        while group.state != "CompletingRebalance":
            await first.poll(timeout_ms=10, max_records=1)
        began_ms = world.loop.now_ms
        if is_taken:
            for _ in range(50):
                await first.poll(timeout_ms=10, max_records=1)
                await first.commit(timeout_ms=5_000)
            assert group.state == "CompletingRebalance"
            assert group.offsets[A].offset == 50
            assert world.loop.now_ms - began_ms < 3_000
        else:
            with pytest.raises(CommitFailed):
                await first.commit({A: OffsetAndMetadata(10)}, timeout_ms=5_000)
        world.cluster.coordinators.assigning.set()
        await first.close()
        await second.close()

    simulate(main)


def test_a_coordinator_that_has_not_heard_of_the_topic_is_asked_again(simulate: Any) -> None:
    async def main(world: Any) -> None:
        world.cluster.create("t", 1)
        consumer = in_group(world, enable_auto_commit=False)
        await consumer.subscribe(["t"])
        await until_calm(consumer, partitions=1)
        world.cluster.coordinators.behind = 3
        await consumer.commit({A: OffsetAndMetadata(7)})
        assert world.cluster.coordinators.groups["g"].offsets[A].offset == 7
        world.cluster.coordinators.behind = 10**6
        with pytest.raises(UnknownTopic):
            await consumer.commit({A: OffsetAndMetadata(8)})
        await consumer.close()

    simulate(main)


def test_a_commit_tells_what_the_coordinator_said_last(simulate: Any) -> None:
    async def main(world: Any) -> None:
        world.cluster.create("t", 1)
        consumer = in_group(world, enable_auto_commit=False)
        await consumer.subscribe(["t"])
        await until_calm(consumer, partitions=1)
        world.cluster.coordinators.behind = 10**6
        # An attempt that begins when the time is over gets no answer.
        world.network.weather = Weather(latency_us=(2_000, 2_000))
        for timeout_ms in range(100, 1_000, 100):
            with pytest.raises(UnknownTopic):
                await consumer.commit({A: OffsetAndMetadata(8)}, timeout_ms=timeout_ms)
        await consumer.close()

    simulate(main)


def test_a_deleted_topic_is_given_up_at_once_and_not_committed(simulate: Any) -> None:
    async def main(world: Any) -> None:
        world.cluster.create("t", 1)
        world.cluster.create("u", 1)
        for topic in ("t", "u"):
            fill(world, 0, numbers(0, 5), topic=topic)
        consumer, listener = in_group(world), Listener()
        await consumer.subscribe(["t", "u"], listener)
        assert len(await values(consumer, 10)) == 10
        world.cluster.delete("u")
        await until_calm(consumer, partitions=1)
        assert listener.now == {A}
        stored = world.cluster.coordinators.groups["g"].offsets
        assert {each: stored[each].offset for each in stored} == {A: 5}
        await consumer.close()

    simulate(main)
