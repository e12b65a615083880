"""The contract of the Files port, kept by the real and by the simulated implementation alike."""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulation.storage import SimFiles
from tailrace.errors import FolderLocked
from tailrace.log import files as files_module
from tailrace.log.files import Buffer, Files, OpenFile, OsFile, OsFiles


class Disk(NamedTuple):
    files: Files
    root: str

    def path(self, name: str) -> str:
        return f"{self.root}/{name}"

    def make(self, name: str, data: bytes = b"") -> OpenFile:
        file = self.files.open(self.path(name), create=True)
        file.write_at(0, [data])
        return file


@pytest.fixture(params=["os", "simulated"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Disk]:
    if request.param == "os":
        yield Disk(OsFiles(), str(tmp_path))
    else:
        files = SimFiles()
        files.make_folder("/data")
        yield Disk(files, "/data")


@pytest.fixture
def os_disk(tmp_path: Path) -> Disk:
    return Disk(OsFiles(), str(tmp_path))


def fails_with(number: int, call: Callable[[], object]) -> None:
    with pytest.raises(OSError) as caught:  # noqa: PT011 - the number says which
        call()
    assert caught.value.errno == number


# Bytes of a file


def test_what_is_written_is_read(disk: Disk) -> None:
    file = disk.make("a", b"hello world")
    assert file.size() == 11
    assert file.read_at(0, 11) == b"hello world"
    assert file.read_at(6, 3) == b"wor"


def test_what_is_read_at_once_is_all_of_it_or_nothing(os_disk: Disk) -> None:
    """Whether it is in memory is up to the machine; a file system may never say."""
    file = os_disk.make("a", b"hello world")
    found = file.read_at_once(6, 3)
    assert found is None or found == b"wor"
    assert file.read_at_once(6, 6) is None
    assert file.read_at_once(100, 1) is None


def test_a_file_system_that_does_not_know_what_is_in_memory_is_not_asked_again(
    os_disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def refuse(fd: int, buffers: Sequence[Buffer], position: int, flags: int) -> int:
        asked.append(flags)
        raise OSError(errno.EOPNOTSUPP, "as tmpfs says")

    monkeypatch.setattr(os, "preadv", refuse)
    file = os_disk.make("a", b"hello world")
    assert file.read_at_once(0, 5) is None
    assert file.read_at_once(0, 5) is None
    assert asked == [os.RWF_NOWAIT]


def test_buffers_are_written_one_after_the_other(disk: Disk) -> None:
    file = disk.make("a", b"..........")
    buffers: list[Buffer] = [b"ab", bytearray(b"cd"), memoryview(b"xefx")[1:3], b"", b"g"]
    file.write_at(2, buffers)
    assert file.read_at(0, 100) == b"..abcdefg."


def test_no_buffers_write_nothing(disk: Disk) -> None:
    file = disk.make("a", b"abc")
    file.write_at(10, [])
    file.write_at(10, [b""])
    assert file.size() == 3


def test_more_buffers_than_the_kernel_takes_at_once(disk: Disk) -> None:
    count = 2 * files_module.BUFFERS_PER_WRITE_MAX + 3
    buffers = [b"%05d" % number if number % 7 else b"" for number in range(count)]
    file = disk.make("a")
    file.write_at(1, buffers)
    assert file.read_at(1, 5 * count) == b"".join(buffers)


def test_a_later_write_replaces(disk: Disk) -> None:
    file = disk.make("a", b"aaaaaa")
    file.write_at(2, [b"bb"])
    assert file.read_at(0, 10) == b"aabbaa"


def test_a_gap_reads_as_zeros(disk: Disk) -> None:
    file = disk.make("a", b"aa")
    file.write_at(5, [b"b"])
    assert file.read_at(0, 10) == b"aa\0\0\0b"


def test_reading_past_the_end_gives_what_is_there(disk: Disk) -> None:
    file = disk.make("a", b"abc")
    assert file.read_at(1, 100) == b"bc"
    assert file.read_at(3, 1) == b""
    assert file.read_at(99, 1) == b""
    assert file.read_at(0, 0) == b""


def test_truncate_cuts_and_lengthens(disk: Disk) -> None:
    file = disk.make("a", b"abcdef")
    file.truncate(3)
    assert file.read_at(0, 10) == b"abc"
    file.truncate(5)
    assert file.read_at(0, 10) == b"abc\0\0"
    file.truncate(0)
    assert file.size() == 0


def test_negative_places_are_refused(disk: Disk) -> None:
    file = disk.make("a", b"abc")
    fails_with(errno.EINVAL, lambda: file.write_at(-1, [b"x"]))
    fails_with(errno.EINVAL, lambda: file.read_at(-1, 1))
    fails_with(errno.EINVAL, lambda: file.read_at(0, -1))
    fails_with(errno.EINVAL, lambda: file.truncate(-1))


def test_two_handles_see_one_file(disk: Disk) -> None:
    first = disk.make("a", b"abc")
    second = disk.files.open(disk.path("a"))
    second.write_at(3, [b"def"])
    assert first.read_at(0, 10) == b"abcdef"
    first.close()
    assert second.read_at(0, 10) == b"abcdef"


def test_sync_changes_nothing_that_is_seen(disk: Disk) -> None:
    file = disk.make("a", b"abc")
    file.sync()
    file.sync()
    disk.files.sync_folder(disk.root)
    assert file.read_at(0, 10) == b"abc"
    assert disk.files.list(disk.root) == ["a"]


def test_a_closed_file_refuses_every_call(disk: Disk) -> None:
    file = disk.make("a", b"abc")
    file.close()
    file.close()
    fails_with(errno.EBADF, lambda: file.read_at(0, 1))
    fails_with(errno.EBADF, lambda: file.write_at(0, [b"x"]))
    fails_with(errno.EBADF, file.size)
    fails_with(errno.EBADF, lambda: file.truncate(0))
    fails_with(errno.EBADF, file.sync)
    with pytest.raises(OSError, match=r".+"):
        file.fileno()
    assert disk.files.read(disk.path("a")) == b"abc"


# Names


def test_open_makes_a_file_only_when_asked(disk: Disk) -> None:
    path = disk.path("a")
    with pytest.raises(FileNotFoundError):
        disk.files.open(path)
    assert not disk.files.exists(path)
    disk.files.open(path, create=True).close()
    assert disk.files.exists(path)
    assert not disk.files.is_folder(path)
    disk.make("a", b"abc").close()
    disk.files.open(path, create=True).close()
    assert disk.files.read(path) == b"abc"
    assert disk.files.size(path) == 3


def test_missing_files(disk: Disk) -> None:
    files, missing = disk.files, disk.path("missing")
    calls: list[Callable[[], object]] = [
        lambda: files.open(missing),
        lambda: files.open(f"{missing}/a", create=True),
        lambda: files.list(missing),
        lambda: files.size(missing),
        lambda: files.read(missing),
        lambda: files.rename(missing, disk.path("a")),
        lambda: files.remove(missing),
        lambda: files.remove_folder(missing),
        lambda: files.sync_folder(missing),
        lambda: files.lock(f"{missing}/lock"),
    ]
    for call in calls:
        with pytest.raises(FileNotFoundError):
            call()
    assert not files.exists(missing)
    assert not files.is_folder(missing)
    assert not files.exists(f"{missing}/deeper")


def test_a_file_is_no_folder(disk: Disk) -> None:
    files, path = disk.files, disk.path("file")
    disk.make("file", b"abc").close()
    calls: list[Callable[[], object]] = [
        lambda: files.open(f"{path}/a", create=True),
        lambda: files.open(f"{path}/a/b", create=True),
        lambda: files.list(path),
        lambda: files.remove_folder(path),
        lambda: files.sync_folder(path),
        lambda: files.make_folder(f"{path}/a"),
        lambda: files.make_folder(f"{path}/a/b"),
    ]
    for call in calls:
        with pytest.raises(NotADirectoryError):
            call()
    with pytest.raises(FileExistsError):
        files.make_folder(path)
    assert not files.exists(f"{path}/a")


def test_a_folder_is_no_file(disk: Disk) -> None:
    files, path = disk.files, disk.path("folder")
    files.make_folder(path)
    for call in (lambda: files.open(path), lambda: files.read(path), lambda: files.remove(path)):
        with pytest.raises(IsADirectoryError):
            call()


def test_folders_are_made_with_their_parents(disk: Disk) -> None:
    deep = disk.path("a/b/c")
    disk.files.make_folder(deep)
    disk.files.make_folder(deep)
    assert disk.files.is_folder(deep)
    assert disk.files.exists(disk.path("a/b"))
    disk.make("a/b/c/file", b"x").close()
    assert disk.files.list(disk.path("a")) == ["b"]


def test_list_is_sorted_and_holds_both_kinds(disk: Disk) -> None:
    for name in ("b", "a", "00010.log", "00002.log"):
        disk.make(name).close()
    disk.files.make_folder(disk.path("ab"))
    assert disk.files.list(disk.root) == ["00002.log", "00010.log", "a", "ab", "b"]


def test_remove_and_make_again(disk: Disk) -> None:
    disk.make("a", b"old").close()
    disk.files.remove(disk.path("a"))
    assert not disk.files.exists(disk.path("a"))
    assert disk.make("a").read_at(0, 10) == b""


def test_a_removed_file_lives_on_for_who_has_it_open(disk: Disk) -> None:
    file = disk.make("a", b"old")
    disk.files.remove(disk.path("a"))
    disk.make("a", b"new").close()
    file.write_at(3, [b"er"])
    file.sync()
    assert file.read_at(0, 10) == b"older"
    assert disk.files.read(disk.path("a")) == b"new"


def test_rename_keeps_the_bytes_and_the_handles(disk: Disk) -> None:
    file = disk.make("a", b"abc")
    disk.files.rename(disk.path("a"), disk.path("b"))
    assert disk.files.list(disk.root) == ["b"]
    file.write_at(3, [b"d"])
    assert disk.files.read(disk.path("b")) == b"abcd"
    disk.files.rename(disk.path("b"), disk.path("b"))
    assert disk.files.list(disk.root) == ["b"]


def test_rename_replaces(disk: Disk) -> None:
    old = disk.make("target", b"old")
    disk.make("source", b"new").close()
    disk.files.rename(disk.path("source"), disk.path("target"))
    assert disk.files.list(disk.root) == ["target"]
    assert disk.files.read(disk.path("target")) == b"new"
    assert old.read_at(0, 10) == b"old"


def test_rename_of_a_folder(disk: Disk) -> None:
    disk.files.make_folder(disk.path("a"))
    file = disk.make("a/file", b"abc")
    disk.files.make_folder(disk.path("empty"))
    disk.files.rename(disk.path("a"), disk.path("b"))
    disk.files.rename(disk.path("b"), disk.path("empty"))
    file.write_at(3, [b"d"])
    assert disk.files.list(disk.root) == ["empty"]
    assert disk.files.read(disk.path("empty/file")) == b"abcd"


def test_rename_between_folders(disk: Disk) -> None:
    disk.files.make_folder(disk.path("a"))
    disk.files.make_folder(disk.path("b"))
    disk.make("a/file", b"abc").close()
    disk.files.rename(disk.path("a/file"), disk.path("b/moved"))
    assert disk.files.list(disk.path("a")) == []
    assert disk.files.read(disk.path("b/moved")) == b"abc"


def test_renames_that_cannot_be(disk: Disk) -> None:
    rename, path = disk.files.rename, disk.path
    disk.make("file").close()
    disk.files.make_folder(path("folder/below"))
    fails_with(errno.EISDIR, lambda: rename(path("file"), path("folder")))
    fails_with(errno.ENOTDIR, lambda: rename(path("folder"), path("file")))
    disk.files.make_folder(path("other"))
    fails_with(errno.ENOTEMPTY, lambda: rename(path("other"), path("folder")))
    fails_with(errno.EINVAL, lambda: rename(path("folder"), path("folder/below/deeper")))
    fails_with(errno.ENOENT, lambda: rename(path("file"), path("missing/file")))
    assert disk.files.list(disk.root) == ["file", "folder", "other"]


def test_remove_folder_takes_all_below(disk: Disk) -> None:
    disk.files.make_folder(disk.path("a/b/c"))
    file = disk.make("a/b/file", b"abc")
    disk.make("a/file").close()
    disk.make("kept").close()
    disk.files.remove_folder(disk.path("a"))
    assert disk.files.list(disk.root) == ["kept"]
    assert file.read_at(0, 10) == b"abc"


def test_a_lock_is_exclusive_until_released(disk: Disk) -> None:
    path = disk.path(".lock")
    lock = disk.files.lock(path)
    with pytest.raises(FolderLocked, match=r"\.lock is locked by process \d+"):
        disk.files.lock(path)
    assert disk.files.exists(path)
    lock.release()
    again = disk.files.lock(path)
    lock.release()
    with pytest.raises(FolderLocked):
        disk.files.lock(path)
    again.release()
    other = disk.files.lock(disk.path("other.lock"))
    disk.files.lock(path).release()
    other.release()


def test_the_boot_id_stays_while_the_machine_runs(disk: Disk) -> None:
    assert disk.files.boot_id() == disk.files.boot_id()
    assert len(disk.files.boot_id()) == 36


@given(
    changes=st.lists(
        st.one_of(
            st.tuples(st.integers(0, 3000), st.lists(st.binary(max_size=900), max_size=3)),
            st.tuples(st.integers(0, 3000), st.none()),
        ),
        max_size=8,
    )
)
def test_both_do_the_same_to_a_file(
    tmp_path_factory: pytest.TempPathFactory,
    changes: list[tuple[int, list[bytes] | None]],
) -> None:
    real = OsFiles().open(str(tmp_path_factory.mktemp("same") / "a"), create=True)
    simulated = SimFiles().open("a", create=True)
    try:
        for at, buffers in changes:
            for file in (real, simulated):
                if buffers is None:
                    file.truncate(at)
                else:
                    file.write_at(at, buffers)
            assert real.size() == simulated.size()
            assert real.read_at(0, 10_000) == simulated.read_at(0, 10_000)
            assert real.read_at(at, 100) == simulated.read_at(at, 100)
    finally:
        real.close()


# What only a real file can show


def test_the_descriptor_is_not_inherited(os_disk: Disk) -> None:
    file = os_disk.make("a", b"abc")
    assert fcntl.fcntl(file.fileno(), fcntl.F_GETFD) & fcntl.FD_CLOEXEC
    assert os.pread(file.fileno(), 3, 0) == b"abc"


@pytest.mark.parametrize("taken_max", [1, 3, 4, 5, 1000])
def test_short_writes_are_continued(
    os_disk: Disk, monkeypatch: pytest.MonkeyPatch, taken_max: int
) -> None:
    file = os_disk.make("a")
    real_pwritev = os.pwritev

    def short_pwritev(fd: int, buffers: Sequence[Buffer], position: int) -> int:
        return real_pwritev(fd, [b"".join(buffers)[:taken_max]], position)

    monkeypatch.setattr(os, "pwritev", short_pwritev)
    file.write_at(2, [b"abcd", b"", b"e", memoryview(b"fghijkl"), bytearray(b"m")])
    assert file.read_at(0, 100) == b"\0\0abcdefghijklm"


def test_a_write_that_makes_no_progress_ends(
    os_disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = os_disk.make("a")
    monkeypatch.setattr(os, "pwritev", lambda *_: 0)
    fails_with(errno.EIO, lambda: file.write_at(0, [b"abc"]))


def test_short_reads_are_continued(os_disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    file = os_disk.make("a", b"abcdefgh")
    real_pread = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, size, at: real_pread(fd, min(size, 3), at))
    assert file.read_at(0, 8) == b"abcdefgh"
    assert file.read_at(1, 100) == b"bcdefgh"


def test_an_error_in_the_middle_of_a_write_is_raised(os_disk: Disk) -> None:
    file = os_disk.make("a")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        fails_with(errno.EFBIG, lambda: file.write_at(4000, [b"a" * 50, b"b" * 100]))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert file.read_at(4000, 1000) == b"a" * 50 + b"b" * 46


def test_signals_do_not_end_a_call(os_disk: Disk) -> None:
    file = os_disk.make("a")
    block = b"a" * 1_000_000
    seen: list[int] = []
    before = signal.signal(signal.SIGALRM, lambda number, _frame: seen.append(number))
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
    try:
        while len(seen) < 20:
            file.write_at(0, [block, block])
            file.truncate(len(block))
            file.sync()
            assert file.read_at(0, 2 * len(block)) == block
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_a_lock_ends_with_its_process_and_names_it(os_disk: Disk) -> None:
    path = os_disk.path(".lock")
    code = (
        "import sys; from tailrace.log.files import OsFiles; lock = OsFiles().lock(sys.argv[1]);"
        "print('locked', flush=True); sys.stdin.read()"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    with subprocess.Popen(
        [sys.executable, "-c", code, path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
    ) as holder:
        assert holder.stdout is not None
        try:
            assert holder.stdout.readline() == b"locked\n"
            with pytest.raises(FolderLocked, match=f"locked by process {holder.pid}$"):
                os_disk.files.lock(path)
        finally:
            holder.kill()
    lock = os_disk.files.lock(path)
    assert os_disk.files.read(path) == b"%d\n" % os.getpid()
    lock.release()


def test_a_holder_that_did_not_say_its_number(os_disk: Disk) -> None:
    path = os_disk.path(".lock")
    lock = os_disk.files.lock(path)
    Path(path).write_bytes(b"")
    with pytest.raises(FolderLocked, match="locked by another process"):
        os_disk.files.lock(path)
    lock.release()


def test_failed_locks_leak_no_descriptor(os_disk: Disk) -> None:
    lock = os_disk.files.lock(os_disk.path(".lock"))
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - a count, no paths
    for _ in range(5):
        with pytest.raises(FolderLocked):
            os_disk.files.lock(os_disk.path(".lock"))
    # Fewer when the collector closed something of an earlier test meanwhile.
    assert len(os.listdir("/proc/self/fd")) <= before  # noqa: PTH208
    lock.release()


def test_the_boot_id_is_the_kernels() -> None:
    assert OsFiles().boot_id() == Path(files_module.BOOT_ID_PATH).read_text().strip()


def test_a_closed_descriptor_is_never_used_again(os_disk: Disk) -> None:
    file = os_disk.files.open(os_disk.path("a"), create=True)
    assert isinstance(file, OsFile)
    fd = file.fileno()
    file.close()
    other = os_disk.make("b", b"other")
    assert other.fileno() == fd
    file.close()
    assert other.read_at(0, 5) == b"other"
    other.close()
