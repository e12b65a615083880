"""Damage in segments: is it found, and does opening do what was foretold?"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from simulation import log_folders
from simulation.foretold import (
    check_cut,
    check_mends,
    check_refused,
    check_sound,
    check_unnoticed,
    findings_of,
    of_kind,
    only,
)
from simulation.log_folders import (
    FLUSHED,
    PARTITION,
    RECORDS,
    batches_of,
    flip,
    resize,
    segment_paths,
)
from tailrace.log.audit.findings import Action, Kind, Severity
from tailrace.record.codec import crc32c
from tailrace.record.header import stamp

FOLDER = str(PARTITION)


@pytest.fixture
def closed(tmp_path: Path) -> Path:
    return log_folders.closed_folder(tmp_path / "data")


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    return log_folders.killed_folder(tmp_path / "data")


@pytest.mark.parametrize("left_bytes", [1, 40, 88, 100, 500])
def test_torn_tail(killed: Path, left_bytes: int) -> None:
    last = segment_paths(killed)[-1]
    position, header = batches_of(last)[-1]
    resize(last, position + left_bytes)
    found = only(killed)
    assert (found.kind, found.path, found.position) == (Kind.TORN_TAIL, str(last), position)
    assert found.recovery.at_byte == position
    assert "no whole batch is lost" in found.recovery.text
    check_cut(killed, found, log_end=header.base_offset)


def test_zeros_after_a_power_loss(killed: Path) -> None:
    last = segment_paths(killed)[-1]
    size = last.stat().st_size
    resize(last, size + 10_000)
    found = only(killed)
    assert (found.kind, found.position) == (Kind.TORN_TAIL, size)
    assert "zeros" in found.what
    check_cut(killed, found, log_end=RECORDS)


@pytest.mark.parametrize("at", [0, 8, 16, 20, 24, 30, 68, 200])
def test_corrupt_batch_above_the_recovery_point(killed: Path, at: int) -> None:
    segment = segment_paths(killed)[-1]
    position, header = batches_of(segment)[1]
    flip(segment, position + at)
    found = only(killed)
    assert (found.kind, found.position) == (Kind.CORRUPT_BATCH, position)
    assert found.recovery.at_byte == position
    assert found.recovery.last_lost == RECORDS - 1
    assert f"offsets {header.base_offset} to {header.last_offset}" in found.what
    check_cut(killed, found, log_end=header.base_offset)


def test_a_cut_takes_the_segments_behind_it(killed: Path) -> None:
    segment = segment_paths(killed)[-2]
    position, header = batches_of(segment)[-1]
    assert header.base_offset > FLUSHED
    flip(segment, position + 300)
    check_cut(killed, only(killed), log_end=header.base_offset)


def test_corrupt_batch_below_the_recovery_point_but_scanned(killed: Path) -> None:
    """The scan starts at an index entry below the recovery point: what it meets is refused."""
    for segment in segment_paths(killed):
        for position, header in batches_of(segment):
            if header.next_offset == FLUSHED:
                flip(segment, position + 300)
                found = only(killed)
                assert (found.kind, found.position) == (Kind.CORRUPT_BATCH, position)
                if found.recovery.action is Action.REFUSE:
                    check_refused(killed, found)
                else:
                    check_unnoticed(killed, Kind.CORRUPT_BATCH)
                return
    pytest.fail("no batch ends at the recovery point")


def test_corrupt_batch_in_a_closed_log(closed: Path) -> None:
    segment = segment_paths(closed)[0]
    position, _ = batches_of(segment)[3]
    flip(segment, position + 300)
    found = only(closed)
    assert (found.kind, found.severity) == (Kind.CORRUPT_BATCH, Severity.DAMAGE)
    assert "not noticed" in found.recovery.text
    check_unnoticed(closed, Kind.CORRUPT_BATCH)


def test_the_end_of_what_was_durable_is_missing(killed: Path) -> None:
    """The recovery point is above the end: the log is refused, not opened shorter."""
    for segment in segment_paths(killed):
        if batches_of(segment)[-1][1].next_offset > FLUSHED:
            resize(segment, batches_of(segment)[1][0])
            for later in segment_paths(killed):
                if later.name > segment.name:
                    later.unlink()
            break
    found = of_kind(killed, Kind.RECOVERY_POINT_AHEAD)
    assert str(FLUSHED) in found.what
    check_refused(killed, found)


def test_unreadable_body_is_found_when_looking_deep(killed: Path) -> None:
    segment = segment_paths(killed)[0]
    position, header = batches_of(segment)[1]
    data = bytearray(segment.read_bytes())
    _break_body(data, position, header.length)
    segment.write_bytes(data)
    assert findings_of(killed) == []
    found = only(killed, deep=True)
    assert (found.kind, found.position) == (Kind.UNREADABLE_BODY, position)
    assert found.recovery.action is Action.NOTHING
    assert found.severity is Severity.DAMAGE


def test_gap_between_batches(killed: Path) -> None:
    segment = segment_paths(killed)[-1]
    (gone, header), (after, _), *_ = batches_of(segment)[1:]
    data = segment.read_bytes()
    segment.write_bytes(data[:gone] + data[after:])
    found = only(killed)
    assert (found.kind, found.position) == (Kind.OFFSET_GAP, gone)
    assert found.what == f"offsets {header.base_offset} to {header.last_offset} are missing"
    check_cut(killed, found, log_end=header.base_offset)


def test_overlap_between_batches(killed: Path) -> None:
    segment = segment_paths(killed)[-1]
    (start, _), (end, header), *_ = batches_of(segment)[1:]
    data = segment.read_bytes()
    segment.write_bytes(data[:end] + data[start:end] + data[end:])
    found = findings_of(killed)[0]
    assert (found.kind, found.position) == (Kind.OFFSET_OVERLAP, end)
    check_cut(killed, found, log_end=header.base_offset)


def test_gap_between_segments(killed: Path) -> None:
    before, gone, _ = segment_paths(killed)[-3:]
    end = batches_of(before)[-1][1].next_offset
    assert end > FLUSHED
    for path in gone.parent.glob(f"{gone.stem}.*"):
        path.unlink()
    found = only(killed)
    assert (found.kind, found.path) == (Kind.OFFSET_GAP, str(before))
    check_cut(killed, found, log_end=end)


def test_overlap_between_segments(killed: Path) -> None:
    before, last = segment_paths(killed)[-2:]
    position, header = batches_of(before)[-2]
    twin = before.with_name(f"{header.base_offset:020d}.log")
    twin.write_bytes(before.read_bytes()[position:])
    found = next(each for each in findings_of(killed) if each.kind is Kind.OFFSET_OVERLAP)
    assert found.path == str(before)
    manager, report = log_folders.reopen(killed)
    assert report.damaged == {}
    log = manager.logs[PARTITION]
    assert (found.recovery.action, found.recovery.at_byte) == (
        Action.CUT,
        segment_paths(killed)[-1].stat().st_size,
    )
    assert [record.offset for record in log_folders.records_of(log)] == list(range(log.log_end))
    manager.close()
    assert not last.exists()
    check_sound(killed)


def test_gap_below_the_recovery_point_of_a_closed_log(closed: Path) -> None:
    segment = segment_paths(closed)[1]
    (gone, _), (after, _), *_ = batches_of(segment)[2:]
    data = segment.read_bytes()
    segment.write_bytes(data[:gone] + data[after:])
    check_refused(closed, of_kind(closed, Kind.OFFSET_GAP))


@pytest.mark.parametrize("suffix", [".log", ""], ids=["its data", "all its files"])
@pytest.mark.parametrize("make", [log_folders.closed_folder, log_folders.killed_folder])
def test_a_middle_segment_that_is_gone_is_named_f43(
    tmp_path: Path, make: Callable[[Path], Path], suffix: str
) -> None:
    folder = make(tmp_path / "data")
    gone = segment_paths(folder)[1]
    for path in gone.parent.glob(f"{gone.stem}.*"):
        if path.name.endswith(suffix):
            path.unlink()
    found = of_kind(folder, Kind.OFFSET_GAP)
    assert found.path == str(segment_paths(folder)[0])
    assert found.recovery.first_lost == int(gone.stem)
    check_refused(folder, found)


def test_falling_leader_epoch(killed: Path) -> None:
    segment = segment_paths(killed)[-1]
    position, header = batches_of(segment)[2]
    data = bytearray(segment.read_bytes())
    stamp(data, position, base_offset=header.base_offset, leader_epoch=0)
    segment.write_bytes(data)
    found = only(killed)
    assert (found.kind, found.position) == (Kind.EPOCH_FALLS, position)
    check_cut(killed, found, log_end=header.base_offset)


def test_misnamed_segment(killed: Path) -> None:
    last = segment_paths(killed)[-1]
    wrong = int(last.stem) + 1
    last.rename(last.with_name(f"{wrong:020d}.log"))
    kinds = {each.kind: each for each in findings_of(killed)}
    assert set(kinds) == {Kind.OFFSET_GAP, Kind.MISNAMED_SEGMENT}
    found = kinds[Kind.MISNAMED_SEGMENT]
    assert found.position == 0
    assert found.recovery.action is Action.CUT
    check_mends(killed, log_end=wrong - 1)
    check_sound(killed)


def test_a_file_of_noise_gives_few_findings(killed: Path) -> None:
    segment = segment_paths(killed)[1]
    data = bytearray(segment.read_bytes())
    for position, header in batches_of(segment)[1:]:
        data[position + header.length // 2] ^= 0xFF
    segment.write_bytes(data)
    found = [each for each in findings_of(killed) if each.kind is Kind.CORRUPT_BATCH]
    assert len(found) == 1


def _break_body(data: bytearray, position: int, length: int) -> None:
    """Damage the Arrow message and make the checksum match again."""
    data[position + 88 : position + 92] = b"\0\0\0\0"
    crc = crc32c(bytes(data[position + 28 : position + length]))
    data[position + 24 : position + 28] = crc.to_bytes(4, "little")
