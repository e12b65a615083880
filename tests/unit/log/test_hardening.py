"""Logs among hostile input: damage, odd files, odd offsets; each stays the trouble of one log."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from simulation.log_bench import (
    NOW_MS,
    LogBench,
    Producer,
    append,
    append_result,
    batch,
    contents,
    values,
)
from simulation.proofs import DIVERGED, given_up, refilled
from simulation.storage import SimFiles
from tailrace.config import FolderConfig, LogConfig
from tailrace.errors import CorruptBatch, LimitReached, OffsetOutOfRange, StorageError
from tailrace.log.checkpoints import CLEANED, LEADER_EPOCHS, RECOVERY_POINTS
from tailrace.log.cleaning.compaction import compact
from tailrace.log.data_folder import Identity
from tailrace.log.files import OsFiles
from tailrace.log.flushing import SYNC_FAILED_FILE
from tailrace.log.manager import LogManager
from tailrace.log.producers import ProducerStates
from tailrace.log.report import ManagerReport
from tailrace.log.segment import segment_name
from tailrace.log.snapshots import snapshot_offsets
from tailrace.log.time_lookup import TimedOffset
from tailrace.model import BrokerId, LeaderEpoch, TopicId, TopicPartition
from tailrace.record.build import BatchBuilder, compacted_batch
from tailrace.record.header import assemble, read_header
from tailrace.record.view import BatchView

ORDERS = TopicPartition("orders", 0)
BILLS = TopicPartition("bills", 0)


def opened(disk: SimFiles) -> tuple[LogManager, ManagerReport]:
    manager = LogManager(
        disk,
        FolderConfig(log_dirs=("/data",), open_files_max=16),
        identity=Identity("cluster", BrokerId(1), "incarnation"),
        log_config=lambda _: LogConfig(index_interval_bytes=0),
    )
    return manager, manager.open(now_ms=NOW_MS)


def write(disk: SimFiles, path: str, data: bytes) -> None:
    file = disk.open(path, create=True)
    file.write_at(0, [data])
    file.close()


# Checkpoints that cannot be stored.


def test_memory_follows_the_store_and_not_the_other_way(disk: SimFiles) -> None:
    manager, _ = opened(disk)
    log = manager.create(ORDERS, TopicId("id"))
    append(log, batch(b"a"), batch(b"b"))
    log.flush()
    manager.checkpoint()
    folder = manager.folders[0]
    folder.set_cleaned(ORDERS, 2)
    for change, offset in (
        (folder.set_cleaned, 1),
        (folder.lower_recovery_point, 1),
        (folder.raise_recovery_point, 9),
    ):
        disk.fail_next_sync(".tmp")
        with pytest.raises(OSError, match="Input/output"):
            change(ORDERS, offset)
        assert folder.cleaned == folder.load(CLEANED) == {ORDERS: 2}
        assert folder.recovery_points == folder.load(RECOVERY_POINTS) == {ORDERS: 2}


# Damage below the log start.


def test_damage_below_the_log_start_costs_nothing(disk: SimFiles) -> None:
    manager, _ = opened(disk)
    log = manager.create(ORDERS, TopicId("id"))
    for at in range(20):
        append(log, batch(b"v%d" % at, key=b"k%d" % at))
    log.roll()
    append(log, batch(b"w", key=b"w"))
    log.flush()
    log.advance_log_start(10, given_up(10))
    manager.checkpoint()
    size = log.segments[0].size // 20
    disk.flip_bits(log.segments[0].path, 3 * size + 200)
    expected = contents(log)
    assert len(expected) == 11
    assert compact(log, now_ms=NOW_MS) is not None
    assert contents(log) == expected
    manager.repair(ORDERS, refilled(manager, ORDERS), now_ms=NOW_MS)
    assert contents(manager.logs[ORDERS]) == expected


# Checks come before bytes are written.


def test_at_the_limit_the_oldest_epochs_go(
    bench: LogBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(LEADER_EPOCHS.__dict__, "lines_max", 3)
    log = bench.open()
    for epoch in range(5):
        append(log, batch(b"v"), epoch=epoch)
    log.append_as_follower(batch(b"f", base_offset=5, leader_epoch=5), now_ms=NOW_MS)
    assert [epoch for epoch, _ in log.epochs.entries] == [3, 4, 5]
    log.flush()
    assert len(values(bench.open())) == 6


def test_batches_too_far_apart_for_one_segment_get_several(bench: LogBench) -> None:
    log = bench.open()
    data, offset = b"", 0
    for _ in range(3):
        view = BatchView(batch(b"a", base_offset=offset, leader_epoch=0))
        header = view.header._replace(last_offset_delta=2**31 - 1)
        data += compacted_batch(header, view.record_batch(), pa.array([0], pa.int32()))
        offset = header.next_offset
    assert log.append_as_follower(data, now_ms=NOW_MS) == 3 * 2**31
    assert [each.base_offset for each in log.segments] == [0, 2**31, 2 * 2**31]
    assert [at for at, _ in contents(log)] == [0, 2**31, 2 * 2**31]


def test_nothing_is_cut_at_a_negative_offset(bench: LogBench) -> None:
    log = bench.open()
    append(log, batch(b"a"))
    with pytest.raises(OffsetOutOfRange):
        log.truncate_to(-1, DIVERGED, now_ms=NOW_MS)
    with pytest.raises(OffsetOutOfRange):
        log.start_over_at(-1, DIVERGED)
    assert values(log) == [b"a"]
    append(log, batch(b"b"))


def test_producers_that_come_together_are_counted(bench: LogBench) -> None:
    log = bench.open()
    log.producers = ProducerStates(producers_max=3)
    append(log, batch(b"first", producer=Producer(1)))
    data = b"".join(batch(b"x", producer=Producer(10 + at)) for at in range(4))
    results = append_result(log, data)
    assert [each.error is None for each in results] == [True, True, False, False]
    assert isinstance(results[2].error, LimitReached)
    assert append_result(log, batch(b"first", producer=Producer(1)))[0].duplicate


def test_clients_write_no_control_batches(bench: LogBench) -> None:
    log = bench.open()
    builder = BatchBuilder()
    builder.append(b"x", b"k", NOW_MS)
    with pytest.raises(CorruptBatch, match="only the broker"):
        log.append_as_leader(
            builder.build(control=True), leader_epoch=LeaderEpoch(0), now_ms=NOW_MS
        )
    assert log.log_end == 0


def test_a_batch_that_nobody_can_read_is_no_answer_to_a_time(bench: LogBench) -> None:
    log = bench.open()
    header = read_header(batch(b"a", timestamp_ms=1000))._replace(leader_epoch=0)
    rubbish = assemble(header._replace(max_timestamp_ms=2**62), bytes(header.body_bytes))
    # No leader takes it, but what one of an older release took is copied as it is.
    log.append_as_follower(rubbish, now_ms=NOW_MS)
    append(log, batch(b"x"))
    assert log.offset_for_time(NOW_MS) == TimedOffset(1, NOW_MS)


# Odd files.


def test_one_partition_that_cannot_be_opened_leaves_the_others_alone(disk: SimFiles) -> None:
    manager, _ = opened(disk)
    for partition in (ORDERS, BILLS):
        append(manager.create(partition, TopicId(str(partition))), batch(b"a"))
    disk.crash(power_loss=False)
    odd = f"/data/{ORDERS}/{segment_name(9, '.log')}"
    disk.make_folder(odd)
    manager, report = opened(disk)
    assert isinstance(report.damaged[ORDERS], StorageError)
    assert values(manager.logs[BILLS]) == [b"a"]
    disk.remove_folder(odd)
    manager.repair(ORDERS, refilled(manager, ORDERS), now_ms=NOW_MS)
    assert manager.damaged == {}
    assert values(manager.logs[ORDERS]) == [b"a"]


@pytest.mark.parametrize("name", ["5.snapshot", "².snapshot", "9" * 200 + ".snapshot"])
def test_only_files_with_the_name_of_a_snapshot_are_snapshots(
    bench: LogBench, disk: SimFiles, name: str
) -> None:
    bench.open()
    write(disk, bench.path(name), b"")
    assert snapshot_offsets(bench.storage, bench.folder) == []
    bench.open()


def test_a_marker_that_is_no_offset_stands_for_the_recovery_point(
    bench: LogBench, disk: SimFiles
) -> None:
    log = bench.open()
    append(log, batch(b"a"))
    log.flush()
    append(log, batch(b"b"))
    bench.checkpoint(log)
    write(disk, bench.path(SYNC_FAILED_FILE), b"9" * 5000)
    assert values(bench.open()) == [b"a"]


def test_opening_forgets_files_that_a_late_reader_brought_back(disk: SimFiles) -> None:
    """A compaction stopped half-way is finished by the opening: the old file must not be read."""
    manager, _ = opened(disk)
    log = manager.create(ORDERS, TopicId("id"))
    for at in range(6):
        append(log, batch(b"v%d" % at, key=b"k%d" % (at % 2)))
    log.roll()
    append(log, batch(b"w", key=b"z"))
    log.flush()
    disk.fail_next_folder_sync()
    with pytest.raises(StorageError):
        compact(log, now_ms=NOW_MS)
    log.abandon("it is opened anew")
    with manager.storage.cache.use(log.segments[0].path) as old:
        manager.logs.pop(ORDERS)
        manager.reopen(ORDERS, refilled(manager, ORDERS), now_ms=NOW_MS)
        assert old.size() != manager.logs[ORDERS].segments[0].size
    assert contents(manager.logs[ORDERS]) == [(4, b"v4"), (5, b"v5"), (6, b"w")]


def test_an_index_that_cannot_be_one_is_not_read(tmp_path: Path) -> None:
    bench = LogBench(OsFiles(), folder=str(tmp_path / "orders-0"))
    log = bench.open()
    append(log, batch(b"a"))
    for suffix in (".index", ".timeindex"):
        with (tmp_path / "orders-0" / segment_name(0, suffix)).open("wb") as file:
            file.truncate(1 << 20)
    assert log.segments[0].load_index() is None


def test_snapshots_of_earlier_closings_do_not_pile_up(bench: LogBench) -> None:
    producer = Producer(7)
    for _ in range(4):
        log = bench.open()
        append(log, batch(b"a", producer=producer))
        producer = producer.after(1)
        bench.close(log)
    assert snapshot_offsets(bench.storage, bench.folder) == [4]
