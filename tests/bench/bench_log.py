"""The log against bare system calls on the same bytes, in the same run: ratios, not times.

Each figure is the median over rounds in which the log and its yardstick take turns; both are
counted in CPU seconds of this process, which other programs on the machine disturb least. Goals
are those the project set itself; `--json` prints one object for scripts.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache, partial
from pathlib import Path
from time import process_time

import google_crc32c
import pyarrow as pa
from rich.console import Console
from rich.table import Table

from tailrace.config import FolderConfig, LogConfig
from tailrace.log.checkpoints import RECOVERY_POINTS
from tailrace.log.cleaning.compaction import compact
from tailrace.log.data_folder import Identity
from tailrace.log.files import OsFiles
from tailrace.log.log import PartitionLog
from tailrace.log.manager import LogManager
from tailrace.model import BrokerId, LeaderEpoch, TopicId, TopicPartition
from tailrace.record.build import BatchBuilder
from tailrace.record.view import BatchView

MIB = 1 << 20
ROUNDS = 7
RECOVERED_BYTES = 640 * MIB
VALUE = b"v" * 100


@dataclass(frozen=True)
class Figure:
    """One line of the report; `goal` is a bound on `value`, from below or from above."""

    name: str
    value: float
    unit: str
    low: float
    high: float
    goal: str
    met: bool | None
    detail: str


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    arguments = parser.parse_args()
    folder = tempfile.mkdtemp(prefix="tailrace-bench-")
    try:
        figures = run(folder, arguments.rounds)
    finally:
        shutil.rmtree(folder)
    if arguments.json:
        json.dump([asdict(figure) for figure in figures], sys.stdout)
        print()
    else:
        show(figures)
    return 0


def run(folder: str, rounds: int) -> list[Figure]:
    manager = LogManager(
        OsFiles(),
        FolderConfig(log_dirs=(f"{folder}/data",)),
        identity=Identity("bench", BrokerId(0), "bench"),
    )
    manager.open(now_ms=0)
    return [
        *append_large(manager, folder, rounds),
        *append_small(manager, folder, rounds),
        *read_sequentially(manager, rounds),
        *recover(folder, rounds),
        *compaction(folder, rounds),
        *build(rounds),
    ]


def append_large(manager: LogManager, folder: str, rounds: int) -> list[Figure]:
    batch = batch_of(MIB)
    log = manager.create(TopicPartition("large", 0), TopicId("large"))
    ratios, detail = paired(
        rounds, lambda: bare_append(folder, batch, 64), lambda: log_append(log, batch, 64)
    )
    return [ratio("append 1 MiB batches / write + CRC-32C", ratios, 0.7, detail)]


def append_small(manager: LogManager, folder: str, rounds: int) -> list[Figure]:
    batch = batch_of(16 * 1024)
    log = manager.create(TopicPartition("small", 0), TopicId("small"))
    count = 2000
    over = []
    for _ in range(rounds):
        bare = timed(lambda: bare_append(folder, batch, count))
        ours = timed(lambda: log_append(log, batch, count))
        over.append((ours - bare) / count * 1e6)
    return [bounded("append 16 KiB batches: CPU above write + CRC", over, "µs/batch", at_most=40.0)]


def read_sequentially(manager: LogManager, rounds: int) -> list[Figure]:
    log = manager.logs[TopicPartition("large", 0)]
    segment = log.segments[0]
    small = manager.logs[TopicPartition("small", 0)]
    small_segment = small.segments[0]
    figures = []
    for name, each, path in (
        ("1 MiB", log, segment.path),
        ("16 KiB", small, small_segment.path),
    ):
        size = min(each.segments[0].size, 128 * MIB)
        ratios, detail = paired(
            rounds,
            partial(bare_read, path, size),
            partial(log_read, each, size),
        )
        figures.append(ratio(f"sequential read of {name} batches / pread", ratios, 0.8, detail))
    return figures


def recover(folder: str, rounds: int) -> list[Figure]:
    """Open a folder that was left by a crash with nothing known to be durable: all is scanned."""
    figures = []
    for name, batch in (("1 MiB", batch_of(MIB)), ("16 KiB", batch_of(16 * 1024))):
        path = f"{folder}/recover-{len(batch)}"
        manager = open_manager(path)
        log = manager.create(TopicPartition("recover", 0), TopicId("recover"))
        while log.size_bytes < RECOVERED_BYTES:
            log.append_as_leader(batch, leader_epoch=LeaderEpoch(0), now_ms=0)
        log.flush()
        crash(manager)
        segment = log.segments[0].path
        in_memory(segment)
        ratios, detail = paired(rounds, partial(crc_only, segment), partial(reopen, path))
        what = f"recovery of {name} batches / CRC-32C alone"
        # The work per batch is what counts for small ones; there is no goal for it.
        figures.append(ratio(what, ratios, 0.5 if len(batch) >= MIB // 2 else None, detail))
        shutil.rmtree(path)
    return figures


def reopen(path: str) -> None:
    Path(path, RECOVERY_POINTS.file_name).unlink(missing_ok=True)
    manager = open_manager(path)
    crash(manager)


def compaction(folder: str, rounds: int) -> list[Figure]:
    """A pass over a million records against one group-by in memory, in two ways of writing keys.

    The yardstick with a goal is the group-by that gives what compaction gives: of each key the last
    value, timestamp and offset. The one without looks at keys and offsets only, and so passes over
    nine tenths of the bytes that a compaction has to read, check and write. What is counted of the
    compaction is all of it: reading from the page cache, checksums, syncing what it wrote, and
    giving back the old file.
    """
    records, keys = 1_000_000, 100_000
    scattered = random.Random(1)
    figures = []
    for name, key_of in (
        ("keys in turn", lambda at: at * 7919 % keys),
        ("keys at random", lambda _: scattered.randrange(keys)),
    ):
        batches, table = keyed_batches(records, key_of)
        path = f"{folder}/compact"
        shutil.rmtree(path, ignore_errors=True)
        rows = [compacted(path, batches, table) for _ in range(max(rounds, 5) + 1)][1:]
        narrow, wide, ours = (list(each) for each in zip(*rows, strict=True))
        detail = f"{records / statistics.median(ours) / 1e6:.1f} M records/s, {keys:,} keys"
        for what, plain, goal in (("key and offset", narrow, None), ("same columns", wide, 0.5)):
            ratios = [bare_s / ours_s for bare_s, ours_s in zip(plain, ours, strict=True)]
            title = f"compaction, {name} / group-by of {what}"
            figures.append(ratio(title, ratios, goal, detail))
    return figures


def compacted(path: str, batches: list[bytes], table: pa.Table) -> tuple[float, ...]:
    """CPU seconds of both group-bys, and of a compaction of the same records."""
    manager = open_manager(path)
    log = manager.create(TopicPartition("compact", 0), TopicId("compact"))
    for batch in batches:
        log.append_as_leader(batch, leader_epoch=LeaderEpoch(0), now_ms=0)
    log.roll()
    log.flush()
    pairs = table.select(["key", "offset"])
    # On one thread, as a compaction runs.
    narrow = timed(lambda: pairs.group_by("key", use_threads=False).aggregate([("offset", "max")]))
    wide = timed(
        lambda: table.group_by("key", use_threads=False).aggregate(
            [("value", "last"), ("timestamp", "last"), ("offset", "last")]
        )
    )
    ours = timed(partial(compact, log, now_ms=0))
    crash(manager)
    shutil.rmtree(path)
    return narrow, wide, ours


def build(rounds: int) -> list[Figure]:
    rates = []
    for _ in range(rounds):
        count = 0
        start = process_time()
        for _ in range(20):
            builder = BatchBuilder()
            while builder.size_bytes < MIB:
                builder.append(VALUE, timestamp_ms=0)
            builder.build()
            count += builder.count
        rates.append(count / (process_time() - start) / 1e6)
    return [
        Figure(
            "batches from single records, 100 B, 1 MiB",
            statistics.median(rates),
            "M records/s",
            min(rates),
            max(rates),
            "",
            None,
            "",
        )
    ]


def batch_of(size: int) -> bytes:
    builder = BatchBuilder()
    while builder.size_bytes < size:
        builder.append(VALUE, timestamp_ms=0)
    return builder.build()


def keyed_batches(records: int, key_of: Callable[[int], int]) -> tuple[list[bytes], pa.Table]:
    """Records with these keys in 1 MiB batches, and all their columns."""
    batches, tables, at = [], [], 0
    while at < records:
        builder = BatchBuilder()
        while builder.size_bytes < MIB and at < records:
            builder.append(VALUE, key=b"key-%07d" % key_of(at), timestamp_ms=at)
            at += 1
        batch = builder.build(base_offset=at - builder.count)
        view = BatchView(batch)
        columns = view.record_batch()
        tables.append(
            pa.table(
                {
                    "key": columns.column("key"),
                    "value": columns.column("value"),
                    "timestamp": columns.column("timestamp"),
                    "offset": view.offsets(),
                }
            )
        )
        batches.append(batch)
    return batches, pa.concat_tables(tables)


def open_manager(path: str) -> LogManager:
    manager = LogManager(
        OsFiles(),
        FolderConfig(log_dirs=(path,)),
        identity=Identity("bench", BrokerId(0), "bench"),
        log_config=lambda _: LogConfig(segment_bytes=1024 * MIB),
    )
    manager.open(now_ms=0)
    return manager


def crash(manager: LogManager) -> None:
    for folder in manager.folders:
        folder.release()
    manager.storage.cache.close()


def bare_append(folder: str, batch: bytes, count: int) -> None:
    path = f"{folder}/bare"
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for _ in range(count):
        google_crc32c.value(batch)
        os.write(fd, batch)
    os.close(fd)


def log_append(log: PartitionLog, batch: bytes, count: int) -> None:
    for _ in range(count):
        log.append_as_leader(batch, leader_epoch=LeaderEpoch(0), now_ms=0)


def bare_read(path: str, size: int) -> None:
    fd = os.open(path, os.O_RDONLY)
    position = 0
    while position < size:
        position += len(os.pread(fd, MIB, position))
    os.close(fd)


def log_read(log: PartitionLog, size: int) -> None:
    """As a broker reads: find a slice, read it, go on at the offset that follows it."""
    offset = done = 0
    while done < size:
        piece = log.locate(offset, bytes_max=MIB)
        if piece is None:
            raise AssertionError("the log ended early")
        with log.storage.cache.use(piece.path) as file:
            done += len(file.read_at(piece.position, piece.size))
        offset = piece.next_offset


def crc_only(path: str) -> None:
    """The checksum of the same bytes, read before the clock starts."""
    for buffer in in_memory(path):
        google_crc32c.value(buffer)


@cache
def in_memory(path: str) -> list[pa.Buffer]:
    data = pa.py_buffer(Path(path).read_bytes())
    return [data.slice(at, min(MIB, data.size - at)) for at in range(0, data.size, MIB)]


def timed(work: Callable[[], object]) -> float:
    start = process_time()
    work()
    return process_time() - start


def paired(
    rounds: int, bare: Callable[[], None], ours: Callable[[], None]
) -> tuple[list[float], str]:
    ratios, times = [], []
    for _ in range(rounds):
        bare_s, ours_s = timed(bare), timed(ours)
        ratios.append(bare_s / ours_s)
        times.append((bare_s, ours_s))
    bare_ms, ours_ms = (statistics.median(each) * 1e3 for each in zip(*times, strict=True))
    return ratios, f"{bare_ms:.1f} ms bare, {ours_ms:.1f} ms in the log"


def ratio(name: str, ratios: list[float], at_least: float | None, detail: str) -> Figure:
    value = statistics.median(ratios)
    goal = "" if at_least is None else f">= {at_least}"
    met = None if at_least is None else value >= at_least
    return Figure(name, value, "x", min(ratios), max(ratios), goal, met, detail)


def bounded(name: str, values: list[float], unit: str, *, at_most: float) -> Figure:
    value = statistics.median(values)
    return Figure(
        name, value, unit, min(values), max(values), f"<= {at_most:g}", value <= at_most, ""
    )


def show(figures: list[Figure]) -> None:
    table = Table(title="The log beside bare system calls (CPU time, medians of one run)")
    for heading in ("what", "figure", "range", "goal", "", "detail"):
        table.add_column(heading, justify="right" if heading in {"figure", "goal"} else "left")
    for each in figures:
        mark = {True: "met", False: "[red]missed[/red]", None: ""}[each.met]
        table.add_row(
            each.name,
            f"{each.value:.2f} {each.unit}",
            f"{each.low:.2f}..{each.high:.2f}",
            each.goal,
            mark,
            each.detail,
        )
    Console(width=None if sys.stdout.isatty() else 150).print(table)


if __name__ == "__main__":
    sys.exit(main())
