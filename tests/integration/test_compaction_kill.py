"""A process that appends and compacts in a loop is killed again and again; nothing may be missing.

Run as a script, this file is that process. Each record is a function of its offset, so that the
test can tell what must be there without having seen it written.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from simulation.compaction_model import check_structure, records_of
from tailrace.config import CleanupPolicy, FolderConfig, LogConfig
from tailrace.log.cleaning.compaction import compact
from tailrace.log.data_folder import Identity
from tailrace.log.files import OsFiles
from tailrace.log.log import PartitionLog
from tailrace.log.manager import LogManager
from tailrace.log.swap import CLEANED_SUFFIX, SWAP_SUFFIX
from tailrace.model import BrokerId, LeaderEpoch, TopicId, TopicPartition
from tailrace.record.build import BatchBuilder
from tailrace.record.view import Record

KILLS = 12
RUN_SECONDS_MAX = 0.5
KEYS = 400
PER_BATCH = 50
BATCHES_PER_ROUND = 20
PARTITION = TopicPartition("kept", 0)
CONFIG = LogConfig(
    segment_bytes=64 * 1024, index_interval_bytes=4096, cleanup_policy=CleanupPolicy.COMPACT
)
NOW_MS = 1_700_000_000_000


@cache
def record_at(offset: int) -> Record:
    """The record at an offset: some have no key, some are tombstones that are kept for long."""
    chance = random.Random(offset)
    key = None if chance.random() < 0.002 else f"key-{chance.randrange(KEYS)}".encode()
    value = None if chance.random() < 0.05 else f"value of {offset}".encode() * 4
    return Record(offset, NOW_MS + offset, key, value, ())


def batch_at(offset: int) -> bytes:
    builder = BatchBuilder()
    for at in range(offset, offset + PER_BATCH):
        record = record_at(at)
        builder.append(record.value, record.key, record.timestamp_ms)
    return builder.build()


def opened(folder: str) -> tuple[LogManager, PartitionLog]:
    manager = LogManager(
        OsFiles(),
        FolderConfig(log_dirs=(folder,)),
        identity=Identity("cluster", BrokerId(1), "incarnation"),
        log_config=lambda _: CONFIG,
    )
    report = manager.open(now_ms=NOW_MS)
    assert report.damaged == {}
    log = manager.logs.get(PARTITION)
    return manager, log or manager.create(PARTITION, TopicId("topic"))


def compact_all(manager: LogManager, log: PartitionLog, buffer_bytes: int) -> None:
    """Passes until nothing is dirty; what each came to is kept before the next."""
    while True:
        report = compact(
            log,
            cleaned_to=manager.cleaned_to(PARTITION),
            bound=log.log_end,
            now_ms=NOW_MS,
            buffer_bytes=buffer_bytes,
        )
        if report is None:
            return
        manager.set_cleaned(PARTITION, report.cleaned_to)


def run(folder: str) -> None:
    """Append, flush, compact, for ever; say how far the flushes came."""
    manager, log = opened(folder)
    chance = random.Random()
    while True:
        for _ in range(BATCHES_PER_ROUND):
            log.append_as_leader(batch_at(log.log_end), leader_epoch=LeaderEpoch(0), now_ms=NOW_MS)
        log.flush()
        print(log.recovery_point, flush=True)
        compact_all(manager, log, chance.choice([4 << 10, 16 << 10, 1 << 20]))


def survivors(end: int, *, covered_to: int) -> list[Record]:
    """What is left of the records below `end` after compacting all below `covered_to`."""
    records = [record_at(offset) for offset in range(end)]
    last = {each.key: each.offset for each in records[:covered_to]}
    return [
        each
        for each in records
        if each.key is None or each.offset >= covered_to or last[each.key] == each.offset
    ]


def killed_after(folder: str, seconds: float) -> int:
    """Let the process run for a while and kill it; return how far it had flushed."""
    process = subprocess.Popen(
        [sys.executable, __file__, folder],
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert process.stdout is not None
    with process, process.stdout as output:
        # Not before it has begun to work: starting an interpreter takes a while.
        said = output.readline()
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.kill()
        said += output.read()
    assert process.returncode == -9, said.decode()
    lines = [line for line in said.decode().splitlines(keepends=True) if line.endswith("\n")]
    return int(lines[-1])


@pytest.mark.integration
@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_killed_compaction_resumes_and_comes_to_the_models_answer(tmp_path: Path) -> None:
    folder = str(tmp_path / "data")
    chance = random.Random(20)
    resumed = 0
    for _ in range(KILLS):
        flushed = killed_after(folder, chance.uniform(0, RUN_SECONDS_MAX))
        left = (tmp_path / "data" / str(PARTITION)).iterdir()
        resumed += any(path.suffix in {CLEANED_SUFFIX, SWAP_SUFFIX} for path in left)
        manager, log = opened(folder)
        assert log.log_end >= flushed
        check_structure(log)
        found = records_of(log)
        assert all(each == record_at(each.offset) for each in found)
        offsets = {each.offset for each in found}
        # Nothing is missing that no later record supersedes, whether or not that was compacted.
        assert offsets >= {each.offset for each in survivors(log.log_end, covered_to=log.log_end)}
        # Nothing is there any more that was superseded within what the checkpoint covers.
        cleaned_to = manager.cleaned_to(PARTITION)
        assert offsets <= {each.offset for each in survivors(log.log_end, covered_to=cleaned_to)}
        manager.close()
    assert resumed > 0
    manager, log = opened(folder)
    log.roll()
    log.flush()
    compact_all(manager, log, 1 << 20)
    assert records_of(log) == survivors(log.log_end, covered_to=log.log_end)
    check_structure(log)
    manager.close()


if __name__ == "__main__":
    run(sys.argv[1])
