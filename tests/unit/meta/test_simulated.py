"""The simulated etcd: each fault does what the real one does, and chance comes from the seed."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any, Final

import pytest

from simulation.etcd import CALL_TIMEOUT_MS, SimEtcd, SimStore
from tailrace.errors import InvariantViolation, LeaseLost, StoreUnavailable
from tailrace.meta.store import CreatedAt, Delete, Put, WatchBatch

Run = Callable[[Coroutine[Any, Any, Any]], Any]
TIMEOUT_S: Final = CALL_TIMEOUT_MS / 1_000
TTL_MS: Final = 5_000


def new(seed: int = 1) -> tuple[SimEtcd, SimStore]:
    etcd = SimEtcd(random.Random(seed))
    return etcd, etcd.connect("a")


async def fails_after(call: Coroutine[Any, Any, Any], seconds: float) -> None:
    loop = asyncio.get_running_loop()
    before = loop.time()
    with pytest.raises(StoreUnavailable):
        await call
    assert loop.time() - before == pytest.approx(seconds, abs=0.01)


async def follow(store: SimStore, seen: list[str], from_revision: int = 1) -> str:
    try:
        async for batch in store.watch("/", from_revision=from_revision):
            seen.extend(change.key for change in batch.changes)
            if batch.compacted:
                return "compacted"
    except StoreUnavailable as error:
        return str(error)
    return "ended"


def test_calls_take_time_and_are_done_in_between(run: Run) -> None:
    async def scenario() -> None:
        etcd, store = new()
        loop = asyncio.get_running_loop()
        await store.txn([], [Put("/a", b"1")])
        assert 0.0004 <= loop.time() <= 0.004
        etcd.slow(100)
        before = loop.time()
        await store.get("/a")
        assert 0.2 <= loop.time() - before <= 0.21
        etcd.slow(0)
        etcd.slow(50, "a")
        before = loop.time()
        await etcd.connect("b").get("/a")
        assert loop.time() - before <= 0.01
        before = loop.time()
        await store.get("/a")
        assert 0.1 <= loop.time() - before <= 0.11
        etcd.heal()

    run(scenario())


def test_the_same_seed_gives_the_same_run(run: Run) -> None:
    async def scenario(seed: int) -> list[tuple[float, str]]:
        etcd, _ = new(seed)
        trace: list[tuple[float, str]] = []
        loop = asyncio.get_running_loop()

        async def work(client: str) -> None:
            store = etcd.connect(client)
            for number in range(20):
                try:
                    result = await store.txn([], [Put(f"/{client}", b"%d" % number)])
                    trace.append((loop.time(), f"{client} {result.revision}"))
                except StoreUnavailable as error:
                    trace.append((loop.time(), f"{client} {error}"))

        tasks = [asyncio.ensure_future(work(client)) for client in "abc"]
        for _ in range(5):
            await asyncio.sleep(0.01)
            etcd.leader_change()
        await asyncio.gather(*tasks)
        return trace

    first, again, other = run(scenario(1)), run(scenario(1)), run(scenario(2))
    assert first == again
    assert first != other


def test_a_call_that_timed_out_may_be_done_later(run: Run) -> None:
    async def scenario() -> None:
        etcd, store = new()
        etcd.slow(TIMEOUT_S * 1_000)
        await fails_after(store.txn([], [Put("/a", b"1")]), TIMEOUT_S)
        await asyncio.sleep(0.01)
        assert etcd.server.get("/a") is not None

    run(scenario())


def test_a_cancelled_caller_does_not_take_its_request_back(run: Run) -> None:
    async def scenario() -> None:
        etcd, store = new()
        task = asyncio.ensure_future(store.txn([], [Put("/a", b"1")]))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.sleep(0.01)
        assert task.cancelled()
        assert etcd.server.get("/a") is not None

    run(scenario())


def test_errors_come_back_too(run: Run) -> None:
    async def scenario() -> None:
        _, store = new()
        with pytest.raises(LeaseLost):
            await store.keep_alive(7)
        with pytest.raises(InvariantViolation):
            await store.txn([], [Put("/a", b""), Delete("/a")])
        await store.close()
        await fails_after(store.get("/a"), 0)

    run(scenario())


def test_f18_etcd_down_for_ten_minutes(run: Run) -> None:
    async def scenario() -> None:
        etcd, store = new()
        lease = await store.grant_lease(TTL_MS)
        await store.txn([], [Put("/a", b"", lease)])
        seen: list[str] = []
        watch = asyncio.ensure_future(follow(store, seen))
        await asyncio.sleep(0.1)
        etcd.stop()
        assert await watch == "the watch was broken off"
        await fails_after(store.get("/a"), TIMEOUT_S)
        await fails_after(store.keep_alive(lease), TIMEOUT_S)
        await fails_after(store.txn([], [Put("/b", b"")]), TIMEOUT_S)
        await asyncio.sleep(600)
        etcd.start()
        assert await store.get("/a") is not None
        assert await store.get("/b") is None
        assert await store.keep_alive(lease) == TTL_MS
        assert seen == ["/a"]

    run(scenario())


def test_calls_on_their_way_when_etcd_goes_down_are_done_or_not(run: Run) -> None:
    async def scenario(seed: int) -> bool:
        etcd, store = new(seed)
        task = asyncio.ensure_future(store.txn([], [Put("/a", b"")]))
        await asyncio.sleep(0)
        etcd.stop()
        with pytest.raises(StoreUnavailable, match="not known"):
            await task
        etcd.start()
        await asyncio.sleep(1)
        return etcd.server.get("/a") is not None

    outcomes = [run(scenario(seed)) for seed in range(20)]
    assert set(outcomes) == {True, False}


def test_a_client_that_is_cut_off_loses_its_lease(run: Run) -> None:
    async def scenario() -> None:
        etcd, store = new()
        other = etcd.connect("b")
        lease = await store.grant_lease(TTL_MS)
        await store.txn([], [Put("/a", b"", lease)])
        seen: list[str] = []
        watch = asyncio.ensure_future(follow(store, seen))
        await asyncio.sleep(0.1)
        etcd.cut("a")
        await fails_after(store.txn([], [Put("/b", b"")]), TIMEOUT_S)
        assert await watch == "nothing came from etcd for too long"
        await asyncio.sleep(1)
        assert await other.get("/a") is None
        etcd.heal("a")
        with pytest.raises(LeaseLost):
            await store.keep_alive(lease)
        assert etcd.server.get("/b") is None

    run(scenario())


def test_a_short_cut_only_delays_a_watch(run: Run) -> None:
    async def scenario() -> None:
        etcd, store = new()
        other = etcd.connect("b")
        seen: list[str] = []
        watch = asyncio.ensure_future(follow(store, seen))
        await asyncio.sleep(0.1)
        etcd.cut("a")
        await other.txn([], [Put("/a", b"")])
        await asyncio.sleep(1)
        assert seen == []
        etcd.heal("a")
        await asyncio.sleep(0.1)
        assert seen == ["/a"]
        watch.cancel()

    run(scenario())


def test_a_deaf_client_is_obeyed_and_does_not_know(run: Run) -> None:
    async def scenario() -> None:
        etcd, store = new()
        etcd.cut("a", replies_only=True)
        await fails_after(store.txn([], [Put("/a", b"1")]), TIMEOUT_S)
        assert etcd.server.get("/a") is not None

    run(scenario())


def test_f16b_a_deposed_leader_renews_what_the_new_one_ends(run: Run) -> None:
    async def scenario() -> None:
        etcd, store = new()
        other = etcd.connect("b")
        lease = await store.grant_lease(TTL_MS)
        epoch = (await store.txn([], [Put("/a", b"", lease)])).revision
        etcd.depose("a")
        for _ in range(10):
            await asyncio.sleep(1)
            assert await store.keep_alive(lease) == TTL_MS
        assert await other.get("/a") is None
        # A guarded transaction tells the truth: not now, and not later.
        guard = CreatedAt("/a", epoch)
        await fails_after(store.txn([guard], [Put("/b", b"")]), TIMEOUT_S)
        etcd.heal("a")
        assert not (await store.txn([guard], [Put("/b", b"")])).succeeded
        with pytest.raises(LeaseLost):
            await store.keep_alive(lease)

    run(scenario())


def test_a_deposed_leader_has_nothing_to_say_to_watches(run: Run) -> None:
    async def scenario() -> None:
        etcd, store = new()
        seen: list[str] = []
        watch = asyncio.ensure_future(follow(store, seen))
        await asyncio.sleep(0.1)
        etcd.depose("a")
        await etcd.connect("b").txn([], [Put("/a", b"")])
        await asyncio.sleep(60)
        assert seen == []
        etcd.heal("a")
        await asyncio.sleep(0.1)
        assert seen == ["/a"]
        watch.cancel()

    run(scenario())


def test_f16_a_stuck_leader_revokes_all_leases(run: Run) -> None:
    async def scenario() -> None:
        etcd, store = new()
        for number in range(3):
            lease = await store.grant_lease(TTL_MS)
            await store.txn([], [Put(f"/brokers/ids/{number}", b"", lease)])
        before = etcd.server.revision
        etcd.revoke_all_leases()
        snapshot = await store.snapshot("/")
        assert snapshot == (before + 3, ())

    run(scenario())


def test_f17_leader_changes_keep_a_dead_lease_alive(run: Run) -> None:
    async def scenario() -> None:
        etcd, store = new()
        lease = await store.grant_lease(TTL_MS)
        await store.txn([], [Put("/a", b"", lease)])
        for _ in range(5):
            await asyncio.sleep(4)
            etcd.leader_change(200)
        assert etcd.server.get("/a") is not None
        await asyncio.sleep(TTL_MS / 1_000 + 0.6)
        assert etcd.server.get("/a") is None

    run(scenario())


def test_calls_wait_for_an_election(run: Run) -> None:
    async def scenario() -> None:
        etcd, store = new()
        etcd.leader_change(1_000)
        await store.get("/a")
        assert asyncio.get_running_loop().time() >= 1
        etcd.leader_change(3_000)
        await fails_after(store.get("/a"), TIMEOUT_S)

    run(scenario())


def test_f19_a_stranded_member_answers_no_read(run: Run) -> None:
    async def scenario() -> None:
        etcd, store = new()
        await store.txn([], [Put("/a", b"old")])
        etcd.strand("a")
        await etcd.connect("b").txn([], [Put("/a", b"new")])
        await fails_after(store.get("/a"), TIMEOUT_S)
        await fails_after(store.snapshot("/"), TIMEOUT_S)
        etcd.heal()
        entry = await store.get("/a")
        assert entry is not None
        assert entry.value == b"new"

    run(scenario())


def test_f20_compaction_while_a_watcher_is_away(run: Run) -> None:
    async def scenario() -> None:
        etcd, store = new()
        other = etcd.connect("b")
        seen: list[str] = []
        watch = asyncio.ensure_future(follow(store, seen))
        near: list[str] = []
        watch_near = asyncio.ensure_future(follow(other, near))
        await other.txn([], [Put("/a", b"")])
        await asyncio.sleep(0.1)
        etcd.cut("a")
        await other.txn([], [Delete("/a")])
        await asyncio.sleep(0.1)
        etcd.compact()
        etcd.compact()
        etcd.heal("a")
        assert await watch == "compacted"
        assert seen == ["/a"]
        await other.txn([], [Put("/b", b"")])
        await asyncio.sleep(0.1)
        assert near == ["/a", "/a", "/b"]
        watch_near.cancel()

    run(scenario())


def test_faults_are_traced() -> None:
    said: list[str] = []
    etcd = SimEtcd(random.Random(1), trace=said.append)
    etcd.connect("a")
    etcd.cut("a")
    etcd.heal("a")
    etcd.slow(5)
    assert said == ["etcd is cut for a", "etcd is good for a", "etcd is slower by 5 ms for all"]


def test_a_batch_that_was_on_its_way_arrives_after_the_cut(run: Run) -> None:
    async def scenario() -> None:
        etcd, store = new()
        watch = store.watch("/", from_revision=1)
        waiting = asyncio.ensure_future(_next(watch))
        await asyncio.sleep(0.1)
        etcd.slow(100)
        etcd.server.txn([], [Put("/a", b"")])
        await asyncio.sleep(0.05)
        etcd.cut("a")
        etcd.server.txn([], [Put("/b", b"")])
        await asyncio.sleep(0.2)
        etcd.heal()
        assert [change.key for change in (await waiting).changes] == ["/a"]
        assert [change.key for change in (await anext(watch)).changes] == ["/b"]
        await watch.aclose()

    run(scenario())


async def _next(watch: Any) -> WatchBatch:
    batch: WatchBatch = await anext(watch)
    return batch
