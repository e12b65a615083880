"""What the commands do on a terminal; `test_log` has what they do in a pipe."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from simulation import log_folders
from simulation.log_folders import segment_paths
from tailrace.cli import log_tools

COLUMNS = 100


@pytest.fixture
def closed(tmp_path: Path) -> Path:
    return log_folders.closed_folder(tmp_path / "data")


def _on_terminal(code: str) -> str:
    """Run Python code with a terminal as its output; returns what it showed."""
    screen, terminal = pty.openpty()
    environment = {**os.environ, "COLUMNS": str(COLUMNS), "TERM": "xterm", "NO_COLOR": "1"}
    child = subprocess.Popen([sys.executable, "-c", code], stdout=terminal, env=environment)
    os.close(terminal)
    shown = b""
    # The end of a terminal is an error, EIO, on Linux.
    while True:
        try:
            shown += os.read(screen, 65536)
        except OSError:
            break
    os.close(screen)
    assert child.wait(30) == 0
    return shown.decode().replace("\r\n", "\n")


def test_a_terminal_gets_tables(closed: Path) -> None:
    segment = segment_paths(closed)[0]
    shown = _on_terminal(
        "from pathlib import Path\n"
        "from tailrace.cli.dump import DumpOptions\n"
        "from tailrace.cli.log_tools import run_dump\n"
        f"run_dump([Path({str(segment)!r})], DumpOptions(limit=2), as_json=False, full=False)"
    )
    assert "offsets" in shown
    assert "0..9" in shown
    assert "offsets=" not in shown


def test_a_large_folder_gets_a_bar_that_goes_away(closed: Path) -> None:
    shown = _on_terminal(
        "from pathlib import Path\n"
        "from tailrace.cli import log_tools\n"
        "log_tools.PROGRESS_FROM_BYTES = 1\n"
        f"log_tools.run_verify(Path({str(closed)!r}), deep=False, as_json=False)"
    )
    assert "verifying" in shown
    assert shown.rstrip().endswith("read.")


def test_a_small_folder_gets_no_bar(closed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert log_tools.run_verify(closed, deep=False, as_json=False) == 0
    assert "verifying" not in capsys.readouterr().err
