"""Groups as an administrator sees and moves them, on shipped brokers and coordinators."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulation.loop import LoopClock
from tailrace.client.admin import AdminCore
from tailrace.client.group_admin import PositionReset, ResetTo, target
from tailrace.client.subscription import encode_assignment
from tailrace.errors import (
    GroupNotEmpty,
    GroupNotFound,
    InvalidRequest,
    TailraceError,
    UnknownTopic,
)
from tailrace.model import TopicPartition
from tailrace.transport import methods
from tailrace.v1 import group_pb2 as pb
from unit.coordinator.world import TOPIC, World, simulate

T0, T1 = TopicPartition(TOPIC, 0), TopicPartition(TOPIC, 1)


class Office:
    """A world with an administrator in it."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.admin = AdminCore(
            world.cluster.bootstrap, network=world.host, clock=LoopClock(world.loop), rng=world.rng
        )

    async def do(self, work: Any) -> Any:
        return await self.world.process.spawn("administrate", work)

    async def fails(self, work: Any) -> TailraceError:
        async def caught() -> TailraceError:
            with pytest.raises(TailraceError) as found:
                await work
            return found.value

        return await self.world.process.spawn("administrate", caught())

    async def write(self, count: int, partition: int = 0) -> None:
        process, make = self.world.cluster.producer("writer")

        async def write() -> None:
            producer: Any = make()
            for number in range(count):
                await (await producer.send(TOPIC, b"%d" % number, partition=partition))
            await producer.close()

        await process.spawn("write", write())


def office(main: Callable[[Office], Awaitable[None]], *, coordinators: int = 2) -> None:
    async def start(world: World) -> None:
        await main(Office(world))

    simulate(start, coordinators=coordinators)


def test_lag_is_told_in_records_and_in_time() -> None:
    async def main(office: Office) -> None:
        await office.write(5)
        await asyncio.sleep(3)
        await office.write(3)
        await office.world.commit("g", 2)
        found = await office.do(office.admin.describe_group("g"))
        assert (found.state, found.kind, found.lag) == ("Empty", "consumer", 6)
        position, *others = found.positions
        assert (position.offset, position.log_end, position.lag) == (2, 8, 6)
        assert 2_500 < position.lag_ms < 6_000
        assert {(each.offset, each.lag) for each in others} == {(-1, -1)}, "nobody has read them"
        await office.world.commit("g", 8)
        position = (await office.do(office.admin.describe_group("g"))).positions[0]
        assert (position.lag, position.lag_ms) == (0, 0)
        assert found.as_dict()["positions"][0]["lag"] == 6
        assert isinstance(await office.fails(office.admin.describe_group("x")), GroupNotFound)

    office(main)


def test_members_are_shown_with_what_they_read() -> None:
    async def main(office: Office) -> None:
        world = office.world
        joined = await world.join("g", client_id="c")
        assignment = encode_assignment([T1, T0])
        await world.call(
            methods.GROUP_SYNC,
            pb.SyncGroupRequest(
                group="g",
                generation=joined.generation,
                member_id=joined.member_id,
                assignments=[
                    pb.MemberAssignment(member_id=joined.member_id, assignment=assignment)
                ],
            ),
        )
        found = await office.do(office.admin.describe_group("g"))
        (member,) = found.members
        assert (member.client_id, member.partitions) == ("c", (T0, T1))
        shown = [(each.partition, each.offset, each.client_id) for each in found.positions]
        assert shown == [(0, -1, "c"), (1, -1, "c")]
        reset = office.admin.reset_offsets("g", ResetTo.EARLIEST, topics={TOPIC: None})
        assert isinstance(await office.fails(reset), GroupNotEmpty)
        results = await office.do(office.admin.delete_groups(["g", "x"]))
        assert [type(each) for each in results.values()] == [GroupNotEmpty, GroupNotFound]

    office(main)


def test_groups_of_all_coordinators_are_listed_and_deleted() -> None:
    async def main(office: Office) -> None:
        for group in ("red", "orders"):
            await office.world.commit(group, 1)
        listed = await office.do(office.admin.list_groups())
        assert [each.group for each in listed] == ["orders", "red"]
        assert {each.coordinator_id for each in listed} == {200, 201}
        assert await office.do(office.admin.list_groups(["Stable"])) == []
        assert await office.do(office.admin.delete_groups(["red"])) == {"red": None}
        await office.do(office.admin.delete_offsets("orders", [T0]))
        assert await office.do(office.admin.list_groups()) == []

    office(main)


def test_a_reset_is_a_plan_until_it_is_executed() -> None:
    async def main(office: Office) -> None:
        await office.write(4)
        await asyncio.sleep(2)
        at_ms = LoopClock(office.world.loop).wall_ms()
        await asyncio.sleep(2)
        await office.write(4)
        await office.world.commit("g", 3)
        admin = office.admin
        for to, value, new, asked in (
            (ResetTo.EARLIEST, 0, 0, 0),
            (ResetTo.LATEST, 0, 8, 8),
            (ResetTo.TIME, at_ms, 4, 4),
            (ResetTo.TIME, at_ms + 10**9, 8, 8),
            (ResetTo.OFFSET, 6, 6, 6),
            (ResetTo.SHIFT, -2, 1, 1),
            (ResetTo.SHIFT, 100, 8, 103),
            (ResetTo.SHIFT, -100, 0, -97),
        ):
            plan = await office.do(admin.reset_offsets("g", to, value))
            assert plan == [PositionReset(T0, 3, new, asked)], to
        assert await office.world.position("g") == 3
        await office.do(admin.reset_offsets("g", ResetTo.OFFSET, 6, dry_run=False))
        assert await office.world.position("g") == 6
        plan = await office.do(
            admin.reset_offsets("new", ResetTo.LATEST, topics={TOPIC: [0, 1]}, dry_run=False)
        )
        assert [(each.old, each.new) for each in plan] == [(-1, 8), (-1, 0)]
        for wrong, error in (
            (admin.reset_offsets("x", ResetTo.LATEST), GroupNotFound),
            (admin.reset_offsets("g", ResetTo.LATEST, topics={"x": None}), UnknownTopic),
            (admin.reset_offsets("g", ResetTo.LATEST, topics={TOPIC: [9]}), InvalidRequest),
        ):
            assert isinstance(await office.fails(wrong), error)

    office(main)


def test_positions_in_a_topic_that_was_made_anew_mean_nothing_there() -> None:
    async def main(office: Office) -> None:
        world, admin = office.world, office.admin
        request = pb.CommitOffsetsRequest(
            group="g",
            generation=-1,
            offsets=[
                pb.OffsetToCommit(topic=TOPIC, partition=number, offset=7, leader_epoch=-1)
                for number in (0, 2)
            ],
        )
        await world.call(methods.GROUP_COMMIT_OFFSETS, request)
        await office.do(admin.delete_topic(TOPIC))
        await world.until(lambda: TOPIC not in world.metadata.picture.topics)
        await office.do(admin.create_topic(TOPIC, partitions=1))
        await world.until(lambda: TOPIC in world.metadata.picture.topics)
        await office.write(9)
        found = await office.do(admin.describe_group("g"))
        assert [(each.partition, each.stale, each.lag) for each in found.positions] == [
            (0, True, -1),
            (2, True, -1),
        ]
        plan = await office.do(admin.reset_offsets("g", ResetTo.SHIFT, 1, dry_run=False))
        assert plan == [PositionReset(T0, -1, 1, 1)], "the old 7 was another record"
        assert await world.position("g") == 1

    office(main)


@given(
    st.sampled_from(ResetTo),
    st.integers(-(10**6), 10**6),
    st.integers(0, 1_000),
    st.integers(0, 1_000),
    st.integers(-1, 3_000),
)
def test_a_position_is_moved_to_a_place_within_the_log(
    to: ResetTo, value: int, start: int, size: int, old: int
) -> None:
    end = start + size
    new, asked = target(to, value, start=start, end=end, old=old, found=-1)
    assert start <= new <= end
    assert new == asked or not start <= asked <= end
