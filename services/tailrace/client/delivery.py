"""What a program learns of its records: where they are, or why they are nowhere.

A batch has one outcome; each record's `Delivery` is two numbers and a reference to it. So a record
that nobody waits for costs next to nothing when its batch is acknowledged.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Generator
from functools import partial
from typing import Any, Final, NamedTuple

from tailrace.errors import TailraceError
from tailrace.model import NO_TIMESTAMP_MS, TopicPartition

NO_OFFSET: Final = -1
"""Of a record whose place is not known: with acks=0, or when it was in the log already."""

_LOG: Final = logging.getLogger(__name__)


class RecordMetadata(NamedTuple):
    """Where a record is."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int


class BatchMetadata(NamedTuple):
    """Where a batch is: so many records from `base_offset` on."""

    topic: str
    partition: int
    base_offset: int
    records: int


Callback = Callable[[RecordMetadata | None, TailraceError | None], None]


class _Piece(NamedTuple):
    """What became of some records of a batch; `append_time_ms` -1: they keep their own time."""

    first: int
    records: int
    base_offset: int
    append_time_ms: int
    error: TailraceError | None


class BatchOutcome:
    """What becomes of one batch: told once for each part in which it went."""

    __slots__ = ("_pieces", "_waiting", "partition", "parts")

    def __init__(self, partition: TopicPartition) -> None:
        self.partition = partition
        self.parts = 1
        self._pieces: list[_Piece] = []
        # By record, -1 for those who wait for all of them.
        self._waiting: list[tuple[int, Callable[[], object]]] = []

    @property
    def is_over(self) -> bool:
        """Whether there is nothing more to come."""
        return self.parts == 0

    @property
    def is_awaited(self) -> bool:
        return bool(self._waiting)

    @property
    def error(self) -> TailraceError | None:
        """Why some of it failed, None when all is well."""
        return next((each.error for each in self._pieces if each.error is not None), None)

    def stored(
        self,
        first: int,
        records: int,
        *,
        base_offset: int,
        append_time_ms: int = NO_TIMESTAMP_MS,
        is_part: bool = True,
    ) -> None:
        """Records are in the log. `is_part` False: the part that they were in goes on."""
        self._tell(_Piece(first, records, base_offset, append_time_ms, None), is_part=is_part)

    def failed(self, first: int, records: int, error: TailraceError) -> None:
        self._tell(_Piece(first, records, NO_OFFSET, NO_TIMESTAMP_MS, error), is_part=True)

    def piece(self, index: int) -> _Piece | None:
        """What is known of one record."""
        for piece in self._pieces:
            if piece.first <= index < piece.first + piece.records:
                return piece
        return None

    def batches(self) -> list[BatchMetadata]:
        """Where all of it is, in the order of the records; raises the error if there is one."""
        if self.error is not None:
            raise self.error
        topic, partition = self.partition.topic, self.partition.partition
        return [
            BatchMetadata(topic, partition, each.base_offset, each.records)
            for each in sorted(self._pieces)
        ]

    def when_known(self, index: int, told: Callable[[], object]) -> None:
        """Call it once the record's fate is known, or that of all with -1."""
        self._waiting.append((index, told))

    def _tell(self, piece: _Piece, *, is_part: bool) -> None:
        self._pieces.append(piece)
        self.parts -= is_part
        if not self._waiting:
            return
        waiting, self._waiting = self._waiting, []
        for index, told in waiting:
            if self.parts == 0 or (index >= 0 and self.piece(index) is not None):
                told()
            else:
                self._waiting.append((index, told))


class Delivery(Awaitable[RecordMetadata]):
    """The future of one record: await it, or ask as one asks an asyncio future.

    Who stops waiting does not take the record back: it is on its way, and others may wait too.
    """

    __slots__ = ("_timestamp_ms", "index", "outcome")

    def __init__(self, outcome: BatchOutcome, index: int, timestamp_ms: int) -> None:
        self.outcome = outcome
        self.index = index
        self._timestamp_ms = timestamp_ms

    def done(self) -> bool:
        return self.outcome.piece(self.index) is not None

    def cancelled(self) -> bool:
        """Never: what was handed over cannot be taken back."""
        return False

    def result(self) -> RecordMetadata:
        """Where the record is; raises why it failed. InvalidStateError while it is on its way."""
        piece = self.outcome.piece(self.index)
        if piece is None:
            raise asyncio.InvalidStateError("the record is still on its way")
        if piece.error is not None:
            raise piece.error
        partition = self.outcome.partition
        has_place = piece.base_offset >= 0
        return RecordMetadata(
            partition.topic,
            partition.partition,
            piece.base_offset + self.index - piece.first if has_place else NO_OFFSET,
            piece.append_time_ms if piece.append_time_ms >= 0 else self._timestamp_ms,
        )

    def exception(self) -> TailraceError | None:
        piece = self.outcome.piece(self.index)
        if piece is None:
            raise asyncio.InvalidStateError("the record is still on its way")
        return piece.error

    def add_done_callback(self, told: Callable[[Delivery], object]) -> None:
        """Call it soon after the record's fate is known."""
        loop = asyncio.get_running_loop()
        if self.done():
            loop.call_soon(told, self)
        else:
            self.outcome.when_known(self.index, lambda: loop.call_soon(told, self))

    def call_back(self, callback: Callback) -> None:
        """Call `callback(metadata, error)`, one of them None, at once when the fate is known."""

        def tell() -> None:
            error = self.exception()
            call_program(partial(callback, None if error else self.result(), error))

        self.outcome.when_known(self.index, tell)

    def __await__(self) -> Generator[Any, None, RecordMetadata]:
        if not self.done():
            # A future of its own: to cancel who waits for one record must not disturb the others.
            yield from wait_for(self.outcome, self.index).__await__()
        return self.result()


class BatchDelivery(Awaitable[list[BatchMetadata]]):
    """The future of a whole table: where its batches are, in order."""

    __slots__ = ("_outcomes",)

    def __init__(self, outcomes: list[BatchOutcome]) -> None:
        self._outcomes = outcomes

    def done(self) -> bool:
        return all(each.is_over for each in self._outcomes)

    def result(self) -> list[BatchMetadata]:
        """Where the batches are; raises why one failed (others may be in the log all the same)."""
        if not self.done():
            raise asyncio.InvalidStateError("records are still on their way")
        return [batch for each in self._outcomes for batch in each.batches()]

    def __await__(self) -> Generator[Any, None, list[BatchMetadata]]:
        for outcome in self._outcomes:
            if not outcome.is_over:
                yield from wait_for(outcome).__await__()
        return self.result()


def wait_for(outcome: BatchOutcome, index: int = -1) -> asyncio.Future[None]:
    """A future that ends when a record's fate is known, or that of all; it does not fail."""
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def tell() -> None:
        if not future.done():
            future.set_result(None)

    outcome.when_known(index, tell)
    return future


def call_program(told: Callable[[], object]) -> None:
    """Call a function of the program's; that it raises keeps nobody else from hearing."""
    try:
        told()
    except Exception:  # noqa: BLE001 - the program's bug must not stop the producer.
        _LOG.exception("a callback of a producer raised")
