"""How entries look on a terminal, in a pipe and as JSON."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import pytest
from rich.console import Console
from rich.text import Text

from tailrace.cli import entries, printing
from tailrace.cli.entries import (
    BatchEntry,
    DamageEntry,
    Entry,
    FileEntry,
    IndexEntry,
    PropertyEntry,
    RecordEntry,
)
from tailrace.cli.printing import JsonPrinter, LinePrinter, TablePrinter, print_indented

BATCH = BatchEntry(
    position=1200,
    length=4096,
    base_offset=10,
    last_offset=19,
    record_count=10,
    leader_epoch=3,
    first_timestamp_ms=1_700_000_000_000,
    max_timestamp_ms=1_700_000_000_009,
    compression="zstd",
    body_bytes=8192,
    producer_id=7,
    producer_epoch=1,
    base_sequence=40,
    delete_horizon_ms=-1,
    flags=("headers",),
    crc="0badcafe",
)
RECORD = RecordEntry(
    offset=10,
    timestamp_ms=1_700_000_000_000,
    key=b"k",
    value=b'{"a": "b c"}',
    headers=(("trace", b"1"),),
)
FILE = FileEntry(path="d/0.log", kind="segment", size_bytes=4096, about="about it")
DAMAGE = DamageEntry(path="d/0.log", position=5296, end=6000, reason="torn", base_offset=20)


def _lines(*shown: Entry, full: bool = False) -> list[str]:
    out = io.StringIO()
    printer = LinePrinter(out, full=full)
    for entry in shown:
        printer.show(entry)
    printer.finish()
    return out.getvalue().splitlines()


def _table(*shown: Entry, full: bool = False, width: int = 120) -> str:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=width, color_system=None)
    printer = TablePrinter(console, full=full)
    for entry in shown:
        printer.show(entry)
    printer.finish()
    return out.getvalue()


def test_lines_are_names_and_values() -> None:
    assert _lines(FILE, BATCH, DAMAGE) == [
        'file kind=segment path=d/0.log size=4096 about="about it"',
        (
            "batch offsets=10..19 records=10 position=1200 bytes=4096 epoch=3 "
            'newest=2023-11-14T22:13:20.009Z codec="zstd 2.0x" producer=7/1:40 flags=headers '
            "crc=0badcafe"
        ),
        "damage path=d/0.log position=5296 end=6000 offset=20 reason=torn",
    ]


def test_values_with_spaces_and_quotes_are_quoted() -> None:
    (line,) = _lines(RECORD)
    assert line == (
        "record offset=10 time=2023-11-14T22:13:20.000Z key=k "
        r'value="{\"a\": \"b c\"}" headers="trace=1"'
    )


def test_long_values_are_cut_unless_all_is_asked_for() -> None:
    long = RecordEntry(offset=1, timestamp_ms=0, key=None, value=b"x" * 500, headers=())
    assert "(500 bytes)" in _lines(long)[0]
    assert "x" * 500 in _lines(long, full=True)[0]


def test_json_is_one_object_a_line() -> None:
    out = io.StringIO()
    printer = JsonPrinter(out)
    for entry in (FILE, BATCH, RECORD, DAMAGE):
        printer.show(entry)
    printer.finish()
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [line["type"] for line in lines] == ["file", "batch", "record", "damage"]
    assert lines[1]["base_offset"] == 10
    assert lines[2]["value"] == {"utf8": '{"a": "b c"}'}


def test_a_table_has_a_heading_and_only_columns_that_say_something() -> None:
    text = _table(FILE, BATCH)
    assert "segment  d/0.log  4.0 KiB, about it" in text
    assert "10..19" in text
    assert "1,200" in text
    assert "crc" not in text
    plain = replace(BATCH, flags=(), producer_id=-1)
    text = _table(plain)
    assert "flags" not in text
    assert "producer" not in text


def test_damage_stands_between_the_rows_before_and_after_it() -> None:
    text = _table(FILE, BATCH, DAMAGE, BATCH)
    before, after = text.split("damage bytes 5,296 to 6,000 (offset 20): torn")
    assert "10..19" in before
    assert "10..19" in after


def test_damage_of_a_whole_file_has_no_position() -> None:
    whole = DamageEntry(path="f", position=-1, end=10, reason="CRC does not match")
    assert "damage CRC does not match" in _table(whole)


def test_tables_do_not_grow_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(printing, "ROWS_PER_TABLE", 3)
    text = _table(*(IndexEntry(offset=n, position=n * 100) for n in range(7)))
    assert text.count("position") == 3


def test_nothing_in_a_file_can_take_over_the_terminal() -> None:
    evil = "\x1b[2Jgone [red]markup[/red]"
    shown = (
        FileEntry(path=evil, kind="segment", size_bytes=1),
        PropertyEntry(name=evil, value=evil),
        RecordEntry(
            offset=1, timestamp_ms=0, key=evil.encode(), value=None, headers=((evil, b""),)
        ),
        DamageEntry(path=evil, position=-1, end=0, reason=evil),
    )
    text = _table(*shown, width=200)
    assert "\x1b[2J" not in text
    assert "[red]markup[/red]" in text
    assert all(line.isprintable() for line in _lines(*shown))


def test_every_kind_of_entry_can_be_shown() -> None:
    kinds = {
        value
        for value in vars(entries).values()
        if isinstance(value, type) and issubclass(value, Entry) and value is not Entry
    }
    assert kinds == set(printing._COLUMNS)


def test_indented_text_keeps_its_indent_on_a_terminal() -> None:
    out = io.StringIO()
    text = Text("one two three four five six seven")
    print_indented(Console(file=out, force_terminal=True, width=20, color_system=None), text, 4)
    lines = out.getvalue().splitlines()
    assert len(lines) > 1
    assert all(line.startswith("    ") for line in lines)


def test_indented_text_is_not_wrapped_in_a_pipe() -> None:
    out = io.StringIO()
    print_indented(Console(file=out, width=20), Text("one two three four five six seven"), 4)
    assert out.getvalue() == "    one two three four five six seven\n"
