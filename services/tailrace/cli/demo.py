"""`tailrace demo`: a newcomer's tour of the log, with real crashes and measured numbers.

The tour is a list of steps (`STEPS`). Each says what it is about to show, does it for real in a
temporary folder, checks that it holds, and tells what it measured. A step that does not hold
raises `NotHeld`, and the tour ends with an exit code that is not 0.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from threading import Timer
from typing import Final, NamedTuple, cast

import pyarrow as pa
from rich.console import Console
from rich.text import Text

from tailrace.cli.demo_writer import (
    BATCHES_PER_APPEND,
    CUSTOMERS,
    EPOCH,
    ORDERS,
    RECORDS_PER_BATCH,
    appended_ends,
    demo_manager,
    order_time_ms,
    order_value,
)
from tailrace.cli.dump import DumpOptions
from tailrace.cli.formatting import counted, iso_time, size
from tailrace.cli.overview import dump
from tailrace.cli.printing import LinePrinter, TablePrinter, print_indented
from tailrace.cli.sources import SourceFiles
from tailrace.clock import SystemClock
from tailrace.log.audit.findings import Kind
from tailrace.log.audit.partition_check import PartitionVerdict
from tailrace.log.audit.verification import verify
from tailrace.log.cleaning.compaction import compact
from tailrace.log.log import PartitionLog
from tailrace.log.manager import LogManager
from tailrace.log.recovery import OpenReport
from tailrace.model import TopicId
from tailrace.record.build import batch_from_columns
from tailrace.record.header import split
from tailrace.record.view import BatchView

READ_BYTES: Final = 4 * 1024 * 1024
DEDUPE_BUFFER_BYTES: Final = 64 * 1024 * 1024
TORN_BYTES: Final = 4096
CHILD_DEADLINE_SECONDS: Final = 15
INDENT: Final = 3


class NotHeld(Exception):
    """Something that the tour claims does not hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How much the tour writes."""

    appends: int = 10
    crash_after_flushes: int = 3
    look_ups: int = 500
    updates: int = 250_000
    customers: int = 10_000


@dataclass(slots=True)
class Tour:
    """What the steps share."""

    folder: Path
    console: Console
    sizes: Sizes = field(default_factory=Sizes)
    clock: SystemClock = field(default_factory=SystemClock)
    acknowledged: int = 0
    in_page_cache: int = 0
    read_back: int = 0

    def tell(self, line: str, *, style: str = "") -> None:
        print_indented(self.console, Text(line, style=style), INDENT)

    def require(self, holds: bool, claim: str) -> None:
        if not holds:
            raise NotHeld(claim)

    def open(self) -> tuple[LogManager, OpenReport]:
        """Open the folder as a broker does; returns how the log of orders was found."""
        manager = demo_manager(self.folder)
        report = manager.open(now_ms=self.clock.wall_ms())
        for partition, error in report.damaged.items():
            raise NotHeld(f"{partition} opens: {error}")
        found = {each.partition: each for each in report.opened}
        return manager, found.get(ORDERS, OpenReport(ORDERS, clean=True))

    def foretell(self) -> PartitionVerdict:
        """What a verification says of the log of orders."""
        verdicts = verify(SourceFiles(), str(self.folder), now_ms=self.clock.wall_ms())
        return next(
            each
            for each in verdicts
            if isinstance(each, PartitionVerdict) and each.name == str(ORDERS)
        )


class Step(NamedTuple):
    """One stop of the tour: what it shows, in one or two sentences, and how."""

    title: str
    about: str
    run: Callable[[Tour], None]


def run_demo(tour: Tour) -> bool:
    """Run all steps; returns whether all that was claimed held."""
    started_ms = tour.clock.monotonic_ms()
    tour.console.print(Text(f"Tailrace, a tour of the log in {tour.folder}", style="bold"))
    for number, step in enumerate(STEPS, 1):
        tour.console.print(Text.assemble(f"\n{number}. ", (step.title, "bold cyan")))
        tour.tell(step.about, style="dim")
        try:
            step.run(tour)
        except NotHeld as error:
            tour.tell(f"This does not hold: {error}", style="bold red")
            return False
    took_ms = tour.clock.monotonic_ms() - started_ms
    held = tour.read_back == tour.acknowledged > 0
    verdict = "Nothing lost" if held else "Something was lost"
    style = "bold green" if held else "bold red"
    counts = f"{tour.acknowledged:,} acknowledged, {tour.read_back:,} read back"
    line = Text.assemble("\n", (f"{verdict}: {counts}.", style), f" ({took_ms / 1000:.1f} s)")
    tour.console.print(line)
    return held


def demo(*, keep: bool, sizes: Sizes | None = None) -> bool:
    """The whole tour in a temporary folder, which goes at the end unless it is to be kept."""
    console = Console(highlight=False)
    parent = Path(tempfile.mkdtemp(prefix="tailrace-demo-"))
    tour = Tour(parent / "data", console, sizes or Sizes())
    try:
        return run_demo(tour)
    finally:
        if keep:
            _print_commands(tour)
        else:
            shutil.rmtree(parent, ignore_errors=True)


def _print_commands(tour: Tour) -> None:
    partition = tour.folder / str(ORDERS)
    segment = next(iter(sorted(partition.glob("*.log"))), partition)
    commands = [
        f"tailrace log dump {tour.folder}",
        f"tailrace log dump {partition}",
        f"tailrace log dump --records --limit 5 {segment}",
        f"tailrace log verify --deep {tour.folder}",
        f"rm -r {tour.folder.parent}",
    ]
    tour.console.print(Text("\nThe folder is kept. Look around:", style="bold"))
    for command in commands:
        # A command that is wrapped cannot be copied.
        tour.console.print(Text(" " * INDENT + command), soft_wrap=True)


# The steps.


def _write(tour: Tour) -> None:
    manager, _ = tour.open()
    manager.create(ORDERS, TopicId("demo-orders"))
    log = manager.logs[ORDERS]
    started_ms = tour.clock.monotonic_ms()
    flushes = 0
    for end in appended_ends(log, tour.clock, tour.sizes.appends):
        tour.acknowledged = log.flush()
        flushes += 1
        tour.require(tour.acknowledged == end, "a flush makes all of the log durable")
    took_ms = max(tour.clock.monotonic_ms() - started_ms, 1)
    records, size_bytes = log.log_end, log.size_bytes
    manager.close()
    tour.tell(
        f"{records:,} records, {size(size_bytes)}, synced {counted(flushes, 'time')}, in "
        f"{took_ms / 1000:.2f} s: "
        f"{records * 1000 // took_ms:,} records/s made, checked, stored and synced"
    )


def _crash(tour: Tour) -> None:
    child = subprocess.Popen(  # noqa: S603 - our own interpreter and module, no shell.
        [sys.executable, "-m", "tailrace.cli.demo_writer", str(tour.folder)],
        stdout=subprocess.PIPE,
        text=True,
    )
    # A writer that says nothing must not keep the tour waiting.
    watchdog = Timer(CHILD_DEADLINE_SECONDS, child.kill)
    watchdog.start()
    flushes = 0
    try:
        for name, end in _told(child):
            flushes += _note(tour, name, end)
            if flushes >= tour.sizes.crash_after_flushes and name == "appended":
                break
        child.send_signal(signal.SIGKILL)
        # What it had said before it died counts as well.
        for name, end in _told(child):
            _note(tour, name, end)
    finally:
        watchdog.cancel()
        child.kill()
        code = child.wait(CHILD_DEADLINE_SECONDS)
        if child.stdout is not None:
            child.stdout.close()
    tour.require(flushes >= tour.sizes.crash_after_flushes, "the writer writes")
    tour.require(code == -signal.SIGKILL, f"the writer dies by the signal, not with {code}")
    tour.tell(
        f"kill -9 {child.pid}, in the middle of its work. It had flushed, and so acknowledged, "
        f"all below offset {tour.acknowledged:,}, and written all below {tour.in_page_cache:,}"
    )


def _told(child: subprocess.Popen[str]) -> Iterator[tuple[str, int]]:
    if child.stdout is None:
        return
    for line in child.stdout:
        name, _, end = line.strip().partition(" ")
        # The last line may have been cut by the kill.
        if line.endswith("\n") and end.isdigit():
            yield name, int(end)


def _note(tour: Tour, name: str, end: int) -> bool:
    if name == "flushed":
        tour.acknowledged = end
        return True
    tour.in_page_cache = end
    return False


def _recover(tour: Tour) -> None:
    foretold = tour.foretell()
    tour.tell(f"tailrace log verify says: {foretold.opening}")
    for finding in foretold.findings:
        tour.tell(f"{finding.kind} at byte {finding.position:,}: {finding.recovery.text}")
    started_ms = tour.clock.monotonic_ms()
    manager, report = tour.open()
    took_ms = tour.clock.monotonic_ms() - started_ms
    log = manager.logs[ORDERS]
    tour.tell(
        f"opened in {took_ms} ms: {size(report.scanned_bytes)} above the last checkpoint scanned "
        f"with their checksums, the log ends at {log.log_end:,}"
    )
    _tell_cuts(tour, report)
    tour.require(log.log_end >= tour.acknowledged, "what was acknowledged is there")
    tour.require(log.log_end >= tour.in_page_cache, "what was written is there")
    _check_orders(tour, log)
    manager.close()


def _power_loss(tour: Tour) -> None:
    manager, _ = tour.open()
    log = manager.logs[ORDERS]
    tour.acknowledged = log.flush()
    manager.checkpoint()
    for end in appended_ends(log, tour.clock, 1):
        tour.in_page_cache = end
    path = Path(log.segments[-1].path)
    log.abandon("the power is gone")
    for folder in manager.folders:
        folder.release()
    torn = path.stat().st_size - TORN_BYTES
    with path.open("r+b") as file:
        file.truncate(torn)
        file.truncate(torn + TORN_BYTES)
    tour.tell(
        f"{BATCHES_PER_APPEND} more batches up to offset {tour.in_page_cache:,} without a flush; "
        f"then the last {size(TORN_BYTES)} of the file become zeros, as when the power goes"
    )
    foretold = tour.foretell()
    (finding,) = [each for each in foretold.findings if each.kind is not Kind.NOT_CLOSED]
    tour.tell(f"tailrace log verify says: {finding.kind}, {finding.what}")
    tour.tell(f"and foretells: {finding.recovery.text}")
    manager, report = tour.open()
    log = manager.logs[ORDERS]
    _tell_cuts(tour, report)
    tour.require(
        path.stat().st_size == finding.recovery.at_byte, "the cut is where it was foretold"
    )
    kept = tour.in_page_cache - RECORDS_PER_BATCH
    tour.require(log.log_end == kept, f"the log ends at {kept}, before the torn batch")
    _check_orders(tour, log)
    manager.close()


def _look_up(tour: Tour) -> None:
    manager, _ = tour.open()
    log = manager.logs[ORDERS]
    offsets = range(0, log.log_end, max(log.log_end // tour.sizes.look_ups, 1))
    started_ms = tour.clock.monotonic_ms()
    for offset in offsets:
        found = log.offset_for_time(order_time_ms(offset) - 1)
        tour.require(found is not None and found.offset == offset, f"offset {offset} is found")
    took_ms = max(tour.clock.monotonic_ms() - started_ms, 1)
    middle = offsets[len(offsets) // 2]
    manager.close()
    tour.tell(
        f"the first order after {iso_time(order_time_ms(middle) - 1)} has offset {middle:,}; "
        f"{counted(len(offsets), 'such look-up')} among {log.log_end:,} records, "
        f"{took_ms * 1000 // len(offsets):,} µs each, all of them right"
    )


def _compact(tour: Tour) -> None:
    manager, _ = tour.open()
    manager.create(CUSTOMERS, TopicId("demo-customers"))
    log = manager.logs[CUSTOMERS]
    model = _update_customers(tour, log)
    log.roll()
    log.flush()
    started_ms = tour.clock.monotonic_ms()
    report = compact(
        log,
        cleaned_to=manager.cleaned_to(CUSTOMERS),
        bound=log.log_end,
        now_ms=tour.clock.wall_ms(),
        buffer_bytes=DEDUPE_BUFFER_BYTES,
    )
    took_ms = max(tour.clock.monotonic_ms() - started_ms, 1)
    if report is None:
        raise NotHeld("there is something to compact")
    manager.set_cleaned(CUSTOMERS, report.cleaned_to)
    found = {
        key: (offset, value)
        for keys, values, offsets in _columns(log)
        for key, value, offset in zip(keys, values, offsets, strict=True)
    }
    tour.require(found == model, "the last record of every key is there, at its offset")
    tour.require(report.records_after == len(model), "no older record of a key is left")
    manager.close()
    tour.tell(
        f"{report.records_before:,} updates of {len(model):,} customers: "
        f"{size(report.bytes_before)} became {size(report.bytes_after)} in {took_ms / 1000:.2f} s, "
        f"{report.records_before * 1000 // took_ms:,} records/s; every customer has the last "
        "value, at the offset it always had"
    )


def _update_customers(tour: Tour, log: PartitionLog) -> dict[bytes, tuple[int, bytes]]:
    """Append updates; returns offset and value of the last one of each customer."""
    model: dict[bytes, tuple[int, bytes]] = {}
    for first in range(0, tour.sizes.updates, RECORDS_PER_BATCH):
        numbers = range(first, min(first + RECORDS_PER_BATCH, tour.sizes.updates))
        keys = [b"customer-%d" % (n * 7919 % tour.sizes.customers) for n in numbers]
        values = [b'{"visits": %d}' % n for n in numbers]
        batch = batch_from_columns(
            pa.array(keys, pa.binary()), pa.array(values, pa.binary()), order_time_ms(first)
        )
        log.append_as_leader(batch, leader_epoch=EPOCH, now_ms=tour.clock.wall_ms())
        model.update(zip(keys, zip(numbers, values, strict=True), strict=True))
    return model


def _dump(tour: Tour) -> None:
    printer: LinePrinter | TablePrinter
    if tour.console.is_terminal:
        printer = TablePrinter(tour.console, full=False)
    else:
        printer = LinePrinter(tour.console.file, full=False)
    folder = tour.folder / str(ORDERS)
    segment = min(folder.glob("*.log"))
    for path, options in (
        (tour.folder, DumpOptions()),
        (segment, DumpOptions(limit=3)),
        (segment, DumpOptions(records=True, limit=3)),
    ):
        for entry in dump(SourceFiles(), str(path), options):
            printer.show(entry)
    printer.finish()


def _verify(tour: Tour) -> None:
    started_ms = tour.clock.monotonic_ms()
    verdicts = list(verify(SourceFiles(), str(tour.folder), now_ms=tour.clock.wall_ms(), deep=True))
    took_ms = tour.clock.monotonic_ms() - started_ms
    findings = [finding for verdict in verdicts for finding in verdict.findings]
    tour.require(not findings, f"nothing is wrong, not {findings}")
    partitions = [each for each in verdicts if isinstance(each, PartitionVerdict)]
    tour.tell(
        f"{counted(len(partitions), 'partition')}, "
        f"{sum(each.batches for each in partitions):,} batches, "
        f"{size(sum(each.size_bytes for each in partitions))} checked in {took_ms} ms: all sound"
    )
    manager, _ = tour.open()
    _check_orders(tour, manager.logs[ORDERS], say=False)
    manager.close()


STEPS: Final = (
    Step(
        "Write",
        f"A log is a folder of segments. Batches of {RECORDS_PER_BATCH:,} orders are appended to "
        f"{ORDERS}; what was flushed is acknowledged.",
        _write,
    ),
    Step(
        "Crash",
        "Another process goes on appending to the same log, until it is killed without a warning.",
        _crash,
    ),
    Step(
        "Recover",
        "Opening the folder scans what is above the recovery point and cuts off what is torn. "
        "Then every record is read and compared.",
        _recover,
    ),
    Step(
        "Lose power",
        "A power cut may tear what was not flushed. Whole batches stay, the torn one goes.",
        _power_loss,
    ),
    Step(
        "Look up by time",
        "Sparse indexes lead from a time to an offset and from an offset to a byte.",
        _look_up,
    ),
    Step(
        "Compact",
        f"Of the updates in {CUSTOMERS} only the last one of each key has to stay.",
        _compact,
    ),
    Step("Dump", "Every file can be looked into: tailrace log dump.", _dump),
    Step("Verify", "And checked, down to the last body: tailrace log verify --deep.", _verify),
)


# What the steps have in common.


def _check_orders(tour: Tour, log: PartitionLog, *, say: bool = True) -> None:
    """Read everything and compare it with what was written."""
    started_ms = tour.clock.monotonic_ms()
    count = 0
    for _, values, offsets in _columns(log):
        expected = [order_value(offset) for offset in range(count, count + len(offsets))]
        tour.require(values == expected, f"offsets from {count} on hold what was written")
        tour.require(offsets == list(range(count, count + len(offsets))), "no offset is missing")
        count += len(offsets)
    took_ms = max(tour.clock.monotonic_ms() - started_ms, 1)
    tour.require(count == log.log_end, f"all {log.log_end} offsets are read, not {count}")
    tour.require(count >= tour.acknowledged, "all that was acknowledged is read")
    # Each record was compared above, so those that were acknowledged are among them.
    tour.read_back = min(count, tour.acknowledged)
    if say:
        tour.tell(f"{count:,} records read and compared in {took_ms / 1000:.2f} s, all as written")


class _Columns(NamedTuple):
    """The columns of one batch."""

    keys: list[bytes]
    values: list[bytes]
    offsets: list[int]


def _columns(log: PartitionLog) -> Iterator[_Columns]:
    offset = log.log_start
    while data := log.read(offset, bytes_max=READ_BYTES):
        for position, header in split(data):
            view = BatchView(data, position)
            view.verify()
            columns = view.record_batch()
            yield _Columns(
                cast("list[bytes]", columns.column("key").to_pylist()),
                cast("list[bytes]", columns.column("value").to_pylist()),
                cast("list[int]", view.offsets().to_pylist()),
            )
            offset = header.next_offset


def _tell_cuts(tour: Tour, report: OpenReport) -> None:
    if not report.cut:
        tour.tell("nothing had to be cut: no batch was torn")
    for line in report.cut:
        tour.tell(line.replace(f"{tour.folder}/", ""))
