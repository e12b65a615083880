"""Opening a log: after a clean shutdown, after a crash, with damage, killed and opened again."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from simulation.log_bench import (
    NOW_MS,
    LogBench,
    Producer,
    append,
    batch,
    contents,
    numbered,
)
from simulation.proofs import given_up
from simulation.storage import SimFiles, SimulatedCrash
from tailrace.config import LogConfig
from tailrace.errors import DamagedLog
from tailrace.log.flushing import SYNC_FAILED_FILE, decode_marker, encode_marker
from tailrace.log.log import PartitionLog
from tailrace.log.segment import segment_name
from tailrace.log.swap import SwapRange, cleaned_path, swap_path

BATCH_BYTES = len(batch(b"v0", producer=Producer(1)))


def filled(bench: LogBench, count: int = 12, *, flushed: int | None = None) -> PartitionLog:
    """Batches of one record, an epoch for every three; durable, and stored so, below `flushed`."""
    log = bench.open()
    ann = Producer(1)
    for at, value in zip(range(count), numbered(), strict=False):
        if at == flushed:
            log.flush()
            bench.checkpoint(log)
        append(log, batch(value, timestamp_ms=NOW_MS + at, producer=ann), epoch=at // 3)
        ann = ann.after(1)
    if flushed is not None and flushed >= count:
        log.flush()
        bench.checkpoint(log)
    return log


def epochs_of(log: PartitionLog) -> list[tuple[int, int]]:
    return [(epoch, start) for epoch, start in log.epochs.entries]


def check_whole(log: PartitionLog, end: int) -> None:
    """The log is exactly the first `end` batches, in every respect."""
    assert contents(log) == [(at, b"v%d" % at) for at in range(log.log_start, end)]
    assert log.log_end == log.recovery_point == end
    assert epochs_of(log) == [(at // 3, at) for at in range(0, end, 3)]
    for at in range(end):
        found = log.offset_for_time(NOW_MS + at)
        assert found is not None
        assert found.offset == at
    assert log.offset_for_time(NOW_MS + end) is None
    sequences = [e.batches[-1].last_sequence for e in log.producers.entries() if e.batches]
    assert sequences == ([end - 1] if end else [])


def write(disk: SimFiles, path: str, data: bytes) -> None:
    file = disk.open(path, create=True)
    file.truncate(0)
    file.write_at(0, [data])
    file.close()


def test_an_empty_folder_is_an_empty_log(bench: LogBench) -> None:
    log = bench.open()
    assert (log.log_start, log.log_end, log.recovery_point) == (0, 0, 0)
    assert bench.names(".log") == [segment_name(0, ".log")]
    assert not bench.report.clean


def test_an_empty_log_starts_where_it_was_told_to(bench: LogBench) -> None:
    bench.offsets.log_start = 40
    log = bench.open()
    assert (log.log_start, log.log_end) == (40, 40)
    append(log, batch(b"a"))
    assert contents(log) == [(40, b"a")]


@pytest.mark.parametrize("flushed", [None, 0, 4, 5, 7, 12])
def test_a_crash_of_the_process_loses_nothing(small: LogBench, flushed: int | None) -> None:
    filled(small, flushed=flushed)
    check_whole(small.open(), 12)
    assert small.report.cut == []


def test_only_what_is_above_the_recovery_point_is_scanned(small: LogBench) -> None:
    log = filled(small, flushed=11)
    small.open()
    assert small.report.scanned_bytes == log.segments[-1].size
    small.open()
    assert small.offsets.recovery_point == 11
    log = filled(LogBench(small.files, small.config, "/other"), flushed=None)
    assert len(log.segments) == 3


def test_every_recovered_segment_is_progress_f40(small: LogBench, disk: SimFiles) -> None:
    log = filled(small)
    small.open()
    assert small.offsets.recovery_point == log.segments[-1].base_offset
    assert small.report.scanned_bytes == log.size_bytes
    again = small.open()
    assert small.report.scanned_bytes == log.segments[-1].size
    check_whole(again, 12)


# Torn tails.


@pytest.mark.parametrize("missing", [1, 8, BATCH_BYTES - 89, BATCH_BYTES - 8, BATCH_BYTES - 1])
def test_a_torn_batch_is_cut(small: LogBench, disk: SimFiles, missing: int) -> None:
    log = filled(small, flushed=10)
    active = log.segments[-1]
    disk.cut(active.path, active.size - missing)
    check_whole(small.open(), 11)
    assert len(small.report.cut) == 1
    assert disk.size(active.path) == active.size - BATCH_BYTES
    check_whole(small.open(), 11)
    assert small.report.cut == []


def test_zeros_at_the_end_are_cut(small: LogBench, disk: SimFiles) -> None:
    log = filled(small, flushed=10)
    active = log.segments[-1]
    disk.open(active.path).truncate(active.size + 10_000)
    check_whole(small.open(), 12)
    assert disk.size(active.path) == active.size


def test_a_cut_in_the_middle_takes_the_later_segments(small: LogBench, disk: SimFiles) -> None:
    log = filled(small, flushed=4)
    middle = log.segments[1]
    disk.flip_bits(middle.path, BATCH_BYTES + 100)
    again = small.open()
    check_whole(again, 6)
    assert [segment.base_offset for segment in again.segments] == [0, 5]
    assert any("it follows a cut" in line for line in small.report.cut)
    assert all(int(name.split(".")[0]) <= 6 for name in small.names(".snapshot"))


def test_a_missing_segment_is_a_cut(small: LogBench, disk: SimFiles) -> None:
    log = filled(small, flushed=4)
    disk.remove(log.segments[1].path)
    check_whole(small.open(), 5)
    assert any("offsets 5 to 10 are missing" in line for line in small.report.cut)


def test_a_batch_of_another_place_is_cut(bench: LogBench) -> None:
    log = filled(bench, 4)
    active = log.segments[-1]
    active.write([batch(b"stranger", base_offset=9, leader_epoch=9)])
    check_whole(bench.open(), 4)
    assert "offset 9 does not continue 4" in bench.report.cut[0]


def test_a_batch_of_an_older_leader_is_cut(bench: LogBench) -> None:
    log = filled(bench, 4)
    log.segments[-1].write([batch(b"stranger", base_offset=4, leader_epoch=0)])
    check_whole(bench.open(), 4)
    assert "epoch 0 follows 1" in bench.report.cut[0]


# Damage below the recovery point.


def damaged_in_the_active_segment(log: PartitionLog, disk: SimFiles) -> int:
    active = log.segments[-1]
    disk.flip_bits(active.path, BATCH_BYTES + 200)
    return active.base_offset + 1


def lost_the_tail(log: PartitionLog, disk: SimFiles) -> int:
    active = log.segments[-1]
    disk.cut(active.path, BATCH_BYTES)
    return active.base_offset + 1


def lost_the_last_segment(log: PartitionLog, disk: SimFiles) -> int:
    disk.remove(log.segments[-1].path)
    return log.segments[-1].base_offset


def lost_everything(log: PartitionLog, disk: SimFiles) -> int:
    for segment in log.segments:
        disk.remove(segment.path)
    return 0


@pytest.mark.parametrize(
    "damage",
    [damaged_in_the_active_segment, lost_the_tail, lost_the_last_segment, lost_everything],
)
def test_damage_to_durable_records_is_reported_then_repaired(
    small: LogBench, disk: SimFiles, damage: Callable[[PartitionLog, SimFiles], int]
) -> None:
    end = damage(filled(small, flushed=12), disk)
    for _ in range(2):
        with pytest.raises(DamagedLog, match="were durable and are damaged") as refused:
            small.open()
        assert (refused.value.offset, refused.value.recovery_point) == (end, 12)
    check_whole(small.open(accept_loss=True), end)
    assert any(f"offsets {end} to 12 were durable" in line for line in small.report.mended)
    assert small.offsets.recovery_point <= end, "otherwise the next opening finds damage again"
    check_whole(small.open(), end)


def test_a_repair_verifies_the_whole_log(small: LogBench, disk: SimFiles) -> None:
    """A reader found damage in a closed segment, which no opening would scan."""
    log = filled(small, flushed=12)
    disk.flip_bits(log.segments[0].path, 2 * BATCH_BYTES + 200)
    check_end = small.open().log_end
    assert check_end == 12
    check_whole(small.open(accept_loss=True), 2)


def test_a_repair_of_a_whole_log_loses_nothing(small: LogBench) -> None:
    log = filled(small, flushed=12)
    check_whole(small.open(accept_loss=True), 12)
    assert small.report.scanned_bytes == log.size_bytes
    assert (small.report.cut, small.report.mended) == ([], [])


def test_damage_that_the_producers_replay_meets_is_reported(
    small: LogBench, disk: SimFiles
) -> None:
    log = filled(small, flushed=12)
    for name in small.names(".snapshot"):
        disk.remove(small.path(name))
    disk.flip_bits(log.segments[0].path, BATCH_BYTES + 3)
    with pytest.raises(DamagedLog, match="CRC of the prefix"):
        small.open()
    check_whole(small.open(accept_loss=True), 1)


def test_damage_that_the_rebuilding_of_epochs_meets_is_reported(
    small: LogBench, disk: SimFiles
) -> None:
    log = filled(small, flushed=12)
    disk.remove(small.path("leader-epoch-checkpoint"))
    disk.flip_bits(log.segments[0].path, BATCH_BYTES + 3)
    with pytest.raises(DamagedLog) as refused:
        small.open()
    assert refused.value.offset == 1
    check_whole(small.open(accept_loss=True), 1)


def test_damage_below_the_log_start_is_nobodys_loss(bench: LogBench, disk: SimFiles) -> None:
    log = filled(bench, flushed=12)
    append(log, batch(b"tail"), epoch=9)
    log.advance_log_start(13, given_up(13))
    disk.cut(log.segments[-1].path, 5 * BATCH_BYTES)
    again = bench.open()
    assert (again.log_start, again.log_end) == (13, 13)
    append(again, batch(b"new"), epoch=10)
    assert contents(bench.open()) == [(13, b"new")]


# The clean marker.


def test_a_marker_that_fits_saves_the_scan(small: LogBench) -> None:
    log = filled(small)
    small.close(log)
    again = small.open()
    assert small.report.clean
    assert small.report.scanned_bytes == 0
    check_whole(again, 12)


@pytest.mark.parametrize("lost_offsets", [False, True])
def test_a_marker_that_does_not_fit_hides_no_damage(
    small: LogBench, disk: SimFiles, lost_offsets: bool
) -> None:
    log = filled(small)
    small.close(log)
    if lost_offsets:
        small.offsets.recovery_point = 0
    clean = small.clean
    disk.cut(log.segments[-1].path, BATCH_BYTES)
    with pytest.raises(DamagedLog):
        small.open()
    small.clean = clean
    check_whole(small.open(accept_loss=True), 11)


def test_a_marker_of_a_longer_file_is_not_believed(small: LogBench, disk: SimFiles) -> None:
    log = filled(small)
    small.close(log)
    active = log.segments[-1]
    disk.open(active.path).write_at(active.size, [b"garbage"])
    check_whole(small.open(), 12)
    assert not small.report.clean
    assert "does not fit" in small.report.mended[0]
    assert small.report.scanned_bytes == active.size + len(b"garbage")


def test_the_marker_knows_the_log_start_too(bench: LogBench) -> None:
    log = filled(bench)
    log.advance_log_start(5, given_up(5))
    bench.close(log)
    bench.offsets.log_start = 0
    assert bench.open().log_start == 5


def test_lost_index_and_snapshot_do_not_hurt_a_clean_log(small: LogBench, disk: SimFiles) -> None:
    """They are not synced at the end, the marker is."""
    log = filled(small)
    small.close(log)
    for name in [*small.names("index"), *small.names(".snapshot")]:
        disk.remove(small.path(name))
    again = small.open()
    assert small.report.clean
    check_whole(again, 12)
    append(again, batch(b"v12", timestamp_ms=NOW_MS, producer=Producer(1, sequence=12)), epoch=4)
    assert again.segments[-1].max_timestamp_ms == NOW_MS + 11


# Epochs.


@pytest.mark.parametrize("damage", ["missing", "flipped", "empty"])
@pytest.mark.parametrize("clean", [False, True])
def test_lost_epochs_are_read_from_the_batches(
    small: LogBench, disk: SimFiles, damage: str, clean: bool
) -> None:
    log = filled(small, flushed=7)
    if clean:
        small.close(log)
    path = small.path("leader-epoch-checkpoint")
    if damage == "missing":
        disk.remove(path)
    elif damage == "flipped":
        disk.flip_bits(path, 30)
    else:
        disk.cut(path, 0)
    check_whole(small.open(), 12)
    rebuilt = any("rebuilt leader epochs" in line for line in small.report.mended)
    assert rebuilt == (damage != "missing")


def test_epochs_above_the_end_are_forgotten(bench: LogBench, disk: SimFiles) -> None:
    log = filled(bench, flushed=4)
    disk.cut(log.segments[-1].path, 7 * BATCH_BYTES)
    check_whole(bench.open(), 7)


# A failed sync.


@pytest.mark.parametrize("damaged_marker", [False, True])
def test_nothing_after_a_failed_sync_is_trusted(
    small: LogBench, disk: SimFiles, damaged_marker: bool
) -> None:
    log = filled(small, flushed=11)
    disk.fail_next_sync(".log")
    with pytest.raises(Exception, match="sync failed"):
        log.flush()
    marker = small.path(SYNC_FAILED_FILE)
    assert disk.read(marker) == encode_marker(11)
    if damaged_marker:
        # One bit more would trust a record that was lost.
        write(disk, marker, disk.read(marker).replace(b"11", b"15", 1))
    check_whole(small.open(), 11)
    assert "a sync failed before it was durable" in small.report.cut[0]
    assert not disk.exists(marker)
    check_whole(small.open(), 11)


def test_a_failed_sync_outweighs_the_clean_marker(small: LogBench, disk: SimFiles) -> None:
    log = filled(small)
    small.close(log)
    write(disk, small.path(SYNC_FAILED_FILE), encode_marker(7))
    check_whole(small.open(), 7)
    assert small.offsets.recovery_point <= 7


def test_a_sync_that_fails_while_opening_is_not_forgotten(small: LogBench, disk: SimFiles) -> None:
    log = filled(small, flushed=4)
    disk.fail_next_sync(segment_name(5, ".log"))
    with pytest.raises(OSError, match="Input/output"):
        small.open()
    marker = disk.read(small.path(SYNC_FAILED_FILE))
    trusted = decode_marker(marker, otherwise=-1)
    assert 0 <= trusted <= log.segments[1].base_offset
    again = small.open()
    assert again.log_end == trusted
    check_whole(again, trusted)


# What a crash left half done.


def test_leftovers_are_removed(bench: LogBench, disk: SimFiles) -> None:
    filled(bench)
    swap = SwapRange(0, 5)
    write(disk, cleaned_path(bench.folder, swap.base, 0), b"half")
    write(disk, bench.path("leader-epoch-checkpoint.tmp"), b"half")
    check_whole(bench.open(), 12)
    assert sum("left by a crash" in line for line in bench.report.mended) == 2
    assert bench.names(".cleaned") == bench.names(".tmp") == []


def test_an_unfinished_swap_is_finished(small: LogBench, disk: SimFiles) -> None:
    log = filled(small, flushed=12)
    first, second = log.segments[:2]
    both = disk.read(first.path) + disk.read(second.path)
    swap = SwapRange(0, 10)
    write(disk, swap_path(small.folder, swap), both)
    disk.remove(second.path)
    again = small.open()
    assert [segment.base_offset for segment in again.segments] == [0, 10]
    assert "finished the compaction of 0 to 10" in small.report.mended
    check_whole(again, 12)


# Killed while it opens.


@pytest.mark.parametrize("power_loss", [False, True])
@pytest.mark.parametrize("operation", range(1, 40))
def test_killed_while_opening_it_opens_the_next_time(
    small: LogBench, disk: SimFiles, operation: int, power_loss: bool
) -> None:
    for folder in ("/data", "/"):
        disk.sync_folder(folder)
    log = filled(small, flushed=4)
    disk.flip_bits(log.segments[2].path, BATCH_BYTES + 200)
    disk.crash_at_operation(operation)
    try:
        again = small.open()
    except SimulatedCrash:
        disk.crash(power_loss=power_loss)
        again = small.open()
    end = again.log_end
    assert end == 11 if not power_loss else 4 <= end <= 11
    check_whole(again, end)


@pytest.mark.parametrize("operation", range(1, 30))
def test_killed_while_repairing_it_repairs_the_next_time(
    small: LogBench, disk: SimFiles, operation: int
) -> None:
    log = filled(small, flushed=12)
    disk.flip_bits(log.segments[1].path, BATCH_BYTES + 200)
    disk.crash_at_operation(operation)
    try:
        again = small.open(accept_loss=True)
    except SimulatedCrash:
        disk.crash(power_loss=False)
        again = small.open(accept_loss=True)
    check_whole(again, 6)


@pytest.mark.parametrize("seed", range(20))
def test_a_power_loss_keeps_what_was_flushed(seed: int) -> None:
    disk = SimFiles(seed)
    bench = LogBench(disk, LogConfig(segment_bytes=2048, index_interval_bytes=600))
    for folder in ("/data", "/"):
        disk.sync_folder(folder)
    filled(bench, flushed=7)
    disk.crash(power_loss=True)
    again = bench.open()
    assert 7 <= again.log_end <= 12
    check_whole(again, again.log_end)
