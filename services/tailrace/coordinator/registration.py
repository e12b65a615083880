"""A coordinator's registration in the store, and which shards the controller gave to it.

The key's create revision is the coordinator's epoch: new for every life, never reused, and named in
every shard that belongs to it. A keep-alive that was answered proves nothing, so each is followed
by a linearizable read of the key. Neither protects anything: that the log refuses an old owner
does. So while the store is away the coordinator goes on with what it has.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import aclosing
from typing import Final

from tailrace.errors import CorruptCheckpoint, LeaseLost, StoreUnavailable
from tailrace.meta.keys import (
    SHARDS,
    CoordinatorRegistration,
    Kind,
    ShardOwner,
    coordinator_key,
    decode,
    encode,
    place_of,
)
from tailrace.meta.store import CreatedAt, Delete, Entry, MetadataStore, Put

# A lease is renewed this many times within its life.
RENEWALS_PER_LEASE: Final = 3
RETRY_MS: Final = 250
# How long to wait while another coordinator of this id is registered.
OCCUPIED_RETRY_MS: Final = 200


class Registration:
    """Keeps one coordinator registered until it is closed; `epoch` is None while it is not."""

    def __init__(
        self,
        store: MetadataStore,
        facts: CoordinatorRegistration,
        *,
        lease_ttl_ms: int,
        on_change: Callable[[], None],
        say: Callable[[str], None],
    ) -> None:
        self._store = store
        self._facts = facts
        self._lease_ttl_ms = lease_ttl_ms
        self._on_change = on_change
        self._say = say
        self._key = coordinator_key(facts.coordinator_id)
        self._lease = 0
        self._renewal = asyncio.Event()
        self.epoch: int | None = None

    async def run(self) -> None:
        """Register, renew, and register anew whenever the registration is gone."""
        while True:
            try:
                if self.epoch is None:
                    await self._register()
                    continue
                try:
                    async with asyncio.timeout(self._lease_ttl_ms / RENEWALS_PER_LEASE / 1_000):
                        await self._renewal.wait()
                except TimeoutError:
                    await self._renew()
                else:
                    self._renewal.clear()
                    await self.close()
            except StoreUnavailable as error:
                self._say(f"the metadata store does not answer, going on without it: {error}")
                await asyncio.sleep(RETRY_MS / 1_000)
            except LeaseLost:
                self._say(f"the lease of epoch {self.epoch} is gone, registering anew")
                self._lose()

    def begin_anew(self) -> None:
        """Give everything back and register as somebody new: all shards get another epoch."""
        self._renewal.set()

    async def close(self) -> None:
        """Take the key away at once, so that nobody waits for the lease to end."""
        epoch, lease = self.epoch, self._lease
        self._lose()
        if epoch is not None:
            await self._store.txn([CreatedAt(self._key, epoch)], [Delete(self._key)])
        if lease:
            await self._store.revoke_lease(lease)

    def _lose(self) -> None:
        self.epoch, self._lease = None, 0
        self._on_change()

    async def _register(self) -> None:
        if not self._lease:
            self._lease = await self._store.grant_lease(self._lease_ttl_ms)
        result = await self._store.txn(
            [CreatedAt(self._key, 0)], [Put(self._key, encode(self._facts), self._lease)]
        )
        if result.succeeded:
            self._registered(result.revision)
            return
        entry = await self._store.get(self._key)
        if entry is None:
            return
        if entry.lease == self._lease:
            # An earlier attempt, whose answer was lost, had succeeded.
            self._registered(entry.create_revision)
            return
        await self._wait_for(entry)
        await self._store.keep_alive(self._lease)

    async def _wait_for(self, entry: Entry) -> None:
        """Another registration has our key: end it if it is a former life of ours, else wait."""
        other = decode(CoordinatorRegistration, entry.value, key=self._key)
        if other == self._facts and entry.lease:
            # We listen at its address, so its process is gone.
            self._say(f"revoking the registration of a former life, epoch {entry.create_revision}")
            await self._store.revoke_lease(entry.lease)
            return
        self._say(
            f"coordinator {other.coordinator_id} is registered from {other.host}:{other.port}; "
            "waiting until that registration ends"
        )
        await asyncio.sleep(OCCUPIED_RETRY_MS / 1_000)

    async def _renew(self) -> None:
        await self._store.keep_alive(self._lease)
        entry = await self._store.get(self._key)
        if entry is None or entry.create_revision != self.epoch:
            raise LeaseLost(f"{self._key} is no longer ours")

    def _registered(self, epoch: int) -> None:
        self.epoch = epoch
        self._say(f"registered as coordinator {self._facts.coordinator_id} in epoch {epoch}")
        self._on_change()


class ShardMap:
    """Follows who owns which shard: a full read, then a watch; again when something was missed."""

    def __init__(
        self, store: MetadataStore, *, on_change: Callable[[], None], say: Callable[[str], None]
    ) -> None:
        self._store = store
        self._on_change = on_change
        self._say = say
        self._owners: dict[int, ShardOwner] = {}

    @property
    def owners(self) -> Mapping[int, ShardOwner]:
        return self._owners

    @property
    def count(self) -> int:
        """How many shards there are; 0 while no coordinator was given any."""
        return max(self._owners, default=-1) + 1

    async def run(self) -> None:
        """Keep it up, for ever."""
        while True:
            try:
                await self._follow()
            except StoreUnavailable:
                await asyncio.sleep(RETRY_MS / 1_000)

    async def _follow(self) -> None:
        snapshot = await self._store.snapshot(SHARDS)
        self._owners = {}
        for entry in snapshot.entries:
            self._take(entry.key, entry)
        self._on_change()
        watch = self._store.watch(SHARDS, from_revision=snapshot.revision + 1)
        async with aclosing(watch):
            async for batch in watch:
                if batch.compacted:
                    return
                for change in batch.changes:
                    self._take(change.key, change.entry)
                if batch.changes:
                    self._on_change()

    def _take(self, key: str, entry: Entry | None) -> None:
        place = place_of(key)
        if place is None or place.kind is not Kind.SHARD:
            return
        if entry is None:
            self._owners.pop(place.number, None)
            return
        try:
            self._owners[place.number] = decode(ShardOwner, entry.value, key=key)
        except CorruptCheckpoint as error:
            self._say(str(error))
            self._owners.pop(place.number, None)
