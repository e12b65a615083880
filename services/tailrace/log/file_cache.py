"""Open files, bounded: a thousand partitions share a fixed number of descriptors.

`FileCache` keeps the files used last open and closes the one that was unused for longest when
another is needed. It is used by the loop's thread (appends) and by executor threads (reads, syncs)
at once. It knows paths and the Files port, nothing of what the files hold.

Invariants:
- A file that somebody uses is never closed. So more than `open_files_max` are open only while more
  than that are in use or being opened.
- After `forget(path)` nobody is given the file that had this name before.
- No file is opened or closed under the lock (but for one rare case, see `_admit`), so that a slow
  disk delays only those who need it.

The cache does not sync what it closes: who writes a file syncs it, and a sync covers what was
written through an earlier descriptor too.
"""

from __future__ import annotations

from collections import OrderedDict
from itertools import islice
from threading import Lock
from types import TracebackType
from typing import NamedTuple

from tailrace.errors import InvalidConfig, InvariantViolation, LogClosed
from tailrace.log.files import Files, OpenFile


class FileCacheCounters(NamedTuple):
    open_files: int
    hits: int
    misses: int
    evictions: int
    close_errors: int


class CachedFile:
    """A file that is in use, until `release` or the end of the `with` block."""

    __slots__ = ("_cache", "file", "forgotten", "path", "users")

    def __init__(self, cache: FileCache, path: str, file: OpenFile) -> None:
        self._cache = cache
        self.path = path
        self.file = file
        self.users = 1
        self.forgotten = False

    def release(self) -> None:
        """Once for each `use`."""
        self._cache._release(self)

    def __enter__(self) -> OpenFile:
        return self.file

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._cache._release(self)


class FileCache:
    """At most `open_files_max` open files, those used last. All methods are thread-safe."""

    def __init__(self, files: Files, *, open_files_max: int) -> None:
        if open_files_max < 1:
            raise InvalidConfig(f"open_files_max must be at least 1, not {open_files_max}")
        self._files = files
        self._open_files_max = open_files_max
        self._lock = Lock()
        # The one whose last use began longest ago comes first. (In a plain dict the search for the
        # first would walk over the holes that removed ones leave.)
        self._entries: OrderedDict[str, CachedFile] = OrderedDict()
        # Also those that are just being opened, and forgotten ones that still have users.
        self._open_files = 0
        self._forgets = 0
        self._closed = False
        self._hits = 0
        self._misses = 0
        self._evictions = 0
        self._close_errors = 0

    def use(self, path: str, *, create: bool = False) -> CachedFile:
        """The file, open until it is released: `with cache.use(path) as file: ...`.

        `create` makes the file when it is missing.
        """
        with self._lock:
            entry = self._entries.get(path)
            if entry is not None:
                entry.users += 1
                self._hits += 1
                self._entries.move_to_end(path)
                return entry
        return self._open(path, create=create)

    def forget(self, path: str) -> None:
        """Call it after the name was removed or renamed (then for both names).

        A file in use is closed when its last user is done.
        """
        with self._lock:
            unused = self._drop([path])
        self._close_files(unused)

    def forget_folder(self, folder: str) -> None:
        """As `forget`, of all files below a folder that was removed or renamed."""
        prefix = folder.rstrip("/") + "/"
        with self._lock:
            unused = self._drop([path for path in self._entries if path.startswith(prefix)])
        self._close_files(unused)

    def close(self) -> None:
        """Close what is not in use; the rest when its users are done. `use` then raises."""
        with self._lock:
            self._closed = True
            unused = self._drop(list(self._entries))
        self._close_files(unused)

    def counters(self) -> FileCacheCounters:
        with self._lock:
            return FileCacheCounters(
                open_files=self._open_files,
                hits=self._hits,
                misses=self._misses,
                evictions=self._evictions,
                close_errors=self._close_errors,
            )

    def _open(self, path: str, *, create: bool) -> CachedFile:
        with self._lock:
            if self._closed:
                raise LogClosed("the file cache is closed")
            self._misses += 1
            forgets = self._forgets
            self._open_files += 1
            evicted = self._take_surplus()
        self._close_files(evicted)
        try:
            file = self._files.open(path, create=create)
        except BaseException:
            with self._lock:
                self._open_files -= 1
            raise
        return self._admit(path, file, create=create, forgets=forgets)

    def _admit(self, path: str, file: OpenFile, *, create: bool, forgets: int) -> CachedFile:
        """Enter a file that was opened without the lock, or take what came in between."""
        surplus: OpenFile | None = file
        try:
            with self._lock:
                entry = self._entries.get(path)
                if entry is not None:
                    # Another thread opened it too and was faster.
                    entry.users += 1
                    return entry
                if self._closed:
                    raise LogClosed("the file cache is closed")
                if self._forgets == forgets:
                    surplus = None
                else:
                    # Something was forgotten since we opened; perhaps this name. Under the lock
                    # nothing can be forgotten, so this second opening is of the right file.
                    file = self._files.open(path, create=create)
                    self._open_files += 1
                entry = CachedFile(self, path, file)
                self._entries[path] = entry
                return entry
        finally:
            if surplus is not None:
                with self._lock:
                    self._open_files -= 1
                self._close_files([surplus])

    def _release(self, entry: CachedFile) -> None:
        with self._lock:
            entry.users -= 1
            if entry.users > 0:
                return
            if entry.users < 0:
                entry.users = 0
                raise InvariantViolation(f"{entry.path} was released more often than used")
            if entry.forgotten:
                self._open_files -= 1
                surplus = [entry.file]
            elif self._open_files > self._open_files_max:
                surplus = self._take_surplus()
            else:
                return
        self._close_files(surplus)

    def _drop(self, paths: list[str]) -> list[OpenFile]:
        """Under the lock: forget these; returns those without users, to be closed after."""
        self._forgets += 1
        unused: list[OpenFile] = []
        for path in paths:
            entry = self._entries.pop(path, None)
            if entry is None:
                continue
            entry.forgotten = True
            if entry.users == 0:
                self._open_files -= 1
                unused.append(entry.file)
        return unused

    def _take_surplus(self) -> list[OpenFile]:
        """Under the lock: the unused files above the limit, no longer ours; to be closed after."""
        excess = self._open_files - self._open_files_max
        if excess <= 0:
            return []
        # Those in use are passed over; they are few, and most of them stand at the other end.
        unused = (entry for entry in self._entries.values() if entry.users == 0)
        surplus = list(islice(unused, excess))
        for entry in surplus:
            entry.forgotten = True
            del self._entries[entry.path]
        self._open_files -= len(surplus)
        self._evictions += len(surplus)
        return [entry.file for entry in surplus]

    def _close_files(self, files: list[OpenFile]) -> None:
        for file in files:
            try:
                file.close()
            except OSError:
                # The descriptor is gone all the same, and whoever needs this one's place has
                # nothing to do with it. What had to last was synced, and that told its writer.
                with self._lock:
                    self._close_errors += 1
