"""Whether the model finds anything: logs with one mistake each, which it must catch.

Most of these mistakes were in the log once, or are the ones that such logs are known for. Each is
put in by replacing one function, and comes with a seed that catches it. When the steps of the
simulation change, run this file as a script to find new seeds.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Final

import pytest

import tailrace.log.cleaning.compaction
import tailrace.log.log
import tailrace.log.recovery
import tailrace.log.segment
from simulation.log_driver import LogSimulation
from simulation.storage import SimFiles
from tailrace.log.cleaning.survivors import kept_rows
from tailrace.log.data_folder import DataFolder
from tailrace.log.file_cache import FileCache
from tailrace.log.flushing import FlushWork
from tailrace.log.index import SegmentIndex
from tailrace.log.log import PartitionLog
from tailrace.log.producers import ProducerStates
from tailrace.log.retention import expired
from tailrace.log.segment import Segment

SEEDS_MAX: Final = 1_000
"""Within so many sequences each mistake must be caught."""

Mutation = Callable[[pytest.MonkeyPatch], None]

pytestmark = pytest.mark.simulation


def _replaced(owner: object, name: str, by: Callable[..., Any]) -> Mutation:
    return lambda patch: patch.setattr(owner, name, by)


def _nothing(*_: object, **__: object) -> None:
    return None


def _both(*mutations: Mutation) -> Mutation:
    def apply(patch: pytest.MonkeyPatch) -> None:
        for mutation in mutations:
            mutation(patch)

    return apply


# What some of them do instead; the originals are taken before anything is replaced.

_sync_flush = FlushWork._sync
_end_flush = PartitionLog.end_flush
_resume_at = Segment.resume_at
_append_as_leader = PartitionLog.append_as_leader
_check_producer = ProducerStates.check
_before_time = SegmentIndex.before_time
_lower_recovery_point = PartitionLog._lower_recovery_point


def _flush_twice(work: FlushWork) -> None:
    try:
        _sync_flush(work)
    except OSError:
        _sync_flush(work)


def _end_flush_of_a_cut_log(log: PartitionLog, work: FlushWork) -> None:
    _end_flush(log, work)
    log.recovery_point = max(log.recovery_point, min(work.up_to, log.log_end))


def _trust_the_index(segment: Segment, offset: int) -> int:
    return _resume_at(segment, 1 << 40)


def _append_in_any_epoch(log: PartitionLog, data: bytes, **given: Any) -> Any:
    given["leader_epoch"] = max(given["leader_epoch"], log.epochs.latest)
    return _append_as_leader(log, data, **given)


def _take_duplicates(states: ProducerStates, **batch: int) -> object:
    found = _check_producer(states, **batch)
    return None if found is not None and found.base_offset % 2 else found


def _late_time(index: SegmentIndex, timestamp_ms: int) -> int:
    return _before_time(index, timestamp_ms + 1)


def _expired_above_the_mark(*given: Any, **named: Any) -> Any:
    return expired(*given, **(named | {"high_watermark": 1 << 40}))


def _drop_the_last_row(*given: Any, **named: Any) -> Any:
    kept = kept_rows(*given, **named)
    kept[-1:] = False
    return kept


def _lower_to_the_offset(log: PartitionLog, offset: int) -> None:
    if offset:
        _lower_recovery_point(log, offset)


def _cut_as_it_looks(segment: Segment, *, again: bool = False) -> None:
    segment.remove_index_files()
    with segment._storage.cache.use(segment.path) as file:
        file.truncate(segment.size)
        file.sync()


MUTATIONS: Final[dict[str, tuple[int, Mutation]]] = {
    "the recovery point is not lowered before a truncation": (
        1,
        _replaced(DataFolder, "lower_recovery_point", _nothing),
    ),
    "the recovery point is not lowered before starting over": (
        1,
        _replaced(PartitionLog, "_lower_recovery_point", _lower_to_the_offset),
    ),
    "names are never synced": (0, _replaced(SimFiles, "sync_folder", _nothing)),
    "the data folder's own name is not synced": (
        1,
        _replaced(DataFolder, "_sync_folders_above", _nothing),
    ),
    "the index is trusted above the recovery point": (
        0,
        _replaced(Segment, "resume_at", _trust_the_index),
    ),
    "checksums are not verified in recovery": (
        7,
        _replaced(tailrace.log.segment, "verify", _nothing),
    ),
    "a failed sync is tried again": (18, _replaced(FlushWork, "_sync", _flush_twice)),
    "a failed sync is not noted": (
        18,
        _both(
            _replaced(tailrace.log.log, "mark_failed_sync", _nothing),
            _replaced(tailrace.log.recovery, "mark_failed_sync", _nothing),
        ),
    ),
    "after a failed sync the file's length is taken as it looks": (
        241,
        _replaced(Segment, "cut", _cut_as_it_looks),
    ),
    "a flush counts though the log was cut": (
        83,
        _replaced(PartitionLog, "end_flush", _end_flush_of_a_cut_log),
    ),
    "a failed write is not undone": (86, _replaced(Segment, "undo_write", _nothing)),
    "old epochs are taken": (
        1,
        _replaced(PartitionLog, "append_as_leader", _append_in_any_epoch),
    ),
    "duplicates are taken": (1, _replaced(ProducerStates, "check", _take_duplicates)),
    "snapshots of what was cut off stay": (
        1,
        _both(
            _replaced(tailrace.log.log, "remove_snapshots", _nothing),
            _replaced(tailrace.log.recovery, "remove_snapshots", _nothing),
        ),
    ),
    "the log start is not stored": (0, _replaced(DataFolder, "set_log_start", _nothing)),
    "checkpoints remember deleted partitions": (231, _replaced(DataFolder, "keep_only", _nothing)),
    "retention goes beyond the high watermark": (
        32,
        _replaced(tailrace.log.log, "expired", _expired_above_the_mark),
    ),
    "the time index is off by one": (3, _replaced(SegmentIndex, "before_time", _late_time)),
    "compaction loses a record": (
        2,
        _replaced(tailrace.log.cleaning.compaction, "kept_rows", _drop_the_last_row),
    ),
    "an interrupted compaction is forgotten": (
        114,
        _replaced(tailrace.log.recovery, "unfinished_swaps", lambda *_: []),
    ),
    "nobody looks for a segment that is missing in the middle": (
        0,
        _replaced(tailrace.log.recovery, "first_break", _nothing),
    ),
    "files stay open": (20, _replaced(FileCache, "close", _nothing)),
    "locks stay taken": (0, _replaced(DataFolder, "release", _nothing)),
}


@pytest.mark.parametrize("mistake", MUTATIONS)
def test_the_model_catches(mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seed, mutate = MUTATIONS[mistake]
    assert _is_good(seed)
    mutate(monkeypatch)
    # A change to the log may let the mistake pass under this seed. Then others must catch it.
    assert not _is_good(seed) or _first_bad() is not None


def _first_bad() -> int | None:
    return next((seed for seed in range(SEEDS_MAX) if not _is_good(seed)), None)


def _is_good(seed: int) -> bool:
    try:
        LogSimulation(seed).run()
    except Exception:  # noqa: BLE001  # Whatever a broken log raises, it was caught.
        return False
    return True


if __name__ == "__main__":
    for name in sys.argv[1:] or MUTATIONS:
        with pytest.MonkeyPatch.context() as patch:
            MUTATIONS[name][1](patch)
            print(_first_bad(), name, flush=True)
