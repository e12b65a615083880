"""An archive back into a topic, in order per key, resumable without duplicates.

    python replay.py --bootstrap localhost:9092 --path /data/archive --topic orders \
        --to orders-again --name again-2024

Records go by ranges of their old offsets, one range after the other. Within a range each partition
is written by one task, in the order of its offsets: so the order per key is that of the topic. What
is done is noted in `<path>/_replay/<name>.json`; a range in the middle of which the job died is
written again under the same name, and the log recognises what it has (see docs/spark.md). The note
also says up to where the archive was there when the replay began; the same command later goes on
with what has been archived since.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it.

from tailrace_spark.session import count, job_parser, job_session, run_job


def main(arguments: list[str] | None = None) -> int:
    parser = job_parser("Write an archive back into a topic, in order per key.")
    parser.add_argument("--path", required=True, help="the folder of the archive")
    parser.add_argument("--topic", required=True, help="the archived topic")
    parser.add_argument("--to", required=True, help="the topic to write to")
    parser.add_argument("--name", required=True, help="of this replay: the same one resumes it")
    parser.add_argument("--range", type=count, default=1_000_000, help="offsets of one step")
    parser.add_argument("--tasks", type=count, default=8, help="tasks of a step; fixed for a name")
    parser.add_argument("--from-time", default="", help='only records from "2024-01-01" on')
    parser.add_argument("--to-time", default="", help="only records before")
    parser.add_argument("--keep-partitions", action="store_true", help="else by key, as new ones")
    parser.add_argument("--keep-times", action="store_true", help="else the time of writing")
    options = parser.parse_args(arguments)
    spark = job_session("tailrace-replay", options)
    rows = archived(spark, options.path, options.topic)
    if options.from_time:
        rows = rows.where(F.col("timestamp") >= F.lit(options.from_time).cast("timestamp"))
    if options.to_time:
        rows = rows.where(F.col("timestamp") < F.lit(options.to_time).cast("timestamp"))
    # What must not change while a replay is under way, or its steps would be others.
    plan = {each: getattr(options, each) for each in PLAN}
    note = Note(spark, f"{options.path.rstrip('/')}/_replay/{options.name}.json", plan)
    written = 0
    for number in (1, 2):
        # What was begun before comes first, as it was then; after it what has been archived since.
        written += write_round(rows, note, options)
        if number == 1 and not note.go_on(ends(rows)):
            break
    if not note.ends:
        print(f"nothing of {options.topic} is in {options.path}")
        return 0
    print(f"{options.topic} was replayed to {options.to}" + ("" if written else "; nothing is new"))
    return 0


def write_round(rows: DataFrame, note: Note, options: Any) -> int:
    """Write what is due of a round of the note, step by step; how many steps that were."""
    due = rows.where(F.col("offset") >= bound(note.begins)).where(
        F.col("offset") < bound(note.ends)
    )
    bounds = due.agg(F.min("offset"), F.max("offset")).first()
    if bounds is None or bounds[0] is None:
        return 0
    last = int(bounds[1]) // options.range
    steps = range(max(int(bounds[0]) // options.range, note.done), last + 1)
    for step in steps:
        low = step * options.range
        some = due.where(f"offset >= {low} and offset < {low + options.range}")
        write_step(some, options, note.batch + step)
        note.save(step + 1)
        print(f"offsets {low:,} to {low + options.range - 1:,} of each partition are written")
    return len(steps)


def ends(rows: DataFrame) -> dict[str, int]:
    """Up to where each partition is archived."""
    found = rows.groupBy("partition").agg(F.max("offset").alias("last")).collect()
    return {str(row["partition"]): int(row["last"]) + 1 for row in found}


def bound(offsets: dict[str, int]) -> Column:
    """The offset of the partition of a row; 0 where none is told."""
    told = F.lit(0)
    if offsets:
        pairs = [F.lit(each) for name in sorted(offsets) for each in (int(name), offsets[name])]
        told = F.coalesce(F.create_map(*pairs)[F.col("partition")], F.lit(0))
    return told


PLAN = ("topic", "to", "range", "tasks", "from_time", "to_time", "keep_partitions", "keep_times")


def archived(spark: SparkSession, path: str, topic: str) -> DataFrame:
    return spark.read.parquet(path).where(F.col("topic") == topic)


def write_step(rows: DataFrame, options: Any, batch: int) -> None:
    columns = ["key", "value", "headers"]
    columns += ["partition"] if options.keep_partitions else []
    columns += ["timestamp"] if options.keep_times else []
    # A partition is one task's, so that its records stay in order.
    ordered = rows.repartition(options.tasks, "partition").sortWithinPartitions(
        "partition", "offset"
    )
    (
        ordered.select(*columns)
        .write.format("tailrace")
        .mode("append")
        .option("bootstrap.servers", options.bootstrap)
        .option("topic", options.to)
        .option("producerName", f"replay-{options.name}")
        .option("producerBatch", batch)
        .save()
    )


class Note:
    """How far a replay is, on whatever Spark writes to."""

    def __init__(self, spark: SparkSession, path: str, plan: dict[str, Any]) -> None:
        jvm, java = spark._jvm, spark._jsc
        assert jvm is not None
        assert java is not None
        self._path: Any = jvm.org.apache.hadoop.fs.Path
        self._name = path
        self._system = self._path(path).getFileSystem(java.hadoopConfiguration())
        self._plan = plan
        # Of the round that was begun: from where to where in each partition, how many steps of it
        # are done, and what is added to their numbers so that no two rounds share one.
        self.begins: dict[str, int] = {}
        self.ends: dict[str, int] = {}
        self.done = self.batch = 0
        if self._system.exists(self._path(path)):
            self._recall()

    def _recall(self) -> None:
        source = self._system.open(self._path(self._name))
        size = self._system.getFileStatus(self._path(self._name)).getLen()
        noted = json.loads(bytes(source.read() for _ in range(size)).decode())
        source.close()
        if noted["plan"] != self._plan:
            sys.exit(
                f"{self._name}: this replay was begun with {noted['plan']}; use another --name"
            )
        self.done, self.batch = int(noted["done"]), int(noted.get("batch", 0))
        self.begins, self.ends = noted.get("begins", {}), noted.get("ends", {})

    def go_on(self, ends: dict[str, int]) -> bool:
        """Begin the next round, up to these ends; False when there is nothing new."""
        if ends == self.ends:
            return False
        # A note of an older version has no ends: what was begun goes on, up to these.
        if self.ends:
            self.begins, self.batch, self.done = self.ends, self.batch + self.done, 0
        self.ends = ends
        self.save(self.done)
        return True

    def save(self, done: int) -> None:
        self.done = done
        fresh = self._path(f"{self._name}.new")
        out = self._system.create(fresh, True)
        noted = {
            "plan": self._plan,
            "begins": self.begins,
            "ends": self.ends,
            "batch": self.batch,
            "done": done,
        }
        out.write(bytearray(json.dumps(noted).encode()))
        out.close()
        self._system.delete(self._path(self._name), False)
        self._system.rename(fresh, self._path(self._name))


if __name__ == "__main__":
    run_job(main)
