"""Every reader of a stored topic: each gives what it saw of every partition, as a `Sight`.

Rows and Arrow batches of a consumer, the reader of one partition, the command line, and the reading
path of Spark's source without a JVM. `spark_sums` is a real Spark job. Enter at `READERS`.
"""

from __future__ import annotations

import asyncio
import base64
import json
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa

from fuzz.ledger import Sight
from tailrace.aio import Consumer
from tailrace.client.reader import PartitionReader
from tailrace.clock import SystemClock
from tailrace.model import TopicPartition
from tailrace.transport.http2.network import Http2Network
from tailrace_spark.layout import Layout
from tailrace_spark.offsets import ReadRange
from tailrace_spark.options import read_options
from tailrace_spark.reading import read_range

READ_S = 300.0
POLL_RECORDS = 20_000
LINE_BYTES_MAX = 64 << 20

Good = Mapping[int, Mapping[int, bytes]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A topic to read, where each of its partitions ends, and where good records are."""

    bootstrap: list[str]
    topic: str
    topic_id: str
    ends: Mapping[int, int]
    good: Good

    def sights(self) -> dict[int, Sight]:
        return {partition: Sight() for partition in self.ends}

    def known(self, partition: int) -> Mapping[int, bytes]:
        return self.good.get(partition, {})


async def by_rows(place: Place) -> dict[int, Sight]:
    sights = place.sights()
    async with _consumer(place) as consumer:
        while not await _is_at_end(consumer, place):
            for each in await consumer.poll(0.5, max_records=POLL_RECORDS):
                known = place.known(each.partition)
                sights[each.partition].saw(each.offset, each.value, known)
    return sights


async def by_arrow(place: Place) -> dict[int, Sight]:
    sights = place.sights()
    async with _consumer(place) as consumer:
        while not await _is_at_end(consumer, place):
            async for batch in consumer.batches(timeout=0.5, headers=True):
                partition: Any = batch.column("partition")[0].as_py()
                _see(batch, sights[partition], place.known(partition))
    return sights


async def by_reader(place: Place) -> dict[int, Sight]:
    sights = place.sights()
    network = Http2Network()
    for partition, end in place.ends.items():
        reader = PartitionReader(
            place.bootstrap,
            place.topic,
            partition,
            end=end,
            network=network,
            clock=SystemClock(),
            rng=Random(),
        )
        async with reader:
            while reader.position < end:
                fetched = await reader.next()
                if fetched is None:
                    break
                for record in fetched.view.records():
                    sights[partition].saw(record.offset, record.value, place.known(partition))
    await network.close()
    return sights


async def by_command(place: Place) -> dict[int, Sight]:
    """`tailrace consume --json`, whose values are text where they can be, else base64."""
    sights = place.sights()
    command = Path(sys.executable).with_name("tailrace")
    where = ["--bootstrap", ",".join(place.bootstrap), "--from-beginning"]
    process = await asyncio.create_subprocess_exec(
        *(str(command), "consume", place.topic, "--json", *where),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        limit=LINE_BYTES_MAX,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    told = asyncio.ensure_future(process.stderr.read())
    async for line in process.stdout:
        record = json.loads(line)
        partition = record["partition"]
        sights[partition].saw(record["offset"], _bytes(record["value"]), place.known(partition))
    if await process.wait():
        raise RuntimeError(f"tailrace consume failed: {(await told).decode()[-1000:]}")
    return sights


async def by_spark_source(place: Place) -> dict[int, Sight]:
    return await asyncio.to_thread(_by_spark_source, place)


def _by_spark_source(place: Place) -> dict[int, Sight]:
    sights = place.sights()
    given = {"bootstrap.servers": ",".join(place.bootstrap), "subscribe": place.topic}
    options = read_options(given, streaming=False)
    names = ("key", "value", "topic", "partition", "offset", "timestamp", "headers")
    for partition, end in place.ends.items():
        wanted = ReadRange(
            topic=place.topic,
            topic_id=place.topic_id,
            partition=partition,
            start=0,
            end=end,
            last_epoch=-1,
        )
        for batch in read_range(wanted, options, Layout(names, frozenset())):
            _see(batch, sights[partition], place.known(partition))
    return sights


def _see(batch: pa.RecordBatch, sight: Sight, good: Mapping[int, bytes]) -> None:
    """Every column is looked into, whatever is in it."""
    batch.validate(full=True)
    offsets: list[Any] = batch.column("offset").to_pylist()
    values: list[Any] = batch.column("value").to_pylist()
    for offset, value in zip(offsets, values, strict=True):
        sight.saw(offset, value, good)


READERS: dict[str, Callable[[Place], Awaitable[dict[int, Sight]]]] = {
    "rows": by_rows,
    "batches()": by_arrow,
    "reader": by_reader,
    "consume --json": by_command,
    "Spark source": by_spark_source,
}


def spark_sums(bootstrap: str, topics: list[str]) -> dict[tuple[str, int], tuple[int, int, int]]:
    """A real Spark job over all topics: records, last offset and sum of CRCs, by partition."""
    from pyspark.sql import functions as f  # noqa: PLC0415 - it starts a JVM.

    from integration.spark_harness import local_session  # noqa: PLC0415

    spark = local_session("tailrace-fuzz")
    try:
        frame = (
            spark.read.format("tailrace")
            .option("bootstrap.servers", bootstrap)
            .option("subscribe", ",".join(topics))
            .load()
        )
        sums = frame.groupBy("topic", "partition").agg(
            f.count("*").alias("records"),
            f.max("offset").alias("last"),
            f.sum(f.crc32("value")).alias("checksum"),
        )
        return {
            (row["topic"], row["partition"]): (row["records"], row["last"], row["checksum"] or 0)
            for row in sums.collect()
        }
    finally:
        spark.stop()


def _consumer(place: Place) -> _Assigned:
    return _Assigned(place)


class _Assigned:
    """A consumer of all partitions of the place, open as long as the block."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._consumer = Consumer(
            bootstrap_servers=place.bootstrap,
            auto_offset_reset="earliest",
            max_poll_records=POLL_RECORDS,
        )

    async def __aenter__(self) -> Consumer:
        await self._consumer.start()
        partitions = [TopicPartition(self._place.topic, each) for each in self._place.ends]
        await self._consumer.assign(partitions)
        return self._consumer

    async def __aexit__(self, *_: object) -> None:
        await self._consumer.close()


async def _is_at_end(consumer: Consumer, place: Place) -> bool:
    for partition, end in place.ends.items():
        where = TopicPartition(place.topic, partition)
        if end and await consumer.position(where) < end:
            return False
    return True


def _bytes(value: Any) -> bytes | None:
    if value is None:
        return None
    if isinstance(value, dict):
        return base64.b64decode(value["base64"])
    return str(value).encode()
