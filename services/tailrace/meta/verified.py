"""A store that is used only while it is known to be the right one.

`VerifiedStore` stands in front of another store, in every service. It looks who the store is before
its first use, after every failed call, and now and then (`run`). It compares the cluster's record
on each read, and makes that record a guard of each transaction: nothing is ever written to an empty
store, or to another one. While the store is not believed every call fails as if the store were
away, with the reason, so that services go on as they do without a store. When the right store is
back, the next look finds it and calls pass again.

Invariant: an answer is handed on only when the store's revision is not below one that an earlier
answer had. A process that has used the store's predecessor does not use a rebuilt store
(`Standing.REPLACED`): what it remembers (revisions, epochs) is of another store, so it has to start
anew. After that start nothing is remembered but the witness, and the rebuilt store is believed.

A service that keeps nothing on disk believes whatever answers first, and that may be the wrong
store. Brokers know better: they are registered only in a store that they believe. So where their
registrations outlast their leases in a store that this service does not believe, the service was
wrong, and starts anew with that store (`Followed`). A broker follows most of the others in the same
way: one that was away when a copy of the store was made cannot tell that copy from what came since.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Final, NamedTuple, TypeVar

from tailrace.clock import Clock
from tailrace.errors import LeaseLost, StoreUnavailable
from tailrace.meta.keys import BROKERS, CLUSTER
from tailrace.meta.lineage import Judgement, Standing, Witness, judge
from tailrace.meta.store import (
    TXN_OPERATIONS_MAX,
    Entry,
    Guard,
    MetadataStore,
    ModifiedAt,
    Operation,
    Snapshot,
    TxnResult,
    WatchBatch,
)

# How often the store is looked at while nothing else is asked of it.
LOOK_INTERVAL_MS: Final = 2_000
# While it is not believed, calls do not make it be looked at more often than this.
DOUBT_MS: Final = 250
# Three times what the lease of a broker lasts: after that its registration was renewed for certain.
FOLLOW_BROKERS_MS: Final = 15_000
# How often a transaction is sent because only the cluster's record had changed.
RECORD_ATTEMPTS_MAX: Final = 3

T = TypeVar("T")


class Followed(NamedTuple):
    """How many other brokers must be registered, and for how long, to be believed more."""

    enough: Callable[[], int]
    lasting_ms: int
    # The key of this very broker.
    own_key: str = ""


class VerifiedStore:
    """A MetadataStore in front of another one.

    `witness`: what is known of the store; None: whatever answers first is believed.
    `standing`, `problem`: what the last look came to. `replaced` is set once the store was rebuilt,
    or the brokers have shown that this service believed the wrong one: it has to start anew.
    """

    def __init__(
        self,
        store: MetadataStore,
        clock: Clock,
        say: Callable[[str], None],
        *,
        witness: Witness | None = None,
        followed: Followed | None = None,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        """`followed`: which brokers are believed more than the witness; None: no others are.

        `changed` is called when the store is believed no more, for another reason, or again.
        """
        self._store = store
        self._clock = clock
        self._say = say
        self._changed = changed
        self._looking = asyncio.Lock()
        # Whether nothing has happened since the last look that calls for another one.
        self._is_fresh = False
        self._looked_ms: int | None = None
        self._record: Entry | None = None
        # The highest revision that any answer had.
        self._revision = 0
        # Since the last look an answer had a higher one.
        self._advanced = asyncio.Event()
        self._followed = followed
        # Since when each registration is seen in a store that is not believed.
        self._registered_ms: dict[tuple[str, int], int] = {}
        self.witness = witness
        self.standing = Standing.UNFOUNDED
        self.problem = ""
        self.problem_since_ms: int | None = None
        self.rejections = 0
        self.replaced = asyncio.Event()

    async def run(self) -> None:
        """Look at the store now and then, so that a change is noticed when nobody asks for it.

        What an answer has shown of the store is remembered soon: a copy from before is older then.
        """
        while True:
            await asyncio.sleep(DOUBT_MS / 1_000)
            with suppress(TimeoutError):
                async with asyncio.timeout((LOOK_INTERVAL_MS - DOUBT_MS) / 1_000):
                    await self._advanced.wait()
            try:
                await self.look()
            except StoreUnavailable:
                continue

    @property
    def problem_since_wall_ms(self) -> int:
        """Since when the store is not believed, wall time; 0: it is believed."""
        if self.problem_since_ms is None:
            return 0
        return self._clock.wall_ms() - (self._clock.monotonic_ms() - self.problem_since_ms)

    async def look(self) -> Witness | None:
        """Look who the store is, now; what it says of itself, None while nothing is founded.

        StoreUnavailable, with the reason, when it is away or not believed.
        """
        async with self._looking:
            await self._look()
        return self._checked_witness()

    # The port.

    async def get(self, key: str) -> Entry | None:
        if key == CLUSTER:
            await self._ensure()
            return await self._answer(self._store.get(key))
        found, record = await self._with_record([key])
        await self._check_record(record)
        return found[0]

    async def get_many(self, keys: Sequence[str]) -> list[Entry | None]:
        if len(keys) >= TXN_OPERATIONS_MAX:
            await self.look()
            return await self._answer(self._store.get_many(keys))
        found, record = await self._with_record(keys)
        await self._check_record(record)
        return found

    async def snapshot(self, prefix: str) -> Snapshot:
        await self._ensure()
        floor = self._revision
        snapshot = await self._answer(self._store.snapshot(prefix))
        await self._check_revision(floor, snapshot.revision)
        return snapshot

    async def txn(self, guards: Sequence[Guard], operations: Sequence[Operation]) -> TxnResult:
        attempts = 0
        while True:
            await self._ensure()
            record = self._record
            own: list[Guard] = []
            if record is not None and len(guards) < TXN_OPERATIONS_MAX:
                own = [ModifiedAt(CLUSTER, record.mod_revision)]
            floor = self._revision
            result = await self._answer(self._store.txn([*own, *guards], operations))
            await self._check_revision(floor, result.revision)
            attempts += 1
            if result.succeeded or not own or attempts >= RECORD_ATTEMPTS_MAX:
                return result
            # Either a guard of the caller's did not hold, or the record is not what it was.
            await self.look()
            if self._record == record:
                return result

    async def watch(self, prefix: str, *, from_revision: int) -> AsyncGenerator[WatchBatch, None]:
        await self._ensure()
        watch = self._store.watch(prefix, from_revision=from_revision)
        try:
            async for batch in watch:
                if self.problem or self.replaced.is_set():
                    raise self._rejection()
                yield batch
        except StoreUnavailable:
            self._is_fresh = False
            raise
        finally:
            await watch.aclose()

    async def grant_lease(self, ttl_ms: int) -> int:
        await self._ensure()
        return await self._answer(self._store.grant_lease(ttl_ms))

    async def keep_alive(self, lease: int) -> int:
        await self._ensure()
        try:
            return await self._answer(self._store.keep_alive(lease))
        except LeaseLost:
            # An empty store, or an older one, does not know the lease either.
            await self.look()
            raise

    async def revoke_lease(self, lease: int) -> None:
        await self._ensure()
        await self._answer(self._store.revoke_lease(lease))

    async def close(self) -> None:
        await self._store.close()

    # The parts of the above.

    async def _with_record(self, keys: Sequence[str]) -> tuple[list[Entry | None], Entry | None]:
        await self._ensure()
        *found, record = await self._answer(self._store.get_many([*keys, CLUSTER]))
        return found, record

    async def _answer(self, call: Awaitable[T]) -> T:
        try:
            return await call
        except StoreUnavailable:
            # Whoever answers next may be another one.
            self._is_fresh = False
            self._registered_ms = {}
            raise

    async def _ensure(self) -> None:
        """Have the store looked at if need be; StoreUnavailable when it is not believed."""
        if self.replaced.is_set():
            raise self._rejection()
        if self._is_fresh and not self.problem:
            return
        if self.problem and self._was_looked_at():
            raise self._rejection()
        await self.look()

    def _was_looked_at(self) -> bool:
        looked_ms = self._looked_ms
        return looked_ms is not None and self._clock.monotonic_ms() - looked_ms < DOUBT_MS

    async def _check_record(self, record: Entry | None) -> None:
        if record != self._record:
            await self.look()

    async def _check_revision(self, floor: int, revision: int) -> None:
        if revision < floor:
            await self.look()
            raise StoreUnavailable(
                f"an answer of the store was at revision {revision}, an earlier one at {floor}"
            )
        if revision > self._revision:
            self._revision = revision
            self._advanced.set()

    async def _look(self) -> None:
        floor = self._revision
        self._advanced.clear()
        seen = await self._answer(self._store.snapshot(CLUSTER))
        self._looked_ms = self._clock.monotonic_ms()
        found = judge(self.witness, seen, floor=floor)
        if found.standing.is_believed:
            self._believe(found, seen)
        else:
            self._doubt(found)
            await self._ask_brokers(found)

    async def _ask_brokers(self, found: Judgement) -> None:
        """See whether brokers stay registered in a store that this service does not believe."""
        followed = self._followed
        is_brokers = followed is not None and bool(followed.own_key)
        # A broker that has data of a cluster is never of another one.
        followable = {Standing.OLDER} if is_brokers else {Standing.OLDER, Standing.OTHER}
        if followed is None or self.replaced.is_set() or found.standing not in followable:
            return
        seen = await self._answer(self._store.snapshot(BROKERS))
        now_ms, known = self._clock.monotonic_ms(), self._registered_ms
        others = [
            (each.key, each.create_revision)
            for each in seen.entries
            if each.lease and each.key != followed.own_key
        ]
        self._registered_ms = {each: known.get(each, now_ms) for each in others}
        lasting = [
            each for each in self._registered_ms.values() if now_ms - each >= followed.lasting_ms
        ]
        if len(lasting) >= followed.enough():
            self._say(
                f"{len(lasting)} brokers have been registered in this store for "
                f"{followed.lasting_ms} ms or more, so it is the right one, and what was believed "
                f"before was not: {self.problem}. Starting anew with it"
            )
            self.replaced.set()

    def _believe(self, found: Judgement, seen: Snapshot) -> None:
        former, self.problem, self.problem_since_ms = self.problem, "", None
        self.standing = found.standing
        if former:
            self._say(f"the metadata store is believed again, after: {former}")
            self._changed()
        self._registered_ms = {}
        if found.standing is Standing.REPLACED and self._record is not None:
            if not self.replaced.is_set():
                self._say(
                    "the metadata store was rebuilt, in generation "
                    f"{found.witness.generation if found.witness else 0}: starting anew with it"
                )
            self.replaced.set()
            return
        self.witness = found.witness or self.witness
        self._record = next((each for each in seen.entries if each.key == CLUSTER), None)
        self._revision = max(self._revision, seen.revision)
        # Before a cluster is founded there is nothing that a later answer could be compared with.
        self._is_fresh = self._record is not None

    def _doubt(self, found: Judgement) -> None:
        self._is_fresh = False
        is_news = self.problem != found.problem
        if is_news:
            self._say(
                f"THE METADATA STORE IS NOT BELIEVED: {found.problem}. Nothing is deleted, no "
                "order of it is obeyed, and what this process leads is served on. Put the right "
                "store back, or rebuild it with `tailrace cluster recover`"
            )
        if not self.problem:
            self.problem_since_ms = self._clock.monotonic_ms()
        self.standing, self.problem = found.standing, found.problem
        if is_news:
            self._changed()

    def _checked_witness(self) -> Witness | None:
        if self.problem or self.replaced.is_set():
            raise self._rejection()
        return self.witness if self._record is not None else None

    def _rejection(self) -> StoreUnavailable:
        self.rejections += 1
        if self.replaced.is_set():
            return StoreUnavailable("this process starts anew with the store, which is another now")
        return StoreUnavailable(f"the store is not believed: {self.problem}")
