"""etcd under faults: MemoryEtcd behind a simulated way to it, with time and chance from outside.

Every call travels to the server and back, each way with its own delay, and the server acts when
the request arrives, whatever became of the caller: a call that ran into its deadline, or whose
caller was cancelled, may still be done later. So StoreUnavailable means here what it means with
etcd: the outcome is not known.

Faults: `stop`/`start` (all of etcd), `cut`, `strand`, `depose` and `heal` (one client's way),
`slow`, `leader_change`, `revoke_all_leases`, `compact`; and another store in the place of the
right one: `replace`, `make_right`. `right` has the cluster's data, whichever one answers.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Callable, Sequence
from enum import Enum
from typing import Any, Final, Generic, TypeVar

from simulation.loop import outside
from tailrace.errors import StoreUnavailable, TailraceError
from tailrace.meta.memory import LEASE_TTL_MIN_MS, MemoryEtcd
from tailrace.meta.store import (
    Entry,
    Guard,
    MetadataStore,
    Operation,
    Snapshot,
    TxnResult,
    WatchBatch,
)

T = TypeVar("T")

CALL_TIMEOUT_MS: Final = 2_000
# How long a watch stays silent before its client notices that the way to etcd is gone.
WATCH_TIMEOUT_MS: Final = 5_000
LATENCY_MS: Final = (0.2, 2.0)
EXPIRY_LAG_MS_MAX: Final = 500
ELECTION_MS: Final = (200, 1_500)


class Way(Enum):
    """How one client is connected to etcd."""

    GOOD = "good"
    CUT = "cut"  # Nothing passes; what is on its way is lost.
    DEAF = "deaf"  # Requests arrive and are done, answers are lost.
    STRANDED = "stranded"  # Connected to a member without quorum: nothing is answered.
    DEPOSED = "deposed"  # Connected to a leader that was deposed: it still renews leases, it says.


class SimEtcd:
    """One etcd cluster and the ways to it."""

    def __init__(
        self,
        rng: random.Random,
        *,
        latency_ms: tuple[float, float] = LATENCY_MS,
        lease_ttl_min_ms: int = LEASE_TTL_MIN_MS,
        trace: Callable[[str], None] | None = None,
    ) -> None:
        self._lease_ttl_min_ms = lease_ttl_min_ms
        self._rng = rng
        self.server = self.right = self.empty()
        self._latency_ms = latency_ms
        self._trace = trace
        self._ways: dict[str, Way] = {}
        self._slower_ms: dict[str, float] = {}
        self._all_slower_ms = 0.0
        self._no_leader_until = 0.0
        self._in_flight: dict[_Call[Any], None] = {}

    def connect(self, client: str, *, timeout_ms: int = CALL_TIMEOUT_MS) -> SimStore:
        """Give a client a connection. Clients of the same name share their faults."""
        self._ways.setdefault(client, Way.GOOD)
        return SimStore(self, client, timeout_ms)

    # ------------------------------------------------------------------------------------ faults

    def stop(self) -> None:
        """All of etcd goes down: calls on their way may or may not have been done (F18)."""
        self._say("stops")
        self._break_calls("etcd went down")
        self.server.stop()

    def start(self) -> None:
        """etcd is back with all its data; every lease has its whole TTL again."""
        self._say("starts")
        self.server.start()

    @property
    def is_right(self) -> bool:
        return self.server is self.right

    def empty(self) -> MemoryEtcd:
        """Make a store in which there is nothing yet."""
        return MemoryEtcd(
            lease_ttl_min_ms=self._lease_ttl_min_ms,
            expiry_lag_ms=lambda: self._rng.randrange(EXPIRY_LAG_MS_MAX),
        )

    def replace(self, server: MemoryEtcd) -> None:
        """Put another store in the place of the one that answers, which goes down as it is."""
        if server is not self.server:
            if not self.server.is_stopped:
                self.stop()
            self._say("is another store now")
            self.server = server
        if server.is_stopped:
            self.start()

    def make_right(self) -> None:
        """Put the right store back, as it was when it went down, and start it."""
        self.replace(self.right)

    def cut(self, client: str, *, replies_only: bool = False) -> None:
        """Cut one client off, or only the way back to it."""
        self._set_way(client, Way.DEAF if replies_only else Way.CUT)

    def strand(self, client: str) -> None:
        """The client's member of etcd lost its quorum: it may not answer reads either (F19)."""
        self._set_way(client, Way.STRANDED)

    def depose(self, client: str) -> None:
        """The client hangs on an old leader that says OK to each keep-alive (F16b)."""
        self._set_way(client, Way.DEPOSED)

    def heal(self, client: str | None = None) -> None:
        """Mend the way of one client, or all ways and all slowness."""
        if client is None:
            self._slower_ms.clear()
            self._all_slower_ms = 0.0
        for each in [client] if client is not None else list(self._ways):
            self._set_way(each, Way.GOOD)

    def slow(self, extra_ms: float, client: str | None = None) -> None:
        """Make every call, or every call of one client, slower each way."""
        self._say(f"is slower by {extra_ms} ms for {client or 'all'}")
        if client is None:
            self._all_slower_ms = extra_ms
        else:
            self._slower_ms[client] = extra_ms

    def leader_change(self, election_ms: float | None = None) -> None:
        """A new leader: TTLs begin anew, calls on their way fail with unknown outcome (F17)."""
        if election_ms is None:
            election_ms = self._rng.uniform(*ELECTION_MS)
        self._say(f"elects a leader for {election_ms:.0f} ms")
        self._break_calls("etcd changed its leader")
        if not self.server.is_stopped:
            self.server.renew_all()
        self._no_leader_until = asyncio.get_running_loop().time() + election_ms / 1_000

    def revoke_all_leases(self) -> None:
        """A leader that was stuck, then deposed, ends every lease there is (F16)."""
        self._say("revokes all leases")
        for lease in self.server.leases():
            self.server.revoke_lease(lease)

    def compact(self) -> None:
        """Forget all history: whoever is behind must read everything anew (F20)."""
        self._say(f"compacts to {self.server.revision}")
        if self.server.compacted_revision < self.server.revision:
            self.server.compact(self.server.revision)

    # ------------------------------------------------------------------------- for the connections

    def way(self, client: str) -> Way:
        return self._ways[client]

    def latency_s(self, client: str) -> float:
        """Draw how long one way takes."""
        extra_ms = self._all_slower_ms + self._slower_ms.get(client, 0.0)
        return (self._rng.uniform(*self._latency_ms) + extra_ms) / 1_000

    def send(self, call: _Call[T]) -> None:
        loop = asyncio.get_running_loop()
        self._in_flight[call] = None
        # The server is no part of the caller's process: it goes on when that dies or pauses.
        loop.call_later(self.latency_s(call.client), self._arrive, call, context=outside())

    def _arrive(self, call: _Call[T]) -> None:
        if call.is_settled:
            return
        way = self._ways[call.client]
        if self.server.is_stopped or way in {Way.CUT, Way.STRANDED}:
            self._forget(call)
            return
        if way is Way.DEPOSED:
            self._forget(call)
            call.answer_from_memory()
            return
        loop = asyncio.get_running_loop()
        if loop.time() < self._no_leader_until:
            # A little later: the grain of the loop's clock may be coarser than this moment.
            loop.call_at(self._no_leader_until + 0.001, self._arrive, call)
            return
        call.do()
        loop.call_later(self.latency_s(call.client), self._return, call)

    def _return(self, call: _Call[T]) -> None:
        self._forget(call)
        if not self.server.is_stopped and self._ways[call.client] in {Way.GOOD, Way.DEPOSED}:
            call.deliver()

    def _break_calls(self, why: str) -> None:
        """Fail all calls at once; of those that did not arrive yet, do some and lose the others."""
        calls, self._in_flight = self._in_flight, {}
        for call in calls:
            reached = self._ways[call.client] in {Way.GOOD, Way.DEAF}
            if reached and not call.is_settled and self._rng.random() < 0.5:
                call.do()
            call.is_settled = True
            call.fail(StoreUnavailable(f"{why}: it is not known whether this was done"))

    def _forget(self, call: _Call[T]) -> None:
        self._in_flight.pop(call, None)

    def _set_way(self, client: str, way: Way) -> None:
        self._say(f"is {way.value} for {client}")
        self._ways[client] = way
        self.server.wake()

    def _say(self, what: str) -> None:
        if self._trace is not None:
            self._trace(f"etcd {what}")


class SimStore(MetadataStore):
    """One client's connection."""

    def __init__(self, etcd: SimEtcd, client: str, timeout_ms: int) -> None:
        self._etcd = etcd
        self._client = client
        self._timeout_ms = timeout_ms
        # What a deposed leader believes of our leases.
        self._ttl_ms: dict[int, int] = {}
        self._closed = False

    @property
    def _server(self) -> MemoryEtcd:
        """Whichever answers when a request arrives."""
        return self._etcd.server

    async def get(self, key: str) -> Entry | None:
        return await self._call(lambda: self._server.get(key))

    async def get_many(self, keys: Sequence[str]) -> list[Entry | None]:
        keys = tuple(keys)
        return await self._call(lambda: self._server.get_many(keys))

    async def snapshot(self, prefix: str) -> Snapshot:
        return await self._call(lambda: self._server.snapshot(prefix))

    async def txn(self, guards: Sequence[Guard], operations: Sequence[Operation]) -> TxnResult:
        guards, operations = tuple(guards), tuple(operations)
        return await self._call(lambda: self._server.txn(guards, operations))

    async def grant_lease(self, ttl_ms: int) -> int:
        lease = await self._call(lambda: self._server.grant_lease(ttl_ms))
        self._ttl_ms[lease] = ttl_ms
        return lease

    async def keep_alive(self, lease: int) -> int:
        ttl_ms = self._ttl_ms.get(lease)
        return await self._call(lambda: self._server.keep_alive(lease), from_memory=ttl_ms)

    async def revoke_lease(self, lease: int) -> None:
        await self._call(lambda: self._server.revoke_lease(lease))

    async def watch(self, prefix: str, *, from_revision: int) -> AsyncGenerator[WatchBatch, None]:
        await self._call(lambda: None)
        server = self._server
        while True:
            await self._until_connected(server)
            batch = server.next_batch(prefix, from_revision=from_revision)
            if batch is None:
                from_revision = max(from_revision, server.revision + 1)
                await server.changed()
                continue
            await asyncio.sleep(self._etcd.latency_s(self._client))
            await self._until_connected(server)
            yield batch
            if batch.compacted:
                return
            from_revision = batch.revision + 1

    async def close(self) -> None:
        self._closed = True
        self._server.wake()

    async def _call(self, action: Callable[[], T], *, from_memory: T | None = None) -> T:
        if self._closed:
            raise StoreUnavailable("the connection to the store was closed")
        loop = asyncio.get_running_loop()
        call: _Call[T] = _Call(self._client, action, from_memory, loop.create_future())
        timer = loop.call_later(
            self._timeout_ms / 1_000,
            call.fail,
            StoreUnavailable(f"etcd did not answer within {self._timeout_ms} ms"),
        )
        self._etcd.send(call)
        try:
            return await call.outcome
        finally:
            timer.cancel()

    async def _until_connected(self, server: MemoryEtcd) -> None:
        """Wait for the way to be good again, but not longer than a client would."""
        loop = asyncio.get_running_loop()
        give_up = loop.time() + WATCH_TIMEOUT_MS / 1_000
        while True:
            way = self._etcd.way(self._client)
            if self._closed or server.is_stopped or server is not self._server:
                raise StoreUnavailable("the watch was broken off")
            if way is Way.GOOD:
                return
            # A deposed leader keeps the stream open and has nothing to say.
            deadline = None if way is Way.DEPOSED else give_up
            try:
                async with asyncio.timeout_at(deadline):
                    await server.changed()
            except TimeoutError:
                raise StoreUnavailable("nothing came from etcd for too long") from None


class _Call(Generic[T]):
    """One request on its way: what it does at the server, and what comes back."""

    __slots__ = ("_action", "_error", "_from_memory", "_result", "client", "is_settled", "outcome")

    def __init__(
        self,
        client: str,
        action: Callable[[], T],
        from_memory: T | None,
        outcome: asyncio.Future[T],
    ) -> None:
        self.client = client
        self.outcome = outcome
        # Done at the server, or never to be done.
        self.is_settled = False
        self._action = action
        self._from_memory = from_memory
        self._result: T | None = None
        self._error: TailraceError | None = None

    def do(self) -> None:
        self.is_settled = True
        try:
            self._result = self._action()
        except TailraceError as error:
            self._error = error

    def deliver(self) -> None:
        if self.outcome.done():
            return
        if self._error is not None:
            self.outcome.set_exception(self._error)
        else:
            self.outcome.set_result(self._result)  # type: ignore[arg-type]  # None is one of T.

    def answer_from_memory(self) -> None:
        if self._from_memory is not None and not self.outcome.done():
            self.outcome.set_result(self._from_memory)

    def fail(self, error: StoreUnavailable) -> None:
        if not self.outcome.done():
            self.outcome.set_exception(error)
