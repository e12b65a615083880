"""What the commands of `tailrace log` do, once their options are read.

Chooses how to print, joins reading and printing, and comes to the exit code. Apart from `cli.log`
because it imports all that reads a log, which takes a moment that `--help` and the completion of
a shell should not have to wait for. Nothing is written but the output.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from tailrace.cli.dump import DumpOptions, NotOurs
from tailrace.cli.entries import DamageEntry
from tailrace.cli.overview import dump
from tailrace.cli.printing import JsonPrinter, LinePrinter, Printer, TablePrinter
from tailrace.cli.sources import SourceFiles, is_in_use
from tailrace.cli.verify import JsonReport, Tally, TextReport
from tailrace.clock import SystemClock
from tailrace.log.audit.verification import NoLogFolder, bytes_to_read, is_partition_folder, verify

EXIT_DAMAGE: Final = 1
EXIT_FAILED: Final = 2
PROGRESS_FROM_BYTES: Final = 64 * 1024 * 1024
"""A folder with less than this is read before a bar could be seen."""


def run_dump(paths: Sequence[Path], options: DumpOptions, *, as_json: bool, full: bool) -> int:
    """Dump one path after the other; returns the exit code."""
    printer = _printer(as_json=as_json, full=full)
    damaged = failed = False
    for path in paths:
        try:
            for entry in dump(SourceFiles(), _text(path), options):
                damaged = damaged or isinstance(entry, DamageEntry)
                printer.show(entry)
        except BrokenPipeError:
            raise
        except (NotOurs, OSError) as error:
            failed = True
            printer.finish()
            _complain(error, path)
    printer.finish()
    if failed:
        return EXIT_FAILED
    return EXIT_DAMAGE if damaged else 0


def run_verify(folder: Path, *, deep: bool, as_json: bool) -> int:
    """Verify a folder; returns the exit code."""
    path = _text(folder)
    files = SourceFiles()
    console = _console()
    report = JsonReport(sys.stdout) if as_json else TextReport(console)
    tally = Tally()
    try:
        data_folder = path.rpartition("/")[0] or "." if is_partition_folder(files, path) else path
        with _progress(bytes_to_read(files, path), console) as advance:
            for verdict in verify(
                files,
                path,
                now_ms=SystemClock().wall_ms(),
                deep=deep,
                in_use=is_in_use(data_folder),
                progress=advance,
            ):
                tally.take(verdict)
                report.show(verdict)
    except BrokenPipeError:
        raise
    except (NoLogFolder, OSError) as error:
        _complain(error, folder)
        return EXIT_FAILED
    report.finish(tally)
    return tally.exit_code


def _printer(*, as_json: bool, full: bool) -> Printer:
    if as_json:
        return JsonPrinter(sys.stdout)
    console = _console()
    if console.is_terminal:
        return TablePrinter(console, full=full)
    return LinePrinter(sys.stdout, full=full)


def _console() -> Console:
    return Console(highlight=False)


def _text(path: Path) -> str:
    return str(path.absolute()) if str(path) == "." else str(path)


def _complain(error: Exception, path: Path) -> None:
    if isinstance(error, OSError):
        reason = error.strerror or str(error)
        if isinstance(error, FileNotFoundError):
            reason = "there is no such file or folder"
        typer.echo(f"tailrace: {error.filename or path}: {reason}", err=True)
    else:
        typer.echo(f"tailrace: {error}", err=True)


@contextmanager
def _progress(total_bytes: int, console: Console) -> Iterator[Callable[[int], None]]:
    """A bar on a terminal while much is read; it goes away when all is read."""
    if not console.is_terminal:
        # What is printed goes elsewhere, so the bar cannot get in its way.
        console = Console(stderr=True)
    if not console.is_terminal or total_bytes < PROGRESS_FROM_BYTES:
        yield lambda _: None
        return
    columns = (
        TextColumn("verifying"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("verifying", total=total_bytes)
        yield lambda done: bar.advance(task, done)
