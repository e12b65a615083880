"""A disk in memory that crashes, loses power, tears writes, fills up and lies about nothing else.

`SimFiles` implements the Files port. The same seed and the same calls give the same outcome, so a
failing sequence replays. It is not thread-safe: a simulation has one thread.

What is kept and what is lost stands in `simulation.disk_state`. In short: a process crash keeps
every completed call and any prefix of a write under way; a power loss keeps what was synced, and
of the rest any mixture.
"""

from __future__ import annotations

import errno
import os
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from random import Random
from typing import Never
from uuid import UUID

from simulation.disk_state import (
    FileNode,
    Folder,
    NameJournal,
    Node,
    files_below,
    forget_volatile_names,
    is_below,
)
from tailrace.errors import FolderLocked
from tailrace.log.files import Buffer, Names, Space

TRACE_OPERATIONS_MAX = 400

LOCK_HOLDER = 1
"""The process number in lock files; a real one would differ from run to run."""


class SimulatedCrash(BaseException):
    """The process dies here. Not an Exception, so that no handler of the code under test eats it.

    Until `SimFiles.crash` is called, every further call raises it too: the dead do nothing.
    """


ENDLESS_BYTES = 1 << 50


class SimFiles:
    """The simulated disk: the Files port first, then crashes, faults and what a test may ask."""

    def __init__(self, seed: int | Random = 0) -> None:
        self._rng = seed if isinstance(seed, Random) else Random(seed)
        self._root = Folder()
        self._names = NameJournal()
        self._locked: dict[str, _SimLock] = {}
        self._boot_id = self._new_boot_id()
        # Handles of another life than this one are dead.
        self._life = 0
        self._dead = False
        self._crash_at = 0
        self._tear_suffix: str | None = None
        self._fail_sync_suffix: str | None = None
        self._fail_folder_sync = False
        self._trace: deque[tuple[int, str, str, str | tuple[int, int]]] = deque(
            maxlen=TRACE_OPERATIONS_MAX
        )
        self._used_bytes = 0
        self.operations = 0
        """Mutating calls so far; `remove_folder` and `make_folder` count once for each name."""
        self.bytes_read = 0
        # Whether reads that must not wait find everything in memory, or nothing.
        self.is_in_memory = False
        self.open_files = 0
        self.disk_bytes_max: int | None = None
        """Where the disk is full: a write that does not fit leaves what fits, and ENOSPC."""

    def open(self, path: str, *, create: bool = False) -> SimFile:
        folder, name = self._parent(path)
        node = folder.entries.get(name)
        if isinstance(node, Folder):
            raise _error(errno.EISDIR, path)
        if node is not None:
            return SimFile(self, path, node)
        if not create:
            raise _error(errno.ENOENT, path)
        dies = self._count("create", path)
        node = FileNode()
        self._names.change((folder, name, node))
        if dies:
            self._die()
        return SimFile(self, path, node)

    def list(self, folder: str) -> Names:
        return sorted(self._folder(folder).entries)

    def exists(self, path: str) -> bool:
        return self._find(path) is not None

    def is_folder(self, path: str) -> bool:
        return isinstance(self._find(path), Folder)

    def size(self, path: str) -> int:
        return len(self._file(path).data)

    def read(self, path: str) -> bytes:
        data = bytes(self._file(path).data)
        self.bytes_read += len(data)
        return data

    def rename(self, source: str, target: str) -> None:
        from_folder, from_name = self._parent(source)
        to_folder, to_name = self._parent(target)
        node = from_folder.entries.get(from_name)
        if node is None:
            raise _error(errno.ENOENT, source)
        replaced = to_folder.entries.get(to_name)
        if replaced is node:
            return
        _check_replaceable(node, replaced, target)
        if isinstance(node, Folder) and is_below(node, to_folder):
            raise _error(errno.EINVAL, target)
        dies = self._count("rename", source, f"to {target}")
        self._names.change((from_folder, from_name, None), (to_folder, to_name, node))
        if isinstance(replaced, FileNode):
            self._unlink(replaced)
        if dies:
            self._die()

    def remove(self, path: str) -> None:
        folder, name = self._parent(path)
        node = folder.entries.get(name)
        if node is None:
            raise _error(errno.ENOENT, path)
        if isinstance(node, Folder):
            raise _error(errno.EISDIR, path)
        self._remove_name(path, folder, name, node)

    def make_folder(self, path: str) -> None:
        self._check_alive()
        folder = self._root
        names = _split(path)
        for depth, name in enumerate(names):
            node = folder.entries.get(name)
            if isinstance(node, FileNode):
                is_last = depth == len(names) - 1
                raise _error(errno.EEXIST if is_last else errno.ENOTDIR, path)
            if node is None:
                dies = self._count("make_folder", "/" + "/".join(names[: depth + 1]))
                node = Folder()
                self._names.change((folder, name, node))
                if dies:
                    self._die()
            folder = node

    def remove_folder(self, path: str) -> None:
        folder, name = self._parent(path)
        node = folder.entries.get(name)
        if node is None:
            raise _error(errno.ENOENT, path)
        if isinstance(node, FileNode):
            raise _error(errno.ENOTDIR, path)
        self._remove_tree(path, folder, name, node)

    def sync_folder(self, path: str) -> None:
        folder = self._folder(path)
        dies = self._count("sync_folder", path)
        if self._fail_folder_sync and not dies:
            self._fail_folder_sync = False
            raise _error(errno.EIO, path)
        self._names.sync(folder)
        if dies:
            self._die()

    def lock(self, path: str) -> _SimLock:
        self._check_alive()
        key = "/".join(_split(path))
        if key in self._locked:
            raise FolderLocked(f"{path} is locked by process {LOCK_HOLDER}")
        file = self.open(path, create=True)
        try:
            file.truncate(0)
            with suppress(OSError):
                file.write_at(0, [f"{LOCK_HOLDER}\n".encode()])
        except OSError:
            file.close()
            raise
        lock = self._locked[key] = _SimLock(self, key, file)
        return lock

    def boot_id(self) -> str:
        self._check_alive()
        return self._boot_id

    def space(self, folder: str) -> Space:
        self._check_alive()
        total = self.disk_bytes_max if self.disk_bytes_max is not None else ENDLESS_BYTES
        return Space(max(total - self._used_bytes, 0), total)

    def crash(self, *, power_loss: bool) -> None:
        """The process (or the machine) is gone; afterwards another one may start.

        Open files are dead, locks are free, and faults that wait for their call are called off.
        `disk_bytes_max` stays.
        """
        self._trace.append((self.operations, "POWER LOSS" if power_loss else "CRASH", "", ""))
        self._life += 1
        self._dead = False
        self._crash_at = 0
        self._tear_suffix = None
        self._fail_sync_suffix = None
        self._fail_folder_sync = False
        self._locked.clear()
        self.open_files = 0
        if power_loss:
            self._names.lose_power(self._rng)
            forget_volatile_names(self._root)
            self._boot_id = self._new_boot_id()
        self._used_bytes = 0
        for node in files_below(self._root):
            node.handles = 0
            if power_loss:
                node.lose_power(self._rng)
            self._used_bytes += len(node.data)

    def crash_at_operation(self, number: int) -> None:
        """Die at the `number`-th mutating call from now (1 is the next): before it, after it, or,
        where it is a write, in the middle."""
        self._crash_at = self.operations + number

    def tear_next_write(self, suffix: str = "") -> None:
        """Die in the middle of the next write to a file whose path ends like this."""
        self._tear_suffix = suffix

    def fail_next_sync(self, suffix: str = "") -> None:
        """The next sync of a file whose path ends like this raises EIO, and loses what it had to
        save."""
        self._fail_sync_suffix = suffix

    def fail_next_folder_sync(self) -> None:
        """The next `sync_folder` raises EIO and makes nothing durable; a later one may."""
        self._fail_folder_sync = True

    def flip_bits(self, path: str, position: int, mask: int = 0x01) -> None:
        """Damage one byte, as it is seen and as it is on the disk."""
        self._trace.append((self.operations, "FLIP", path, f"byte {position} with {mask:#04x}"))
        self._file(path).flip(position, mask)

    def cut(self, path: str, size: int) -> None:
        """Damage: the file ends here, as it is seen and on the disk."""
        self._trace.append((self.operations, "CUT", path, f"to {size} bytes"))
        node = self._file(path)
        before = len(node.data)
        node.cut(size)
        self._used_bytes += len(node.data) - before

    @property
    def used_bytes(self) -> int:
        return self._used_bytes

    @property
    def sync_fault_is_armed(self) -> bool:
        return self._fail_sync_suffix is not None or self._fail_folder_sync

    def failed_syncs_since(self, operation: int, suffix: str) -> int:
        """How many syncs of files that end like this failed after an operation."""
        return sum(
            number > operation and what == "SYNC FAILS" and path.endswith(suffix)
            for number, what, path, _ in self._trace
        )

    def trace(self) -> str:
        """The last operations, a line each, for the report of a failing seed."""
        lines = []
        for number, what, path, detail in self._trace:
            shown = detail if isinstance(detail, str) else f"at {detail[0]}, {detail[1]} bytes"
            lines.append(f"{number:6} {what:11} {path} {shown}".rstrip())
        return "\n".join(lines)

    # From here on: what the handles and the methods above share.

    def _new_boot_id(self) -> str:
        return str(UUID(int=self._rng.getrandbits(128)))

    def _check_alive(self) -> None:
        if self._dead:
            raise SimulatedCrash("the process is dead already")

    def _die(self) -> Never:
        self._dead = True
        self._life += 1
        self._trace.append((self.operations, "DIES", "", ""))
        raise SimulatedCrash(f"at operation {self.operations}")

    def _refuse(self, path: str) -> Never:
        """A call on a handle that is closed or of another life."""
        self._check_alive()
        raise _error(errno.EBADF, path)

    def _count(self, what: str, path: str, detail: str | tuple[int, int] = "") -> bool:
        """One more mutating call; dies before it, or says that it shall die in or after it."""
        self._check_alive()
        self.operations += 1
        self._trace.append((self.operations, what, path, detail))
        if self.operations != self._crash_at:
            return False
        self._crash_at = 0
        if self._rng.random() < 0.5:
            self._die()
        return True

    def _find(self, path: str) -> Node | None:
        self._check_alive()
        node: Node | None = self._root
        for name in _split(path):
            if not isinstance(node, Folder):
                return None
            node = node.entries.get(name)
        return node

    def _parent(self, path: str) -> tuple[Folder, str]:
        self._check_alive()
        names = _split(path)
        if not names:
            raise _error(errno.EISDIR, path)
        node: Node | None = self._root
        for step in names[:-1]:
            node = node.entries.get(step) if isinstance(node, Folder) else node
            if node is None:
                raise _error(errno.ENOENT, path)
        if not isinstance(node, Folder):
            raise _error(errno.ENOTDIR, path)
        return node, names[-1]

    def _folder(self, path: str) -> Folder:
        node = self._find(path)
        if node is None:
            raise _error(errno.ENOENT, path)
        if not isinstance(node, Folder):
            raise _error(errno.ENOTDIR, path)
        return node

    def _file(self, path: str) -> FileNode:
        node = self._find(path)
        if node is None:
            raise _error(errno.ENOENT, path)
        if not isinstance(node, FileNode):
            raise _error(errno.EISDIR, path)
        return node

    def _remove_name(self, path: str, folder: Folder, name: str, node: Node) -> None:
        dies = self._count("remove", path)
        self._names.change((folder, name, None))
        if isinstance(node, FileNode):
            self._unlink(node)
        if dies:
            self._die()

    def _remove_tree(self, path: str, folder: Folder, name: str, node: Folder) -> None:
        below = sorted(node.entries.items())
        # A real folder is read in the order of a hash.
        self._rng.shuffle(below)
        for child_name, child in below:
            child_path = f"{path}/{child_name}"
            if isinstance(child, Folder):
                self._remove_tree(child_path, node, child_name, child)
            else:
                self._remove_name(child_path, node, child_name, child)
        self._remove_name(path, folder, name, node)

    def _unlink(self, node: FileNode) -> None:
        node.linked = False
        self._free_if_unused(node)

    def _free_if_unused(self, node: FileNode) -> None:
        if not node.linked and node.handles == 0:
            self._used_bytes -= len(node.data)

    def _write(self, file: SimFile, position: int, chunk: bytes) -> None:
        node, path = file._node, file._path
        torn = self._count("write", path, (position, len(chunk)))
        if self._tear_suffix is not None and path.endswith(self._tear_suffix):
            self._tear_suffix = None
            torn = True
        before = len(node.data)
        is_full = False
        if self.disk_bytes_max is not None:
            fits = before + max(0, self.disk_bytes_max - self._used_bytes) - position
            is_full = fits < len(chunk)
            chunk = chunk[: max(0, fits)]
        if torn:
            chunk = chunk[: self._rng.randint(0, len(chunk))]
        if chunk:
            node.change((position, chunk))
            self._used_bytes += len(node.data) - before
        if torn:
            self._die()
        if is_full:
            raise _error(errno.ENOSPC, path)

    def _truncate(self, file: SimFile, size: int) -> None:
        node = file._node
        dies = self._count("truncate", file._path, f"to {size} bytes")
        growth = size - len(node.data)
        # A real disk would find out that it is full when the hole is written to.
        limit = self.disk_bytes_max
        is_full = growth > 0 and limit is not None and self._used_bytes + growth > limit
        if is_full and not dies:
            raise _error(errno.ENOSPC, file._path)
        if growth and not is_full:
            node.change((size, None))
            self._used_bytes += growth
        if dies:
            self._die()

    def _sync(self, file: SimFile) -> None:
        dies = self._count("sync", file._path)
        suffix = self._fail_sync_suffix
        if suffix is not None and file._path.endswith(suffix) and not dies:
            self._fail_sync_suffix = None
            self._trace.append((self.operations, "SYNC FAILS", file._path, ""))
            file._node.fail_sync()
            raise _error(errno.EIO, file._path)
        file._node.sync()
        if dies:
            self._die()


class SimFile:
    """An open file of a SimFiles."""

    __slots__ = ("_files", "_life", "_node", "_path")

    def __init__(self, files: SimFiles, path: str, node: FileNode) -> None:
        self._files = files
        self._path = path
        self._node = node
        self._life = files._life
        node.handles += 1
        files.open_files += 1

    def write_at(self, position: int, buffers: Sequence[Buffer]) -> None:
        files = self._files
        if self._life != files._life:
            files._refuse(self._path)
        if position < 0:
            raise _error(errno.EINVAL, self._path)
        files._write(self, position, b"".join(buffers))

    def read_at(self, position: int, size: int) -> bytes:
        files = self._files
        if self._life != files._life:
            files._refuse(self._path)
        if position < 0 or size < 0:
            raise _error(errno.EINVAL, self._path)
        data = bytes(memoryview(self._node.data)[position : position + size])
        files.bytes_read += len(data)
        return data

    def read_at_once(self, position: int, size: int) -> bytearray | None:
        if not self._files.is_in_memory:
            return None
        data = self.read_at(position, size)
        return bytearray(data) if len(data) == size else None

    def size(self) -> int:
        if self._life != self._files._life:
            self._files._refuse(self._path)
        return len(self._node.data)

    def truncate(self, size: int) -> None:
        if self._life != self._files._life:
            self._files._refuse(self._path)
        if size < 0:
            raise _error(errno.EINVAL, self._path)
        self._files._truncate(self, size)

    def sync(self) -> None:
        if self._life != self._files._life:
            self._files._refuse(self._path)
        self._files._sync(self)

    def fileno(self) -> int:
        raise OSError(errno.ENOTSUP, "a simulated file has no descriptor", self._path)

    def close(self) -> None:
        life, self._life = self._life, -1
        if life == self._files._life:
            self._files.open_files -= 1
            self._node.handles -= 1
            self._files._free_if_unused(self._node)


class _SimLock:
    __slots__ = ("_file", "_files", "_key")

    def __init__(self, files: SimFiles, key: str, file: SimFile) -> None:
        self._files = files
        self._key = key
        self._file = file

    def release(self) -> None:
        # After a crash somebody else may have it.
        if self._files._locked.get(self._key) is self:
            del self._files._locked[self._key]
            self._file.close()


def _error(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)


def _split(path: str) -> Names:
    return [name for name in path.split("/") if name and name != "."]


def _check_replaceable(node: Node, replaced: Node | None, target: str) -> None:
    if replaced is None:
        return
    if isinstance(replaced, Folder):
        if isinstance(node, FileNode):
            raise _error(errno.EISDIR, target)
        if replaced.entries:
            raise _error(errno.ENOTEMPTY, target)
    elif isinstance(node, Folder):
        raise _error(errno.ENOTDIR, target)
