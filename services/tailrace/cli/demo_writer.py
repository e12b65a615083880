"""The process that `tailrace demo` kills: it appends as fast as it can and says what is safe.

Run as `python -m tailrace.cli.demo_writer FOLDER`. After each append it prints `appended N`: all
below offset N survives the death of the process. After each flush it prints `flushed N`: all below
survives a power loss, and so counts as acknowledged. It ends by itself when nobody listens any
more or `BURSTS_MAX` is reached.

Record n of the demo is a function of n alone, so that whoever reads it back knows what it must be.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from tailrace.clock import SystemClock
from tailrace.config import CleanupPolicy, FolderConfig, LogConfig
from tailrace.log.data_folder import Identity
from tailrace.log.files import OsFiles
from tailrace.log.log import PartitionLog
from tailrace.log.manager import LogManager
from tailrace.model import BrokerId, LeaderEpoch, TopicPartition
from tailrace.record.build import BatchBuilder

ORDERS: Final = TopicPartition("orders", 0)
CUSTOMERS: Final = TopicPartition("customers", 0)
RECORDS_PER_BATCH: Final = 2_000
BATCHES_PER_APPEND: Final = 8
ORDERS_PER_APPEND: Final = RECORDS_PER_BATCH * BATCHES_PER_APPEND
APPENDS_PER_FLUSH: Final = 3
BURSTS_MAX: Final = 500

FIRST_TIME_MS: Final = 1_767_225_600_000
"""2026-01-01 00:00 UTC, the time of the first order."""
ORDER_INTERVAL_MS: Final = 250
EPOCH: Final = LeaderEpoch(1)

_MIB: Final = 1024 * 1024


def demo_manager(folder: Path) -> LogManager:
    """The logs of the demo: orders are kept, customers are compacted."""
    compacted = LogConfig(cleanup_policy=CleanupPolicy.COMPACT, segment_bytes=4 * _MIB)
    configs = {CUSTOMERS.topic: compacted}
    return LogManager(
        OsFiles(),
        FolderConfig(log_dirs=(str(folder),)),
        identity=Identity("demo", BrokerId(1), "demo"),
        log_config=lambda topic: configs.get(topic, LogConfig(segment_bytes=16 * _MIB)),
    )


def order_time_ms(offset: int) -> int:
    return FIRST_TIME_MS + offset * ORDER_INTERVAL_MS


def order_value(offset: int) -> bytes:
    return b'{"order": %d, "customer": %d, "status": "paid", "note": "%s"}' % (
        offset,
        offset * 7 % 10_000,
        b"thank you " * 4,
    )


def order_batch(first: int, count: int = RECORDS_PER_BATCH) -> bytes:
    """The orders `first` to `first + count - 1`."""
    builder = BatchBuilder()
    for offset in range(first, first + count):
        key = b"customer-%d" % (offset * 7 % 10_000)
        builder.append(order_value(offset), key, order_time_ms(offset))
    return builder.build()


def appended_ends(log: PartitionLog, clock: SystemClock, appends: int) -> Iterator[int]:
    """Append orders, several batches at a time; yields the end of the log after each append."""
    for _ in range(appends):
        starts = range(log.log_end, log.log_end + ORDERS_PER_APPEND, RECORDS_PER_BATCH)
        data = b"".join(map(order_batch, starts))
        log.append_as_leader(data, leader_epoch=EPOCH, now_ms=clock.wall_ms())
        yield log.log_end


def burst(log: PartitionLog, clock: SystemClock, tell: Callable[[str, int], None]) -> None:
    """Append as fast as the disk takes it, from data that was made before, then flush."""
    end = log.log_end + APPENDS_PER_FLUSH * ORDERS_PER_APPEND
    starts = range(log.log_end, end, RECORDS_PER_BATCH)
    batches = [order_batch(start) for start in starts]
    for first in range(0, len(batches), BATCHES_PER_APPEND):
        data = b"".join(batches[first : first + BATCHES_PER_APPEND])
        log.append_as_leader(data, leader_epoch=EPOCH, now_ms=clock.wall_ms())
        tell("appended", log.log_end)
    tell("flushed", log.flush())


def main() -> None:
    clock = SystemClock()
    manager = demo_manager(Path(sys.argv[1]))
    manager.open(now_ms=clock.wall_ms())
    log = manager.logs[ORDERS]
    for _ in range(BURSTS_MAX):
        burst(log, clock, _tell)
        manager.checkpoint()
    manager.close()


def _tell(what: str, offset: int) -> None:
    sys.stdout.write(f"{what} {offset}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    try:
        main()
    except BrokenPipeError:
        # Whoever listened is gone; there is nothing left to tell.
        sys.stderr.close()
        sys.exit(1)
