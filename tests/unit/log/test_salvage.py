"""Damage below the log start: what lies behind it is found again, and nothing else is."""

from __future__ import annotations

import pytest

from simulation.log_bench import LogBench, append, batch, contents
from simulation.proofs import given_up
from simulation.storage import SimFiles, SimulatedCrash
from tailrace.errors import DamagedLog
from tailrace.log.log import PartitionLog
from tailrace.log.salvage import FoundBatch, find_batch
from tailrace.log.segment import Segment, segment_name

COUNT = 12


def filled(bench: LogBench, *, log_start: int, flushed: bool = True) -> PartitionLog:
    """One segment of batches of one record, of which those below `log_start` were given up."""
    log = bench.open()
    for at in range(COUNT):
        append(log, batch(b"value %d" % at))
    if flushed:
        log.flush()
    log.advance_log_start(log_start, given_up(log_start))
    bench.checkpoint(log)
    return log


def damaged(disk: SimFiles, log: PartitionLog, offset: int) -> Segment:
    """Break the header of the batch at an offset, and lose the index."""
    segment = log.segments[0]
    disk.flip_bits(segment.path, segment.position_of(offset))
    segment.remove_index_files()
    return segment


def given_up_to(segment: Segment, offset: int) -> Segment:
    """The segment as recovery knows it when it comes to damage at this offset."""
    position = segment.position_of(offset)
    segment.size, segment.next_offset = position, offset
    return segment


@pytest.mark.parametrize("log_start", range(4, COUNT + 1))
def test_the_batch_behind_the_damage_is_found(
    bench: LogBench, disk: SimFiles, log_start: int
) -> None:
    log = filled(bench, log_start=0)
    size, after = log.segments[0].size, log.segments[0].position_of(4)
    segment = given_up_to(damaged(disk, log, 3), 3)
    assert find_batch(segment, size, up_to=log_start) == FoundBatch(after, 4)


def test_nothing_that_matters_is_passed_over(bench: LogBench, disk: SimFiles) -> None:
    log = filled(bench, log_start=0)
    size = log.segments[0].size
    segment = damaged(disk, log, 3)
    disk.flip_bits(segment.path, segment.position_of(0) + log.segments[0].size // COUNT * 6 + 100)
    segment = given_up_to(segment, 3)
    assert find_batch(segment, size, up_to=3) is None, "the damage holds the offset itself"
    assert find_batch(segment, size, up_to=8) == FoundBatch(size // COUNT * 7, 7)
    assert find_batch(segment, size, up_to=6) is None, "what follows 4 and 5 is damaged too"


def test_a_batch_within_a_record_is_none(bench: LogBench, disk: SimFiles) -> None:
    log = bench.open()
    stored = batch(b"inner", base_offset=3)
    append(log, *[batch(b"x" * 8 * at + stored) for at in range(6)])
    size = log.segments[0].size
    after = log.segments[0].position_of(2)
    segment = given_up_to(damaged(disk, log, 1), 1)
    assert find_batch(segment, size, up_to=5) == FoundBatch(after, 2)


@pytest.mark.parametrize("accept_loss", [False, True])
@pytest.mark.parametrize("flushed", [False, True])
@pytest.mark.parametrize("log_start", [5, 9])
def test_what_is_above_the_log_start_is_kept(
    bench: LogBench, disk: SimFiles, log_start: int, flushed: bool, accept_loss: bool
) -> None:
    log = filled(bench, log_start=log_start, flushed=flushed)
    wanted = contents(log)
    damaged(disk, log, 3)
    if flushed and not accept_loss:
        bench.offsets.recovery_point = COUNT - 1
    again = bench.open(accept_loss=accept_loss)
    assert contents(again) == wanted
    assert (again.log_start, again.log_end) == (log_start, COUNT)
    assert bench.names(".log") == [segment_name(4, ".log")]
    assert bench.report.cut == []
    assert "below the log start" in bench.report.mended[-1]
    append(again, batch(b"more"))
    assert contents(bench.open()) == [*wanted, (COUNT, b"more")]


def test_damage_at_the_log_start_is_damage(bench: LogBench, disk: SimFiles) -> None:
    log = filled(bench, log_start=5)
    damaged(disk, log, 5)
    with pytest.raises(DamagedLog):
        bench.open()
    assert bench.open(accept_loss=True).log_end == 5


@pytest.mark.parametrize("power_loss", [False, True])
@pytest.mark.parametrize("operation", range(1, 24))
def test_killed_anywhere_it_comes_to_the_same(
    bench: LogBench, disk: SimFiles, operation: int, power_loss: bool
) -> None:
    log = filled(bench, log_start=6)
    wanted = contents(log)
    damaged(disk, log, 2)
    for folder in (log.folder, "/data", "/"):
        disk.sync_folder(folder)
    disk.crash_at_operation(operation)
    try:
        bench.open(accept_loss=True)
    except SimulatedCrash:
        disk.crash(power_loss=power_loss)
    # Far enough away that it does not happen.
    disk.crash_at_operation(10_000)
    assert contents(bench.open(accept_loss=True)) == wanted
