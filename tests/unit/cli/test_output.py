from __future__ import annotations

import io
import json

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


def test_on_a_terminal_lines_are_as_wide_as_that(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    _, row = _printed(_Terminal())
    assert len(row) <= 40


def test_answers_go_to_stdout_and_warnings_elsewhere(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"topic": "grün"})
    stdout_console().print("[bold]")
    warn("careful")
    out, err = capsys.readouterr()
    first, second = out.splitlines()
    assert json.loads(first) == {"topic": "grün"}
    assert second == "[bold]"
    assert err == "tailrace: careful\n"
