"""A store is used only while it is the right one; then everything passes as it is (F41, F42)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from simulation.loop import LoopClock, SimLoop, run
from tailrace.errors import LeaseLost, StoreUnavailable
from tailrace.meta.keys import (
    CLUSTER,
    STAMP,
    ClusterRecord,
    TermRecord,
    broker_key,
    encode,
    encode_counter,
    term_key,
)
from tailrace.meta.lineage import Standing, Witness
from tailrace.meta.memory import MemoryEtcd, MemoryStore
from tailrace.meta.store import CreatedAt, Delete, Put
from tailrace.meta.verified import DOUBT_MS, Followed, VerifiedStore

RECORD = encode(ClusterRecord(cluster_id="c", store_id="s"))


class World:
    """A store that can be swapped behind the back of whoever uses it."""

    def __init__(self, loop: SimLoop) -> None:
        self.said: list[str] = []
        self.etcd = MemoryEtcd()
        self.inner = self.etcd.connect()
        self.clock = LoopClock(loop)
        # What was the problem each time that the store's standing changed.
        self.beliefs: list[str] = []
        self.store = VerifiedStore(
            self.inner,
            self.clock,
            self.said.append,
            changed=lambda: self.beliefs.append(self.store.problem),
        )

    async def found(self, etcd: MemoryEtcd, record: bytes = RECORD) -> None:
        term = encode(TermRecord(controller_id=1, token="one"))
        store = etcd.connect()
        await store.txn([], [Put(CLUSTER, record), Put(term_key(1), term)])

    def swap(self, etcd: MemoryEtcd) -> None:
        self.store._store = etcd.connect()

    async def doubts(self) -> None:
        """Let so much time pass that the store is looked at again."""
        await asyncio.sleep(2 * DOUBT_MS / 1_000)


def simulate(main: Callable[[World], Awaitable[None]]) -> Callable[[], None]:
    def test() -> None:
        async def body(loop: SimLoop) -> None:
            await main(World(loop))

        run(body, 1)

    test.__name__ = test.__qualname__ = main.__name__
    test.__doc__ = main.__doc__
    return test


@simulate
async def test_the_right_store_does_what_it_is_asked(world: World) -> None:
    await world.found(world.etcd)
    store = world.store
    assert (await store.txn([CreatedAt("/a", 0)], [Put("/a", b"1")])).succeeded
    assert not (await store.txn([CreatedAt("/a", 0)], [Put("/a", b"2")])).succeeded
    found = await store.get("/a")
    assert found is not None
    assert found.value == b"1"
    assert [each is None for each in await store.get_many(["/a", "/b"])] == [False, True]
    assert [each.key for each in (await store.snapshot("/a")).entries] == ["/a"]
    lease = await store.grant_lease(5_000)
    await store.keep_alive(lease)
    await store.revoke_lease(lease)
    with pytest.raises(LeaseLost):
        await store.keep_alive(lease)
    assert (store.standing, store.problem) == (Standing.CONTINUES, "")


@simulate
async def test_nothing_is_written_to_an_empty_store_or_to_another_one(world: World) -> None:
    await world.found(world.etcd)
    await world.store.get("/a")
    for etcd in (empty := MemoryEtcd(), other := MemoryEtcd()):
        if etcd is other:
            await world.found(other, encode(ClusterRecord(cluster_id="x", store_id="y")))
        before = etcd.connect()
        revision = (await before.snapshot("/")).revision
        world.swap(etcd)
        for call in (
            lambda: world.store.txn([], [Put("/a", b"1")]),
            lambda: world.store.txn([], [Delete("/a")]),
            lambda: world.store.get("/a"),
            lambda: world.store.grant_lease(1_000),
        ):
            with pytest.raises(StoreUnavailable):
                await call()
        with pytest.raises(StoreUnavailable, match="not believed"):
            await world.store.look()
        await world.doubts()
        assert (await before.snapshot("/")).revision == revision
    assert empty is not other
    assert any("NOT BELIEVED" in each for each in world.said)


@simulate
async def test_a_lease_that_another_store_does_not_know_is_not_lost(world: World) -> None:
    await world.found(world.etcd)
    lease = await world.store.grant_lease(5_000)
    world.swap(MemoryEtcd())
    with pytest.raises(StoreUnavailable):
        await world.store.keep_alive(lease)
    world.swap(world.etcd)
    await world.doubts()
    await world.store.keep_alive(lease)
    assert any("believed again" in each for each in world.said)


@simulate
async def test_a_store_that_went_back_is_noticed_by_its_revision(world: World) -> None:
    older = MemoryEtcd()
    await world.found(older)
    await world.found(world.etcd)
    for _ in range(5):
        await world.store.txn([], [Put("/a", b"1")])
    world.swap(older)
    with pytest.raises(StoreUnavailable, match="went back"):
        await world.store.snapshot("/")
    assert world.store.standing is Standing.OLDER


@simulate
async def test_a_new_name_of_the_store_is_no_reason_to_refuse_a_write(world: World) -> None:
    await world.found(world.etcd, encode(ClusterRecord(cluster_id="c")))
    await world.store.get("/a")
    await world.found(world.etcd)
    assert (await world.store.txn([], [Put("/a", b"1")])).succeeded
    witness = await world.store.look()
    assert witness is not None
    assert witness.store_id == "s"


@simulate
async def test_a_rebuilt_store_is_for_the_next_start(world: World) -> None:
    await world.found(world.etcd)
    await world.store.get("/a")
    rebuilt = MemoryEtcd()
    record = ClusterRecord(cluster_id="c", store_id="t", generation=1, former=("s",))
    await world.found(rebuilt, encode(record))
    world.swap(rebuilt)
    with pytest.raises(StoreUnavailable, match="starts anew"):
        await world.store.look()
    assert world.store.replaced.is_set()
    with pytest.raises(StoreUnavailable, match="starts anew"):
        await world.store.txn([], [Put("/a", b"1")])


@simulate
async def test_after_the_next_start_a_rebuilt_store_is_used(world: World) -> None:
    """What that process knows of the former store is its witness alone."""
    record = ClusterRecord(cluster_id="c", store_id="t", generation=1, former=("s",))
    await world.found(world.etcd, encode(record))
    world.store.witness = Witness(cluster_id="c", store_id="s", revision=900, controller_epoch=7)
    assert (await world.store.txn([], [Put("/a", b"1")])).succeeded
    assert not world.store.replaced.is_set()
    assert world.store.witness.generation == 1
    # From then on it is the known one.
    world.swap(MemoryEtcd())
    with pytest.raises(StoreUnavailable, match="is empty"):
        await world.store.look()


@simulate
async def test_a_store_in_which_nothing_was_founded_may_be_founded(world: World) -> None:
    store = world.store
    assert await store.look() is None
    assert (await store.txn([CreatedAt(CLUSTER, 0)], [Put(CLUSTER, RECORD)])).succeeded
    assert await store.look() is not None


@simulate
async def test_the_store_is_looked_at_when_nobody_asks(world: World) -> None:
    await world.found(world.etcd)
    await world.store.look()
    looking = asyncio.ensure_future(world.store.run())
    world.swap(MemoryEtcd())
    await asyncio.sleep(3)
    assert world.store.standing is Standing.EMPTY
    watch = world.store.watch("/", from_revision=1)
    with pytest.raises(StoreUnavailable):
        await anext(watch)
    looking.cancel()


@simulate
async def test_brokers_that_stay_registered_show_which_store_is_right(world: World) -> None:
    """This service began with the wrong store and keeps nothing on disk."""
    await world.found(world.etcd, encode(ClusterRecord(cluster_id="wrong", store_id="w")))
    world.store._followed = Followed(lambda: 1, 15_000)
    await world.store.look()
    right = MemoryEtcd()
    await world.found(right)
    lease = right.grant_lease(5_000)
    right.txn([], [Put(broker_key(1), b"", lease)])
    looking = asyncio.ensure_future(world.store.run())
    world.swap(right)
    for _ in range(14):
        await asyncio.sleep(1)
        right.keep_alive(lease)
    assert not world.store.replaced.is_set()
    for _ in range(6):
        await asyncio.sleep(1)
        right.keep_alive(lease)
    assert world.store.replaced.is_set()
    looking.cancel()


@simulate
async def test_registrations_that_end_show_nothing(world: World) -> None:
    """An older copy has some, and nobody renews them."""
    await world.found(world.etcd)
    older = world.etcd.copy()
    older.start()
    older.txn([], [Put(broker_key(1), b"", older.grant_lease(5_000))])
    world.etcd.txn([], [Put(STAMP, encode_counter(1))])
    world.store._followed = Followed(lambda: 1, 15_000)
    await world.store.look()
    looking = asyncio.ensure_future(world.store.run())
    world.swap(older)
    await asyncio.sleep(60)
    assert world.store.standing is Standing.OLDER
    assert not world.store.replaced.is_set()
    looking.cancel()


@simulate
async def test_who_keeps_a_witness_on_disk_follows_nobody(world: World) -> None:
    await world.found(world.etcd)
    await world.store.look()
    other = MemoryEtcd()
    await world.found(other, encode(ClusterRecord(cluster_id="x", store_id="y")))
    other.txn([], [Put(broker_key(1), b"", other.grant_lease(600_000))])
    looking = asyncio.ensure_future(world.store.run())
    world.swap(other)
    await asyncio.sleep(120)
    assert world.store.standing is Standing.OTHER
    assert not world.store.replaced.is_set()
    looking.cancel()


def test_it_is_a_store_like_any_other() -> None:
    missing = {name for name in dir(MemoryStore) if not name.startswith("_")} - {
        *dir(VerifiedStore)
    }
    assert missing == set()


@simulate
async def test_l1_who_wants_to_know_is_told_of_every_change_of_belief(world: World) -> None:
    await world.found(world.etcd)
    await world.store.get("/a")
    assert (world.beliefs, world.store.problem_since_wall_ms) == ([], 0)
    world.swap(MemoryEtcd())
    lost_ms = world.clock.wall_ms()
    for _ in range(3):
        await world.doubts()
        with pytest.raises(StoreUnavailable):
            await world.store.get("/a")
    assert world.beliefs == [world.store.problem] != [""]
    assert lost_ms <= world.store.problem_since_wall_ms < world.clock.wall_ms()
    world.swap(world.etcd)
    await world.doubts()
    await world.store.get("/a")
    assert world.beliefs[1:] == [""]
    assert world.store.problem_since_wall_ms == 0
