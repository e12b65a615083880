"""The metadata store in memory, with etcd's revisions, leases and watches.

`MemoryEtcd` is the server: plain synchronous calls, each of which happens at one moment, so that
everything is linearizable. `MemoryStore` is one client's connection to it: the MetadataStore port.
Leases end by timers of the running asyncio loop, so that virtual time works; order never depends
on a set or a hash. The same contract suite runs against this and against a real etcd.

Invariant: the history holds every change after `compacted_revision`, in order, whole revisions.
"""

from __future__ import annotations

import asyncio
import math
from bisect import bisect_left
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Final, NamedTuple

from tailrace.errors import InvariantViolation, LeaseLost, StoreUnavailable
from tailrace.meta.store import (
    LEASE_TTL_UNIT_MS,
    Change,
    CreatedAt,
    Delete,
    Entry,
    Guard,
    MetadataStore,
    Operation,
    Snapshot,
    TxnResult,
    WatchBatch,
    check_keys,
    check_txn,
)

# An empty etcd is at revision 1, and its shortest lease is 1.5 election timeouts, rounded up.
FIRST_REVISION: Final = 1
LEASE_TTL_MIN_MS: Final = 2_000
TIMER_GRAIN_S: Final = 0.001
FIRST_LEASE: Final = 1_000
# How far the leases of a copy are from those of the server that it was made of.
LEASES_APART: Final = 1_000_000
CALL_TIMEOUT_MS: Final = 2_000


class Commit(NamedTuple):
    """All changes of one revision, in the order of the operations."""

    revision: int
    changes: tuple[Change, ...]


class MemoryEtcd:
    """The server: one per simulated cluster, shared by all clients."""

    def __init__(
        self,
        *,
        lease_ttl_min_ms: int = LEASE_TTL_MIN_MS,
        expiry_lag_ms: Callable[[], int] = lambda: 0,
    ) -> None:
        """`expiry_lag_ms`: how much later than at its deadline a lease ends (etcd looks twice a
        second); a lease that is due is not renewed any more.
        """
        self._lease_ttl_min_ms = lease_ttl_min_ms
        self._expiry_lag_ms = expiry_lag_ms
        self._entries: dict[str, Entry] = {}
        self._history: list[Commit] = []
        self._revision = FIRST_REVISION
        self._compacted_revision = 0
        self._leases: dict[int, _Lease] = {}
        self._next_lease = FIRST_LEASE
        self._copies = 0
        self._waiting: dict[asyncio.Future[None], None] = {}
        self._stopped = False

    @property
    def revision(self) -> int:
        return self._revision

    @property
    def compacted_revision(self) -> int:
        return self._compacted_revision

    def connect(self, *, timeout_ms: int = CALL_TIMEOUT_MS) -> MemoryStore:
        """Give one client its own connection."""
        return MemoryStore(self, timeout_ms)

    def copy(self) -> MemoryEtcd:
        """Return another server with the same data, stopped: what a copy of the folder starts.

        It goes on with leases of its own: etcd's ids are random, so that two never agree on one.
        """
        twin = MemoryEtcd(
            lease_ttl_min_ms=self._lease_ttl_min_ms, expiry_lag_ms=self._expiry_lag_ms
        )
        twin._entries = dict(self._entries)
        twin._history = list(self._history)
        twin._revision = self._revision
        twin._compacted_revision = self._compacted_revision
        twin._leases = {each: lease.copy() for each, lease in self._leases.items()}
        self._copies += 1
        twin._next_lease = self._next_lease + self._copies * LEASES_APART
        twin._stopped = True
        return twin

    def get(self, key: str) -> Entry | None:
        return self._entries.get(key)

    def get_many(self, keys: Sequence[str]) -> list[Entry | None]:
        check_keys(keys)
        return [self._entries.get(key) for key in keys]

    def snapshot(self, prefix: str) -> Snapshot:
        keys = sorted(key for key in self._entries if key.startswith(prefix))
        return Snapshot(self._revision, tuple(self._entries[key] for key in keys))

    def txn(self, guards: Sequence[Guard], operations: Sequence[Operation]) -> TxnResult:
        """As etcd does it: guards, then leases of the puts, then all operations as one revision."""
        check_txn(guards, operations)
        if not all(self._holds(guard) for guard in guards):
            return TxnResult(succeeded=False, revision=self._revision)
        for operation in operations:
            if not isinstance(operation, Delete) and operation.lease:
                self._lease(operation.lease)
        self._commit(operations)
        return TxnResult(succeeded=True, revision=self._revision)

    def grant_lease(self, ttl_ms: int) -> int:
        whole_ms = math.ceil(ttl_ms / LEASE_TTL_UNIT_MS) * LEASE_TTL_UNIT_MS
        lease = _Lease(self._next_lease, max(whole_ms, self._lease_ttl_min_ms))
        self._next_lease += 1
        self._leases[lease.id] = lease
        self._renew(lease)
        return lease.id

    def keep_alive(self, lease: int) -> int:
        found = self._lease(lease)
        if found.is_due:
            raise LeaseLost(f"lease {lease} is over")
        self._renew(found)
        return found.ttl_ms

    def revoke_lease(self, lease: int) -> None:
        found = self._leases.pop(lease, None)
        if found is None:
            return
        found.stop_timer()
        self._commit([Delete(key) for key in sorted(found.keys)])

    def leases(self) -> list[int]:
        """The leases that there are, oldest first."""
        return list(self._leases)

    def renew_all(self) -> None:
        """Give every lease its whole TTL again, as a new etcd leader does."""
        for lease in self._leases.values():
            lease.stop_timer()
            self._renew(lease)

    @property
    def is_stopped(self) -> bool:
        return self._stopped

    def stop(self) -> None:
        """The server goes down: it keeps its data, and nothing expires meanwhile."""
        self._stopped = True
        for lease in self._leases.values():
            lease.stop_timer()
        self.wake()

    def start(self) -> None:
        """Start again: every lease has its whole TTL."""
        self._stopped = False
        self.renew_all()
        self.wake()

    def compact(self, revision: int) -> None:
        """Forget the history up to a revision; a watch that still needs some of it must resync."""
        if not self._compacted_revision < revision <= self._revision:
            raise InvariantViolation(
                f"cannot compact to {revision}: the store is at {self._revision}, "
                f"compacted to {self._compacted_revision}"
            )
        self._compacted_revision = revision
        del self._history[: self._position(revision + 1)]
        self.wake()

    def next_batch(self, prefix: str, *, from_revision: int) -> WatchBatch | None:
        """Return the changes from a revision on in one batch, or None when there are none yet."""
        if from_revision <= self._compacted_revision:
            return WatchBatch(self._compacted_revision, (), compacted=True)
        changes = [
            change
            for commit in self._history[self._position(from_revision) :]
            for change in commit.changes
            if change.key.startswith(prefix)
        ]
        return WatchBatch(changes[-1].revision, tuple(changes)) if changes else None

    async def changed(self) -> None:
        """Wait for the next commit, compaction or `wake`."""
        waiting = asyncio.get_running_loop().create_future()
        self._waiting[waiting] = None
        try:
            await waiting
        finally:
            self._waiting.pop(waiting, None)

    def wake(self) -> None:
        """Let every watch look again."""
        waiting, self._waiting = self._waiting, {}
        for future in waiting:
            if not future.done():
                future.set_result(None)

    def _position(self, revision: int) -> int:
        return bisect_left(self._history, revision, key=_revision_of)

    def _holds(self, guard: Guard) -> bool:
        entry = self._entries.get(guard.key)
        if entry is None:
            return guard.revision == 0
        created = isinstance(guard, CreatedAt)
        return guard.revision == (entry.create_revision if created else entry.mod_revision)

    def _commit(self, operations: Sequence[Operation]) -> None:
        revision = self._revision + 1
        changes = []
        for operation in operations:
            key = operation.key
            old = self._entries.get(key)
            if old is not None and old.lease:
                # The lease may be ending just now, with all its keys.
                lease = self._leases.get(old.lease)
                if lease is not None:
                    lease.keys.pop(key, None)
            if isinstance(operation, Delete):
                if old is None:
                    continue
                del self._entries[key]
                changes.append(Change(key, None, revision))
            else:
                created = revision if old is None else old.create_revision
                new = Entry(key, operation.value, created, revision, operation.lease)
                self._entries[key] = new
                if operation.lease:
                    self._leases[operation.lease].keys[key] = None
                changes.append(Change(key, new, revision))
        if changes:
            self._revision = revision
            self._history.append(Commit(revision, tuple(changes)))
            if self._waiting:
                self.wake()

    def _lease(self, lease: int) -> _Lease:
        found = self._leases.get(lease)
        if found is None:
            raise LeaseLost(f"there is no lease {lease} (any more)")
        return found

    def _renew(self, lease: _Lease) -> None:
        if self._stopped:
            return
        loop = asyncio.get_running_loop()
        lease.deadline = loop.time() + lease.ttl_ms / 1_000
        # A timer that is set already fires too early, sees the deadline and sets itself anew.
        if lease.timer is None:
            lease.timer = loop.call_at(lease.deadline, self._expire, lease)

    def _expire(self, lease: _Lease) -> None:
        loop = asyncio.get_running_loop()
        # A loop's clock has its own grain: a timer may fire a little before its time.
        if lease.deadline - loop.time() > TIMER_GRAIN_S:
            lease.timer = loop.call_at(lease.deadline, self._expire, lease)
            return
        lease.is_due = True
        lag_ms = self._expiry_lag_ms()
        if lag_ms > 0:
            lease.timer = loop.call_later(lag_ms / 1_000, self.revoke_lease, lease.id)
        else:
            self.revoke_lease(lease.id)


class MemoryStore(MetadataStore):
    """One client's connection: each call lets the loop turn once, then happens at one moment."""

    def __init__(self, server: MemoryEtcd, timeout_ms: int) -> None:
        self._server = server
        self._timeout_ms = timeout_ms
        self._closed = False

    async def get(self, key: str) -> Entry | None:
        await self._reach()
        return self._server.get(key)

    async def get_many(self, keys: Sequence[str]) -> list[Entry | None]:
        await self._reach()
        return self._server.get_many(keys)

    async def snapshot(self, prefix: str) -> Snapshot:
        await self._reach()
        return self._server.snapshot(prefix)

    async def txn(self, guards: Sequence[Guard], operations: Sequence[Operation]) -> TxnResult:
        await self._reach()
        return self._server.txn(guards, operations)

    async def watch(self, prefix: str, *, from_revision: int) -> AsyncGenerator[WatchBatch, None]:
        await self._reach()
        while True:
            if self._closed or self._server.is_stopped:
                raise StoreUnavailable("the watch was broken off")
            batch = self._server.next_batch(prefix, from_revision=from_revision)
            if batch is None:
                from_revision = max(from_revision, self._server.revision + 1)
                await self._server.changed()
                continue
            yield batch
            if batch.compacted:
                return
            from_revision = batch.revision + 1

    async def grant_lease(self, ttl_ms: int) -> int:
        await self._reach()
        return self._server.grant_lease(ttl_ms)

    async def keep_alive(self, lease: int) -> int:
        await self._reach()
        return self._server.keep_alive(lease)

    async def revoke_lease(self, lease: int) -> None:
        await self._reach()
        self._server.revoke_lease(lease)

    async def close(self) -> None:
        self._closed = True
        self._server.wake()

    async def _reach(self) -> None:
        if self._closed:
            raise StoreUnavailable("the connection to the store was closed")
        await asyncio.sleep(0)
        if self._server.is_stopped:
            await self._wait_for_start()

    async def _wait_for_start(self) -> None:
        try:
            async with asyncio.timeout(self._timeout_ms / 1_000):
                while self._server.is_stopped:
                    await self._server.changed()
        except TimeoutError:
            raise StoreUnavailable(f"no answer within {self._timeout_ms} ms") from None


class _Lease:
    """A lease, its keys in the order in which they came, and when it ends."""

    __slots__ = ("deadline", "id", "is_due", "keys", "timer", "ttl_ms")

    def __init__(self, lease_id: int, ttl_ms: int) -> None:
        self.id = lease_id
        self.ttl_ms = ttl_ms
        self.keys: dict[str, None] = {}
        self.deadline = math.inf
        self.timer: asyncio.TimerHandle | None = None
        self.is_due = False

    def copy(self) -> _Lease:
        """Return the same lease of another server, which begins to count when that starts."""
        twin = _Lease(self.id, self.ttl_ms)
        twin.keys = dict(self.keys)
        return twin

    def stop_timer(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
        self.timer = None
        self.is_due = False


def _revision_of(commit: Commit) -> int:
    return commit.revision
