"""What may happen to groups, by seed: to members, coordinators and the cluster below them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

from simulation import faults
from simulation.cluster import CoordinatorNode, Node
from simulation.groups import SESSION_MS, GroupRun
from tailrace.coordinator.records import Phase

MEMBERS_MAX = 8

GroupFault = Callable[["GroupNemesis"], Coroutine[Any, Any, None]]


class GroupNemesis(faults.Nemesis):
    """Plays faults of groups too."""

    run: GroupRun  # type: ignore[assignment]

    patience = 0.6

    def __init__(self, run: GroupRun, *, duration_s: float, rng: Random) -> None:
        super().__init__(run, duration_s=duration_s, rng=rng)  # type: ignore[arg-type]

    def faults(self) -> dict[Any, int]:
        return GROUP_FAULTS

    def some_node(self) -> Node:
        if self.rng.random() < 0.5:
            return self.some_coordinator()
        return super().some_node()

    def some_coordinator(self) -> CoordinatorNode:
        return self.rng.choice(self.cluster.coordinators)

    def busy(self) -> list[CoordinatorNode]:
        """The coordinators that are in the middle of a rebalance."""
        return [
            node
            for node in self.cluster.coordinators
            if node.is_up
            and node.coordinator is not None
            and node.coordinator.runtime is not None
            and any(
                group.facts.phase in {Phase.JOINING, Phase.SYNCING}
                for group in node.coordinator.runtime.list().groups
            )
        ]


async def add_member(nemesis: GroupNemesis) -> None:
    if len(nemesis.run.members) < MEMBERS_MAX:
        nemesis.run.add(nemesis.rng.choice(nemesis.run.groups))


async def kill_member(nemesis: GroupNemesis) -> None:
    """It is gone, and somebody else comes after a while."""
    member = nemesis.run.some_member()
    nemesis.run.kill(member)
    nemesis.run.add(member.group)


async def leave(nemesis: GroupNemesis) -> None:
    member = nemesis.run.some_member()
    if sum(each.group == member.group for each in nemesis.run.members) > 1:
        member.leaving = True
        nemesis.run.members.remove(member)


async def pause_member(nemesis: GroupNemesis) -> None:
    """Also for longer than its session: then it goes on with what it was doing."""
    member = nemesis.run.some_member()
    member.process.pause()
    await nemesis.last(0.2, SESSION_MS / 1_000 + 4)
    member.process.resume()


async def slow_member(nemesis: GroupNemesis) -> None:
    member = nemesis.run.some_member()
    member.slow_s = nemesis.rng.uniform(0.2, 3.0)
    await nemesis.last(1.0, 5.0)
    member.slow_s = 0.0


async def kill_coordinator(nemesis: GroupNemesis) -> None:
    node = nemesis.some_coordinator()
    node.kill()
    await nemesis.last(0.0, 6.0)
    node.start()


async def kill_coordinator_in_mid_rebalance(nemesis: GroupNemesis) -> None:
    """Somebody comes, and the coordinator dies before it is in."""
    await add_member(nemesis)
    for _ in range(200):
        busy = nemesis.busy()
        if busy:
            await nemesis.last(0.0, 0.02)
            busy[0].kill()
            await nemesis.last(0.0, 4.0)
            busy[0].start()
            return
        await asyncio.sleep(0.005)


async def stop_coordinator(nemesis: GroupNemesis) -> None:
    await faults.stop(nemesis, nemesis.some_coordinator())


async def pause_coordinator(nemesis: GroupNemesis) -> None:
    """Beyond its lease too: somebody else has its shards when it wakes up."""
    node = nemesis.some_coordinator()
    node.pause()
    await nemesis.last(0.2, 9.0)
    node.resume()


async def cut_coordinator_from_etcd(nemesis: GroupNemesis) -> None:
    """It loses its lease, and does not know: members still reach it."""
    node = nemesis.some_coordinator()
    nemesis.cluster.etcd.cut(node.name)
    await nemesis.last(1.0, 9.0)
    nemesis.cluster.etcd.heal(node.name)


GROUP_FAULTS: dict[GroupFault, int] = {
    add_member: 4,
    kill_member: 5,
    leave: 3,
    pause_member: 5,
    slow_member: 3,
    kill_coordinator: 5,
    kill_coordinator_in_mid_rebalance: 5,
    stop_coordinator: 3,
    pause_coordinator: 5,
    cut_coordinator_from_etcd: 3,
    faults.kill_broker: 3,
    faults.pause_node: 3,
    faults.kill_controller: 2,
    faults.cut_off: 3,
    faults.cut_pair: 3,
    faults.break_connections: 2,
    faults.etcd_outage: 1,
    faults.etcd_cut: 2,
    faults.etcd_trouble: 3,
    faults.store_lost: 1,
    faults.store_older: 2,
}
