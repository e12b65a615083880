"""The part of a flush that blocks, and what a failed one leaves behind for the next opening.

A flush is begun and ended by the owner of a log; what lies between, the syncing, is a value that
may run in any thread. It knows paths and the caches, nothing of batches.

Invariant: a sync that failed has lost what it was asked to save, although it can still be read. The
marker says from where on, and stays until the log was cut there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tailrace.log.checkpoints import LEADER_EPOCHS, write_atomically
from tailrace.log.segment import Storage

# Left behind by a failed sync: nothing above the offset in it may be trusted at the next opening.
SYNC_FAILED_FILE: Final = "sync-failed"


@dataclass(frozen=True, slots=True)
class FlushWork:
    """The blocking part of a flush: may run in any thread, and its end is told to the log."""

    storage: Storage
    folder: str
    generation: int
    up_to: int
    paths: tuple[str, ...]
    epochs: bool
    names: bool

    def run(self) -> None:
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
    marker = f"{folder}/{SYNC_FAILED_FILE}"
    try:
        write_atomically(storage.files, marker, str(durable_end).encode(), durable=True)
    except OSError as second:
        error.add_note(f"the marker {marker} could not be written either: {second}")
