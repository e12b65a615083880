"""Topics to Parquet, by topic and date, every record once; small files become large ones.

    python archive.py --bootstrap localhost:9092 --topics orders,invoices \
        --path /data/archive --checkpoint /data/archive-checkpoint

A micro-batch writes folders of its own (`topic=…/date=…/batch=…`), and one that runs again after a
crash replaces them: so every record is there once. Folders of batches that are committed are merged
when there are many of them, by one job at a time, also where several write to one archive.
`--follow` goes on for ever, else the job ends when it has caught up.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it.

from tailrace_spark.session import count, follow, job_parser, job_session, run_job

INTENT = "_compacting/intent.json"
MERGED = "_compacting/merged"
LOCK = "_compacting/lock"
# A lock says every so often that its job lives; one that said nothing for so long is of a dead job.
LOCK_TOLD_S = 30.0
LOCK_DEAD_S = 300.0
LOCK_POLL_S = 1.0


def main(arguments: list[str] | None = None) -> int:
    parser = job_parser("Archive topics as Parquet files, every record once.")
    parser.add_argument("--topics", default="", help="names with commas between them")
    parser.add_argument("--pattern", default="", help="or a pattern that names must match")
    parser.add_argument("--path", required=True, help="the folder of the archive")
    parser.add_argument("--checkpoint", required=True, help="where Spark keeps its position")
    parser.add_argument("--starting", default="earliest", help="where to begin the first time")
    parser.add_argument("--rows", type=count, default=5_000_000, help="rows of a batch at most")
    parser.add_argument("--follow", default="", help='go on, a batch each "1 minute" or so')
    parser.add_argument(
        "--merge", type=count, default=8, help="merge so many small folders of a day"
    )
    parser.add_argument("--reader-name", default="archive", help="under which lag is shown")
    options = parser.parse_args(arguments)
    if bool(options.topics) == bool(options.pattern):
        parser.error("give either --topics or --pattern")
    spark = job_session("tailrace-archive", options)
    finish_merge(spark, options.path)

    def write(rows: DataFrame, batch: int) -> None:
        run = str(spark.sparkContext.getLocalProperty("sql.streaming.queryId"))[:8]
        write_batch(rows, options.path, f"{run}-{batch:012d}")
        # All batches before this one are committed: they never run again.
        merge(spark, options.path, run, below=batch, at_least=options.merge)

    stream = spark.readStream.format("tailrace").option("bootstrap.servers", options.bootstrap)
    chosen = ("subscribe", options.topics)
    if options.pattern:
        chosen = ("subscribePattern", options.pattern)
    rows = (
        stream.option(*chosen)
        .option("startingOffsets", options.starting)
        .option("maxOffsetsPerTrigger", options.rows)
        .option("includeHeaders", "true")
        .option("readerName", options.reader_name)
        .load()
    )
    writing = rows.writeStream.foreachBatch(write).option("checkpointLocation", options.checkpoint)
    writing = (
        writing.trigger(processingTime=options.follow)
        if options.follow
        else writing.trigger(availableNow=True)
    )
    query = writing.start()
    total = follow(query, print)
    merge(spark, options.path, str(query.id)[:8], below=2**62, at_least=options.merge)
    print(f"{total:,} records archived in {options.path}")
    return 0


def write_batch(rows: DataFrame, path: str, name: str) -> None:
    """Write the folders of one batch; those that an earlier attempt left are replaced."""
    dated = rows.withColumn("date", F.to_date("timestamp")).withColumn("batch", F.lit(name))
    (
        dated.sortWithinPartitions("topic", "date", "partition", "offset")
        .write.partitionBy("topic", "date", "batch")
        .mode("overwrite")
        .option("partitionOverwriteMode", "dynamic")
        .parquet(path)
    )


def merge(spark: SparkSession, path: str, run: str, *, below: int, at_least: int) -> None:
    """Make one folder of many small ones, for every topic and date that has them."""
    files = Files(spark, path)
    days = files.folders("topic=*/date=*")
    if not any(len(_small(files, day, run, below)) >= at_least for day in days):
        return
    with locked(files) as is_mine:
        if not is_mine:
            # Another job merges here: these folders are merged after one of the next batches.
            return
        put_in_place(files)
        for day in days:
            small = _small(files, day, run, below)
            if len(small) < at_least:
                continue
            first, last = (each.rpartition("-")[2] for each in (small[0], small[-1]))
            rows = spark.read.parquet(*[files.full(each) for each in small])
            rows.coalesce(1).sortWithinPartitions("partition", "offset").write.mode(
                "overwrite"
            ).parquet(files.full(MERGED))
            target = f"{day}/batch={run}-{first}-{last}"
            # From here on a crash is finished by the next run: nothing is lost or there twice.
            files.write(INTENT, json.dumps({"target": target, "sources": small}))
            put_in_place(files)


def _small(files: Files, day: str, run: str, below: int) -> list[str]:
    return [
        name
        for name in files.folders(f"{day}/batch={run}-*")
        # batch=<run>-<number>; those that were merged have two numbers.
        if name.count("-", name.rfind("batch=")) == 1 and int(name.rpartition("-")[2]) < below
    ]


def finish_merge(spark: SparkSession, path: str) -> None:
    """Finish what a job that died has begun; one that still merges here is waited for."""
    files = Files(spark, path)
    is_told = False
    while files.exists(INTENT):
        with locked(files) as is_mine:
            if is_mine:
                put_in_place(files)
                return
        if not is_told:
            print(
                "another job merges folders of this archive, or died while it did: waiting for it, "
                f"{LOCK_DEAD_S:.0f} s after its last sign of life at most",
                flush=True,
            )
            is_told = True
        time.sleep(LOCK_POLL_S)


def put_in_place(files: Files) -> None:
    """What was merged comes in the place of what it was merged from, as the intent says.

    Only under the lock: of two who do this at once, one would delete what the other put there.
    """
    if files.exists(INTENT):
        intent = json.loads(files.read(INTENT))
        if files.exists(MERGED):
            files.delete(intent["target"])
            for each in intent["sources"]:
                files.delete(each)
            files.rename(MERGED, intent["target"])
        files.delete(INTENT)
    files.delete(MERGED)


@contextmanager
def locked(files: Files) -> Iterator[bool]:
    """Whether this job may merge in the block: one at a time does. It is told, and not waited."""
    mine = json.dumps({"host": socket.gethostname(), "pid": os.getpid(), "id": uuid4().hex})
    if not files.make(LOCK, mine) and not (_is_free(files) and files.make(LOCK, mine)):
        yield False
        return
    ended = threading.Event()

    def tell() -> None:
        while not ended.wait(LOCK_TOLD_S) and files.read(LOCK) == mine:
            files.make(LOCK, mine, replace=True)

    telling = threading.Thread(target=tell, name="lives", daemon=True)
    telling.start()
    try:
        yield True
    finally:
        ended.set()
        telling.join()
        if files.exists(LOCK) and files.read(LOCK) == mine:
            files.delete(LOCK)


def _is_free(files: Files) -> bool:
    """Whether the lock was of a job that is dead; then it is gone now."""
    try:
        owner, age_s = files.read(LOCK), files.age_s(LOCK)
    except Py4JJavaError:
        # It has just been released.
        return False
    if age_s < LOCK_DEAD_S and not _is_dead(owner):
        return False
    # Whoever moves it away may make a new one. Of two who try this at once one fails.
    aside = f"{LOCK}.{uuid4().hex}"
    try:
        files.rename(LOCK, aside)
        if files.read(aside) != owner:
            # Another one was faster, and this is its new lock.
            files.rename(aside, LOCK)
            return False
        files.delete(aside)
    except (OSError, Py4JJavaError):
        return False
    return True


def _is_dead(owner: str) -> bool:
    """Whether the job of a lock ran on this host and is gone; one that is being made is empty."""
    told = json.loads(owner or "{}")
    if told.get("host") != socket.gethostname():
        return False
    try:
        os.kill(told["pid"], 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False


class Files:
    """A folder on whatever Spark writes to: local, HDFS, an object store."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        jvm: Any = spark._jvm
        self._path = jvm.org.apache.hadoop.fs.Path
        self._root = path.rstrip("/")
        self._now_ms = jvm.java.lang.System.currentTimeMillis
        java: Any = spark._jsc
        self._system = self._path(self._root).getFileSystem(java.hadoopConfiguration())

    def full(self, name: str) -> str:
        return f"{self._root}/{name}"

    def folders(self, pattern: str) -> list[str]:
        found = self._system.globStatus(self._path(self.full(pattern))) or []
        names = [str(each.getPath().toUri().getPath()) for each in found]
        root = str(self._path(self._root).toUri().getPath())
        return sorted(name[name.index(root) + len(root) + 1 :] for name in names)

    def exists(self, name: str) -> bool:
        return bool(self._system.exists(self._path(self.full(name))))

    def delete(self, name: str) -> None:
        self._system.delete(self._path(self.full(name)), True)

    def rename(self, name: str, target: str) -> None:
        if not self._system.rename(self._path(self.full(name)), self._path(self.full(target))):
            raise OSError(f"{name} could not be renamed to {target} in {self._root}")

    def write(self, name: str, text: str) -> None:
        """All of it or nothing: under another name first."""
        out = self._system.create(self._path(self.full(f"{name}.new")), True)
        out.write(bytearray(text.encode()))
        out.close()
        self.delete(name)
        self.rename(f"{name}.new", name)

    def make(self, name: str, text: str, *, replace: bool = False) -> bool:
        """Write a new file; False when there is one of that name already that is to stay."""
        try:
            out = self._system.create(self._path(self.full(name)), replace)
        except Py4JJavaError:
            if self.exists(name):
                return False
            raise
        out.write(bytearray(text.encode()))
        out.close()
        return True

    def age_s(self, name: str) -> float:
        """Since it was last written."""
        changed_ms = self._system.getFileStatus(self._path(self.full(name))).getModificationTime()
        return (int(self._now_ms()) - int(changed_ms)) / 1_000

    def read(self, name: str) -> str:
        size = self._system.getFileStatus(self._path(self.full(name))).getLen()
        source = self._system.open(self._path(self.full(name)))
        try:
            return bytes(source.read() for _ in range(size)).decode()
        finally:
            source.close()


if __name__ == "__main__":
    run_job(main)
