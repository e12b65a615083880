"""Real segments, cut and flipped at every byte: what opens is exactly what is whole before.

The folders are real; only syncing is left out, since no power is lost here and thousands of logs
are opened.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import pytest

from simulation.log_bench import NOW_MS, Producer, append, append_result, batch, stored_bytes
from tailrace.config import FolderConfig, LogConfig
from tailrace.errors import DamagedLog
from tailrace.log.files import OsFile, OsFiles
from tailrace.log.log import PartitionLog
from tailrace.log.manager import Identity, LogManager, ManagerReport
from tailrace.log.segment import segment_name
from tailrace.model import BrokerId, TopicId, TopicPartition
from tailrace.record.codec import Compression

pytestmark = pytest.mark.integration

PARTITION = TopicPartition("t", 0)
BATCHES = 6
DURABLE = 2
"""Batches below the recovery point, where damage is to be found above it."""
MIDDLE = 3
COMPRESSIONS = pytest.mark.parametrize("compression", list(Compression), ids=lambda c: c.name)


class QuickFile(OsFile):
    __slots__ = ()

    def sync(self) -> None:
        """Only a power loss would tell."""


class QuickFiles(OsFiles):
    __slots__ = ()

    def open(self, path: str, *, create: bool = False) -> QuickFile:
        file = super().open(path, create=create)
        return QuickFile(file.fileno())

    def sync_folder(self, path: str) -> None:
        """Only a power loss would tell."""


def manager_of(root: Path) -> LogManager:
    return LogManager(
        QuickFiles(),
        FolderConfig(log_dirs=(str(root),), open_files_max=16),
        identity=Identity("cluster", BrokerId(1), "one"),
        log_config=lambda _: LogConfig(index_interval_bytes=512),
    )


def abandon(manager: LogManager) -> None:
    """The process is gone: nothing more is written, the lock is free."""
    manager.storage.cache.close()
    for folder in manager.folders:
        folder.release()


@dataclass(frozen=True, slots=True)
class Victim:
    """A data folder of a process that was killed, to be damaged as often as one likes."""

    root: Path
    files: dict[str, bytes]
    sent: list[bytes]
    """The batches as they were appended, and one more."""
    starts: list[int]
    """Where each batch starts in the segment, and where the last one ends."""

    @property
    def segment(self) -> Path:
        return self.root / str(PARTITION) / segment_name(0, ".log")

    def restore(self, segment: bytes) -> None:
        """Put everything back as it was, but for the bytes of the segment."""
        shutil.rmtree(self.root)
        (self.root / str(PARTITION)).mkdir(parents=True)
        for name, data in self.files.items():
            (self.root / name).write_bytes(data)
        self.segment.write_bytes(segment)

    def whole(self) -> bytes:
        return self.files[f"{PARTITION}/{segment_name(0, '.log')}"]

    def flips(self, which: int) -> Iterator[bytes]:
        """The segment with each byte of one batch flipped in turn, another bit each time."""
        for position in range(self.starts[which], self.starts[which + 1]):
            data = bytearray(self.whole())
            data[position] ^= 1 << position % 8
            yield bytes(data)

    def cuts(self, batches: int) -> Iterator[tuple[bytes, int]]:
        """The segment cut at each byte of its last batches, and how many batches are whole."""
        for size in range(self.starts[-1 - batches], self.starts[-1]):
            yield self.whole()[:size], sum(end <= size for end in self.starts[1:])


def victim(root: Path, compression: Compression, *, durable: int) -> Victim:
    manager = manager_of(root)
    manager.open(now_ms=NOW_MS)
    log = manager.create(PARTITION, TopicId("id"), now_ms=NOW_MS)
    sent = [sent_batch(at, compression) for at in range(BATCHES + 1)]
    for at in range(BATCHES):
        if at == durable:
            log.flush()
        append(log, sent[at], epoch=at // 2)
    if durable == BATCHES:
        log.flush()
    manager.checkpoint()
    abandon(manager)
    files = {
        str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()
    }
    return Victim(root, files, sent, [0, *accumulate(map(len, sent[:BATCHES]))])


def sent_batch(at: int, compression: Compression) -> bytes:
    value = b"%d" % at
    return batch(value, value, producer=Producer(7, sequence=2 * at), compression=compression)


def opened(root: Path) -> tuple[LogManager, ManagerReport]:
    manager = manager_of(root)
    return manager, manager.open(now_ms=NOW_MS)


def check_exactly(log: PartitionLog, count: int, killed: Victim) -> None:
    """The log is the first `count` batches, byte for byte, and goes on from there."""
    assert stored_bytes(log) == killed.whole()[: killed.starts[count]]
    assert (log.log_end, log.recovery_point) == (2 * count, 2 * count)
    assert log.epochs.entries == tuple((at // 2, 2 * at) for at in range(0, count, 2))
    (result,) = append_result(log, killed.sent[count], epoch=9)
    assert (result.error, result.duplicate, result.base_offset) == (None, False, 2 * count)


@COMPRESSIONS
def test_a_segment_cut_anywhere_keeps_the_whole_batches(
    tmp_path: Path, compression: Compression
) -> None:
    killed = victim(tmp_path / "data", compression, durable=DURABLE)
    for data, whole in killed.cuts(3):
        killed.restore(data)
        manager, report = opened(killed.root)
        assert report.damaged == {}
        check_exactly(manager.logs[PARTITION], whole, killed)
        abandon(manager)


@COMPRESSIONS
@pytest.mark.parametrize("which", [MIDDLE, BATCHES - 1], ids=["middle", "last"])
def test_a_flipped_byte_ends_the_log_before_its_batch(
    tmp_path: Path, compression: Compression, which: int
) -> None:
    killed = victim(tmp_path / "data", compression, durable=DURABLE)
    for data in killed.flips(which):
        killed.restore(data)
        manager, report = opened(killed.root)
        assert report.damaged == {}
        check_exactly(manager.logs[PARTITION], which, killed)
        abandon(manager)


@COMPRESSIONS
@pytest.mark.parametrize("which", [MIDDLE, BATCHES - 1], ids=["middle", "last"])
def test_a_flipped_byte_that_was_durable_is_reported_and_repaired(
    tmp_path: Path, compression: Compression, which: int
) -> None:
    killed = victim(tmp_path / "data", compression, durable=BATCHES)
    for data in killed.flips(which):
        killed.restore(data)
        manager, report = opened(killed.root)
        error = report.damaged[PARTITION]
        assert isinstance(error, DamagedLog)
        assert (error.offset, error.recovery_point) == (2 * which, 2 * BATCHES)
        assert PARTITION not in manager.logs, "never served"
        manager.repair(PARTITION, now_ms=NOW_MS)
        check_exactly(manager.logs[PARTITION], which, killed)
        abandon(manager)


def test_a_durable_segment_cut_anywhere_is_reported(tmp_path: Path) -> None:
    killed = victim(tmp_path / "data", Compression.LZ4, durable=BATCHES)
    for data, whole in killed.cuts(1):
        killed.restore(data)
        manager, report = opened(killed.root)
        assert isinstance(report.damaged[PARTITION], DamagedLog)
        manager.repair(PARTITION, now_ms=NOW_MS)
        check_exactly(manager.logs[PARTITION], whole, killed)
        abandon(manager)


def test_a_repaired_log_is_not_damaged_the_next_time(tmp_path: Path) -> None:
    killed = victim(tmp_path / "data", Compression.ZSTD, durable=BATCHES)
    data, whole = next(killed.cuts(2))
    killed.restore(data)
    manager, _ = opened(killed.root)
    manager.repair(PARTITION, now_ms=NOW_MS)
    abandon(manager)
    manager, report = opened(killed.root)
    assert report.damaged == {}
    check_exactly(manager.logs[PARTITION], whole, killed)
    manager.close()
