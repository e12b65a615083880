"""Printing the entries of a dump: tables for a terminal, lines for a pipe, JSON for a program.

Entries go by as they come and are never all held: a table is printed whenever it has grown to
`ROWS_PER_TABLE`. This module knows entries and how to show them, nothing of files.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import IO, Final, Literal, NamedTuple, Protocol, TypeVar, cast

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from tailrace.cli.entries import (
    BatchEntry,
    ClosedEntry,
    DamageEntry,
    Entry,
    EpochStartEntry,
    FileEntry,
    IndexEntry,
    InsideEntry,
    OffsetEntry,
    PartitionEntry,
    ProducedEntry,
    PropertyEntry,
    RecordEntry,
    SegmentEntry,
    TimeIndexEntry,
    as_json,
)
from tailrace.cli.formatting import NOTHING, data, iso_time, number, safe, size

ROWS_PER_TABLE: Final = 500

E = TypeVar("E", bound=Entry)


def print_indented(console: Console, text: Text, indent: int = 0) -> None:
    """Print text that keeps its indent when a terminal wraps it.

    Into a file or a pipe every line goes whole: who reads it there has no width.
    """
    if console.is_terminal:
        console.print(Padding(text, (0, 0, 0, indent), expand=False))
    else:
        console.print(Text(" " * indent) + text, soft_wrap=True)


class Printer(Protocol):
    """Takes entries one by one; `finish` prints what was held back."""

    def show(self, entry: Entry) -> None: ...

    def finish(self) -> None: ...


class JsonPrinter:
    """One JSON object a line."""

    def __init__(self, out: IO[str]) -> None:
        self._out = out

    def show(self, entry: Entry) -> None:
        self._out.write(json.dumps(as_json(entry), ensure_ascii=False) + "\n")

    def finish(self) -> None:
        self._out.flush()


class LinePrinter:
    """One line for each entry: its type, then name=value pairs that are easy to search."""

    def __init__(self, out: IO[str], *, full: bool) -> None:
        self._out = out
        self._full = full

    def show(self, entry: Entry) -> None:
        pairs = [entry.type]
        for column in _COLUMNS[type(entry)]:
            text = column.text(entry, _Shown(full=self._full, grouped=False))
            if text not in _EMPTY:
                pairs.append(f"{column.title.replace(' ', '_')}={_quoted(text)}")
        self._out.write(" ".join(pairs) + "\n")

    def finish(self) -> None:
        self._out.flush()


class TablePrinter:
    """Tables with a heading for each file."""

    def __init__(self, console: Console, *, full: bool) -> None:
        self._console = console
        self._shown = _Shown(full=full, grouped=True)
        self._kind: type[Entry] = Entry
        self._is_first = True
        self._rows: list[list[str]] = []

    def show(self, entry: Entry) -> None:
        if isinstance(entry, FileEntry | DamageEntry):
            self.finish()
            self._console.print(_heading(entry) if isinstance(entry, FileEntry) else _damage(entry))
            self._is_first = True
            return
        if type(entry) is not self._kind or len(self._rows) >= ROWS_PER_TABLE:
            self.finish()
        self._kind = type(entry)
        self._rows.append([each.text(entry, self._shown) for each in _COLUMNS[self._kind]])

    def finish(self) -> None:
        """Print the rows that wait, without the columns that say nothing."""
        if not self._rows:
            return
        table = Table(box=None, header_style="bold cyan", pad_edge=False, padding=(0, 1))
        shown = [
            (number, column)
            for number, column in enumerate(_COLUMNS[self._kind])
            if not column.lines_only and any(row[number] not in _EMPTY for row in self._rows)
        ]
        for _, column in shown:
            justify: Literal["left", "right"] = "right" if column.is_number else "left"
            table.add_column(
                column.title, justify=justify, no_wrap=not column.folds, overflow="fold"
            )
        if not self._is_first:
            self._console.print()
        self._is_first = False
        for row in self._rows:
            table.add_row(*(Text(row[number], style=column.style) for number, column in shown))
        self._console.print(table)
        self._rows = []


def _heading(entry: FileEntry) -> Text:
    text = Text.assemble("\n", (entry.kind, "bold green"), "  ", (safe(entry.path), "bold"))
    details = [size(entry.size_bytes)] if entry.size_bytes >= 0 else []
    details += [entry.about] if entry.about else []
    return text.append(f"  {', '.join(details)}", style="dim")


def _damage(entry: DamageEntry) -> Text:
    text = Text.assemble(("damage ", "bold red"))
    if entry.position >= 0:
        text.append(f"bytes {entry.position:,} to {entry.end:,}", style="red")
        if entry.base_offset >= 0:
            text.append(f" (offset {entry.base_offset:,})", style="red")
        text.append(": ")
    return text.append(safe(entry.reason))


class _Shown(NamedTuple):
    """How much of long values is shown, and whether numbers are for people only."""

    full: bool
    grouped: bool


class _Column(NamedTuple):
    title: str
    text: Callable[[Entry, _Shown], str]
    is_number: bool = False
    style: str = ""
    # Too much for a table.
    lines_only: bool = False
    # Too long for a line of a terminal, it may be: then it goes on in the next.
    folds: bool = False


_EMPTY: Final = {"", NOTHING}


def _column(
    kind: type[E],
    title: str,
    text: Callable[[E], str],
    *,
    is_number: bool = False,
    style: str = "",
    lines_only: bool = False,
) -> _Column:
    return _Column(title, lambda entry, _: text(cast("E", entry)), is_number, style, lines_only)


def _number(title: str, field: str, *, style: str = "") -> _Column:
    def text(entry: Entry, shown: _Shown) -> str:
        value = getattr(entry, field)
        return number(value) if shown.grouped else _bare(value)

    return _Column(title, text, True, style)


def _size(title: str, field: str) -> _Column:
    def text(entry: Entry, shown: _Shown) -> str:
        value = getattr(entry, field)
        return size(value) if shown.grouped else _bare(value)

    return _Column(title, text, True)


def _name(title: str, field: str, *, style: str = "", folds: bool = False) -> _Column:
    return _Column(
        title, lambda entry, _: safe(str(getattr(entry, field))), style=style, folds=folds
    )


def _time(title: str, field: str) -> _Column:
    return _Column(title, lambda entry, _: iso_time(getattr(entry, field)), True, "dim")


def _bytes(title: str, field: str, *, style: str = "") -> _Column:
    return _Column(
        title,
        lambda entry, shown: data(getattr(entry, field), full=shown.full),
        style=style,
        folds=True,
    )


def _headers(entry: Entry, shown: _Shown) -> str:
    pairs = cast("RecordEntry", entry).headers
    return ", ".join(f"{safe(key)}={data(value, full=shown.full)}" for key, value in pairs)


def _bare(value: int) -> str:
    return NOTHING if value == -1 else str(value)


def _codec(entry: BatchEntry) -> str:
    if entry.compression == "none":
        return NOTHING
    return f"{entry.compression} {entry.body_bytes / entry.length:.1f}x"


def _producer(entry: BatchEntry) -> str:
    if entry.producer_id < 0:
        return NOTHING
    return f"{entry.producer_id}/{entry.producer_epoch}:{entry.base_sequence}"


def _quoted(text: str) -> str:
    is_plain = text.isprintable() and not set(text) & set(" \"'=")
    return text if is_plain else json.dumps(text, ensure_ascii=False)


_COLUMNS: Final[dict[type[Entry], tuple[_Column, ...]]] = {
    FileEntry: (
        _name("kind", "kind"),
        _name("path", "path"),
        _number("size", "size_bytes"),
        _name("about", "about"),
    ),
    DamageEntry: (
        _name("path", "path"),
        _number("position", "position"),
        _number("end", "end"),
        _number("offset", "base_offset"),
        _name("reason", "reason"),
    ),
    BatchEntry: (
        _column(
            BatchEntry,
            "offsets",
            lambda each: f"{each.base_offset}..{each.last_offset}",
            is_number=True,
            style="bold",
        ),
        _number("records", "record_count"),
        _number("position", "position"),
        _number("bytes", "length"),
        _number("epoch", "leader_epoch"),
        _time("newest", "max_timestamp_ms"),
        _column(BatchEntry, "codec", _codec),
        _column(BatchEntry, "producer", _producer),
        _column(BatchEntry, "flags", lambda each: ",".join(each.flags)),
        _column(BatchEntry, "crc", lambda each: each.crc, lines_only=True),
    ),
    RecordEntry: (
        _number("offset", "offset", style="bold"),
        _time("time", "timestamp_ms"),
        _bytes("key", "key", style="yellow"),
        _bytes("value", "value"),
        _Column("headers", _headers, folds=True),
    ),
    IndexEntry: (_number("offset", "offset", style="bold"), _number("position", "position")),
    TimeIndexEntry: (_time("time", "timestamp_ms"), _number("offset", "offset", style="bold")),
    ProducedEntry: (
        _number("producer", "producer_id", style="bold"),
        _number("epoch", "producer_epoch"),
        _column(
            ProducedEntry,
            "sequences",
            lambda each: f"{each.base_sequence}..{each.last_sequence}",
            is_number=True,
        ),
        _column(
            ProducedEntry,
            "offsets",
            lambda each: f"{each.base_offset}..{each.last_offset}",
            is_number=True,
        ),
        _time("newest", "timestamp_ms"),
        _time("written", "last_update_ms"),
    ),
    OffsetEntry: (
        _name("topic", "topic"),
        _number("partition", "partition"),
        _number("offset", "offset", style="bold"),
    ),
    EpochStartEntry: (_number("epoch", "epoch", style="bold"), _number("from", "start_offset")),
    PropertyEntry: (_name("name", "name"), _name("value", "value", style="bold")),
    ClosedEntry: (
        _name("topic", "topic"),
        _number("partition", "partition"),
        _number("start", "log_start"),
        _number("end", "log_end", style="bold"),
        _number("active", "active_base"),
        _number("active bytes", "active_size_bytes"),
    ),
    SegmentEntry: (
        _name("segment", "name", style="bold"),
        _size("size", "size_bytes"),
        _number("first", "first_offset"),
        _number("next", "next_offset"),
        _number("batches", "batches"),
        _number("records", "records"),
        _time("newest", "max_timestamp_ms"),
    ),
    InsideEntry: (
        _name("file", "name"),
        _name("kind", "kind", style="green"),
        _size("size", "size_bytes"),
        _name("about", "about", folds=True),
    ),
    PartitionEntry: (
        _name("partition", "name", style="bold"),
        _number("segments", "segments"),
        _size("size", "size_bytes"),
        _number("first", "first_offset"),
        _number("closed at", "log_end"),
        _number("flushed to", "recovery_point"),
        _number("high watermark", "high_watermark"),
        _name("topic id", "topic_id", style="dim"),
    ),
}
