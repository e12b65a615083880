"""A disk with faults on request does what a real one would, and nothing while there are none."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from simulation.storage import SimFiles
from tailrace.clock import ManualClock, SystemClock
from tailrace.log.disk_faults import (
    LOOK_MS,
    DiskFaults,
    Fault,
    FaultKind,
    FaultsFile,
    FaultyFiles,
    parse,
)
from tailrace.log.files import OsFiles


@pytest.fixture
def faults() -> DiskFaults:
    return DiskFaults()


@pytest.fixture
def files(faults: DiskFaults) -> FaultyFiles:
    made = FaultyFiles(SimFiles(1), faults)
    made.make_folder("/a/x")
    made.make_folder("/ab")
    return made


def test_without_faults_all_is_as_it_was(files: FaultyFiles) -> None:
    file = files.open("/a/x/f", create=True)
    file.write_at(0, [b"data"])
    file.sync()
    assert (file.read_at(0, 9), file.size(), files.size("/a/x/f")) == (b"data", 4, 4)
    file.truncate(2)
    file.close()
    files.rename("/a/x/f", "/a/x/g")
    files.sync_folder("/a/x")
    assert (files.read("/a/x/g"), files.list("/a/x")) == (b"da", ["g"])
    assert files.exists("/a/x/g")
    assert files.is_folder("/a/x")
    files.remove("/a/x/g")
    files.remove_folder("/a/x")
    files.lock("/a/.lock").release()
    assert files.boot_id()
    assert files.space("/a").free_bytes > 0


def test_a_broken_disk_fails_everything_in_its_folder_and_nothing_elsewhere(
    files: FaultyFiles, faults: DiskFaults
) -> None:
    file = files.open("/a/x/f", create=True)
    faults.set(Fault(FaultKind.FAIL, "/a"))
    for call in (
        lambda: file.write_at(0, [b"x"]),
        lambda: file.read_at(0, 1),
        file.sync,
        lambda: files.open("/a/x/f"),
        lambda: files.list("/a"),
        lambda: files.space("/a/x"),
    ):
        with pytest.raises(OSError, match="Input/output error") as raised:
            call()
        assert raised.value.errno == errno.EIO
    files.open("/ab/f", create=True).write_at(0, [b"x"])
    faults.set()
    file.write_at(0, [b"x"])


def test_a_full_disk_takes_no_more_and_gives_what_it_has(
    files: FaultyFiles, faults: DiskFaults
) -> None:
    file = files.open("/a/f", create=True)
    file.write_at(0, [b"data"])
    faults.set(Fault(FaultKind.FULL, "/a"))
    assert (file.read_at(0, 4), files.space("/a").free_bytes) == (b"data", 0)
    for call in (
        lambda: file.write_at(4, [b"x"]),
        lambda: files.open("/a/g", create=True),
        lambda: files.make_folder("/a/new"),
    ):
        with pytest.raises(OSError, match="No space left") as raised:
            call()
        assert raised.value.errno == errno.ENOSPC
    files.open("/a/f", create=True).close()
    files.remove("/a/f")


def test_a_slow_disk_takes_its_time_to_sync(files: FaultyFiles, faults: DiskFaults) -> None:
    clock, file = SystemClock(), files.open("/a/f", create=True)
    faults.set(Fault(FaultKind.SLOW, "/a", 60))
    begun_ms = clock.monotonic_ms()
    file.write_at(0, [b"x"])
    file.sync()
    files.sync_folder("/a")
    assert clock.monotonic_ms() - begun_ms >= 100


def test_a_cold_disk_takes_its_time_to_read(files: FaultyFiles, faults: DiskFaults) -> None:
    clock, file = SystemClock(), files.open("/a/x/f", create=True)
    file.write_at(0, [b"x"])
    faults.set(Fault(FaultKind.COLD, "/a/x", 60))
    begun_ms = clock.monotonic_ms()
    assert file.read_at(0, 1) == b"x"
    assert clock.monotonic_ms() - begun_ms >= 50
    faults.set(Fault(FaultKind.COLD, "/a/x", 60_000))
    file.sync()
    other = files.open("/ab/f", create=True)
    other.write_at(0, [b"x"])
    assert other.read_at(0, 1) == b"x"


def test_lines_that_make_no_sense_are_no_faults() -> None:
    text = "slow /a/ 250\nfail /b\n\nfull\nnonsense /c\nslow /d soon\n"
    assert parse(text) == [
        Fault(FaultKind.SLOW, "/a", 250),
        Fault(FaultKind.FAIL, "/b"),
        Fault(FaultKind.SLOW, "/d", 0),
    ]


def test_the_file_is_looked_into_now_and_then(tmp_path: Path) -> None:
    clock, path = ManualClock(), tmp_path / "faults"
    faults = FaultsFile(OsFiles(), str(path), clock)
    assert faults.now() == ()
    path.write_text("fail /a\n", encoding="utf-8")
    assert faults.now() == ()
    clock.advance(LOOK_MS)
    assert faults.now() == (Fault(FaultKind.FAIL, "/a"),)
    path.unlink()
    clock.advance(LOOK_MS)
    assert faults.now() == ()
