"""Dumps of single files, sound and damaged."""

from __future__ import annotations

from pathlib import Path

import pytest

from simulation import log_folders
from simulation.log_folders import (
    BATCHES,
    PARTITION,
    PRODUCER_ID,
    RECORDS,
    TIME_MS,
    batches_of,
    flip,
    segment_paths,
)
from tailrace.cli.dump import DumpOptions, NotOurs, dump_file, kind_of
from tailrace.cli.entries import (
    BatchEntry,
    ClosedEntry,
    DamageEntry,
    Entry,
    EpochStartEntry,
    FileEntry,
    IndexEntry,
    OffsetEntry,
    ProducedEntry,
    PropertyEntry,
    RecordEntry,
    TimeIndexEntry,
)
from tailrace.cli.sources import SourceFiles
from tailrace.log.flushing import encode_marker
from tailrace.record.build import BatchBuilder
from tailrace.record.codec import Compression, crc32c


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return log_folders.closed_folder(tmp_path_factory.mktemp("dump") / "data")


def _dump(path: Path, options: DumpOptions | None = None) -> list[Entry]:
    return list(dump_file(SourceFiles(), str(path), options or DumpOptions()))


def test_batches_of_a_segment(closed: Path) -> None:
    path = segment_paths(closed)[1]
    head, *rows = _dump(path)
    expected = batches_of(path)
    assert head == FileEntry(path=str(path), kind="segment", size_bytes=path.stat().st_size)
    assert len(rows) == len(expected)
    for row, (position, header) in zip(rows, expected, strict=True):
        assert isinstance(row, BatchEntry)
        assert (row.position, row.length) == (position, header.length)
        assert (row.base_offset, row.last_offset) == (header.base_offset, header.last_offset)
        assert row.producer_id == PRODUCER_ID
        assert row.crc == f"{header.crc:08x}"


def test_records_of_a_segment(closed: Path) -> None:
    path = segment_paths(closed)[1]
    first = batches_of(path)[0][1].base_offset
    options = DumpOptions(records=True, from_offset=first + 5, limit=20)
    _, *rows = _dump(path, options)
    assert [row.offset for row in rows if isinstance(row, RecordEntry)] == list(
        range(first + 5, first + 25)
    )
    assert rows[0] == RecordEntry(
        offset=first + 5,
        timestamp_ms=TIME_MS + first + 5,
        key=b"k%d" % ((first + 5) % 7),
        value=f"value {first + 5}".encode() * 8,
        headers=(),
    )


def test_limits_count_batches_without_records(closed: Path) -> None:
    path = segment_paths(closed)[1]
    _, *rows = _dump(path, DumpOptions(limit=2))
    assert [type(row) for row in rows] == [BatchEntry, BatchEntry]


def test_flags_and_compression(tmp_path: Path) -> None:
    builder = BatchBuilder(Compression.ZSTD)
    builder.append(b"x" * 1000, headers=[("a", b"b")])
    path = tmp_path / "renamed"
    path.write_bytes(builder.build(transactional=True, producer_id=1, producer_epoch=0))
    _, row = _dump(path)
    assert isinstance(row, BatchEntry)
    assert row.flags == ("transactional", "headers")
    assert row.compression == "zstd"
    _, record = _dump(path, DumpOptions(records=True))
    assert isinstance(record, RecordEntry)
    assert record.headers == (("a", b"b"),)


def test_a_dump_goes_on_behind_damage(closed: Path, tmp_path: Path) -> None:
    source = segment_paths(closed)[0]
    batches = batches_of(source)
    path = tmp_path / source.name
    path.write_bytes(source.read_bytes())
    flip(path, batches[2][0] + 200)
    rows = _dump(path)[1:]
    assert len(rows) == len(batches)
    damage = rows[2]
    assert damage == DamageEntry(
        path=str(path),
        position=batches[2][0],
        end=batches[3][0],
        reason="CRC does not match",
        base_offset=batches[2][1].base_offset,
    )
    records = _dump(path, DumpOptions(records=True))[1:]
    assert sum(isinstance(row, RecordEntry) for row in records) == len(batches) * 10 - 10


def test_a_body_that_does_not_decode_is_damage(closed: Path, tmp_path: Path) -> None:
    source = segment_paths(closed)[0]
    position, header = batches_of(source)[1]
    data = bytearray(source.read_bytes())
    data[position + 88 : position + 92] = bytes(4)
    crc = crc32c(bytes(data[position + 28 : position + header.length]))
    data[position + 24 : position + 28] = crc.to_bytes(4, "little")
    path = tmp_path / source.name
    path.write_bytes(data)
    assert not any(isinstance(row, DamageEntry) for row in _dump(path))
    (damage,) = [
        row for row in _dump(path, DumpOptions(records=True)) if isinstance(row, DamageEntry)
    ]
    assert damage.position == position


def test_zeros_are_called_zeros(closed: Path, tmp_path: Path) -> None:
    path = tmp_path / "00000000000000000000.log"
    path.write_bytes(segment_paths(closed)[0].read_bytes() + bytes(500))
    damage = _dump(path)[-1]
    assert isinstance(damage, DamageEntry)
    assert damage.reason == "nothing but zeros"


def test_indexes(closed: Path) -> None:
    segment = segment_paths(closed)[1]
    base = int(segment.stem)
    positions = {header.base_offset: position for position, header in batches_of(segment)}
    head, *rows = _dump(segment.with_suffix(".index"))
    assert isinstance(head, FileEntry)
    assert head.about == f"covers {segment.stat().st_size} bytes of its segment"
    for row in rows:
        assert isinstance(row, IndexEntry)
        assert positions[row.offset] == row.position
    assert rows[0] == IndexEntry(offset=base, position=0)
    _, *rows = _dump(segment.with_suffix(".timeindex"))
    assert rows
    for row in rows:
        assert isinstance(row, TimeIndexEntry)
        assert row.timestamp_ms == TIME_MS + row.offset
    some = _dump(segment.with_suffix(".index"), DumpOptions(from_offset=base + 1, limit=2))
    assert len(some) == 3


def test_snapshots(closed: Path) -> None:
    head, *rows = _dump(max((closed / str(PARTITION)).glob("*.snapshot")))
    assert isinstance(head, FileEntry)
    assert head.about == f"1 producer at offset {RECORDS}"
    assert len(rows) == 5
    last = rows[-1]
    assert isinstance(last, ProducedEntry)
    assert (last.producer_id, last.last_offset) == (PRODUCER_ID, RECORDS - 1)


def test_checkpoints(closed: Path) -> None:
    head, row = _dump(closed / "recovery-point-offset-checkpoint")
    assert isinstance(head, FileEntry)
    assert head.kind == "recovery-point-offset-checkpoint"
    assert row == OffsetEntry(topic="orders", partition=0, offset=RECORDS)
    _, *epochs = _dump(closed / str(PARTITION) / "leader-epoch-checkpoint")
    assert epochs == [
        EpochStartEntry(epoch=epoch, start_offset=epoch * RECORDS // 3) for epoch in range(3)
    ]
    _, topic = _dump(closed / str(PARTITION) / "partition.metadata")
    assert topic == PropertyEntry(name="topic_id", value="topic-id")
    _, *properties = _dump(closed / "meta.properties")
    assert properties[0] == PropertyEntry(name="cluster_id", value="cluster")
    assert len(properties) == 4
    _, boot, partition = _dump(closed / "clean-shutdown")
    assert isinstance(boot, PropertyEntry)
    assert isinstance(partition, ClosedEntry)
    assert partition.log_end == RECORDS == BATCHES * 10


def test_markers(closed: Path, tmp_path: Path) -> None:
    _, holder = _dump(closed / ".lock")
    assert isinstance(holder, PropertyEntry)
    assert holder.value.isdigit()
    path = tmp_path / "sync-failed"
    path.write_bytes(encode_marker(300))
    _, offset = _dump(path)
    assert offset == PropertyEntry(name="trusted below offset", value="300")
    path.write_bytes(encode_marker(300).replace(b"300", b"301"))
    _, offset = _dump(path)
    assert isinstance(offset, PropertyEntry)
    assert "the marker is damaged" in offset.value


@pytest.mark.parametrize(
    "name",
    [
        "00000000000000000000.index",
        "00000000000000000000.timeindex",
        "00000000000000000600.snapshot",
        "leader-epoch-checkpoint",
        "partition.metadata",
    ],
)
def test_a_damaged_small_file_is_shown_as_such(closed: Path, tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes((closed / str(PARTITION) / name).read_bytes())
    flip(path, 30)
    head, damage = _dump(path)
    assert isinstance(head, FileEntry)
    assert isinstance(damage, DamageEntry)
    assert (damage.position, damage.path) == (-1, str(path))
    path.write_bytes(b"")
    assert isinstance(_dump(path)[-1], DamageEntry)


def test_files_without_their_names_are_known_by_their_content(closed: Path, tmp_path: Path) -> None:
    folder = closed / str(PARTITION)
    for name, kind in {
        "00000000000000000000.log": "segment",
        "00000000000000000000.index": "index",
        "00000000000000000000.timeindex": "timeindex",
        "00000000000000000600.snapshot": "snapshot",
        "leader-epoch-checkpoint": "checkpoint",
    }.items():
        path = tmp_path / f"copy-of-{kind}"
        path.write_bytes((folder / name).read_bytes())
        assert kind_of(SourceFiles(), str(path)) == kind


@pytest.mark.parametrize(
    "name",
    ["00000000000000000000.log.tmp", f"{0:020d}.{9:020d}.swap", f"{0:020d}.{9:020d}.cleaned"],
)
def test_files_on_their_way_are_known_by_their_suffix(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"")
    assert kind_of(SourceFiles(), f"{tmp_path}/{name}") == "segment"


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "holiday.jpg"
    path.write_bytes(b"\xff\xd8\xff" * 100)
    with pytest.raises(NotOurs, match="no file of a Tailrace log"):
        _dump(path)
