"""The quick start, from the text of its page, on a fresh clone with nothing but what it asks for.

All blocks of shell of docs/quick-start.md run in one bash, one after the other, as a person copies
them: in a clone of this repository (of what is committed) in an empty folder, with an empty home
and an environment of its own. `make quick-start` runs it; it sets up a .venv, which takes minutes.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest

from integration import quick_start_page

ROOT: Final = Path(__file__).resolve().parents[2]


@pytest.mark.by_hand
@pytest.mark.timeout(quick_start_page.LIMIT_S + 60)
def test_the_quick_start_does_what_it_says(tmp_path: Path) -> None:
    home, clone = tmp_path / "home", tmp_path / "tailrace"
    home.mkdir()
    subprocess.run(["git", "clone", "-q", str(ROOT), str(clone)], check=True)
    page = (clone / quick_start_page.PAGE).read_text(encoding="utf-8")
    script = tmp_path / "quick-start.sh"
    script.write_text(quick_start_page.script(quick_start_page.blocks(page)), encoding="utf-8")
    own = {"HOME": str(home), "PATH": os.environ["PATH"]}
    try:
        run = subprocess.run(
            ["bash", str(script)],
            cwd=clone,
            env=quick_start_page.environment() | own,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=quick_start_page.LIMIT_S,
            check=False,
        )
    finally:
        _clean_up(clone, home)
    print(run.stdout)
    assert run.returncode == 0
    quick_start_page.check(run.stdout)


def _clean_up(clone: Path, home: Path) -> None:
    """Whatever happened, nothing of the cluster stays."""
    program = clone / ".venv" / "bin" / "tailrace"
    if program.exists():
        subprocess.run(
            [program, "dev", "down", "--wipe"],
            env={"HOME": str(home), "PATH": os.environ["PATH"]},
            check=False,
            capture_output=True,
            timeout=120,
        )
    shutil.rmtree(clone, ignore_errors=True)
