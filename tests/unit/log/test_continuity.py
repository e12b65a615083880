"""A segment that is missing or short in the middle of a log is noticed, and nothing else is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pytest

from simulation.log_bench import NOW_MS, LogBench, append, batch, contents, numbered
from simulation.proofs import DIVERGED, given_up
from simulation.storage import SimFiles, SimulatedCrash
from tailrace.config import LogConfig
from tailrace.errors import DamagedLog
from tailrace.log.continuity import first_break, segments_crc
from tailrace.log.log import PartitionLog
from tailrace.log.segment import Segment, segment_name
from tailrace.log.swap import SwapRange, cleaned_path

BATCH_BYTES: Final = len(batch(b"v0"))
NEVER: Final = 10**9
HOUR_MS: Final = 3_600_000


def filled(bench: LogBench, count: int = 12) -> PartitionLog:
    """Segments of five batches each, all of them durable, and stored so."""
    log = bench.open()
    for at, value in zip(range(count), numbered(), strict=False):
        append(log, batch(value, timestamp_ms=NOW_MS + at), epoch=1)
    log.flush()
    bench.checkpoint(log)
    return log


def remove(bench: LogBench, disk: SimFiles, base: int, suffixes: tuple[str, ...]) -> None:
    names = [segment_name(base, suffix) for suffix in suffixes]
    for name in names:
        if name in bench.names():
            disk.remove(bench.path(name))


# The checksum in the clean-shutdown marker.


def test_the_checksum_tells_which_segments_there_are_and_how_long(small: LogBench) -> None:
    first, second, third = filled(small).segments
    whole = segments_crc([first, second, third])
    assert whole == segments_crc([first, second, third])
    others = [[first, third], [second, third], [first, second], []]
    second.size -= 1
    others.append([first, second, third])
    assert whole not in {segments_crc(each) for each in others}


def test_after_a_clean_shutdown_no_segment_is_read(small: LogBench, disk: SimFiles) -> None:
    log = filled(small, 40)
    small.close(log)
    for segment in log.segments[:-1]:
        for position in range(0, segment.size, BATCH_BYTES):
            disk.flip_bits(segment.path, position + 3)
    before = disk.bytes_read
    assert small.open().log_end == 40
    assert (small.report.clean, small.report.mended, small.report.scanned_bytes) == (True, [], 0)
    beside = [small.path("leader-epoch-checkpoint"), *map(small.path, small.names(".snapshot"))]
    assert disk.bytes_read - before <= sum(map(disk.size, beside))


# The ends of the segments.


def test_a_log_that_is_whole_has_no_break(small: LogBench) -> None:
    log = filled(small, 40)
    assert len(log.segments) > 3
    assert first_break(small.storage, log.segments) is None
    assert first_break(small.storage, log.segments[:1]) is None
    assert first_break(small.storage, []) is None


def test_only_what_follows_the_last_entry_of_an_index_is_read(
    disk: SimFiles, bench: LogBench
) -> None:
    log = filled(bench, 30)
    log.roll()
    first, *_ = log.segments
    disk.flip_bits(first.path, 3)
    before = disk.bytes_read
    assert first_break(bench.storage, log.segments) is None
    assert disk.bytes_read - before < 3 * BATCH_BYTES
    remove(bench, disk, 0, (".index",))
    assert first_break(bench.storage, log.segments) is first, "read from its start, it is damaged"


@pytest.mark.parametrize("index", ["gone", "empty", "short", "older", "of another", "wrong magic"])
def test_an_index_that_cannot_be_used_costs_time_only(
    bench: LogBench, disk: SimFiles, index: str
) -> None:
    log = filled(bench, 6)
    log.segments[0].save_index(final=True)
    older = disk.read(bench.path(segment_name(0, ".index")))
    for value in (b"a", b"b", b"c"):
        append(log, batch(value), epoch=1)
    log.roll()
    path = bench.path(segment_name(0, ".index"))
    newer = disk.read(path)
    other = bytearray(newer)
    other[-2] ^= 1
    data = {
        "empty": b"",
        "short": newer[:60],
        "older": older,
        "of another": bytes(other),
        "wrong magic": b"TRTX" + newer[4:],
    }
    disk.remove(path)
    if index in data:
        disk.open(path, create=True).write_at(0, [data[index]])
    assert first_break(bench.storage, log.segments) is None


@pytest.mark.parametrize("left", [0, 1, 3 * BATCH_BYTES, 5 * BATCH_BYTES - 1])
def test_a_segment_that_is_short_is_a_break(small: LogBench, disk: SimFiles, left: int) -> None:
    log = filled(small)
    _, second, _ = log.segments
    disk.cut(second.path, left)
    second.size = left
    assert first_break(small.storage, log.segments) is second


def test_a_segment_with_a_hole_that_its_index_does_not_know_is_a_break(
    small: LogBench, disk: SimFiles
) -> None:
    log = filled(small)
    _, second, _ = log.segments
    data = disk.read(second.path)
    disk.cut(second.path, 2 * BATCH_BYTES)
    second.size -= BATCH_BYTES
    disk.open(second.path).write_at(2 * BATCH_BYTES, [data[3 * BATCH_BYTES :]])
    assert first_break(small.storage, log.segments) is second


# Opening a log of which one is missing.


def no_marker(_: LogBench) -> None:
    """As after a crash."""


def marker(bench: LogBench) -> None:
    bench.close(bench.open())


def marker_of_an_earlier_release(bench: LogBench) -> None:
    marker(bench)
    assert bench.clean is not None
    bench.clean = bench.clean._replace(segments_crc=None)


@pytest.mark.parametrize("ending", [no_marker, marker, marker_of_an_earlier_release])
@pytest.mark.parametrize(
    "suffixes", [(".log",), (".log", ".index", ".timeindex", ".snapshot")], ids=["log", "all"]
)
def test_a_missing_middle_segment_is_damage_f43(
    small: LogBench,
    disk: SimFiles,
    ending: Callable[[LogBench], None],
    suffixes: tuple[str, ...],
) -> None:
    filled(small)
    ending(small)
    clean = small.clean
    remove(small, disk, 5, suffixes)
    for _ in range(2):
        small.clean = clean
        with pytest.raises(DamagedLog, match="offsets 5 to 10 are missing") as refused:
            small.open()
        assert (refused.value.offset, refused.value.recovery_point) == (5, 12)
    again = small.open(accept_loss=True)
    assert [at for at, _ in contents(again)] == [0, 1, 2, 3, 4]
    assert (again.log_end, small.offsets.recovery_point) == (5, 5)
    for value in (b"v5", b"v6"):
        append(again, batch(value), epoch=2)
    assert small.open().log_end == 7


@pytest.mark.parametrize("gone", range(1, 7))
def test_which_one_is_missing_does_not_matter(small: LogBench, disk: SimFiles, gone: int) -> None:
    base = filled(small, 40).segments[gone].base_offset
    remove(small, disk, base, (".log",))
    with pytest.raises(DamagedLog) as refused:
        small.open()
    assert refused.value.offset == base


def test_what_was_given_up_may_be_missing(small: LogBench, disk: SimFiles) -> None:
    filled(small)
    remove(small, disk, 5, (".log",))
    small.offsets.log_start = 10
    assert contents(small.open()) == [(10, b"v10"), (11, b"v11")]


def test_a_broken_index_and_rot_that_was_given_up_are_no_damage(
    small: LogBench, disk: SimFiles
) -> None:
    """The look from the start of a segment meets what was given up: the scan salvages the rest."""
    log = filled(small)
    disk.flip_bits(log.segments[0].path, 3)
    remove(small, disk, 0, (".index",))
    small.offsets.log_start = 3
    again = small.open()
    assert [at for at, _ in contents(again)] == list(range(3, 12))


# A crash in the middle of what makes and drops segments is no gap.


def rolled(log: PartitionLog, bench: LogBench) -> None:
    for value in (b"a", b"b", b"c", b"d", b"e", b"f", b"g"):
        append(log, batch(value), epoch=1)
    log.roll()
    log.flush()


def retention(log: PartitionLog, bench: LogBench) -> None:
    log.enforce_retention(now_ms=NOW_MS + 200 * HOUR_MS, high_watermark=log.log_end)


def log_start(log: PartitionLog, bench: LogBench) -> None:
    log.advance_log_start(11, given_up(11))


def truncation(log: PartitionLog, bench: LogBench) -> None:
    log.truncate_to(7, DIVERGED, now_ms=NOW_MS)


def starting_over(log: PartitionLog, bench: LogBench) -> None:
    log.start_over_at(3, DIVERGED)


def compaction(log: PartitionLog, bench: LogBench) -> None:
    files = bench.files
    first, second = log.segments[:2]
    swap = SwapRange(first.base_offset, second.next_offset)
    twin = Segment(
        bench.storage,
        bench.folder,
        swap.base,
        next_offset=swap.end,
        size=first.size + second.size,
        index_interval_bytes=0,
    )
    twin.path = cleaned_path(bench.folder, swap.base, 0)
    file = files.open(twin.path, create=True)
    file.write_at(0, [files.read(first.path), files.read(second.path)])
    file.sync()
    file.close()
    log.swap_segments(twin, swap)


@pytest.mark.parametrize("power_loss", [False, True], ids=["process", "power"])
@pytest.mark.parametrize(
    "work", [rolled, retention, log_start, truncation, starting_over, compaction]
)
def test_killed_anywhere_nothing_is_taken_for_a_gap(
    work: Callable[[PartitionLog, LogBench], None], power_loss: bool
) -> None:
    """And what is left of it does not show as one later, when the log has gone on."""
    is_done = False
    for operation in range(1, 80):
        for seed in range(4):
            is_done = killed(work, operation, seed, power_loss=power_loss)
    assert is_done, "the range of operations covers all of it"


def killed(
    work: Callable[[PartitionLog, LogBench], None], operation: int, seed: int, *, power_loss: bool
) -> bool:
    """Kill it at an operation, twice open what is left; whether it was over before that."""
    disk = SimFiles(seed)
    bench = LogBench(disk, LogConfig(segment_bytes=2048, index_interval_bytes=600))
    for folder in ("/data", "/"):
        disk.sync_folder(folder)
    log, is_done = filled(bench, 22), False
    disk.crash_at_operation(operation)
    try:
        work(log, bench)
        is_done = True
    except SimulatedCrash:
        pass
    disk.crash(power_loss=power_loss)
    again = bench.open()
    check_gapless(again)
    for value, _ in zip(numbered("new"), range(15), strict=False):
        append(again, batch(value), epoch=2)
    again.flush()
    bench.checkpoint(again)
    disk.crash(power_loss=power_loss)
    last = bench.open()
    check_gapless(last)
    assert not [each for each in bench.report.mended if "does not end where" in each]
    return is_done


def check_gapless(log: PartitionLog) -> None:
    assert [at for at, _ in contents(log)] == list(range(log.log_start, log.log_end))
