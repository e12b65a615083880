"""A run that somebody ends: what it says, and that it ends in order."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from bench.peers import run
from bench.peers.journal import FILE, Journal, Turn


def test_who_breaks_off_is_told_what_is_kept_and_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    journal = Journal(tmp_path / FILE, "tuesday")
    for name, failed in (("monday", ""), ("tuesday", ""), ("tuesday", ""), ("tuesday", "hung")):
        journal.note(Turn(name, "idle", "tailrace", 1, 1.0, "", {"p50_ms": 1.0}, failed))

    def broken_off(*_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "_run", broken_off)
    monkeypatch.setattr(sys, "argv", ["run", "--report", str(tmp_path)])
    assert run.main() == run.BROKEN_OFF
    told = capsys.readouterr().err
    assert "the 2 turns of the last run" in told
    assert f"{tmp_path / FILE}" in told
    assert "`make bench-peers RESUME=1` with the same REPORT goes on" in told


def test_nothing_is_kept_of_a_run_that_had_no_round(tmp_path: Path) -> None:
    assert run._kept(tmp_path).endswith("nothing is kept")
