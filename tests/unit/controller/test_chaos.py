"""Many faults at once, from seeds: whatever happens, the states in the store obey the rules.

After every single commit: epochs only rise, a new leader means a new epoch, an epoch has one leader
for ever, an ELR is there only while too few are in sync, and nobody who may have lost something is
in sync. And once the faults end, everything is well again within a stated time.
"""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any, Final

import pytest

from tailrace.errors import TailraceError
from tailrace.meta.keys import (
    BrokerRegistration,
    Kind,
    PartitionState,
    broker_key,
    decode,
    place_of,
)
from tailrace.meta.store import Operation, Put
from tailrace.model import TopicPartition
from unit.controller.cluster import Cluster, FakeBroker, simulate

STEPS: Final = 40
HEALS_WITHIN_S: Final = 30
MIN_INSYNC: Final = 2


class Referee:
    """Looks at every commit as it happens."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.states: dict[str, PartitionState] = {}
        self.leaders: dict[tuple[str, int], int] = {}
        self.changes = 0
        server = cluster.etcd.server
        commit = server._commit

        def committed(operations: list[Operation]) -> None:
            commit(operations)
            for operation in operations:
                place = place_of(operation.key)
                if isinstance(operation, Put) and place and place.kind is Kind.STATE:
                    self.look(operation.key, decode(PartitionState, operation.value))

        server._commit = committed  # type: ignore[method-assign,assignment]

    def look(self, key: str, new: PartitionState) -> None:
        self.changes += 1
        old = self.states.get(key)
        self.states[key] = new
        assert not (len(new.isr) >= MIN_INSYNC and new.elr), new
        led = self.leaders.setdefault((key, new.leader_epoch), new.leader)
        assert led == new.leader, f"{key}: epoch {new.leader_epoch} has two leaders"
        if old is None:
            return
        assert new.leader_epoch >= old.leader_epoch, (old, new)
        assert new.controller_epoch >= old.controller_epoch, (old, new)
        if new.leader >= 0:
            holders = {*old.isr, *old.elr}
            assert new.leader in holders, f"{key}: {old} -> {new} is not clean"
            entry = self.cluster.etcd.server.get(broker_key(new.leader))
            # A spared leader has no registration; any other has one, and has lost nothing.
            if entry is not None and new.leader_epoch > old.leader_epoch:
                registration = decode(BrokerRegistration, entry.value)
                assert not registration.tail_may_be_lost


class Chaos:
    """Breaks things at random and mends them."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.rng: Random = cluster.loop.fork_rng("chaos")
        self.blocked = False

    async def step(self) -> None:
        actions: list[Any] = [
            *[self.kill_broker] * 3,
            *[self.start_brokers] * 5,
            *[self.mend] * 3,
            self.kill_controller,
            self.start_controllers,
            self.start_controllers,
            self.pause_someone,
            self.resume_all,
            self.partition,
            self.cut_from_etcd,
            self.new_etcd_leader,
            self.revoke_all,
            self.compact,
            self.slow,
        ]
        await self.rng.choice(actions)()
        await asyncio.sleep(self.rng.choice([0.001, 0.02, 0.3, 1.5]))

    async def kill_broker(self) -> None:
        self.cluster.brokers[self.rng.choice([1, 2, 3])].kill()

    async def start_brokers(self) -> None:
        for number, broker in list(self.cluster.brokers.items()):
            if broker.process.is_dead:
                lost = self.rng.random() < 0.3
                fresh = FakeBroker(self.cluster, number, {"tail_may_be_lost": lost})
                fresh.replicas = dict(broker.replicas)
                self.cluster.brokers[number] = fresh
                fresh.process.spawn("start", self.start_when_possible(fresh))

    async def start_when_possible(self, broker: FakeBroker) -> None:
        while broker.epoch is None:
            try:
                await broker.start()
            except TailraceError:
                await asyncio.sleep(0.5)
                broker.host.servers.clear()

    async def kill_controller(self) -> None:
        self.cluster.controllers[self.rng.choice([1, 2])].process.kill()

    async def start_controllers(self) -> None:
        for number, running in list(self.cluster.controllers.items()):
            if running.process.is_dead:
                await self.cluster.start_controller(number)

    async def pause_someone(self) -> None:
        someone: Any = self.rng.choice(
            [*self.cluster.brokers.values(), *self.cluster.controllers.values()]
        )
        someone.process.pause()

    async def resume_all(self) -> None:
        for broker in self.cluster.brokers.values():
            broker.process.resume()
        for running in self.cluster.controllers.values():
            running.process.resume()

    async def partition(self) -> None:
        hosts = ["c1", "c2", "b1", "b2", "b3"]
        self.cluster.network.isolate(self.rng.choice(hosts), hosts)

    async def cut_from_etcd(self) -> None:
        client = self.rng.choice(["c1", "c2", "b1", "b2", "b3"])
        how = self.rng.choice([self.cluster.etcd.cut, self.cluster.etcd.depose])
        how(client)

    async def new_etcd_leader(self) -> None:
        self.cluster.etcd.leader_change(self.rng.uniform(50, 1_000))

    async def revoke_all(self) -> None:
        self.cluster.etcd.revoke_all_leases()

    async def compact(self) -> None:
        self.cluster.etcd.compact()

    async def slow(self) -> None:
        self.cluster.etcd.slow(self.rng.choice([0, 20, 200]))

    async def mend(self) -> None:
        self.cluster.network.heal()
        self.cluster.etcd.heal()

    async def end(self) -> None:
        await self.mend()
        await self.resume_all()
        await self.start_controllers()
        await self.start_brokers()


async def lead(cluster: Cluster) -> None:
    """What leaders do all the time: take followers in that are there, and out that are not."""
    rng = cluster.loop.fork_rng("leaders")
    while True:
        await asyncio.sleep(rng.uniform(0.05, 0.3))
        for broker in cluster.brokers.values():
            for partition, told in sorted(broker.told.items()):
                if told.leader == broker.number and broker.epoch and not broker.process.is_dead:
                    broker.process.spawn("isr", mend_isr(cluster, broker, partition, rng))


async def mend_isr(
    cluster: Cluster, broker: FakeBroker, partition: TopicPartition, rng: Random
) -> None:
    told = broker.told.get(partition)
    if told is None:
        return
    others = [each for number, each in cluster.brokers.items() if number not in told.isr]
    follows = [
        each
        for each in others
        if each.epoch
        and not each.process.is_dead
        and partition in each.told
        and each.told[partition].leader_epoch == told.leader_epoch
    ]
    try:
        if follows:
            new = rng.choice(follows)
            await broker.change_isr(
                [*told.isr, new.number],
                [],
                topic=partition.topic,
                partition=partition.partition,
                added={new.number: new.epoch or 0},
            )
        elif len(told.isr) == 3 and rng.random() < 0.05:
            out = rng.choice([each for each in told.isr if each != broker.number])
            await broker.change_isr(
                [each for each in told.isr if each != out],
                topic=partition.topic,
                partition=partition.partition,
            )
    except TailraceError:
        return


def is_well(cluster: Cluster) -> bool:
    """Everybody leads, follows and knows what is stored."""
    image = cluster.image()
    if len(image.brokers) != 3:
        return False
    for partition, _ in image.partitions():
        stored = image.state(partition)
        if stored is None:
            return False
        # One that lost all who held everything committed waits for a person to decide.
        if not stored.state.isr and not stored.state.elr:
            continue
        if stored.state.leader < 0:
            return False
        for broker in cluster.brokers.values():
            told = broker.told.get(partition)
            if told is None or told.revision != stored.revision:
                return False
    return all(
        broker.pictures and len(broker.pictures[-1].brokers) == 3
        for broker in cluster.brokers.values()
    )


def reigning(cluster: Cluster) -> int:
    return len([each for each in cluster.controllers.values() if each.epoch > 0])


@pytest.mark.parametrize("seed", range(40))
def test_chaos(seed: int) -> None:
    async def main(cluster: Cluster) -> None:
        referee = Referee(cluster)
        await cluster.start(controllers=2)
        for name in ("t", "u"):
            response = await cluster.create(name, partitions=3)
            assert response.error == 0
        leaders = cluster.loop.create_task(lead(cluster))
        chaos = Chaos(cluster)
        for _ in range(STEPS):
            await chaos.step()
        await chaos.end()
        leaders.cancel()
        await asyncio.sleep(1)
        await cluster.until(lambda: is_well(cluster), within_s=HEALS_WITHIN_S, every_s=0.1)
        assert referee.changes > 10
        # One that was paused or cut off may believe a little longer that it reigns.
        await cluster.until(lambda: reigning(cluster) == 1, within_s=HEALS_WITHIN_S, every_s=0.1)
        for running in cluster.controllers.values():
            assert running.task is not None
            assert not running.task.done(), running.task.exception()

    simulate(main, seed=seed)
