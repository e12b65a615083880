"""How compacted segments take the place of old ones, so that a crash at any point loses nothing.

A compaction writes a `<base>.<number>.cleaned`; the number is its own, so that one that was given
up and still runs never writes to the file of the next. The file stands for every old segment whose
base offset lies in [base, end). The steps, each durable before the next:

1. the cleaned file is synced;
2. it is renamed to `<base>.<end>.swap`: from here on the compaction has happened;
3. the old segments in (base, end) and all their indexes go, highest base first;
4. the swap file is renamed to `<base>.log`, over the old one.

Opening a folder removes every cleaned file (the compaction had not happened) and carries on from
step 3 with every swap file. Both can be done any number of times.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from tailrace.log.files import Files
from tailrace.log.segment import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    TIME_INDEX_SUFFIX,
    segment_name,
)

CLEANED_SUFFIX: Final = ".cleaned"
SWAP_SUFFIX: Final = ".swap"

_SWAP_NAME: Final = re.compile(r"([0-9]{20})\.([0-9]{20})\.swap")
_LOG_NAME: Final = re.compile(r"([0-9]{20})\.log")


class SwapRange(NamedTuple):
    """A compacted file that stands for the segments with base offsets in [base, end)."""

    base: int
    end: int


def cleaned_path(folder: str, base: int, number: int) -> str:
    return f"{folder}/{base:020d}.{number:020d}{CLEANED_SUFFIX}"


def swap_path(folder: str, swap: SwapRange) -> str:
    return f"{folder}/{swap.base:020d}.{swap.end:020d}{SWAP_SUFFIX}"


def swap_in(files: Files, folder: str, cleaned: str, swap: SwapRange) -> None:
    """Steps 2 to 4, for the path of a cleaned file that was synced."""
    files.rename(cleaned, swap_path(folder, swap))
    files.sync_folder(folder)
    finish_swap(files, folder, swap)


def finish_swap(files: Files, folder: str, swap: SwapRange) -> None:
    """Steps 3 and 4, as often as it takes."""
    names = set(files.list(folder))
    for base in reversed(segment_bases(files, folder)):
        if not swap.base <= base < swap.end:
            continue
        for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX):
            if segment_name(base, suffix) in names:
                files.remove(f"{folder}/{segment_name(base, suffix)}")
        if base != swap.base:
            files.remove(f"{folder}/{segment_name(base, LOG_SUFFIX)}")
    files.sync_folder(folder)
    files.rename(swap_path(folder, swap), f"{folder}/{segment_name(swap.base, LOG_SUFFIX)}")
    files.sync_folder(folder)


def unfinished_swaps(files: Files, folder: str) -> list[SwapRange]:
    matches = (_SWAP_NAME.fullmatch(name) for name in files.list(folder))
    return [SwapRange(int(match[1]), int(match[2])) for match in matches if match is not None]


def segment_bases(files: Files, folder: str) -> list[int]:
    """The base offsets of the segments in a folder, lowest first."""
    matches = (_LOG_NAME.fullmatch(name) for name in files.list(folder))
    return sorted(int(match[1]) for match in matches if match is not None)
