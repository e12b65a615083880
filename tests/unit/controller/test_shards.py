"""Shards of groups: balanced, sticky, a higher epoch for every new owner; and the whole way."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from tailrace.controller.shards import assign, fence_transaction, shard_transactions
from tailrace.meta.image import ClusterImage, LiveCoordinator, StoredShard
from tailrace.meta.keys import (
    SHARDS,
    CoordinatorRegistration,
    ShardOwner,
    coordinator_key,
    decode,
    encode,
    shard_key,
)
from tailrace.meta.store import CreatedAt, Delete, ModifiedAt, Put, check_txn
from tailrace.model import GROUP_SHARDS
from unit.controller.cluster import BROKER_PORT, Cluster, simulate
from unit.controller.images import MINE, decided, image

IDS = st.sets(st.integers(0, 12), max_size=8)


def coordinator(number: int, epoch: int) -> LiveCoordinator:
    registration = CoordinatorRegistration(coordinator_id=number, host=f"k{number}", port=9)
    return LiveCoordinator(registration, epoch, epoch)


def with_coordinators(before: ClusterImage, numbers: set[int], epoch: int) -> ClusterImage:
    """These are live now; those who were there before are still in the same life."""
    live = {
        each: before.coordinators.get(each) or coordinator(each, epoch) for each in sorted(numbers)
    }
    return replace(before, coordinators=live)


def after(before: ClusterImage) -> ClusterImage:
    """The image once the transactions have been done; they must leave nothing to do."""
    shards = dict(before.shards)
    for transaction in shard_transactions(before, MINE):
        check_txn(transaction.guards, transaction.operations)
        for operation in transaction.operations:
            assert isinstance(operation, Put)
            shard = int(operation.key.removeprefix(SHARDS))
            old = shards.get(shard)
            assert ModifiedAt(operation.key, old.revision if old else 0) in transaction.guards
            record = decode(ShardOwner, operation.value)
            assert record.epoch == (old.record.epoch + 1 if old else 0)
            live = before.coordinators[record.owner]
            assert record.owner_epoch == live.epoch
            assert CreatedAt(coordinator_key(record.owner), live.epoch) in transaction.guards
            shards[shard] = StoredShard(record, 500)
    done = replace(before, shards=shards)
    assert shard_transactions(done, MINE) == ()
    return done


@given(st.lists(IDS, max_size=8))
def test_shards_are_balanced_and_move_as_little_as_can_be(rounds: list[set[int]]) -> None:
    now = image(())
    for number, live in enumerate(rounds):
        before = now
        now = after(with_coordinators(before, live, 100 + number))
        if not live:
            assert now.shards == before.shards
            continue
        sizes = Counter(each.record.owner for each in now.shards.values())
        assert sum(sizes.values()) == GROUP_SHARDS
        assert max(sizes.values()) - min(sizes[each] for each in live) <= 1
        owned = Counter(
            each.record.owner for each in before.shards.values() if each.record.owner in live
        )
        moved = [
            shard
            for shard, stored in now.shards.items()
            if shard not in before.shards
            or before.shards[shard].record.owner != stored.record.owner
        ]
        room = sum(max(0, sizes[each] - owned[each]) for each in live)
        assert len(moved) == room, "only what somebody lacks has moved"


def test_a_new_life_of_the_same_coordinator_has_a_higher_epoch() -> None:
    first = after(with_coordinators(image(()), {1, 2}, 100))
    again = after(replace(first, coordinators={**first.coordinators, 2: coordinator(2, 200)}))
    for shard, stored in again.shards.items():
        assert stored.record.owner == first.shards[shard].record.owner
        assert stored.record.epoch == (stored.record.owner == 2)


def test_shards_are_given_before_partitions_are_mended() -> None:
    found = decided(with_coordinators(image((), {}), {3}, 100))
    assert [each.what for each in found.transactions] == [
        "give 50 shards of groups to coordinators [3]"
    ]


def test_the_first_coordinator_gets_all() -> None:
    assert set(assign({4: coordinator(4, 1)}, {}, count=7).values()) == {4}


def test_a_fenced_coordinator_is_only_that_life_of_it() -> None:
    found = fence_transaction(coordinator(4, 17), MINE)
    assert found.guards == (MINE, CreatedAt("/coordinators/ids/4", 17))
    assert found.operations == (Delete("/coordinators/ids/4"),)


def test_shards_follow_registrations_and_a_refused_connection_does_not_wait_for_the_lease() -> None:
    async def main(cluster: Cluster) -> None:
        await cluster.start(brokers=1)
        store = cluster.etcd.connect("k")
        lease = await store.grant_lease(3_600_000)

        async def register(number: int, port: int) -> None:
            record = CoordinatorRegistration(coordinator_id=number, host="b1", port=port)
            await store.txn([], [Put(coordinator_key(number), encode(record), lease)])
            await asyncio.sleep(1)

        async def owners() -> dict[int, int]:
            found = await store.snapshot(SHARDS)
            return dict(Counter(decode(ShardOwner, each.value).owner for each in found.entries))

        await register(1, BROKER_PORT)
        assert await owners() == {1: 50}
        # Nobody listens there: the registration goes, long before its lease ends.
        await register(2, 9)
        assert await store.get(coordinator_key(2)) is None
        assert await owners() == {1: 50}
        entry = await store.get(shard_key(49))
        assert entry is not None
        assert decode(ShardOwner, entry.value).epoch in {0, 2}
        (picture,) = cluster.brokers[1].pictures[-1:]
        assert {each.owner for each in picture.group_shards} == {1}

    simulate(main)
