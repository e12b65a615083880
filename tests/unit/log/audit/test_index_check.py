"""Damage in index files: is it found, and does opening do what was foretold?"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from simulation import log_folders
from simulation.foretold import (
    check_mends,
    check_sound,
    check_unnoticed,
    only,
)
from simulation.log_folders import (
    PARTITION,
    flip,
    segment_paths,
)
from tailrace.log.audit.findings import Action, Kind, Severity
from tailrace.log.index import SegmentIndex

FOLDER = str(PARTITION)


@pytest.fixture
def closed(tmp_path: Path) -> Path:
    return log_folders.closed_folder(tmp_path / "data")


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    return log_folders.killed_folder(tmp_path / "data")


@pytest.mark.parametrize(
    ("suffix", "kind"),
    [(".index", Kind.INDEX_MISSING), (".timeindex", Kind.TIME_INDEX_MISSING)],
)
def test_missing_index(closed: Path, suffix: str, kind: Kind) -> None:
    path = segment_paths(closed)[1].with_suffix(suffix)
    path.unlink()
    found = only(closed)
    assert (found.kind, found.path, found.severity) == (kind, str(path), Severity.MENDS)
    assert found.recovery.action is Action.REBUILD
    check_mends(closed)


@pytest.mark.parametrize(
    ("suffix", "kind"),
    [(".index", Kind.INDEX_CORRUPT), (".timeindex", Kind.TIME_INDEX_CORRUPT)],
)
@pytest.mark.parametrize("at", [0, 4, 8, 12, 20, 40])
def test_corrupt_index(closed: Path, suffix: str, kind: Kind, at: int) -> None:
    path = segment_paths(closed)[1].with_suffix(suffix)
    flip(path, at)
    found = only(closed)
    assert (found.kind, found.path, found.severity) == (kind, str(path), Severity.MENDS)
    assert found.recovery.action is Action.REBUILD
    check_mends(closed)


def test_index_that_points_between_batches(closed: Path) -> None:
    path = segment_paths(closed)[1].with_suffix(".index")

    def shift(index: SegmentIndex) -> None:
        index.positions[1] += 8

    _edit_index(path, shift)
    found = only(closed)
    assert (found.kind, found.severity) == (Kind.INDEX_WRONG, Severity.DAMAGE)
    assert "where no batch begins" in found.what
    check_unnoticed(closed, Kind.INDEX_WRONG)
    path.unlink()
    check_mends(closed)


def test_wrong_index_of_what_is_scanned_is_rebuilt(killed: Path) -> None:
    closed_segment = segment_paths(killed)[-2]
    path = closed_segment.with_suffix(".index")

    def shift(index: SegmentIndex) -> None:
        index.positions[-1] += 8

    _edit_index(path, shift)
    found = only(killed)
    assert (found.kind, found.severity) == (Kind.INDEX_WRONG, Severity.MENDS)
    assert found.recovery.action is Action.REBUILD
    check_mends(killed)
    check_sound(killed)


def test_index_entry_with_a_wrong_offset(closed: Path) -> None:
    path = segment_paths(closed)[1].with_suffix(".index")

    def shift(index: SegmentIndex) -> None:
        index.offsets[1] += 1

    _edit_index(path, shift)
    found = only(closed)
    assert found.kind is Kind.INDEX_WRONG
    check_unnoticed(closed, Kind.INDEX_WRONG)


def test_stale_index_points_beyond_the_end(closed: Path) -> None:
    segment = segment_paths(closed)[-1]

    def add(index: SegmentIndex) -> None:
        index.add(9_000, segment.stat().st_size + 800)

    _edit_index(segment.with_suffix(".index"), add)
    found = only(closed)
    assert (found.kind, found.severity) == (Kind.INDEX_STALE, Severity.MENDS)
    check_mends(closed)


@pytest.mark.parametrize(
    ("suffix", "kind"), [(".index", Kind.INDEX_STALE), (".timeindex", Kind.TIME_INDEX_STALE)]
)
def test_stale_index_that_ends_early(closed: Path, suffix: str, kind: Kind) -> None:
    path = segment_paths(closed)[1].with_suffix(suffix)

    def shorten(index: SegmentIndex) -> None:
        index.covered_bytes = index.positions[3]
        del index.offsets[3:], index.positions[3:]
        del index.timestamps[3:], index.time_offsets[3:]

    _edit_index(path, shorten)
    found = only(closed)
    assert (found.kind, found.path, found.severity) == (kind, str(path), Severity.MENDS)
    assert found.recovery.action is Action.REBUILD
    check_mends(closed)


def test_wrong_time_index(closed: Path) -> None:
    path = segment_paths(closed)[1].with_suffix(".timeindex")

    def age(index: SegmentIndex) -> None:
        index.timestamps[1] -= 5

    _edit_index(path, age)
    found = only(closed)
    assert (found.kind, found.severity) == (Kind.TIME_INDEX_WRONG, Severity.DAMAGE)
    check_unnoticed(closed, Kind.TIME_INDEX_WRONG)


def test_time_index_that_ends_early(closed: Path) -> None:
    path = segment_paths(closed)[1].with_suffix(".timeindex")

    def shorten(index: SegmentIndex) -> None:
        del index.timestamps[2:], index.time_offsets[2:]

    _edit_index(path, shorten)
    found = only(closed)
    assert (found.kind, found.severity) == (Kind.TIME_INDEX_WRONG, Severity.DAMAGE)
    assert "newest record" in found.what
    check_unnoticed(closed, Kind.TIME_INDEX_WRONG)


def _edit_index(path: Path, change: Callable[[SegmentIndex], None]) -> None:
    offset_path, time_path = path.with_suffix(".index"), path.with_suffix(".timeindex")
    index = SegmentIndex.decode(
        offset_path.read_bytes(), time_path.read_bytes(), segment_bytes=2**40
    )
    change(index)
    path.write_bytes(index.offset_bytes() if path == offset_path else index.time_bytes())
