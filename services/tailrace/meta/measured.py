"""A store that counts: how long each kind of call takes, what fails, when the lease was renewed.

It changes nothing of what is asked and answered. A process has one lease at a time, so the last
grant or renewal that was answered is that of its lease.

A store that hung, or did not answer, may have ended leases of those who did nothing wrong: it
remembers when that was last seen.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Final, TypeVar

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

# An answer that took this long: leases may have ended because nobody could renew them.
SLOW_ANSWER_MS: Final = 1_000


class MeasuredStore:
    """A MetadataStore in front of another one."""

    def __init__(self, store: MetadataStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._calls: dict[str, Calls] = {}
        self._answered_ms: int | None = None
        self._renewed_ms: int | None = None
        self._troubled_ms: int | None = None
        # When each call that is not answered yet was made, the oldest first.
        self._asked_ms: dict[int, int] = {}
        self._number = 0

    def was_in_trouble(self, within_ms: int) -> bool:
        """Whether a call failed, or waited for too long, at most so long ago; or waits now."""
        now_ms = self._clock.monotonic_ms()
        oldest_ms = next(iter(self._asked_ms.values()), now_ms)
        if now_ms - oldest_ms >= SLOW_ANSWER_MS:
            return True
        return self._troubled_ms is not None and now_ms - self._troubled_ms <= within_ms

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
        self._number = number = self._number + 1
        self._asked_ms[number] = asked_ms
        try:
            answer = await call()
        except StoreUnavailable:
            calls.failed += 1
            self._troubled_ms = self._clock.monotonic_ms()
            raise
        except LeaseLost:
            self._answered(calls, asked_ms)
            raise
        finally:
            del self._asked_ms[number]
        self._answered(calls, asked_ms)
        return answer

    def _answered(self, calls: Calls, asked_ms: int) -> None:
        self._answered_ms = now_ms = self._clock.monotonic_ms()
        calls.times.observe(now_ms - asked_ms)
        if now_ms - asked_ms >= SLOW_ANSWER_MS:
            self._troubled_ms = now_ms

    def _since(self, then_ms: int | None) -> int | None:
        return None if then_ms is None else self._clock.monotonic_ms() - then_ms
