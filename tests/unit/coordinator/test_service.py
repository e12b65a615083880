"""GroupService as clients meet it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tailrace.coordinator import service
from tailrace.coordinator.service import COMMITS_PER_MESSAGE_MAX, _host
from tailrace.transport import methods
from tailrace.transport.wire import code_name
from tailrace.v1 import common_pb2
from tailrace.v1 import group_pb2 as pb
from unit.coordinator.world import TOPIC, World, simulate


async def _stable(world: World, group: str) -> Any:
    joined = await world.join(group, client_id="me")
    await world.call(
        methods.GROUP_SYNC,
        pb.SyncGroupRequest(
            group=group,
            generation=joined.generation,
            member_id=joined.member_id,
            assignments=[pb.MemberAssignment(member_id=joined.member_id, assignment=b"all")],
        ),
    )
    return joined


def test_a_rebalance_is_announced_the_moment_it_starts() -> None:
    async def main(world: World) -> None:
        joined = await _stable(world, "g")
        assert [each.metadata for each in joined.members] == [b"m"]
        heard: list[tuple[float, Any]] = []

        async def beat() -> None:
            channel = world.host.channel(world.metadata.picture.coordinator_of("g"))
            stream = channel.open(methods.GROUP_HEARTBEAT)
            await stream.send(
                pb.HeartbeatRequest(
                    group="g", generation=joined.generation, member_id=joined.member_id
                )
            )
            while (told := await stream.recv()) is not None:
                heard.append((world.loop.time(), told))

        world.process.spawn("beat", beat())
        await asyncio.sleep(1)
        assert [(each.error, each.generation, each.pushed) for _, each in heard] == [(0, 1, False)]
        began_s = world.loop.time()
        waiting = world.loop.create_task(world.join("g"))
        await asyncio.sleep(0.5)
        at_s, told = heard[1]
        assert at_s - began_s < 0.1
        assert (code_name(told.error), told.pushed) == ("REBALANCE_IN_PROGRESS", True)
        await world.cluster.coordinators[0].stop()
        await asyncio.sleep(0.5)
        assert code_name(heard[2][1].error) == "NOT_COORDINATOR"
        waiting.cancel()

    simulate(main)


def test_groups_are_listed_described_and_deleted() -> None:
    async def main(world: World) -> None:
        joined = await _stable(world, "busy")
        await world.commit("idle", 4)
        await world.commit("reader", 4, kind="reader")
        address = world.metadata.picture.coordinator_of("busy")
        listed = await world.call_at(address, methods.GROUP_LIST, pb.ListGroupsRequest())
        assert [(each.group, each.state, each.kind, each.members) for each in listed.groups] == [
            ("busy", "Stable", "consumer", 1),
            ("idle", "Empty", "consumer", 0),
            ("reader", "Empty", "reader", 0),
        ]
        listed = await world.call_at(
            address, methods.GROUP_LIST, pb.ListGroupsRequest(states=["Stable"])
        )
        assert [each.group for each in listed.groups] == ["busy"]
        names = ["busy", "nobody"]
        found = await world.call(methods.GROUP_DESCRIBE, pb.DescribeGroupsRequest(groups=names))
        busy, nobody = found.groups
        assert (busy.state, busy.protocol, busy.generation) == ("Stable", "range", 1)
        (member,) = busy.members
        assert (member.member_id, member.client_id, member.assignment) == (
            joined.member_id,
            "me",
            b"all",
        )
        assert code_name(nobody.error) == "GROUP_NOT_FOUND"
        request = pb.DeleteGroupsRequest(groups=["busy", "idle", "nobody"])
        deleted = await world.call(methods.GROUP_DELETE, request)
        assert [code_name(each.error) for each in deleted.groups] == [
            "GROUP_NOT_EMPTY",
            "",
            "GROUP_NOT_FOUND",
        ]
        assert await world.position("idle") == -1
        left = await world.call(
            methods.GROUP_LEAVE,
            pb.LeaveGroupRequest(
                group="busy",
                members=[
                    pb.LeavingMember(member_id=joined.member_id),
                    pb.LeavingMember(member_id="stranger"),
                ],
            ),
        )
        assert [code_name(each.error) for each in left.members] == ["", "UNKNOWN_MEMBER"]

    simulate(main)


def test_positions_come_with_all_that_was_stored() -> None:
    async def main(world: World) -> None:
        request = pb.CommitOffsetsRequest(
            group="g",
            generation=-1,
            offsets=[
                pb.OffsetToCommit(topic=TOPIC, offset=7, leader_epoch=3, metadata="mine"),
                pb.OffsetToCommit(topic="gone", offset=7),
                # Without an epoch: none is known, which is not the first.
                pb.OffsetToCommit(topic=TOPIC, partition=1, offset=9),
            ],
        )
        answer = await world.call(methods.GROUP_COMMIT_OFFSETS, request)
        assert [code_name(each.error) for each in answer.partitions] == ["", "UNKNOWN_TOPIC", ""]
        wanted = [common_pb2.TopicPartition(topic=TOPIC, partition=each) for each in (0, 1)]
        found = await world.call(
            methods.GROUP_FETCH_OFFSETS, pb.FetchOffsetsRequest(group="g", partitions=wanted)
        )
        first, second = found.offsets
        assert (first.offset, first.leader_epoch, first.metadata) == (7, 3, "mine")
        assert first.topic_id == world.metadata.picture.topics[TOPIC].topic_id
        assert first.commit_ms > 0
        assert (second.offset, second.leader_epoch) == (9, -1)
        gone = await world.call(
            methods.GROUP_DELETE_OFFSETS, pb.DeleteOffsetsRequest(group="g", partitions=wanted)
        )
        assert [each.error for each in gone.partitions] == [0, 0]
        assert await world.position("g") == -1

    simulate(main)


def test_what_makes_no_sense_is_refused() -> None:
    async def main(world: World) -> None:
        await world.commit("g", 1)
        twice = [pb.OffsetToCommit(topic=TOPIC, offset=1)] * 2
        for request in (
            pb.CommitOffsetsRequest(group="g", generation=-1, offsets=twice),
            pb.CommitOffsetsRequest(
                group="g", generation=-1, offsets=[pb.OffsetToCommit(topic="/")]
            ),
        ):
            answer = await world.call(methods.GROUP_COMMIT_OFFSETS, request)
            assert code_name(answer.error) == "INVALID_REQUEST"
        answer = await world.join("g", client_id="x" * 999)
        assert code_name(answer.error) == "INVALID_REQUEST"
        answer = await world.join("g", member_id="stranger")
        assert code_name(answer.error) == "UNKNOWN_MEMBER"
        answer = await world.call(
            methods.GROUP_SYNC, pb.SyncGroupRequest(group="g", member_id="stranger")
        )
        assert code_name(answer.error) == "UNKNOWN_MEMBER"
        bad = common_pb2.TopicPartition(topic="/", partition=0)
        answer = await world.call(
            methods.GROUP_FETCH_OFFSETS, pb.FetchOffsetsRequest(group="g", partitions=[bad])
        )
        assert code_name(answer.error) == "INVALID_REQUEST"

    simulate(main)


@pytest.mark.parametrize(
    ("peer", "host"),
    [
        ("ipv4:10.0.0.1:4711", "10.0.0.1"),
        ("ipv6:[::1]:4711", "::1"),
        ("unix:/x", "unix:/x"),
        ("", ""),
    ],
)
def test_a_host_is_shown_without_what_nobody_needs(peer: str, host: str) -> None:
    assert _host(peer) == host


def test_commits_on_a_stream_are_answered_one_by_one() -> None:
    async def main(world: World) -> None:
        await world.commit("g", 1)
        answers: dict[int, Any] = {}
        wanted = 300

        async def commit_all() -> None:
            channel = world.host.channel(world.metadata.picture.coordinator_of("g"))
            stream = channel.open(methods.GROUP_STREAM_COMMITS)

            async def read() -> None:
                while (told := await stream.recv()) is not None:
                    answers[told.correlation] = told.result

            reading = world.process.spawn("read answers", read())
            for number in range(wanted):
                offset = pb.OffsetToCommit(topic="gone" if number == 7 else TOPIC, offset=number)
                commit = pb.CommitOffsetsRequest(
                    group="" if number == 8 else "g",
                    generation=3 if number == 9 else -1,
                    member_id="x" if number == 9 else "",
                    offsets=[offset, offset] if number == 10 else [offset],
                )
                await stream.send(pb.StreamCommitsRequest(correlation=number, commit=commit))
            await stream.finish()
            await reading
            await channel.close()

        await world.process.spawn("commit", commit_all())
        assert len(answers) == wanted
        bad = {number: each for number, each in answers.items() if each.error}
        assert {number: code_name(each.error) for number, each in bad.items()} == {
            8: "INVALID_GROUP",
            9: "UNKNOWN_MEMBER",
            10: "INVALID_REQUEST",
        }
        assert code_name(answers[7].partitions[0].error) == "UNKNOWN_TOPIC"
        assert await world.position("g") == wanted - 1

    simulate(main)


def test_commits_of_many_groups_in_one_message_are_answered_together() -> None:
    async def main(world: World) -> None:
        await world.commit("g", 1)
        address = world.metadata.picture.coordinator_of("g")
        mine = [
            name
            for name in (f"many-{number}" for number in range(200))
            if world.metadata.picture.coordinator_of(name) == address
        ]
        foreign = next(
            (
                name
                for name in (f"many-{number}" for number in range(200))
                if world.metadata.picture.coordinator_of(name) != address
            ),
            "",
        )
        names = [*mine, foreign]
        for name in mine:
            # Until its shard has been read.
            await world.commit(name, 1)

        def message(number: int) -> pb.StreamCommitsRequest:
            commits = [
                pb.CommitOffsetsRequest(
                    group=name,
                    generation=-1,
                    offsets=[pb.OffsetToCommit(topic=TOPIC, offset=number)],
                )
                for name in names
            ]
            commits[1].offsets.add(topic="gone")
            return pb.StreamCommitsRequest(correlation=number, commits=commits)

        async def commit_all() -> list[pb.StreamCommitsResponse]:
            channel = world.host.channel(address)
            stream = channel.open(methods.GROUP_STREAM_COMMITS)
            for number in (5, 6):
                await stream.send(message(number))
            too_many = [pb.CommitOffsetsRequest()] * (COMMITS_PER_MESSAGE_MAX + 1)
            await stream.send(pb.StreamCommitsRequest(correlation=7, commits=too_many))
            await stream.finish()
            answers = []
            while (told := await stream.recv()) is not None:
                answers.append(told)
            await channel.close()
            return answers

        answers = await world.process.spawn("commit", commit_all())
        answers.sort(key=lambda each: each.correlation)
        assert [each.correlation for each in answers] == [5, 6, 7]
        assert code_name(answers.pop().result.error) == "INVALID_REQUEST"
        for answer in answers:
            told = {each.index: each.result for each in answer.problems}
            assert set(told) == {1, len(names) - 1}
            assert [code_name(each.error) for each in told[1].partitions] == ["", "UNKNOWN_TOPIC"]
            wanted = "NOT_COORDINATOR" if foreign else "INVALID_GROUP"
            assert code_name(told[len(names) - 1].error) == wanted
        assert [await world.position(name) for name in mine] == [6] * len(mine)

    simulate(main)


def test_beyond_a_number_of_commits_nobody_is_read_any_further_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever streams bring, the loop stays free for the lease: its owner once lost all shards."""
    monkeypatch.setattr(service, "COMMITS_IN_ALL_MAX", 50)
    streams, commits = 3, 100

    async def main(world: World) -> None:
        await world.commit("g", 1)
        coordinator = world.owner("g").coordinator
        journal = coordinator.runtime.owned[coordinator.runtime.shard_of("g")].journal
        answers: list[Any] = []

        async def commit_all() -> None:
            channel = world.host.channel(world.metadata.picture.coordinator_of("g"))
            stream = channel.open(methods.GROUP_STREAM_COMMITS)
            for number in range(commits):
                commit = pb.CommitOffsetsRequest(
                    group="g",
                    generation=-1,
                    offsets=[pb.OffsetToCommit(topic=TOPIC, offset=number)],
                )
                await stream.send(pb.StreamCommitsRequest(correlation=number, commit=commit))
            await stream.finish()
            while (told := await stream.recv()) is not None:
                answers.append(told)
            await channel.close()

        for node in world.cluster.brokers:
            node.pause()
        working = [world.process.spawn("commit", commit_all()) for _ in range(streams)]
        await asyncio.sleep(service.ROOM_WAIT_MS / 2_000)
        assert 50 <= journal.parked < 50 + streams
        # It may be but one log that does not go on: others are not kept waiting for ever.
        await asyncio.sleep(service.ROOM_WAIT_MS / 1_000)
        assert 50 + streams <= journal.parked < 50 + 2 * streams
        for node in world.cluster.brokers:
            node.resume()
        await asyncio.wait(working)
        assert [each.result.error for each in answers] == [0] * streams * commits
        assert await world.position("g") == commits - 1

    simulate(main)


def test_a_member_that_comes_back_with_too_much_ends_nothing_but_itself() -> None:
    """No record holds that: the coordinator must not die of it, with all its other groups."""

    async def main(world: World) -> None:
        joined = await _stable(world, "g")
        large = [pb.GroupProtocol(name="range", metadata=b"x" * (8 << 20))]
        async with asyncio.timeout(60):
            again = await world.join("g", member_id=joined.member_id, protocols=large)
            assert code_name(again.error) == "GROUP_FULL"
            assert (await world.commit("other", 5)).error == 0

    simulate(main)
