"""A4, A5, F45: a stored batch that nobody can decode, met by every reader of a real cluster.

The batch gets past the leader's checks as rot by hand does: the cluster is stopped, and the segment
files of all replicas get a body of junk with checksums that match.
"""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from integration.cluster_harness import PATIENCE_S, connected, start, stop
from tailrace import Admin, Consumer, Producer
from tailrace.client.reader import PartitionReader
from tailrace.clock import SystemClock
from tailrace.dev.cluster import DevCluster
from tailrace.errors import UnreadableBatch
from tailrace.model import TopicPartition
from tailrace.record.header import split
from tailrace_spark.layout import Layout
from tailrace_spark.offsets import ReadRange
from tailrace_spark.options import read_options
from tailrace_spark.reading import read_range
from unit.client.bad_batches import junk_body

TOPIC = "orders"
BAD, HEALTHY = (TopicPartition(TOPIC, number) for number in range(2))
BATCH = 20
BATCHES = 5
# Of the five batches in partition 0 the third.
FIRST, LAST = 2 * BATCH, 3 * BATCH - 1
END = BATCHES * BATCH
BEFORE = list(range(FIRST))
BEHIND = list(range(LAST + 1, END))

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def dev(memory_folder: Path) -> Iterator[DevCluster]:
    running = start(memory_folder / "unreadable", controllers=1, coordinators=1)
    try:
        _fill(running.state.bootstrap)
        asyncio.run(running.down())
        _spoil(memory_folder / "unreadable")
        asyncio.run(running.up())
        yield running
    finally:
        stop(running)


def _fill(bootstrap: str) -> None:
    with Admin(bootstrap_servers=bootstrap) as admin:
        admin.create_topic(TOPIC, partitions=2, replication_factor=3)
    with Producer(bootstrap_servers=bootstrap, linger_ms=1_000) as producer:
        for at in range(0, END, BATCH):
            for number in range(at, at + BATCH):
                for partition in (BAD, HEALTHY):
                    producer.send(TOPIC, b"%d" % number, partition=partition.partition)
            producer.flush()


def _spoil(folder: Path) -> None:
    """Give the third batch of partition 0 a body of junk, on every replica."""
    spoilt = 0
    for path in folder.glob(f"**/{TOPIC}-0*/*.log"):
        data = path.read_bytes()
        for position, header in split(data):
            if header.base_offset == FIRST:
                assert header.last_offset == LAST
                bad = junk_body(data[position : position + header.length])
                assert len(bad) == header.length
                path.write_bytes(data[:position] + bad + data[position + header.length :])
                spoilt += 1
    assert spoilt == 3


def _consumer(dev: DevCluster, **settings: Any) -> Consumer:
    options = {"auto_offset_reset": "earliest", **settings}
    return Consumer(bootstrap_servers=dev.state.bootstrap, **options)


def _offsets(consumer: Consumer, partition: TopicPartition, count: int) -> list[int]:
    """Offsets of a partition until so many came, through all errors."""
    found: list[int] = []
    errors: list[tuple[str, int, int, int]] = []
    while len(found) < count:
        try:
            records = consumer.poll(PATIENCE_S)
        except UnreadableBatch as error:
            errors.append((error.topic, error.partition, error.first_offset, error.last_offset))
            assert len(errors) < 10_000
        else:
            found += [each.offset for each in records if each.partition == partition.partition]
    assert set(errors) <= {(TOPIC, BAD.partition, FIRST, LAST)}
    return found


def test_A4_stored_junk_stops_no_other_partition_of_a_group(  # noqa: N802
    dev: DevCluster,
) -> None:
    with _consumer(dev, group_id="g", auto_commit_interval_ms=50) as consumer:
        consumer.subscribe([TOPIC])
        assert _offsets(consumer, HEALTHY, END) == list(range(END))
        for _ in range(3):
            with pytest.raises(UnreadableBatch, match=rf"{FIRST} to {LAST} cannot be read"):
                consumer.poll(PATIENCE_S)
        assert consumer.position(BAD) == FIRST
    with _consumer(dev, group_id="g") as consumer:
        consumer.subscribe([TOPIC])
        with pytest.raises(UnreadableBatch):
            consumer.poll(PATIENCE_S)
        stored = consumer.committed(BAD, HEALTHY)
        assert (stored[BAD].offset, stored[HEALTHY].offset) == (FIRST, END)
        consumer.seek(BAD, LAST + 1)
        assert _offsets(consumer, BAD, len(BEHIND)) == BEHIND


def test_A5_arrow_batches_in_a_retry_loop_never_pass_over_it(  # noqa: N802
    dev: DevCluster,
) -> None:
    with _consumer(dev) as consumer:
        consumer.assign([BAD])
        found: list[Any] = []
        errors: list[UnreadableBatch] = []
        for _ in range(6):
            try:
                for each in consumer.batches(timeout=PATIENCE_S):
                    found += each.column("offset").to_pylist()
            except UnreadableBatch as error:
                errors.append(error)
        assert (found, consumer.position(BAD)) == (BEFORE, FIRST)
        assert [each.last_offset for each in errors] == [LAST] * 6


@pytest.mark.parametrize("arrow", [False, True])
def test_F45_readers_that_are_told_to_skip_count_and_log_it(  # noqa: N802
    dev: DevCluster, caplog: pytest.LogCaptureFixture, arrow: bool
) -> None:
    with caplog.at_level(logging.WARNING), _consumer(dev, on_corrupt="skip") as consumer:
        consumer.assign([BAD])
        found: list[Any] = []
        while len(found) < END - BATCH:
            if arrow:
                found += next(consumer.batches(timeout=PATIENCE_S)).column("offset").to_pylist()
            else:
                found += [each.offset for each in consumer.poll(PATIENCE_S)]
        assert found == BEFORE + BEHIND
        assert consumer.skipped_batches == consumer.metrics()["skipped_batches"] == 1
    said = f"partition=0 first_offset={FIRST} last_offset={LAST} reason=corrupt batch"
    assert caplog.text.count(said) == 1


def test_F45_readers_of_one_partition_and_of_spark(dev: DevCluster) -> None:  # noqa: N802
    async def read() -> str:
        async with (
            connected(dev) as cluster,
            PartitionReader(
                cluster.bootstrap,
                TOPIC,
                0,
                network=cluster.network,
                clock=SystemClock(),
                rng=Random(),
            ) as reader,
        ):
            assert [(await reader.next()).header.base_offset for _ in range(2)] == [0, BATCH]  # type: ignore[union-attr]
            for _ in range(2):
                with pytest.raises(UnreadableBatch):
                    await reader.next()
            assert reader.position == FIRST
            return reader.topic_id

    topic_id = asyncio.run(read())
    wanted = ReadRange(topic=TOPIC, topic_id=topic_id, partition=0, start=0, end=END, last_epoch=-1)
    given = {"bootstrap.servers": dev.state.bootstrap, "subscribe": TOPIC}
    layout = Layout(("offset", "value"))
    found: list[Any] = []

    def gather(**more: str) -> list[Any]:
        found.clear()
        for each in read_range(wanted, read_options({**given, **more}, streaming=False), layout):
            found.extend(each.column("offset").to_pylist())
        return found

    with pytest.raises(UnreadableBatch, match=rf"offsets {FIRST} to {LAST} cannot be read"):
        gather()
    assert found == BEFORE
    assert gather(failOnDataLoss="false") == BEFORE + BEHIND


def test_F45_readers_on_the_command_line(dev: DevCluster) -> None:  # noqa: N802
    ended, printed, told = _consume(dev)
    assert ended != 0
    assert printed == BEFORE
    assert f"offsets {FIRST} to {LAST} cannot be read" in told
    ended, printed, told = _consume(dev, "--on-corrupt", "skip")
    assert (ended, printed) == (0, BEFORE + BEHIND)
    assert f"first_offset={FIRST} last_offset={LAST}" in told
    assert "1 batches could not be read" in told


def _consume(dev: DevCluster, *more: str) -> tuple[int, list[int], str]:
    """How the command ends, the numbers that it prints, and what it says beside them."""
    command = Path(sys.executable).with_name("tailrace")
    place = ["--partition", "0", "--bootstrap", dev.state.bootstrap]
    run = subprocess.run(
        [command, "consume", TOPIC, *place, *more], capture_output=True, text=True, check=False
    )
    return run.returncode, [int(line) for line in run.stdout.splitlines()], run.stderr
