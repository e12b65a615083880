from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from tailrace.clock import ManualClock
from tailrace.errors import LeaseLost, StoreUnavailable
from tailrace.meta.measured import SLOW_ANSWER_MS, MeasuredStore
from tailrace.meta.memory import MemoryEtcd
from tailrace.meta.store import CreatedAt, Put


async def test_it_answers_as_the_store_does_and_counts() -> None:
    clock, etcd = ManualClock(), MemoryEtcd()
    store = MeasuredStore(etcd.connect(), clock)
    assert store.view().silence_ms is None
    result = await store.txn([CreatedAt("/a", 0)], [Put("/a", b"1")])
    assert result.succeeded
    entry = await store.get("/a")
    assert entry is not None
    assert entry.value == b"1"
    assert (await store.snapshot("/")).entries == (entry,)
    async with aclosing(store.watch("/", from_revision=1)) as watch:
        assert (await anext(watch)).changes[0].key == "/a"
    clock.advance(700)
    view = store.view()
    assert {call: calls.times.count for call, calls in view.calls.items()} == {
        "txn": 1,
        "get": 1,
        "snapshot": 1,
    }
    assert view.silence_ms == 700
    await store.close()


async def test_calls_that_fail_are_counted_apart() -> None:
    etcd = MemoryEtcd()
    store = MeasuredStore(etcd.connect(timeout_ms=1), ManualClock())
    etcd.stop()
    with pytest.raises(StoreUnavailable):
        async with asyncio.timeout(20):
            await store.get("/a")
    calls = store.view().calls["get"]
    assert (calls.failed, calls.times.count) == (1, 0)
    assert store.view().silence_ms is None


async def test_the_age_of_the_lease() -> None:
    clock, etcd = ManualClock(), MemoryEtcd()
    store = MeasuredStore(etcd.connect(), clock)
    assert store.view().lease_age_ms is None
    lease = await store.grant_lease(5_000)
    clock.advance(1_000)
    assert store.view().lease_age_ms == 1_000
    assert await store.keep_alive(lease) >= 4_000
    assert store.view().lease_age_ms == 0
    await store.revoke_lease(lease)
    assert store.view().lease_age_ms is None
    # An answer, though not the one that was hoped for.
    clock.advance(50)
    with pytest.raises(LeaseLost):
        await store.keep_alive(lease)
    assert store.view().silence_ms == 0
    assert store.view().lease_age_ms is None


async def test_a_store_that_failed_was_in_trouble_for_a_while() -> None:
    clock, etcd = ManualClock(), MemoryEtcd()
    store = MeasuredStore(etcd.connect(timeout_ms=1), clock)
    await store.snapshot("/")
    assert not store.was_in_trouble(5_000)
    etcd.stop()
    with pytest.raises(StoreUnavailable):
        async with asyncio.timeout(20):
            await store.get("/a")
    assert store.was_in_trouble(5_000)
    clock.advance(5_000)
    assert store.was_in_trouble(5_000)
    clock.advance(1)
    assert not store.was_in_trouble(5_000)


async def test_a_store_that_answers_late_is_in_trouble_while_it_is_waited_for_and_after() -> None:
    clock, etcd = ManualClock(), MemoryEtcd()
    store = MeasuredStore(etcd.connect(), clock)
    etcd.stop()
    call = asyncio.create_task(store.get("/a"))
    await asyncio.sleep(0)
    clock.advance(SLOW_ANSWER_MS - 1)
    assert not store.was_in_trouble(5_000)
    clock.advance(1)
    assert store.was_in_trouble(5_000)
    etcd.start()
    await call
    clock.advance(5_000)
    assert store.was_in_trouble(5_000)
    clock.advance(1)
    assert not store.was_in_trouble(5_000)


async def test_a_call_that_was_given_up_is_not_waited_for() -> None:
    clock, etcd = ManualClock(), MemoryEtcd()
    store = MeasuredStore(etcd.connect(), clock)
    etcd.stop()
    call = asyncio.create_task(store.get("/a"))
    await asyncio.sleep(0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    clock.advance(SLOW_ANSWER_MS)
    assert not store.was_in_trouble(5_000)
