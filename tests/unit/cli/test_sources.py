"""Reading without changing: real files, opened for reading alone."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from simulation import log_folders
from tailrace.cli import sources
from tailrace.cli.sources import SourceFiles, is_in_use
from tailrace.log.data_folder import LOCK_FILE
from tailrace.log.files import OsFiles


def test_reads_files_and_folders(tmp_path: Path) -> None:
    (tmp_path / "b").write_bytes(b"0123456789")
    (tmp_path / "a").mkdir()
    files = SourceFiles()
    assert files.list(str(tmp_path)) == ["a", "b"]
    assert files.is_folder(f"{tmp_path}/a")
    assert files.exists(f"{tmp_path}/b")
    assert not files.exists(f"{tmp_path}/c")
    assert files.read(f"{tmp_path}/b") == b"0123456789"
    assert files.size(f"{tmp_path}/b") == 10
    assert files.boot_id() == OsFiles().boot_id()
    file = files.open(f"{tmp_path}/b")
    assert file.size() == 10
    assert file.read_at(2, 3) == b"234"
    assert file.read_at(8, 30) == b"89"
    assert file.read_at(30, 3) == b""
    file.close()
    file.close()


def test_a_file_that_may_only_be_read_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(b"x")
    path.chmod(0o400)
    assert SourceFiles().open(str(path)).read_at(0, 1) == b"x"


def test_nothing_can_be_written_through_it(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(b"x")
    file = SourceFiles().open(str(path))
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.pwrite(file._fd, b"y", 0)


def test_a_missing_file_is_missing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        SourceFiles().open(f"{tmp_path}/nope")


def test_a_folder_is_in_use_while_its_lock_is_held(tmp_path: Path) -> None:
    assert not is_in_use(str(tmp_path))
    lock = OsFiles().lock(f"{tmp_path}/{LOCK_FILE}")
    assert is_in_use(str(tmp_path))
    # To look does not take the lock: it is still there, and can be had when it is free.
    lock.release()
    assert not is_in_use(str(tmp_path))
    OsFiles().lock(f"{tmp_path}/{LOCK_FILE}").release()


def test_a_manager_holds_its_folder(tmp_path: Path) -> None:
    data = log_folders.closed_folder(tmp_path / "data")
    manager, _ = log_folders.reopen(data)
    assert is_in_use(str(data))
    manager.close()
    assert not is_in_use(str(data))


def test_without_a_list_of_locks_nothing_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "LOCKS_PATH", f"{tmp_path}/nope")
    lock = OsFiles().lock(f"{tmp_path}/{LOCK_FILE}")
    assert not is_in_use(str(tmp_path))
    lock.release()


def test_what_is_no_regular_file_is_refused_at_once(tmp_path: Path) -> None:
    """Opening a pipe would wait for a writer for ever."""
    pipe = tmp_path / "00000000000000000000.log"
    os.mkfifo(pipe)
    for call in (SourceFiles().open, SourceFiles().read):
        with pytest.raises(OSError, match="not a regular file"):
            call(str(pipe))
