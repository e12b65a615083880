"""A log that was cut by an opening says so until it is told that nobody counts on it."""

from __future__ import annotations

import pytest

from simulation.log_bench import LogBench, append, batch, contents
from simulation.storage import SimFiles, SimulatedCrash
from tailrace.log.cuts import CUT_FILE, NOTE_BYTES_MAX, forget_cut, note_cut, noted_cut

FOLDER = "/data/t-0"
NEVER = 10**9


def test_a_note_is_there_until_it_is_forgotten_also_after_a_power_loss() -> None:
    files = SimFiles()
    files.make_folder(FOLDER)
    files.sync_folder("/data")
    files.sync_folder("/")
    assert noted_cut(files, FOLDER) == ""
    note_cut(files, FOLDER, "torn at byte 7")
    files.crash(power_loss=True)
    assert noted_cut(files, FOLDER) == "torn at byte 7"
    note_cut(files, FOLDER, "another cut")
    assert noted_cut(files, FOLDER) == "torn at byte 7"
    forget_cut(files, FOLDER)
    files.crash(power_loss=True)
    assert noted_cut(files, FOLDER) == ""
    forget_cut(files, FOLDER)


def test_a_note_that_cannot_be_read_is_a_note() -> None:
    files = SimFiles()
    files.make_folder(FOLDER)
    note_cut(files, FOLDER, "x" * 10 * NOTE_BYTES_MAX)
    assert noted_cut(files, FOLDER) == "x" * (NOTE_BYTES_MAX - 1)
    files.open(f"{FOLDER}/{CUT_FILE}").truncate(0)
    assert "an earlier opening" in noted_cut(files, FOLDER)
    files.open(f"{FOLDER}/{CUT_FILE}").write_at(0, [b"x" * 2 * NOTE_BYTES_MAX])
    assert "an earlier opening" in noted_cut(files, FOLDER)


def test_every_opening_tells_of_a_cut_until_it_is_forgotten(
    bench: LogBench, disk: SimFiles
) -> None:
    log = bench.open()
    append(log, batch(b"a"), batch(b"b"), epoch=1)
    assert bench.report.doubt == ""
    disk.cut(log.segments[-1].path, log.segments[-1].size - 1)
    again = bench.open()
    assert len(contents(again)) == 1
    assert bench.report.cut
    first = bench.report.doubt
    assert first
    # The log is whole now: only the note knows.
    third = bench.open()
    assert bench.report.cut == []
    assert bench.report.doubt == first
    forget_cut(disk, third.folder)
    bench.open()
    assert bench.report.doubt == ""


@pytest.mark.parametrize("power_loss", [False, True])
@pytest.mark.parametrize("operation", range(1, 25))
def test_a_crash_at_any_moment_of_the_opening_hides_no_cut(
    bench: LogBench, disk: SimFiles, operation: int, power_loss: bool
) -> None:
    for folder in ("/data", "/"):
        disk.sync_folder(folder)
    log = bench.open()
    append(log, batch(b"a"), batch(b"b"), epoch=1)
    log.flush()
    # Rot above the recovery point that was stored: it is cut.
    segment = log.segments[-1]
    disk.flip_bits(segment.path, segment.size - 1)
    disk.crash_at_operation(operation)
    try:
        bench.open()
    except SimulatedCrash:
        disk.crash(power_loss=power_loss)
    else:
        disk.crash_at_operation(NEVER)
        assert operation > 5, "the range of operations covers the whole opening"
    again = bench.open()
    assert bench.report.doubt
    assert len(contents(again)) == 1
