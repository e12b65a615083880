"""The faults of the fault table, by id, each as a script on a simulated cluster under load.

Every scenario ends with the same checks as the random ones: nothing acknowledged is lost (I1), no
two leaders acknowledged one offset (I2), replicas are identical (I3), nothing that was shown
changed (I4), and the cluster is whole again within a minute after healing (I6).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from simulation.cluster import BrokerNode, ControllerNode
from simulation.loop import SimLoop
from simulation.scenario import TOPIC, Run
from tailrace.errors import UnknownTopic, UnknownTopicId
from tailrace.meta.store import Put
from tailrace.model import TopicPartition
from tailrace.replication.partition import Role

pytestmark = pytest.mark.simulation

PARTITION = TopicPartition(TOPIC, 0)
SEEDS = range(3)
BROKER_LEASE_S = 5.0
LAG_S = 3.0

Script = Callable[[Run], Awaitable[None]]


def play(seed: int, script: Script, **options: object) -> Run:
    async def main(loop: SimLoop) -> Run:
        run = Run(loop, **options)  # type: ignore[arg-type]
        await run.play(script)
        return run

    return SimLoop(seed).run(main)


async def leader(run: Run) -> BrokerNode:
    """The live broker that leads the partition in the newest epoch, waited for."""
    async with asyncio.timeout(30):
        while True:
            found = [
                (hosted.machine.leader_epoch, node.number, node)
                for node in run.cluster.brokers
                if node.is_up
                and not node.is_paused
                and node.broker is not None
                and node.broker.replicas is not None
                and (hosted := node.broker.replicas.get(PARTITION)) is not None
                and hosted.machine.role is Role.LEADER
            ]
            if found:
                return max(found)[2]
            await asyncio.sleep(0.02)


def leads(node: BrokerNode) -> bool:
    hosted = node.hosted(PARTITION)
    return hosted is not None and hosted.machine.role is Role.LEADER


async def followers(run: Run) -> list[BrokerNode]:
    current = await leader(run)
    return [node for node in run.cluster.brokers if node is not current]


async def controller(run: Run) -> ControllerNode:
    return await run.cluster.active_controller()


def leader_epochs(run: Run) -> dict[TopicPartition, int]:
    """The newest epoch of each partition that any broker knows."""
    found: dict[TopicPartition, int] = {}
    for node in run.cluster.brokers:
        if node.broker is not None and node.broker.replicas is not None:
            for hosted in node.broker.replicas.hosted():
                known = found.get(hosted.partition, -1)
                found[hosted.partition] = max(known, hosted.machine.leader_epoch)
    return found


async def settled(run: Run) -> None:
    """Everything is in sync before the fault begins."""
    async with asyncio.timeout(30):
        while True:
            if run.is_settled_enough():
                break
            await asyncio.sleep(0.05)
    await asyncio.sleep(0.5)


async def f1_follower_restarts_and_leads(run: Run) -> None:
    """It leads before it has heard from the leader how much is committed."""
    await settled(run)
    for _ in range(3):
        old = await leader(run)
        one, _ = await followers(run)
        run.cluster.network.block(old.name, one.name)
        one.kill()
        one.start()
        await asyncio.sleep(run.rng.uniform(0.0, 0.5))
        old.kill()
        await asyncio.sleep(1.0)
        run.cluster.network.heal()
        run.cluster.start_all()
        await settled(run)


async def f2_fast_double_failover(run: Run) -> None:
    """Each leader in turn goes with records that nobody else has, and comes back as a follower."""
    await settled(run)
    for _ in range(4):
        first = await leader(run)
        for other in await followers(run):
            run.cluster.network.block(first.name, other.name)
        await asyncio.sleep(run.rng.uniform(0.1, 0.4))
        first.kill()
        run.cluster.network.heal()
        second = await leader(run)
        await asyncio.sleep(run.rng.uniform(0.0, 0.3))
        first.start()
        await asyncio.sleep(run.rng.uniform(0.0, 0.2))
        second.kill()
        await asyncio.sleep(run.rng.uniform(0.05, 0.5))
        second.start()
        await asyncio.sleep(0.5)


async def f3_zombie_fetcher(run: Run) -> None:
    """Off the registry, its links alive."""
    await settled(run)
    zombie = (await followers(run))[0]
    run.cluster.etcd.cut(zombie.name)
    await asyncio.sleep(BROKER_LEASE_S + 4)
    (await leader(run)).kill()
    await asyncio.sleep(2)
    run.cluster.etcd.heal(zombie.name)


async def f5_stale_leader_keeps_its_producers(run: Run) -> None:
    """The old leader hears its producers, nobody else: nothing that it takes is acknowledged."""
    await settled(run)
    old = await leader(run)
    others = [node.name for node in run.cluster.nodes if node is not old]
    run.cluster.network.isolate(old.name, others)
    run.cluster.etcd.cut(old.name)
    await asyncio.sleep(BROKER_LEASE_S + 5)
    for other in others:
        run.cluster.network.unblock(old.name, other)
        run.cluster.network.unblock(other, old.name)


async def f6_zombie_controller(run: Run) -> None:
    await settled(run)
    zombie = await controller(run)
    zombie.pause()
    await asyncio.sleep(6)
    (await leader(run)).kill()
    await asyncio.sleep(1)
    # It goes on with what it had in hand, and does not hear at once that it is deposed.
    run.cluster.etcd.cut(zombie.name)
    zombie.resume()
    run.cluster.start_all()
    await asyncio.sleep(2)
    run.cluster.etcd.heal(zombie.name)
    await asyncio.sleep(0.5)
    # What happens from now on is none of its business.
    (await leader(run)).kill()
    await asyncio.sleep(3)


async def f7_lock_after_the_lease_is_dead(run: Run) -> None:
    """The answer that says "you are elected" comes after the lease has ended."""
    await settled(run)
    for _ in range(3):
        active = await controller(run)
        standby = next(node for node in run.cluster.controllers if node is not active)
        run.cluster.etcd.cut(standby.name, replies_only=True)
        active.kill()
        await asyncio.sleep(5)
        run.cluster.etcd.heal(standby.name)
        active.start()
        await asyncio.sleep(2)


async def f8_bounced_broker(run: Run) -> None:
    await settled(run)
    for _ in range(6):
        node = run.rng.choice(run.cluster.brokers)
        node.kill()
        node.start()
        await asyncio.sleep(run.rng.uniform(0.0, 0.4))


async def f9_rebooted_follower_joins_on_stale_reports(run: Run) -> None:
    await settled(run)
    node = (await followers(run))[0]
    for _ in range(4):
        node.kill(power_loss=True)
        node.start()
        await asyncio.sleep(run.rng.uniform(0.05, 0.8))
    await settled(run)
    (await leader(run)).kill()
    await asyncio.sleep(2)


async def f10_stopping_replica_joins(run: Run) -> None:
    """One that shuts down catches up while nobody can relieve it: it must not be waited for."""
    await settled(run)
    node = (await followers(run))[0]
    others = [each.name for each in run.cluster.brokers if each is not node]
    run.cluster.network.isolate(node.name, others)
    await asyncio.sleep(LAG_S + 1)
    for each in run.cluster.controllers:
        each.kill()
    stopping = run.loop.create_task(node.stop())
    await asyncio.sleep(0.1)
    run.cluster.network.heal()
    await asyncio.sleep(2)
    assert not stopping.done()
    assert not run.is_settled_enough()
    run.cluster.start_all()
    await stopping
    run.cluster.start_all()
    await settled(run)
    for _ in range(3):
        node = run.rng.choice(run.cluster.brokers)
        run.loop.create_task(node.stop())
        await asyncio.sleep(run.rng.uniform(0.0, 1.5))
        (await leader(run)).kill()
        await asyncio.sleep(2)
        run.cluster.start_all()
        await settled(run)


async def f11_shrink_against_election(run: Run) -> None:
    await settled(run)
    slow = (await followers(run))[0]
    slow.pause()
    await asyncio.sleep(LAG_S + run.rng.uniform(-0.2, 0.4))
    (await leader(run)).kill()
    await asyncio.sleep(1)
    slow.resume()


async def f12_last_replica_standing(run: Run) -> None:
    """The ISR falls to one, whose machine loses power and comes back."""
    await settled(run)
    one, other = await followers(run)
    last = await leader(run)
    if run.rng.random() < 0.4:
        one.pause()
        other.pause()
        await asyncio.sleep(LAG_S + 3)
    else:
        one.kill()
        other.kill()
        await asyncio.sleep(0.3)
    last.kill(power_loss=True)
    await asyncio.sleep(1)
    last.start()
    await asyncio.sleep(3)
    for node in (one, other):
        node.resume()
        node.start()


async def f13_leader_whose_disk_fails(run: Run) -> None:
    """A sync of the leader fails: it gives the partition up, and another leads within moments."""
    await settled(run)
    for _ in range(3):
        old = await leader(run)
        assert old.broker is not None
        assert old.broker.replicas is not None
        old.files.fail_next_sync(old.broker.replicas.find(PARTITION).log.segments[-1].path)
        async with asyncio.timeout(8):
            while (await leader(run)) is old:  # noqa: ASYNC110 - it is virtual time.
                await asyncio.sleep(0.05)
        assert old.is_up
        await settled(run)


async def f13_lone_leader_with_a_full_disk(run: Run) -> None:
    await settled(run)
    for node in await followers(run):
        node.kill()
    (await leader(run)).files.disk_bytes_max = 1
    await asyncio.sleep(4)


async def f14_everybody_loses_power(run: Run) -> None:
    """With flush=ack nothing acknowledged is lost, even so."""
    await settled(run)
    for node in run.cluster.brokers:
        node.kill(power_loss=True)
    await asyncio.sleep(2)
    run.cluster.start_all()
    await asyncio.sleep(3)


async def f15_bits_rot_on_a_follower(run: Run) -> None:
    """It comes back before anybody missed it, so the ISR counts on it, and then it is alone."""
    await settled(run)
    node, other = await followers(run)
    hosted = node.hosted(PARTITION)
    assert hosted is not None
    log, active = hosted.log, hosted.log.segments[-1]
    # What is scanned at the start: a part of it is cut off then.
    durable = active.position_of(max(log.recovery_point, active.base_offset))
    size = active.size
    await asyncio.sleep(0.3)
    # It gets nothing back from the others before they are gone.
    run.cluster.network.isolate(node.name, [b.name for b in run.cluster.brokers if b is not node])
    node.kill()
    if size > durable:
        node.files.flip_bits(active.path, run.rng.randrange(durable, size))
    node.start()
    async with asyncio.timeout(10):
        while node.broker is None or node.broker.epoch is None:  # noqa: ASYNC110 - virtual time.
            await asyncio.sleep(0.01)
    # What is left of it must not lead in the meantime.
    other.kill()
    (await leader(run)).kill()
    run.cluster.network.heal()
    await asyncio.sleep(5)


async def f16_all_leases_are_revoked(run: Run) -> None:
    """etcd hangs, then ends every lease: whoever answers keeps what it leads."""
    await settled(run)
    before = leader_epochs(run)
    run.cluster.etcd.slow(3_000)
    await asyncio.sleep(4)
    run.cluster.etcd.slow(0)
    run.cluster.etcd.revoke_all_leases()
    # Brokers reach it later than controllers do, which find nobody registered.
    for node in run.cluster.brokers:
        run.cluster.etcd.cut(node.name)
    await asyncio.sleep(2)
    run.cluster.etcd.heal()
    await asyncio.sleep(4)
    assert leader_epochs(run) == before


async def f16b_keepalive_by_a_deposed_leader(run: Run) -> None:
    await settled(run)
    node = await leader(run)
    run.cluster.etcd.depose(node.name)
    await asyncio.sleep(BROKER_LEASE_S + 5)


async def f17_etcd_elects_again_and_again(run: Run) -> None:
    await settled(run)
    (await leader(run)).pause()
    for _ in range(6):
        run.cluster.etcd.leader_change()
        await asyncio.sleep(1.5)
    await leader(run)


async def f18_etcd_is_away(run: Run) -> None:
    """A minute without the store: what is led stays led, and records go on."""
    await settled(run)
    before = (await leader(run)).number
    run.cluster.etcd.stop()
    acknowledged = run.witness.acknowledged_count
    await asyncio.sleep(60)
    assert run.witness.acknowledged_count > acknowledged + 500
    run.cluster.etcd.start()
    await asyncio.sleep(5)
    assert (await leader(run)).number == before


async def f18_etcd_hangs_and_ends_one_lease(run: Run) -> None:
    """One broker's lease of three, and the controller's: whoever takes over asks before it acts."""
    await settled(run)
    # Long enough for one that stands by to have seen where the brokers are.
    await asyncio.sleep(BROKER_LEASE_S + 2)
    before, node = leader_epochs(run), await leader(run)
    etcd = run.cluster.etcd
    etcd.slow(3_000)
    await asyncio.sleep(4)
    etcd.slow(0)
    leases = {each.key: each.lease for each in etcd.server.snapshot("/").entries}
    for key in (f"/brokers/ids/{node.number}", "/controller"):
        if leases.get(key):
            etcd.server.revoke_lease(leases[key])
    etcd.cut(node.name)
    await asyncio.sleep(1)
    etcd.heal()
    await asyncio.sleep(5)
    assert leader_epochs(run) == before


async def f19_stranded_on_a_minority_member(run: Run) -> None:
    await settled(run)
    node = await leader(run)
    run.cluster.etcd.strand(node.name)
    active = await controller(run)
    run.cluster.etcd.strand(active.name)
    await asyncio.sleep(BROKER_LEASE_S + 5)


async def f20_history_is_compacted_away(run: Run) -> None:
    """The end of a lease is among what the controller's watch never brings; nothing else tells."""
    await settled(run)
    active, silent = await controller(run), await leader(run)
    etcd = run.cluster.etcd
    silent.pause()
    # Shorter than its own lease: it stays the controller.
    etcd.cut(active.name)
    await asyncio.sleep(0.5)
    leases = {each.key: each.lease for each in etcd.server.snapshot("/brokers/ids/").entries}
    etcd.server.revoke_lease(leases[f"/brokers/ids/{silent.number}"])
    etcd.server.txn([], [Put("/elsewhere", b"1")])
    etcd.compact()
    etcd.heal(active.name)
    await asyncio.sleep(3)
    led = [each for each in run.cluster.brokers if each is not silent and leads(each)]
    assert led, "nobody took over"
    silent.resume()
    await asyncio.sleep(2)


async def f21_asymmetric_partition(run: Run) -> None:
    await settled(run)
    node = await leader(run)
    peers = [each.name for each in run.cluster.brokers if each is not node]
    for peer in peers:
        run.cluster.network.block(node.name, peer)
    await asyncio.sleep(LAG_S + 4)
    for peer in peers:
        run.cluster.network.unblock(node.name, peer)
        run.cluster.network.block(peer, node.name)
    await asyncio.sleep(LAG_S + 4)


async def f32_acknowledgements_are_lost(run: Run) -> None:
    await settled(run)
    for _ in range(8):
        node = await leader(run)
        for client in ("p0", "p1"):
            run.cluster.network.break_connections(client, node.name)
        if run.rng.random() < 0.4:
            node.kill()
            node.start()
        await asyncio.sleep(run.rng.uniform(0.1, 0.6))


async def f34_topic_is_made_anew(run: Run) -> None:
    """Deleted and made again under the same name, under a writer and readers with old offsets."""
    await settled(run)
    former = [reading.topic_id for reading in run.readings]
    away = (await followers(run))[0] if run.rng.random() < 0.5 else None
    if away is not None:
        # It misses the deletion, and comes back with the old data.
        away.kill()
    run.witness.topic_goes()
    await run.cluster.delete_topic(TOPIC)
    if away is not None:
        await asyncio.sleep(run.rng.uniform(0, 2))
        away.start()
    await run.cluster.create_topic(TOPIC, partitions=2)
    await asyncio.sleep(1)
    run.witness.topic_is_there()
    await asyncio.sleep(3)
    for reading in run.readings:
        assert isinstance(reading.ended_by, UnknownTopicId | UnknownTopic), reading.ended_by
        # It has seen nothing of the new one, whose offsets begin below its own.
        assert reading.topic_id in former
    run.read_anew()
    await asyncio.sleep(1)


SCRIPTS: dict[str, Script] = {
    "F1": f1_follower_restarts_and_leads,
    "F2": f2_fast_double_failover,
    "F3": f3_zombie_fetcher,
    "F5": f5_stale_leader_keeps_its_producers,
    "F6": f6_zombie_controller,
    "F7": f7_lock_after_the_lease_is_dead,
    "F8": f8_bounced_broker,
    "F9": f9_rebooted_follower_joins_on_stale_reports,
    "F10": f10_stopping_replica_joins,
    "F11": f11_shrink_against_election,
    "F12": f12_last_replica_standing,
    "F13": f13_lone_leader_with_a_full_disk,
    "F15": f15_bits_rot_on_a_follower,
    "F16": f16_all_leases_are_revoked,
    "F16b": f16b_keepalive_by_a_deposed_leader,
    "F17": f17_etcd_elects_again_and_again,
    "F18": f18_etcd_is_away,
    "F18-hang": f18_etcd_hangs_and_ends_one_lease,
    "F19": f19_stranded_on_a_minority_member,
    "F20": f20_history_is_compacted_away,
    "F21": f21_asymmetric_partition,
    "F32": f32_acknowledgements_are_lost,
    "F34": f34_topic_is_made_anew,
}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("fault", SCRIPTS)
def test_fault(fault: str, seed: int) -> None:
    assert play(seed, SCRIPTS[fault]).witness.acknowledged_count > 0


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("flush", ["none", "ack"])
def test_fault_f13_disk_fails(flush: str, seed: int) -> None:
    run = play(seed, f13_leader_whose_disk_fails, config={"flush": flush})
    assert run.witness.acknowledged_count > 0


@pytest.mark.parametrize("seed", SEEDS)
def test_fault_f14(seed: int) -> None:
    run = play(seed, f14_everybody_loses_power, config={"flush": "ack"})
    assert run.witness.acknowledged_count > 0
