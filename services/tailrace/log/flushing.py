"""The part of a flush that blocks, and what a failed one leaves behind for the next opening.

A flush is begun and ended by the owner of a log; what lies between, the syncing, is a value that
may run in any thread. It knows paths and the caches, nothing of batches.

Invariants:
- A sync that failed has lost what it was asked to save, although it can still be read. The marker
  (and `Storage.failed_syncs`, should the marker fail too) says from where on, and stays until the
  log was cut there.
- The works of one log run one after the other. After one has failed none succeeds: the system
  reports a failed sync once, and the next one would say that all is well.
- Once a log was given up its works touch nothing: the files under its names are another log's.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from threading import Lock
from typing import Final

from tailrace.log.checkpoints import LEADER_EPOCHS, write_atomically
from tailrace.log.segment import Storage
from tailrace.record.codec import crc32c

# Left behind by a failed sync: nothing above the offset in it may be trusted at the next opening.
SYNC_FAILED_FILE: Final = "sync-failed"
# The offset, and the CRC-32C of its digits: an offset with a flipped bit would trust too much.
_MARKER: Final = re.compile(rb"([0-9]{1,18}) ([0-9a-f]{8})\n")
MARKER_BYTES_MAX: Final = 18 + 1 + 8 + 1


class Changes:
    """Counts changes, so that a flush confirms those that it covered and no later one."""

    __slots__ = ("count", "synced")

    def __init__(self, *, synced: bool) -> None:
        self.count = 0 if synced else 1
        self.synced = 0

    @property
    def wait(self) -> bool:
        """Whether some are not durable yet."""
        return self.count > self.synced

    def note(self) -> None:
        self.count += 1

    def confirm(self, count: int) -> None:
        self.synced = max(self.synced, count)


class Flushes:
    """What the flushes of one log share: what waits for them, and whether one has failed."""

    __slots__ = ("_stopped", "epochs", "failure", "mutex", "names")

    def __init__(self, *, synced: bool) -> None:
        self.mutex = Lock()
        self.names = Changes(synced=synced)
        self.epochs = Changes(synced=synced)
        self.failure: OSError | None = None
        self._stopped = False

    def stop(self) -> None:
        """Let no work begin any more, and wait for the one that runs."""
        with self.mutex:
            self._stopped = True

    @property
    def is_stopped(self) -> bool:
        return self._stopped


@dataclass(frozen=True, slots=True)
class FlushWork:
    """The blocking part of a flush: may run in any thread, and its end is told to the log."""

    storage: Storage
    folder: str
    flushes: Flushes
    generation: int
    up_to: int
    paths: tuple[str, ...]
    epochs: bool
    names: bool
    epochs_count: int
    names_count: int

    def run(self) -> None:
        """Sync; OSError when that fails, or when another work of the log has failed before.

        Does nothing when the log was given up, and then its end changes nothing either.
        """
        flushes = self.flushes
        with flushes.mutex:
            if flushes.is_stopped:
                return
            if flushes.failure is not None:
                raise flushes.failure
            try:
                self._sync()
            except OSError as error:
                flushes.failure = error
                raise

    def _sync(self) -> None:
        names = self.names or self.epochs
        for path in self.paths:
            try:
                with self.storage.cache.use(path) as file:
                    file.sync()
            except FileNotFoundError:
                # Retention removed the segment meanwhile. That must last too: were the segment
                # back after a power loss, without what was not saved, recovery would cut there.
                names = True
        if self.epochs:
            # Not through the cache: the owner of the log may put a newer file in its place.
            file = self.storage.files.open(f"{self.folder}/{LEADER_EPOCHS.file_name}")
            try:
                file.sync()
            finally:
                file.close()
        if names:
            self.storage.files.sync_folder(self.folder)


def mark_failed_sync(storage: Storage, folder: str, durable_end: int, error: OSError) -> None:
    """Note for the next opening that nothing from `durable_end` on may be trusted."""
    note_failed_sync(storage, folder, durable_end)
    marker = f"{folder}/{SYNC_FAILED_FILE}"
    try:
        write_atomically(storage.files, marker, encode_marker(durable_end), durable=True)
    except OSError as second:
        error.add_note(f"the marker {marker} could not be written either: {second}")


def note_failed_sync(storage: Storage, folder: str, durable_end: int) -> None:
    """As `mark_failed_sync`, for this process alone."""
    known = storage.failed_syncs.get(folder, durable_end)
    storage.failed_syncs[folder] = min(known, durable_end)


def failed_sync_limit(storage: Storage, folder: str, recovery_point: int) -> int | None:
    """The offset from which on a failed sync lets nothing be trusted, or None.

    A marker that cannot be understood stands for the recovery point.
    """
    noted = storage.failed_syncs.get(folder)
    path = f"{folder}/{SYNC_FAILED_FILE}"
    if not storage.files.exists(path):
        return noted
    marked = recovery_point
    if storage.files.size(path) <= MARKER_BYTES_MAX:
        marked = decode_marker(storage.files.read(path), otherwise=recovery_point)
    return marked if noted is None else min(marked, noted)


def encode_marker(durable_end: int) -> bytes:
    digits = str(durable_end).encode("ascii")
    return b"%s %08x\n" % (digits, crc32c(digits))


def decode_marker(data: bytes, *, otherwise: int) -> int:
    """The offset in a marker; what stands for it when the marker is damaged."""
    match = _MARKER.fullmatch(data)
    if match is None or crc32c(match[1]) != int(match[2], 16):
        return otherwise
    return int(match[1])


def forget_failed_sync(storage: Storage, folder: str) -> None:
    """The log was cut where the failed sync said; durable on return."""
    path = f"{folder}/{SYNC_FAILED_FILE}"
    if storage.files.exists(path):
        storage.files.remove(path)
        storage.files.sync_folder(folder)
    storage.failed_syncs.pop(folder, None)
