"""The registration of a process in the store: one key under a lease, new for every life.

The key's create revision is the epoch of that life. It is never reused, so that an order, a report
or a guard that names an old one is refused. A lease that lapsed is noticed here and the process
registers anew, with a new epoch; what it may do meanwhile is not decided here. While the store is
away it goes on with what it has.

A keep-alive that was answered proves nothing (a deposed store leader may have answered), so each
one is followed by a linearizable read of the key.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from enum import Enum
from typing import Final, Generic, TypeVar

from tailrace.errors import FolderLocked, LeaseLost, StoreUnavailable
from tailrace.meta.keys import BrokerRegistration, CoordinatorRegistration, decode, encode
from tailrace.meta.store import CreatedAt, Delete, Entry, MetadataStore, Put

# A lease is renewed this many times within its life.
RENEWALS_PER_LEASE: Final = 3
# How long to wait before the store is asked again after it did not answer.
RETRY_MS: Final = 250
# How long to wait while another process of this id is registered.
OCCUPIED_RETRY_MS: Final = 200

F = TypeVar("F", bound=BrokerRegistration | CoordinatorRegistration)


class OtherLife(Enum):
    """What is known of the process that holds the key which this one wants."""

    GONE = "a former life of this process, and it has ended"
    COPY = "a process that runs with a copy of this one's data folder"
    UNKNOWN = "it may be running: only the end of its lease is a proof"


class Registration(Generic[F]):
    """Keeps one process registered until it is closed; `epoch` is None while it is not."""

    def __init__(
        self,
        store: MetadataStore,
        key: str,
        facts: F,
        *,
        who: str,
        judge: Callable[[F], Awaitable[OtherLife]],
        lease_ttl_ms: int,
        on_change: Callable[[], None],
        say: Callable[[str], None],
    ) -> None:
        """`who`: for people. `judge` says what is known of the process of these facts.

        `on_change` is told of every new epoch, and of its loss.
        """
        self.facts = facts
        self._store = store
        self._key = key
        self._who = who
        self._judge = judge
        self._lease_ttl_ms = lease_ttl_ms
        self._on_change = on_change
        self._say = say
        self._lease = 0
        self._is_given_back = asyncio.Event()
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
                        await self._is_given_back.wait()
                except TimeoutError:
                    await self._renew()
                else:
                    self._is_given_back.clear()
                    await self.close()
            except StoreUnavailable as error:
                self._say(f"the metadata store does not answer, going on without it: {error}")
                await asyncio.sleep(RETRY_MS / 1_000)
            except LeaseLost:
                self._say(f"the lease of epoch {self.epoch} is gone, registering anew")
                self._lose()

    def begin_anew(self) -> None:
        """Give everything back and register as somebody new, with another epoch."""
        self._is_given_back.set()

    async def close(self) -> None:
        """Take the key away at once, so that nobody waits for the lease to end."""
        epoch, lease = self.epoch, self._lease
        self._lose()
        if epoch is not None:
            await self._store.txn([CreatedAt(self._key, epoch)], [Delete(self._key)])
        if lease:
            await self._store.revoke_lease(lease)

    async def entry(self) -> Entry | None:
        """The key as it is stored now; None when it is not ours any more."""
        entry = await self._store.get(self._key)
        return entry if entry is not None and entry.create_revision == self.epoch else None

    def stored(self, entry: Entry) -> F:
        """What a stored key says."""
        return decode(type(self.facts), entry.value, key=self._key)

    def seen(self, stored: F) -> None:
        """After each renewal: what the key says now; others may have changed facts in it."""

    def _lose(self) -> None:
        self.epoch, self._lease = None, 0
        self._on_change()

    async def _register(self) -> None:
        if not self._lease:
            self._lease = await self._store.grant_lease(self._lease_ttl_ms)
        result = await self._store.txn(
            [CreatedAt(self._key, 0)], [Put(self._key, encode(self.facts), self._lease)]
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
        """Another registration has our key: end it if it is a former life of ours, else wait.

        FolderLocked when the other process runs with a copy of our folder: the first one stays.
        """
        other = self.stored(entry)
        life = await self._judge(other)
        if life is OtherLife.COPY:
            raise FolderLocked(
                f"{self._who} runs already at {other.host}:{other.port} with the same data folder "
                "or a copy of it. This process does not join the cluster. Stop the other one "
                "first, or remove this copy and start with an empty folder"
            )
        if life is OtherLife.GONE and entry.lease:
            self._say(f"revoking the registration of a former life, epoch {entry.create_revision}")
            await self._store.revoke_lease(entry.lease)
            return
        self._say(
            f"another {self._who} is registered from {other.host}:{other.port}; "
            "waiting until that registration ends"
        )
        await asyncio.sleep(OCCUPIED_RETRY_MS / 1_000)

    async def _renew(self) -> None:
        await self._store.keep_alive(self._lease)
        entry = await self.entry()
        if entry is None:
            raise LeaseLost(f"{self._key} is no longer ours")
        self.seen(self.stored(entry))

    def _registered(self, epoch: int) -> None:
        self.epoch = epoch
        self._say(f"registered as {self._who} in epoch {epoch}")
        self._on_change()
