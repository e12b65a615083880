"""The Files port: everything the log asks of a file system, and the real one behind it.

The port is small on purpose, so that a simulated disk (`tests/simulation/storage.py`) can stand in
for it. Two kinds of promise are kept apart everywhere:

- what a *process* crash keeps: every completed call (the page cache survives);
- what a *power loss* keeps: the bytes of a file after its `sync`, and the names of a folder (files
  and folders made, renamed, removed in it) after `sync_folder`. Neither implies the other: a synced
  file in a folder that was not synced may have no name afterwards.

A `sync` that failed has lost what it was asked to save; calling it again proves nothing.

This module knows nothing of segments or batches. It is the one module of the log that uses `os`.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, NamedTuple, Protocol

from tailrace.errors import FolderLocked

Buffer = bytes | bytearray | memoryview
"""What can be written. A memoryview must be one of single bytes."""

Names = list[str]
"""Said here because `Files.list` hides the builtin from the annotations around it."""

BUFFERS_PER_WRITE_MAX = os.sysconf("SC_IOV_MAX")
"""How many buffers the kernel takes in one call (IOV_MAX)."""

BOOT_ID_PATH = "/proc/sys/kernel/random/boot_id"

_FILE_MODE = 0o644
_LOCK_HOLDER_BYTES_MAX = 32
# Not everywhere: without it nothing is known to be in memory.
_NOWAIT: Final[int] = getattr(os, "RWF_NOWAIT", 0)


class Space(NamedTuple):
    """The room on the disk of a folder."""

    free_bytes: int
    total_bytes: int


class OpenFile(Protocol):
    """One open file. All calls raise OSError; none leaves the object unusable.

    Calls may come from several threads at once, `close` excepted: it must be the last one.
    """

    def write_at(self, position: int, buffers: Sequence[Buffer]) -> None:
        """Write all buffers, one after the other, from `position` on.

        An error may leave any prefix of them behind. A gap before `position` reads as zeros.
        """

    def read_at(self, position: int, size: int) -> bytes:
        """Read up to `size` bytes; fewer only at the end of the file."""

    def read_at_once(self, position: int, size: int) -> bytearray | None:
        """Read exactly `size` bytes that are in memory; None when that might take a while."""

    def size(self) -> int: ...

    def truncate(self, size: int) -> None:
        """Cut the file, or lengthen it with zeros."""

    def sync(self) -> None:
        """Make the bytes and the size survive a power loss (fdatasync)."""

    def fileno(self) -> int:
        """The descriptor, for `os.sendfile`; a file that has none raises OSError."""

    def close(self) -> None:
        """Fine when it is closed already; every other call then raises OSError(EBADF)."""


class FolderLock(Protocol):
    def release(self) -> None:
        """Fine when it is released already."""


class Files(Protocol):
    """A file system. Paths are strings; missing files raise FileNotFoundError."""

    def open(self, path: str, *, create: bool = False) -> OpenFile:
        """Open for reading and writing; `create` makes the file when it is missing."""

    def list(self, folder: str) -> Names:
        """The sorted names in a folder (files and folders)."""

    def exists(self, path: str) -> bool: ...

    def is_folder(self, path: str) -> bool: ...

    def size(self, path: str) -> int: ...

    def read(self, path: str) -> bytes:
        """A whole (small) file."""

    def rename(self, source: str, target: str) -> None:
        """Atomically give `source` the name `target`, replacing what had it.

        Only an empty folder can be replaced, and only by a folder.
        """

    def remove(self, path: str) -> None:
        """Remove a file. Whoever has it open can still use it."""

    def make_folder(self, path: str) -> None:
        """Make the folder and its parents; fine when it is there.

        Each new name lasts when the folder above it was synced.
        """

    def remove_folder(self, path: str) -> None:
        """Remove the folder with all that is in it. A crash may leave a part of it."""

    def sync_folder(self, path: str) -> None: ...

    def lock(self, path: str) -> FolderLock:
        """Take an exclusive lock that ends with the process; raise FolderLocked when taken.

        `path` is a file, made when it is missing and never removed.
        """

    def boot_id(self) -> str:
        """A text that changes whenever the machine has started anew."""

    def space(self, folder: str) -> Space:
        """How much room there is on the disk that a folder is on."""


class OsFile:
    """A file of the operating system."""

    __slots__ = ("_always_waits", "_fd")

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._always_waits = not _NOWAIT

    def write_at(self, position: int, buffers: Sequence[Buffer]) -> None:
        if position < 0:
            # The kernel takes -1 for "where the descriptor stands": the start of the file.
            raise OSError(errno.EINVAL, "a position cannot be negative")
        size = 0
        for buffer in buffers:
            size += len(buffer)
        written = 0
        if len(buffers) <= BUFFERS_PER_WRITE_MAX:
            written = os.pwritev(self._fd, buffers, position)
        if written != size:
            _write_rest(self._fd, position, buffers, written)

    def read_at(self, position: int, size: int) -> bytes:
        data = os.pread(self._fd, size, position)
        if len(data) == size or not data:
            return data
        return _read_rest(self._fd, position, size, data)

    def read_at_once(self, position: int, size: int) -> bytearray | None:
        if self._always_waits:
            return None
        data = bytearray(size)
        try:
            found = os.preadv(self._fd, (data,), position, _NOWAIT)
        except OSError as error:
            # Some file systems (tmpfs is one) never promise not to wait.
            self._always_waits = error.errno == errno.EOPNOTSUPP
            if error.errno not in {errno.EAGAIN, errno.EOPNOTSUPP}:
                raise
            return None
        return data if found == size else None

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def sync(self) -> None:
        os.fdatasync(self.fileno())

    def fileno(self) -> int:
        if self._fd < 0:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        return self._fd

    def close(self) -> None:
        # -1 is never a descriptor: a late call gets EBADF instead of some other file.
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


class OsFolderLock:
    """An flock: the kernel drops it when the last descriptor of it goes, however that happens."""

    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def release(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


class OsFiles:
    """The file system of the operating system (Linux).

    Signals never end a call half-way: Python repeats what returns EINTR (PEP 475).
    """

    __slots__ = ()

    def open(self, path: str, *, create: bool = False) -> OsFile:
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        return OsFile(os.open(path, flags, _FILE_MODE))

    def list(self, folder: str) -> Names:
        return sorted(os.listdir(folder))

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def is_folder(self, path: str) -> bool:
        return os.path.isdir(path)

    def size(self, path: str) -> int:
        return os.stat(path).st_size

    def read(self, path: str) -> bytes:
        with open(path, "rb", buffering=0) as file:
            return file.read()

    def rename(self, source: str, target: str) -> None:
        os.rename(source, target)

    def remove(self, path: str) -> None:
        os.unlink(path)

    def make_folder(self, path: str) -> None:
        os.makedirs(path, exist_ok=True)

    def remove_folder(self, path: str) -> None:
        shutil.rmtree(path)

    def sync_folder(self, path: str) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def lock(self, path: str) -> OsFolderLock:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _FILE_MODE)
        try:
            _lock_or_name_holder(fd, path)
            # For people, and for the message that the next one gets; the lock is the flock.
            os.ftruncate(fd, 0)
            with suppress(OSError):
                os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        except BaseException:
            os.close(fd)
            raise
        return OsFolderLock(fd)

    def boot_id(self) -> str:
        return self.read(BOOT_ID_PATH).decode("ascii").strip()

    def space(self, folder: str) -> Space:
        found = os.statvfs(folder)
        return Space(found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize)


def _write_rest(fd: int, position: int, buffers: Sequence[Buffer], written: int) -> None:
    """Go on after `written` bytes: the kernel wrote less, or takes fewer buffers at a time."""
    position += written
    rest: list[memoryview] = []
    for buffer in buffers:
        view = memoryview(buffer).cast("B")
        skipped = min(written, len(view))
        written -= skipped
        if skipped < len(view):
            rest.append(view[skipped:])
    done = 0
    while done < len(rest):
        taken = os.pwritev(fd, rest[done : done + BUFFERS_PER_WRITE_MAX], position)
        if taken == 0:
            raise OSError(errno.EIO, "the file takes no more bytes and gives no reason")
        position += taken
        while taken and taken >= len(rest[done]):
            taken -= len(rest[done])
            done += 1
        if taken:
            rest[done] = rest[done][taken:]


def _read_rest(fd: int, position: int, size: int, data: bytes) -> bytes:
    """Tell a short read from the end of the file: only an empty one is the end."""
    parts = [data]
    have = len(data)
    while have < size:
        data = os.pread(fd, size - have, position + have)
        if not data:
            break
        parts.append(data)
        have += len(data)
    return b"".join(parts)


def _lock_or_name_holder(fd: int, path: str) -> None:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(fd, _LOCK_HOLDER_BYTES_MAX, 0).decode("ascii", "replace").strip()
        # Empty in the moment between the holder's flock and its writing of the number.
        who = f"process {holder}" if holder.isdigit() else "another process"
        raise FolderLocked(f"{path} is locked by {who}") from None
