"""Where partitions begin: as committed, as the policy says, or with an error."""

from __future__ import annotations

from typing import Any

import pytest

from tailrace.client.fetch_plan import EARLIEST, UNDECIDED, FetchPlan
from tailrace.client.starting import StartingPositions
from tailrace.errors import InvalidGroup, NoOffset, UnknownTopicId
from tailrace.model import TopicPartition
from tailrace.runtime import Tasks
from unit.client.test_consumer import fill, in_group, numbers, values

A = TopicPartition("t", 0)


@pytest.mark.parametrize("policy", [EARLIEST, "none"])
async def test_without_a_group_the_policy_decides(policy: str) -> None:
    plan = FetchPlan(bytes_max=1 << 20, topic_timeout_ms=1, jitter=lambda: 1.0)
    starting = StartingPositions(plan, None, policy, on_found=lambda: found.append(1))
    found: list[int] = []
    starting.add([A])
    assert plan.readings[A].wanted == UNDECIDED

    tasks = Tasks(lambda _, error: found.append(-1))
    tasks.spawn("start", starting.run())
    await tasks.wait(timeout_s=0.05)
    await tasks.close()
    assert found == [1]
    assert plan.readings[A].wanted == (policy if policy != "none" else UNDECIDED)
    assert isinstance(plan.readings[A].problem, NoOffset) == (policy == "none")


def test_a_committed_offset_of_another_topic_of_that_name_is_told(simulate: Any) -> None:
    async def main(world: Any) -> None:
        world.cluster.create("t", 1)
        fill(world, 0, numbers(0, 5))
        consumer = in_group(world)
        await consumer.subscribe(["t"])
        await values(consumer, 5)
        await consumer.close()
        world.cluster.delete("t")
        world.cluster.create("t", 1)
        fill(world, 0, numbers(0, 9))
        consumer = in_group(world)
        await consumer.subscribe(["t"])
        with pytest.raises(UnknownTopicId):
            await consumer.poll(timeout_ms=10_000)
        await consumer.seek_to_beginning()
        assert await values(consumer, 9) == numbers(0, 9)
        await consumer.close()

    simulate(main)


async def test_what_can_never_be_found_stops_the_partition() -> None:
    class Refusing:
        async def committed(self, *_: Any, **__: Any) -> Any:
            raise InvalidGroup("no such name")

    plan = FetchPlan(bytes_max=1 << 20, topic_timeout_ms=1, jitter=lambda: 1.0)
    found: list[int] = []
    refusing: Any = Refusing()
    starting = StartingPositions(plan, refusing, EARLIEST, on_found=lambda: found.append(1))
    starting.add([A])

    tasks = Tasks(lambda _, error: found.append(-1))
    tasks.spawn("start", starting.run())
    await tasks.wait(timeout_s=0.05)
    await tasks.close()
    assert (found, isinstance(plan.readings[A].problem, InvalidGroup)) == ([1], True)
