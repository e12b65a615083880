"""What Spark reads from Tailrace, beside what its own connector reads from Kafka.

Real processes, all on this machine, in one run: three brokers of each, a topic of three partitions
with three replicas, as many rows of the same size in both, in batches of 256 KiB, written by each
one's own producer. Measured in turns: a batch read and an AvailableNow read of all columns into
nothing (`noop`), of the latter also what its triggers took without the start, as Spark tells it; an
AvailableNow query over one row, which is what each one pays for its start; a micro-batch of one
row, and a trigger that finds nothing. Then the memory of the Python workers while they read
partitions of 1 GB, which Kafka's connector has no counterpart to.

    make bench-spark
    PYTHONPATH=tests python tests/bench/bench_spark.py --without-kafka --sizes 100

Kafka and the connector come by Maven, into build/peers.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from bench.peers.environment import fetch_connector
from bench.peers.kafka import produce, running_kafka
from integration.cluster_harness import start, stop
from integration.spark_harness import local_session, workers
from tailrace import Admin, Producer

PARTITIONS = 3
BATCH_BYTES = 1 << 20
FILL_BYTES = 20_000_000
TRIGGERS, TRIGGERS_LEFT_OUT = 8, 2
QUERY_TIMEOUT_S = 600
READS = ("batch", "AvailableNow", "AvailableNow, its triggers")
WORKER_POLL_S = 0.05
# Rounds of reads that do not count: the JVM, and Kafka's, compile what they run often.
WARM_UPS = 3
GIGABYTE = 1_000_000_000


@dataclass(frozen=True)
class Side:
    """One of the two: how Spark calls it, and where it is."""

    name: str
    format: str
    bootstrap: str

    def options(self, **more: str) -> dict[str, str]:
        prefix = "kafka." if self.format == "kafka" else ""
        return {f"{prefix}bootstrap.servers": self.bootstrap, **more}

    def read(self, spark: SparkSession, topic: str) -> DataFrame:
        options = self.options(subscribe=topic)
        return spark.read.format(self.format).options(**options).load()

    def stream(self, spark: SparkSession, topic: str) -> DataFrame:
        options = self.options(subscribe=topic, startingOffsets="earliest")
        return spark.readStream.format(self.format).options(**options).load()

    def write(self, rows: DataFrame, topic: str) -> None:
        options = self.options(topic=topic)
        rows.write.format(self.format).options(**options).mode("append").save()

    def fill(self, topic: str, partitions: int, records: int, size: int) -> None:
        """A topic with so many records."""
        if self.format == "kafka":
            produce(self.bootstrap, topic, records, size, BATCH_BYTES)
            return
        with Admin(self.bootstrap) as admin:
            admin.create_topic(topic, partitions=partitions)
        rows = FILL_BYTES // size
        table = pa.table({"value": pa.array([b"x" * size] * rows, pa.binary())})
        with Producer(self.bootstrap, batch_size=BATCH_BYTES) as producer:
            for number in range(0, records, rows):
                part = table.slice(0, min(rows, records - number))
                place = number // rows % partitions
                producer.send_batch(topic, part, partition=place).result(120)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", default="100,1024")
    parser.add_argument("--bytes", type=int, default=500_000_000, help="of values for each size")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--without-kafka", action="store_true")
    parser.add_argument("--parts", default="read,triggers,memory")
    parser.add_argument("--gigabytes", type=int, default=2, help="partitions for the memory")
    options = parser.parse_args()
    # As installed: processes that start here find their modules compiled.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))
    parts = options.parts.split(",")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(_folder()))
        spark, sides = begin(stack, folder, with_kafka=not options.without_kafka)
        for size in map(int, options.sizes.split(",")) if "read" in parts else ():
            measure_reads(spark, sides, folder, size, options.bytes // size, options.rounds)
        if "triggers" in parts:
            measure_starts(spark, sides, folder, options.rounds)
            measure_triggers(spark, sides, folder, options.rounds)
        if "memory" in parts:
            measure_memory(spark, sides[0], options.gigabytes)
    return 0


def begin(stack: ExitStack, folder: Path, *, with_kafka: bool) -> tuple[SparkSession, list[Side]]:
    """Brokers of both kinds, and one session that knows both."""
    dev = start(folder / "tailrace", coordinators=1)
    stack.callback(stop, dev)
    sides = [Side("Tailrace", "tailrace", dev.state.bootstrap)]
    config = {"spark.driver.memory": "2g", "spark.sql.streaming.noDataProgressEventInterval": "0"}
    if with_kafka:
        kafka = stack.enter_context(running_kafka(folder / "kafka"))
        sides.append(Side("Kafka", "kafka", kafka.servers))
        config["spark.jars"] = ",".join(map(str, fetch_connector()))
    spark = local_session("bench", config=config, java_options="")
    stack.callback(spark.stop)
    return spark, sides


def measure_reads(
    spark: SparkSession, sides: list[Side], folder: Path, size: int, records: int, rounds: int
) -> None:
    topic = f"bench-{size}"
    for side in sides:
        side.fill(topic, PARTITIONS, records, size)
        assert side.read(spark, topic).count() == records
    took: dict[tuple[str, str], list[float]] = {}
    for number in range(WARM_UPS + rounds):
        for side in sides:
            checkpoint = folder / f"{side.name}-{size}-{number}"
            whole_s, triggers_s = read_stream(spark, side, topic, checkpoint)
            found = (read_batch(spark, side, topic), whole_s, triggers_s)
            for kind, seconds in zip(READS, found, strict=True):
                if number < WARM_UPS:
                    continue
                took.setdefault((side.name, kind), []).append(seconds)
                rate = round(records / seconds)
                report("read", side=side.name, kind=kind, bytes=size, rows_per_s=rate)
    for kind in READS:
        for side in sides:
            rates = sorted(round(records / each) for each in took[side.name, kind])
            figures = {"rows_per_s": median(rates), "worst": rates[0], "best": rates[-1]}
            report("median", side=side.name, kind=kind, bytes=size, **figures)
        if len(sides) > 1:
            ours, theirs = (median(took[side.name, kind]) for side in sides)
            report("ratio", kind=kind, bytes=size, times=round(theirs / ours, 2))


def read_batch(spark: SparkSession, side: Side, topic: str) -> float:
    """Seconds of a batch read into nothing."""
    began = time.perf_counter()
    side.read(spark, topic).write.format("noop").mode("overwrite").save()
    return time.perf_counter() - began


def read_stream(
    spark: SparkSession, side: Side, topic: str, checkpoint: Path
) -> tuple[float, float]:
    """Seconds of a streaming query from its start until all is read, and of its triggers alone."""
    query = side.stream(spark, topic).writeStream.format("noop")
    query = query.option("checkpointLocation", str(checkpoint))
    began = time.perf_counter()
    running = query.trigger(availableNow=True).start()
    assert running.awaitTermination(QUERY_TIMEOUT_S)
    whole_s = time.perf_counter() - began
    spent_ms = [each["durationMs"]["triggerExecution"] for each in running.recentProgress]
    return whole_s, sum(spent_ms) / 1000


def measure_starts(spark: SparkSession, sides: list[Side], folder: Path, rounds: int) -> None:
    """Seconds that an AvailableNow query takes over one row: what every one pays once."""
    took: dict[str, list[float]] = {side.name: [] for side in sides}
    for side in sides:
        side.fill("bench-start", PARTITIONS, 1, 10)
    for number in range(rounds + 1):
        for side in sides:
            checkpoint = folder / f"{side.name}-start-{number}"
            seconds, _ = read_stream(spark, side, "bench-start", checkpoint)
            # The first one of a session pays for more.
            took[side.name] += [seconds] if number else []
    for side in sides:
        report("start", side=side.name, seconds=round(median(took[side.name]), 2), of=rounds)


def measure_triggers(spark: SparkSession, sides: list[Side], folder: Path, rounds: int) -> None:
    """Milliseconds of a micro-batch with one row, and of a trigger that finds nothing."""
    found: dict[tuple[str, str], list[float]] = {}
    for side in sides:
        side.fill("bench-empty", PARTITIONS, 1, 10)
    for number in range(rounds):
        for side in sides:
            for kind, ms in _triggers(spark, side, folder / f"{side.name}-empty-{number}"):
                found.setdefault((kind, side.name), []).append(ms)
    for kind in ("one row", "nothing"):
        middles = []
        for side in sides:
            spent = found[kind, side.name]
            middles.append(median(spent))
            report("trigger", side=side.name, kind=kind, ms=round(middles[-1], 1), of=len(spent))
        if len(sides) > 1:
            times = round(middles[0] / max(middles[1], 1), 2)
            report("ratio", kind=f"trigger, {kind}", times=times)


def _triggers(spark: SparkSession, side: Side, checkpoint: Path) -> Iterator[tuple[str, float]]:
    """The triggers of a query while now and then a row is written."""
    one = spark.range(1).selectExpr("cast(id as string) as value")
    query = side.stream(spark, "bench-empty").writeStream.format("noop")
    query = query.option("checkpointLocation", str(checkpoint))
    running = query.trigger(processingTime="0 seconds").start()
    seen: set[tuple[int, str]] = set()
    for number in range(TRIGGERS):
        side.write(one, "bench-empty")
        running.processAllAvailable()
        time.sleep(0.3)
        for progress in running.recentProgress:
            which = (progress["batchId"], progress["timestamp"])
            # The first ones of a query pay for more.
            if number >= TRIGGERS_LEFT_OUT and which not in seen:
                seen.add(which)
                kind = "one row" if progress["numInputRows"] else "nothing"
                yield kind, progress["durationMs"].get("triggerExecution", 0)
    running.stop()


def measure_memory(spark: SparkSession, side: Side, gigabytes: int) -> None:
    """What Python workers hold while two of them read partitions of 1 GB."""
    side.fill("bench-large", gigabytes, gigabytes * GIGABYTE // 1024, 1024)
    # What a worker has before it reads much.
    side.fill("bench-small", gigabytes, gigabytes, 1024)
    for topic, partition_bytes in (("bench-small", 1024), ("bench-large", GIGABYTE)):
        with watched() as peaks:
            side.read(spark, topic).write.format("noop").mode("overwrite").save()
        peak_mib = round(max(peaks.values(), default=0) / 1024, 1)
        report("memory", partition_bytes=partition_bytes, workers=len(peaks), peak_mib=peak_mib)


@contextmanager
def watched() -> Iterator[dict[int, int]]:
    """The highest resident memory of each Python worker meanwhile, in KiB."""
    peaks: dict[int, int] = {}
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(WORKER_POLL_S):
            for pid, kib in _worker_memory():
                peaks[pid] = max(peaks.get(pid, 0), kib)

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        yield peaks
    finally:
        ended.set()
        watching.join()


def _worker_memory() -> Iterator[tuple[int, int]]:
    for pid in workers():
        with suppress(OSError):
            for line in Path(f"/proc/{pid}/status").read_text().splitlines():
                if line.startswith("VmRSS:"):
                    yield pid, int(line.split()[1])


def report(what: str, **figures: Any) -> None:
    print(json.dumps({"figure": what, **figures}), flush=True)


@contextmanager
def _folder() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="bench-spark-", ignore_cleanup_errors=True) as path:
        yield path


if __name__ == "__main__":
    sys.exit(main())
