"""An archive back into a topic, in order per key, resumable without duplicates.

    python replay.py --bootstrap localhost:9092 --path /data/archive --topic orders \
        --to orders-again --name again-2024

Records go by ranges of their old offsets, one range after the other. Within a range each partition
is written by one task, in the order of its offsets: so the order per key is that of the topic. What
is done is noted in `<path>/_replay/<name>.json`; a range in the middle of which the job died is
written again under the same name, and the log recognises what it has (see docs/spark.md).
"""

from __future__ import annotations

import json
import sys
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it.

from tailrace_spark.session import job_parser, job_session, run_job


def main(arguments: list[str] | None = None) -> int:
    parser = job_parser("Write an archive back into a topic, in order per key.")
    parser.add_argument("--path", required=True, help="the folder of the archive")
    parser.add_argument("--topic", required=True, help="the archived topic")
    parser.add_argument("--to", required=True, help="the topic to write to")
    parser.add_argument("--name", required=True, help="of this replay: the same one resumes it")
    parser.add_argument("--range", type=int, default=1_000_000, help="offsets of one step")
    parser.add_argument("--tasks", type=int, default=8, help="tasks of a step; fixed for a name")
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
    bounds = rows.agg(F.min("offset"), F.max("offset")).first()
    if bounds is None or bounds[0] is None:
        print(f"nothing of {options.topic} is in {options.path}")
        return 0
    for step in range(int(bounds[0]) // options.range, int(bounds[1]) // options.range + 1):
        if step < note.done:
            continue
        low = step * options.range
        some = rows.where(f"offset >= {low} and offset < {low + options.range}")
        write_step(some, options, step)
        note.save(step + 1)
        print(f"offsets {low:,} to {low + options.range - 1:,} of each partition are written")
    print(f"{options.topic} was replayed to {options.to}")
    return 0


PLAN = ("topic", "to", "range", "tasks", "from_time", "to_time", "keep_partitions", "keep_times")


def archived(spark: SparkSession, path: str, topic: str) -> DataFrame:
    return spark.read.parquet(path).where(F.col("topic") == topic)


def write_step(rows: DataFrame, options: Any, step: int) -> None:
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
        .option("producerBatch", step)
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
        self.done = 0
        if self._system.exists(self._path(path)):
            source = self._system.open(self._path(path))
            size = self._system.getFileStatus(self._path(path)).getLen()
            noted = json.loads(bytes(source.read() for _ in range(size)).decode())
            source.close()
            if noted["plan"] != plan:
                sys.exit(f"{path}: this replay was begun with {noted['plan']}; use another --name")
            self.done = int(noted["done"])
        else:
            self.save(0)

    def save(self, done: int) -> None:
        self.done = done
        fresh = self._path(f"{self._name}.new")
        out = self._system.create(fresh, True)
        out.write(bytearray(json.dumps({"plan": self._plan, "done": done}).encode()))
        out.close()
        self._system.delete(self._path(self._name), False)
        self._system.rename(fresh, self._path(self._name))


if __name__ == "__main__":
    run_job(main)
