"""Topics, queries and drivers for the proofs of Spark's source and sink.

Values are the numbers from 0 on as text, so what a query should have seen or written is known
without any log: `expected` computes the same figures from the numbers alone. Keys and values are
compared as the bytes they are, by hashes: to parse ten million numbers takes longer than to read
them. A `Driver` is a query in a process of its own (this file is its program too), which can be
killed with all it started.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import reduce
from itertools import count
from operator import xor
from pathlib import Path
from select import select
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamReader

from tailrace import Admin, Producer
from tailrace.dev.cluster import DevCluster
from tailrace_spark.planners import RUNNER
from tailrace_spark.session import session

ROOT = Path(__file__).resolve().parents[2]
KEYS = 100
FILL_ROWS = 500_000
BUCKETS = 16
QUERY_TIMEOUT_S = 600
HASH = "xxhash64(key, value) as h"
# None depends on the order of rows. Of 38 bits, because the sum of 30 million must fit into 64.
FIGURES = (
    "count(*) as records",
    "sum(shiftrightunsigned(h, 26)) as checksum",
    "bit_xor(h) as mixed",
)
DONE = "done"
# Parts of command lines: of a Python worker of tasks, and of an executor.
WORKER, EXECUTOR = "pyspark.daemon pyspark.worker", "CoarseGrainedExecutorBackend"
# A session lives for seconds here: compiled twice as well, its code would not repay that.
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
# One that reads ten million rows again and again needs a third of the time when it is.
LONG_JAVA_OPTIONS = "-XX:+UseSerialGC"
CONFIG = {
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.pollingDelay": "5ms",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    # Executors that tests kill are no reason to give up.
    "spark.task.maxFailures": "20",
    "spark.deploy.maxExecutorRetries": "-1",
    "spark.executor.memory": "512m",
}

Processes = Callable[[str], list[int]]

_topics = count()


def local_session(
    name: str,
    *,
    master: str = "local[2]",
    config: Mapping[str, str] | None = None,
    java_options: str = JAVA_OPTIONS,
) -> SparkSession:
    os.environ["JDK_JAVA_OPTIONS"] = java_options
    made = session(name, master=master, config={**CONFIG, **(config or {})})
    made.sparkContext.setLogLevel("OFF")
    return made


class Topic:
    """A topic of its own for a test."""

    def __init__(self, dev: DevCluster, partitions: int = 3, **config: str) -> None:
        self.bootstrap = dev.state.bootstrap
        self.name = f"spark-{next(_topics)}"
        # Stays: it is asked again and again.
        self._admin: Admin | None = None
        settings = {name.replace("_", "."): value for name, value in config.items()}
        with Admin(self.bootstrap) as admin:
            admin.create_topic(self.name, partitions=partitions, config=settings)

    def fill(self, records: int, first: int = 0, **more: Any) -> None:
        """Values are numbers as text; keys are one of a hundred."""
        with Producer(self.bootstrap, **more) as producer:
            sent = []
            for low in range(first, first + records, FILL_ROWS):
                high = min(low + FILL_ROWS, first + records)
                sent.append(producer.send_batch(self.name, _numbers(low, high)))
            for each in sent:
                each.result(120)

    def read(self, spark: SparkSession, **options: str) -> DataFrame:
        reader: DataFrameReader = self._with(spark.read, **options)
        return reader.load()

    def pairs(self, spark: SparkSession) -> DataFrame:
        """Keys and values alone."""
        reader: DataFrameReader = self._with(spark.read)
        return reader.schema("key binary, value binary").load()

    def stream(self, spark: SparkSession, **options: str) -> DataFrame:
        given = {"startingOffsets": "earliest", **options}
        reader: DataStreamReader = self._with(spark.readStream, **given)
        return reader.load()

    def numbers(self, spark: SparkSession) -> list[int]:
        """The values of all records, sorted."""
        table = self.read(spark).select("value").toArrow()
        rows: list[Any] = table.column("value").to_pylist()
        return sorted(int(each) for each in rows)

    def end(self) -> int:
        """How many offsets are taken, in all partitions together."""
        if self._admin is None:
            self._admin = Admin(self.bootstrap)
        return sum(each.offset for each in self._admin.list_offsets(self.name).values())

    def delete(self) -> None:
        with Admin(self.bootstrap) as admin:
            admin.delete_topic(self.name)
        if self._admin is not None:
            self._admin.close()

    def leader(self, partition: int = 0) -> str:
        with Admin(self.bootstrap) as admin:
            return f"broker-{admin.describe_topic(self.name).partitions[partition].leader}"

    def _with(self, reader: Any, **options: str) -> Any:
        reader = reader.format("tailrace").option("bootstrap.servers", self.bootstrap)
        for name, value in {"subscribe": self.name, **options}.items():
            reader = reader.option(name, value)
        return reader


def _numbers(low: int, high: int) -> pa.Table:
    numbers: Any = pa.array(range(low, high), pa.int64())
    names = pa.array([b"k%d" % each for each in range(KEYS)], pa.binary())
    shift = low % KEYS
    places = pa.array([(shift + each) % KEYS for each in range(high - low)], pa.int32())
    values: Any = pc.cast(pc.cast(numbers, pa.utf8()), pa.binary())
    return pa.table({"key": names.take(places), "value": values})


def expected(spark: SparkSession, records: int) -> tuple[Any, ...]:
    """The figures of so many numbers, from the numbers."""
    key = f"cast(concat('k', id % {KEYS}) as binary) as key"
    return figures(spark.range(records).selectExpr(key, "cast(string(id) as binary) as value"))


def figures(rows: DataFrame) -> tuple[Any, ...]:
    """Count and checksums of the keys and values of records."""
    found = rows.selectExpr(HASH).selectExpr(*FIGURES).first()
    assert found is not None
    return tuple(found)


@dataclass(frozen=True, kw_only=True)
class Work:
    """A query that ends when it has read all: it adds up in a file, or copies to a topic."""

    bootstrap: str
    source: str
    checkpoint: str
    rows_per_batch: int
    # One of them: the file of the sums, or the topic that gets the rows.
    result: str = ""
    target: str = ""

    def start(self, spark: SparkSession) -> StreamingQuery:
        rows = (
            spark.readStream.format("tailrace")
            .option("bootstrap.servers", self.bootstrap)
            .option("subscribe", self.source)
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", self.rows_per_batch)
            .load()
        )
        writing = self._copy(rows) if self.target else self._sum(rows)
        writing = writing.option("checkpointLocation", self.checkpoint)
        started: StreamingQuery = writing.trigger(availableNow=True).start()
        return started

    def _copy(self, rows: DataFrame) -> Any:
        # A shuffle: the rows of a task come in another order each time it runs.
        shuffled = rows.select("key", "value").repartition(2, "value")
        writing = shuffled.writeStream.format("tailrace")
        return writing.option("bootstrap.servers", self.bootstrap).option("topic", self.target)

    def _sum(self, rows: DataFrame) -> Any:
        """With state that Spark keeps: a row that is lost or comes twice stays in the sums."""
        hashes = rows.selectExpr(HASH).selectExpr("h", f"pmod(h, {BUCKETS}) as bucket")
        sums = hashes.groupBy("bucket").agg(*_columns()).drop("bucket")
        result = Path(self.result)

        def write(changed: DataFrame, _: int) -> None:
            fresh = result.with_suffix(".new")
            fresh.write_text(json.dumps([list(each) for each in changed.collect()]))
            fresh.replace(result)

        return sums.writeStream.outputMode("complete").foreachBatch(write)

    def finish(self, spark: SparkSession) -> None:
        """Run it to its end here; raises what the query raises."""
        assert self.start(spark).awaitTermination(QUERY_TIMEOUT_S)

    def summed(self) -> tuple[Any, ...]:
        """The figures of all buckets together."""
        counts, sums, mixed = zip(*json.loads(Path(self.result).read_text()), strict=True)
        return sum(counts), sum(sums), reduce(xor, mixed)

    def batches(self) -> int:
        """How many micro-batches were begun."""
        folder = Path(self.checkpoint) / "offsets"
        return sum(each.name.isdigit() for each in folder.iterdir()) if folder.exists() else 0


def _columns() -> list[Any]:
    from pyspark.sql import functions as F  # noqa: N812, PLC0415 - needs a session.

    return [F.expr(each) for each in FIGURES]


class Driver:
    """Queries in a process of their own, with its JVM and its workers, one after the other."""

    def __init__(
        self, log: Path, *, master: str = "local[2]", java_options: str = JAVA_OPTIONS
    ) -> None:
        folders = [str(ROOT / each) for each in ("services", "spark-jobs", "tests")]
        self._log = log
        self.is_idle = True
        with log.open("ab") as out:
            self._process = subprocess.Popen(
                [sys.executable, __file__, master, java_options],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=out,
                env={**os.environ, "PYTHONPATH": ":".join(folders)},
            )

    def begin(self, work: Work) -> None:
        """Do this next."""
        self.is_idle = False
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(asdict(work)).encode() + b"\n")
        self._process.stdin.flush()

    def end(self, timeout_s: float = QUERY_TIMEOUT_S) -> str:
        """How the work ended that was begun: "done", or what Spark said."""
        assert self._process.stdout is not None
        ready, _, _ = select([self._process.stdout], [], [], timeout_s)
        assert ready, f"not done within {timeout_s} s: {self.last_words()}"
        said = self._process.stdout.readline().decode().strip()
        self.is_idle = bool(said)
        return said or "the driver ended"

    @property
    def code(self) -> int | None:
        """The exit code; None while it runs."""
        return self._process.poll()

    def signal(self, number: signal.Signals) -> None:
        """To the driver, its JVM and whatever they started."""
        for pid in [self._process.pid, *self.family()("")]:
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def kill(self) -> None:
        """SIGKILL to all of them at once."""
        self.signal(signal.SIGKILL)
        self._process.wait()
        for each in (self._process.stdin, self._process.stdout):
            assert each is not None
            with suppress(BrokenPipeError):
                each.close()

    def family(self) -> Processes:
        """Finds those that the driver started, directly or not."""
        return descendants(self._process.pid)

    def last_words(self) -> str:
        lines = self._log.read_text(errors="replace").splitlines()
        return "\n".join(lines[-15:])


class Drivers:
    """Drivers that are kept ready: to start one takes longer than what most are needed for."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._made = count()
        self._spare: Driver | None = None

    def prepare(self) -> None:
        """Start one that will be needed soon; it gets ready while others work."""
        if self._spare is None:
            self._spare = Driver(self._folder / f"driver-{next(self._made)}.log")

    @contextmanager
    def at_work(self, work: Work) -> Iterator[Driver]:
        """A driver that has begun some work; killed at the end unless the work is over."""
        self.prepare()
        assert self._spare is not None
        running, self._spare = self._spare, None
        try:
            running.begin(work)
            yield running
        finally:
            if running.is_idle and self._spare is None:
                self._spare = running
            else:
                running.kill()

    def close(self) -> None:
        if self._spare is not None:
            self._spare.kill()
            self._spare = None


def until(
    what: str,
    check: Callable[[], bool],
    *,
    alive: Callable[[], bool],
    within_s: float = QUERY_TIMEOUT_S,
) -> None:
    """Wait for a moment of some work; work that is over has missed it."""
    end = time.monotonic() + within_s
    while not check():
        assert alive(), f"it ended before there was: {what}"
        assert time.monotonic() < end, f"not within {within_s} s: {what}"
        time.sleep(0.02)


def descendants(pid: int | None = None) -> Processes:
    """Finds what a process (this one) started, directly or not, by a part of the command line."""
    root = os.getpid() if pid is None else pid

    def find(mark: str) -> list[int]:
        found = {each: (parent, line) for each, parent, line in _processes()}
        mine, fresh = set[int](), {root}
        while fresh:
            mine |= fresh
            fresh = {each for each, (parent, _) in found.items() if parent in mine} - mine
        return sorted(each for each in mine - {root} if each in found and mark in found[each][1])

    return find


def workers() -> list[int]:
    """The Python workers of this process's session, without the daemons that they are forks of.

    A worker whose daemon was killed serves on, but nobody knows any more whose it is.
    """
    found = descendants()(WORKER)
    parents = {pid: parent for pid, parent, _ in _processes()}
    return [pid for pid in found if parents.get(pid) in found]


def planner_folder() -> Path:
    """The folder that the JVM of this process's session has told the planner of a stream."""
    return Path(next(filter(None, map(_local_folder, descendants()(RUNNER)))))


def planners(folder: Path) -> dict[int, int]:
    """The planners of streams of the JVM that has this folder, with the parent of each."""
    return {
        pid: parent
        for pid, parent, line in _processes()
        if RUNNER in line and _local_folder(pid) == str(folder)
    }


def _local_folder(pid: int) -> str:
    name = "SPARK_LOCAL_DIRS="
    with suppress(OSError):
        for each in Path(f"/proc/{pid}/environ").read_text().split("\0"):
            if each.startswith(name):
                return each.removeprefix(name).partition(",")[0]
    return ""


def _processes() -> Iterator[tuple[int, int, str]]:
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            stat = (folder / "stat").read_text()
            line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
        yield int(folder.name), int(stat.rpartition(")")[2].split()[1]), line


def main() -> int:
    """Do the work that comes line by line, and say how each ended."""
    spark = local_session("driver", master=sys.argv[1], java_options=sys.argv[2])
    for line in sys.stdin:
        try:
            Work(**json.loads(line)).finish(spark)
        except PySparkException as error:
            print(str(error).replace("\n", " ")[:2_000], flush=True)
        else:
            print(DONE, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
