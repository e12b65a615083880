"""Files of this machine that are only read: what the tools look through.

Every file is opened for reading alone, so that a tool can neither change a log by mistake nor fail
on one that it may only read. Whether a folder is in use is read from the kernel's list of locks:
asking for the lock itself, even for a moment, could keep a broker from starting.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import Final

from tailrace.log.data_folder import LOCK_FILE
from tailrace.log.files import BOOT_ID_PATH, Names

LOCKS_PATH: Final = "/proc/locks"
READ_BYTES: Final = 1 << 20


class SourceFile:
    """One file, open for reading."""

    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def read_at(self, position: int, size: int) -> bytes:
        parts: list[bytes] = []
        while size > 0:
            part = os.pread(self._fd, size, position)
            if not part:
                break
            parts.append(part)
            position += len(part)
            size -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


class SourceFiles:
    """The part of the Files port that changes nothing (`ReadOnlyFiles` of the audit)."""

    __slots__ = ()

    def open(self, path: str) -> SourceFile:
        # Not waiting: the opening of a pipe would last until somebody writes to it.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise OSError(errno.EINVAL, "it is not a regular file", path)
        return SourceFile(fd)

    def list(self, folder: str) -> Names:
        return sorted(each.name for each in Path(folder).iterdir())

    def exists(self, path: str) -> bool:
        return Path(path).exists()

    def is_folder(self, path: str) -> bool:
        return Path(path).is_dir()

    def size(self, path: str) -> int:
        return Path(path).stat().st_size

    def read(self, path: str) -> bytes:
        file = self.open(path)
        try:
            return _read_all(file)
        finally:
            file.close()

    def boot_id(self) -> str:
        return self.read(BOOT_ID_PATH).decode("ascii").strip()


def _read_all(file: SourceFile) -> bytes:
    """To the end, wherever that is: the kernel's own files say that they are empty."""
    parts: list[bytes] = []
    position = 0
    while part := file.read_at(position, READ_BYTES):
        parts.append(part)
        position += len(part)
    return b"".join(parts)


def is_in_use(folder: str) -> bool:
    """Whether a process of this machine holds the lock of a data folder.

    A process of another container is not seen: the kernel hides it.
    """
    try:
        lock = (Path(folder) / LOCK_FILE).stat()
        locks = Path(LOCKS_PATH).read_text(encoding="ascii")
    except OSError:
        return False
    # 1: FLOCK  ADVISORY  WRITE 15700 fe:00:9979872 0 EOF
    place = f"{os.major(lock.st_dev):02x}:{os.minor(lock.st_dev):02x}:{lock.st_ino}"
    return any(
        len(words) > 5 and words[1] == "FLOCK" and words[5] == place
        for words in map(str.split, locks.splitlines())
    )
