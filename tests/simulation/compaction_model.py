"""Compaction as one would do it with a dict, and the checks that every compacted log must pass.

`CompactionModel` holds each record that was appended and forgets what a pass over the log must
drop. `check_structure` looks at the batches: no gap, no epoch out of order, look-ups that work.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from simulation.log_bench import NOW_MS, Producer, stored_bytes
from tailrace.config import LogConfig
from tailrace.log.cleaning.compaction import (
    CompactionReport,
    CompactionWork,
    begin_compaction,
    end_compaction,
)
from tailrace.log.log import PartitionLog
from tailrace.record.build import BatchBuilder
from tailrace.record.codec import Compression
from tailrace.record.header import BatchHeader, split
from tailrace.record.view import BatchView, Record

BUFFER_BYTES = 1 << 20
LOOK_UPS_MAX = 500
RETENTION_MS = 1000
CONFIG = LogConfig(
    segment_bytes=4096, index_interval_bytes=512, delete_retention_ms=RETENTION_MS, segment_ms=10**9
)


_NEVER = 2**62


@dataclass(slots=True)
class CompactionModel:
    """All records of a log, and since when its tombstones wait for their end."""

    delete_retention_ms: int = 1000
    records: dict[int, Record] = field(default_factory=dict)
    horizons_ms: dict[int, int] = field(default_factory=dict)

    def appended(self, records: Iterable[Record]) -> None:
        for record in records:
            self.records[record.offset] = record

    def compacted(self, *, dirty_from: int, covered_to: int, now_ms: int) -> None:
        """A pass that mapped the keys from `dirty_from` to `covered_to`."""
        last = {
            record.key: offset
            for offset, record in sorted(self.records.items())
            if dirty_from <= offset < covered_to and record.key is not None
        }
        for offset, record in list(self.records.items()):
            if offset >= covered_to or record.key is None:
                continue
            is_superseded = last.get(record.key, offset) != offset
            is_tombstone = record.value is None
            if is_superseded or (is_tombstone and self.horizons_ms.get(offset, _NEVER) <= now_ms):
                del self.records[offset]
            elif is_tombstone:
                self.horizons_ms.setdefault(offset, now_ms + self.delete_retention_ms)

    def expected(self) -> list[Record]:
        return [record for _, record in sorted(self.records.items())]


def keyed(
    *pairs: tuple[str | None, str | None],
    producer: Producer | None = None,
    control: bool = False,
    transactional: bool = False,
    compression: Compression = Compression.NONE,
    headers: tuple[tuple[str, bytes | None], ...] = (),
) -> bytes:
    """A batch of keys and values, each with a time of its own."""
    builder = BatchBuilder(compression)
    for number, (key, value) in enumerate(pairs):
        builder.append(
            None if value is None else value.encode(),
            None if key is None else key.encode(),
            NOW_MS + number,
            headers,
        )
    at = producer or Producer(-1, -1, -1)
    return builder.build(
        producer_id=at.producer_id,
        producer_epoch=at.epoch,
        base_sequence=at.sequence,
        control=control,
        transactional=transactional,
    )


def closed(log: PartitionLog) -> PartitionLog:
    """All that is in the log may be compacted now."""
    log.roll()
    log.flush()
    return log


def headers_of(log: PartitionLog) -> list[BatchHeader]:
    return list(log.headers(log.log_start))


def records_of(log: PartitionLog) -> list[Record]:
    """Every record that may be read; every checksum is checked. Undecodable batches are not."""
    found: list[Record] = []
    data = stored_bytes(log)
    for position, header in split(data):
        view = BatchView(data, position)
        view.verify()
        if not header.is_control:
            found += [each for each in view.records() if each.offset >= log.log_start]
    return found


def check_structure(log: PartitionLog) -> None:
    """Batches cover the offsets without a gap, in the epochs that the log knows of."""
    expected = log.segments[0].base_offset
    epochs: list[tuple[int, int]] = []
    for segment in log.segments:
        assert segment.base_offset == expected
        position = 0
        for at, header in segment.walk(0):
            assert (at, header.base_offset) == (position, expected)
            if not epochs or header.leader_epoch != epochs[-1][0]:
                epochs.append((header.leader_epoch, header.base_offset))
            position, expected = at + header.length, header.next_offset
        assert (position, expected) == (segment.size, segment.next_offset)
    assert expected == log.log_end
    known = [entry for entry in log.epochs.entries if entry.start_offset < log.log_end]
    assert epochs == [tuple(entry) for entry in known]
    step = max(1, (log.log_end - log.log_start) // LOOK_UPS_MAX)
    for offset in range(log.log_start, log.log_end, step):
        _, header = next(split(log.read(offset, bytes_max=1), partial_tail=True))
        assert header.base_offset <= offset < header.next_offset


def begin(
    log: PartitionLog,
    *,
    now_ms: int = 0,
    cleaned_to: int = 0,
    buffer_bytes: int = BUFFER_BYTES,
    chunk_bytes: int | None = None,
) -> CompactionWork | None:
    """The work of a pass over all that is closed and flushed, in chunks of a size to choose."""
    work = begin_compaction(
        log, cleaned_to=cleaned_to, bound=log.log_end, now_ms=now_ms, buffer_bytes=buffer_bytes
    )
    if work is not None and chunk_bytes is not None:
        work.dirty_chunk_bytes = work.clean_chunk_bytes = chunk_bytes
    return work


def compact_once(
    log: PartitionLog,
    *,
    now_ms: int = 0,
    cleaned_to: int = 0,
    buffer_bytes: int = BUFFER_BYTES,
    chunk_bytes: int | None = None,
) -> CompactionReport:
    """A pass over a log that has something to compact and is not disturbed."""
    work = begin(
        log,
        now_ms=now_ms,
        cleaned_to=cleaned_to,
        buffer_bytes=buffer_bytes,
        chunk_bytes=chunk_bytes,
    )
    assert work is not None
    work.run()
    report = end_compaction(log, work)
    work.release()
    assert report is not None
    return report
