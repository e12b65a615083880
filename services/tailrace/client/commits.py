"""Commits of one consumer, one after the other: an older position never overwrites a newer one.

A commit that is not waited for joins those that wait already: at most one is on its way and one is
next, whatever the coordinator does.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final

from tailrace.client.group_member import OffsetAndMetadata
from tailrace.errors import InvalidRequest, Overloaded, TailraceError
from tailrace.model import TopicPartition
from tailrace.runtime import Tasks

COMMIT_CALLBACKS_MAX: Final = 10_000

Offsets = Mapping[TopicPartition, OffsetAndMetadata]
OffsetsGiven = Mapping[TopicPartition, OffsetAndMetadata | int]
"""What programs may commit: the next offset to read of each partition, with more or alone."""
CommitCallback = Callable[[Offsets, TailraceError | None], None]

_LOG: Final = logging.getLogger(__name__)


def offsets_of(given: Any) -> dict[TopicPartition, OffsetAndMetadata]:
    """What a program wants to have committed; TypeError or InvalidRequest when that cannot be."""
    if not isinstance(given, Mapping):
        raise TypeError(f"offsets are a mapping {{partition: offset}}, not {type(given).__name__}")
    found: dict[TopicPartition, OffsetAndMetadata] = {}
    for partition, each in given.items():
        position = OffsetAndMetadata(each) if isinstance(each, int) else each
        if not isinstance(partition, TopicPartition) or not isinstance(position, OffsetAndMetadata):
            raise TypeError(
                "offsets are given as {TopicPartition: offset}, or with an OffsetAndMetadata, "
                f"not {{{partition!r}: {each!r}}}"
            )
        if position.offset < 0:
            raise InvalidRequest(f"{partition}: offset {position.offset} is below 0")
        found[partition] = position
    return found


class Commits:
    """The commits of a member, in order."""

    def __init__(
        self,
        commit: Callable[..., Awaitable[None]],
        tasks: Tasks,
        *,
        timeout_ms: int,
        on_commit: Callable[[Offsets], None],
    ) -> None:
        self._commit_at_coordinator = commit
        self._tasks = tasks
        self._timeout_ms = timeout_ms
        self._on_commit = on_commit
        self._turn = asyncio.Lock()
        self._next: dict[TopicPartition, OffsetAndMetadata] = {}
        self._told: list[tuple[Offsets, CommitCallback]] = []
        self._sending: asyncio.Task[None] | None = None
        self.failures = 0

    async def now(self, offsets: Offsets, *, timeout_ms: int | None = None) -> None:
        """Commit and wait for it; what was to be committed before is committed before."""
        await self.drain()
        async with self._turn:
            await self._commit(offsets, timeout_ms or self._timeout_ms)

    def later(self, offsets: Offsets, callback: CommitCallback | None = None) -> None:
        """Commit without waiting; the callback is told of the end."""
        if len(self._told) >= COMMIT_CALLBACKS_MAX:
            raise Overloaded(f"{COMMIT_CALLBACKS_MAX} commits wait for the coordinator")
        self._next.update(offsets)
        if callback is not None:
            self._told.append((offsets, callback))
        if self._sending is None:
            self._sending = self._tasks.spawn("commit", self._send())

    async def drain(self) -> None:
        """Wait for all commits so far, whatever becomes of them."""
        while self._sending is not None:
            await asyncio.wait([self._sending])

    def drop(self, partitions: Iterable[TopicPartition]) -> None:
        """These are others' now: what waits to be committed for them is not any more."""
        for partition in partitions:
            self._next.pop(partition, None)

    async def _send(self) -> None:
        try:
            while self._next:
                offsets, self._next = self._next, {}
                told, self._told = self._told, []
                error: TailraceError | None = None
                try:
                    async with self._turn:
                        await self._commit(offsets, self._timeout_ms)
                except TailraceError as problem:
                    error = problem
                    _LOG.warning("positions were not committed: %s", problem)
                for mine, callback in told:
                    _tell(callback, mine, error)
        finally:
            self._sending = None

    async def _commit(self, offsets: Offsets, timeout_ms: int) -> None:
        if not offsets:
            return
        try:
            await self._commit_at_coordinator(offsets, timeout_ms=timeout_ms)
        except TailraceError:
            self.failures += 1
            raise
        self._on_commit(offsets)


def _tell(callback: CommitCallback, offsets: Offsets, error: TailraceError | None) -> None:
    try:
        callback(offsets, error)
    except Exception:  # noqa: BLE001 - one that fails must not hurt other commits.
        _LOG.exception("a callback of a commit raised")
