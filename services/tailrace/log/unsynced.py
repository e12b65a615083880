"""Records whose sync failed: copied to new files, verified there, and synced there.

A sync that failed must not be repeated: the system may have dropped what it could not write, and
the next sync of the same file says that all is well. But as long as the machine runs the bytes can
mostly still be read, and each batch tells by its checksums whether they are what was written. So
every segment that holds something which may not be on the disk is copied to a file of its own; the
copy is verified to the last batch that the log had, and synced: its pages are new, so that this
sync tells the truth. Then the copies take the place of the files. Enter at `rewrite`.

Invariant: nothing is replaced before all copies are whole and durable, and what does not verify
replaces nothing. Killed at any point, the next opening finds what a failed sync leaves behind.
"""

from __future__ import annotations

from contextlib import suppress

from tailrace.errors import CorruptBatch
from tailrace.log.checkpoints import TEMPORARY_SUFFIX
from tailrace.log.flushing import failed_sync_limit, forget_failed_sync
from tailrace.log.log import PartitionLog
from tailrace.log.salvage import COPY_CHUNK_BYTES
from tailrace.log.segment import Segment, Storage


def rewrite(log: PartitionLog) -> str:
    """Make all that a stopped log had durable; says what of it cannot be read, empty: nothing.

    OSError, and everything as it was, while the disk refuses. Blocks for as long as it takes to
    copy the segments above the recovery point.
    """
    storage, folder = log.storage, log.folder
    limit = failed_sync_limit(storage, folder, log.recovery_point)
    durable = log.recovery_point if limit is None else min(limit, log.recovery_point)
    # The one that holds the recovery point too: a write that fails may tear what is beside it.
    doubtful = [each for each in log.segments if each.next_offset >= durable]
    try:
        for each in doubtful:
            problem = _copy(storage, each, given_up=log.log_start)
            if problem:
                return problem
        storage.files.sync_folder(folder)
        for each in doubtful:
            storage.cache.forget(each.path)
            storage.files.rename(each.path + TEMPORARY_SUFFIX, each.path)
        storage.files.sync_folder(folder)
    finally:
        for each in doubtful:
            with suppress(OSError):
                storage.files.remove(each.path + TEMPORARY_SUFFIX)
    forget_failed_sync(storage, folder)
    return ""


def _copy(storage: Storage, segment: Segment, *, given_up: int) -> str:
    """Copy, verify and sync one segment; says what is wrong with it."""
    files, beside = storage.files, segment.path + TEMPORARY_SUFFIX
    old, new = files.open(segment.path), files.open(beside, create=True)
    try:
        new.truncate(0)
        done = 0
        while done < segment.size:
            data = old.read_at(done, min(COPY_CHUNK_BYTES, segment.size - done))
            if not data:
                return f"{segment.path} ends at byte {done}, it had {segment.size}"
            new.write_at(done, [data])
            done += len(data)
        problem = _verify(storage, segment, beside, given_up=given_up)
        if not problem:
            new.sync()
        return problem
    finally:
        old.close()
        new.close()
        storage.cache.forget(beside)


def _verify(storage: Storage, segment: Segment, path: str, *, given_up: int) -> str:
    twin = Segment(
        storage,
        segment.folder,
        segment.base_offset,
        next_offset=segment.base_offset,
        size=segment.size,
        index_interval_bytes=1,
    )
    twin.path, expected = path, segment.base_offset
    try:
        for _, header in twin.scan(0, segment.size, given_up=given_up):
            if header.base_offset != expected:
                return f"{segment.path}: {header.base_offset} does not continue {expected}"
            expected = header.next_offset
    except CorruptBatch as error:
        return f"{segment.path}: {error}"
    if expected != segment.next_offset:
        return f"{segment.path} ends at offset {expected}, it had {segment.next_offset}"
    return ""
