"""The quick start, from the text of its page, on a fresh clone with nothing but what it asks for.

All blocks of shell of docs/quick-start.md run in one bash, one after the other, as a person copies
them: in a clone of this repository (of what is committed) in an empty folder, with an empty home
and an environment of its own. `make quick-start` runs it; it sets up a .venv, which takes minutes.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[2]
PAGE: Final = Path("docs") / "quick-start.md"
BLOCK: Final = re.compile(r"^```sh\n(.*?)^```", re.DOTALL | re.MULTILINE)
LIMIT_S: Final = 1_200
# What a person has, beside a shell: where programs are, and how packages are installed here.
INHERITED: Final = ("PATH", "JAVA_HOME", "LANG", "http_proxy", "https_proxy", "no_proxy")


@pytest.mark.by_hand
@pytest.mark.timeout(LIMIT_S + 60)
def test_the_quick_start_does_what_it_says(tmp_path: Path) -> None:
    home, clone = tmp_path / "home", tmp_path / "tailrace"
    home.mkdir()
    subprocess.run(["git", "clone", "-q", str(ROOT), str(clone)], check=True)
    blocks = BLOCK.findall((clone / PAGE).read_text(encoding="utf-8"))
    script = tmp_path / "quick-start.sh"
    script.write_text("set -e\n" + "\n".join(_told(block) for block in blocks), encoding="utf-8")
    environment = {name: os.environ[name] for name in INHERITED if name in os.environ}
    environment |= {k: v for k, v in os.environ.items() if k.startswith(("PIP_", "UV_"))}
    try:
        run = subprocess.run(
            ["bash", str(script)],
            cwd=clone,
            env={**environment, "HOME": str(home)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
    finally:
        _clean_up(clone, home)
    print(run.stdout)
    assert run.returncode == 0
    said = dict(re.findall(r"^\+\+ (.+)\n((?:(?!\+\+ ).*\n)*)", run.stdout, re.MULTILINE))
    assert said["tailrace consume clicks | wc -l"].split() == ["1000"]
    assert said["tailrace consume clicks | sort -u | wc -l"].split() == ["1000"]
    assert "its process is gone" in said["tailrace explain clicks 0"]
    assert "broker-1" in said["tailrace doctor || true"]
    assert "400 records behind" in said["tailrace groups describe clerks"]
    (job,) = [text for line, text in said.items() if "aggregate.py" in line]
    assert _clicks(job) == {f"p{number}": 250 for number in range(4)}


def _clicks(table: str) -> dict[str, int]:
    """The rows of the table that Spark shows, clicks of a page over all windows."""
    found: dict[str, int] = {}
    for clicks, page in re.findall(r"\|(\d+)\s*\|(p\d)\s*\|", table):
        found[page] = found.get(page, 0) + int(clicks)
    return found


def _told(block: str) -> str:
    """The same lines, each command told before it runs, so that its output can be found."""
    lines = []
    for command in block.replace("\\\n", "\\\0").splitlines():
        whole = command.replace("\0", "\n")
        told = " ".join(whole.replace("\\\n", " ").split())
        lines.append(f"printf '++ %s\\n' {_quoted(told)}\n{whole}")
    return "\n".join(lines)


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


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
