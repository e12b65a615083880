"""Producer snapshots: they save reading and never change the answer."""

from __future__ import annotations

import pytest

from simulation.log_bench import NOW_MS, LogBench, Producer, append, batch
from simulation.storage import SimFiles
from tailrace.log.log import PartitionLog
from tailrace.log.producers import ProducerStates
from tailrace.log.segment import segment_name
from tailrace.log.snapshots import (
    load_producers,
    remove_snapshots,
    snapshot_offsets,
    write_snapshot,
)


def produced(bench: LogBench, count: int = 6) -> PartitionLog:
    """A log with batches of two producers and of nobody, in several segments."""
    log = bench.open()
    ann, ben = Producer(1), Producer(2)
    for at in range(count):
        value = f"{at}".encode() * 400
        append(log, batch(value, value, producer=ann), batch(value), batch(value, producer=ben))
        ann, ben = ann.after(2), ben.after(1)
    return log


def loaded(bench: LogBench, log: PartitionLog) -> ProducerStates:
    return load_producers(bench.storage, bench.folder, log.segments, now_ms=NOW_MS)


def test_without_snapshots_the_batches_tell(small: LogBench) -> None:
    log = produced(small)
    remove_snapshots(small.storage, small.folder, lambda _: True)
    assert snapshot_offsets(small.storage, small.folder) == []
    assert loaded(small, log) == log.producers
    assert len(log.producers) == 2


def test_rolling_leaves_a_snapshot_at_each_segment(small: LogBench) -> None:
    log = produced(small)
    assert len(log.segments) > 3
    assert snapshot_offsets(small.storage, small.folder) == [
        segment.base_offset for segment in log.segments[1:]
    ]
    assert loaded(small, log) == log.producers


def test_a_snapshot_at_the_end_saves_all_reading(small: LogBench, disk: SimFiles) -> None:
    log = produced(small)
    write_snapshot(small.storage, small.folder, log.producers, log.log_end)
    path = small.path(segment_name(log.log_end, ".snapshot"))
    before = disk.bytes_read
    assert loaded(small, log) == log.producers
    assert disk.bytes_read - before == disk.size(path)


def test_damaged_snapshots_only_cost_reading(small: LogBench, disk: SimFiles) -> None:
    log = produced(small)
    for offset in snapshot_offsets(small.storage, small.folder):
        disk.flip_bits(small.path(segment_name(offset, ".snapshot")), 5)
        assert loaded(small, log) == log.producers


def test_a_snapshot_beyond_its_limit_is_not_even_read(
    small: LogBench, disk: SimFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = produced(small)
    monkeypatch.setattr("tailrace.log.snapshots.SNAPSHOT_BYTES_MAX", 10)
    before = disk.bytes_read
    assert loaded(small, log) == log.producers
    assert disk.bytes_read - before >= log.size_bytes, "the batches were read instead"


def test_a_snapshot_of_a_later_end_is_passed_over(small: LogBench) -> None:
    log = produced(small)
    stranger = ProducerStates()
    stranger.update(
        producer_id=99,
        producer_epoch=0,
        base_sequence=0,
        last_sequence=0,
        base_offset=0,
        last_offset=0,
        timestamp_ms=NOW_MS,
        now_ms=NOW_MS,
    )
    write_snapshot(small.storage, small.folder, stranger, log.log_end + 1)
    assert loaded(small, log) == log.producers


def test_a_snapshot_under_a_wrong_name_is_passed_over(small: LogBench, disk: SimFiles) -> None:
    log = produced(small)
    first, second, *_ = snapshot_offsets(small.storage, small.folder)
    disk.rename(
        small.path(segment_name(first, ".snapshot")),
        small.path(segment_name(log.log_end, ".snapshot")),
    )
    assert second != first
    assert loaded(small, log) == log.producers


def test_a_snapshot_inside_a_segment_is_gone_on_from(bench: LogBench) -> None:
    log = produced(bench, 2)
    write_snapshot(bench.storage, bench.folder, log.producers, log.log_end)
    append(log, batch(b"x", producer=Producer(2, sequence=2)))
    assert loaded(bench, log) == log.producers


def test_only_snapshots_are_listed_and_removed(small: LogBench, disk: SimFiles) -> None:
    log = produced(small)
    disk.open(small.path("x.snapshot"), create=True).close()
    offsets = snapshot_offsets(small.storage, small.folder)
    remove_snapshots(small.storage, small.folder, lambda at: at < offsets[1])
    assert snapshot_offsets(small.storage, small.folder) == offsets[1:]
    assert len(small.names(".log")) == len(log.segments)
    assert disk.exists(small.path("x.snapshot"))
