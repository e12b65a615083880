"""A store that counts: how long each kind of call takes, what fails, when the lease was renewed.

It changes nothing of what is asked and answered. A process has one lease at a time, so the last
grant or renewal that was answered is that of its lease.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import TypeVar

from tailrace.clock import Clock
from tailrace.errors import LeaseLost, StoreUnavailable
from tailrace.meta.store import (
    Entry,
    Guard,
    MetadataStore,
    Operation,
    Snapshot,
    TxnResult,
    WatchBatch,
)
from tailrace.metrics.common import StoreView
from tailrace.metrics.values import Calls

T = TypeVar("T")


class MeasuredStore:
    """A MetadataStore in front of another one."""

    def __init__(self, store: MetadataStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._calls: dict[str, Calls] = {}
        self._answered_ms: int | None = None
        self._renewed_ms: int | None = None

    def view(self) -> StoreView:
        """How it went so far."""
        return StoreView(
            calls=dict(self._calls),
            silence_ms=self._since(self._answered_ms),
            lease_age_ms=self._since(self._renewed_ms),
        )

    async def get(self, key: str) -> Entry | None:
        return await self._measured("get", lambda: self._store.get(key))

    async def get_many(self, keys: Sequence[str]) -> list[Entry | None]:
        return await self._measured("get_many", lambda: self._store.get_many(keys))

    async def snapshot(self, prefix: str) -> Snapshot:
        return await self._measured("snapshot", lambda: self._store.snapshot(prefix))

    async def txn(self, guards: Sequence[Guard], operations: Sequence[Operation]) -> TxnResult:
        return await self._measured("txn", lambda: self._store.txn(guards, operations))

    def watch(self, prefix: str, *, from_revision: int) -> AsyncGenerator[WatchBatch, None]:
        return self._store.watch(prefix, from_revision=from_revision)

    async def grant_lease(self, ttl_ms: int) -> int:
        # A lease lives from when it was asked for, at the earliest.
        asked_ms = self._clock.monotonic_ms()
        lease = await self._measured("grant_lease", lambda: self._store.grant_lease(ttl_ms))
        self._renewed_ms = asked_ms
        return lease

    async def keep_alive(self, lease: int) -> int:
        asked_ms = self._clock.monotonic_ms()
        try:
            left_ms = await self._measured("keep_alive", lambda: self._store.keep_alive(lease))
        except LeaseLost:
            self._renewed_ms = None
            raise
        self._renewed_ms = asked_ms
        return left_ms

    async def revoke_lease(self, lease: int) -> None:
        self._renewed_ms = None
        await self._measured("revoke_lease", lambda: self._store.revoke_lease(lease))

    async def close(self) -> None:
        await self._store.close()

    async def _measured(self, what: str, call: Callable[[], Awaitable[T]]) -> T:
        calls = self._calls.get(what)
        if calls is None:
            calls = self._calls[what] = Calls()
        asked_ms = self._clock.monotonic_ms()
        try:
            answer = await call()
        except StoreUnavailable:
            calls.failed += 1
            raise
        except LeaseLost:
            self._answered(calls, asked_ms)
            raise
        self._answered(calls, asked_ms)
        return answer

    def _answered(self, calls: Calls, asked_ms: int) -> None:
        self._answered_ms = now_ms = self._clock.monotonic_ms()
        calls.times.observe(now_ms - asked_ms)

    def _since(self, then_ms: int | None) -> int | None:
        return None if then_ms is None else self._clock.monotonic_ms() - then_ms
