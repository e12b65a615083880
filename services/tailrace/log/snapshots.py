"""The producer snapshots of one log: files that save a replay of all its batches.

`<offset>.snapshot` holds the producer states that the log below `offset` leads to. They are
derived data with a checksum: a missing or damaged one means more reading, never another answer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final

from tailrace.errors import CorruptCheckpoint
from tailrace.log.checkpoints import write_atomically
from tailrace.log.producers import SNAPSHOT_BYTES_MAX, Duplicate, ProducerStates
from tailrace.log.segment import SNAPSHOT_SUFFIX, Segment, Storage, segment_name
from tailrace.model import NO_PRODUCER_ID
from tailrace.record.header import BatchHeader

_SNAPSHOT_NAME: Final = re.compile(r"([0-9]{20})\.snapshot")


def load_producers(
    storage: Storage, folder: str, segments: Sequence[Segment], *, now_ms: int
) -> ProducerStates:
    """The producer states at the end of the segments: the last good snapshot, then the batches."""
    log_end = segments[-1].next_offset
    offset, states = segments[0].base_offset, ProducerStates()
    for at in reversed(snapshot_offsets(storage, folder)):
        if not offset <= at <= log_end:
            # Below the first segment lies a gap that no replay can fill.
            continue
        path = f"{folder}/{segment_name(at, SNAPSHOT_SUFFIX)}"
        if storage.files.size(path) > SNAPSHOT_BYTES_MAX:
            continue
        try:
            offset, states = ProducerStates.from_bytes(storage.files.read(path))
            break
        except CorruptCheckpoint:
            # An older snapshot, or the log itself, tells the same with more reading.
            continue
    for segment in segments:
        if segment.next_offset <= offset:
            continue
        for _, header in segment.walk(segment.position_of(max(offset, segment.base_offset))):
            if header.producer_id != NO_PRODUCER_ID and header.base_offset >= offset:
                note_producer(states, header, now_ms)
    return states


def check_producer(
    states: ProducerStates, header: BatchHeader, *, arriving: int = 0
) -> Duplicate | None:
    """Ask whether a batch is new (None) or where it is already; raise when it must not be.

    `arriving`: how many new producers the append has let in before this batch.
    """
    return states.check(
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        record_count=header.record_count,
        arriving=arriving,
    )


def note_producer(states: ProducerStates, header: BatchHeader, now_ms: int) -> None:
    """Bring the states up to a batch that is in the log."""
    states.update(
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        last_sequence=header.last_sequence,
        base_offset=header.base_offset,
        last_offset=header.last_offset,
        timestamp_ms=header.max_timestamp_ms,
        now_ms=now_ms,
    )


def snapshot_offsets(storage: Storage, folder: str) -> list[int]:
    """The offsets of the producer snapshots in a folder, lowest first."""
    return sorted(
        int(match[1])
        for match in map(_SNAPSHOT_NAME.fullmatch, storage.files.list(folder))
        if match is not None
    )


def remove_snapshots(storage: Storage, folder: str, which: Callable[[int], bool]) -> None:
    for offset in snapshot_offsets(storage, folder):
        if which(offset):
            storage.files.remove(f"{folder}/{segment_name(offset, SNAPSHOT_SUFFIX)}")


def write_snapshot(storage: Storage, folder: str, states: ProducerStates, offset: int) -> None:
    path = f"{folder}/{segment_name(offset, SNAPSHOT_SUFFIX)}"
    write_atomically(storage.files, path, states.to_bytes(offset), durable=False)
