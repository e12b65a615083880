"""One contract for every metadata store: in memory, simulated, and on a real etcd server."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Final, Protocol

import pytest

from simulation.etcd import SimEtcd
from tailrace.errors import InvariantViolation, LeaseLost, StoreUnavailable
from tailrace.meta.embedded import EtcdConfig, EtcdProcess, find_etcd, start_etcd
from tailrace.meta.etcd import EtcdStore
from tailrace.meta.memory import MemoryEtcd
from tailrace.meta.store import (
    TXN_OPERATIONS_MAX,
    Change,
    CreatedAt,
    Delete,
    Guard,
    MetadataStore,
    ModifiedAt,
    Operation,
    Put,
    WatchBatch,
)

pytestmark = pytest.mark.integration

# The shortest that the etcd of these tests allows, and how much later than that it may look.
TTL_MS: Final = 1_000
LATE_MS: Final = 800
TIMEOUT_MS: Final = 1_500
SOON_S: Final = 10
# How late a busy machine may be.
SLACK_S: Final = 1.5

Watch = AsyncGenerator[WatchBatch, None]


class Server(Protocol):
    """What the suite does to a store beside using it."""

    def connect(self) -> MetadataStore: ...

    async def compact(self, revision: int) -> None: ...

    async def stop(self) -> None: ...

    async def start(self) -> None: ...


class InMemory:
    def __init__(self) -> None:
        self._server = MemoryEtcd(lease_ttl_min_ms=TTL_MS)

    def connect(self) -> MetadataStore:
        return self._server.connect(timeout_ms=TIMEOUT_MS)

    async def compact(self, revision: int) -> None:
        self._server.compact(revision)

    async def stop(self) -> None:
        self._server.stop()

    async def start(self) -> None:
        self._server.start()


class Simulated:
    def __init__(self) -> None:
        self._etcd = SimEtcd(random.Random(1), lease_ttl_min_ms=TTL_MS)
        self._clients = itertools.count()

    def connect(self) -> MetadataStore:
        return self._etcd.connect(f"client-{next(self._clients)}", timeout_ms=TIMEOUT_MS)

    async def compact(self, revision: int) -> None:
        self._etcd.server.compact(revision)

    async def stop(self) -> None:
        self._etcd.stop()

    async def start(self) -> None:
        self._etcd.start()


class Real:
    """One etcd for all tests, each below a key of its own."""

    _namespaces = itertools.count()

    def __init__(self, process: EtcdProcess) -> None:
        self._process = process
        self._namespace = f"/test-{next(self._namespaces)}"

    def connect(self) -> EtcdStore:
        return EtcdStore([self._process.endpoint], namespace=self._namespace, timeout_ms=TIMEOUT_MS)

    async def compact(self, revision: int) -> None:
        store = self.connect()
        await store.compact(revision)
        await store.close()

    async def stop(self) -> None:
        await self._process.kill()

    async def start(self) -> None:
        self._process = await start_etcd(self._process.config)


@pytest.fixture(scope="module")
def shared_etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdProcess]:
    process = asyncio.run(start_etcd(etcd_config(tmp_path_factory.mktemp("etcd"))))
    yield process
    asyncio.run(process.stop())


def etcd_config(folder: Path) -> EtcdConfig:
    return EtcdConfig(
        folder=folder, binary=find_etcd(), heartbeat_ms=20, election_ms=200, fsync=False
    )


@pytest.fixture(params=["memory", "simulated", "etcd"])
def server(request: pytest.FixtureRequest) -> Server:
    if request.param == "memory":
        return InMemory()
    if request.param == "simulated":
        return Simulated()
    return Real(request.getfixturevalue("shared_etcd"))


@pytest.fixture
async def store(server: Server) -> AsyncIterator[MetadataStore]:
    connected = server.connect()
    yield connected
    await connected.close()


@pytest.fixture
async def other(server: Server) -> AsyncIterator[MetadataStore]:
    connected = server.connect()
    yield connected
    await connected.close()


async def put(store: MetadataStore, key: str, value: bytes = b"", lease: int = 0) -> int:
    result = await store.txn([], [Put(key, value, lease)])
    assert result.succeeded
    return result.revision


async def revision_of(store: MetadataStore) -> int:
    return (await store.snapshot("/")).revision


async def until_it_answers(store: MetadataStore) -> None:
    async with asyncio.timeout(SOON_S):
        while True:
            try:
                await store.get("/a")
            except StoreUnavailable:
                continue
            return


async def next_batch(watch: Watch) -> WatchBatch:
    return await anext(watch)


async def changes(watch: Watch, number: int) -> list[Change]:
    found: list[Change] = []
    async with asyncio.timeout(SOON_S):
        while len(found) < number:
            batch = await anext(watch)
            assert not batch.compacted
            assert batch.changes
            assert batch.revision == batch.changes[-1].revision
            found.extend(batch.changes)
    return found


def summary(found: list[Change]) -> list[tuple[str, bytes | None]]:
    return [(each.key, each.entry and each.entry.value) for each in found]


# ---------------------------------------------------------------------- reads, revisions, guards


async def test_a_key_that_is_not_there(store: MetadataStore) -> None:
    assert await store.get("/a") is None
    assert (await store.snapshot("/a")).entries == ()
    assert await revision_of(store) >= 1


async def test_several_keys_in_one_request(store: MetadataStore) -> None:
    first, second = await put(store, "/a", b"1"), await put(store, "/c", b"2")
    a, c = ("/a", b"1", first, first, 0), ("/c", b"2", second, second, 0)
    assert await store.get_many(["/c", "/b", "/a", "/c"]) == [c, None, a, c]
    assert await store.get_many([]) == []
    with pytest.raises(InvariantViolation, match="keys are more than"):
        await store.get_many(["/a"] * (TXN_OPERATIONS_MAX + 1))


async def test_create_and_mod_revisions(store: MetadataStore) -> None:
    created = await put(store, "/a", b"1")
    first = await store.get("/a")
    assert first is not None
    assert first == ("/a", b"1", created, created, 0)
    changed = await put(store, "/a", b"2")
    assert changed == created + 1
    assert await store.get("/a") == ("/a", b"2", created, changed, 0)
    assert (await store.txn([], [Delete("/a")])).revision == changed + 1
    again = await put(store, "/a", b"3")
    assert await store.get("/a") == ("/a", b"3", again, again, 0)


async def test_one_revision_for_each_transaction_that_changes_something(
    store: MetadataStore,
) -> None:
    before = await revision_of(store)
    result = await store.txn([], [Put("/a", b""), Put("/b", b""), Delete("/not-there")])
    assert result == (True, before + 1)
    snapshot = await store.snapshot("/")
    assert [each.mod_revision for each in snapshot.entries] == [before + 1, before + 1]
    assert await store.txn([], [Delete("/not-there")]) == (True, before + 1)
    assert await store.txn([], []) == (True, before + 1)
    assert await store.txn([CreatedAt("/a", 1)], [Put("/c", b"")]) == (False, before + 1)
    assert (await store.snapshot("/")) == snapshot
    assert await store.txn([], [Put("/a", b"")]) == (True, before + 2)


async def test_guards_on_revisions(store: MetadataStore) -> None:
    created = await put(store, "/a")
    changed = await put(store, "/a")

    async def holds(*guards: Guard) -> bool:
        return (await store.txn(guards, [])).succeeded

    assert await holds(CreatedAt("/a", created))
    assert not await holds(CreatedAt("/a", changed))
    assert not await holds(CreatedAt("/a", 0))
    assert await holds(ModifiedAt("/a", changed))
    assert not await holds(ModifiedAt("/a", created))
    assert not await holds(ModifiedAt("/a", 0))
    assert await holds(CreatedAt("/no", 0))
    assert await holds(ModifiedAt("/no", 0))
    assert not await holds(CreatedAt("/no", created))
    assert await holds(CreatedAt("/a", created), ModifiedAt("/a", changed), CreatedAt("/no", 0))
    assert not await holds(CreatedAt("/a", created), CreatedAt("/no", 1))
    # A former life of the key does not count.
    await store.txn([], [Delete("/a")])
    await put(store, "/a")
    assert not await holds(CreatedAt("/a", created))


async def test_a_snapshot_is_sorted_and_holds_the_prefix_only(store: MetadataStore) -> None:
    for key in ["/b/2", "/b/10", "/b", "/c", "/a", "/b/1", "/é"]:
        await put(store, key, key.encode())
    snapshot = await store.snapshot("/b/")
    assert [each.key for each in snapshot.entries] == ["/b/1", "/b/10", "/b/2"]
    assert snapshot.revision == await revision_of(store)
    whole = await store.snapshot("/")
    assert [each.key for each in whole.entries] == ["/a", "/b", "/b/1", "/b/10", "/b/2", "/c", "/é"]
    assert [each.value for each in whole.entries] == [each.key.encode() for each in whole.entries]


async def test_values_are_any_bytes(store: MetadataStore) -> None:
    value = bytes(range(256)) * 100
    await put(store, "/a", value)
    await put(store, "/empty", b"")
    found, empty = await store.get("/a"), await store.get("/empty")
    assert found is not None
    assert found.value == value
    assert empty is not None
    assert empty.value == b""


async def test_a_transaction_has_limits(store: MetadataStore) -> None:
    full = [Put(f"/{number}", b"x" * 1_000) for number in range(TXN_OPERATIONS_MAX)]
    guards = [CreatedAt(f"/{number}", 0) for number in range(TXN_OPERATIONS_MAX)]
    assert (await store.txn(guards, full)).succeeded
    too_many: list[Operation] = [*full, Put("/more", b"")]
    twice: list[Operation] = [Put("/a", b"1"), Delete("/a")]
    for guilty in (too_many, twice):
        with pytest.raises(InvariantViolation):
            await store.txn([], guilty)


async def test_two_clients_see_one_store(store: MetadataStore, other: MetadataStore) -> None:
    revision = await put(store, "/a", b"1")
    found = await other.get("/a")
    assert found is not None
    assert found.mod_revision == revision
    winners = await asyncio.gather(
        *(each.txn([CreatedAt("/lock", 0)], [Put("/lock", b"")]) for each in [store, other] * 5)
    )
    assert [winner.succeeded for winner in winners].count(True) == 1


async def test_concurrent_counters_lose_nothing(store: MetadataStore, other: MetadataStore) -> None:
    await put(store, "/count", b"0")

    async def count(client: MetadataStore, times: int) -> None:
        while times:
            entry = await client.get("/count")
            assert entry is not None
            guard = ModifiedAt("/count", entry.mod_revision)
            result = await client.txn([guard], [Put("/count", b"%d" % (int(entry.value) + 1))])
            times -= result.succeeded

    await asyncio.gather(count(store, 10), count(other, 10), count(other, 10))
    entry = await store.get("/count")
    assert entry is not None
    assert entry.value == b"30"


# ----------------------------------------------------------------------------------------- leases


async def test_a_lease_that_ends_takes_its_keys_in_one_revision(
    store: MetadataStore, other: MetadataStore
) -> None:
    lease = await store.grant_lease(TTL_MS)
    await put(store, "/stays")
    await put(store, "/b", b"", lease)
    last = await put(store, "/a", b"", lease)
    watch = other.watch("/", from_revision=last + 1)
    found = await changes(watch, 2)
    await watch.aclose()
    assert found == [Change("/a", None, last + 1), Change("/b", None, last + 1)]
    snapshot = await other.snapshot("/")
    assert [each.key for each in snapshot.entries] == ["/stays"]
    with pytest.raises(LeaseLost):
        await store.keep_alive(lease)
    with pytest.raises(LeaseLost):
        await put(store, "/a", b"", lease)


async def test_a_lease_lives_as_long_as_it_is_renewed(store: MetadataStore) -> None:
    lease = await store.grant_lease(TTL_MS)
    await put(store, "/a", b"", lease)
    for _ in range(9):
        await asyncio.sleep((TTL_MS + LATE_MS) / 9 / 1_000)
        assert await store.keep_alive(lease) == TTL_MS
    entry = await store.get("/a")
    assert entry is not None
    assert entry.lease == lease
    await store.revoke_lease(lease)
    assert await store.get("/a") is None


async def test_a_lease_is_rounded_up_to_whole_seconds(store: MetadataStore) -> None:
    lease = await store.grant_lease(2_001)
    assert await store.keep_alive(lease) == 3_000
    short = await store.grant_lease(1)
    assert await store.keep_alive(short) == TTL_MS
    await store.revoke_lease(lease)
    await store.revoke_lease(short)


async def test_revoking_takes_the_keys_at_once(store: MetadataStore, other: MetadataStore) -> None:
    lease = await store.grant_lease(60_000)
    await put(store, "/b", b"", lease)
    last = await put(store, "/a", b"", lease)
    await other.revoke_lease(lease)
    assert (await store.snapshot("/")) == (last + 1, ())
    with pytest.raises(LeaseLost):
        await store.keep_alive(lease)
    await store.revoke_lease(lease)
    assert await revision_of(store) == last + 1


async def test_a_put_decides_which_lease_a_key_is_under(store: MetadataStore) -> None:
    old, new = await store.grant_lease(60_000), await store.grant_lease(60_000)
    for key in ["/none", "/new", "/deleted"]:
        await put(store, key, b"", old)
    await put(store, "/none", b"")
    await put(store, "/new", b"", new)
    await store.txn([], [Delete("/deleted")])
    await put(store, "/deleted")
    before = await revision_of(store)
    await store.revoke_lease(old)
    snapshot = await store.snapshot("/")
    assert [each.key for each in snapshot.entries] == ["/deleted", "/new", "/none"]
    assert snapshot.revision == before
    await store.revoke_lease(new)
    assert await store.get("/new") is None


async def test_a_put_under_a_lease_that_is_gone_does_nothing(store: MetadataStore) -> None:
    before = await revision_of(store)
    gone = await store.grant_lease(60_000)
    await store.revoke_lease(gone)
    with pytest.raises(LeaseLost):
        await store.txn([], [Put("/a", b""), Put("/b", b"", gone)])
    assert await store.snapshot("/") == (before, ())
    # Guards come first: who is not allowed to write does not learn of the lease.
    result = await store.txn([CreatedAt("/a", 7)], [Put("/b", b"", gone)])
    assert result == (False, before)


async def test_a_registration_keeps_its_epoch_when_it_changes_and_gets_a_new_one_after_loss(
    store: MetadataStore,
) -> None:
    lease = await store.grant_lease(60_000)
    epoch = await put(store, "/brokers/ids/1", b"1", lease)
    await put(store, "/brokers/ids/1", b"draining", lease)
    entry = await store.get("/brokers/ids/1")
    assert entry is not None
    assert entry.create_revision == epoch
    await store.revoke_lease(lease)
    lease = await store.grant_lease(60_000)
    assert await put(store, "/brokers/ids/1", b"1", lease) > epoch
    result = await store.txn([CreatedAt("/brokers/ids/1", epoch)], [Put("/x", b"")])
    assert not result.succeeded
    await store.revoke_lease(lease)


# ---------------------------------------------------------------------------------------- watches


async def test_a_watch_gives_the_past_and_then_the_present(
    store: MetadataStore, other: MetadataStore
) -> None:
    first = await put(store, "/w/a", b"1")
    await put(store, "/other", b"")
    await put(store, "/w/a", b"2")
    await store.txn([], [Put("/w/c", b"3"), Delete("/w/a"), Put("/w/b", b"4")])
    watch = other.watch("/w/", from_revision=first)
    past = await changes(watch, 5)
    assert summary(past) == [
        ("/w/a", b"1"),
        ("/w/a", b"2"),
        ("/w/c", b"3"),
        ("/w/a", None),
        ("/w/b", b"4"),
    ]
    assert [each.revision - first for each in past] == [0, 2, 3, 3, 3]
    assert past[1].entry == ("/w/a", b"2", first, first + 2, 0)
    await put(store, "/w/d", b"5")
    assert summary(await changes(watch, 1)) == [("/w/d", b"5")]
    await watch.aclose()
    again = other.watch("/w/", from_revision=first + 3)
    assert summary(await changes(again, 4))[0] == ("/w/c", b"3")
    await again.aclose()


async def test_a_watch_from_the_future_begins_there(store: MetadataStore) -> None:
    revision = await revision_of(store)
    watch = store.watch("/", from_revision=revision + 2)
    coming = asyncio.ensure_future(next_batch(watch))
    await asyncio.sleep(0.05)
    await put(store, "/too-early")
    await put(store, "/a")
    batch: WatchBatch = await coming
    assert [each.key for each in batch.changes] == ["/a"]
    await watch.aclose()


async def test_watches_miss_nothing_and_keep_order_while_two_clients_write(
    store: MetadataStore, other: MetadataStore
) -> None:
    start = await revision_of(store)

    async def write(client: MetadataStore, name: str) -> None:
        for number in range(20):
            await client.txn([], [Put(f"/{name}/{number}", b""), Put(f"/last/{name}", b"")])

    watches = [each.watch("/", from_revision=start + 1) for each in (store, other)]
    seen, also_seen, _, _ = await asyncio.gather(
        changes(watches[0], 80), changes(watches[1], 80), write(store, "a"), write(other, "b")
    )
    assert seen == also_seen
    assert [each.revision for each in seen] == [start + 1 + number // 2 for number in range(80)]
    for watch in watches:
        await watch.aclose()


async def test_a_watch_that_was_compacted_away_must_resync(
    server: Server, store: MetadataStore
) -> None:
    first = await put(store, "/a", b"1")
    await put(store, "/b", b"1")
    last = (await store.txn([], [Delete("/b")])).revision
    attached = store.watch("/", from_revision=first)
    assert len(await changes(attached, 3)) == 3
    await server.compact(last)
    # The deletion was the very revision that history was compacted to, and must not be missed.
    for from_revision in (1, first, last):
        batches = [batch async for batch in store.watch("/", from_revision=from_revision)]
        assert [(batch.changes, batch.compacted) for batch in batches] == [((), True)]
    snapshot = await store.snapshot("/")
    assert [each.key for each in snapshot.entries] == ["/a"]
    resynced = store.watch("/", from_revision=snapshot.revision + 1)
    await put(store, "/c")
    assert summary(await changes(resynced, 1)) == [("/c", b"")]
    # One that was up to date has missed nothing.
    assert summary(await changes(attached, 1)) == [("/c", b"")]
    for watch in (attached, resynced):
        await watch.aclose()


# ----------------------------------------------------------------------------- away and back again


async def test_without_the_server_every_call_ends_in_time(server: Server, tmp_path: Path) -> None:
    if isinstance(server, Real):
        server = Real(await start_etcd(etcd_config(tmp_path)))
    store = server.connect()
    lease = await store.grant_lease(60_000)
    before = await put(store, "/a", b"1", lease)
    watch = store.watch("/", from_revision=before)
    assert len(await changes(watch, 1)) == 1
    broken = asyncio.ensure_future(next_batch(watch))
    await asyncio.sleep(0)
    await server.stop()
    calls: list[Callable[[], Awaitable[object]]] = [
        lambda: broken,
        lambda: store.get("/a"),
        lambda: store.snapshot("/"),
        lambda: store.txn([], [Put("/b", b"")]),
        lambda: store.grant_lease(1_000),
        lambda: store.keep_alive(lease),
        lambda: store.revoke_lease(lease),
        lambda: next_batch(store.watch("/", from_revision=1)),
    ]

    async def fails(call: Callable[[], Awaitable[object]]) -> None:
        with pytest.raises(StoreUnavailable):
            async with asyncio.timeout(TIMEOUT_MS / 1_000 + SLACK_S):
                await call()

    await asyncio.gather(*map(fails, calls))
    await server.start()
    await until_it_answers(store)
    entry = await store.get("/a")
    assert entry == ("/a", b"1", before, before, lease)
    assert await store.keep_alive(lease) == 60_000
    after = await put(store, "/c", b"2")
    again = store.watch("/c", from_revision=before + 1)
    assert (await changes(again, 1))[0].revision == after
    await again.aclose()
    await store.close()
    if isinstance(server, Real):
        await server.stop()


async def test_a_connection_that_was_closed_answers_no_more(server: Server) -> None:
    store = server.connect()
    revision = await put(store, "/a")
    watch = store.watch("/", from_revision=revision + 1)
    waiting = asyncio.ensure_future(next_batch(watch))
    await asyncio.sleep(0.05)
    await store.close()
    with pytest.raises(StoreUnavailable):
        await waiting
    with pytest.raises(StoreUnavailable):
        await store.get("/a")


async def test_a_task_that_is_cancelled_stays_cancelled(store: MetadataStore) -> None:
    watch = store.watch("/never/", from_revision=await revision_of(store) + 1)
    waiting = asyncio.ensure_future(next_batch(watch))
    await asyncio.sleep(0.05)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert await store.get("/a") is None
