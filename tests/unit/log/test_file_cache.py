"""The cache of open files: its limit, its order, and that threads can share it."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

import pytest

from simulation.storage import SimFile, SimFiles, SimulatedCrash
from tailrace.errors import InvalidConfig, InvariantViolation, LogClosed
from tailrace.log.file_cache import FileCache
from tailrace.log.files import OsFile, OsFiles


@pytest.fixture
def files() -> SimFiles:
    return SimFiles()


@pytest.fixture
def cache(files: SimFiles) -> FileCache:
    return FileCache(files, open_files_max=3)


def touch(cache: FileCache, *paths: str) -> None:
    for path in paths:
        with cache.use(path, create=True):
            pass


def test_a_file_is_opened_once(files: SimFiles, cache: FileCache) -> None:
    with cache.use("a", create=True) as file:
        file.write_at(0, [b"abc"])
    with cache.use("a") as again:
        assert again is file
        assert again.read_at(0, 3) == b"abc"
    counters = cache.counters()
    assert (counters.hits, counters.misses, counters.open_files) == (1, 1, 1)
    assert files.open_files == 1


def test_missing_files_are_not_made_unasked(files: SimFiles, cache: FileCache) -> None:
    with pytest.raises(FileNotFoundError):
        cache.use("a")
    assert cache.counters().open_files == 0
    assert not files.exists("a")


def test_the_one_unused_for_longest_is_closed(files: SimFiles, cache: FileCache) -> None:
    touch(cache, "a", "b", "c", "a", "d")
    assert files.open_files == 3
    assert cache.counters().evictions == 1
    misses = cache.counters().misses
    touch(cache, "a", "c", "d")
    assert cache.counters().misses == misses
    touch(cache, "b")
    assert cache.counters().misses == misses + 1


def test_there_is_room_before_a_file_is_opened() -> None:
    highest = 0

    class Watched(SimFiles):
        def open(self, path: str, *, create: bool = False) -> SimFile:
            nonlocal highest
            file = super().open(path, create=create)
            highest = max(highest, self.open_files)
            return file

    watched = FileCache(Watched(), open_files_max=3)
    for number in range(10):
        touch(watched, str(number))
    assert highest == 3


def test_a_file_in_use_is_never_closed(files: SimFiles, cache: FileCache) -> None:
    used = [cache.use(name, create=True) for name in "abcde"]
    assert files.open_files == 5
    for entry in used:
        entry.file.write_at(0, [b"x"])
    touch(cache, "f")
    assert files.open_files == 5
    for entry in used:
        entry.release()
    assert files.open_files == 3
    assert cache.counters().open_files == 3
    touch(cache, "d", "e")
    assert cache.counters().hits == 2


def test_the_last_of_several_users_frees_it(files: SimFiles) -> None:
    cache = FileCache(files, open_files_max=1)
    first = cache.use("a", create=True)
    second = cache.use("a")
    touch(cache, "b")
    first.release()
    touch(cache, "b")
    assert second.file.read_at(0, 1) == b""
    second.release()
    touch(cache, "b")
    assert cache.counters().open_files == 1
    assert files.open_files == 1


def test_released_once_too_often(cache: FileCache) -> None:
    entry = cache.use("a", create=True)
    entry.release()
    with pytest.raises(InvariantViolation):
        entry.release()
    touch(cache, "a", "b", "c", "d", "e")
    assert cache.counters().open_files == 3


def test_an_error_in_the_block_releases_too(files: SimFiles, cache: FileCache) -> None:
    with pytest.raises(ZeroDivisionError), cache.use("a", create=True):
        raise ZeroDivisionError
    cache.close()
    assert files.open_files == 0


def test_a_forgotten_name_gets_its_new_file(files: SimFiles, cache: FileCache) -> None:
    with cache.use("a", create=True) as file:
        file.write_at(0, [b"old"])
    with cache.use("b", create=True) as file:
        file.write_at(0, [b"new"])
    files.rename("b", "a")
    cache.forget("a")
    cache.forget("b")
    cache.forget("never seen")
    assert files.open_files == 0
    with cache.use("a") as file:
        assert file.read_at(0, 3) == b"new"
    with pytest.raises(FileNotFoundError):
        cache.use("b")


def test_a_forgotten_file_stays_open_for_its_users(files: SimFiles, cache: FileCache) -> None:
    old = cache.use("a", create=True)
    old.file.write_at(0, [b"old"])
    files.remove("a")
    cache.forget("a")
    new = cache.use("a", create=True)
    assert new.file.read_at(0, 3) == b""
    assert old.file.read_at(0, 3) == b"old"
    assert cache.counters().open_files == files.open_files == 2
    old.release()
    assert cache.counters().open_files == files.open_files == 1
    assert new.file.size() == 0
    new.release()


def test_forget_folder(files: SimFiles, cache: FileCache) -> None:
    files.make_folder("data/a")
    files.make_folder("data/ab")
    touch(cache, "data/a/1", "data/ab/1", "data/a/2")
    cache.forget_folder("data/a")
    assert files.open_files == 1
    touch(cache, "data/ab/1")
    assert cache.counters().hits == 1
    touch(cache, "data/a/1")
    cache.forget_folder("data/")
    assert files.open_files == 0


def test_a_name_forgotten_while_it_was_being_opened() -> None:
    class RenamedMeanwhile(SimFiles):
        """Between our opening and our entering it, another thread puts a new file there."""

        def open(self, path: str, *, create: bool = False) -> SimFile:
            file = super().open(path, create=create)
            if path == "a" and self.exists("new"):
                self.rename("new", "a")
                shared.forget("a")
            return file

    files = RenamedMeanwhile()
    old = files.open("a", create=True)
    old.write_at(0, [b"old"])
    old.close()
    new = files.open("new", create=True)
    new.write_at(0, [b"new"])
    new.close()
    shared = FileCache(files, open_files_max=3)
    with shared.use("a") as file:
        assert file.read_at(0, 3) == b"new"
    assert shared.counters().open_files == files.open_files == 1


def test_opened_by_another_thread_meanwhile() -> None:
    class OpenedMeanwhile(SimFiles):
        others = 1

        def open(self, path: str, *, create: bool = False) -> SimFile:
            if self.others:
                self.others -= 1
                touch(shared, path)
            return super().open(path, create=create)

    files = OpenedMeanwhile()
    shared = FileCache(files, open_files_max=3)
    with shared.use("a", create=True) as file:
        assert shared.counters().open_files == files.open_files == 1
        file.write_at(0, [b"abc"])
    shared.close()
    assert files.open_files == 0


def test_closed_meanwhile() -> None:
    class ClosedMeanwhile(SimFiles):
        def open(self, path: str, *, create: bool = False) -> SimFile:
            shared.close()
            return super().open(path, create=create)

    files = ClosedMeanwhile()
    shared = FileCache(files, open_files_max=3)
    with pytest.raises(LogClosed):
        shared.use("a", create=True)
    assert shared.counters().open_files == files.open_files == 0


def test_close_waits_for_users(files: SimFiles, cache: FileCache) -> None:
    touch(cache, "a")
    used = cache.use("b", create=True)
    cache.close()
    cache.close()
    assert files.open_files == 1
    used.file.write_at(0, [b"still"])
    with pytest.raises(LogClosed):
        cache.use("a")
    used.release()
    assert files.open_files == 0
    assert cache.counters().open_files == 0


def test_a_crash_while_opening_leaves_the_count_right(files: SimFiles, cache: FileCache) -> None:
    files.crash_at_operation(1)
    with pytest.raises(SimulatedCrash):
        cache.use("a", create=True)
    assert cache.counters().open_files == 0


def test_errors_of_closing_are_counted(tmp_path: Path) -> None:
    class FailingClose(OsFile):
        __slots__ = ()

        def close(self) -> None:
            super().close()
            raise OSError(errno.EIO, "late")

    class Failing(OsFiles):
        __slots__ = ()

        def open(self, path: str, *, create: bool = False) -> OsFile:
            file = super().open(path, create=create)
            duplicate = FailingClose(os.dup(file.fileno()))
            file.close()
            return duplicate

    cache = FileCache(Failing(), open_files_max=1)
    touch(cache, str(tmp_path / "a"), str(tmp_path / "b"), str(tmp_path / "c"))
    assert cache.counters().close_errors == 2
    cache.close()
    assert cache.counters().close_errors == 3


def test_a_limit_of_nothing_is_refused(files: SimFiles) -> None:
    with pytest.raises(InvalidConfig):
        FileCache(files, open_files_max=0)


THREADS = 8
FILES = 24
OPEN_FILES_MAX = 6
ROUNDS = 1_500


@pytest.fixture
def descriptors() -> Iterator[int]:
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - a count, no paths
    yield before
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


def test_threads_share_it(tmp_path: Path, descriptors: int) -> None:
    """Each file holds its own number; files are replaced and forgotten all the while."""
    files = OsFiles()
    cache = FileCache(files, open_files_max=OPEN_FILES_MAX)
    paths = [str(tmp_path / f"{number:02}") for number in range(FILES)]
    locks = [threading.Lock() for _ in paths]
    for number, path in enumerate(paths):
        with cache.use(path, create=True) as file:
            file.write_at(0, [b"%04d" % number])
    over_limit: list[int] = []

    def replace(number: int, worker: int) -> None:
        fresh = f"{paths[number]}.{worker}"
        with cache.use(fresh, create=True) as file:
            file.write_at(0, [b"%04d" % number])
        with locks[number]:
            files.rename(fresh, paths[number])
            cache.forget(fresh)
            cache.forget(paths[number])
            with cache.use(paths[number]) as file:
                assert os.fstat(file.fileno()).st_ino == os.stat(paths[number]).st_ino  # noqa: PTH116

    def work(worker: int) -> None:
        rng = Random(worker)
        for _ in range(ROUNDS):
            number = rng.randrange(FILES)
            if rng.random() < 0.05:
                replace(number, worker)
            else:
                with cache.use(paths[number]) as file:
                    assert file.read_at(0, 4) == b"%04d" % number
            if cache.counters().open_files > OPEN_FILES_MAX + THREADS:
                over_limit.append(cache.counters().open_files)

    with ThreadPoolExecutor(THREADS) as pool:
        for future in [pool.submit(work, worker) for worker in range(THREADS)]:
            future.result()
    assert not over_limit
    assert cache.counters().open_files <= OPEN_FILES_MAX
    assert cache.counters().evictions > 0
    cache.close()
    assert cache.counters().open_files == 0


def test_a_hit_is_cheap(files: SimFiles, cache: FileCache) -> None:
    """About 1 µs on a quiet machine; the bound only finds a change of kind (a system call)."""
    touch(cache, "a")
    use = cache.use
    best = float("inf")
    for _ in range(20):
        start = time.perf_counter()
        for _ in range(500):
            with use("a"):
                pass
        best = min(best, (time.perf_counter() - start) / 500)
    assert best < 10e-6
