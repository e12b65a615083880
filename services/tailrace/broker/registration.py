"""A broker's registration in the store: one key under a lease, new for every life.

The key's create revision is the broker's epoch. It is never reused, so that an order, a report or
a guard that names an old one is refused. A lease that lapsed is noticed here and the broker
registers anew, with a new epoch; whether it may go on serving meanwhile is not decided here:
acks=all needs the replicas, and those follow the newest leader epoch they know.

A keep-alive that was answered proves nothing (a deposed store leader may have answered), so each
one is followed by a linearizable read of the key.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from tailrace.errors import LeaseLost, StoreUnavailable
from tailrace.meta.keys import BrokerRegistration, broker_key, decode, encode
from tailrace.meta.store import CreatedAt, Delete, Entry, MetadataStore, ModifiedAt, Put

# A lease is renewed this many times within its life.
RENEWALS_PER_LEASE: Final = 3
# How long to wait before the store is asked again after it did not answer.
RETRY_MS: Final = 250
# How long to wait while another life of this broker, or another broker of this id, is registered.
OCCUPIED_RETRY_MS: Final = 200


class Registration:
    """Keeps one broker registered until it is closed; `epoch` is None while it is not."""

    def __init__(
        self,
        store: MetadataStore,
        facts: BrokerRegistration,
        *,
        lease_ttl_ms: int,
        on_registered: Callable[[int], None],
        say: Callable[[str], None],
    ) -> None:
        self._store = store
        self._facts = facts
        self._lease_ttl_ms = lease_ttl_ms
        self._on_registered = on_registered
        self._say = say
        self._key = broker_key(facts.broker_id)
        self._lease = 0
        self.epoch: int | None = None

    async def run(self) -> None:
        """Register, renew, and register anew whenever the registration is gone."""
        while True:
            try:
                if self.epoch is None:
                    await self._register()
                else:
                    await asyncio.sleep(self._lease_ttl_ms / RENEWALS_PER_LEASE / 1000)
                    await self._renew()
            except StoreUnavailable as error:
                self._say(f"the metadata store does not answer, going on without it: {error}")
                await asyncio.sleep(RETRY_MS / 1000)
            except LeaseLost:
                self._say(f"the lease of epoch {self.epoch} is gone, registering anew")
                self.epoch, self._lease = None, 0

    async def set_draining(self) -> None:
        """Tell the controller, through the key itself, that the broker wants to be relieved."""
        self._facts = replace(self._facts, draining=True)
        while True:
            entry = await self._store.get(self._key)
            if entry is None or entry.create_revision != self.epoch:
                # The next registration says it.
                return
            # The controller may have changed other facts in it, and may do so now.
            stored = decode(BrokerRegistration, entry.value, key=self._key)
            result = await self._store.txn(
                [ModifiedAt(self._key, entry.mod_revision)],
                [Put(self._key, encode(replace(stored, draining=True)), self._lease)],
            )
            if result.succeeded:
                return

    async def close(self) -> None:
        """Take the key away at once, so that nobody waits for the lease to end."""
        epoch, lease = self.epoch, self._lease
        self.epoch, self._lease = None, 0
        if epoch is not None:
            await self._store.txn([CreatedAt(self._key, epoch)], [Delete(self._key)])
        if lease:
            await self._store.revoke_lease(lease)

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
        other = decode(BrokerRegistration, entry.value, key=self._key)
        if other.incarnation == self._facts.incarnation and entry.lease:
            # The lock on the data folder proves that this former life is over.
            self._say(f"revoking the registration of a former life, epoch {entry.create_revision}")
            await self._store.revoke_lease(entry.lease)
            return
        self._say(
            f"broker {other.broker_id} is registered from {other.host}:{other.port} with another "
            "data folder; waiting until that registration ends"
        )
        await asyncio.sleep(OCCUPIED_RETRY_MS / 1000)

    async def _renew(self) -> None:
        await self._store.keep_alive(self._lease)
        entry = await self._store.get(self._key)
        if entry is None or entry.create_revision != self.epoch:
            raise LeaseLost(f"{self._key} is no longer ours")
        stored = decode(BrokerRegistration, entry.value, key=self._key)
        if self._facts.tail_may_be_lost and not stored.tail_may_be_lost:
            # The controller has drawn its conclusions; the next registration need not repeat it.
            self._facts = replace(self._facts, tail_may_be_lost=False)

    def _registered(self, epoch: int) -> None:
        self.epoch = epoch
        self._say(f"registered as broker {self._facts.broker_id} in epoch {epoch}")
        self._on_registered(epoch)
