"""Real segments, cut and flipped at every byte: what opens is exactly what is whole before.

No power is lost here and thousands of logs are opened, so nothing is synced.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from tempfile import mkdtemp

import pytest

from simulation.log_bench import (
    NOW_MS,
    LogBench,
    Producer,
    append,
    append_result,
    batch,
    stored_bytes,
)
from simulation.proofs import refilled
from tailrace.config import FolderConfig, LogConfig
from tailrace.errors import DamagedLog
from tailrace.log.data_folder import Identity
from tailrace.log.files import OsFile, OsFiles
from tailrace.log.log import PartitionLog
from tailrace.log.manager import LogManager
from tailrace.log.report import ManagerReport
from tailrace.log.segment import segment_name
from tailrace.model import BrokerId, TopicId, TopicPartition
from tailrace.record.codec import Compression

pytestmark = pytest.mark.integration

SEGMENT = segment_name(0, ".log")
BATCHES = 6
DURABLE = 2
"""Batches below the recovery point, where damage is to be found above it."""
MIDDLE = 3
COMPRESSIONS = pytest.mark.parametrize("compression", list(Compression), ids=lambda c: c.name)


@pytest.fixture
def folder(memory_folder: Path) -> Path:
    return Path(mkdtemp(dir=memory_folder))


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


@dataclass(frozen=True, slots=True)
class Victim:
    """The log of a process that was killed, to be damaged as often as one likes."""

    bench: LogBench
    files: dict[str, bytes]
    """What was in its folder, but for the segment."""
    segment: bytes
    sent: list[bytes]
    """The batches as they were appended, and one more."""
    starts: list[int]
    """Where each batch starts in the segment, and where the last one ends."""
    durable: int

    def open(self, segment: bytes, *, accept_loss: bool = False) -> PartitionLog:
        """Put everything back as it was, but for the bytes of the segment, and open the log."""
        folder = Path(self.bench.folder)
        for path in folder.iterdir():
            if path.name not in self.files:
                path.unlink()
        for name, data in self.files.items():
            (folder / name).write_bytes(data)
        (folder / SEGMENT).write_bytes(segment)
        self.bench.offsets.recovery_point = 2 * self.durable
        return self.bench.open(accept_loss=accept_loss)

    def flips(self, which: int) -> Iterator[bytes]:
        """The segment with each byte of one batch flipped in turn, another bit each time."""
        for position in range(self.starts[which], self.starts[which + 1]):
            data = bytearray(self.segment)
            data[position] ^= 1 << position % 8
            yield bytes(data)

    def cuts(self, batches: int) -> Iterator[tuple[bytes, int]]:
        """The segment cut at each byte of its last batches, and how many batches are whole."""
        for size in range(self.starts[-1 - batches], self.starts[-1]):
            yield self.segment[:size], sum(end <= size for end in self.starts[1:])

    def check_exactly(self, log: PartitionLog, count: int) -> None:
        """The log is the first `count` batches, byte for byte, and goes on from there."""
        assert stored_bytes(log) == self.segment[: self.starts[count]]
        assert (log.log_end, log.recovery_point) == (2 * count, 2 * count)
        assert log.epochs.entries == tuple((at // 2, 2 * at) for at in range(0, count, 2))
        (result,) = append_result(log, self.sent[count], epoch=9)
        assert (result.error, result.duplicate, result.base_offset) == (None, False, 2 * count)


def victim(root: Path, compression: Compression, *, durable: int) -> Victim:
    bench = LogBench(QuickFiles(), LogConfig(index_interval_bytes=512), folder=str(root / "t-0"))
    log = bench.open()
    sent = [sent_batch(at, compression) for at in range(BATCHES + 1)]
    fill(log, sent[:BATCHES], durable=durable)
    files = {path.name: path.read_bytes() for path in Path(bench.folder).iterdir()}
    starts = [0, *accumulate(map(len, sent[:BATCHES]))]
    return Victim(bench, files, files.pop(SEGMENT), sent, starts, durable)


def sent_batch(at: int, compression: Compression) -> bytes:
    value = b"%d" % at
    return batch(value, value, producer=Producer(7, sequence=2 * at), compression=compression)


def fill(log: PartitionLog, sent: Sequence[bytes], *, durable: int) -> None:
    for at, data in enumerate(sent):
        if at == durable:
            log.flush()
        append(log, data, epoch=at // 2)
    if durable == len(sent):
        log.flush()


@COMPRESSIONS
def test_a_segment_cut_anywhere_keeps_the_whole_batches(
    folder: Path, compression: Compression
) -> None:
    killed = victim(folder, compression, durable=DURABLE)
    for data, whole in killed.cuts(3):
        killed.check_exactly(killed.open(data), whole)


@COMPRESSIONS
@pytest.mark.parametrize("which", [MIDDLE, BATCHES - 1], ids=["middle", "last"])
def test_a_flipped_byte_ends_the_log_before_its_batch(
    folder: Path, compression: Compression, which: int
) -> None:
    killed = victim(folder, compression, durable=DURABLE)
    for data in killed.flips(which):
        killed.check_exactly(killed.open(data), which)


@COMPRESSIONS
@pytest.mark.parametrize("which", [MIDDLE, BATCHES - 1], ids=["middle", "last"])
def test_a_flipped_byte_that_was_durable_is_reported_and_repaired(
    folder: Path, compression: Compression, which: int
) -> None:
    killed = victim(folder, compression, durable=BATCHES)
    for data in killed.flips(which):
        with pytest.raises(DamagedLog) as refused:
            killed.open(data)
        assert (refused.value.offset, refused.value.recovery_point) == (2 * which, 2 * BATCHES)
        killed.check_exactly(killed.open(data, accept_loss=True), which)


def test_a_durable_segment_cut_anywhere_is_reported(folder: Path) -> None:
    killed = victim(folder, Compression.LZ4, durable=BATCHES)
    for data, whole in killed.cuts(1):
        with pytest.raises(DamagedLog):
            killed.open(data)
        killed.check_exactly(killed.open(data, accept_loss=True), whole)


def test_a_damaged_partition_is_repaired_by_its_folder(tmp_path: Path) -> None:
    """Never served as it is, opened with what is whole when asked to, then damaged no more."""
    sent = [sent_batch(at, Compression.ZSTD) for at in range(BATCHES)]
    partition = TopicPartition("t", 0)

    def opened() -> tuple[LogManager, ManagerReport]:
        manager = LogManager(
            OsFiles(),
            FolderConfig(log_dirs=(str(tmp_path),), open_files_max=16),
            identity=Identity("cluster", BrokerId(1), "one"),
        )
        return manager, manager.open(now_ms=NOW_MS)

    manager, _ = opened()
    fill(manager.create(partition, TopicId("id")), sent, durable=BATCHES)
    manager.close()
    segment = tmp_path / str(partition) / SEGMENT
    segment.write_bytes(segment.read_bytes()[: -len(sent[-1]) - 1])
    manager, report = opened()
    assert isinstance(report.damaged[partition], DamagedLog)
    assert partition not in manager.logs
    manager.repair(partition, refilled(manager, partition), now_ms=NOW_MS)
    assert manager.logs[partition].log_end == 2 * (BATCHES - 2)
    manager.close()
    manager, report = opened()
    assert (report.clean, report.damaged) == (True, {})
    assert manager.logs[partition].log_end == 2 * (BATCHES - 2)
    manager.close()
