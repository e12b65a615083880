"""Overviews of folders."""

from __future__ import annotations

from pathlib import Path

import pytest

from simulation import log_folders
from simulation.log_folders import PARTITION, RECORDS, TIME_MS, batches_of, flip, segment_paths
from tailrace.cli.dump import DumpOptions, NotOurs
from tailrace.cli.entries import (
    BatchEntry,
    DamageEntry,
    Entry,
    FileEntry,
    InsideEntry,
    PartitionEntry,
    RecordEntry,
    SegmentEntry,
)
from tailrace.cli.overview import dump
from tailrace.cli.sources import SourceFiles


@pytest.fixture
def closed(tmp_path: Path) -> Path:
    return log_folders.closed_folder(tmp_path / "data")


def _dump(path: Path, options: DumpOptions | None = None) -> list[Entry]:
    return list(dump(SourceFiles(), str(path), options or DumpOptions()))


def test_a_data_folder(closed: Path) -> None:
    (closed / "notes").write_text("nothing of ours")
    head, *rows = _dump(closed)
    assert isinstance(head, FileEntry)
    assert (head.kind, head.about) == ("data", "1 partition")
    partition = rows[-1]
    assert isinstance(partition, PartitionEntry)
    assert partition.name == str(PARTITION)
    assert partition.segments == len(segment_paths(closed))
    assert partition.recovery_point == partition.log_end == RECORDS
    assert partition.high_watermark == -1
    assert partition.topic_id == "topic-id"
    files = {row.name: row for row in rows if isinstance(row, InsideEntry)}
    assert files["meta.properties"].about == "4 lines"
    assert files["notes"].kind == "?"


def test_the_folder_of_a_partition(closed: Path) -> None:
    head, *rows = _dump(closed / str(PARTITION))
    assert isinstance(head, FileEntry)
    assert head.kind == "partition"
    segments = [row for row in rows if isinstance(row, SegmentEntry)]
    assert sum(row.records for row in segments) == RECORDS
    assert segments[0].first_offset == 0
    assert segments[-1].next_offset == RECORDS
    assert segments[-1].max_timestamp_ms == TIME_MS + RECORDS - 1
    names = [row.name for row in rows if isinstance(row, SegmentEntry | InsideEntry)]
    assert sorted(names) == sorted(path.name for path in (closed / str(PARTITION)).iterdir())


def test_damage_shows_in_an_overview(closed: Path) -> None:
    segment = segment_paths(closed)[1]
    flip(segment, batches_of(segment)[2][0])
    flip(segment.with_suffix(".index"), 20)
    rows = _dump(closed / str(PARTITION))
    assert any(isinstance(row, DamageEntry) and row.path == str(segment) for row in rows)
    (index,) = [
        row
        for row in rows
        if isinstance(row, InsideEntry) and row.name == segment.with_suffix(".index").name
    ]
    assert index.about.startswith("damaged: ")


def test_records_of_a_whole_partition(closed: Path) -> None:
    rows = _dump(closed / str(PARTITION), DumpOptions(records=True))
    offsets = [row.offset for row in rows if isinstance(row, RecordEntry)]
    assert offsets == list(range(RECORDS))


def test_a_limit_is_for_the_whole_partition(closed: Path) -> None:
    first, second, *_ = segment_paths(closed)
    start = int(second.stem) - 15
    rows = _dump(closed / str(PARTITION), DumpOptions(records=True, from_offset=start, limit=20))
    offsets = [row.offset for row in rows if isinstance(row, RecordEntry)]
    assert offsets == list(range(start, start + 20))
    paths = [row.path for row in rows if isinstance(row, FileEntry)]
    assert paths == [str(first), str(second)]


def test_segments_below_the_offset_are_not_opened(closed: Path) -> None:
    last = segment_paths(closed)[-1]
    rows = _dump(closed / str(PARTITION), DumpOptions(from_offset=int(last.stem)))
    assert isinstance(rows[0], FileEntry)
    assert rows[0].path == str(last)
    assert all(isinstance(row, BatchEntry) for row in rows[1:])


def test_files_are_dumped_as_files(closed: Path) -> None:
    head, *_ = _dump(segment_paths(closed)[0])
    assert isinstance(head, FileEntry)
    assert head.kind == "segment"


def test_other_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(NotOurs, match="neither a data folder nor"):
        _dump(tmp_path)
