"""A thousand partitions in one data folder: no scan, few descriptors, little memory."""

from __future__ import annotations

import gc
import time
import tracemalloc
from contextlib import suppress
from pathlib import Path

import pytest

from simulation.log_bench import NOW_MS, append, batch, contents
from tailrace.config import FolderConfig, LogConfig
from tailrace.log.data_folder import Identity
from tailrace.log.files import OsFile, OsFiles
from tailrace.log.manager import LogManager
from tailrace.model import BrokerId, TopicId, TopicPartition

pytestmark = pytest.mark.integration

PARTITIONS = [TopicPartition("many", number) for number in range(1000)]
OPEN_FILES_MAX = 64
OTHER_DESCRIPTORS_MAX = 8
"""The lock of the folder, and what stands open for a moment: a checkpoint, a folder."""
IDLE_BYTES_PER_PARTITION_MAX = 4 * 1024
ACTIVE_BYTES_PER_PARTITION_MAX = 8 * 1024


class CountedFile(OsFile):
    """Tells what is read of it; leaves out syncing, since no power is lost here."""

    __slots__ = ("_files", "_path")

    def __init__(self, fd: int, path: str, files: CountedFiles) -> None:
        super().__init__(fd)
        self._path = path
        self._files = files

    def read_at(self, position: int, size: int) -> bytes:
        data = super().read_at(position, size)
        self._files.note(self._path, len(data))
        return data

    def sync(self) -> None:
        """Only a power loss would tell."""


class CountedFiles(OsFiles):
    """The real file system, with a count of what is opened and read."""

    __slots__ = ("descriptors_max", "opened", "segment_bytes_read")

    def __init__(self) -> None:
        self.opened = 0
        self.segment_bytes_read = 0
        self.descriptors_max = 0

    def open(self, path: str, *, create: bool = False) -> CountedFile:
        file = CountedFile(super().open(path, create=create).fileno(), path, self)
        if path.endswith(".log"):
            self.opened += 1
            now = open_descriptors(Path(path).parents[1])
            self.descriptors_max = max(self.descriptors_max, now)
        return file

    def read(self, path: str) -> bytes:
        data = super().read(path)
        self.note(path, len(data))
        return data

    def sync_folder(self, path: str) -> None:
        """Only a power loss would tell."""

    def note(self, path: str, size: int) -> None:
        if path.endswith(".log"):
            self.segment_bytes_read += size


def open_descriptors(root: Path) -> int:
    """Those of files below `root`: other threads of this process come and go with theirs."""
    found = 0
    for each in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            found += each.readlink().is_relative_to(root)
    return found


def manager_of(files: OsFiles, root: Path) -> LogManager:
    return LogManager(
        files,
        FolderConfig(log_dirs=(str(root),), open_files_max=OPEN_FILES_MAX),
        identity=Identity("cluster", BrokerId(1), "one"),
        log_config=lambda _: LogConfig(),
    )


@pytest.fixture(scope="module")
def root(memory_folder: Path) -> Path:
    """A thousand partitions with two batches each, closed in order."""
    root = memory_folder / "many"
    manager = manager_of(CountedFiles(), root)
    manager.open(now_ms=NOW_MS)
    first, second = batch(b"first"), batch(b"second")
    for partition in PARTITIONS:
        append(manager.create(partition, TopicId("id")), first, second)
    manager.close()
    return root


def test_a_thousand_clean_partitions_open_without_a_scan(root: Path) -> None:
    files = CountedFiles()
    manager = manager_of(files, root)
    before = open_descriptors(root)
    started = time.perf_counter()
    report = manager.open(now_ms=NOW_MS)
    seconds = time.perf_counter() - started
    assert report.clean
    assert len(report.opened) == len(PARTITIONS)
    assert sum(each.scanned_bytes for each in report.opened) == 0
    assert (files.opened, files.segment_bytes_read) == (0, 0), "no segment was even opened"
    assert files.descriptors_max <= before + OTHER_DESCRIPTORS_MAX
    closing = time.perf_counter()
    manager.close()
    print(f"opened in {seconds:.2f} s, closed in {time.perf_counter() - closing:.2f} s")


def test_descriptors_stay_within_the_limit_when_all_are_written(root: Path) -> None:
    files = CountedFiles()
    manager = manager_of(files, root)
    manager.open(now_ms=NOW_MS)
    before = open_descriptors(root)
    data = batch(b"third")
    started = time.perf_counter()
    for log in manager.logs.values():
        append(log, data)
    seconds = time.perf_counter() - started
    for log in manager.logs.values():
        assert contents(log)[-1][1] == b"third"
        log.flush()
    allowed = before + OPEN_FILES_MAX + OTHER_DESCRIPTORS_MAX
    assert files.descriptors_max <= allowed
    assert manager.storage.cache.counters().open_files <= OPEN_FILES_MAX
    manager.close()
    assert open_descriptors(root) <= before
    print(f"an append to each in {seconds:.2f} s, {files.descriptors_max} descriptors at most")


def test_memory_is_bounded_by_the_number_of_partitions(root: Path) -> None:
    manager = manager_of(CountedFiles(), root)
    data = batch(b"more")
    gc.collect()
    tracemalloc.start()
    try:
        manager.open(now_ms=NOW_MS)
        gc.collect()
        idle, peak = tracemalloc.get_traced_memory()
        for log in manager.logs.values():
            append(log, data)
        gc.collect()
        active, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    manager.close()
    count = len(PARTITIONS)
    print(
        f"{idle // count} B idle, {active // count} B written, a partition; peak {peak >> 20} MiB"
    )
    assert idle <= count * IDLE_BYTES_PER_PARTITION_MAX
    assert active <= count * ACTIVE_BYTES_PER_PARTITION_MAX
    assert peak <= 2 * count * IDLE_BYTES_PER_PARTITION_MAX


def test_a_thousand_partitions_of_a_killed_process_open_too(root: Path) -> None:
    manager = manager_of(CountedFiles(), root)
    manager.open(now_ms=NOW_MS)
    for log in manager.logs.values():
        append(log, batch(b"tail"))
    manager.storage.cache.close()
    manager.folders[0].release()
    files = CountedFiles()
    manager = manager_of(files, root)
    before = open_descriptors(root)
    started = time.perf_counter()
    report = manager.open(now_ms=NOW_MS)
    seconds = time.perf_counter() - started
    assert not report.clean
    assert (len(report.opened), report.damaged) == (len(PARTITIONS), {})
    assert files.descriptors_max <= before + OPEN_FILES_MAX + OTHER_DESCRIPTORS_MAX
    assert all(contents(log)[-1][1] == b"tail" for log in manager.logs.values())
    manager.close()
    print(f"recovered in {seconds:.2f} s")
