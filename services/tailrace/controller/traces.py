"""What a controller that traces tells of a failover: noticed, decided, told to the new leaders.

A failover is all leaderships that moved for one reason, which the record of each change names
(`explain` shows the same words). Its span begins when that was noticed and ends when the last of
the new leaders has obeyed. Below it: each transaction that elects, and each order that tells a
broker of it, which goes on at the broker.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple

from tailrace.clock import Clock
from tailrace.controller.changes import read_history
from tailrace.meta.keys import NO_BROKER, Kind, LeaderChange, place_of
from tailrace.meta.store import Delete, Operation, Put
from tailrace.model import BrokerId, LeaderEpoch, TopicPartition
from tailrace.tracing import Role, Span, Tracer
from tailrace.transport.wire import PartitionOrder

OPEN_MAX: Final = 16
"""Failovers whose new leaders were not all told; the oldest is ended when there are more."""

NOTICED_MAX_MS: Final = 600_000
"""What was noticed longer ago than this, and decided only now, begins now."""

CHANGES_TOLD_MAX: Final = 16


class _Moved(NamedTuple):
    partition: TopicPartition
    change: LeaderChange


class _Failover:
    """One reason, and who is still to be told."""

    def __init__(self, span: Span) -> None:
        self.span = span
        self.awaited: dict[TopicPartition, tuple[BrokerId, LeaderEpoch]] = {}


class Step:
    """A transaction under way."""

    def __init__(self) -> None:
        # Whether it was done, as far as is known.
        self.is_done = False


class FailoverTraces:
    """The failovers of one controller."""

    def __init__(self, tracer: Tracer, clock: Clock) -> None:
        self._tracer = tracer
        self._clock = clock
        self._open: dict[tuple[str, int], _Failover] = {}
        # When brokers were fenced, for the failovers that follow.
        self._fenced_ms: dict[BrokerId, int] = {}

    @contextmanager
    def around(self, operations: Sequence[Operation]) -> Iterator[Step]:
        """A transaction is done within: tell what it elects, and note whom it fences.

        Brokers may be told of it before its outcome is known here: the watch can be quicker.
        """
        step, moved = Step(), [each for each in map(_moved, operations) if each is not None]
        failover = self._begin(moved) if moved else None
        span = None if failover is None else _elect(failover, moved)
        try:
            yield step
        finally:
            if step.is_done:
                self._note_fences(operations)
            if span is not None and step.is_done:
                span.end()
            elif failover is not None:
                self._withdraw(failover, moved)

    def _begin(self, moved: Sequence[_Moved]) -> _Failover:
        """The failover that these changes belong to; their new leaders are to be told."""
        change = moved[0].change
        key = change.cause, change.noticed_ms
        failover = self._open.get(key)
        if failover is None:
            failover = self._open[key] = _Failover(self._new(change))
        for partition, now in moved:
            for each in self._open.values():
                # Who was to be told before is no longer meant.
                each.awaited.pop(partition, None)
            failover.awaited[partition] = (now.new_leader, now.leader_epoch)
        self._end_told()
        if len(self._open) > OPEN_MAX:
            oldest = self._open.pop(next(iter(self._open)))
            oldest.span.end(f"{len(oldest.awaited)} new leaders were not told")
        return failover

    def _new(self, change: LeaderChange) -> Span:
        is_recent = 0 <= change.decided_ms - change.noticed_ms <= NOTICED_MAX_MS
        span = self._tracer.begin(
            "failover",
            at_ms=change.noticed_ms if is_recent else change.decided_ms,
            cause=change.cause,
            controller=change.controller_id,
        )
        fenced_ms = self._fenced_ms.pop(change.old_leader, None)
        if fenced_ms is not None:
            span.note("fenced", at_ms=fenced_ms, broker=change.old_leader)
        return span

    def _withdraw(self, failover: _Failover, moved: Sequence[_Moved]) -> None:
        """It was not done, or nobody knows: a failover that has nothing else never was."""
        for partition, _ in moved:
            failover.awaited.pop(partition, None)
        for key, each in list(self._open.items()):
            if each is failover and not each.awaited:
                del self._open[key]

    def _note_fences(self, operations: Sequence[Operation]) -> None:
        for operation in operations:
            place = place_of(operation.key)
            if isinstance(operation, Delete) and place is not None and place.kind is Kind.BROKER:
                self._fenced_ms[BrokerId(place.number)] = self._clock.wall_ms()

    def tell(self, broker: BrokerId, orders: Iterable[PartitionOrder]) -> Span | None:
        """Before orders go to a broker: the span to go on with, if they belong to a failover."""
        if not self._open:
            return None
        named = {each.partition: each for each in orders}
        for failover in reversed(self._open.values()):
            found = failover.awaited.keys() & named.keys()
            if found:
                leads = sum(named[each].leader == broker for each in found)
                return failover.span.child(
                    "tell", role=Role.CLIENT, broker=broker, partitions=len(found), leads=leads
                )
        return None

    def obeyed(self, broker: BrokerId, order: PartitionOrder) -> None:
        """A broker has obeyed: the failover is over when all new leaders have."""
        for failover in self._open.values():
            leader, epoch = failover.awaited.get(order.partition, (NO_BROKER, 0))
            if leader == broker and order.leader_epoch >= epoch:
                del failover.awaited[order.partition]
        self._end_told()

    def _end_told(self) -> None:
        for key in [each for each, failover in self._open.items() if not failover.awaited]:
            self._open.pop(key).span.end()


def _elect(failover: _Failover, moved: Sequence[_Moved]) -> Span:
    told = [
        f"{partition}: {change.old_leader} to {change.new_leader}"
        for partition, change in moved[:CHANGES_TOLD_MAX]
    ]
    return failover.span.child("elect", partitions=len(moved), which=", ".join(told))


def _moved(operation: Operation) -> _Moved | None:
    """The change of leader that an operation records; None when it records none."""
    place = place_of(operation.key)
    if place is None or place.kind is not Kind.HISTORY or not isinstance(operation, Put):
        return None
    changes = read_history(operation.key, operation.value).changes
    if not changes or NO_BROKER in {changes[0].old_leader, changes[0].new_leader}:
        return None
    if changes[0].old_leader == changes[0].new_leader:
        return None
    return _Moved(TopicPartition(place.name, place.number), changes[0])
