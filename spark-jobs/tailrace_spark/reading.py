"""What a task does: read one range from the leader of its partition, whoever that is meanwhile.

Batches are read ahead in the loop of the clients while Spark takes those before; credit bounds how
far. Small stored batches are joined, since Spark pays for each that it gets. What can no longer be
read is a `Loss`: DataLost, or with failOnDataLoss=false a line in the log with the count. A stored
batch that cannot be decoded is UnreadableBatch, after the rows before it; with onCorrupt=skip (what
failOnDataLoss=false says too) it is passed over, with a line in the log for each.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Final

import pyarrow as pa

from tailrace.client.fetch_plan import Fetched
from tailrace.client.reader import PartitionReader
from tailrace.client.unreadable import UNDECODABLE, log_skipped, unreadable_body
from tailrace.errors import (
    OffsetOutOfRange,
    RequestTimedOut,
    TailraceError,
    Truncated,
    UnknownTopic,
    UnknownTopicId,
    UnreadableBatch,
)
from tailrace.model import TopicPartition
from tailrace.process import keep_freed_memory
from tailrace_spark.cluster import Cluster, cluster_for
from tailrace_spark.columns import Part, rows_of
from tailrace_spark.layout import Layout
from tailrace_spark.losses import tell
from tailrace_spark.offsets import UNKNOWN_COUNT, Loss, ReadRange
from tailrace_spark.options import BOOTSTRAP, SKIP, ReadOptions

JOINED_BYTES: Final = 4 << 20
"""Stored batches are joined up to about so much."""

_LOG: Final = logging.getLogger(__name__)


def read_range(wanted: ReadRange, options: ReadOptions, layout: Layout) -> Iterator[pa.RecordBatch]:
    """All records of the range, as Arrow batches in Spark's schema."""
    _prepare_worker()
    cluster = cluster_for(options.bootstrap, timeout_ms=options.metadata_timeout_ms)
    reading = _Reading(cluster, wanted, options)
    try:
        while (chunk := reading.next_chunk()) is not None:
            yield from reading.rows(chunk, layout)
    finally:
        reading.close()


@cache
def _prepare_worker() -> None:
    """Once in a worker: the process is there for our tasks, so its memory is ours to arrange."""
    keep_freed_memory()
    # What was imported stays for ever: nobody has to look for garbage in it again and again.
    gc.freeze()


class _Reading:
    """One range being read; all its waiting happens in the loop of the clients."""

    def __init__(self, cluster: Cluster, wanted: ReadRange, options: ReadOptions) -> None:
        self._cluster = cluster
        self._wanted = wanted
        self._options = options
        self._reader = cluster.reader(wanted, credit_bytes=options.credit_bytes)
        # The epoch of the start may be that of a leader that wrote nothing.
        self._epoch_is_a_bound = True

    def next_chunk(self) -> list[Part] | None:
        """The batches that follow, about JOINED_BYTES; None at the end."""
        while True:
            try:
                return self._cluster.run(self._chunk())
            except (OffsetOutOfRange, Truncated, UnknownTopic, UnknownTopicId) as error:
                if not self._go_on_after(error):
                    return None
            except UnreadableBatch as error:
                # It came damaged again and again.
                self._skip(error)
                self._seek(error.last_offset + 1)
            except RequestTimedOut:
                raise
            except TailraceError as error:
                raise type(error)(f"{self._wanted}: {error}") from error

    def rows(self, chunk: list[Part], layout: Layout) -> Iterator[pa.RecordBatch]:
        """The rows of a chunk, joined; those before a batch that cannot be decoded come first."""
        try:
            joined = rows_of(chunk, layout)
        except UNDECODABLE:
            yield from self._one_by_one(chunk, layout)
            return
        if joined is not None:
            yield joined

    def _one_by_one(self, chunk: list[Part], layout: Layout) -> Iterator[pa.RecordBatch]:
        partition = TopicPartition(self._wanted.topic, self._wanted.partition)
        for part in chunk:
            try:
                rows = rows_of([part], layout)
            except UNDECODABLE as cause:
                self._skip(unreadable_body(partition, part.view.header, cause))
                continue
            if rows is not None:
                yield rows

    def _skip(self, error: UnreadableBatch) -> None:
        """Log a batch that is passed over; raises it when the options do not say so."""
        if self._options.on_corrupt != SKIP:
            raise error
        log_skipped(error)

    def close(self) -> None:
        self._cluster.run(self._reader.close())
        _LOG.debug("%s: read, %d bytes came", self._wanted, self._reader.received_bytes)

    async def _chunk(self) -> list[Part] | None:
        reader, end = self._reader, self._wanted.end
        first = reader.position
        if first >= end:
            return None
        timeout_ms = self._options.poll_timeout_ms
        fetched = await reader.next_stored(timeout_ms=timeout_ms)
        if fetched is None:
            raise RequestTimedOut(
                f"{self._wanted}: no record came for pollTimeoutMs={timeout_ms} at offset "
                f"{reader.position}, {BOOTSTRAP}={self._options.bootstrap}"
                + (f": {reader.trouble}" if reader.trouble else "")
            )
        chunk, size = [self._part(first, fetched)], fetched.header.length
        while size < JOINED_BYTES and reader.position < end:
            # What is there already; nothing waits for more.
            first = reader.position
            more = await _ready(reader)
            if more is None:
                break
            chunk.append(self._part(first, more))
            size += more.header.length
        return chunk

    def _part(self, first: int, fetched: Fetched) -> Part:
        """A batch may begin before the place that is read from: what lies there is not wanted.

        It was read already and another leader has it in a larger batch, or it was deleted.
        """
        wanted = self._wanted
        if fetched.header.base_offset < first and wanted.start < first:
            wanted = replace(wanted, start=first)
        return Part(wanted, fetched.view)

    def _go_on_after(self, error: TailraceError) -> bool:
        """Whether there is more to read after a loss; raises DataLost when that is not wanted."""
        wanted, reader = self._wanted, self._reader
        at = reader.position
        if isinstance(error, Truncated) and self._epoch_is_a_bound and at == wanted.start:
            self._epoch_is_a_bound = False
            if error.agreed_offset >= at:
                # Nothing before the start is gone: the epoch was that of a leader without records.
                self._seek(at)
                return True
        if isinstance(error, OffsetOutOfRange) and at < error.log_start:
            go_on = min(error.log_start, wanted.end)
            why = f"the log starts at {error.log_start} now"
            self._tell(go_on - at, why)
            self._seek(go_on)
            return go_on < wanted.end
        if isinstance(error, Truncated):
            self._tell(UNKNOWN_COUNT, f"the log was cut below offset {at}: {error}")
            self._seek(at)
            return True
        self._tell(wanted.end - at, str(error))
        return False

    def _tell(self, count: int, why: str) -> None:
        loss = Loss(
            topic=self._wanted.topic, partition=self._wanted.partition, count=count, why=why
        )
        tell(loss, fail=self._options.fail_on_data_loss)

    def _seek(self, offset: int) -> None:
        async def seek() -> None:
            self._reader.seek(offset)

        self._cluster.run(seek())


async def _ready(reader: PartitionReader) -> Fetched | None:
    """The next batch if it has arrived.

    What went wrong waits: the reader says so again, when what was taken before it is handed out.
    """
    try:
        return await reader.next_stored(timeout_ms=0)
    except TailraceError:
        return None
