"""What Spark calls to write: batch and streaming, every row once.

The identity of a task (see `writing`) comes from Spark: query, micro-batch and task for a stream;
for a batch job a name of its own, or the options producerName and producerBatch, with which a job
that is run again goes on where it was.

The driver starts processes that only make a writer and commit, two for each batch that is written.
What writes is imported where that is done: with Arrow and the clients it takes 300 ms.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from tailrace_spark.layout import COLUMNS, WrongRows
from tailrace_spark.options import InvalidOption, WriteOptions

if TYPE_CHECKING:
    import pyarrow as pa

    from tailrace_spark.writing import TaskIdentity

QUERY_ID: Final = "sql.streaming.queryId"
BATCH_ID: Final = "streaming.sql.batchId"

_LOG: Final = logging.getLogger(__name__)


@dataclass(frozen=True)
class RowsWritten(WriterCommitMessage):
    """What one task wrote."""

    rows: int
    recoveries: int


@dataclass(frozen=True, slots=True)
class SinkLayout:
    """The columns of the rows that are written."""

    names: tuple[str, ...]

    @property
    def is_timed(self) -> bool:
        return "timestamp" in self.names


def sink_layout(schema: StructType, options: WriteOptions) -> SinkLayout:
    """WrongRows names a column that a record cannot have, or that is missing."""
    for each in schema.fields:
        allowed = COLUMNS.get(each.name)
        kind = each.dataType.simpleString()
        if allowed is None:
            raise WrongRows(
                f"{each.name}: a record has no such column; it has {', '.join(COLUMNS)}"
            )
        if kind not in allowed:
            raise WrongRows(f"{each.name}: the column must be {' or '.join(allowed)}, not {kind}")
    names = tuple(each.name for each in schema.fields)
    if "value" not in names:
        raise WrongRows("value: the column is missing; a record has a value, which may be null")
    if not options.topic and "topic" not in names:
        raise InvalidOption("topic: give the option, or a column topic")
    return SinkLayout(names)


class TailraceWriter(DataSourceArrowWriter):
    """A batch write."""

    def __init__(self, options: WriteOptions, layout: SinkLayout) -> None:
        self._options = options
        self._layout = layout
        # Made on the driver, once: all attempts of all tasks share it.
        self._name = options.producer_name or f"job-{uuid4()}"

    def write(  # type: ignore[override]  # As Spark's own classes for Arrow do.
        self, iterator: Iterator[pa.RecordBatch]
    ) -> RowsWritten:
        from tailrace_spark.writing import TaskIdentity  # noqa: PLC0415 - see above.

        context = _context()
        identity = TaskIdentity(
            f"spark-batch/{self._name}", self._options.producer_batch, context.partitionId()
        )
        return write_rows(iterator, self._options, self._layout, identity)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        _log_commit(self._name, messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        again = (
            "run it again with the same producerName to go on"
            if self._options.producer_name
            else "without the option producerName another run writes them again"
        )
        _LOG.warning("%s failed; rows that were written stay in the log: %s", self._name, again)


class TailraceStreamWriter(DataSourceStreamArrowWriter):
    """A streaming write."""

    def __init__(self, options: WriteOptions, layout: SinkLayout) -> None:
        if options.producer_name:
            raise InvalidOption("producerName: a stream is named by its checkpoint")
        self._options = options
        self._layout = layout

    def write(  # type: ignore[override]  # As Spark's own classes for Arrow do.
        self, iterator: Iterator[pa.RecordBatch]
    ) -> RowsWritten:
        from tailrace_spark.writing import TaskIdentity  # noqa: PLC0415 - see above.

        context = _context()
        query, batch = context.getLocalProperty(QUERY_ID), context.getLocalProperty(BATCH_ID)
        if query is None or batch is None:
            raise RuntimeError(f"Spark told neither {QUERY_ID} nor {BATCH_ID} to the task")
        identity = TaskIdentity(f"spark/{query}", int(batch), context.partitionId())
        return write_rows(iterator, self._options, self._layout, identity)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        _log_commit(f"batch {batchId}", messages)


def write_rows(
    batches: Iterator[pa.RecordBatch],
    options: WriteOptions,
    layout: SinkLayout,
    identity: TaskIdentity,
) -> RowsWritten:
    """All rows of one task."""
    from tailrace_spark.cluster import cluster_for  # noqa: PLC0415 - see above.
    from tailrace_spark.writing import TaskWriter  # noqa: PLC0415 - see above.

    cluster = cluster_for(options.bootstrap, timeout_ms=options.metadata_timeout_ms)
    writer = TaskWriter(cluster, identity, options, timed=layout.is_timed)
    try:
        for batch in batches:
            writer.write(batch)
        rows = sum(writer.finish().values())
    finally:
        writer.close()
    return RowsWritten(rows, writer.recoveries)


def _context() -> TaskContext:
    context = TaskContext.get()
    if context is None:
        raise RuntimeError("a writer of Spark runs in a task of Spark")
    return context


def _log_commit(what: str, messages: list[WriterCommitMessage | None]) -> None:
    written = [each for each in messages if isinstance(each, RowsWritten)]
    _LOG.info(
        "%s: %d rows by %d tasks, %d of which found rows of an earlier attempt",
        what,
        sum(each.rows for each in written),
        len(written),
        sum(each.recoveries > 0 for each in written),
    )
