"""A plan is written whole, or leaves a store that nobody believes."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import pairwise

import pytest

from simulation.loop import SimLoop, run
from tailrace.meta.image import ClusterImage
from tailrace.meta.keys import (
    CLUSTER,
    ROOT,
    ClusterRecord,
    PartitionState,
    TopicRecord,
    broker_key,
    client_config_key,
    decode,
    encode,
)
from tailrace.meta.lineage import Standing, Witness, judge
from tailrace.meta.memory import MemoryEtcd, MemoryStore
from tailrace.meta.rebuild import OPERATIONS_MAX, adopt, rebuild
from tailrace.meta.recovery import (
    AdoptionPlan,
    Certainty,
    PartitionReport,
    RecoveryPlan,
    RecoveryRefused,
    settled_keys,
)
from tailrace.meta.store import Put
from tailrace.model import BrokerId, LeaderEpoch, TopicId, TopicPartition

FOUND = ClusterRecord(cluster_id="c", store_id="old")
WITNESS = Witness(cluster_id="c", store_id="old", revision=900)
WANTED = {client_config_key(f"c{number}"): b"%d" % number for number in range(300)}


def plan(revision: int, entries: dict[str, bytes] | None = None) -> RecoveryPlan:
    return RecoveryPlan(
        record=ClusterRecord(cluster_id="c", store_id="new", generation=1, former=("old",)),
        found=FOUND if revision else None,
        found_revision=revision,
        entries=WANTED if entries is None else entries,
        standing=Standing.OLDER,
        problem="it went back",
        base=WITNESS,
        partitions=(),
    )


async def standing(store: MemoryStore) -> Standing:
    return judge(WITNESS, await store.snapshot(CLUSTER)).standing


def test_what_is_wanted_is_written_and_what_is_not_goes() -> None:
    async def body(_: SimLoop) -> None:
        store = MemoryEtcd().connect()
        lease = await store.grant_lease(60_000)
        await store.txn(
            [],
            [
                Put(CLUSTER, encode(FOUND)),
                Put(client_config_key("c1"), b"1"),
                Put(client_config_key("gone"), b"x"),
                Put(broker_key(1), b"lives", lease),
                Put("/somebody/elses", b"stays"),
            ],
        )
        seen = await store.snapshot(ROOT)
        revision = seen.revision
        told: list[tuple[int, int]] = []
        done = await rebuild(
            store,
            replace(plan(revision), seen=settled_keys(seen)),
            started="now",
            progress=lambda *it: told.append(it),
        )
        found = {each.key: each.value for each in (await store.snapshot(ROOT)).entries}
        record = decode(ClusterRecord, found.pop(CLUSTER))
        assert found.pop("/somebody/elses") == b"stays"
        assert found == WANTED
        assert record == plan(revision).record
        # What was there already is not written again.
        assert done == len(WANTED) - 1 + 2
        assert told[0] == (0, done)
        assert told[-1] == (done, done)
        assert all(b[0] - a[0] <= OPERATIONS_MAX for a, b in pairwise(told))
        assert await standing(store) is Standing.REPLACED

    run(body, 1)


def test_one_that_is_broken_off_is_believed_by_nobody_and_can_be_done_again() -> None:
    async def body(_: SimLoop) -> None:
        store = MemoryEtcd().connect()

        def broken(done: int, _: int) -> None:
            if done > OPERATIONS_MAX:
                raise asyncio.CancelledError

        with pytest.raises(asyncio.CancelledError):
            await rebuild(store, plan(0), started="by me", progress=broken)
        assert await standing(store) is Standing.RECOVERING
        half = await store.get(CLUSTER)
        assert half is not None
        again = replace(
            plan(half.mod_revision),
            found=decode(ClusterRecord, half.value),
            seen=settled_keys(await store.snapshot(ROOT)),
        )
        await rebuild(store, again, started="again", progress=lambda *_: None)
        found = {each.key: each.value for each in (await store.snapshot(ROOT)).entries}
        assert WANTED.items() <= found.items()
        assert await standing(store) is Standing.REPLACED

    run(body, 1)


def test_two_at_once_do_not_mix() -> None:
    """Nor does one mix with a controller that founds a cluster in the empty store meanwhile."""

    async def body(_: SimLoop) -> None:
        store = MemoryEtcd().connect()
        other = encode(ClusterRecord(cluster_id="other", store_id="o"))

        async def interfere() -> None:
            await store.txn([], [Put(CLUSTER, other)])

        with pytest.raises(RecoveryRefused, match="somebody else"):
            await rebuild(store, plan(77), started="now", progress=lambda *_: None)
        calls: list[asyncio.Task[None]] = []

        def progress(done: int, _: int) -> None:
            if done == 0:
                calls.append(asyncio.get_running_loop().create_task(interfere()))

        with pytest.raises(RecoveryRefused, match="somebody else"):
            await rebuild(store, plan(0), started="now", progress=progress)
        await calls[0]
        found = await store.get(CLUSTER)
        assert found is not None
        assert found.value == other

    run(body, 1)


def test_a_store_that_changed_since_the_plan_was_made_is_left_as_it_is() -> None:
    """The right one may have come back while a person was asked."""

    async def body(_: SimLoop) -> None:
        store = MemoryEtcd().connect()
        await store.txn([], [Put(CLUSTER, encode(FOUND))])
        seen = await store.snapshot(ROOT)
        made = replace(plan(seen.revision), seen=settled_keys(seen))
        await store.txn([], [Put(client_config_key("new"), b"1")])
        with pytest.raises(RecoveryRefused, match="has changed since the plan was made"):
            await rebuild(store, made, started="now", progress=lambda *_: None)
        found = {each.key: each.value for each in (await store.snapshot(ROOT)).entries}
        assert found == {CLUSTER: encode(FOUND), client_config_key("new"): b"1"}

    run(body, 1)


def test_large_values_go_in_transactions_that_etcd_takes() -> None:
    async def body(_: SimLoop) -> None:
        store = MemoryEtcd().connect()
        large = {client_config_key(f"c{number}"): b"x" * 400_000 for number in range(5)}
        await rebuild(store, plan(0, large), started="now", progress=lambda *_: None)
        assert len((await store.snapshot(ROOT)).entries) == 6

    run(body, 1)


def adoption(
    partitions: int, *, cluster_revision: int = 2, present: int = 0, revision: int = 0
) -> AdoptionPlan:
    state = PartitionState(
        controller_epoch=0, leader=BrokerId(-1), leader_epoch=LeaderEpoch(1), isr=(BrokerId(1),)
    )
    numbers = range(partitions)
    return AdoptionPlan(
        name="t",
        record=TopicRecord(
            topic_id=TopicId("i"), assignment=dict.fromkeys(numbers, (BrokerId(1),)), config={}
        ),
        partitions=tuple(
            PartitionReport(
                partition=TopicPartition("t", number),
                topic_id="i",
                state=state,
                replicas=(BrokerId(1),),
                certainty=Certainty.INFERRED,
                why="",
            )
            for number in numbers[present:]
        ),
        cluster=FOUND,
        cluster_revision=cluster_revision,
        numbers={"/producers/next_id": b"1000001"},
        present=present,
        topic_revision=revision,
    )


def test_a_topic_is_taken_back_with_states_for_all_that_its_record_names() -> None:
    """Also when it is broken off in the middle: what has no state would be made anew."""

    async def body(_: SimLoop) -> None:
        store = MemoryEtcd().connect()
        await store.txn([], [Put(CLUSTER, encode(FOUND))])
        assert await adopt(store, adoption(120), store_id="n", now_ms=1) == 120
        assert await standing(store) is Standing.REPLACED
        counter = await store.get("/producers/next_id")
        assert counter is not None
        assert counter.value == b"1000001"
        image = ClusterImage.from_snapshot(await store.snapshot(ROOT))
        assert len(image.topics["t"].record.assignment) == len(image.states["t"]) == 120
        with pytest.raises(RecoveryRefused, match="somebody else"):
            await adopt(store, adoption(121), store_id="m", now_ms=1)
        found = await store.get(CLUSTER)
        assert found is not None
        rest = adoption(
            130,
            cluster_revision=found.mod_revision,
            present=120,
            revision=image.topics["t"].revision,
        )
        assert await adopt(store, rest, store_id="m", now_ms=1) == 10
        image = ClusterImage.from_snapshot(await store.snapshot(ROOT))
        assert len(image.topics["t"].record.assignment) == len(image.states["t"]) == 130

    run(body, 1)
