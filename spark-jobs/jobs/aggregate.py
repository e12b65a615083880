"""Event-time windows over JSON values, into a result topic, every result once.

    python aggregate.py --bootstrap localhost:9092 --topic orders --output order-totals \
        --schema "customer string, amount double" --group-by customer \
        --aggregate "count(*) as orders" --aggregate "sum(amount) as total" \
        --window "1 minute" --watermark "30 seconds" --checkpoint /data/totals-checkpoint

A result is a JSON object with the window, the groups and the aggregates; its key names window and
groups, so that a compacted result topic keeps the newest of each. Without `--follow` the job ends
when it has caught up; `--show` prints the results that the topic then holds.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it.
from pyspark.sql.streaming.query import StreamingQuery

from tailrace_spark.session import count, follow, job_parser, job_session, run_job


def main(arguments: list[str] | None = None) -> int:
    parser = job_parser("Aggregate JSON values in windows of event time.")
    parser.add_argument("--topic", required=True, help="the topic to read")
    parser.add_argument("--output", required=True, help="the topic for the results")
    parser.add_argument("--schema", required=True, help='of the values: "customer string, …"')
    parser.add_argument("--group-by", action="append", default=[], help="a field of the values")
    parser.add_argument("--aggregate", action="append", default=[], help='"sum(amount) as total"')
    parser.add_argument("--time", default="timestamp", help="the field of the event time")
    parser.add_argument("--window", default="1 minute", help="how long a window is")
    parser.add_argument("--watermark", default="30 seconds", help="how late a record may come")
    parser.add_argument("--mode", choices=["update", "append"], default="update")
    parser.add_argument("--checkpoint", required=True, help="where Spark keeps its position")
    parser.add_argument("--starting", default="earliest", help="where to begin the first time")
    parser.add_argument("--rows", type=count, default=1_000_000, help="rows of a batch at most")
    parser.add_argument("--follow", default="", help='go on, a batch each "1 second" or so')
    parser.add_argument("--until-file", default="", help="with --follow: stop when it is there")
    parser.add_argument("--show", type=int, default=0, help="print so many results at the end")
    parser.add_argument("--reader-name", default="aggregate", help="under which lag is shown")
    options = parser.parse_args(arguments)
    spark = job_session("tailrace-aggregate", options)
    rows = (
        spark.readStream.format("tailrace")
        .option("bootstrap.servers", options.bootstrap)
        .option("subscribe", options.topic)
        .option("startingOffsets", options.starting)
        .option("maxOffsetsPerTrigger", options.rows)
        .option("readerName", options.reader_name)
        .load()
    )
    events = parsed(rows, options.schema).withWatermark(options.time, options.watermark)
    groups = [F.col(each) for each in options.group_by]
    results = aggregated(events, options.time, options.window, groups, options.aggregate)

    def write(changed: DataFrame, batch: int) -> None:
        # Spark allows no Python sink the output mode "update"; this way it does. Under the name of
        # the query and the number of the batch, one that runs again writes nothing twice.
        query_id = spark.sparkContext.getLocalProperty("sql.streaming.queryId")
        (
            changed.write.format("tailrace")
            .mode("append")
            .option("bootstrap.servers", options.bootstrap)
            .option("topic", options.output)
            .option("producerName", f"aggregate-{query_id}")
            .option("producerBatch", batch)
            .save()
        )

    writing = (
        results.writeStream.foreachBatch(write)
        .option("checkpointLocation", options.checkpoint)
        .outputMode(options.mode)
    )
    if options.follow:
        query = writing.trigger(processingTime=options.follow).start()
        if options.until_file:
            stop_with(query, Path(options.until_file))
    else:
        query = writing.trigger(availableNow=True).start()
    total = follow(query, print)
    print(f"{total:,} records aggregated into {options.output}")
    if options.show:
        show(spark, options.bootstrap, options.output, options.show)
    return 0


def stop_with(query: StreamingQuery, path: Path) -> None:
    """Stop the query when the file is there and all is read."""

    def watch() -> None:
        while query.isActive and not path.exists():
            time.sleep(0.1)
        if query.isActive:
            query.processAllAvailable()
            query.stop()

    threading.Thread(target=watch, daemon=True).start()


def parsed(rows: DataFrame, schema: str) -> DataFrame:
    """The fields of the values beside the time of the record; what is no JSON is left out."""
    value = F.from_json(F.col("value").cast("string"), schema, {"mode": "PERMISSIVE"})
    return (
        rows.select(value.alias("json"), "timestamp")
        .where("json is not null")
        .select("json.*", "timestamp")
    )


def aggregated(
    events: DataFrame, time: str, window: str, groups: list[Column], aggregates: list[str]
) -> DataFrame:
    """Results as records: the key names window and groups, the value is JSON."""
    made = [F.expr(each) for each in aggregates or ["count(*) as records"]]
    results = events.groupBy(F.window(time, window).alias("window"), *groups).agg(*made)
    start, end = F.col("window.start"), F.col("window.end")
    named = results.select(
        start.alias("window_start"),
        end.alias("window_end"),
        *[each for each in results.columns if each != "window"],
    )
    keys = [F.col("window_start").cast("string"), *[each.cast("string") for each in groups]]
    return named.select(
        F.concat_ws("/", *keys).alias("key"), F.to_json(F.struct(*named.columns)).alias("value")
    )


def show(spark: SparkSession, bootstrap: str, topic: str, limit: int) -> None:
    """The newest result of each key, as a table."""
    rows = (
        spark.read.format("tailrace")
        .option("bootstrap.servers", bootstrap)
        .option("subscribe", topic)
        .load()
    )
    newest = rows.groupBy("key").agg(
        F.max_by("value", F.struct("timestamp", "offset")).cast("string").alias("value")
    )
    example = newest.first()
    if example is None:
        print("no results yet")
        return
    schema = F.schema_of_json(F.lit(example["value"]))
    table = newest.select(F.from_json("value", schema).alias("json")).select("json.*")
    first = [each for each in table.columns if each.startswith("window")]
    others = [each for each in table.columns if each not in first]
    table.select(*first, *others).orderBy(*first, *others).show(limit, truncate=False)


if __name__ == "__main__":
    run_job(main)
