"""Reads that may wait for the disk: off the loop, a few at a time, never of the wrong file."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

import pytest

from simulation.compaction_model import compact_once, keyed
from simulation.log_bench import LogBench, append
from simulation.proofs import DIVERGED, given_up
from simulation.storage import SimFiles
from tailrace.broker import log_reads
from tailrace.broker.log_reads import TRIES_MAX, LogReads, is_cold
from tailrace.config import LogConfig
from tailrace.errors import DamagedLog, OffsetOutOfRange, StorageError
from tailrace.log.log import PartitionLog
from tailrace.model import DELETE_RECORDS, LogStartCause
from tailrace.record.view import BatchView
from unit.broker.trio import Trio, batch, simulate

T = TypeVar("T")


class SlowBlocking:
    """Does the work when it is told to; something else can happen before and after."""

    def __init__(self) -> None:
        self.before: Callable[[], object] = lambda: None
        self.after: Callable[[], object] = lambda: None
        self.running = 0
        self.most = 0

    async def run(self, work: Callable[[], T]) -> T:
        self.running += 1
        self.most = max(self.most, self.running)
        await asyncio.sleep(0)
        try:
            self.before()
            result = work()
            self.after()
            return result
        finally:
            self.running -= 1


@pytest.fixture
def log() -> PartitionLog:
    """Segments of a few batches each; keys come again and again."""
    log = LogBench(SimFiles(1), LogConfig(segment_bytes=1024)).open()
    for number in range(30):
        append(log, keyed((f"k{number % 4}", f"{number}"), (f"k{number % 3}", f"{number}")))
    log.flush()
    return log


async def read(reads: LogReads, log: PartitionLog, offset: int) -> list[int]:
    found = await reads.read(log, offset, bytes_max=500, up_to=log.log_end)
    assert found is not None
    assert found.piece.base_offset <= offset < found.piece.next_offset
    view = BatchView(found.data)
    view.verify()
    return [each.offset for each in view.records()]


async def test_the_end_of_a_log_is_read_at_once(log: PartitionLog) -> None:
    blocking = SlowBlocking()
    reads = LogReads(blocking, cold_reads_max=1)
    assert await read(reads, log, 58) == [58, 59]
    assert (blocking.most, reads.cold_reads) == (0, 0)
    assert await reads.read(log, 60, bytes_max=500, up_to=60) is None
    assert await read(reads, log, 0) == [0, 1]
    assert (blocking.most, reads.cold_reads) == (1, 1)


async def test_what_is_far_from_the_end_of_the_active_segment_is_cold_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = LogBench(SimFiles(1), LogConfig(index_interval_bytes=0)).open()
    for number in range(30):
        append(log, keyed(("k", f"{number}")))
    assert not is_cold(log, 0)
    monkeypatch.setattr(log_reads, "COLD_DISTANCE_BYTES", log.size_bytes // 2)
    assert [is_cold(log, offset) for offset in (0, 14, 16, 29, 30)] == [True, True] + [False] * 3
    reads = LogReads(SlowBlocking(), cold_reads_max=1)
    assert await read(reads, log, 3) == [3]
    assert reads.cold_reads == 1


async def test_a_few_at_a_time(log: PartitionLog) -> None:
    blocking = SlowBlocking()
    reads = LogReads(blocking, cold_reads_max=3)
    found = await asyncio.gather(*(read(reads, log, offset) for offset in range(40)))
    assert [first for first, _ in found] == [offset - offset % 2 for offset in range(40)]
    assert blocking.most == 3


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_segment_that_is_compacted_meanwhile_is_read_anew(
    log: PartitionLog, when: str
) -> None:
    blocking = SlowBlocking()
    reads = LogReads(blocking, cold_reads_max=1)
    replaced: list[object] = []

    def compact() -> None:
        if not replaced:
            replaced.append(compact_once(log))

    setattr(blocking, when, compact)
    await read(reads, log, 20)
    assert replaced
    assert reads.cold_reads == 2
    # Nobody was left with the index of the old segment.
    for offset in range(0, log.log_end, 5):
        await read(reads, log, offset)


async def test_a_segment_that_is_removed_meanwhile_is_out_of_range(log: PartitionLog) -> None:
    blocking = SlowBlocking()
    reads = LogReads(blocking, cold_reads_max=1)
    blocking.before = lambda: log.advance_log_start(30, given_up(30))
    with pytest.raises(OffsetOutOfRange):
        await read(reads, log, 0)


async def test_a_file_that_is_gone_for_no_reason_is_an_error(log: PartitionLog) -> None:
    reads = LogReads(SlowBlocking(), cold_reads_max=1)
    segment = log.segments[0]
    log.storage.files.remove(segment.path)
    segment.forget()
    with pytest.raises(FileNotFoundError):
        await read(reads, log, 0)


async def test_it_is_not_tried_for_ever(log: PartitionLog) -> None:
    blocking = SlowBlocking()
    reads = LogReads(blocking, cold_reads_max=1)
    blocking.after = lambda: compact_once(log, now_ms=reads.cold_reads)
    with pytest.raises(StorageError, match="moves faster"):
        await read(reads, log, 0)
    assert reads.cold_reads == TRIES_MAX


async def test_what_rotted_is_damage_and_what_was_cut_meanwhile_is_not(log: PartitionLog) -> None:
    blocking = SlowBlocking()
    reads = LogReads(blocking, cold_reads_max=1)
    end = log.log_end
    changed = False

    def change() -> None:
        """While it is read, the log loses its end and grows anew."""
        nonlocal changed
        if not changed:
            changed = True
            log.truncate_to(end - 4, DIVERGED, now_ms=1)
            append(log, keyed(("other", "x" * 90)))

    blocking.before = change
    found = await reads.read(log, end - 4, bytes_max=500, up_to=end, verified=True)
    assert found is not None
    assert [record.key for record in BatchView(found.data).records()] == [b"other"]
    segment = log.segments[1]
    files = log.storage.files
    assert isinstance(files, SimFiles)
    files.flip_bits(segment.path, segment.size // 2)
    with pytest.raises(DamagedLog):
        await reads.read(log, segment.base_offset, bytes_max=2_000, up_to=end)


@simulate
async def test_who_comes_new_follows_a_log_that_starts_within_a_batch(trio: Trio) -> None:
    """Records were deleted up to the middle of a batch: a new replica never caught up once."""
    await trio.start(0)
    config = {"min.insync.replicas": "1", "segment.bytes": "1024"}
    await trio.lead(0, 0, isr=(0,), config=config)
    for _ in range(40):
        await trio.produce(batch(3, value=b"a" * 40))
    log = trio.hosted(0).log
    log.advance_log_start(61, LogStartCause(DELETE_RECORDS, 0, 61))
    assert log.segments[0].base_offset > 0
    assert log.segment_at(61).batch_start(61) == 60
    await trio.start_broker(1)
    await trio.lead(0, 1, isr=(0,), config=config)
    await trio.until(lambda: trio.ends() == [120, 120])
    await trio.until(lambda: trio.hosted(1).log.log_start == 61)
    assert (await trio.produce()).error == 0
    await trio.until(lambda: trio.ends() == [log.log_end] * 2)


async def test_what_follows_and_is_in_memory_needs_no_thread(log: PartitionLog) -> None:
    """The first read finds the place; whoever goes on from there finds it in memory."""
    files = log.storage.files
    assert isinstance(files, SimFiles)
    files.is_in_memory = True
    blocking = SlowBlocking()
    reads = LogReads(blocking, cold_reads_max=1)
    found: list[int] = []
    while len(found) < 40:
        found += await read(reads, log, len(found))
    assert found == list(range(len(found)))
    # A thread for the beginning of each segment, of which there are several, and no more.
    first = {log.segment_at(offset).base_offset for offset in found}
    assert 1 < reads.cold_reads <= len(first)


async def test_what_is_in_memory_ends_where_it_may_be_read(log: PartitionLog) -> None:
    files = log.storage.files
    assert isinstance(files, SimFiles)
    files.is_in_memory = True
    reads = LogReads(SlowBlocking(), cold_reads_max=1)
    assert await read(reads, log, 0) == [0, 1]
    cold = reads.cold_reads
    found = await reads.read(log, 2, bytes_max=10_000, up_to=4)
    assert found is not None
    assert (found.piece.base_offset, found.piece.next_offset) == (2, 4)
    assert reads.cold_reads == cold


async def test_what_is_in_memory_is_verified_too(log: PartitionLog) -> None:
    files = log.storage.files
    assert isinstance(files, SimFiles)
    reads = LogReads(SlowBlocking(), cold_reads_max=1)
    assert await read(reads, log, 0) == [0, 1]
    files.is_in_memory = True
    segment = log.segment_at(2)
    with log.storage.cache.use(segment.path) as file:
        at = segment.position_of(2) + 90
        file.write_at(at, [bytes([file.read_at(at, 1)[0] ^ 1])])
    with pytest.raises(DamagedLog):
        await read(reads, log, 2)
