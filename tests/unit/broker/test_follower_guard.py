"""A follower is believed when the store shows the life that it claims."""

from __future__ import annotations

import asyncio

from tailrace.broker.follower_guard import FollowerGuard
from tailrace.errors import StoreUnavailable
from tailrace.transport.rpc import Link
from tailrace.v1 import replica_pb2 as pb
from unit.broker.trio import CLUSTER_ID, Trio, simulate


def claim(number: int, epoch: int, incarnation: str = "", leader: int = 0) -> pb.ReplicaHello:
    return pb.ReplicaHello(
        broker_id=number,
        broker_epoch=epoch,
        version=1,
        cluster_id=CLUSTER_ID,
        leader_id=leader,
        incarnation=incarnation,
    )


async def is_closed(link: Link) -> bool:
    async with asyncio.timeout(5):
        return await link.recv() is None


@simulate
async def test_a3_a_higher_epoch_that_is_not_registered_is_refused(trio: Trio) -> None:
    await trio.start()
    await trio.lead(0, 0)
    await trio.produce()
    await trio.until(lambda: trio.ends() == [3, 3, 3])
    real = dict(trio.replicas(0)._sessions)
    epoch = trio.brokers[1].epoch or 0
    for fake in (
        claim(1, 2**62, trio.incarnation(1)),
        claim(1, epoch, "guessed"),
        claim(1, epoch),
        claim(1, epoch - 1, trio.incarnation(1)),
        claim(7, 5),
        claim(-1, 5),
    ):
        assert await is_closed(await trio.follow_by_hand(0, fake))
        await asyncio.sleep(0.15)
    # The real links were not displaced, and replication goes on at once.
    assert trio.replicas(0)._sessions == real
    await trio.produce()
    await trio.until(lambda: trio.ends() == [6, 6, 6], within_s=1)
    assert trio.heard("as broker 1 refused: it claims epoch")
    assert trio.replicas(0).follower_guard.refused == 6


@simulate
async def test_a3_reports_of_a_fake_commit_nothing(trio: Trio) -> None:
    await trio.start(0)
    await trio.registered(1)
    await trio.lead(0, 0, isr=(0, 1), replicas=(0, 1))
    link = await trio.follow_by_hand(0, claim(1, 2**62))
    assert await is_closed(link)
    assert trio.hosted(0).machine.high_watermark == 0


@simulate
async def test_a3_without_the_store_known_lives_connect_and_no_others(trio: Trio) -> None:
    await trio.start(0)
    epoch = await trio.registered(2)
    guard = FollowerGuard(trio.store, trio.clock, trio.said.append)
    assert await guard.problem(claim(2, epoch), "x") == ""

    class Away:
        async def get(self, _: object) -> None:
            raise StoreUnavailable("it is away")

    guard._store = Away()  # type: ignore[assignment]
    assert await guard.problem(claim(2, epoch), "x") == ""
    assert "cannot be confirmed" in await guard.problem(claim(2, epoch + 1), "x")
    assert "cannot be confirmed" in await guard.problem(claim(1, epoch), "x")
    assert "has followed" in await guard.problem(claim(2, epoch - 1), "x")


@simulate
async def test_a3_guesses_are_slowed_down(trio: Trio) -> None:
    await trio.start(0)
    epoch = await trio.registered(2)
    guard = FollowerGuard(trio.store, trio.clock, trio.said.append)
    assert "registered is" in await guard.problem(claim(2, epoch + 5), "x")
    assert "a moment ago" in await guard.problem(claim(2, epoch), "x")
    await asyncio.sleep(0.1)
    assert await guard.problem(claim(2, epoch), "x") == ""
