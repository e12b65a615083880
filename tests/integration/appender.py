"""A process that appends until it is killed; `test_kill.py` starts it and does the killing.

Usage: python appender.py FOLDER. For each line on standard input a child is forked from this
process, which has loaded everything but opened nothing. The child opens the log in FOLDER, checks
that it can go on where the last one died, and appends. Standard output tells what happened, a line
each: `started PID`, `opened LOG_START LOG_END`, `appended END`, `flushed END`, `failed WHY`, and
`ended STATUS` once the child is gone.
"""

from __future__ import annotations

import os
import sys
import traceback
from random import Random
from typing import NoReturn

from simulation.log_bench import NOW_MS, Producer, append_result, batch
from tailrace.config import FolderConfig, LogConfig
from tailrace.log.data_folder import Identity
from tailrace.log.files import OsFiles
from tailrace.log.log import PartitionLog
from tailrace.log.manager import LogManager
from tailrace.model import BrokerId, TopicId, TopicPartition
from tailrace.record.view import BatchView

PARTITION = TopicPartition("kill", 0)
PRODUCER_ID = 7
BATCH_RECORDS_MAX = 20
SEGMENT_BYTES = 32 * 1024
FLUSH_SHARE = 0.1


def manager_of(folder: str) -> LogManager:
    return LogManager(
        OsFiles(),
        FolderConfig(log_dirs=(folder,), open_files_max=16),
        identity=Identity("cluster", BrokerId(1), "one"),
        log_config=lambda _: LogConfig(segment_bytes=SEGMENT_BYTES, index_interval_bytes=2048),
    )


def main() -> None:
    folder = sys.argv[1]
    for seed, _ in enumerate(sys.stdin):
        pid = os.fork()
        if pid == 0:
            append_until_killed(folder, seed)
        _, status = os.waitpid(pid, 0)
        tell("ended", status)


def append_until_killed(folder: str, seed: int) -> NoReturn:
    """Never returns into the process that was forked."""
    try:
        tell("started", os.getpid())
        manager = manager_of(folder)
        log = open_or_create(manager)
        tell("opened", log.log_start, log.log_end)
        resend_last(log)
        work(manager, log, Random(seed))
    except BaseException:  # noqa: BLE001 - whatever it is, the test wants to know
        tell("failed", *traceback.format_exc().splitlines())
    os._exit(1)


def open_or_create(manager: LogManager) -> PartitionLog:
    report = manager.open(now_ms=NOW_MS)
    if report.damaged or report.tail_may_be_lost:
        raise AssertionError(f"{report}")
    if PARTITION in manager.logs:
        return manager.logs[PARTITION]
    return manager.create(PARTITION, TopicId("id"))


def resend_last(log: PartitionLog) -> None:
    """The state of the producer goes on: what was stored last is a duplicate, and known as one."""
    if log.log_end == 0:
        return
    view = BatchView(log.read(log.log_end - 1, bytes_max=1))
    base, count = view.header.base_offset, view.header.record_count
    (result,) = append_result(log, numbered_batch(base, count))
    if (result.duplicate, result.base_offset, result.error) != (True, base, None):
        raise AssertionError(f"{result} for a batch that is at {base}")


def work(manager: LogManager, log: PartitionLog, random: Random) -> NoReturn:
    while True:
        count = random.randint(1, BATCH_RECORDS_MAX)
        (result,) = append_result(log, numbered_batch(log.log_end, count))
        if result.error is not None or result.duplicate:
            raise AssertionError(f"{result} for a batch that is new")
        tell("appended", log.log_end)
        if random.random() < FLUSH_SHARE:
            log.flush()
            tell("flushed", log.recovery_point)
        if random.random() < FLUSH_SHARE / 2:
            manager.checkpoint()


def numbered_batch(offset: int, count: int) -> bytes:
    """Each record says at which offset it must be; sequences run along with the offsets."""
    values = (b"%d" % at for at in range(offset, offset + count))
    return batch(*values, producer=Producer(PRODUCER_ID, sequence=offset))


def tell(*words: object) -> None:
    # One call for a short line: it arrives whole or not at all.
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


if __name__ == "__main__":
    main()
