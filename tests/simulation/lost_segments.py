"""A segment in the middle of a log vanishes from a simulated disk: does opening the log notice?

Tried on a copy of the disk, so that the log itself goes on as if nothing had been. Only a segment
counts that was durable, as the files of the folder say, and of which something may still be read.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from itertools import pairwise
from random import Random
from typing import NamedTuple

from simulation.log_model import Mismatch
from simulation.storage import SimFiles
from tailrace.errors import CorruptCheckpoint, DamagedLog
from tailrace.log.checkpoints import CLEAN_SHUTDOWN, LOG_STARTS, RECOVERY_POINTS, read_or_none
from tailrace.log.flushing import SYNC_FAILED_FILE
from tailrace.log.manager import LogManager
from tailrace.log.segment import LOG_SUFFIX, segment_name
from tailrace.log.swap import SWAP_SUFFIX, segment_bases
from tailrace.model import TopicPartition


class MiddleSegment(NamedTuple):
    folder: str
    partition: TopicPartition
    base: int


def lose_a_segment(
    files: SimFiles, data_folder: str, rng: Random, open_with: Callable[[SimFiles], LogManager]
) -> MiddleSegment | None:
    """Take one away, and require that the log is damaged from there on; None: there is none."""
    found = middle_segments(files, data_folder)
    if not found:
        return None
    lost = rng.choice(found)
    copy = deepcopy(files)
    copy.disk_bytes_max = None
    stem = segment_name(lost.base, "")
    gone = (f"{stem}.",) if rng.random() < 0.5 else (stem + LOG_SUFFIX,)
    for name in copy.list(lost.folder):
        if name.startswith(gone):
            copy.remove(f"{lost.folder}/{name}")
    report = open_with(copy).open(now_ms=0)
    error = report.damaged.get(lost.partition)
    if not isinstance(error, DamagedLog) or error.offset != lost.base:
        raise Mismatch(f"{lost} is gone, and that was not noticed: {error}")
    return lost


def middle_segments(files: SimFiles, data_folder: str) -> list[MiddleSegment]:
    """Those between others that are durable and not given up, where nothing else is wrong."""
    try:
        points = read_or_none(files, f"{data_folder}/{RECOVERY_POINTS.file_name}", RECOVERY_POINTS)
        starts = read_or_none(files, f"{data_folder}/{LOG_STARTS.file_name}", LOG_STARTS)
        clean = read_or_none(files, f"{data_folder}/{CLEAN_SHUTDOWN.file_name}", CLEAN_SHUTDOWN)
    except CorruptCheckpoint:
        return []
    found = []
    for partition, point in (points or {}).items():
        folder = f"{data_folder}/{partition}"
        if not files.exists(folder):
            continue
        names = files.list(folder)
        if SYNC_FAILED_FILE in names or any(name.endswith(SWAP_SUFFIX) for name in names):
            continue
        start = (starts or {}).get(partition, 0)
        if clean is not None and partition in clean.partitions:
            start = max(start, clean.partitions[partition].log_start)
        bases = segment_bases(files, folder)
        found += [
            MiddleSegment(folder, partition, base)
            for base, after in list(pairwise(bases))[1:]
            if after <= point and base > start
        ]
    return found
