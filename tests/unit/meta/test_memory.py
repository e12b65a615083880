"""The store in memory: time, history and order. The contract suite has the rest."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.errors import InvariantViolation, LeaseLost, StoreUnavailable
from tailrace.meta.memory import MemoryEtcd
from tailrace.meta.store import (
    Change,
    CreatedAt,
    Delete,
    Entry,
    Guard,
    ModifiedAt,
    Operation,
    Put,
    WatchBatch,
)

Run = Callable[[Coroutine[Any, Any, Any]], Any]


def test_a_lease_ends_at_its_ttl_and_not_before(run: Run) -> None:
    async def scenario() -> None:
        server = MemoryEtcd()
        lease = server.grant_lease(5_000)
        server.txn([], [Put("/b", b"", lease), Put("/a", b"", lease)])
        await asyncio.sleep(4.9)
        assert server.keep_alive(lease) == 5_000
        await asyncio.sleep(4.999)
        assert server.get("/a") is not None
        await asyncio.sleep(0.002)
        assert server.get("/a") is None
        assert server.leases() == []
        batch = server.next_batch("/", from_revision=3)
        assert batch == WatchBatch(3, (Change("/a", None, 3), Change("/b", None, 3)))

    run(scenario())


def test_a_lease_has_a_shortest_ttl_and_whole_seconds(run: Run) -> None:
    async def scenario() -> None:
        server = MemoryEtcd()
        assert server.keep_alive(server.grant_lease(100)) == 2_000
        assert server.keep_alive(server.grant_lease(4_001)) == 5_000

    run(scenario())


def test_a_lease_that_is_due_is_not_renewed_though_its_keys_are_still_there(run: Run) -> None:
    async def scenario() -> None:
        server = MemoryEtcd(expiry_lag_ms=lambda: 400)
        lease = server.grant_lease(2_000)
        server.txn([], [Put("/a", b"", lease)])
        await asyncio.sleep(2.1)
        assert server.get("/a") is not None
        with pytest.raises(LeaseLost):
            server.keep_alive(lease)
        await asyncio.sleep(0.4)
        assert server.get("/a") is None

    run(scenario())


def test_a_new_leader_gives_every_lease_its_whole_ttl(run: Run) -> None:
    async def scenario() -> None:
        server = MemoryEtcd(expiry_lag_ms=lambda: 400)
        lease = server.grant_lease(2_000)
        server.txn([], [Put("/a", b"", lease)])
        for at_s in (1.9, 2.1):  # The second time it is due already.
            await asyncio.sleep(at_s)
            server.renew_all()
        await asyncio.sleep(1.9)
        assert server.keep_alive(lease) == 2_000
        await asyncio.sleep(2.5)
        assert server.get("/a") is None

    run(scenario())


def test_nothing_ends_while_the_server_is_down(run: Run) -> None:
    async def scenario() -> None:
        server = MemoryEtcd()
        lease = server.grant_lease(2_000)
        server.txn([], [Put("/a", b"", lease)])
        server.stop()
        await asyncio.sleep(600)
        server.start()
        await asyncio.sleep(1.9)
        assert server.get("/a") is not None
        await asyncio.sleep(0.2)
        assert server.get("/a") is None

    run(scenario())


def test_a_call_waits_for_the_server_to_come_back(run: Run) -> None:
    async def scenario() -> None:
        server = MemoryEtcd()
        store = server.connect(timeout_ms=1_000)
        server.stop()
        waiting = asyncio.ensure_future(store.get("/a"))
        await asyncio.sleep(0.9)
        server.start()
        assert await waiting is None
        server.stop()
        loop = asyncio.get_running_loop()
        before = loop.time()
        with pytest.raises(StoreUnavailable):
            await store.get("/a")
        assert loop.time() - before == pytest.approx(1)

    run(scenario())


def test_compaction_goes_forward_only() -> None:
    server = MemoryEtcd()
    for number in range(5):
        server.txn([], [Put("/a", b"%d" % number)])
    server.compact(4)
    for revision in (3, 4, 7):
        with pytest.raises(InvariantViolation):
            server.compact(revision)
    assert server.compacted_revision == 4
    assert server.next_batch("/", from_revision=4) == WatchBatch(4, (), compacted=True)
    after = server.next_batch("/", from_revision=5)
    assert after is not None
    assert [change.revision for change in after.changes] == [5, 6]
    assert server.next_batch("/other", from_revision=5) is None


def test_a_watch_that_sleeps_through_a_compaction_must_resync(run: Run) -> None:
    async def scenario() -> None:
        server = MemoryEtcd()
        watch = server.connect().watch("/", from_revision=2)
        server.txn([], [Put("/a", b"")])
        assert (await anext(watch)).revision == 2
        server.txn([], [Put("/b", b"")])
        server.txn([], [Put("/c", b"")])
        server.compact(4)
        assert [batch async for batch in watch] == [WatchBatch(4, (), compacted=True)]

    run(scenario())


def test_watches_wake_in_the_order_in_which_they_began(run: Run) -> None:
    async def scenario() -> list[int]:
        server = MemoryEtcd()
        woken: list[int] = []

        async def follow(number: int) -> None:
            async for _ in server.connect().watch("/", from_revision=2):
                woken.append(number)  # noqa: PERF401 - the others append in between.

        tasks = [asyncio.ensure_future(follow(number)) for number in range(20)]
        for _ in range(3):
            await asyncio.sleep(0.01)
            server.txn([], [Put("/a", b"")])
        await asyncio.sleep(0.01)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return woken

    assert run(scenario()) == list(range(20)) * 3


def test_each_call_lets_others_run(run: Run) -> None:
    async def scenario() -> None:
        store = MemoryEtcd().connect()
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        task = asyncio.ensure_future(count())
        calls: list[Callable[[], Awaitable[object]]] = [
            lambda: store.get("/a"),
            lambda: store.snapshot("/"),
            lambda: store.txn([], [Put("/a", b"")]),
            lambda: store.grant_lease(1_000),
            lambda: store.revoke_lease(1),
        ]
        for call in calls:
            before = turns
            await call()
            assert turns > before
        task.cancel()

    run(scenario())


KEYS = st.sampled_from(["/a", "/b", "/c/1", "/c/2"])
REVISIONS = st.integers(0, 12)
GUARDS = st.lists(
    st.builds(CreatedAt, KEYS, REVISIONS) | st.builds(ModifiedAt, KEYS, REVISIONS), max_size=2
)
OPERATIONS = st.lists(
    st.builds(Put, KEYS, st.binary(max_size=2)) | st.builds(Delete, KEYS),
    max_size=3,
    unique_by=lambda operation: operation.key,
)


@given(st.lists(st.tuples(GUARDS, OPERATIONS), max_size=25))
def test_history_and_state_tell_the_same(
    transactions: list[tuple[list[Guard], list[Operation]]],
) -> None:
    server = MemoryEtcd()
    for guards, operations in transactions:
        before = server.snapshot("/")
        result = server.txn(guards, operations)
        after = server.snapshot("/")
        assert result.revision == after.revision
        changed = after.entries != before.entries
        assert after.revision - before.revision == int(changed)
        assert result.succeeded or not changed
    replayed: dict[str, Entry] = {}
    last_revision = 1
    batch = server.next_batch("/", from_revision=1)
    for change in batch.changes if batch else ():
        assert change.revision in (last_revision, last_revision + 1)
        last_revision = change.revision
        if change.entry is None:
            del replayed[change.key]
        else:
            assert change.entry.mod_revision == change.revision
            replayed[change.key] = change.entry
    assert last_revision == server.revision
    assert tuple(replayed[key] for key in sorted(replayed)) == server.snapshot("/").entries


def test_a_copy_goes_on_by_itself(run: Run) -> None:
    """As a store does that was started from a copy of the folder of another one."""

    async def scenario() -> None:
        server = MemoryEtcd()
        lease = server.grant_lease(5_000)
        server.txn([], [Put("/a", b"1", lease)])
        copy = server.copy()
        server.txn([], [Put("/b", b"2")])
        assert copy.is_stopped
        await asyncio.sleep(60)
        assert server.get("/a") is None
        assert copy.get("/b") is None
        copy.start()
        assert copy.keep_alive(lease) == 5_000
        assert copy.grant_lease(5_000) != server.grant_lease(5_000)
        assert copy.txn([], [Put("/c", b"3")]).revision == copy.revision
        assert server.get("/c") is None
        await asyncio.sleep(10)
        assert copy.get("/a") is None
        assert copy.next_batch("/", from_revision=2) is not None

    run(scenario())
