"""What Spark calls, called as Spark does, on a model cluster."""

from __future__ import annotations

import logging
import pickle
import time
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql.datasource import (
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThanOrEqual,
    InputPartition,
    LessThan,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from tailrace.errors import UnknownTopic
from tailrace.model import TopicPartition
from tailrace_spark.cluster import cluster_for
from tailrace_spark.losses import DataLost
from tailrace_spark.options import InvalidOption, Selection
from tailrace_spark.source import (
    FilteringReader,
    FilteringSource,
    RangePartition,
    TailraceReader,
    TailraceSource,
    TailraceStreamReader,
)
from unit.spark.conftest import Model, struct

SCHEMA = struct(partition="int", offset="bigint")
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _source(model: Model, kind: Any = TailraceSource, **more: str) -> Any:
    return kind({"bootstrap.servers": model.bootstrap, "subscribe": "t", **more})


def _reader(model: Model, kind: Any = TailraceSource, **more: str) -> Any:
    source = _source(model, kind, **more)
    return source.reader(SCHEMA)


def _stream(model: Model, **more: str) -> TailraceStreamReader:
    source = _source(model, **{"startingOffsets": "earliest", **more})
    reader = source.streamReader(SCHEMA)
    assert isinstance(reader, TailraceStreamReader)
    return reader


def _rows(reader: Any, partitions: Iterable[InputPartition]) -> list[tuple[int, int]]:
    found = []
    for each in partitions:
        # Both travel to a task.
        there, part = pickle.loads(pickle.dumps((reader, each)))
        for batch in there.read(part):
            found += [(row["partition"], row["offset"]) for row in batch.to_pylist()]
    return sorted(found)


def _until_seen(model: Model, topic: str, topic_id: str | None) -> None:
    """News of topics are pushed: wait until the client has them."""
    everything = Selection(option="", pattern=".*")
    cluster = cluster_for(model.bootstrap, timeout_ms=10_000)
    for _ in range(1_000):
        found = cluster.topics(everything).get(topic)
        if (None if found is None else found.topic_id) == topic_id:
            return
        time.sleep(0.01)
    raise AssertionError(f"{topic} is still not {topic_id}")


def _all(*sizes: int) -> list[tuple[int, int]]:
    return [(number, offset) for number, size in enumerate(sizes) for offset in range(size)]


def test_the_schema_has_headers_when_asked_for(model: Model) -> None:
    assert "headers" not in _source(model).schema()
    assert (
        _source(model, includeHeaders="true")
        .schema()
        .endswith("headers array<struct<key: string, value: binary>>")
    )
    assert TailraceSource.name() == FilteringSource.name() == "tailrace"


def test_a_batch_reads_everything(model: Model) -> None:
    model.create("t", 3)
    model.fill("t", 0, 10, 5)
    model.fill("t", 2, 7)
    reader = _reader(model)
    parts = reader.partitions()
    assert len(parts) == 2
    assert _rows(reader, parts) == _all(15, 0, 7)


def test_a_batch_of_nothing_reads_nothing(model: Model) -> None:
    model.create("t", 2)
    reader = _reader(model)
    assert reader.partitions() == []
    assert list(reader.read(InputPartition(None))) == []


def test_min_partitions_split_large_ranges(model: Model) -> None:
    model.create("t", 2)
    model.fill("t", 0, 100)
    model.fill("t", 1, 10)
    reader = _reader(model, minPartitions="8")
    parts = reader.partitions()
    assert len(parts) >= 8
    assert _rows(reader, parts) == _all(100, 10)


def test_between_given_offsets(model: Model) -> None:
    model.create("t", 2)
    model.fill("t", 0, 10)
    model.fill("t", 1, 10)
    reader = _reader(
        model,
        startingOffsets='{"t": {"0": 2, "1": -2}}',
        endingOffsets='{"t": {"0": 4, "1": 1}}',
    )
    assert _rows(reader, reader.partitions()) == [(0, 2), (0, 3), (1, 0)]


def test_between_given_times(model: Model) -> None:
    model.create("t")
    model.fill("t", 0, 10, time_ms=100)
    reader = _reader(model, startingTimestamp="103", endingTimestamp="106")
    assert _rows(reader, reader.partitions()) == [(0, 3), (0, 4), (0, 5)]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"endingOffsets": '{"t": {"0": 99}}'}, "endingOffsets: t-0 ends at offset 10, not 99"),
        ({"startingOffsets": '{"t": {"0": 11}}'}, "startingOffsets: t-0 ends at offset 10, not 11"),
        (
            {"startingOffsets": '{"t": {"0": 5}}', "endingOffsets": '{"t": {"0": 4}}'},
            "endingOffsets: t-0 would end at offset 4, before startingOffsets at 5",
        ),
        ({"startingTimestamp": "999"}, "startingTimestamp: t has no record"),
        (
            {"startingOffsets": '{"t": {"0": 5}, "u": {"0": 1}}'},
            "startingOffsets: it names u, but what is read is t",
        ),
    ],
)
def test_places_that_are_not_there(model: Model, more: dict[str, str], message: str) -> None:
    model.create("t")
    model.fill("t", 0, 10)
    with pytest.raises(InvalidOption, match=message):
        _reader(model, **more).partitions()


def test_a_stream_does_not_start_behind_the_end(model: Model) -> None:
    """It would wait in silence, and pass over whatever is written up to there."""
    model.create("t")
    model.fill("t", 0, 10)
    starting = '{"t": {"0": 11}}'
    with pytest.raises(InvalidOption, match="startingOffsets: t-0 ends at offset 10, not 11"):
        _stream(model, startingOffsets=starting).initialOffset()
    lax = _stream(model, startingOffsets=starting, failOnDataLoss="false")
    assert lax.initialOffset()["topics"]["t"]["offsets"] == {"0": 11}


def test_a_topic_that_is_not_there(model: Model) -> None:
    with pytest.raises(UnknownTopic, match="subscribe: there is no topic 't'"):
        _reader(model).partitions()


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ([EqualTo(("partition",), 1)], {(1, n) for n in range(10)}),
        ([GreaterThanOrEqual(("offset",), 8)], {(0, 8), (0, 9), (1, 8), (1, 9)}),
        ([LessThan(("offset",), 1)], {(0, 0), (1, 0)}),
        (
            [GreaterThanOrEqual(("timestamp",), EPOCH + timedelta(milliseconds=108))],
            {(0, 8), (0, 9), (1, 8), (1, 9)},
        ),
        ([EqualTo(("offset",), 50)], set()),
    ],
)
def test_filters_bound_what_is_read(
    model: Model, filters: list[Filter], expected: set[tuple[int, int]]
) -> None:
    model.create("t", 2)
    for number in range(2):
        model.fill("t", number, *[1] * 10, time_ms=100)
    reader = _reader(model, FilteringSource)
    assert isinstance(reader, FilteringReader)
    assert list(reader.pushFilters(filters)) == filters
    assert set(_rows(reader, reader.partitions())) == expected


def test_times_bound_the_end_only_where_they_cannot_fall(model: Model) -> None:
    before = [LessThan(("timestamp",), EPOCH + timedelta(milliseconds=103))]
    model.create("t")
    model.fill("t", 0, *[1] * 10, time_ms=100)
    reader = _reader(model, FilteringSource)
    reader.pushFilters(before)
    assert len(_rows(reader, reader.partitions())) == 10
    model.create("stamped", append_time=True)
    model.fill("stamped", 0, *[1] * 10, time_ms=100)
    reader = _reader(model, FilteringSource, subscribe="stamped")
    reader.pushFilters(before)
    assert _rows(reader, reader.partitions()) == [(0, 0), (0, 1), (0, 2)]


def test_without_push_down_spark_s_own_method_stays() -> None:
    """Spark refuses a reader that has one of its own unless the session allows it."""
    assert TailraceReader.pushFilters is DataSourceReader.pushFilters


def test_a_stream_reads_batch_after_batch(model: Model) -> None:
    model.create("t", 2)
    model.fill("t", 0, 10)
    reader = _stream(model, maxOffsetsPerTrigger="6")
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMaxRows(6)
    start = reader.initialOffset()
    model.fill("t", 1, 4)
    seen: list[tuple[int, int]] = []
    while (end := reader.latestOffset(start, limit)) != start:
        rows = _rows(reader, reader.partitions(start, end))
        assert len(rows) <= 6
        seen += rows
        start = end
        reader.commit(end)
    assert sorted(seen) == _all(10, 4)
    latest = reader.reportLatestOffset()
    assert latest is not None
    assert latest["topics"]["t"]["offsets"] == {"0": 10, "1": 4}
    reader.stop()


def test_the_last_batch_of_a_query_that_ends_is_shown(model: Model) -> None:
    """Spark tells `commit` of a batch when it begins another one."""
    model.create("t")
    model.fill("t", 0, 10)
    reader = _stream(model, readerName="job")
    reader.prepareForTriggerAvailableNow()
    end = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    assert reader.latestOffset(end, ReadAllAvailable()) == end
    reader.stop()
    groups: Any = model.cluster.coordinators.groups
    assert groups["job"].offsets[TopicPartition("t", 0)].offset == 10


def test_the_start_of_the_first_batch_survives_a_restart(model: Model) -> None:
    """Pitfall: Spark asks again for the first position and would get another "latest"."""
    model.create("t")
    model.fill("t", 0, 10)
    reader = _stream(model, startingOffsets="latest")
    first = reader.initialOffset()
    model.fill("t", 0, 5)
    assert reader.initialOffset() == first
    end = reader.latestOffset(first, ReadAllAvailable())
    again = _stream(model, startingOffsets="latest")
    model.fill("t", 0, 20)
    planned = again.partitions(again.initialOffset(), end)
    assert [n for _, n in _rows(again, planned)] == list(range(10, 15))


def test_available_now_ends_where_the_log_ended(model: Model) -> None:
    model.create("t")
    model.fill("t", 0, 10)
    reader = _stream(model)
    reader.prepareForTriggerAvailableNow()
    start = reader.initialOffset()
    model.fill("t", 0, 10)
    end = reader.latestOffset(start, ReadAllAvailable())
    assert len(_rows(reader, reader.partitions(start, end))) == 10
    assert reader.latestOffset(end, ReadAllAvailable()) == end


def test_new_partitions_and_topics_join_a_stream(model: Model) -> None:
    model.create("t")
    model.fill("t", 0, 3)
    reader = TailraceSource(
        {
            "bootstrap.servers": model.bootstrap,
            "subscribePattern": "t.*",
            "startingOffsets": "latest",
        }
    ).streamReader(SCHEMA)
    start = reader.initialOffset()
    model.create("t2", 1)
    model.fill("t2", 0, 2)
    _until_seen(model, "t2", model.log("t2").topic_id)
    end = reader.latestOffset(start, ReadAllAvailable())
    parts = reader.partitions(start, end)
    assert [str(each.wanted) for each in parts if isinstance(each, RangePartition)] == [
        "t2-0 [0, 2)"
    ]


@pytest.mark.parametrize("made_anew", [True, False])
def test_a_topic_that_went_away(
    model: Model, caplog: pytest.LogCaptureFixture, made_anew: bool
) -> None:
    model.create("keep")
    model.create("t")
    model.fill("t", 0, 10)
    options = {"subscribe": "", "subscribePattern": "t|keep"}
    readers = [_stream(model, **options), _stream(model, **options, failOnDataLoss="false")]
    start = readers[0].latestOffset(readers[0].initialOffset(), ReadAllAvailable())
    model.delete("t")
    if made_anew:
        model.create("t")
        model.fill("t", 0, 4)
    _until_seen(model, "t", model.log("t").topic_id if made_anew else None)
    with pytest.raises(DataLost, match="the topic was deleted"):
        readers[0].latestOffset(start, ReadAllAvailable())
    with caplog.at_level(logging.WARNING):
        end = readers[1].latestOffset(start, ReadAllAvailable())
        found = _rows(readers[1], readers[1].partitions(start, end))
    assert found == ([(0, n) for n in range(4)] if made_anew else [])
    assert "the topic was deleted" in caplog.text


def test_one_of_several_topics_went_away(model: Model, caplog: pytest.LogCaptureFixture) -> None:
    model.create("keep")
    model.create("t")
    options = {"subscribe": "t,keep"}
    strict, lax = _stream(model, **options), _stream(model, **options, failOnDataLoss="false")
    start = strict.latestOffset(strict.initialOffset(), ReadAllAvailable())
    model.delete("t")
    model.fill("keep", 0, 3)
    _until_seen(model, "t", None)
    with pytest.raises(UnknownTopic, match="subscribe: there is no topic 't'"):
        strict.latestOffset(start, ReadAllAvailable())
    with caplog.at_level(logging.WARNING):
        end = lax.latestOffset(start, ReadAllAvailable())
        assert len(_rows(lax, lax.partitions(start, end))) == 3
    # Once, though both the end and the plan of the batch show it.
    (said,) = [each.getMessage() for each in caplog.records if "lost" in each.getMessage()]
    assert "t: an unknown number of records are lost: the topic was deleted" in said
