from __future__ import annotations

import io
import json
import re

import pytest

from tailrace.cli.output import console_for, plain_table, print_json, stdout_console, warn


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def _printed(stream: io.StringIO) -> list[str]:
    table = plain_table("topic", "health")
    table.add_row("t" * 150, "under-replicated " * 20)
    console_for(stream).print(table)
    return stream.getvalue().splitlines()


def test_into_a_pipe_nothing_is_cut_or_folded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    _, row = _printed(io.StringIO())
    assert row.split() == ["t" * 150, *["under-replicated"] * 20]


def _printed_narrow(monkeypatch: pytest.MonkeyPatch, columns: int, topic: str) -> list[str]:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERM", "xterm")
    stream = _Terminal()
    table = plain_table("topic", "health")
    table.add_row(topic, "under-replicated " * 9)
    console = console_for(stream)
    before = console.width
    console.print(table)
    assert console.width == before
    return re.sub(r"\x1b\[[0-9;]*m", "", stream.getvalue()).splitlines()


def test_on_a_terminal_lines_are_as_wide_as_that(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = _printed_narrow(monkeypatch, 60, "orders")
    assert max(map(len, lines)) <= 60
    assert " ".join(lines).count("under-replicated") == 9, "folded"


def test_on_a_narrow_terminal_nothing_is_cut_or_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = _printed_narrow(monkeypatch, 40, "t" * 150)
    assert lines[0].split() == ["topic", "health"]
    assert lines[1].split() == ["t" * 150, "under-replicated"]
    assert " ".join(lines).count("under-replicated") == 9


def test_answers_go_to_stdout_and_warnings_elsewhere(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"topic": "grün"})
    stdout_console().print("[bold]")
    warn("careful")
    out, err = capsys.readouterr()
    first, second = out.splitlines()
    assert json.loads(first) == {"topic": "grün"}
    assert second == "[bold]"
    assert err == "tailrace: careful\n"
