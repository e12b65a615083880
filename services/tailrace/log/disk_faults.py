"""A disk that is slow, full or broken on request: a wrapper around the Files port, for drills.

A broker that is started with `debug.disk.faults=FILE` looks into that file now and then. Each line
is a fault of one data folder, and of all that is in it:

    slow FOLDER MS      each sync takes so much longer
    cold FOLDER MS      each read takes so much longer: nothing is in memory
    full FOLDER         there is no room: writes and new files end with ENOSPC
    unsynced FOLDER     each sync ends with EIO, and all else works
    fail FOLDER         everything ends with EIO

A missing or empty file, and a line that makes no sense, is no fault. Without the setting nothing of
this is in the way of anything.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from enum import Enum
from threading import Event
from typing import Final, NamedTuple

from tailrace.clock import Clock
from tailrace.log.files import Buffer, Files, FolderLock, Names, OpenFile, Space

LOOK_MS: Final = 100


class FaultKind(Enum):
    """What can be wrong with a disk."""

    SLOW = "slow"
    COLD = "cold"
    FULL = "full"
    UNSYNCED = "unsynced"
    FAIL = "fail"


class Fault(NamedTuple):
    """One fault; `ms` is that of a slow or cold disk. A folder may be that of one partition."""

    kind: FaultKind
    folder: str
    ms: int = 0


class DiskFaults:
    """The faults that are in force."""

    def __init__(self, faults: Sequence[Fault] = ()) -> None:
        self._faults = tuple(faults)

    def set(self, *faults: Fault) -> None:
        self._faults = faults

    def now(self) -> tuple[Fault, ...]:
        return self._faults

    def check(self, path: str, *, grows: bool = False) -> None:
        """Raise what the disk would; `grows`: the call needs room."""
        for fault in self.now():
            if not _is_in(path, fault.folder):
                continue
            if fault.kind is FaultKind.FAIL:
                raise OSError(errno.EIO, os.strerror(errno.EIO), path)
            if fault.kind is FaultKind.FULL and grows:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    def check_sync(self, path: str) -> None:
        """As `check`, of a sync."""
        self.check(path)
        if self._of(path, FaultKind.UNSYNCED):
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)

    def delay(self, path: str, kind: FaultKind) -> None:
        """Wait as a slow or cold disk would."""
        for fault in self._of(path, kind):
            Event().wait(fault.ms / 1_000)

    def delays(self, path: str, kind: FaultKind) -> bool:
        """Whether `delay` would wait."""
        return bool(self._of(path, kind))

    def is_full(self, path: str) -> bool:
        return bool(self._of(path, FaultKind.FULL))

    def _of(self, path: str, kind: FaultKind) -> list[Fault]:
        return [each for each in self.now() if each.kind is kind and _is_in(path, each.folder)]


class FaultsFile(DiskFaults):
    """Faults that stand in a file; it is read again when LOOK_MS have passed."""

    def __init__(self, files: Files, path: str, clock: Clock) -> None:
        super().__init__()
        self._files = files
        self._path = path
        self._clock = clock
        self._looked_ms = -LOOK_MS

    def now(self) -> tuple[Fault, ...]:
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._looked_ms >= LOOK_MS:
            self._looked_ms = now_ms
            try:
                self.set(*parse(self._files.read(self._path).decode("utf-8", "replace")))
            except OSError:
                self.set()
        return super().now()


def parse(text: str) -> list[Fault]:
    """The faults that the lines name."""
    faults: list[Fault] = []
    for line in text.splitlines():
        words = line.split()
        if len(words) < 2 or words[0] not in {kind.value for kind in FaultKind}:
            continue
        ms = int(words[2]) if len(words) > 2 and words[2].isdecimal() else 0
        faults.append(Fault(FaultKind(words[0]), words[1].rstrip("/"), ms))
    return faults


class FaultyFiles:
    """Files with faults."""

    def __init__(self, below: Files, faults: DiskFaults) -> None:
        self._below = below
        self._faults = faults

    def open(self, path: str, *, create: bool = False) -> OpenFile:
        self._faults.check(path, grows=create and not self._below.exists(path))
        return _FaultyFile(self._below.open(path, create=create), path, self._faults)

    def list(self, folder: str) -> Names:
        self._faults.check(folder)
        return self._below.list(folder)

    def exists(self, path: str) -> bool:
        self._faults.check(path)
        return self._below.exists(path)

    def is_folder(self, path: str) -> bool:
        self._faults.check(path)
        return self._below.is_folder(path)

    def size(self, path: str) -> int:
        self._faults.check(path)
        return self._below.size(path)

    def read(self, path: str) -> bytes:
        self._faults.check(path)
        return self._below.read(path)

    def rename(self, source: str, target: str) -> None:
        self._faults.check(source)
        self._below.rename(source, target)

    def remove(self, path: str) -> None:
        self._faults.check(path)
        self._below.remove(path)

    def make_folder(self, path: str) -> None:
        self._faults.check(path, grows=not self._below.is_folder(path))
        self._below.make_folder(path)

    def remove_folder(self, path: str) -> None:
        self._faults.check(path)
        self._below.remove_folder(path)

    def sync_folder(self, path: str) -> None:
        self._faults.check_sync(path)
        self._faults.delay(path, FaultKind.SLOW)
        self._below.sync_folder(path)

    def lock(self, path: str) -> FolderLock:
        self._faults.check(path)
        return self._below.lock(path)

    def boot_id(self) -> str:
        return self._below.boot_id()

    def space(self, folder: str) -> Space:
        self._faults.check(folder)
        found = self._below.space(folder)
        return Space(0, found.total_bytes) if self._faults.is_full(folder) else found


class _FaultyFile:
    """An open file with the faults of its folder."""

    __slots__ = ("_faults", "_file", "_path")

    def __init__(self, file: OpenFile, path: str, faults: DiskFaults) -> None:
        self._file = file
        self._path = path
        self._faults = faults

    def write_at(self, position: int, buffers: Sequence[Buffer]) -> None:
        self._faults.check(self._path, grows=True)
        self._file.write_at(position, buffers)

    def read_at(self, position: int, size: int) -> bytes:
        self._faults.check(self._path)
        self._faults.delay(self._path, FaultKind.COLD)
        return self._file.read_at(position, size)

    def read_at_once(self, position: int, size: int) -> bytearray | None:
        self._faults.check(self._path)
        if self._faults.delays(self._path, FaultKind.COLD):
            return None
        return self._file.read_at_once(position, size)

    def size(self) -> int:
        return self._file.size()

    def truncate(self, size: int) -> None:
        self._faults.check(self._path)
        self._file.truncate(size)

    def sync(self) -> None:
        self._faults.check_sync(self._path)
        self._faults.delay(self._path, FaultKind.SLOW)
        self._file.sync()

    def fileno(self) -> int:
        return self._file.fileno()

    def close(self) -> None:
        self._file.close()


def _is_in(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder + "/")
