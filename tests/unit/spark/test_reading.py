"""A range is read whole and once, whatever happens to leaders; what is lost is told or skipped."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Generator, Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from tailrace.errors import RequestTimedOut, UnreadableBatch
from tailrace.record.build import BatchBuilder
from tailrace_spark.cluster import cluster_for
from tailrace_spark.layout import Layout
from tailrace_spark.losses import DataLost
from tailrace_spark.offsets import ReadRange
from tailrace_spark.options import ReadOptions, read_options
from tailrace_spark.reading import _Reading as reading_of
from tailrace_spark.reading import read_range
from unit.client.bad_batches import batch, junk_body, late_times
from unit.spark.conftest import Model

LAYOUT = Layout(("offset", "value"))


def _options(model: Model, **more: str) -> ReadOptions:
    given = {"bootstrap.servers": model.bootstrap, "subscribe": "t", **more}
    return read_options(given, streaming=False)


def _range(model: Model, start: int, end: int, last_epoch: int = -1) -> ReadRange:
    return ReadRange(
        topic="t",
        topic_id=model.log("t").topic_id,
        partition=0,
        start=start,
        end=end,
        last_epoch=last_epoch,
    )


def _read(wanted: ReadRange, options: ReadOptions) -> list[int]:
    batches = list(read_range(wanted, options, LAYOUT))
    values = [value for each in batches for value in each.column("value").to_pylist()]
    offsets: list[Any] = [n for each in batches for n in each.column("offset").to_pylist()]
    assert values == [b"%d" % each for each in offsets]
    return offsets


def test_a_range_and_no_more(model: Model) -> None:
    model.create("t")
    model.fill("t", 0, *[7] * 30)
    assert _read(_range(model, 10, 200), _options(model)) == list(range(10, 200))


def test_small_batches_come_joined(model: Model) -> None:
    model.create("t")
    model.fill("t", 0, *[1] * 500)
    batches = list(read_range(_range(model, 0, 500), _options(model), LAYOUT))
    assert sum(each.num_rows for each in batches) == 500
    assert len(batches) < 50


def test_a_new_leader_in_the_middle(model: Model) -> None:
    model.create("t")
    model.fill("t", 0, *[10] * 10)
    reading = read_range(_range(model, 0, 200), _options(model), LAYOUT)
    found: list[pa.RecordBatch] = [next(reading)]
    model.do(lambda: model.cluster.move(model.log("t"), 1))
    threading.Timer(0.1, lambda: model.fill("t", 0, *[10] * 10)).start()
    found += list(reading)
    assert [n for each in found for n in each.column("offset").to_pylist()] == list(range(200))


def test_records_that_retention_took(model: Model, caplog: pytest.LogCaptureFixture) -> None:
    model.create("t")
    model.fill("t", 0, *[10] * 10)
    model.log("t").log_start = 40
    wanted = _range(model, 25, 100)
    with pytest.raises(DataLost, match=r"t-0: 15 records are lost: the log starts at 40 now"):
        _read(wanted, _options(model))
    with caplog.at_level(logging.WARNING):
        assert _read(wanted, _options(model, failOnDataLoss="false")) == list(range(40, 100))
    assert "t-0: 15 records are lost" in caplog.text
    gone = _range(model, 3, 30)
    assert _read(gone, _options(model, failOnDataLoss="false")) == []
    assert "t-0: 27 records are lost" in caplog.text


def test_records_that_retention_took_of_a_batch(model: Model) -> None:
    """The batch is still there whole, since something of it is left."""
    model.create("t")
    model.fill("t", 0, 100)
    model.log("t").log_start = 40
    options = _options(model, failOnDataLoss="false")
    assert _read(_range(model, 25, 100), options) == list(range(40, 100))


def test_a_new_leader_has_the_records_in_larger_batches(model: Model) -> None:
    """Compaction may have merged them there: what was read before does not come again."""
    model.create("t")
    model.fill("t", 0, *[10] * 10)
    # The reader gets no further than its credit.
    options = _options(model, fetchCreditBytes=str(64 << 10))
    reading = read_range(_range(model, 0, 300), options, LAYOUT)
    found: list[pa.RecordBatch] = [next(reading)]
    seen = found[0].num_rows
    assert 0 < seen <= 100

    def merge() -> None:
        log = model.log("t")
        builder = BatchBuilder()
        for number in range(300):
            builder.append(b"%d" % number, b"k", 5)
        log.entries.clear()
        log.store(builder.build(base_offset=0, leader_epoch=log.leader_epoch))
        log.commit(300)
        model.cluster.move(log, 1)

    model.do(merge)
    found += list(reading)
    assert [n for each in found for n in each.column("offset").to_pylist()] == list(range(300))


def test_a_topic_made_anew(model: Model, caplog: pytest.LogCaptureFixture) -> None:
    model.create("t")
    model.fill("t", 0, 10)
    wanted = _range(model, 5, 10)
    model.delete("t")
    model.create("t")
    model.fill("t", 0, 10)
    with pytest.raises(DataLost, match=r"t-0: 5 records are lost: t was deleted and made anew"):
        _read(wanted, _options(model))
    with caplog.at_level(logging.WARNING):
        assert _read(wanted, _options(model, failOnDataLoss="false")) == []
    assert "5 records are lost" in caplog.text


def test_a_log_that_was_cut_below_the_position(
    model: Model, caplog: pytest.LogCaptureFixture
) -> None:
    """An unclean election: other records stand where some were read."""
    model.create("t")
    model.fill("t", 0, 10, 10)
    wanted = _range(model, 20, 30, last_epoch=0)

    def cut() -> None:
        model.log("t").truncate(10)
        model.cluster.move(model.log("t"), 1)

    model.do(cut)
    model.fill("t", 0, 10, 10)
    with pytest.raises(DataLost, match="the log was cut below offset 20"):
        _read(wanted, _options(model))
    with caplog.at_level(logging.WARNING):
        found = _read(wanted, _options(model, failOnDataLoss="false"))
    assert found == list(range(20, 30))
    assert "was cut below offset 20" in caplog.text


def test_the_epoch_of_a_leader_that_wrote_nothing_is_no_loss(model: Model) -> None:
    model.create("t")
    model.fill("t", 0, 10)
    # Epoch 1 led for a while without a record; then epoch 2 wrote.
    model.do(lambda: model.cluster.move(model.log("t"), 1))
    model.do(lambda: model.cluster.move(model.log("t"), 2))
    model.fill("t", 0, 10)
    assert _read(_range(model, 10, 20, last_epoch=1), _options(model)) == list(range(10, 20))


def test_nothing_comes_is_told_with_the_address(model: Model) -> None:
    model.create("t")
    model.fill("t", 0, 5)
    wanted = replace(_range(model, 0, 9))
    with pytest.raises(
        RequestTimedOut, match=r"t-0 \[0, 9\): no record came for pollTimeoutMs=300"
    ):
        _read(wanted, _options(model, pollTimeoutMs="300"))


def test_who_stops_early_leaves_nothing_behind(model: Model) -> None:
    model.create("t")
    model.fill("t", 0, *[10] * 300)
    reading = read_range(_range(model, 0, 3_000), _options(model), LAYOUT)
    assert isinstance(reading, Generator)
    next(reading)
    reading.close()
    assert _read(_range(model, 0, 50), _options(model)) == list(range(50))


def _gather(found: list[Any], batches: Iterator[pa.RecordBatch]) -> None:
    for each in batches:
        found += each.column("offset").to_pylist()


def _store(model: Model, made: bytes) -> None:
    def append() -> None:
        log = model.log("t")
        log.store(made)
        log.commit(log.end)

    model.do(append)


def test_F45_readers_in_spark_fail_at_a_batch_that_cannot_be_read_after_those_before(  # noqa: N802
    model: Model, caplog: pytest.LogCaptureFixture
) -> None:
    model.create("t")
    model.fill("t", 0, 5, 5)
    _store(model, junk_body(batch([b"10", b"11"], base_offset=10)))
    model.fill("t", 0, 5)
    found: list[Any] = []
    with pytest.raises(UnreadableBatch, match=r"t-0: the batch of offsets 10 to 11 cannot be read"):
        _gather(found, read_range(_range(model, 0, 17), _options(model), LAYOUT))
    assert found == list(range(10))
    for said in ({"failOnDataLoss": "false"}, {"onCorrupt": "skip"}):
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            assert _read(_range(model, 0, 17), _options(model, **said)) == [
                *range(10),
                *range(12, 17),
            ]
        assert "partition=0 first_offset=10 last_offset=11 reason=corrupt" in caplog.text
    with pytest.raises(UnreadableBatch):
        _read(_range(model, 0, 17), _options(model, failOnDataLoss="false", onCorrupt="raise"))


def test_F45_readers_in_spark_of_bytes_that_come_damaged_each_time(model: Model) -> None:  # noqa: N802
    model.create("t")
    model.fill("t", 0, 5)
    damaged = bytearray(batch([b"5", b"6"], base_offset=5))
    damaged[-1] ^= 1
    _store(model, bytes(damaged))
    model.fill("t", 0, 3)
    with pytest.raises(UnreadableBatch, match="offsets 5 to 6"):
        _read(_range(model, 0, 10), _options(model))
    found = _read(_range(model, 0, 10), _options(model, onCorrupt="skip"))
    assert found == [*range(5), *range(7, 10)]


def test_F45_readers_in_spark_hand_out_what_was_taken_before_a_problem(model: Model) -> None:  # noqa: N802
    model.create("t")
    model.fill("t", 0, 5)
    damaged = bytearray(batch([b"5", b"6"], base_offset=5))
    damaged[-1] ^= 1
    _store(model, bytes(damaged))
    model.fill("t", 0, 3)
    options = _options(model, onCorrupt="skip")
    cluster = cluster_for(options.bootstrap, timeout_ms=options.metadata_timeout_ms)
    reading = reading_of(cluster, _range(model, 0, 10), options)
    # Both have arrived before the first is taken: the batch, and that the next one is damaged.
    cluster.run(reading._reader.start())
    until = time.monotonic() + 30
    while not reading._reader.trouble.startswith("t-0: the batch of offsets 5 to 6"):
        assert time.monotonic() < until
        time.sleep(0.01)
    time.sleep(1)
    found: list[Any] = []
    while (chunk := reading.next_chunk()) is not None:
        _gather(found, reading.rows(chunk, LAYOUT))
    reading.close()
    assert found == [*range(5), *range(7, 10)]


def test_A9_stored_times_that_spark_cannot_hold_are_named_and_not_shown_as_1970(  # noqa: N802
    model: Model,
) -> None:
    model.create("t")
    model.fill("t", 0, 3)
    _store(model, late_times(batch([b"3", b"4"], base_offset=3), 2**62))
    model.fill("t", 0, 2)
    layout = Layout(("offset", "timestamp"))
    said = r"3 to 4 cannot be read.*timestamp 4611686018427387904 ms of offset 4 is beyond"
    with pytest.raises(UnreadableBatch, match=said):
        list(read_range(_range(model, 0, 7), _options(model), layout))
    options = _options(model, onCorrupt="skip")
    batches = list(read_range(_range(model, 0, 7), options, layout))
    assert [n for each in batches for n in each.column("offset").to_pylist()] == [0, 1, 2, 5, 6]
    assert _read(_range(model, 0, 7), _options(model)) == list(range(7)), "nobody asked for times"
