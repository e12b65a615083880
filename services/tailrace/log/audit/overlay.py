"""Files whose changes stay in memory: what would a piece of code do to this folder?

`OverlayFiles` stands over files that are only read and takes every change itself, so that real
code (opening a log, see `log.rehearsal`) can run on real data and leave it as it is. It keeps a cut
as a number and a renamed file as a name; only bytes that are written take memory.

Invariant: nothing here ever calls anything that could change the files below. Not thread-safe.
Folders can be made and removed in it but not renamed: opening a log never does.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from enum import Enum
from typing import Final, NamedTuple, Protocol

from tailrace.errors import CorruptCheckpoint
from tailrace.log.files import Buffer, Names, Space

IMAGINED_BYTES: Final = 1 << 50


class ReadOnlyFile(Protocol):
    """The part of `OpenFile` that changes nothing."""

    def read_at(self, position: int, size: int) -> bytes:
        """Read up to `size` bytes; fewer only at the end of the file."""

    def size(self) -> int: ...

    def close(self) -> None: ...


class ReadOnlyFiles(Protocol):
    """The part of `Files` that changes nothing."""

    def open(self, path: str) -> ReadOnlyFile: ...

    def list(self, folder: str) -> Names: ...

    def exists(self, path: str) -> bool: ...

    def is_folder(self, path: str) -> bool: ...

    def size(self, path: str) -> int: ...

    def read(self, path: str) -> bytes: ...

    def boot_id(self) -> str: ...


def read_small(files: ReadOnlyFiles, path: str, limit_bytes: int) -> bytes:
    """A whole file; CorruptCheckpoint, and nothing is read, when it is larger than it can be."""
    file = files.open(path)
    try:
        size = file.size()
        if size > limit_bytes:
            raise CorruptCheckpoint(f"{size} bytes are more than its limit of {limit_bytes}")
        return file.read_at(0, size)
    finally:
        file.close()


class ChangeKind(Enum):
    """What became of a file."""

    REMOVED = "removed"
    CUT = "cut"
    WRITTEN = "written"


class Change(NamedTuple):
    """A file that is not what it was; `size` is its size now, 0 for a removed one."""

    kind: ChangeKind
    size: int


class OverlayFiles:
    """The Files port over files that are only read; `changes` tells what was done through it."""

    def __init__(self, below: ReadOnlyFiles) -> None:
        self._below = below
        # What the names mean up here; None is a name that is gone. Others are as below.
        self._contents: dict[str, _Content | None] = {}
        self._folders_made: set[str] = set()
        self._folders_gone: set[str] = set()

    def changes(self) -> dict[str, Change]:
        """Every file that is not the same as below; removed folders are there with their files."""
        found: dict[str, Change] = {}
        for path, content in self._contents.items():
            change = self._change(path, content)
            if change is not None:
                found[path] = change
        return found

    # The Files port.

    def open(self, path: str, *, create: bool = False) -> OverlayFile:
        content = self._find(path)
        if content is None:
            if not create or self.is_folder(path):
                raise self._missing(path)
            content = self._contents[path] = _Content(None, 0)
        return OverlayFile(self._below, content)

    def list(self, folder: str) -> Names:
        if not self.is_folder(folder):
            raise _missing(folder)
        names: set[str] = set()
        if not self._is_gone(folder) and self._below.is_folder(folder):
            names.update(self._below.list(folder))
        above = {path for path, content in self._contents.items() if content is not None}
        for path in above | self._folders_made:
            parent, _, name = path.rpartition("/")
            if parent == folder:
                names.add(name)
        return sorted(name for name in names if self.exists(f"{folder}/{name}"))

    def exists(self, path: str) -> bool:
        return self.is_folder(path) or self._find(path) is not None

    def is_folder(self, path: str) -> bool:
        if path in self._folders_made:
            return True
        return not self._is_gone(path) and self._below.is_folder(path)

    def size(self, path: str) -> int:
        return self._content(path).size

    def read(self, path: str) -> bytes:
        file = self.open(path)
        try:
            return file.read_at(0, file.size())
        finally:
            file.close()

    def rename(self, source: str, target: str) -> None:
        content = self._content(source)
        self._contents[source] = None
        self._contents[target] = content

    def remove(self, path: str) -> None:
        self._content(path)
        self._contents[path] = None

    def make_folder(self, path: str) -> None:
        while path and not self.is_folder(path):
            self._folders_made.add(path)
            path = path.rpartition("/")[0]

    def remove_folder(self, path: str) -> None:
        for name in self.list(path):
            inside = f"{path}/{name}"
            if self.is_folder(inside):
                self.remove_folder(inside)
            else:
                self.remove(inside)
        self._folders_made.discard(path)
        self._folders_gone.add(path)

    def sync_folder(self, path: str) -> None:
        """Nothing in here would survive anything."""

    def lock(self, path: str) -> OverlayLock:
        """Always granted: who only imagines changes disturbs nobody."""
        return OverlayLock()

    def boot_id(self) -> str:
        return self._below.boot_id()

    def space(self, folder: str) -> Space:
        """What is only imagined takes no room."""
        return Space(IMAGINED_BYTES, IMAGINED_BYTES)

    # The parts of the above.

    def _find(self, path: str) -> _Content | None:
        if path in self._contents:
            return self._contents[path]
        if self._is_gone(path) or self._below.is_folder(path) or not self._below.exists(path):
            return None
        # The size is asked for once: a file that grows below must not grow in here.
        content = self._contents[path] = _Content(path, self._below.size(path))
        return content

    def _content(self, path: str) -> _Content:
        content = self._find(path)
        if content is None:
            raise self._missing(path)
        return content

    def _missing(self, path: str) -> OSError:
        """A folder under the name of a file is not the same as none: opening fails on it."""
        if self.is_folder(path):
            return IsADirectoryError(errno.EISDIR, "Is a directory", path)
        return _missing(path)

    def _is_gone(self, path: str) -> bool:
        return any(path == gone or path.startswith(f"{gone}/") for gone in self._folders_gone)

    def _change(self, path: str, content: _Content | None) -> Change | None:
        is_below = self._below.exists(path)
        if content is None:
            return Change(ChangeKind.REMOVED, 0) if is_below else None
        if content.source == path and not content.added:
            cut = content.keep < content.found_size
            return Change(ChangeKind.CUT, content.keep) if cut else None
        same = is_below and content.keep == 0 and self._has_below(path, bytes(content.added))
        return None if same else Change(ChangeKind.WRITTEN, content.size)

    def _has_below(self, path: str, data: bytes) -> bool:
        try:
            return self._below.size(path) == len(data) and self._below.read(path) == data
        except FileNotFoundError:
            # The folder is in use, and its owner has removed the file just now.
            return False


class OverlayFile:
    """A file of `OverlayFiles`; several handles of one file see the same bytes."""

    __slots__ = ("_below", "_content", "_source")

    def __init__(self, below: ReadOnlyFiles, content: _Content) -> None:
        self._below = below
        self._content = content
        self._source: ReadOnlyFile | None = None

    def write_at(self, position: int, buffers: Sequence[Buffer]) -> None:
        content = self._content
        if position < content.keep:
            # What is overwritten, and all behind it, is kept in memory from here on.
            content.added[:0] = self._read_below(position, content.keep - position)
            content.keep = position
        start = position - content.keep
        if start > len(content.added):
            content.added.extend(bytes(start - len(content.added)))
        for buffer in buffers:
            content.added[start : start + len(buffer)] = buffer
            start += len(buffer)

    def read_at(self, position: int, size: int) -> bytes:
        content = self._content
        kept = b""
        if position < content.keep:
            kept = self._read_below(position, min(size, content.keep - position))
        start = max(position - content.keep, 0)
        rest = size - len(kept)
        if not rest or start >= len(content.added):
            return kept
        return kept + bytes(content.added[start : start + rest])

    def read_at_once(self, position: int, size: int) -> bytearray | None:
        """Nobody who looks at a copy is in a hurry."""

    def size(self) -> int:
        return self._content.size

    def truncate(self, size: int) -> None:
        content = self._content
        if size <= content.keep:
            content.keep = size
            content.added.clear()
            return
        added_bytes = size - content.keep
        del content.added[added_bytes:]
        content.added.extend(bytes(added_bytes - len(content.added)))

    def sync(self) -> None:
        """Nothing in here would survive anything."""

    def fileno(self) -> int:
        raise OSError(errno.EBADF, "a file in memory has no descriptor")

    def close(self) -> None:
        if self._source is not None:
            self._source.close()
            self._source = None

    def _read_below(self, position: int, size: int) -> bytes:
        if self._content.source is None:
            return b""
        if self._source is None:
            self._source = self._below.open(self._content.source)
        return self._source.read_at(position, size)


class OverlayLock:
    """A lock that keeps nobody out."""

    def release(self) -> None:
        """There is nothing to give back."""


class _Content:
    """The bytes of a file: the first `keep` of a file below, then those added up here."""

    __slots__ = ("added", "found_size", "keep", "source")

    def __init__(self, source: str | None, keep: int) -> None:
        self.source = source
        self.keep = keep
        self.found_size = keep
        self.added = bytearray()

    @property
    def size(self) -> int:
        return self.keep + len(self.added)


def _missing(path: str) -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, "No such file or directory", path)
