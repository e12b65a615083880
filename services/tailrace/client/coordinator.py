"""Calls to the coordinator of a group, wherever it is at the moment.

The metadata says which coordinator owns the group; one that owns it no longer, still reads it, or
cannot be reached is asked again (or its successor is) until the time is over.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from random import Random
from typing import Final, Protocol, TypeVar

from tailrace.client.metadata import MetadataWatcher
from tailrace.clock import Clock
from tailrace.errors import (
    CoordinatorLoading,
    LimitReached,
    NotCoordinator,
    NotEnoughReplicas,
    Overloaded,
    RequestTimedOut,
    ShuttingDown,
    StoreUnavailable,
    TailraceError,
    Unreachable,
)
from tailrace.transport.rpc import Channel, Method, Network
from tailrace.transport.wire import error_of

RETRY_MIN_MS: Final = 20
RETRY_MAX_MS: Final = 1_000
ATTEMPT_TIMEOUT_MS: Final = 10_000


class Answer(Protocol):
    """What every response of a coordinator tells first."""

    @property
    def error(self) -> int: ...

    @property
    def message(self) -> str: ...


Q = TypeVar("Q")
A = TypeVar("A", bound=Answer)


class CoordinatorClient:
    """The coordinator of one group."""

    def __init__(
        self,
        group: str,
        metadata: MetadataWatcher,
        *,
        network: Network,
        clock: Clock,
        rng: Random,
    ) -> None:
        self.group = group
        self._metadata = metadata
        self._network = network
        self._clock = clock
        self._rng = rng
        self._failures = 0

    def channel(self) -> Channel:
        """A channel to the coordinator; NotCoordinator while nobody is."""
        address = self._metadata.picture.coordinator_of(self.group)
        if not address:
            raise NotCoordinator(f"no coordinator is known for group {self.group!r}")
        return self._network.channel(address)

    async def call(
        self,
        method: Method[Q, A],
        request: Q,
        *,
        timeout_ms: int,
        attempt_timeout_ms: int = ATTEMPT_TIMEOUT_MS,
    ) -> A:
        """The answer, which may tell of an error that stays; raises when the time is over."""
        deadline_ms = self._clock.monotonic_ms() + timeout_ms
        while True:
            left_ms = deadline_ms - self._clock.monotonic_ms()
            try:
                answer = await self._attempt(
                    method, request, max(min(left_ms, attempt_timeout_ms), 1)
                )
            except WORTH_ANOTHER_TRY as error:
                problem: TailraceError = error
            else:
                told = error_of(answer.error, answer.message)
                if not isinstance(told, WORTH_ANOTHER_TRY):
                    self._failures = 0
                    return answer
                problem = told
            if self._clock.monotonic_ms() >= deadline_ms:
                raise RequestTimedOut(
                    f"the coordinator of group {self.group!r}: not done within {timeout_ms} ms: "
                    f"{problem}"
                ) from problem
            await self.pause(problem)

    async def pause(self, problem: TailraceError) -> None:
        """After a failure: wait a little, or until the metadata has changed."""
        self._failures += 1
        if problem.refresh_metadata or isinstance(problem, RequestTimedOut):
            self._metadata.refresh()
        limit_ms = min(RETRY_MIN_MS * 2 ** min(self._failures - 1, 10), RETRY_MAX_MS)
        with suppress(TimeoutError):
            async with asyncio.timeout(limit_ms * self._rng.uniform(0.5, 1.0) / 1000):
                await self._metadata.changed()

    async def _attempt(self, method: Method[Q, A], request: Q, timeout_ms: int) -> A:
        channel = self.channel()
        try:
            return await channel.call(method, request, timeout_ms=timeout_ms)
        finally:
            await channel.close()


WORTH_ANOTHER_TRY: Final = (
    CoordinatorLoading,
    LimitReached,
    NotCoordinator,
    NotEnoughReplicas,
    Overloaded,
    RequestTimedOut,
    ShuttingDown,
    StoreUnavailable,
    Unreachable,
)
