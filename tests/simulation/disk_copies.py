"""What people and bad disks do to a data folder: copies put back, files lost, cut, flipped, old.

All of it happens while no process runs on the disk, and by the port that processes use too: what a
person has written is on the disk for good, and so is what was there before. A copy knows bytes and
names, nothing of what was not synced.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from random import Random
from typing import NamedTuple

from simulation.storage import SimFiles

DATA = "/data"
LOCK_FILE = ".lock"


class FolderCopy(NamedTuple):
    """The files of a folder at one moment, by path, and the folders in it."""

    folders: tuple[str, ...]
    files: dict[str, bytes]


class Harm(Enum):
    """What becomes of one file."""

    REMOVED = "removed"
    CUT = "cut"
    FLIPPED = "flipped"
    OLDER = "older"


def copy_of(files: SimFiles, folder: str = DATA) -> FolderCopy:
    """Copy a folder, whoever uses it; a lock file belongs to its process and is left out."""
    folders: list[str] = []
    found: dict[str, bytes] = {}
    if files.exists(folder):
        for path, is_folder in _below(files, folder):
            if is_folder:
                folders.append(path)
            else:
                found[path] = files.read(path)
    return FolderCopy(tuple(folders), found)


def put_back(files: SimFiles, copy: FolderCopy, folder: str = DATA) -> None:
    """Replace all of a folder by a copy."""
    if files.exists(folder):
        files.remove_folder(folder)
    for each in (folder, *copy.folders):
        files.make_folder(each)
    for path, data in copy.files.items():
        _write(files, path, data)
    for each in ("/", folder, *copy.folders):
        files.sync_folder(each)


def paths(files: SimFiles, folder: str = DATA) -> list[str]:
    """Every file of a folder but its lock."""
    return list(copy_of(files, folder).files)


def harm(files: SimFiles, path: str, what: Harm, *, older: FolderCopy, rng: Random) -> str:
    """Do this to a file if it can be done; says what was done, or nothing."""
    size = files.size(path)
    if what is Harm.REMOVED:
        files.remove(path)
        files.sync_folder(path.rpartition("/")[0])
        return "removed"
    if what is Harm.OLDER:
        before = older.files.get(path)
        if before is None or before == files.read(path):
            return ""
        files.remove(path)
        _write(files, path, before)
        files.sync_folder(path.rpartition("/")[0])
        return f"{len(before)} bytes of before, not {size}"
    if size == 0:
        return ""
    at = rng.randrange(size)
    if what is Harm.CUT:
        files.cut(path, at)
        return f"cut to {at} of {size} bytes"
    files.flip_bits(path, at, 1 << rng.randrange(8))
    return f"flipped at byte {at} of {size}"


def _below(files: SimFiles, folder: str) -> Iterator[tuple[str, bool]]:
    for name in files.list(folder):
        path = f"{folder}/{name}"
        if files.is_folder(path):
            yield path, True
            yield from _below(files, path)
        elif name != LOCK_FILE:
            yield path, False


def _write(files: SimFiles, path: str, data: bytes) -> None:
    file = files.open(path, create=True)
    try:
        if data:
            file.write_at(0, [data])
        file.sync()
    finally:
        file.close()
