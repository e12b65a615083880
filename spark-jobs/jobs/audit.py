"""A topic against its mirror or its archive: counts, keys and checksums, range by range.

    python audit.py --bootstrap localhost:9092 --topic orders --archive /data/archive
    python audit.py --bootstrap localhost:9092 --topic orders --mirror-topic orders \
        --mirror-bootstrap other:9092

Every partition is cut into ranges of offsets. Of each range both sides tell how many records there
are, which keys, and a checksum of all keys, values and headers; none of it depends on order. What
differs is printed, and the exit code is 1. A mirror whose offsets are others is compared by
partition (`--by partition`), or as a whole when its partitions are others too (`--by topic`).
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it.

from tailrace_spark.session import count, job_parser, job_session, run_job

SAME, DIFFERENT = 0, 1
FIGURES = ("records", "keys", "key_sum", "checksum")


def main(arguments: list[str] | None = None) -> int:
    parser = job_parser("Compare a topic with its mirror or its archive.")
    parser.add_argument("--topic", required=True, help="the topic")
    parser.add_argument("--archive", default="", help="the folder of an archive, or:")
    parser.add_argument("--mirror-topic", default="", help="another topic")
    parser.add_argument("--mirror-bootstrap", default="", help="in another cluster")
    parser.add_argument("--range", type=count, default=100_000, help="offsets of one range")
    parser.add_argument("--by", choices=["range", "partition", "topic"], default="range")
    parser.add_argument(
        "--until", choices=["latest", "archived"], default="latest", help="compare up to where"
    )
    parser.add_argument("--show", type=int, default=20, help="print so many differences")
    options = parser.parse_args(arguments)
    if bool(options.archive) == bool(options.mirror_topic):
        parser.error("give either --archive or --mirror-topic")
    spark = job_session("tailrace-audit", options)
    left = topic(spark, options.bootstrap, options.topic)
    if options.archive:
        right = spark.read.parquet(options.archive).where(F.col("topic") == options.topic)
        if options.until == "archived":
            last = right.groupBy("partition").agg(F.max("offset").alias("last"))
            left = left.join(last, "partition").where("offset <= last")
    else:
        where = options.mirror_bootstrap or options.bootstrap
        right = topic(spark, where, options.mirror_topic)
    units = {
        "range": [F.col("partition"), F.floor(F.col("offset") / options.range).alias("range")],
        "partition": [F.col("partition")],
        "topic": [F.lit(options.topic).alias("topic")],
    }[options.by]
    found = compared(summed(left, units), summed(right, units)).cache()
    wrong = found.where("not same")
    different = wrong.count()
    if different:
        wrong.drop("same").show(options.show, truncate=False)
        print(f"{different:,} of {parts(found.count())} differ")
        return DIFFERENT
    total = found.agg(F.sum("records")).first()
    print(f"no difference in {(total and total[0]) or 0:,} records of {parts(found.count())}")
    return SAME


def parts(count: int) -> str:
    return f"{count:,} part" if count == 1 else f"{count:,} parts"


def topic(spark: SparkSession, bootstrap: str, name: str) -> DataFrame:
    return (
        spark.read.format("tailrace")
        .option("bootstrap.servers", bootstrap)
        .option("subscribe", name)
        .option("includeHeaders", "true")
        .load()
    )


def summed(rows: DataFrame, units: list[Column]) -> DataFrame:
    """The figures of each part; sums do not depend on the order of the records."""
    whole = F.xxhash64(
        F.isnull("key"), F.col("key"), F.isnull("value"), F.col("value"), F.col("headers")
    )
    wide = "decimal(38,0)"
    key = F.xxhash64("key")
    return rows.groupBy(*units).agg(
        F.count("*").alias("records"),
        F.count_distinct("key").alias("keys"),
        F.sum_distinct(key.cast(wide)).alias("key_sum"),
        F.sum(whole.cast(wide)).alias("checksum"),
    )


def compared(left: DataFrame, right: DataFrame) -> DataFrame:
    """Both sides of each part, and whether they are the same; a part may be on one side only."""
    parts = [each for each in left.columns if each not in FIGURES]
    other = right.select(*parts, *[F.col(each).alias(f"other_{each}") for each in FIGURES])
    same = F.lit(True)
    for each in FIGURES:
        same = same & F.col(each).eqNullSafe(F.col(f"other_{each}"))
    return left.join(other, parts, "full").withColumn("same", same).orderBy(*parts)


if __name__ == "__main__":
    run_job(main, interrupted="interrupted; nothing was compared")
