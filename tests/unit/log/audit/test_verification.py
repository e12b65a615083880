"""Damage in a data folder: is it found, and does opening do what was foretold?"""

from __future__ import annotations

import shutil
from pathlib import Path
from random import Random

import pytest

from simulation import log_folders
from simulation.foretold import (
    check_mends,
    check_sound,
    findings_of,
    only,
)
from simulation.log_folders import (
    FLUSHED,
    PARTITION,
    RECORDS,
    TIME_MS,
    flip,
    segment_paths,
)
from tailrace.cli.sources import SourceFiles
from tailrace.errors import CorruptCheckpoint
from tailrace.log.audit.findings import Action, Kind, Severity
from tailrace.log.audit.partition_check import PartitionVerdict
from tailrace.log.audit.verification import FolderVerdict, NoLogFolder, bytes_to_read, verify
from tailrace.log.checkpoints import (
    CLEAN_SHUTDOWN,
    CLEANED,
    HIGH_WATERMARKS,
    LOG_STARTS,
    META_PROPERTIES,
    RECOVERY_POINTS,
    CleanPartition,
    CleanShutdown,
    decode,
    encode,
)
from tailrace.model import Offset, TopicPartition

FOLDER = str(PARTITION)
FLIPS = 25


@pytest.fixture
def closed(tmp_path: Path) -> Path:
    return log_folders.closed_folder(tmp_path / "data")


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    return log_folders.killed_folder(tmp_path / "data")


def test_a_folder_that_was_closed_is_sound(closed: Path) -> None:
    folder, partition = verify(SourceFiles(), str(closed), now_ms=TIME_MS, deep=True)
    assert isinstance(folder, FolderVerdict)
    assert folder.is_clean
    assert folder.findings == ()
    assert isinstance(partition, PartitionVerdict)
    assert partition.findings == ()
    assert partition.batches == log_folders.BATCHES
    assert partition.records == RECORDS
    assert (partition.first_offset, partition.end_offset) == (0, RECORDS)
    assert partition.segments == len(segment_paths(closed)) > 3
    assert partition.opening == f"opens without a scan, offsets 0 to {RECORDS}"
    total = bytes_to_read(SourceFiles(), str(closed))
    assert partition.size_bytes == total
    told: list[int] = []
    list(verify(SourceFiles(), str(closed), now_ms=TIME_MS, progress=told.append))
    assert sum(told) == total


def test_one_partition_is_judged_by_the_checkpoints_above_it(killed: Path) -> None:
    (partition,) = verify(SourceFiles(), f"{killed}/{FOLDER}", now_ms=TIME_MS)
    assert isinstance(partition, PartitionVerdict)
    assert partition.recovery_point == FLUSHED
    assert partition.findings == ()


def test_a_folder_without_checkpoints_is_scanned_from_its_start(
    closed: Path, tmp_path: Path
) -> None:
    copy = shutil.copytree(closed / FOLDER, tmp_path / "elsewhere" / "copy")
    (partition,) = verify(SourceFiles(), str(copy), now_ms=TIME_MS)
    assert isinstance(partition, PartitionVerdict)
    assert partition.recovery_point == 0
    assert partition.opening.startswith(f"opens after a scan of {partition.size_bytes:,} bytes")


def test_a_killed_folder_gets_a_note(killed: Path) -> None:
    folder, *_ = verify(SourceFiles(), str(killed), now_ms=TIME_MS)
    (note,) = folder.findings
    assert (note.kind, note.severity) == (Kind.NOT_CLOSED, Severity.NOTE)
    check_mends(killed)
    check_sound(killed)


def test_another_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "holiday.jpg").write_bytes(b"")
    with pytest.raises(NoLogFolder, match="neither a data folder nor"):
        list(verify(SourceFiles(), str(tmp_path), now_ms=TIME_MS))


@pytest.mark.parametrize("kind", [RECOVERY_POINTS, LOG_STARTS, CLEAN_SHUTDOWN])
def test_corrupt_checkpoint(closed: Path, kind: object) -> None:
    name = getattr(kind, "file_name", "")
    flip(closed / name, 40)
    found = only(closed)
    assert (found.kind, found.path) == (Kind.CHECKPOINT_CORRUPT, str(closed / name))
    assert (found.severity, found.recovery.action) == (Severity.MENDS, Action.IGNORE)
    check_mends(closed)
    check_sound(closed)


@pytest.mark.parametrize("kind", [HIGH_WATERMARKS, CLEANED])
def test_corrupt_checkpoint_of_others(closed: Path, kind: object) -> None:
    (closed / getattr(kind, "file_name", "")).write_bytes(b"noise")
    found = only(closed)
    assert (found.kind, found.recovery.action) == (Kind.CHECKPOINT_CORRUPT, Action.IGNORE)
    check_mends(closed)


def test_corrupt_identity_keeps_the_broker_from_starting(closed: Path) -> None:
    flip(closed / META_PROPERTIES.file_name, 40)
    found = only(closed)
    assert (found.severity, found.recovery.action) == (Severity.DAMAGE, Action.REFUSE)
    with pytest.raises(CorruptCheckpoint):
        log_folders.reopen(closed)


@pytest.mark.parametrize("kind", [HIGH_WATERMARKS, CLEANED])
def test_offsets_that_the_log_does_not_reach(closed: Path, kind: object) -> None:
    stored = {PARTITION: Offset(RECORDS + 1)}
    assert kind in {HIGH_WATERMARKS, CLEANED}
    name = HIGH_WATERMARKS if kind is HIGH_WATERMARKS else CLEANED
    (closed / name.file_name).write_bytes(encode(name, stored))
    found = only(closed)
    severity = Severity.DAMAGE if kind is HIGH_WATERMARKS else Severity.NOTE
    assert (found.kind, found.severity) == (Kind.OFFSET_AHEAD, severity)


def test_clean_marker_of_a_partition_that_is_gone(closed: Path) -> None:
    path = closed / CLEAN_SHUTDOWN.file_name
    marker = decode(CLEAN_SHUTDOWN, path.read_bytes())
    gone = TopicPartition("gone", 3)
    entry = CleanPartition(Offset(0), Offset(0), Offset(0), 0)
    partitions = {**marker.partitions, gone: entry}
    path.write_bytes(encode(CLEAN_SHUTDOWN, CleanShutdown(marker.boot_id, partitions)))
    found = only(closed)
    assert (found.kind, found.recovery.action) == (Kind.CLEAN_MARKER_WRONG, Action.IGNORE)
    check_mends(closed)
    check_sound(closed)


def test_half_made_checkpoint(closed: Path) -> None:
    path = closed / f"{RECOVERY_POINTS.file_name}.tmp"
    path.write_bytes(b"half")
    found = only(closed)
    assert (found.kind, found.recovery.action) == (Kind.LEFTOVER, Action.REMOVE)
    check_mends(closed)
    assert not path.exists()


def test_unfinished_deletion(closed: Path) -> None:
    doomed = Path(shutil.copytree(closed / FOLDER, closed / f"{FOLDER}-delete"))
    found = only(closed)
    assert (found.kind, found.path) == (Kind.UNFINISHED_DELETE, str(doomed))
    assert (found.severity, found.recovery.action) == (Severity.MENDS, Action.REMOVE)
    check_mends(closed)
    assert not doomed.exists()


def test_files_that_nobody_knows(closed: Path) -> None:
    (closed / "notes.txt").write_text("backup on Friday")
    (closed / FOLDER / "core.1234").write_text("")
    (closed / FOLDER / f"{4711:020d}.index").write_text("")
    found = findings_of(closed)
    assert {each.kind for each in found} == {Kind.STRAY_FILE}
    assert {each.severity for each in found} == {Severity.NOTE}
    assert len(found) == 3


@pytest.mark.parametrize("is_closed", [True, False])
def test_every_flipped_bit_is_found(is_closed: bool, tmp_path: Path) -> None:
    """Any byte of any file, anywhere; and what is said about opening is what happens."""
    make = log_folders.closed_folder if is_closed else log_folders.killed_folder
    data = make(tmp_path / "data")
    rng = Random(f"{is_closed}")
    whole = {each: each.read_bytes() for each in data.rglob("*") if each.is_file()}
    paths = sorted(each for each in whole if each.name != ".lock")
    for _ in range(FLIPS):
        path = rng.choice(paths)
        position = rng.randrange(len(whole[path]))
        flip(path, position)
        found = findings_of(data)
        assert found, f"byte {position} of {path.name}"
        refused = any(each.recovery.action is Action.REFUSE for each in found)
        copy = Path(shutil.copytree(data, tmp_path / "copy"))
        try:
            manager, report = log_folders.reopen(copy)
        except CorruptCheckpoint:
            assert path.name == META_PROPERTIES.file_name
        else:
            assert bool(report.damaged) == refused, f"byte {position} of {path.name}"
            log_folders.abandon(manager)
        shutil.rmtree(copy)
        path.write_bytes(whole[path])


def test_partitions_without_the_identity_of_their_broker(closed: Path) -> None:
    path = closed / META_PROPERTIES.file_name
    path.unlink()
    found = only(closed)
    assert (found.kind, found.path) == (Kind.METADATA_MISSING, str(path))
    assert (found.severity, found.recovery.action) == (Severity.MENDS, Action.REBUILD)
    check_mends(closed)
    assert path.exists()


def test_what_a_broker_removes_meanwhile_is_no_error(closed: Path) -> None:
    """A partition that is deleted, and a segment that goes, between the listing and the look."""
    shutil.copytree(closed / FOLDER, closed / "bills-0")
    (closed / FOLDER / f"{RECORDS:020d}.log").symlink_to(closed / "gone")
    assert bytes_to_read(SourceFiles(), str(closed)) > 0
    verdicts = verify(SourceFiles(), str(closed), now_ms=TIME_MS, in_use=True)
    assert isinstance(next(verdicts), FolderVerdict)
    shutil.rmtree(closed / "bills-0")
    (left,) = verdicts
    assert isinstance(left, PartitionVerdict)
    assert left.name == FOLDER


def test_a_folder_in_the_place_of_a_checkpoint(closed: Path) -> None:
    path = closed / RECOVERY_POINTS.file_name
    path.unlink()
    path.mkdir()
    # It is not taken for a missing one: the broker does not start with it, and verify fails too.
    for look in (log_folders.reopen, findings_of):
        with pytest.raises(IsADirectoryError):
            look(closed)
