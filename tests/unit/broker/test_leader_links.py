"""The leader's side of a replica link: the test plays a follower, broker 2, by hand."""

from __future__ import annotations

import asyncio

import pytest

from simulation.loop import InlineBlocking
from tailrace.broker.leader_links import HELLO_TIMEOUT_MS, HIGH_WATERMARK_DELAY_MS
from tailrace.errors import Unreachable
from tailrace.model import TopicPartition
from tailrace.transport.rpc import Link
from tailrace.transport.wire import code_name, to_partition
from tailrace.v1 import broker_pb2
from tailrace.v1 import replica_pb2 as pb
from unit.broker.trio import CLUSTER_ID, T0, T1, TOPIC_ID, Trio, batch, next_offset, simulate


async def lead(trio: Trio, **settings: int) -> None:
    """Broker 0 leads with ISR (0,); brokers 1 and 2 do not run."""
    await trio.start(0, **settings)
    await trio.lead(0, 0, isr=(0,), config={"min.insync.replicas": "1"})


def position(
    log_end: int,
    *,
    last_epoch: int = -1,
    leader_epoch: int = 0,
    topic_id: str = TOPIC_ID,
    restart: bool = True,
    partition: TopicPartition = T0,
) -> pb.FollowerPosition:
    return pb.FollowerPosition(
        partition=to_partition(partition),
        topic_id=topic_id,
        leader_epoch=leader_epoch,
        log_end=log_end,
        last_epoch=last_epoch,
        restart=restart,
    )


async def report(link: Link, *positions: pb.FollowerPosition) -> None:
    frame = pb.ReplicaFrame(report=pb.FollowerReport(positions=positions))
    await link.send(frame.SerializeToString())


async def pushed(link: Link) -> tuple[pb.LeaderPartition, bytes]:
    frame = await link.recv()
    assert frame is not None
    (part,) = pb.ReplicaFrame.FromString(frame.header).push.partitions
    assert len(frame.payload) == part.size
    return part, bytes(frame.payload)


async def ends(link: Link) -> bool:
    try:
        return await link.recv() is None
    except Unreachable:
        return True


def hello(**changes: object) -> pb.ReplicaHello:
    said = pb.ReplicaHello(
        broker_id=2, broker_epoch=77, version=1, cluster_id=CLUSTER_ID, leader_id=0
    )
    said.MergeFrom(pb.ReplicaHello(**changes))  # type: ignore[arg-type]
    return said


@simulate
async def test_a_follower_of_another_cluster_or_leader_is_refused(trio: Trio) -> None:
    await lead(trio)
    for wrong in (hello(cluster_id="another"), hello(leader_id=1)):
        assert await ends(await trio.follow_by_hand(0, wrong))
    assert trio.heard("it is not a follower of this broker")


@simulate
async def test_what_is_no_hello_is_refused(trio: Trio) -> None:
    await lead(trio)
    links = trio.host.links(trio.cache())
    for header in (pb.ReplicaFrame(report=pb.FollowerReport()).SerializeToString(), b"\xff\xff"):
        link = await links.connect("b0:9093", timeout_ms=1_000)
        await link.send(header)
        assert await ends(link)


@simulate
async def test_who_says_nothing_is_hung_up_on(trio: Trio) -> None:
    await lead(trio)
    link = await trio.host.links(trio.cache()).connect("b0:9093", timeout_ms=1_000)
    began_ms = trio.loop.now_ms
    assert await ends(link)
    assert HELLO_TIMEOUT_MS <= trio.loop.now_ms - began_ms < HELLO_TIMEOUT_MS + 100


@simulate
async def test_a_follower_is_pushed_to_from_where_it_is(trio: Trio) -> None:
    await lead(trio)
    await trio.produce()
    await trio.produce()
    link = await trio.follow_by_hand(0)
    await report(link, position(3, last_epoch=0))
    part, data = await pushed(link)
    assert (part.base_offset, part.high_watermark, part.leader_epoch) == (3, 6, 0)
    assert next_offset(data) == 6
    await trio.produce()
    part, data = await pushed(link)
    assert (part.base_offset, next_offset(data)) == (6, 9)


@simulate
async def test_frames_have_a_size_and_the_rest_follows(trio: Trio) -> None:
    await lead(trio, link_frame_bytes=len(batch()) + 1)
    for _ in range(3):
        await trio.produce()
    link = await trio.follow_by_hand(0)
    await report(link, position(0))
    assert [next_offset((await pushed(link))[1]) for _ in range(3)] == [3, 6, 9]


@simulate
async def test_what_does_not_fit_into_a_frame_is_first_in_the_next(trio: Trio) -> None:
    """The rest of a frame is not offered to all others, and nobody loses its turn by that."""
    small, large = batch(1), batch(40, value=bytes(100))
    await lead(trio, link_frame_bytes=len(small) + len(large) // 2)
    await trio.lead(0, 0, isr=(0,), config={"min.insync.replicas": "1"}, partition=T1)
    for data, partition in ((small, T0), (large, T1), (small, T0), (small, T1)):
        await trio.produce(data, partition=partition)
    link = await trio.follow_by_hand(0)
    await report(link, position(0), position(0, partition=T1))
    told: list[tuple[int, int, int]] = []
    while sum(size for _, _, size in told) < 3 * len(small) + len(large):
        frame = await link.recv()
        assert frame is not None
        parts = pb.ReplicaFrame.FromString(frame.header).push.partitions
        told += [(each.partition.partition, each.base_offset, each.size) for each in parts]
    both = 2 * len(small)
    assert [each for each in told if each[2]] == [
        (0, 0, both),
        (1, 0, len(large)),
        (1, 40, len(small)),
    ]


@simulate
async def test_a_high_watermark_is_told_without_data(trio: Trio) -> None:
    await lead(trio)
    await trio.produce()
    link = await trio.follow_by_hand(0)
    await report(link, position(3, last_epoch=0))
    part, data = await pushed(link)
    assert (part.high_watermark, data) == (3, b"")


@simulate
async def test_a_high_watermark_alone_waits_a_little_for_data_to_go_with(trio: Trio) -> None:
    await trio.start(0)
    await trio.lead(0, 0, isr=(0, 2), config={"min.insync.replicas": "1"})
    link = await trio.follow_by_hand(0)
    await report(link, position(0))
    await pushed(link)

    async def produce_and_report(log_end: int) -> pb.LeaderPartition:
        hosted = trio.hosted(0)
        trio.replicas(0).append(hosted, batch(), leader_epoch=-1, acks_all=False)
        part, data = await pushed(link)
        assert next_offset(data) == log_end
        await report(link, position(log_end, last_epoch=0, restart=False))
        while hosted.machine.high_watermark < log_end:  # noqa: ASYNC110 - it has no event.
            await asyncio.sleep(0.001)
        return part

    assert (await produce_and_report(3)).high_watermark == 0
    # Data comes soon enough: it takes the high watermark along.
    assert (await produce_and_report(6)).high_watermark == 3
    moved_ms = trio.loop.now_ms
    part, data = await pushed(link)
    assert (part.high_watermark, data) == (6, b"")
    assert 0 < trio.loop.now_ms - moved_ms <= HIGH_WATERMARK_DELAY_MS + 10


@simulate
async def test_a_diverged_follower_is_told_where(trio: Trio) -> None:
    await lead(trio)
    await trio.produce()
    await trio.lead(0, 5, isr=(0,), config={"min.insync.replicas": "1"})
    await trio.produce()
    link = await trio.follow_by_hand(0)
    # It has five records of epoch 0, which ended at 3.
    await report(link, position(5, last_epoch=0, leader_epoch=5))
    part, _ = await pushed(link)
    assert code_name(part.error) == "DIVERGED"
    assert (part.diverging_epoch, part.diverging_end, part.base_offset) == (0, 3, 5)
    await report(link, position(3, last_epoch=0, leader_epoch=5))
    part, data = await pushed(link)
    assert (part.error, part.base_offset, next_offset(data)) == (0, 3, 6)


@simulate
async def test_a_follower_inside_of_a_batch_must_go_back_to_its_start(trio: Trio) -> None:
    await lead(trio)
    await trio.produce()
    await trio.produce()
    link = await trio.follow_by_hand(0)
    # As after a compaction here that merged what the follower has with what it lacks.
    await report(link, position(4, last_epoch=0))
    part, data = await pushed(link)
    assert (code_name(part.error), data) == ("DIVERGED", b"")
    assert (part.base_offset, part.diverging_epoch, part.diverging_end) == (4, 0, 3)
    assert not trio.hosted(0).followers
    await report(link, position(3, last_epoch=0))
    assert next_offset((await pushed(link))[1]) == 6


@simulate
async def test_a_partition_that_is_not_here_is_answered(trio: Trio) -> None:
    await lead(trio)
    link = await trio.follow_by_hand(0)
    await report(link, position(0, topic_id="another"))
    assert code_name((await pushed(link))[0].error) == "UNKNOWN_TOPIC"
    elsewhere = pb.FollowerPosition(partition=to_partition(T1), topic_id=TOPIC_ID)
    await report(link, elsewhere)
    assert code_name((await pushed(link))[0].error) == "UNKNOWN_TOPIC"


@simulate
async def test_a_report_of_another_epoch_is_refused(trio: Trio) -> None:
    await lead(trio)
    await trio.lead(0, 5, isr=(0,), config={"min.insync.replicas": "1"})
    link = await trio.follow_by_hand(0)
    await report(link, position(0, leader_epoch=4))
    part, _ = await pushed(link)
    assert (code_name(part.error), part.leader_epoch) == ("FENCED_EPOCH", 5)


@simulate
async def test_a_follower_that_stops_or_says_goodbye_is_forgotten(trio: Trio) -> None:
    await lead(trio)
    link = await trio.follow_by_hand(0)
    await report(link, position(0))
    await pushed(link)
    assert len(trio.hosted(0).followers) == 1
    stop = position(0)
    stop.stop = True
    await report(link, stop)
    await trio.until(lambda: not trio.hosted(0).followers)
    await report(link, position(0))
    await trio.until(lambda: trio.hosted(0).followers)
    await link.send(pb.ReplicaFrame(goodbye=pb.ReplicaGoodbye()).SerializeToString())
    await trio.until(lambda: not trio.hosted(0).followers)


@simulate
async def test_a_newer_link_of_the_same_follower_takes_over(trio: Trio) -> None:
    await lead(trio)
    old = await trio.follow_by_hand(0)
    await report(old, position(0))
    await pushed(old)
    epoch = await trio.registered(2, anew=True)
    new = await trio.follow_by_hand(0, hello(broker_epoch=epoch))
    await report(new, position(0))
    await pushed(new)
    assert await ends(old)
    (session,) = trio.hosted(0).followers
    assert session.broker_epoch == epoch
    await trio.produce()
    assert next_offset((await pushed(new))[1]) == 3


@simulate
async def test_nothing_is_pushed_after_the_leadership_is_lost(trio: Trio) -> None:
    await lead(trio)
    link = await trio.follow_by_hand(0)
    await report(link, position(0))
    await pushed(link)
    await trio.lead(1, 1, isr=(1,))
    assert not trio.hosted(0).followers
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1):
            await link.recv()


@simulate
async def test_a_frame_that_breaks_the_rules_ends_the_link(trio: Trio) -> None:
    await lead(trio)
    link = await trio.follow_by_hand(0)
    await report(link, pb.FollowerPosition())
    assert await ends(link)


@simulate
async def test_a_follower_that_takes_nothing_is_cut_off(trio: Trio) -> None:
    await lead(trio, link_stall_timeout_ms=2_000)
    link = await trio.follow_by_hand(0)
    await report(link, position(0))
    began_ms = trio.loop.now_ms
    for _ in range(60):
        # More than a link holds on its way; the follower reads none of it.
        await trio.produce(batch(1, value=bytes(200 << 10)), acks=broker_pb2.ACKS_LEADER)
    await trio.until(lambda: trio.heard("link.stall.timeout.ms=2000"))
    assert 2_000 <= trio.loop.now_ms - began_ms < 6_000
    # It connects again and is served.
    link = await trio.follow_by_hand(0)
    await report(link, position(0))
    assert (await pushed(link))[0].base_offset == 0


@simulate
async def test_a_follower_far_behind_holds_up_nothing_else_on_its_link_f39(trio: Trio) -> None:
    """What it lacks comes from a slow disk, off the loop, while others are pushed as ever."""
    await lead(trio)
    await trio.lead(0, 0, isr=(0,), config={"min.insync.replicas": "1"}, partition=T1)
    for _ in range(5):
        await trio.produce()
        trio.hosted(0).log.roll()
    blocking = trio.brokers[0]._blocking
    assert isinstance(blocking, InlineBlocking)
    blocking.delay_us = (300_000, 400_000)
    link = await trio.follow_by_hand(0)
    began_ms = trio.loop.now_ms
    await report(link, position(0), position(0, partition=T1))
    first_ms: dict[int, int] = {}
    ends_at: dict[int, int] = {0: 0, 1: 0}
    await trio.produce(partition=T1)
    while ends_at != {0: 15, 1: 3}:
        frame = await link.recv()
        assert frame is not None
        at = 0
        for part in pb.ReplicaFrame.FromString(frame.header).push.partitions:
            number, data = part.partition.partition, bytes(frame.payload[at : at + part.size])
            at += part.size
            if data:
                assert part.base_offset == ends_at[number]
                ends_at[number] = next_offset(data)
                first_ms.setdefault(number, trio.loop.now_ms - began_ms)
    assert first_ms[1] < 100
    assert first_ms[0] >= 300
    assert trio.loop.now_ms - began_ms >= 5 * 300
