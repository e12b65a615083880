"""The ISR in the store: changed under its guards, refused when they do not hold."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from tailrace.errors import LeaseLost, StoreUnavailable
from tailrace.meta.keys import state_key
from tailrace.meta.measured import MeasuredStore
from tailrace.meta.store import Entry, Guard, Operation, Put, TxnResult
from tailrace.model import TopicPartition
from tailrace.replication.events import StoreIsr
from tailrace.transport.wire import to_partition
from tailrace.v1 import control_pb2
from unit.broker.trio import T0, T1, Trio, batch, simulate


@simulate
async def test_a_follower_that_catches_up_is_stored(trio: Trio) -> None:
    await trio.start()
    await trio.lead(0, 0, isr=(0, 1))
    await trio.produce(batch(3))
    await trio.until(lambda: len(trio.hosted(0).machine.isr) == 3)
    assert (await trio.stored()).isr == (0, 1, 2)


@simulate
async def test_a_state_that_somebody_else_wrote_is_taken_over_not_overwritten(trio: Trio) -> None:
    await trio.start(0, 1)
    await trio.lead(0, 0, isr=(0, 1))
    entry = await trio.store.get(state_key(T0))
    assert entry is not None
    # The same words at another revision: the controller, or an attempt whose answer got lost.
    await trio.store.txn([], [Put(state_key(T0), entry.value)])
    await trio.start_broker(2)
    await trio.until(lambda: trio.brokers[2].epoch)
    order = await trio.store.get(state_key(T0))
    assert order is not None
    await trio.lead(0, 0, isr=(0, 1), to=(2,))
    await trio.until(lambda: len(trio.hosted(0).machine.isr) == 3)
    assert (await trio.stored()).isr == (0, 1, 2)


@simulate
async def test_without_a_registration_nothing_is_stored(trio: Trio) -> None:
    await trio.start()
    await trio.lead(0, 0, isr=(0, 1))
    await trio.until(lambda: len(trio.hosted(0).machine.isr) == 3)
    await trio.stop_broker(2)
    assert (await trio.stored()).isr == (0, 1, 2)


@simulate
async def test_many_changes_at_once_go_together(trio: Trio) -> None:
    await trio.start()
    many = [TopicPartition("t", number) for number in range(100)]
    for partition in many:
        await trio.lead(0, 0, partition=partition)
    isr = trio.replicas(0)._isr_store
    isr._store = measured = MeasuredStore(isr._store, trio.clock)
    await asyncio.gather(*(isr.store(trio.hosted(0, each), without_2(trio, each)) for each in many))
    for partition in many:
        assert (await trio.stored(partition)).isr == (0, 1)
    calls = measured.view().calls
    assert {what: each.times.count for what, each in calls.items()} == {"get_many": 5, "txn": 5}


def without_2(trio: Trio, partition: TopicPartition) -> StoreIsr:
    """What broker 0 wishes when the last replica has fallen behind."""
    machine = trio.hosted(0, partition).machine
    revision, isr = machine.revision, machine.isr[:2]
    return StoreIsr(attempt=99, isr=isr, elr=(), expected_revision=revision, added=())


@simulate
async def test_one_that_is_refused_does_not_hold_up_the_others(trio: Trio) -> None:
    await trio.start()
    await trio.lead(0, 0)
    await trio.lead(0, 0, partition=T1)
    store = trio.replicas(0)._isr_store
    stale, fresh = trio.hosted(0), trio.hosted(0, T1)
    entry = await trio.store.get(state_key(T0))
    assert entry is not None

    wishes = [(stale, without_2(trio, T0)), (fresh, without_2(trio, T1))]
    # Somebody else writes between the look and the transaction, for one of the two.
    await trio.store.txn([], [Put(state_key(T0), entry.value)])
    for hosted, effect in wishes:
        await store.store(hosted, effect)
    assert (await trio.stored(T0)).isr == (0, 1, 2)
    assert (await trio.stored(T1)).isr == (0, 1)


@simulate
async def test_a_state_that_cannot_be_read_holds_up_nobody_and_is_tried_again(trio: Trio) -> None:
    await trio.start(0, 1)
    await trio.lead(0, 0, isr=(0, 1))
    await trio.lead(0, 0, isr=(0, 1), partition=T1)
    entry = await trio.store.get(state_key(T0))
    assert entry is not None
    await trio.store.txn([], [Put(state_key(T0), b"{")])
    await trio.start_broker(2)
    await trio.until(lambda: trio.brokers[2].epoch)
    await trio.lead(0, 0, isr=(0, 1), partition=T1, to=(0, 2))
    await trio.send_order(2, order(trio, entry.mod_revision))
    await trio.until(lambda: len(trio.hosted(0, T1).machine.isr) == 3)
    await trio.until(lambda: trio.heard("the ISR cannot be changed"))
    assert trio.brokers[0].failure is None
    await trio.store.txn([], [Put(state_key(T0), entry.value)])
    await trio.until(lambda: len(trio.hosted(0).machine.isr) == 3)


def order(trio: Trio, revision: int) -> control_pb2.PartitionOrder:
    """To follow broker 0, as it leads."""
    return control_pb2.PartitionOrder(
        partition=to_partition(T0),
        topic_id=trio.hosted(0).topic_id,
        leader=0,
        leader_epoch=0,
        isr=(0, 1),
        replicas=(0, 1, 2),
        revision=revision,
        leader_link="b0:9093",
    )


@simulate
async def test_a_change_counts_once_also_when_the_controller_tells_of_it_first(trio: Trio) -> None:
    await trio.start(0, 1)
    await trio.lead(0, 0, isr=(0, 1))
    store = trio.replicas(0)._isr_store._store
    txn = store.txn

    async def answered_late(guards: Sequence[Guard], operations: Sequence[Operation]) -> TxnResult:
        result = await txn(guards, operations)
        told = order(trio, result.revision)
        told.isr[:] = (0, 1, 2)
        await trio.send_order(0, told)
        assert len(trio.hosted(0).machine.isr) == 3
        return result

    store.txn = answered_late  # type: ignore[method-assign]
    await trio.start_broker(2)
    await trio.until(lambda: trio.brokers[2].epoch)
    await trio.lead(0, 0, isr=(0, 1), to=(0, 2))
    counts = trio.replicas(0).counts
    await trio.until(lambda: counts.isr_expands)
    assert (counts.isr_expands, counts.isr_shrinks) == (1, 0)


@simulate
async def test_a_leader_hears_of_every_error_of_the_store(trio: Trio) -> None:
    """One that hears nothing never asks again, and what it leads commits nothing any more."""
    await trio.start(0, 1)
    await trio.lead(0, 0, isr=(0, 1))
    store = trio.replicas(0)._isr_store._store
    get_many = store.get_many
    failures = [LeaseLost("a word that nobody expected"), StoreUnavailable("no answer")]

    async def fail_twice(keys: Sequence[str]) -> list[Entry | None]:
        if failures:
            raise failures.pop()
        return await get_many(keys)

    store.get_many = fail_twice  # type: ignore[method-assign]
    await trio.start_broker(2)
    await trio.until(lambda: trio.brokers[2].epoch)
    await trio.lead(0, 0, isr=(0, 1), to=(0, 2))
    await trio.until(lambda: len(trio.hosted(0).machine.isr) == 3)
    assert not failures
    assert trio.heard("a word that nobody expected")
