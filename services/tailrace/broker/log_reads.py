"""Reads of logs for clients and followers: what may not be in memory is read off the loop.

The end of a log, where most readers are, was written a moment ago and is in the page cache: it is
read at once. What lies further back may have to come from the disk, and everybody else on the loop
would wait for that. So it is found and read by the blocking threads, a few at a time
(`fetch.cold.reads.max`), so that syncs find a thread too; who reads much waits in line for nobody
but others who read much.

What comes from the disk is verified before anybody gets it: bytes that rotted since they were
written are damage (DamagedLog), and a follower or client that got them could do nothing with them.

While a thread reads, the owner of the log may put a compacted segment in the place of the one that
is read, or remove it. Then what was read is thrown away and it is read anew.
"""

from __future__ import annotations

import asyncio
from typing import Final, NamedTuple

from tailrace.errors import (
    BatchFault,
    CorruptBatch,
    DamagedLog,
    OffsetOutOfRange,
    StorageError,
)
from tailrace.log.log import PartitionLog
from tailrace.log.segment import Segment, Slice
from tailrace.model import Offset
from tailrace.record.header import split, verify
from tailrace.runtime import Blocking

# What is further from the end of the log than this may not be in memory.
COLD_DISTANCE_BYTES: Final = 64 << 20
# A segment is replaced once in a while; one that is replaced again and again is something else.
TRIES_MAX: Final = 5


class LogRead(NamedTuple):
    """Whole batches, and where they are."""

    piece: Slice
    data: bytes | memoryview


class LogReads:
    """All reads of one broker's logs that may have to wait for the disk."""

    def __init__(self, blocking: Blocking, *, cold_reads_max: int) -> None:
        self._blocking = blocking
        self._turns = asyncio.Semaphore(cold_reads_max)
        self.cold_reads = 0

    async def read(
        self, log: PartitionLog, offset: int, *, bytes_max: int, up_to: int, verified: bool = False
    ) -> LogRead | None:
        """What `log.locate` finds, and its bytes; None when there is nothing yet.

        `verified`: as what comes from the disk is, also when it is in memory.
        """
        if not verified and not is_cold(log, offset):
            piece = log.locate(offset, bytes_max=bytes_max, up_to=up_to)
            return None if piece is None else _read(log.segment_at(offset), piece)
        for _ in range(TRIES_MAX):
            if offset < log.log_start:
                raise OffsetOutOfRange(offset, log_start=log.log_start, log_end=log.log_end)
            segment = log.segment_at(offset)
            if segment is log.segments[-1]:
                # It grows under the loop's hand; its index is in memory, so this waits for nothing.
                piece = log.locate(offset, bytes_max=bytes_max, up_to=up_to)
            else:
                piece = None
            limit, generation = min(up_to, log.log_end), log.generation
            try:
                found = _read_at_once(segment, offset, bytes_max, limit)
                if found is not None:
                    # Others have their turn, also beside one who reads for a long time.
                    await asyncio.sleep(0)
                else:
                    found = await self._read_cold(segment, piece, offset, bytes_max, limit)
            except (OSError, CorruptBatch) as error:
                if log.segment_at(offset) is not segment or log.generation != generation:
                    # It was replaced, or cut: what was read was something else.
                    continue
                if isinstance(error, OSError) or not log.is_open:
                    raise
                raise _damage(log, offset, error) from error
            if log.segment_at(offset) is segment and log.generation == generation:
                return found
        raise StorageError(f"{log.partition}: offset {offset} moves faster than it can be read")

    async def _read_cold(
        self, segment: Segment, piece: Slice | None, offset: int, bytes_max: int, up_to: int
    ) -> LogRead | None:
        def read() -> LogRead | None:
            found = piece or segment.find(offset, up_to=up_to, bytes_max=bytes_max, min_one=True)
            if found is None:
                return None
            result = _read(segment, found)
            _verify(result)
            return result

        async with self._turns:
            self.cold_reads += 1
            return await self._blocking.run(read)


def _read(segment: Segment, piece: Slice) -> LogRead:
    return LogRead(piece, segment.read(piece.position, piece.size))


def _read_at_once(segment: Segment, offset: int, bytes_max: int, up_to: int) -> LogRead | None:
    """What follows on what was read before, when it is in memory: no thread is needed for it."""
    found = segment.read_at_once(offset, up_to=up_to, bytes_max=bytes_max)
    if found is None:
        return None
    piece, data = found
    read = LogRead(piece, memoryview(data))
    _verify(read)
    return read


def _verify(read: LogRead) -> None:
    """CorruptBatch unless these are whole batches, one after the other, that cover the piece."""
    expected = read.piece.base_offset
    for position, header in split(read.data):
        verify(read.data, position, header)
        if header.base_offset != expected:
            raise CorruptBatch(BatchFault.BAD_HEADER, f"offset {header.base_offset}")
        expected = header.next_offset
    if expected != read.piece.next_offset:
        raise CorruptBatch(BatchFault.CUT_SHORT, f"it ends at {expected}")


def _damage(log: PartitionLog, offset: int, error: CorruptBatch) -> DamagedLog:
    return DamagedLog(
        str(log.partition), offset=offset, recovery_point=log.recovery_point, detail=str(error)
    )


def is_cold(log: PartitionLog, offset: int) -> bool:
    """Whether reading from an offset on may have to wait for the disk. Itself it never does."""
    active = log.segments[-1]
    if offset < log.log_start or offset >= log.log_end:
        return False
    if offset < active.base_offset:
        return True
    if active.size < COLD_DISTANCE_BYTES:
        return False
    _, position = active.index.floor(offset - active.base_offset)
    return active.size - position >= COLD_DISTANCE_BYTES


def first_to_push(log: PartitionLog, log_end: int) -> Offset:
    """The first offset that a follower with this end can be given.

    The log may start within a batch, of which the first records were deleted. Batches go whole: who
    has nothing yet begins with that one, and learns where the log starts with it.
    """
    if log_end >= log.log_start or log.log_start >= log.log_end:
        return Offset(log.log_start)
    return Offset(log.segment_at(log.log_start).batch_start(log.log_start))


def locate_to_push(
    log: PartitionLog, offset: int, bytes_max: int, *, min_one: bool
) -> Slice | None:
    """As `log.locate`, also for the deleted beginning of the first batch."""
    if first_to_push(log, offset) <= offset < log.log_start:
        segment = log.segment_at(offset)
        return segment.find(offset, up_to=log.log_end, bytes_max=bytes_max, min_one=min_one)
    return log.locate(offset, bytes_max=bytes_max, min_one=min_one)
