"""A rehearsal changes nothing, and what it says is what then happens."""

from __future__ import annotations

from pathlib import Path

import pytest

from simulation import log_folders
from simulation.log_folders import FLUSHED, PARTITION, RECORDS, TIME_MS, batches_of, segment_paths
from tailrace.cli.sources import SourceFiles
from tailrace.errors import CorruptCheckpoint, DamagedLog
from tailrace.log.audit.overlay import ChangeKind
from tailrace.log.audit.rehearsal import rehearse_folder, rehearsed_log
from tailrace.log.checkpoints import META_PROPERTIES


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    return log_folders.killed_folder(tmp_path / "data")


def _files(path: Path) -> dict[Path, bytes]:
    return {each: each.read_bytes() for each in path.rglob("*") if each.is_file()}


def test_a_torn_log_is_cut_in_memory_only(killed: Path) -> None:
    last = segment_paths(killed)[-1]
    position, header = batches_of(last)[-1]
    log_folders.resize(last, position + 100)
    before = _files(killed)
    with rehearsed_log(
        SourceFiles(),
        f"{killed}/{PARTITION}",
        PARTITION,
        recovery_point=FLUSHED,
        log_start=0,
        clean=None,
        now_ms=TIME_MS,
    ) as rehearsal:
        assert rehearsal.error is None
        assert rehearsal.refused_from is None
        assert rehearsal.log is not None
        assert rehearsal.log.log_end == header.base_offset
        change = rehearsal.changes[str(last)]
        assert (change.kind, change.size) == (ChangeKind.CUT, position)
    assert _files(killed) == before
    manager, _ = log_folders.reopen(killed)
    assert manager.logs[PARTITION].log_end == header.base_offset
    manager.close()
    assert last.stat().st_size == position


def test_a_refusal_comes_back_as_a_value(killed: Path) -> None:
    for segment in segment_paths(killed):
        log_folders.resize(segment, 100)
    with rehearsed_log(
        SourceFiles(),
        f"{killed}/{PARTITION}",
        PARTITION,
        recovery_point=FLUSHED,
        log_start=0,
        clean=None,
        now_ms=TIME_MS,
    ) as rehearsal:
        assert isinstance(rehearsal.error, DamagedLog)
        assert rehearsal.refused_from is not None
        assert rehearsal.log is None


def test_a_folder_says_what_its_checkpoints_say(tmp_path: Path) -> None:
    closed = log_folders.closed_folder(tmp_path / "data")
    before = _files(closed)
    rehearsal = rehearse_folder(SourceFiles(), str(closed))
    assert rehearsal.error is None
    assert rehearsal.recovery_points == {PARTITION: RECORDS}
    assert rehearsal.clean is not None
    assert rehearsal.clean[PARTITION].log_end == RECORDS
    assert _files(closed) == before


def test_a_folder_that_would_not_open_is_looked_at_all_the_same(killed: Path) -> None:
    log_folders.flip(killed / META_PROPERTIES.file_name, 40)
    rehearsal = rehearse_folder(SourceFiles(), str(killed))
    assert isinstance(rehearsal.error, CorruptCheckpoint)
    assert rehearsal.meta is None
    assert rehearsal.recovery_points == {PARTITION: FLUSHED}
