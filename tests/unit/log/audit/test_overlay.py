"""The overlay behaves as a file system does, and the files below never change."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulation.storage import SimFiles
from tailrace.cli.sources import SourceFiles
from tailrace.log.audit.overlay import Change, ChangeKind, OverlayFiles
from tailrace.log.checkpoints import write_atomically


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "a").write_bytes(b"0123456789")
    (tmp_path / "b").write_bytes(b"bb")
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "c").write_bytes(b"ccc")
    return tmp_path


def test_reads_what_is_below(folder: Path) -> None:
    files = OverlayFiles(SourceFiles())
    assert files.list(str(folder)) == ["a", "b", "inner"]
    assert files.read(f"{folder}/a") == b"0123456789"
    assert files.size(f"{folder}/inner/c") == 3
    assert files.is_folder(f"{folder}/inner")
    assert not files.exists(f"{folder}/z")
    assert files.boot_id() == SourceFiles().boot_id()
    assert files.changes() == {}


def test_missing_files_are_missing(folder: Path) -> None:
    files = OverlayFiles(SourceFiles())
    path = f"{folder}/z"
    with pytest.raises(FileNotFoundError):
        files.open(path)
    with pytest.raises(FileNotFoundError):
        files.remove(path)
    with pytest.raises(FileNotFoundError):
        files.size(path)
    with pytest.raises(FileNotFoundError):
        files.list(path)


def test_a_cut_is_a_number(folder: Path) -> None:
    files = OverlayFiles(SourceFiles())
    file = files.open(f"{folder}/a")
    file.truncate(4)
    file.sync()
    file.close()
    assert files.read(f"{folder}/a") == b"0123"
    assert files.changes() == {f"{folder}/a": Change(ChangeKind.CUT, 4)}
    assert (folder / "a").read_bytes() == b"0123456789"


def test_removing_and_renaming(folder: Path) -> None:
    files = OverlayFiles(SourceFiles())
    files.remove(f"{folder}/b")
    files.rename(f"{folder}/a", f"{folder}/inner/c")
    assert files.list(str(folder)) == ["inner"]
    assert files.read(f"{folder}/inner/c") == b"0123456789"
    assert files.changes() == {
        f"{folder}/a": Change(ChangeKind.REMOVED, 0),
        f"{folder}/b": Change(ChangeKind.REMOVED, 0),
        f"{folder}/inner/c": Change(ChangeKind.WRITTEN, 10),
    }
    assert sorted(path.name for path in folder.iterdir()) == ["a", "b", "inner"]


def test_folders_are_made_and_removed(folder: Path) -> None:
    files = OverlayFiles(SourceFiles())
    files.make_folder(f"{folder}/new/deep")
    file = files.open(f"{folder}/new/deep/file", create=True)
    file.write_at(0, [b"x"])
    file.close()
    assert files.list(str(folder)) == ["a", "b", "inner", "new"]
    assert files.list(f"{folder}/new/deep") == ["file"]
    files.remove_folder(f"{folder}/inner")
    files.remove_folder(f"{folder}/new")
    assert files.list(str(folder)) == ["a", "b"]
    assert not files.exists(f"{folder}/inner/c")
    assert files.changes() == {f"{folder}/inner/c": Change(ChangeKind.REMOVED, 0)}
    assert (folder / "inner" / "c").exists()


def test_writing_the_same_again_is_no_change(folder: Path) -> None:
    files = OverlayFiles(SourceFiles())
    write_atomically(files, f"{folder}/b", b"bb", durable=True)
    assert files.changes() == {}
    write_atomically(files, f"{folder}/b", b"cc", durable=True)
    assert files.changes() == {f"{folder}/b": Change(ChangeKind.WRITTEN, 2)}


def test_a_file_that_grows_below_does_not_grow_up_here(folder: Path) -> None:
    files = OverlayFiles(SourceFiles())
    assert files.size(f"{folder}/a") == 10
    (folder / "a").write_bytes(b"0123456789 and more")
    assert files.read(f"{folder}/a") == b"0123456789"


def test_locks_keep_nobody_out_and_files_have_no_descriptor(folder: Path) -> None:
    files = OverlayFiles(SourceFiles())
    files.lock(f"{folder}/.lock").release()
    files.lock(f"{folder}/.lock").release()
    assert not (folder / ".lock").exists()
    with pytest.raises(OSError, match="no descriptor"):
        files.open(f"{folder}/a").fileno()


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.integers(0, 30), st.binary(max_size=10)),
        st.tuples(st.just("truncate"), st.integers(0, 30), st.just(b"")),
        st.tuples(st.just("read"), st.integers(0, 30), st.binary(max_size=20)),
    ),
    max_size=12,
)


@given(OPERATIONS)
def test_a_file_is_like_any_other(operations: list[tuple[str, int, bytes]]) -> None:
    below, twin = SimFiles(), SimFiles()
    for each in (below, twin):
        each.make_folder("d")
        each.open("d/f", create=True).write_at(0, [b"0123456789"])
    overlay = OverlayFiles(below)
    file, other = overlay.open("d/f"), twin.open("d/f")
    for name, number, data in operations:
        if name == "write":
            file.write_at(number, [data, b"|"])
            other.write_at(number, [data, b"|"])
        elif name == "truncate":
            file.truncate(number)
            other.truncate(number)
        else:
            assert file.read_at(number, len(data)) == other.read_at(number, len(data))
        assert file.size() == other.size()
        assert overlay.read("d/f") == twin.read("d/f")
    assert below.read("d/f") == b"0123456789"
