"""One partition log on any Files: made, filled, closed, killed and opened again, in a line each.

`LogBench` plays the data folder around the log: it keeps the two durable offsets and the marker of
a clean shutdown. Batches are made with `batch`; `contents` gives back what a log holds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count

from tailrace.config import LogConfig
from tailrace.log.admission import BatchResult
from tailrace.log.checkpoints import CleanPartition
from tailrace.log.continuity import segments_crc
from tailrace.log.file_cache import FileCache
from tailrace.log.files import Files
from tailrace.log.log import PartitionLog
from tailrace.log.recovery import OpenReport, open_log
from tailrace.log.segment import IndexCache, Storage
from tailrace.model import LeaderEpoch, LogStartCause, Offset, TopicPartition
from tailrace.record.build import BatchBuilder
from tailrace.record.codec import Compression
from tailrace.record.header import split
from tailrace.record.view import BatchView

NOW_MS = 1_700_000_000_000
PARTITION = TopicPartition("orders", 0)
FOLDER = f"/data/{PARTITION}"
READ_BYTES_MAX = 1 << 30


@dataclass(frozen=True, slots=True)
class Producer:
    """Where an idempotent producer stands: what its next batch says of it."""

    producer_id: int
    epoch: int = 0
    sequence: int = 0

    def after(self, records: int) -> Producer:
        return replace(self, sequence=(self.sequence + records) % 2**31)


def batch(
    *values: bytes | None,
    timestamp_ms: int = NOW_MS,
    timestamps: Sequence[int] | None = None,
    key: bytes | None = None,
    producer: Producer | None = None,
    compression: Compression = Compression.NONE,
    base_offset: int = 0,
    leader_epoch: int = -1,
) -> bytes:
    """A batch of these values, all of one time unless `timestamps` has one for each."""
    builder = BatchBuilder(compression)
    for value, at_ms in zip(values, timestamps or [timestamp_ms] * len(values), strict=True):
        builder.append(value, key, at_ms)
    if producer is None:
        return builder.build(base_offset=base_offset, leader_epoch=leader_epoch)
    return builder.build(
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        base_sequence=producer.sequence,
    )


def append(log: PartitionLog, *batches: bytes, epoch: int = 0, now_ms: int = NOW_MS) -> int:
    """Append each batch on its own, as leader; return the new end of the log."""
    for each in batches:
        for result in append_result(log, each, epoch=epoch, now_ms=now_ms):
            if result.error is not None:
                raise result.error
    return log.log_end


def append_result(
    log: PartitionLog, data: bytes, *, epoch: int = 0, now_ms: int = NOW_MS
) -> list[BatchResult]:
    """As the broker itself: control batches are let in."""
    return log.append_as_leader(
        data, leader_epoch=LeaderEpoch(epoch), now_ms=now_ms, control_allowed=True
    )


def stored_bytes(log: PartitionLog) -> bytes:
    """All batches of the log as they are stored, read the way a consumer reads."""
    parts: list[bytes] = []
    offset = log.log_start
    while offset < log.log_end:
        data = log.read(offset, bytes_max=READ_BYTES_MAX)
        if not data:
            raise AssertionError(f"nothing at {offset}, below the log end {log.log_end}")
        parts.append(data)
        offset = max(header.next_offset for _, header in split(data))
    return b"".join(parts)


def contents(log: PartitionLog) -> list[tuple[int, bytes | None]]:
    """Offset and value of every record that may be read; every checksum is checked."""
    found: list[tuple[int, bytes | None]] = []
    data = stored_bytes(log)
    for position, _ in split(data):
        view = BatchView(data, position)
        view.verify()
        found += [(r.offset, r.value) for r in view.records() if r.offset >= log.log_start]
    return found


def values(log: PartitionLog) -> list[bytes | None]:
    return [value for _, value in contents(log)]


@dataclass(slots=True)
class StoredOffsets:
    """The two durable offsets of a log, as the checkpoint files of its folder would hold them."""

    recovery_point: int = 0
    log_start: int = 0
    cause: LogStartCause | None = None

    def lower_recovery_point(self, offset: int) -> None:
        self.recovery_point = min(self.recovery_point, offset)

    def set_log_start(self, offset: int, cause: LogStartCause | None = None) -> None:
        self.log_start, self.cause = offset, cause

    def raise_recovery_point(self, offset: int) -> None:
        self.recovery_point = max(self.recovery_point, offset)


@dataclass(slots=True)
class LogBench:
    """See the module's description."""

    files: Files
    config: LogConfig = field(default_factory=LogConfig)
    folder: str = FOLDER
    open_files_max: int = 16
    index_cache_bytes: int = 1 << 20
    offsets: StoredOffsets = field(default_factory=StoredOffsets)
    clean: CleanPartition | None = None
    report: OpenReport = field(init=False, repr=False)
    storage: Storage = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.files.make_folder(self.folder)
        self.storage = self.new_storage()

    def new_storage(self) -> Storage:
        return Storage(
            files=self.files,
            cache=FileCache(self.files, open_files_max=self.open_files_max),
            indexes=IndexCache(bytes_max=self.index_cache_bytes),
        )

    def open(self, *, accept_loss: bool = False, now_ms: int = NOW_MS) -> PartitionLog:
        """Open the log as a new process would; a clean marker serves once."""
        self.storage.cache.close()
        self.storage = self.new_storage()
        clean, self.clean = self.clean, None
        log, self.report = open_log(
            self.storage,
            self.folder,
            PARTITION,
            config=self.config,
            checkpoints=self.offsets,
            recovery_point=self.offsets.recovery_point,
            log_start=self.offsets.log_start,
            clean=clean,
            now_ms=now_ms,
            accept_loss=accept_loss,
            progress=self.offsets.raise_recovery_point,
        )
        return log

    def close(self, log: PartitionLog) -> None:
        """Close the log in order, and note what the folder would."""
        log.close()
        active = log.segments[-1]
        self.checkpoint(log)
        self.clean = CleanPartition(
            Offset(log.log_start),
            Offset(log.log_end),
            Offset(active.base_offset),
            active.size,
            segments_crc(log.segments),
        )

    def checkpoint(self, log: PartitionLog) -> None:
        """Store how far the log is durable, as the folder does now and then."""
        self.offsets.recovery_point = log.recovery_point
        self.offsets.log_start = log.log_start

    def path(self, name: str) -> str:
        return f"{self.folder}/{name}"

    def names(self, suffix: str = "") -> list[str]:
        return [name for name in self.files.list(self.folder) if name.endswith(suffix)]


def numbered(prefix: str = "v") -> Iterator[bytes]:
    """v0, v1, v2, …"""
    return (f"{prefix}{number}".encode() for number in count())
