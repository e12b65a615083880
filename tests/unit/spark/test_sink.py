"""What Spark calls to write: columns are checked on the driver, tasks get their identity."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext

from tailrace_spark.layout import WrongRows
from tailrace_spark.options import InvalidOption, WriteOptions
from tailrace_spark.sink import TailraceWriter, sink_layout
from tailrace_spark.source import TailraceSource
from unit.spark.conftest import Model, struct

OPTIONS = WriteOptions(bootstrap="a:1", topic="t")


@pytest.fixture
def task() -> Iterator[TaskContext]:
    """The context of a task, as Spark's worker sets it."""
    context = TaskContext()
    context._partitionId, context._attemptNumber = 3, 0
    context._localProperties = {"sql.streaming.queryId": "q", "streaming.sql.batchId": "7"}
    TaskContext._setTaskContext(context)
    yield context
    TaskContext._setTaskContext(None)


def _batches(*values: bytes) -> Iterator[pa.RecordBatch]:
    for value in values:
        yield pa.RecordBatch.from_arrays([pa.array([value], pa.binary())], names=["value"])


def _source(model: Model, **more: str) -> TailraceSource:
    return TailraceSource({"bootstrap.servers": model.bootstrap, "topic": "t", **more})


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"value": "binary", "colour": "string"}, "colour: a record has no such column"),
        ({"key": "binary"}, "value: the column is missing"),
        ({"value": "int"}, "value: the column must be binary or string, not int"),
        ({"value": "binary", "partition": "bigint"}, "partition: the column must be int"),
    ],
)
def test_columns_that_cannot_be(columns: dict[str, str], message: str) -> None:
    with pytest.raises(WrongRows, match=message):
        sink_layout(struct(**columns), OPTIONS)


def test_a_topic_must_come_from_somewhere(model: Model) -> None:
    with pytest.raises(InvalidOption, match="topic: give the option, or a column"):
        sink_layout(struct(value="binary"), WriteOptions(bootstrap="a:1"))
    assert not sink_layout(
        struct(value="string", topic="string"), WriteOptions(bootstrap="a:1")
    ).is_timed
    with pytest.raises(InvalidOption, match="mode: a log is only appended to"):
        _source(model).writer(struct(value="binary"), True)
    with pytest.raises(InvalidOption, match="producerName: a stream is named by its checkpoint"):
        _source(model, producerName="x").streamWriter(struct(value="binary"), False)


def test_a_stream_writes_a_batch_once(model: Model, task: TaskContext) -> None:
    model.create("t")
    messages = []
    for _ in range(2):
        writer = _source(model).streamWriter(struct(value="binary"), False)
        messages.append(writer.write(_batches(b"a", b"b")))
        writer.commit([messages[-1], None], 7)
    assert model.log("t").records() == [b"a", b"b"]
    assert [(each.rows, each.recoveries > 0) for each in messages] == [(2, False), (2, True)]


def test_batch_jobs_are_apart_unless_they_have_a_name(model: Model, task: TaskContext) -> None:
    model.create("t")
    expected = 0
    for options in ({}, {}, {"producerName": "x"}, {"producerName": "x"}):
        writer = _source(model, **options).writer(struct(value="binary"), False)
        assert isinstance(writer, TailraceWriter)
        writer.commit([writer.write(_batches(b"a"))])
        expected += not options or expected == 2
        assert len(model.log("t").records()) == expected
    assert expected == 3


def test_a_failed_job_says_how_to_go_on(model: Model, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        _source(model).writer(struct(value="binary"), False).abort([])
        _source(model, producerName="x").writer(struct(value="binary"), False).abort([])
    assert "without the option producerName another run" in caplog.messages[0]
    assert "run it again with the same producerName" in caplog.messages[1]


def test_outside_of_a_task_nothing_is_written(model: Model) -> None:
    writer: Any = _source(model).streamWriter(struct(value="binary"), False)
    with pytest.raises(RuntimeError, match="in a task of Spark"):
        writer.write(_batches(b"a"))


def test_a_process_that_only_makes_a_writer_or_commits_imports_nothing_that_writes() -> None:
    """Spark starts two of them for each batch that is written, and the batch waits for them."""
    needless = ("grpc", "pyarrow", "tailrace.client", "tailrace_spark.cluster")
    code = (
        "import sys, tailrace_spark.source, tailrace_spark.sink; "
        f"print([each for each in {needless!r} if each in sys.modules])"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert run.stdout.strip() == "[]"
