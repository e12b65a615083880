"""How an administrator's client asks: whom, for how long, and again when that may help.

Brokers are found through the metadata that they push, the active controller through the same; a
question is asked again until the deadline as long as the answer may change.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from random import Random
from typing import Any, Final, Protocol, TypeVar

from tailrace.client.lifetime import Lifetime
from tailrace.client.metadata import ClusterPicture, MetadataWatcher
from tailrace.clock import Clock
from tailrace.errors import (
    NotController,
    NotLeader,
    RequestTimedOut,
    ShuttingDown,
    StoreUnavailable,
    TailraceError,
    Unreachable,
)
from tailrace.runtime import Tasks
from tailrace.transport.rpc import Method, Network
from tailrace.transport.wire import raise_for

REQUEST_TIMEOUT_MS: Final = 30_000
# One attempt may take this long; the controller itself gives up earlier and says why.
ATTEMPT_TIMEOUT_MS: Final = 10_000
RETRY_MIN_MS: Final = 50
RETRY_MAX_MS: Final = 1_000

_WORTH_ANOTHER_TRY: Final = (
    NotController,
    NotLeader,
    RequestTimedOut,
    ShuttingDown,
    StoreUnavailable,
    Unreachable,
)


class _Answer(Protocol):
    """Any response of a controller: it can say what went wrong."""

    @property
    def error(self) -> Any: ...

    @property
    def message(self) -> str: ...


Q = TypeVar("Q")
T = TypeVar("T")
R = TypeVar("R", bound=_Answer)


class Asking:
    """The part of an administrator's client that all its questions share."""

    def __init__(
        self,
        bootstrap: Sequence[str],
        *,
        network: Network,
        clock: Clock,
        rng: Random,
        request_timeout_ms: int = REQUEST_TIMEOUT_MS,
    ) -> None:
        self._network = network
        self._clock = clock
        self._rng = rng
        self._timeout_ms = request_timeout_ms
        self._metadata = MetadataWatcher(network, bootstrap, rng)
        self._tasks = Tasks(self._task_failed)
        self._lifetime = Lifetime("admin client")
        self._started = False

    async def start(self) -> None:
        """Begin to follow the cluster; every other call does it when it has to."""
        self._lifetime.check()
        if not self._started:
            self._started = True
            self._tasks.spawn("admin metadata", self._metadata.run())

    async def close(self) -> None:
        if self._lifetime.end():
            await self._tasks.close()

    def trouble(self) -> str:
        """Why there is no answer yet, for people; empty while somebody answers."""
        reached = self._metadata.picture.revision >= 0 or not self._started
        return "" if reached else self._metadata.problem

    @property
    def store_problem(self) -> tuple[str, int]:
        """Why the broker that is followed does not believe the metadata store, and since when.

        Its wall time in ms. Empty and 0: it believes the store, or nobody has answered yet.
        """
        picture = self._metadata.picture
        return picture.store_problem, picture.store_problem_since_ms

    async def _begin(self, timeout_ms: int | None) -> Call:
        self._lifetime.check()
        await self.start()
        return Call(self._clock, self._timeout_ms if timeout_ms is None else timeout_ms)

    async def _picture(self, call: Call) -> ClusterPicture:
        try:
            return await self._metadata.wait_for(
                lambda seen: seen.revision >= 0, timeout_ms=call.left_ms()
            )
        except TimeoutError:
            raise self._metadata.nobody_answers(call.timeout_ms) from None

    async def _ask_controller(self, method: Method[Q, R], request: Q, call: Call) -> R:
        async def ask() -> R:
            response = await self._call(await self._controller(call), method, request, call)
            raise_for(response.error, response.message)
            return response

        return await self._until_deadline(call, "the controller", ask)

    async def _controller(self, call: Call) -> str:
        await self._picture(call)
        try:
            picture = await self._metadata.wait_for(
                lambda seen: bool(seen.controller), timeout_ms=call.left_ms()
            )
        except TimeoutError:
            raise Unreachable(
                f"brokers answer ({', '.join(self._metadata.picture.brokers.values())}), but they "
                f"know of no active controller: are controllers and etcd up?{self._stale()}"
            ) from None
        return picture.controller

    async def _call(self, address: str, method: Method[Q, T], request: Q, call: Call) -> T:
        channel = self._network.channel(address)
        try:
            return await channel.call(
                method, request, timeout_ms=max(min(call.left_ms(), ATTEMPT_TIMEOUT_MS), 1)
            )
        except (Unreachable, RequestTimedOut):
            call.in_doubt = True
            raise
        finally:
            await channel.close()

    async def _until_deadline(
        self, call: Call, what: str, attempt: Callable[[], Awaitable[T]]
    ) -> T:
        """Try until it works, the error is one that stays, or the time is over."""
        pause_ms = RETRY_MIN_MS
        told: TailraceError | None = None
        while True:
            try:
                return await attempt()
            except _WORTH_ANOTHER_TRY as error:
                if isinstance(error, StoreUnavailable | RequestTimedOut):
                    call.in_doubt = True
                # Our own deadline may cut the last attempt short: an earlier answer says more.
                if told is None or not isinstance(error, RequestTimedOut):
                    told = error
                wait_ms = int(pause_ms * self._rng.uniform(0.5, 1.0))
                if wait_ms >= call.left_ms():
                    raise type(told)(
                        f"{what}: not done within {call.timeout_ms} ms: {told}{self._stale()}"
                    ) from error
                self._metadata.refresh()
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_ms / 1000):
                    await self._metadata.changed()
            pause_ms = min(pause_ms * 2, RETRY_MAX_MS)

    def _stale(self) -> str:
        """Added to an error: why no controller acts, where a broker has told."""
        problem = self._metadata.picture.store_problem
        return f"; brokers do not believe the metadata store: {problem}" if problem else ""

    def _task_failed(self, name: str, error: BaseException) -> None:
        self._lifetime.fail(f"{name}: {error!r}")


class Call:
    """One call of the program: how long it may still take, and whether an attempt got lost."""

    def __init__(self, clock: Clock, timeout_ms: int) -> None:
        self._clock = clock
        self._deadline_ms = clock.monotonic_ms() + timeout_ms
        self.timeout_ms = timeout_ms
        self.in_doubt = False

    def left_ms(self) -> int:
        return max(self._deadline_ms - self._clock.monotonic_ms(), 0)
