"""What a task does: write its rows so that each is in the log once, whatever was tried before.

An attempt of a task may die half-way, run again on another executor, run twice at once
(speculation, a second driver), and meet its rows in another order each time. So rows are not told
from retries by their order. Instead the sequences of an idempotent producer serve as a
compare-and-append:

- All attempts of a task of a micro-batch have the same producer id (from the query and the task)
  and the same producer epoch (from the batch). The log takes a batch only if its sequence is
  exactly the next one of that id and epoch; a task of an older micro-batch is fenced by the epoch.
- An attempt appends at sequence n only if it knows the n rows before. It knows them because it
  wrote them, or because it has read them back. So one batch of a partition is on its way at most.
- When the log is further than that, somebody else wrote: the attempt reads back what the log holds
  under this id and epoch, strikes those rows off its own, and goes on behind them.

Invariant: no row is appended that stands in the log below the sequence it is appended at. So two
attempts that know of nothing but the log write every row once between them. Rows in the log that
the task does not have at its end mean that it is not deterministic: RowsDiffer.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final
from zlib import crc32

import pyarrow as pa

from tailrace.client.delivery import BatchDelivery, BatchMetadata
from tailrace.client.fetch_plan import Fetched
from tailrace.client.producer import ProducerCore
from tailrace.client.settings import ProducerSettings
from tailrace.errors import (
    OutOfOrderSequence,
    ProducerFenced,
    RequestTimedOut,
    TailraceError,
    error_for,
)
from tailrace.model import TopicPartition
from tailrace_spark.cluster import Cluster, TopicFacts
from tailrace_spark.offsets import ReadRange
from tailrace_spark.options import BOOTSTRAP, CREDIT_BYTES, WriteOptions
from tailrace_spark.rows import Ledger, Piece, Placement

EPOCHS: Final = 32_768
"""A producer epoch has 15 bits; after so many micro-batches a task gets another id."""

DERIVED_ID_BIT: Final = 1 << 62
"""Ids from names lie above all that a controller ever hands out one by one."""

RECOVERIES_MAX: Final = 1_000
"""Each means that another attempt went on meanwhile; so many mean that something is wrong."""

SCAN_ROWS: Final = 20_000
"""The end of a log is searched backwards for what was written, first so far, then twice as far."""

SETTLE_S: Final = 10.0
SETTLE_POLL_S: Final = 0.05
"""What the leader has may not be replicated yet, and only that can be read."""

BUFFER_BYTES: Final = 32 << 20
REQUEST_BYTES: Final = 32 << 20
BATCH_BYTES: Final = 1 << 20

_LOG: Final = logging.getLogger(__name__)


class RowsDiffer(Exception):
    """An earlier attempt of the same task wrote rows that this one does not have."""


class Superseded(Exception):
    """Another run of the query has gone on to a later micro-batch."""


@dataclass(frozen=True, slots=True)
class TaskIdentity:
    """Who writes: the same for every attempt of a task of a micro-batch."""

    # The query, or the batch job.
    name: str
    batch: int
    task: int

    @property
    def producer_id(self) -> int:
        text = f"{self.name}/{self.batch // EPOCHS}/{self.task}"
        digest = blake2b(text.encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big") % DERIVED_ID_BIT + DERIVED_ID_BIT

    @property
    def epoch(self) -> int:
        return self.batch % EPOCHS

    @property
    def turn(self) -> int:
        """Spreads rows without a key: another partition for each task and each micro-batch."""
        return crc32(self.name.encode()) + self.task + self.batch

    def __str__(self) -> str:
        return f"task {self.task} of batch {self.batch} of {self.name}"


@dataclass(slots=True)
class _Target:
    """One partition that is written to."""

    ledger: Ledger
    # How many rows of this id and epoch we know in the log, and so the next sequence.
    sequence: int = 0
    # The base offsets of the batches that we know, written by us or read back.
    known: set[int] = field(default_factory=set)
    rows: int = 0


@dataclass(frozen=True, slots=True)
class _Sent:
    piece: Piece
    delivery: BatchDelivery


class TaskWriter:
    """Writes the rows of one attempt of one task. Use: `write` each batch, `finish`, `close`."""

    def __init__(
        self, cluster: Cluster, identity: TaskIdentity, options: WriteOptions, *, timed: bool
    ) -> None:
        self._cluster = cluster
        self._identity = identity
        self._options = options
        self._timed = timed
        self._topics: dict[str, TopicFacts] = {}
        self._placement = Placement(options.topic, self._partitions_of, identity.turn)
        self._targets: dict[TopicPartition, _Target] = {}
        # What is to be sent, and behind it what was; both in order.
        self._todo: deque[Piece] = deque()
        self._sent: deque[_Sent] = deque()
        self._producer: ProducerCore | None = None
        self.recoveries = 0

    def write(self, batch: pa.RecordBatch) -> None:
        """Hand rows over; waits only while much is on its way."""
        for piece in self._placement.pieces(batch):
            if piece.partition not in self._targets:
                # Where the leader stamps the times, those of the rows are not what is read back.
                stamped = self._topics[piece.partition.topic].is_append_time
                ledger = Ledger(timed=self._timed and not stamped)
                self._targets[piece.partition] = _Target(ledger)
            self._targets[piece.partition].rows += piece.rows.num_rows
            self._todo.append(piece)
            self._cluster.run(self._until_done(self._send_all))

    def finish(self) -> dict[TopicPartition, int]:
        """Wait until all is in the log; how many rows went where. RowsDiffer if they do not fit."""
        self._cluster.run(self._until_done(self._wait_for_all))
        for partition, target in self._targets.items():
            if len(target.ledger):
                raise RowsDiffer(
                    f"{partition}: an earlier attempt of {self._identity} wrote "
                    f"{len(target.ledger)} rows that are not among its rows now. A task must have "
                    "the same rows each time it runs: is there a random column, or was the number "
                    "of tasks changed in the middle of a batch?"
                )
        return {partition: each.rows for partition, each in self._targets.items()}

    def close(self) -> None:
        self._cluster.run(self._close_producer())

    def _partitions_of(self, topic: str) -> int:
        if topic not in self._topics:
            self._topics[topic] = self._cluster.topic(topic, "topic")
        return len(self._topics[topic].partitions)

    # In the loop of the clients.

    async def _until_done(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do it; when the log is further than we knew, learn what it holds and do it again."""
        while True:
            try:
                return await work()
            except OutOfOrderSequence as error:
                await self._recover(error)
            except ProducerFenced as error:
                raise Superseded(
                    f"{self._identity}: another run of it has written a later batch, so this one "
                    f"must stop: {error}"
                ) from error
            except TailraceError as error:
                where = f"{BOOTSTRAP}={self._options.bootstrap}"
                raise error_for(error.code, f"{self._identity}, {where}: {error}") from error

    async def _send_all(self) -> None:
        while self._todo:
            partition, rows = self._todo[0]
            rows = self._targets[partition].ledger.unwritten(rows)
            if not rows.num_rows:
                self._todo.popleft()
                continue
            # Rows that were struck off are done with, whatever becomes of the others.
            self._todo[0] = Piece(partition, rows)
            producer = await self._open()
            delivery = await producer.send_batch(
                partition.topic, rows, partition=partition.partition
            )
            self._sent.append(_Sent(self._todo.popleft(), delivery))
        while self._sent and self._sent[0].delivery.done():
            await self._note_oldest()

    async def _wait_for_all(self) -> None:
        await self._send_all()
        while self._sent:
            await self._note_oldest()
        await self._close_producer()

    async def _note_oldest(self) -> None:
        """Wait for the oldest piece on its way and note where it is."""
        sent = self._sent[0]
        self._note(sent.piece, await sent.delivery)
        self._sent.popleft()

    def _note(self, piece: Piece, places: list[BatchMetadata]) -> None:
        target = self._targets[piece.partition]
        target.known.update(each.base_offset for each in places)
        target.sequence += sum(each.records for each in places)

    async def _recover(self, conflict: OutOfOrderSequence) -> None:
        """Learn what the log holds where it was further than we knew; the rest is sent again."""
        self.recoveries += 1
        if conflict.partition is None or self.recoveries > RECOVERIES_MAX:
            raise RowsDiffer(f"{self._identity}: {conflict}") from conflict
        await self._close_producer()
        unsent: list[Piece] = []
        for sent in self._sent:
            try:
                self._note(sent.piece, sent.delivery.result())
            except TailraceError:
                # Some of it may be in the log all the same: then that log is further, too.
                unsent.append(sent.piece)
        self._sent.clear()
        self._todo.extendleft(reversed(unsent))
        target = self._targets[conflict.partition]
        batches = await self._settled(conflict.partition, conflict.due_sequence)
        for each in batches:
            if each.header.base_offset not in target.known:
                target.known.add(each.header.base_offset)
                target.ledger.add(list(each.view.records()))
        target.sequence = sum(each.header.record_count for each in batches)
        _LOG.warning(
            "%s: %s holds %d of its rows already; going on behind them",
            self._identity,
            conflict.partition,
            target.sequence,
        )

    async def _settled(self, partition: TopicPartition, rows: int) -> list[Fetched]:
        """What the log holds of this task, once so many rows are replicated or it takes long."""
        for _ in range(int(SETTLE_S / SETTLE_POLL_S)):
            found = await self._written(partition)
            if sum(each.header.record_count for each in found) >= rows:
                return found
            await asyncio.sleep(SETTLE_POLL_S)
        return await self._written(partition)

    async def _written(self, partition: TopicPartition) -> list[Fetched]:
        """The batches of this id and epoch, by searching backwards from the end of the log."""
        start, end = await self._cluster.ends(partition)
        found: list[Fetched] = []
        high, span = end, SCAN_ROWS
        while high > start:
            low = max(high - span, start)
            found = [*await self._own_batches(partition, low, high), *found]
            if found and found[0].header.base_sequence == 0:
                break
            high, span = low, span * 2
        due = 0
        for each in found:
            if each.header.base_sequence != due or each.header.is_compacted:
                raise RowsDiffer(
                    f"{partition}: what an earlier attempt of {self._identity} wrote is not all "
                    f"there any more (sequence {each.header.base_sequence} where {due} was due): "
                    "retention or compaction took some of it"
                )
            due = each.header.last_sequence + 1
        return found

    async def _own_batches(self, partition: TopicPartition, low: int, high: int) -> list[Fetched]:
        """Ours among the batches that begin in a range of offsets."""
        wanted = ReadRange(
            topic=partition.topic,
            topic_id=self._topics[partition.topic].topic_id,
            partition=partition.partition,
            start=low,
            end=high,
        )
        mine: list[Fetched] = []
        reader = self._cluster.reader(wanted, credit_bytes=CREDIT_BYTES)
        try:
            while reader.position < high:
                fetched = await reader.next(timeout_ms=self._options.delivery_timeout_ms)
                if fetched is None:
                    raise RequestTimedOut(f"{wanted}: nothing comes: {reader.trouble}")
                header = fetched.header
                is_ours = (
                    header.producer_id == self._identity.producer_id
                    and header.producer_epoch == self._identity.epoch
                )
                if is_ours and low <= header.base_offset < high:
                    mine.append(fetched)
        finally:
            await reader.close()
        return mine

    async def _open(self) -> ProducerCore:
        if self._producer is None:
            identity = self._identity
            request_bytes = self._options.max_request_bytes or REQUEST_BYTES
            producer = self._cluster.producer(
                ProducerSettings(
                    expect_new=True,
                    batch_size=min(BATCH_BYTES, request_bytes),
                    max_request_size=request_bytes,
                    # One at a time: a second batch behind one that the log refuses would be taken
                    # where another attempt has just filled the gap, unseen by us.
                    max_in_flight_requests_per_connection=1,
                    buffer_memory=BUFFER_BYTES,
                    max_block_ms=self._options.delivery_timeout_ms,
                    compression_type=self._options.compression,
                    delivery_timeout_ms=self._options.delivery_timeout_ms,
                    client_id=f"spark, {identity}",
                )
            )
            producer.resume(
                {
                    "producer_id": identity.producer_id,
                    "producer_epoch": identity.epoch,
                    "sequences": {
                        f"{each.topic}/{each.partition}": target.sequence
                        for each, target in self._targets.items()
                        if target.sequence
                    },
                }
            )
            self._producer = producer
        return self._producer

    async def _close_producer(self) -> None:
        if self._producer is not None:
            producer, self._producer = self._producer, None
            await producer.close(timeout_ms=0)
