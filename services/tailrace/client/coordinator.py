"""Calls to the coordinator of a group, wherever it is at the moment.

The metadata says which coordinator owns the group; one that owns it no longer, still reads it, or
cannot be reached is asked again (or its successor is) until the time is over. Commits that follow
each other closely go over a stream that stays open, which costs both sides less than half.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from random import Random
from typing import Any, Final, NamedTuple, Protocol, TypeVar

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
from tailrace.transport import methods
from tailrace.transport.rpc import Channel, Method, Network, Stream
from tailrace.transport.wire import error_of
from tailrace.v1 import group_pb2 as pb

RETRY_MIN_MS: Final = 20
RETRY_MAX_MS: Final = 1_000
ATTEMPT_TIMEOUT_MS: Final = 10_000
# How often who waits for an answer looks whether another one has the group by now.
LOOK_MS: Final = 500
# A commit that follows the one before within this time goes over a stream.
OFTEN_MS: Final = 1_000


class Answer(Protocol):
    """What every response of a coordinator tells first."""

    @property
    def error(self) -> int: ...

    @property
    def message(self) -> str: ...


Q = TypeVar("Q")
A = TypeVar("A", bound=Answer)


class _Commits(NamedTuple):
    """The stream that commits go over."""

    channel: Channel
    stream: Stream[pb.StreamCommitsRequest, pb.StreamCommitsResponse]


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
        self._commits: _Commits | None = None
        self._committed_ms = -OFTEN_MS - 1
        self._number = 0

    def address(self) -> str:
        """Where the coordinator is; NotCoordinator while nobody is."""
        address = self._metadata.picture.coordinator_of(self.group)
        if not address:
            raise NotCoordinator(f"no coordinator is known for group {self.group!r}")
        return address

    def channel(self) -> Channel:
        """A channel to the coordinator; NotCoordinator while nobody is."""
        return self._network.channel(self.address())

    async def call(
        self,
        method: Method[Q, A],
        request: Q,
        *,
        timeout_ms: int,
        attempt_timeout_ms: int = ATTEMPT_TIMEOUT_MS,
    ) -> A:
        """The answer, which may tell of an error that stays; raises when the time is over."""
        return await self._until_answered(
            lambda limit_ms: self._attempt(method, request, limit_ms),
            timeout_ms=timeout_ms,
            attempt_timeout_ms=attempt_timeout_ms,
        )

    async def commit(
        self, request: pb.CommitOffsetsRequest, *, timeout_ms: int
    ) -> pb.CommitOffsetsResponse:
        """As `call`: the first one is a call, those that follow soon go over a stream."""
        now_ms = self._clock.monotonic_ms()
        is_often = now_ms - self._committed_ms <= OFTEN_MS
        self._committed_ms = now_ms
        if not is_often:
            return await self.call(methods.GROUP_COMMIT_OFFSETS, request, timeout_ms=timeout_ms)
        return await self._until_answered(
            lambda limit_ms: self._attempt_on_stream(request, limit_ms),
            timeout_ms=timeout_ms,
            attempt_timeout_ms=ATTEMPT_TIMEOUT_MS,
        )

    async def close(self) -> None:
        """Commits are over."""
        await self._drop_stream()

    async def _until_answered(
        self,
        attempt: Callable[[int], Coroutine[Any, Any, A]],
        *,
        timeout_ms: int,
        attempt_timeout_ms: int,
    ) -> A:
        deadline_ms = self._clock.monotonic_ms() + timeout_ms
        while True:
            left_ms = deadline_ms - self._clock.monotonic_ms()
            try:
                answer = await self._unless_moved(attempt(max(min(left_ms, attempt_timeout_ms), 1)))
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

    async def _unless_moved(self, attempt: Coroutine[Any, Any, A]) -> A:
        """Wait for the answer for as long as the one that was asked has the group.

        One that hangs says nothing and breaks nothing, and a join may take minutes.
        """
        address = self._metadata.picture.coordinator_of(self.group)
        work = asyncio.ensure_future(attempt)
        try:
            while not work.done():
                await asyncio.wait([work], timeout=LOOK_MS / 1000)
                now = self._metadata.picture.coordinator_of(self.group)
                if not work.done() and now != address:
                    raise NotCoordinator(
                        f"{address} has not answered, and {now or 'nobody'} is due"
                    )
        finally:
            if not work.done():
                work.cancel()
                await asyncio.wait([work])
        return work.result()

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

    async def _attempt_on_stream(
        self, request: pb.CommitOffsetsRequest, timeout_ms: int
    ) -> pb.CommitOffsetsResponse:
        """One commit at a time: the next message on the stream is the answer."""
        address = self.address()
        if self._commits is not None and self._commits.channel.address != address:
            await self._drop_stream()
        if self._commits is None:
            channel = self._network.channel(address)
            self._commits = _Commits(channel, channel.open(methods.GROUP_STREAM_COMMITS))
        stream = self._commits.stream
        self._number += 1
        message = pb.StreamCommitsRequest(correlation=self._number, commit=request)
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await stream.send(message)
                answer = await stream.recv()
        except BaseException as error:
            # Whatever comes on this stream now may be the answer to something older.
            await self._drop_stream()
            if isinstance(error, TimeoutError):
                raise RequestTimedOut(f"{address}: no answer within {timeout_ms} ms") from None
            raise
        if answer is None:
            await self._drop_stream()
            raise Unreachable(f"{address} ended the stream of commits")
        return answer.result

    async def _drop_stream(self) -> None:
        commits, self._commits = self._commits, None
        if commits is not None:
            commits.stream.cancel()
            await commits.channel.close()


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
