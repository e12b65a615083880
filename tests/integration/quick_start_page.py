"""docs/quick-start.md as something to run: its commands, and what they must have said."""

from __future__ import annotations

import os
import re
from typing import Final

PAGE: Final = "docs/quick-start.md"
LIMIT_S: Final = 1_200
# What a person has, beside a shell: where programs are, and how packages are installed here.
INHERITED: Final = ("JAVA_HOME", "LANG", "http_proxy", "https_proxy", "no_proxy")

_BLOCK: Final = re.compile(r"^```sh\n(.*?)^```", re.DOTALL | re.MULTILINE)
_PACKAGES: Final = re.compile(r"`apt install ([^`]+)`")


def blocks(text: str) -> list[str]:
    """The blocks of shell, in their order."""
    return _BLOCK.findall(text)


def packages(text: str) -> list[str]:
    """What the page says has to be installed on Debian, and nothing else."""
    (found,) = _PACKAGES.findall(text)
    return str(found).split()


def script(blocks: list[str]) -> str:
    """A script that does what a person does who copies them one after the other."""
    return "set -e\n" + "\n".join(_told(block) for block in blocks)


def environment() -> dict[str, str]:
    """How this machine reaches package registries, and nothing of its own beside that."""
    found = {name: os.environ[name] for name in INHERITED if name in os.environ}
    return found | {k: v for k, v in os.environ.items() if k.startswith(("PIP_", "UV_"))}


def check(output: str) -> None:
    """Leader killed, nothing lost, Spark's result right."""
    said = dict(re.findall(r"^\+\+ (.+)\n((?:(?!\+\+ ).*\n)*)", output, re.MULTILINE))
    assert said["tailrace consume clicks | wc -l"].split() == ["1000"]
    assert said["tailrace consume clicks | sort -u | wc -l"].split() == ["1000"]
    assert "its process is gone" in said["tailrace explain clicks 0"]
    assert "broker-1" in said["tailrace doctor || true"]
    behind = said["tailrace groups describe clerks"]
    assert "400 records behind" in behind
    # The partitions that broker 1 led have got records too: 0 and 3.
    ends = re.findall(r"^clicks +(\d+) +[\d,]+ +([\d,]+) ", behind, re.MULTILINE)
    assert len(ends) == 6, behind
    assert all(int(end.replace(",", "")) > 0 for _, end in ends), behind
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
