"""Real brokers and a real Spark: one cluster and one session for all tests here."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import Filter, GreaterThanOrEqual, LessThan
from pyspark.sql.streaming.datasource import ReadMaxRows
from pyspark.sql.types import BinaryType, LongType, StructField, StructType
from typer.testing import CliRunner

from integration.cluster_harness import start, stop
from integration.spark_harness import ROOT, Topic, local_session, planner_folder, planners
from tailrace import Admin, Producer
from tailrace.cli.commands import app
from tailrace.dev.cluster import DevCluster
from tailrace.model import TopicPartition
from tailrace_spark import progress
from tailrace_spark.source import FilteringSource, TailraceSource

RUNNER = CliRunner()
VALUE_BYTES = 10_000_000

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(900),
    # Of pyspark and py4j, not ours.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

_topics = count()


@pytest.fixture(scope="module")
def dev(memory_folder: Path) -> Iterator[DevCluster]:
    running = start(
        memory_folder / "cluster",
        coordinators=1,
        log_cleaner_backoff_ms="200",
        log_retention_clock_settle_ms="1000",
        log_retention_check_interval_ms="500",
    )
    yield running
    stop(running)


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    made = local_session("tests")
    yield made
    made.stop()


def _copy(rows: DataFrame, target: Topic, checkpoint: Path, **trigger: Any) -> Any:
    writing = rows.writeStream.format("tailrace").option("bootstrap.servers", target.bootstrap)
    writing = writing.option("topic", target.name).option("checkpointLocation", str(checkpoint))
    return writing.trigger(**(trigger or {"availableNow": True})).start()


def test_batch_and_stream_read_what_was_written(
    dev: DevCluster, spark: SparkSession, tmp_path: Path
) -> None:
    topic = Topic(dev)
    topic.fill(50_000, compression_type="lz4")
    rows = topic.read(spark)
    figures = rows.selectExpr(
        "count(*)", "count(distinct value)", "sum(cast(cast(value as string) as bigint))"
    ).first()
    assert figures is not None
    assert tuple(figures) == (50_000, 50_000, sum(range(50_000)))
    query = (
        topic.stream(spark, maxOffsetsPerTrigger="20000", minPartitions="6", includeHeaders="true")
        .writeStream.format("memory")
        .queryName("seen")
        .option("checkpointLocation", str(tmp_path))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(600)
    seen = spark.sql("select count(*), count(distinct value) from seen").first()
    assert seen is not None
    assert tuple(seen) == (50_000, 50_000)
    assert [each["numInputRows"] for each in query.recentProgress][:3] == [20_000, 20_000, 10_000]
    few = rows.where("partition = 1 and offset between 10 and 12").select("offset").collect()
    assert [each["offset"] for each in few] == [10, 11, 12]
    assert rows.where("timestamp > '2200-01-01'").count() == 0


def test_a_filter_bounds_no_other_use_of_the_same_rows(
    dev: DevCluster, spark: SparkSession
) -> None:
    """Spark 4.2 plans a Python source once for all uses of a DataFrame: bounds would stay in it."""
    topic = Topic(dev)
    topic.fill(600)
    rows = topic.read(spark)
    few = rows.where("partition = 0 and offset < 5")
    assert few.count() == 5
    assert rows.count() == 600
    assert few.union(rows).count() == 605
    few.createOrReplaceTempView("few_of_it")
    rows.createOrReplaceTempView("all_of_it")
    told = spark.sql("select (select count(*) from few_of_it) + count(*) as n from all_of_it")
    assert [each["n"] for each in told.collect()] == [605]
    # What came since the first use is for those who load again.
    topic.fill(50, first=600)
    assert (rows.count(), topic.read(spark).count()) == (600, 650)


def test_a_batch_that_is_read_and_written_more_than_once(
    dev: DevCluster, spark: SparkSession, tmp_path: Path
) -> None:
    """In one foreachBatch: the same rows each time, and under one name they are written once."""
    source, target = Topic(dev), Topic(dev)
    source.fill(1_000)
    counts: list[int] = []

    def write(rows: DataFrame, batch: int) -> None:
        counts.append(rows.count())
        source.fill(10, first=1_000 + 10 * batch)
        for _ in range(2):
            writing = rows.select("key", "value").write.format("tailrace").mode("append")
            writing = writing.option("bootstrap.servers", target.bootstrap)
            writing = writing.option("topic", target.name).option("producerBatch", batch)
            writing.option("producerName", target.name).save()

    stream = source.stream(spark, maxOffsetsPerTrigger="600").writeStream.foreachBatch(write)
    stream = stream.option("checkpointLocation", str(tmp_path))
    assert stream.trigger(availableNow=True).start().awaitTermination(600)
    assert counts == [600, 400]
    assert target.numbers(spark) == list(range(1_000))


def test_partitions_that_are_added_to_what_a_query_reads(
    dev: DevCluster, spark: SparkSession, tmp_path: Path
) -> None:
    """They are read from their start, by a query that runs, that goes on, and by AvailableNow."""
    source, target = Topic(dev, partitions=2), Topic(dev)
    source.fill(200)
    rows = source.stream(spark, maxOffsetsPerTrigger="97").select("key", "value")

    def add(partitions: int, first: int) -> None:
        with Admin(source.bootstrap) as admin:
            admin.add_partitions(source.name, partitions)
        with Producer(source.bootstrap) as producer:
            values = pa.array([b"%d" % each for each in range(first, first + 100)], pa.binary())
            table = pa.table({"value": values})
            producer.send_batch(source.name, table, partition=partitions - 1).result(60)

    query = _copy(rows, target, tmp_path, processingTime="0 seconds")
    query.processAllAvailable()
    add(4, 200)
    query.processAllAvailable()
    assert target.numbers(spark) == list(range(300))
    query.stop()
    add(5, 300)
    assert _copy(rows, target, tmp_path).awaitTermination(600)
    assert target.numbers(spark) == list(range(400))
    query = _copy(rows, target, tmp_path, processingTime="0 seconds")
    add(6, 400)
    query.processAllAvailable()
    query.stop()
    assert target.numbers(spark) == list(range(500))


def test_odd_records(dev: DevCluster, spark: SparkSession) -> None:
    """Null keys and values, headers, empty partitions, 10 MB, topics by column, out and in."""
    topic = Topic(dev, partitions=4, max_message_bytes=str(2 * VALUE_BYTES))
    other = Topic(dev, partitions=1)
    made = spark.createDataFrame(
        [
            (None, b"no key", [("h", b"1"), ("n", None)], 0, None),
            (b"k", None, None, 0, None),
            (b"", b"", [], 2, topic.name),
            (b"big", b"x" * VALUE_BYTES, None, 2, topic.name),
            (b"k", b"elsewhere", None, None, other.name),
        ],
        "key binary, value binary, headers array<struct<key: string, value: binary>>, "
        "partition int, topic string",
    )
    made.coalesce(1).write.format("tailrace").mode("append").option(
        "bootstrap.servers", topic.bootstrap
    ).option("topic", topic.name).save()
    assert [row["value"] for row in other.read(spark).collect()] == [b"elsewhere"]
    rows = topic.read(spark, includeHeaders="true").orderBy("partition", "offset").collect()
    assert [(row["partition"], row["offset"], row["key"]) for row in rows] == [
        (0, 0, None),
        (0, 1, b"k"),
        (2, 0, b""),
        (2, 1, b"big"),
    ]
    assert [row["value"] and len(row["value"]) for row in rows] == [6, None, b"", VALUE_BYTES]
    assert [tuple(each) for each in rows[0]["headers"]] == [("h", b"1"), ("n", None)]
    assert rows[1]["headers"] is None


def test_two_hundred_partitions(dev: DevCluster, spark: SparkSession) -> None:
    topic = Topic(dev, partitions=200)
    topic.fill(2_000)
    table = topic.read(spark).select("partition", "value").toArrow()
    values: list[Any] = table.column("value").to_pylist()
    assert sorted(int(each) for each in values) == list(range(2_000))
    # A task for each partition that has records; keys make a hundred of them.
    assert len(set(table.column("partition").to_pylist())) > 50


@pytest.mark.by_hand
def test_a_compacted_topic_has_gaps(dev: DevCluster, spark: SparkSession) -> None:
    """What is left of it is read once, by one task or by several, with the right offsets."""
    topic = Topic(
        dev,
        partitions=1,
        cleanup_policy="compact",
        segment_bytes=str(1 << 20),
        min_cleanable_dirty_ratio="0.1",
    )
    records = 150_000
    topic.fill(records)
    end = time.monotonic() + 120
    while not any("compacted to offset" in each for each in _said(dev)):
        assert time.monotonic() < end, "nothing was compacted"
        time.sleep(0.1)
    while (whole := topic.read(spark).select("value", "offset").toArrow()).num_rows == records:
        assert time.monotonic() < end, "the leader compacted nothing"
    values: list[Any] = whole.column("value").to_pylist()
    numbers = [int(each) for each in values]
    last = {each % 100: each for each in numbers}
    assert last == {number % 100: number for number in range(records - 100, records)}
    # The number of a record is its offset, since there is one partition.
    assert numbers == whole.column("offset").to_pylist()
    split = topic.read(spark, minPartitions="5", endingOffsets=_json(topic, records // 2))
    offsets = [row["offset"] for row in split.select("offset").orderBy("offset").collect()]
    # It may have been compacted further meanwhile.
    assert offsets == sorted(set(offsets))
    assert set(offsets) <= set(numbers)


def _said(dev: DevCluster) -> list[str]:
    """What the brokers have said so far."""
    names = [each.name for each in dev.state.members if each.name.startswith("broker")]
    return [dev.log_path(each).read_text(errors="replace") for each in names]


def _json(topic: Topic, offset: int) -> str:
    return json.dumps({topic.name: {"0": offset}})


def test_a_range_of_time_fetches_little(dev: DevCluster, caplog: pytest.LogCaptureFixture) -> None:
    """Of a day of records, the bytes of an hour; as a task of Spark would, without Spark."""
    topic = Topic(dev, partitions=1, message_timestamp_type="CreateTime")
    midnight_ms, hour_ms, records = 1_704_067_200_000, 3_600_000, 2_000
    with Producer(topic.bootstrap) as producer:
        for hour in range(24):
            table = pa.table(
                {
                    "value": pa.array([b"x" * 100] * records, pa.binary()),
                    "timestamp": pa.array([midnight_ms + hour * hour_ms] * records, pa.int64()),
                }
            )
            producer.send_batch(topic.name, table).result(60)
    source = FilteringSource({"bootstrap.servers": topic.bootstrap, "subscribe": topic.name})
    schema = StructType([StructField("offset", LongType())])

    def fetched(*filters: Filter) -> tuple[int, int]:
        """Rows and bytes that come with these filters."""
        caplog.clear()
        reader: Any = source.reader(schema)
        reader.pushFilters(list(filters))
        with caplog.at_level("DEBUG", "tailrace_spark.reading"):
            rows = sum(
                batch.num_rows for each in reader.partitions() for batch in reader.read(each)
            )
        return rows, sum(int(each) for each in re.findall(r"(\d+) bytes came", caplog.text))

    rows, whole = fetched()
    assert rows == 24 * records
    late = datetime.fromtimestamp((midnight_ms + 22 * hour_ms) / 1000, UTC)
    rows, some = fetched(GreaterThanOrEqual(("timestamp",), late))
    assert rows == 2 * records
    assert some < whole / 10
    rows, few = fetched(
        GreaterThanOrEqual(("offset",), 5_000), LessThan(("offset",), 5_000 + records)
    )
    assert rows == records
    assert few < whole / 10


def test_what_was_deleted_before_it_was_read(dev: DevCluster, spark: SparkSession) -> None:
    topic = Topic(dev, partitions=1)
    topic.fill(1_000)
    with Admin(topic.bootstrap) as admin:
        admin.delete_records({TopicPartition(topic.name, 0): 600})
    start_at = _json(topic, 100)
    with pytest.raises(PySparkException, match="500 records are lost: the log starts at 600 now"):
        topic.read(spark, startingOffsets=start_at).count()
    assert topic.read(spark, startingOffsets=start_at, failOnDataLoss="false").count() == 400


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"subscribe": "no-such-topic"}, "subscribe: there is no topic 'no-such-topic'"),
        ({"startingOffset": "earliest"}, "do you mean startingOffsets"),
        ({"bootstrap.servers": "127.0.0.1:1", "metadataTimeoutMs": "1000"}, "127.0.0.1:1"),
    ],
)
def test_what_is_wrong_is_told_soon_and_by_name(
    dev: DevCluster, spark: SparkSession, options: dict[str, str], message: str
) -> None:
    begun = time.monotonic()
    reader = spark.read.format("tailrace").option("bootstrap.servers", dev.state.bootstrap)
    for name, value in {"subscribe": "x", **options}.items():
        reader = reader.option(name, value)
    with pytest.raises(PySparkException, match=message):
        reader.load().count()
    assert time.monotonic() - begun < 120


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"topic": "no-such-topic"}, "topic: there is no topic 'no-such-topic'"),
        ({"topics": "x"}, "do you mean topic"),
        ({"bootstrap.servers": "127.0.0.1:1", "metadataTimeoutMs": "1000"}, "127.0.0.1:1"),
    ],
)
def test_what_is_wrong_with_a_write_is_told_soon_and_by_name(
    dev: DevCluster, spark: SparkSession, options: dict[str, str], message: str
) -> None:
    begun = time.monotonic()
    given = {"bootstrap.servers": dev.state.bootstrap, "topic": "x", **options}
    rows = spark.range(3).selectExpr("cast(id as string) as value")
    with pytest.raises(PySparkException, match=message):
        rows.write.format("tailrace").mode("append").options(**given).save()
    assert time.monotonic() - begun < 120


def test_a_leader_dies_in_the_middle(dev: DevCluster, spark: SparkSession, tmp_path: Path) -> None:
    """Source and sink both lose a leader; every row is in the target once."""
    source, target = Topic(dev), Topic(dev)
    source.fill(120_000)
    with Admin(dev.state.bootstrap) as admin:
        leader = admin.describe_topic(target.name).partitions[0].leader
    query = _copy(
        source.stream(spark, maxOffsetsPerTrigger="30000").select("key", "value"), target, tmp_path
    )
    while query.lastProgress is None and query.isActive:
        time.sleep(0.01)
    asyncio.run(dev.signal(f"broker-{leader}", signal.SIGKILL))
    try:
        assert query.awaitTermination(600)
        assert target.numbers(spark) == list(range(120_000))
    finally:
        asyncio.run(dev.start(f"broker-{leader}"))


def _job(name: str, **constants: Any) -> Any:
    """The main function of a job, run in the session of the tests, maybe with other limits."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "spark-jobs" / "jobs" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for key, value in constants.items():
        assert hasattr(module, key)
        setattr(module, key, value)

    def run(topic: Topic, *arguments: str) -> int:
        return int(module.main(["--bootstrap", topic.bootstrap, *arguments]))

    return run


@pytest.mark.by_hand
def test_archive_audit_and_replay(
    dev: DevCluster, spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, again = Topic(dev), Topic(dev, partitions=5)
    archive, audit, replay = _job("archive"), _job("audit"), _job("replay")
    folder, checkpoint = str(tmp_path / "archive"), str(tmp_path / "checkpoint")
    source.fill(3_000)
    arguments = ["--topics", source.name, "--path", folder, "--checkpoint", checkpoint]
    assert archive(source, *arguments, "--rows", "1000", "--merge", "3") == 0
    assert "3,000 records archived" in capsys.readouterr().out
    # Three batches of one day became one folder.
    (batches,) = (tmp_path / "archive" / f"topic={source.name}").iterdir()
    assert [each.name.count("-") for each in batches.iterdir()] == [2]
    compare = ["--topic", source.name, "--archive", folder]
    assert audit(source, *compare, "--range", "500") == 0
    source.fill(10, first=3_000)
    assert audit(source, *compare) == 1
    assert audit(source, *compare, "--until", "archived") == 0
    replayed = ["--path", folder, "--topic", source.name, "--to", again.name, "--name", "r"]
    assert replay(source, *replayed, "--range", "400", "--tasks", "2") == 0
    # As if it had died at the end of the last step, before that was noted.
    note = tmp_path / "archive" / "_replay" / "r.json"
    noted = json.loads(note.read_text())
    note.with_name(".r.json.crc").unlink(missing_ok=True)
    note.write_text(json.dumps({**noted, "done": noted["done"] - 1}))
    assert replay(source, *replayed, "--range", "400", "--tasks", "2") == 0
    assert again.numbers(spark) == list(range(3_000))
    rows = again.read(spark).orderBy("partition", "offset").select("key", "value").collect()
    for key in {row["key"] for row in rows}:
        values = [int(row["value"]) for row in rows if row["key"] == key]
        assert values == sorted(values)
    mirror = ["--topic", source.name, "--mirror-topic", again.name, "--by", "topic"]
    assert audit(source, *mirror) == 1
    # What is archived later lies in ranges that were done: the same command goes on with it.
    assert archive(source, *arguments) == 0
    assert replay(source, *replayed, "--range", "400", "--tasks", "2") == 0
    assert again.numbers(spark) == list(range(3_010))
    assert audit(source, *mirror) == 0
    assert replay(source, *replayed, "--range", "400", "--tasks", "2") == 0
    assert capsys.readouterr().out.endswith("; nothing is new\n")


@pytest.mark.by_hand
def test_one_job_at_a_time_merges_an_archive(
    dev: DevCluster, spark: SparkSession, tmp_path: Path
) -> None:
    """Of two that finished one merge at once, one could delete what the other had put in place."""
    source, folder = Topic(dev), tmp_path / "archive"
    source.fill(3_000)
    arguments = ["--topics", source.name, "--path", str(folder)]
    arguments += ["--checkpoint", str(tmp_path / "checkpoint"), "--rows", "1000", "--merge", "3"]
    lock = folder / "_compacting" / "lock"
    lock.parent.mkdir(parents=True)
    # Of a job elsewhere that lives: nothing is merged, all is archived.
    lock.write_text(json.dumps({"host": "elsewhere", "pid": 1, "id": "a"}))
    assert _job("archive")(source, *arguments) == 0
    (batches,) = (folder / f"topic={source.name}").iterdir()
    assert [each.name.count("-") for each in sorted(batches.iterdir())] == [1, 1, 1]
    assert lock.exists()
    # It died in the middle of a merge: that is finished when it has said nothing for long enough.
    (lock.parent / "intent.json").write_text(json.dumps({"target": "none", "sources": []}))
    source.fill(10, first=3_000)
    assert _job("archive", LOCK_DEAD_S=0.0)(source, *arguments) == 0
    assert sorted(each.name.count("-") for each in batches.iterdir()) == [1, 2]
    assert not list(lock.parent.glob("lock*"))
    assert not (lock.parent / "intent.json").exists()
    compare = ["--topic", source.name, "--archive", str(folder)]
    assert _job("audit")(source, *compare) == 0
    # One that died on this host is known to be dead at once.
    gone = subprocess.Popen(["true"])
    gone.wait()
    lock.write_text(json.dumps({"host": socket.gethostname(), "pid": gone.pid, "id": "b"}))
    (lock.parent / "intent.json").write_text(json.dumps({"target": "none", "sources": []}))
    assert _job("archive")(source, *arguments) == 0
    assert not (lock.parent / "intent.json").exists()


@pytest.mark.by_hand
def test_aggregate(
    dev: DevCluster, spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, results = Topic(dev), Topic(dev)
    orders = [
        b'{"customer": "%d", "amount": %d, "at": "2024-01-01T00:%02d:00Z"}' % (n % 2, n, n % 60)
        for n in range(120)
    ]
    with Producer(source.bootstrap) as producer:
        producer.send_batch(source.name, pa.table({"value": [*orders, b"no json"]})).result(60)
    arguments = [
        *("--topic", source.name, "--output", results.name, "--window", "1 hour"),
        *("--schema", "customer string, amount double, at timestamp", "--time", "at"),
        *("--group-by", "customer", "--aggregate", "sum(amount) as total"),
        *("--checkpoint", str(tmp_path), "--show", "10"),
    ]
    assert _job("aggregate")(source, *arguments) == 0
    rows = results.read(spark).select("key", "value").collect()
    totals = {row["key"].decode(): json.loads(row["value"])["total"] for row in rows}
    assert totals == {f"2024-01-01 00:00:00/{n}": float(sum(range(n, 120, 2))) for n in range(2)}
    assert "window_start" in capsys.readouterr().out


def test_without_a_line_of_configuration(dev: DevCluster, spark: SparkSession) -> None:
    """Spark finds the source by the name of a module; filters are not pushed down then."""
    topic = Topic(dev, partitions=1)
    topic.fill(10)
    fresh = spark.newSession()
    fresh.conf.set("spark.sql.python.filterPushdown.enabled", "false")
    assert topic.read(fresh).where("offset < 3").count() == 3


def test_the_examples_of_the_document_run(dev: DevCluster, spark: SparkSession) -> None:
    """In this process, with its session; what they write to is removed by their own folder."""
    with Admin(dev.state.bootstrap) as admin:
        for name in ("orders", "orders-copy"):
            admin.create_topic(name, partitions=2)
    with Producer(dev.state.bootstrap) as producer:
        for number in range(5):
            producer.send("orders", b"%d" % number, key=b"k%d" % number).result(30)
    text = (ROOT / "docs" / "spark.md").read_text(encoding="utf-8")
    examples = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(examples) == 2
    with TemporaryDirectory() as folder:
        for each in examples:
            code = each.replace("127.0.0.1:9092", dev.state.bootstrap).replace("/tmp", folder)
            exec(compile(code, "docs/spark.md", "exec"), {})
    copied = spark.read.format("tailrace").option("bootstrap.servers", dev.state.bootstrap)
    assert copied.option("subscribe", "orders-copy").load().count() == 6


def test_lag_is_shown_as_that_of_a_named_reader(
    dev: DevCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the driver does after each micro-batch, without the driver."""
    # A query would not wait for its coordinator to be ready; this test does.
    monkeypatch.setattr(progress, "COMMIT_TIMEOUT_MS", 120_000)
    monkeypatch.setattr(progress, "CLOSE_TIMEOUT_S", 130.0)
    topic = Topic(dev, partitions=1)
    topic.fill(100)
    options = {"bootstrap.servers": topic.bootstrap, "subscribe": topic.name}
    source = TailraceSource({**options, "startingOffsets": "earliest", "readerName": topic.name})
    reader: Any = source.streamReader(StructType([StructField("value", BinaryType())]))
    end = reader.latestOffset(reader.initialOffset(), ReadMaxRows(60))
    reader.commit(end)
    reader.stop()
    told = RUNNER.invoke(app, ["groups", "list", "--bootstrap", topic.bootstrap])
    assert re.search(rf"{topic.name}\b.*\breader\b", told.output), told.output
    told = RUNNER.invoke(app, ["groups", "describe", topic.name, "--bootstrap", topic.bootstrap])
    assert re.search(rf"{topic.name}\b.*\b60\b.*\b100\b.*\b40\b", told.output), told.output
    with Admin(topic.bootstrap) as admin:
        shown = admin.describe_group(topic.name)
    assert shown.kind == "reader"
    assert [(each.offset, each.lag) for each in shown.positions] == [(60, 40)]


def test_the_planner_of_a_stream_is_a_fork(
    dev: DevCluster, spark: SparkSession, tmp_path: Path
) -> None:
    topic = Topic(dev)
    topic.fill(10)

    def begin(name: str) -> Any:
        query = topic.stream(spark).writeStream.format("noop")
        query = query.option("checkpointLocation", str(tmp_path / name))
        running = query.trigger(processingTime="0 seconds").start()
        running.processAllAvailable()
        return running

    # The first one of the session leaves a process behind, which soon listens and stays alone.
    first = begin("first")
    folder = planner_folder()
    _until(lambda: bool(list(folder.glob("tailrace-planner-*"))))
    first.stop()
    _until(lambda: len(planners(folder)) == 1)
    kept = set(planners(folder))
    second = begin("second")
    assert set(planners(folder).values()) & kept
    second.stop()
    _until(lambda: set(planners(folder)) == kept)
    topic.delete()


def _until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline, "it does not come"
        time.sleep(0.05)


def test_every_trigger_goes_on_and_tells_its_progress(
    dev: DevCluster, spark: SparkSession, tmp_path: Path
) -> None:
    source, target = Topic(dev), Topic(dev)
    source.fill(1_000)
    rows = source.stream(spark, maxOffsetsPerTrigger="600").select("value")
    query = _copy(rows, target, tmp_path)
    assert query.awaitTermination(600)
    told = query.recentProgress[0]["sources"][0]
    end = json.loads(told["endOffset"]) if isinstance(told["endOffset"], str) else told["endOffset"]
    assert sum(end["topics"][source.name]["offsets"].values()) == 600
    source.fill(700, first=1_000)
    assert _copy(rows, target, tmp_path, once=True).awaitTermination(600)
    source.fill(10, first=1_700)
    query = _copy(rows, target, tmp_path, processingTime="100 milliseconds")
    query.processAllAvailable()
    query.stop()
    assert target.numbers(spark) == list(range(1_710))
