"""The follower's side of a replica link, with a real leader or one that the test plays."""

from __future__ import annotations

import asyncio

from tailrace.broker.fetcher import CONNECT_TIMEOUT_MS, RECONNECT_MAX_MS, RECONNECT_MIN_MS
from tailrace.errors import Diverged, UnknownTopic
from tailrace.transport.rpc import Link
from tailrace.transport.wire import error_code, to_partition
from tailrace.v1 import broker_pb2
from tailrace.v1 import replica_pb2 as pb
from unit.broker.trio import CLUSTER_ID, T0, T1, TOPIC_ID, Trio, simulate


class Leader:
    """A leader played by hand at ctl:9093: takes one link at a time."""

    def __init__(self, trio: Trio) -> None:
        self._trio = trio
        self._links: asyncio.Queue[Link] = asyncio.Queue()

    async def listen(self) -> None:
        links = self._trio.host.links(self._trio.cache())
        await links.listen("ctl:9093", self._accept)

    async def _accept(self, link: Link) -> None:
        self._links.put_nowait(link)
        await asyncio.Event().wait()

    async def greeted(self) -> tuple[Link, pb.ReplicaHello]:
        link = await self._links.get()
        frame = await link.recv()
        assert frame is not None
        return link, pb.ReplicaFrame.FromString(frame.header).hello

    @staticmethod
    async def reported(link: Link) -> pb.FollowerPosition:
        frame = await link.recv()
        assert frame is not None
        (position,) = pb.ReplicaFrame.FromString(frame.header).report.positions
        return position

    @staticmethod
    async def push(link: Link, part: pb.LeaderPartition) -> None:
        frame = pb.ReplicaFrame(push=pb.LeaderPush(partitions=[part]))
        await link.send(frame.SerializeToString())


async def follow_by_hand(
    trio: Trio, *, epoch: int = 1, config: dict[str, str] | None = None
) -> Leader:
    """Broker 0 has led alone and has six records; now it follows the test as broker 1."""
    config = {"min.insync.replicas": "1", **(config or {})}
    await trio.start(0)
    await trio.lead(0, 0, isr=(0,), config=config)
    await trio.produce()
    await trio.produce()
    leader = Leader(trio)
    await leader.listen()
    await trio.lead(1, epoch, isr=(1,), leader_link="ctl:9093", config=config)
    return leader


@simulate
async def test_a_follower_that_was_away_catches_up(trio: Trio) -> None:
    await trio.start()
    await trio.lead(0, 0)
    await trio.stop_broker(2)
    for _ in range(5):
        await trio.produce(acks=broker_pb2.ACKS_LEADER)
    await trio.start_broker(2)
    await trio.until(lambda: trio.brokers[2].epoch)
    await trio.lead(0, 0, to=(2,))
    await trio.until(lambda: trio.ends() == [15, 15, 15])
    await trio.until(lambda: trio.hosted(2).machine.high_watermark == 15)


@simulate
async def test_a_follower_with_another_past_cuts_it_off(trio: Trio) -> None:
    await trio.start()
    await trio.lead(0, 0)
    await trio.produce()
    trio.network.isolate("b0", ["b1", "b2"])
    # These reach nobody.
    for _ in range(3):
        await trio.produce(acks=broker_pb2.ACKS_LEADER)
    assert trio.hosted(0).log.log_end == 12
    await trio.lead(1, 1, isr=(1, 2))
    await trio.produce(to=1)
    trio.network.heal()
    await trio.until(lambda: trio.ends() == [6, 6, 6])
    assert trio.heard("from 12 to 3")
    entries = [trio.hosted(each).log.epochs.entries for each in (0, 1, 2)]
    assert entries[0] == entries[1] == entries[2]


@simulate
async def test_a_hello_says_who_we_are_and_a_report_where(trio: Trio) -> None:
    leader = await follow_by_hand(trio)
    link, hello = await leader.greeted()
    assert (hello.broker_id, hello.leader_id, hello.cluster_id) == (0, 1, CLUSTER_ID)
    assert hello.broker_epoch == trio.brokers[0].epoch
    position = await leader.reported(link)
    assert (position.log_end, position.last_epoch, position.leader_epoch) == (6, 0, 1)
    assert (position.topic_id, position.restart) == (TOPIC_ID, True)


@simulate
async def test_a_batch_that_was_stretched_makes_it_go_back(trio: Trio) -> None:
    leader = await follow_by_hand(trio, config={"cleanup.policy": "compact"})
    link, _ = await leader.greeted()
    await leader.reported(link)
    # Same epoch, but the leader's batch begins inside of what we have.
    part = pb.LeaderPartition(
        partition=to_partition(T0),
        leader_epoch=1,
        error=error_code(Diverged.code),
        base_offset=6,
        diverging_epoch=0,
        diverging_end=3,
        merged=True,
    )
    await leader.push(link, part)
    position = await leader.reported(link)
    assert (position.log_end, position.last_epoch, position.restart) == (3, 0, True)
    assert trio.hosted(0).log.log_end == 3


@simulate
async def test_pushes_for_others_and_of_old_epochs_are_ignored(trio: Trio) -> None:
    leader = await follow_by_hand(trio)
    link, _ = await leader.greeted()
    await leader.reported(link)
    diverged = error_code(Diverged.code)
    for partition, epoch in ((T1, 1), (T0, 0)):
        part = pb.LeaderPartition(
            partition=to_partition(partition), leader_epoch=epoch, error=diverged, base_offset=6
        )
        await leader.push(link, part)
    await asyncio.sleep(0.5)
    assert trio.hosted(0).log.log_end == 6


@simulate
async def test_what_comes_late_of_a_former_topic_of_that_name_is_ignored(trio: Trio) -> None:
    """Both begin in epoch 0 at offset 0, so nothing but the id tells them apart."""
    leader = await follow_by_hand(trio, config={"cleanup.policy": "compact"})
    link, _ = await leader.greeted()
    await leader.reported(link)
    diverged = pb.LeaderPartition(
        partition=to_partition(T0),
        topic_id="former",
        leader_epoch=1,
        error=error_code(Diverged.code),
        base_offset=6,
        diverging_end=3,
        merged=True,
    )
    await leader.push(link, diverged)
    await asyncio.sleep(0.5)
    assert trio.hosted(0).log.log_end == 6
    diverged.topic_id = TOPIC_ID
    await leader.push(link, diverged)
    await trio.until(lambda: trio.hosted(0).log.log_end == 3)


@simulate
async def test_a_leader_that_does_not_know_yet_is_asked_again(trio: Trio) -> None:
    leader = await follow_by_hand(trio)
    link, _ = await leader.greeted()
    await leader.reported(link)
    refused = pb.LeaderPartition(
        partition=to_partition(T0), leader_epoch=1, error=error_code(UnknownTopic.code)
    )
    await leader.push(link, refused)
    began_ms = trio.loop.now_ms
    position = await leader.reported(link)
    assert (position.log_end, position.restart) == (6, True)
    assert trio.loop.now_ms > began_ms


@simulate
async def test_a_broken_link_is_made_again(trio: Trio) -> None:
    leader = await follow_by_hand(trio)
    for _ in range(3):
        link, _ = await leader.greeted()
        assert (await leader.reported(link)).restart
        link.close()


@simulate
async def test_a_frame_that_cannot_be_read_only_ends_the_link(trio: Trio) -> None:
    leader = await follow_by_hand(trio)
    nameless = pb.ReplicaFrame(push=pb.LeaderPush(partitions=[pb.LeaderPartition()]))
    for header in (b"\xff\xff", nameless.SerializeToString()):
        link, _ = await leader.greeted()
        await leader.reported(link)
        await link.send(header)
    await leader.greeted()


@simulate
async def test_a_leader_that_is_not_there_is_tried_until_it_is(trio: Trio) -> None:
    await trio.start(0)
    await trio.lead(1, 0)
    await asyncio.sleep(20)
    await trio.start_broker(1)
    await trio.until(lambda: trio.brokers[1].epoch)
    began_ms = trio.loop.now_ms
    await trio.lead(1, 1)
    await trio.until(lambda: trio.hosted(1).followers)
    # The host was not there at all: an attempt to connect may be under way.
    assert trio.loop.now_ms - began_ms < CONNECT_TIMEOUT_MS + RECONNECT_MAX_MS + 100


@simulate
async def test_who_leads_now_is_followed_no_more(trio: Trio) -> None:
    leader = await follow_by_hand(trio)
    link, _ = await leader.greeted()
    await leader.reported(link)
    await trio.lead(0, 2, isr=(0,))
    position = await leader.reported(link)
    assert position.stop


@simulate
async def test_a_new_epoch_of_ours_is_told_by_a_new_hello(trio: Trio) -> None:
    leader = await follow_by_hand(trio)
    _, first = await leader.greeted()
    (lease,) = trio.etcd.leases()
    trio.etcd.revoke_lease(lease)
    _, second = await leader.greeted()
    assert second.broker_epoch == trio.brokers[0].epoch
    assert second.broker_epoch > first.broker_epoch


@simulate
async def test_an_epoch_that_changed_while_the_link_was_made_is_told_too(trio: Trio) -> None:
    leader = await follow_by_hand(trio)
    link, _ = await leader.greeted()
    trio.network.block("b0", "ctl")
    link.close()
    await asyncio.sleep(0.1)
    # It is connecting now, and nobody hears it.
    before = trio.brokers[0].epoch
    (lease,) = trio.etcd.leases()
    trio.etcd.revoke_lease(lease)
    await trio.until(lambda: trio.brokers[0].epoch not in {None, before})
    trio.network.unblock("b0", "ctl")
    _, hello = await leader.greeted()
    assert hello.broker_epoch == trio.brokers[0].epoch


@simulate
async def test_who_has_just_come_back_and_leads_is_followed_at_once(trio: Trio) -> None:
    """Else what is written there waits for a follower that sleeps between two attempts."""
    await trio.start()
    await trio.lead(1, 0, isr=(0, 1, 2))
    await trio.produce()
    await trio.lead(0, 1, isr=(0, 1, 2))
    await trio.stop_broker(1)
    # Long enough for the pauses of whoever tries to connect to it to become long.
    await asyncio.sleep(10 * RECONNECT_MAX_MS / 1000)
    await trio.start_broker(1)
    await trio.until(lambda: trio.brokers[1].epoch)
    loop = asyncio.get_running_loop()
    begun_s = loop.time()
    # The leader first: a report that comes before its order is sent again after a pause.
    await trio.lead(1, 2, isr=(0, 1, 2), to=(1, 0, 2))
    await trio.until(lambda: len(trio.hosted(1).followers) == 2)
    assert loop.time() - begun_s < RECONNECT_MIN_MS / 1000
