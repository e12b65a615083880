"""Real data folders with a log of known content in them, to be damaged on purpose.

A folder holds partition `orders-0`: small segments, three leader epochs, one idempotent producer.
Record n has key `k<n mod 7>`, value `value <n>` and timestamp `TIME_MS + n`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tailrace.config import FolderConfig, LogConfig
from tailrace.log.data_folder import Identity
from tailrace.log.files import OsFiles
from tailrace.log.log import PartitionLog
from tailrace.log.manager import LogManager
from tailrace.log.report import ManagerReport
from tailrace.model import BrokerId, LeaderEpoch, TopicId, TopicPartition
from tailrace.record.build import BatchBuilder
from tailrace.record.codec import Compression
from tailrace.record.header import BatchHeader, split
from tailrace.record.view import BatchView, Record

PARTITION: Final = TopicPartition("orders", 0)
TIME_MS: Final = 1_700_000_000_000
BATCHES: Final = 60
RECORDS_PER_BATCH: Final = 10
RECORDS: Final = BATCHES * RECORDS_PER_BATCH
FLUSHED: Final = RECORDS // 2
"""Up to where `killed_folder` was flushed."""
PRODUCER_ID: Final = 77
LOG_CONFIG: Final = LogConfig(segment_bytes=16 * 1024, index_interval_bytes=1024)


def manager_of(path: Path, config: LogConfig = LOG_CONFIG) -> LogManager:
    return LogManager(
        OsFiles(),
        FolderConfig(log_dirs=(str(path),)),
        identity=Identity("cluster", BrokerId(1), "incarnation"),
        log_config=lambda _: config,
    )


def batch(first: int, count: int = RECORDS_PER_BATCH, *, compress: bool = False) -> bytes:
    """Records `first` to `first + count - 1`, as their producer sends them."""
    builder = BatchBuilder(Compression.ZSTD if compress else Compression.NONE)
    for n in range(first, first + count):
        builder.append(f"value {n}".encode() * 8, key=b"k%d" % (n % 7), timestamp_ms=TIME_MS + n)
    return builder.build(producer_id=PRODUCER_ID, producer_epoch=0, base_sequence=first)


def fill(
    log: PartitionLog,
    batches: int = BATCHES,
    *,
    flush_after: int | None = None,
    epoch: int | None = None,
) -> None:
    """Append batches, in three epochs unless one is given; flush once, after so many of them."""
    for n in range(batches):
        first = log.log_end
        (result,) = log.append_as_leader(
            batch(first),
            leader_epoch=LeaderEpoch(n * 3 // batches if epoch is None else epoch),
            now_ms=TIME_MS + first,
        )
        assert result.error is None
        if n + 1 == flush_after:
            log.flush()


def closed_folder(path: Path) -> Path:
    """A folder that was closed in order."""
    manager = manager_of(path)
    manager.open(now_ms=TIME_MS)
    fill(manager.create(PARTITION, TopicId("topic-id")))
    manager.close()
    return path


def killed_folder(path: Path, *, flush_after: int = BATCHES // 2) -> Path:
    """A folder whose process was killed: half of it was flushed, and the checkpoint says so."""
    manager = manager_of(path)
    manager.open(now_ms=TIME_MS)
    fill(manager.create(PARTITION, TopicId("topic-id")), flush_after=flush_after)
    manager.checkpoint()
    abandon(manager)
    return path


def abandon(manager: LogManager) -> None:
    """Let go of a folder as a killed process does."""
    manager.storage.cache.close()
    for folder in manager.folders:
        folder.release()


def reopen(path: Path) -> tuple[LogManager, ManagerReport]:
    manager = manager_of(path)
    return manager, manager.open(now_ms=TIME_MS + 10_000_000)


def segment_paths(path: Path) -> list[Path]:
    return sorted((path / str(PARTITION)).glob("*.log"))


def batches_of(segment: Path) -> list[tuple[int, BatchHeader]]:
    """Position and header of every batch of a sound segment."""
    return list(split(segment.read_bytes()))


def flip(path: Path, position: int) -> None:
    """Turn over one bit."""
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


def resize(path: Path, size: int) -> None:
    """Cut a file, or lengthen it with zeros."""
    with path.open("r+b") as file:
        file.truncate(size)


def records_of(log: PartitionLog) -> list[Record]:
    found: list[Record] = []
    offset = log.log_start
    while data := log.read(offset, bytes_max=1 << 20):
        for position, header in split(data):
            found += BatchView(data, position).records()
            offset = header.next_offset
    return found
