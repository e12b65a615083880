"""The shards that coordinators are given."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from simulation.etcd import SimEtcd
from simulation.loop import SimLoop
from tailrace.coordinator.shard_map import ShardMap
from tailrace.meta.keys import ShardOwner, encode, shard_key
from tailrace.meta.store import Delete, Put


def simulate(main: Callable[[SimLoop, SimEtcd], Awaitable[None]]) -> None:
    async def start(loop: SimLoop) -> None:
        await main(loop, SimEtcd(loop.fork_rng("etcd")))

    SimLoop(1).run(start)


def test_shards_are_followed_over_compaction_and_outage() -> None:
    async def main(loop: SimLoop, etcd: SimEtcd) -> None:
        store = etcd.connect("k1")
        changes: list[int] = []
        shards = ShardMap(store, on_change=lambda: changes.append(1), say=lambda _: None)
        following = loop.create_task(shards.run())
        await asyncio.sleep(1)
        assert (shards.count, len(changes)) == (0, 1)

        async def give(shard: int, epoch: int) -> ShardOwner:
            owner = ShardOwner(owner=1, owner_epoch=5, epoch=epoch)
            await store.txn([], [Put(shard_key(shard), encode(owner))])
            return owner

        first = await give(3, 0)
        await asyncio.sleep(1)
        assert shards.owners == {3: first}
        assert shards.count == 4
        etcd.stop()
        await asyncio.sleep(2)
        etcd.start()
        second = await give(3, 1)
        etcd.compact()
        await asyncio.sleep(3)
        assert shards.owners == {3: second}
        await store.txn([], [Put(shard_key(3), b"?"), Put("/coordinators/shards/x", b"?")])
        await asyncio.sleep(1)
        assert shards.owners == {}
        await store.txn([], [Delete(shard_key(3))])
        await asyncio.sleep(1)
        assert shards.count == 0
        following.cancel()

    simulate(main)
