"""The data source `tailrace`: what Spark calls to plan and to read, batch and streaming.

Planning happens on the driver and asks the cluster; reading happens in tasks (`reading`). What is
handed from the one to the other is a `ReadRange`. Everything here can be pickled.

Spark starts a process for the planning of each streaming query, and for a session's first query one
for each step; most of them ask the cluster nothing. So what does ask it, with gRPC below, is
imported where it is used, and what reads is not imported where only planning is done.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    Filter,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from tailrace_spark.filters import Bounds, Wanted, wanted_by
from tailrace_spark.layout import SPARK_TYPES, Layout, default_layout, layout_of
from tailrace_spark.losses import tell
from tailrace_spark.offsets import (
    Loss,
    Offsets,
    Plan,
    Position,
    ReadRange,
    TopicOffsets,
    advance,
    differences,
    plan,
    split,
)
from tailrace_spark.options import (
    InvalidOption,
    Kind,
    Place,
    Places,
    ReadOptions,
    read_options,
    write_options,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from tailrace_spark.cluster import Cluster, TopicFacts
    from tailrace_spark.progress import Progress
    from tailrace_spark.sink import TailraceStreamWriter, TailraceWriter

FORMAT: Final = "tailrace"
_LOG: Final = logging.getLogger(__name__)


class RangePartition(InputPartition):
    """The work of one task."""

    def __init__(self, wanted: ReadRange) -> None:
        super().__init__(wanted)
        self.wanted = wanted


class TailraceSource(DataSource):
    """`spark.read.format("tailrace")` and its three sisters."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        headers = self.options.get("includeHeaders", "false").strip().lower() == "true"
        names = default_layout(headers=headers).names
        return ", ".join(f"{name} {SPARK_TYPES[name]}" for name in names)

    def reader(self, schema: StructType) -> DataSourceReader:
        return TailraceReader(self._read_options(streaming=False), layout_of(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's.
        return TailraceStreamReader(self._read_options(streaming=True), layout_of(schema))

    def writer(self, schema: StructType, overwrite: bool) -> TailraceWriter:
        from tailrace_spark.sink import TailraceWriter, sink_layout  # noqa: PLC0415 - see above.

        _refuse_overwrite(overwrite)
        options = write_options(dict(self.options))
        return TailraceWriter(options, sink_layout(schema, options))

    def streamWriter(  # noqa: N802 - Spark's name.
        self, schema: StructType, overwrite: bool
    ) -> TailraceStreamWriter:
        from tailrace_spark.sink import (  # noqa: PLC0415 - see above.
            TailraceStreamWriter,
            sink_layout,
        )

        # Of a stream, `overwrite` says that the query has the output mode "complete".
        options = write_options(dict(self.options))
        return TailraceStreamWriter(options, sink_layout(schema, options))

    def _read_options(self, *, streaming: bool) -> ReadOptions:
        return read_options(dict(self.options), streaming=streaming)


class FilteringSource(TailraceSource):
    """The same, for sessions in which Spark may push filters down: without that it would refuse."""

    def reader(self, schema: StructType) -> DataSourceReader:
        return FilteringReader(self._read_options(streaming=False), layout_of(schema))


class TailraceReader(DataSourceReader):
    """A batch read."""

    def __init__(self, options: ReadOptions, layout: Layout) -> None:
        self._options = options
        self._layout = layout
        self._wanted = Wanted()

    def partitions(self) -> Sequence[InputPartition]:
        options = self._options
        cluster = _cluster(options)
        topics = cluster.topics(options.selection)
        start = cluster.positions(
            topics, options.starting, too_late_is_end=options.latest_when_too_late
        )
        end = cluster.positions(topics, options.ending, too_late_is_end=True)
        _check_explicit(cluster, topics, options, start, end)
        start, end = narrowed(cluster, topics, self._wanted, start, end)
        found = plan(start, end)
        ranges = split(found.ranges, options.min_partitions)
        return [RangePartition(each) for each in ranges]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(partition, self._options, self._layout)


class FilteringReader(TailraceReader):
    """A batch read that looks at the filters of the query."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name.
        self._wanted = wanted_by(filters)
        # Bounds may be wider than the filters: Spark checks the rows again.
        return filters


class TailraceStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A streaming read. Lives in one process of the driver for as long as the query runs."""

    def __init__(self, options: ReadOptions, layout: Layout) -> None:
        self._options = options
        self._layout = layout
        self._initial: Offsets | None = None
        self._target: Offsets | None = None
        self._seen: Offsets | None = None
        self._progress: Progress | None = None
        # A loss is met twice, when the end of a batch is found and when the batch is planned.
        self._told: list[Loss] = []

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name.
        """Asked for more than once, and answered once."""
        if self._initial is None:
            cluster, options = self._cluster(), self._options
            topics = cluster.topics(options.selection)
            found = cluster.positions(
                topics, options.starting, too_late_is_end=options.latest_when_too_late
            )
            # Asked again by a query that died in its first batch: by then records may be lost.
            if options.starting.by_partition and options.fail_on_data_loss:
                _check_beyond(options.starting, found, cluster.latest(topics))
            self._initial = replace(found, is_initial=True)
        return self._initial.to_json()

    def latestOffset(  # noqa: N802 - Spark's name.
        self, start: dict[str, Any], limit: ReadLimit
    ) -> dict[str, Any]:
        begin = Offsets.from_json(start)
        # Spark tells `commit` of a batch when it begins the next one, so never of the last one. But
        # what it plans from is committed: what was planned before has run.
        self._show(begin)
        if self._target is not None:
            latest = self._target
        else:
            latest = self._seen = self._latest()
        self._told = differences(begin, latest)
        self._tell(self._told)
        rows_max = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        return advance(begin, latest, rows_max=rows_max).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name.
        rows = self._options.max_offsets_per_trigger
        return ReadAllAvailable() if rows is None else ReadMaxRows(rows)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name.
        return None if self._seen is None else self._seen.to_json()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name.
        self._target = self._seen = self._latest()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        found = self._plan(Offsets.from_json(start), Offsets.from_json(end))
        return [RangePartition(each) for each in found.ranges]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(partition, self._options, self._layout)

    def commit(self, end: dict[str, Any]) -> None:
        self._show(Offsets.from_json(end))

    def stop(self) -> None:
        if self._progress is not None:
            self._progress.close()

    def _show(self, done: Offsets) -> None:
        """Let the tools that show groups show how far the query is, if it has a name there."""
        if not self._options.reader_name:
            return
        if self._progress is None:
            from tailrace_spark.progress import Progress  # noqa: PLC0415 - see above.

            self._progress = Progress(self._cluster(), self._options.reader_name)
        self._progress.commit(done)

    def _plan(self, start: Offsets, end: Offsets) -> Plan:
        found = plan(start, end, min_partitions=self._options.min_partitions)
        self._tell(each for each in found.losses if each not in self._told)
        return found

    def _tell(self, losses: Iterable[Loss]) -> None:
        for loss in losses:
            tell(loss, fail=self._options.fail_on_data_loss)

    def _latest(self) -> Offsets:
        return self._cluster().latest_of(
            self._options.selection, may_miss=not self._options.fail_on_data_loss
        )

    def _cluster(self) -> Cluster:
        return _cluster(self._options)


def narrowed(
    cluster: Cluster,
    topics: dict[str, TopicFacts],
    wanted: Wanted,
    start: Offsets,
    end: Offsets,
) -> tuple[Offsets, Offsets]:
    """Start and end within what the filters of the query can let through."""
    if wanted.is_all:
        return start, end
    lows, highs = start, end
    if wanted.times.low is not None:
        place = Places("timestamp", Place(Kind.TIME, max(wanted.times.low, 0)))
        lows = cluster.positions(topics, place, too_late_is_end=True)
    stamped = {name: each for name, each in topics.items() if each.is_append_time}
    if wanted.times.high is not None and stamped:
        place = Places("timestamp", Place(Kind.TIME, max(wanted.times.high, 0)))
        highs = cluster.positions(stamped, place, too_late_is_end=True)
    begins, ends = {}, {}
    for name, topic in end.topics.items():
        begins[name], ends[name] = _narrowed_topic(wanted, topic, (start, lows), (end, highs), name)
    return Offsets(begins), Offsets(ends)


def _narrowed_topic(
    wanted: Wanted,
    topic: TopicOffsets,
    begins: tuple[Offsets, Offsets],
    ends: tuple[Offsets, Offsets],
    name: str,
) -> tuple[TopicOffsets, TopicOffsets]:
    first: dict[int, Position] = {}
    last: dict[int, Position] = {}
    for number in topic.positions:
        if not wanted.partitions.has(number):
            continue
        low = [each.position(name, number) for each in begins]
        high = [each.position(name, number) for each in ends]
        bounds = Bounds(
            max((each.offset for each in low if each is not None), default=0),
            min((each.offset for each in high if each is not None), default=0),
        ).narrowed(wanted.offsets.low, wanted.offsets.high)
        begin, end = bounds.low or 0, bounds.high or 0
        first[number] = Position(min(begin, max(end, 0)))
        last[number] = Position(max(end, 0))
    return TopicOffsets(topic.topic_id, first), TopicOffsets(topic.topic_id, last)


def _check_explicit(
    cluster: Cluster,
    topics: dict[str, TopicFacts],
    options: ReadOptions,
    start: Offsets,
    end: Offsets,
) -> None:
    """Offsets that a user gave must be there: to wait for them would look like a hang."""
    explicit = [each for each in (options.starting, options.ending) if each.by_partition]
    latest = cluster.latest(topics) if explicit else end
    for places, offsets in ((options.starting, start), (options.ending, end)):
        if places.by_partition:
            _check_beyond(places, offsets, latest)
    for name, number, position in start.each():
        limit = end.position(name, number)
        if limit is not None and position.offset > limit.offset:
            raise InvalidOption(
                f"{options.ending.option}: {name}-{number} would end at offset {limit.offset}, "
                f"before {options.starting.option} at {position.offset}"
            )


def _check_beyond(places: Places, offsets: Offsets, latest: Offsets) -> None:
    """InvalidOption for an offset behind the end of its partition."""
    for name, number, position in offsets.each():
        limit = latest.position(name, number)
        if limit is not None and position.offset > limit.offset:
            raise InvalidOption(
                f"{places.option}: {name}-{number} ends at offset {limit.offset}, "
                f"not {position.offset}"
            )


def _read(
    partition: InputPartition, options: ReadOptions, layout: Layout
) -> Iterator[pa.RecordBatch]:
    # Spark reads a partition of its own making when there is nothing to read.
    if not isinstance(partition, RangePartition):
        return iter(())
    from tailrace_spark.reading import read_range  # noqa: PLC0415 - see above.

    return read_range(partition.wanted, options, layout)


def _cluster(options: ReadOptions) -> Cluster:
    from tailrace_spark.cluster import cluster_for  # noqa: PLC0415 - see above.

    return cluster_for(options.bootstrap, timeout_ms=options.metadata_timeout_ms)


def _refuse_overwrite(overwrite: bool) -> None:
    if overwrite:
        raise InvalidOption("mode: a log is only appended to; use mode('append')")
