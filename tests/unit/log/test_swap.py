"""How compacted segments take the place of old ones, also when it is interrupted."""

from __future__ import annotations

import pytest

from simulation.storage import SimFiles, SimulatedCrash
from tailrace.log.segment import segment_name
from tailrace.log.swap import (
    SwapRange,
    cleaned_path,
    finish_swap,
    segment_bases,
    swap_in,
    swap_path,
    unfinished_swaps,
)

FOLDER = "/t-0"
SWAP = SwapRange(10, 30)
CLEANED = cleaned_path(FOLDER, SWAP.base, 7)
BASES = (0, 10, 20, 30)
DONE = sorted(
    [
        *(segment_name(base, suffix) for base in (0, 30) for suffix in (".log", ".index")),
        segment_name(10, ".log"),
        segment_name(20, ".snapshot"),
        "leader-epoch-checkpoint",
    ]
)


def write(files: SimFiles, path: str, data: bytes) -> None:
    file = files.open(path, create=True)
    file.truncate(0)
    file.write_at(0, [data])
    file.sync()
    file.close()


@pytest.fixture
def files(disk: SimFiles) -> SimFiles:
    """Segments at 0, 10, 20, 30, and a compacted file that stands for those at 10 and 20."""
    disk.make_folder(FOLDER)
    for base in BASES:
        write(disk, f"{FOLDER}/{segment_name(base, '.log')}", b"old")
        write(disk, f"{FOLDER}/{segment_name(base, '.index')}", b"old index")
    write(disk, f"{FOLDER}/{segment_name(20, '.timeindex')}", b"old time index")
    write(disk, f"{FOLDER}/{segment_name(20, '.snapshot')}", b"snapshot")
    write(disk, f"{FOLDER}/leader-epoch-checkpoint", b"epochs")
    write(disk, CLEANED, b"new")
    disk.sync_folder(FOLDER)
    disk.sync_folder("/")
    return disk


def content(files: SimFiles, base: int) -> bytes:
    return files.read(f"{FOLDER}/{segment_name(base, '.log')}")


def test_segment_bases_are_those_of_log_files_only(files: SimFiles) -> None:
    write(files, f"{FOLDER}/7.log", b"")
    write(files, f"{FOLDER}/{segment_name(40, '.log.old')}", b"")
    write(files, f"{FOLDER}/x{segment_name(50, '.log')}", b"")
    assert segment_bases(files, FOLDER) == list(BASES)


def test_paths_say_what_the_file_stands_for() -> None:
    assert f"{FOLDER}/00000000000000000010.00000000000000000007.cleaned" == CLEANED
    name = "00000000000000000010.00000000000000000030"
    assert swap_path(FOLDER, SWAP) == f"{FOLDER}/{name}.swap"


def test_the_compacted_file_takes_the_place_of_its_range(files: SimFiles) -> None:
    swap_in(files, FOLDER, CLEANED, SWAP)
    assert files.list(FOLDER) == DONE
    assert [content(files, base) for base in (0, 10, 30)] == [b"old", b"new", b"old"]
    files.crash(power_loss=True)
    assert files.list(FOLDER) == DONE
    assert content(files, 10) == b"new"


def test_unfinished_swaps_are_found(files: SimFiles) -> None:
    assert unfinished_swaps(files, FOLDER) == []
    files.rename(CLEANED, swap_path(FOLDER, SWAP))
    write(files, f"{FOLDER}/10.30.swap", b"not one of ours")
    assert unfinished_swaps(files, FOLDER) == [SWAP]


@pytest.mark.parametrize("power_loss", [False, True])
@pytest.mark.parametrize("operation", range(1, 13))
@pytest.mark.parametrize("again", [1, 3, 99])
def test_killed_anywhere_it_has_happened_or_not(
    files: SimFiles, operation: int, power_loss: bool, again: int
) -> None:
    files.crash_at_operation(operation)
    try:
        swap_in(files, FOLDER, CLEANED, SWAP)
    except SimulatedCrash:
        files.crash(power_loss=power_loss)
    # The next opening may be killed too, and so on.
    for _ in range(20):
        files.crash_at_operation(again)
        try:
            for swap in unfinished_swaps(files, FOLDER):
                finish_swap(files, FOLDER, swap)
            break
        except SimulatedCrash:
            files.crash(power_loss=power_loss)
    if files.exists(CLEANED):
        assert [content(files, base) for base in BASES] == [b"old"] * 4
    else:
        for swap in unfinished_swaps(files, FOLDER):
            files.crash(power_loss=False)
            finish_swap(files, FOLDER, swap)
        assert files.list(FOLDER) == DONE
        assert content(files, 10) == b"new"
