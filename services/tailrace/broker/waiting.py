"""Produces that wait for their replicas, as futures.

The rules (what releases whom, and the limit on how many may wait) are those of
`tailrace.replication.purgatory`.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from tailrace.errors import RequestTimedOut, TailraceError
from tailrace.model import TopicPartition
from tailrace.replication.purgatory import Purgatory, Released

Outcome = asyncio.Future[TailraceError | None]


class _Waiter(NamedTuple):
    outcome: Outcome
    partition: TopicPartition
    offset: int


class Waiting:
    """Who waits for which offset of which partition to be on all in-sync replicas."""

    def __init__(self, purgatory: Purgatory[_Waiter] | None = None) -> None:
        self._purgatory: Purgatory[_Waiter] = purgatory or Purgatory()

    def __len__(self) -> int:
        return self._purgatory.produces

    def for_offset(self, partition: TopicPartition, offset: int, deadline_ms: int) -> Outcome:
        """A future that ends when everything below `offset` is committed, or with an error.

        Raises Overloaded when too many wait already.
        """
        outcome: Outcome = asyncio.get_running_loop().create_future()
        self._purgatory.park_produce(
            _Waiter(outcome, partition, offset), partition, offset=offset, deadline_ms=deadline_ms
        )
        return outcome

    def moved(self, partition: TopicPartition, high_watermark: int) -> None:
        for released in self._purgatory.moved(partition, high_watermark):
            _end(released, None)

    def fail(self, partition: TopicPartition, error: TailraceError) -> None:
        """The role changed, or the partition is gone: all of its waiters end now."""
        for released in self._purgatory.fail(partition, error.code):
            _end(released, error)

    def expire(self, now_ms: int) -> None:
        """End those whose time is over."""
        for released in self._purgatory.expire(now_ms):
            _, partition, offset = released.waiter
            what = f"{partition}: not all in-sync replicas had offset {offset - 1} in time"
            _end(released, RequestTimedOut(what))


def _end(released: Released[_Waiter], error: TailraceError | None) -> None:
    if not released.waiter.outcome.done():
        released.waiter.outcome.set_result(error)
