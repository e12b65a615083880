"""Makes the chart's README.md: what stands in `README.head.md`, then a table out of values.yaml.

    python deploy/helm/readme.py          # writes it
    python deploy/helm/readme.py --check  # says whether it is as it should be

The text of a value is the comment above it.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import yaml

CHART: Final = Path(__file__).with_name("tailrace")
_KEY: Final = re.compile(r"^(?P<indent> *)(?P<key>[A-Za-z][A-Za-z0-9]*):(?P<rest>.*)$")


def readme() -> str:
    """What README.md should hold."""
    head = (CHART.parent / "README.head.md").read_text(encoding="utf-8")
    text = (CHART / "values.yaml").read_text(encoding="utf-8")
    values = yaml.safe_load(text)
    rows = [
        f"| `{path}` | `{json.dumps(_find(values, path))}` | {about} |"
        for path, about in _described(text)
    ]
    return "\n".join([head, "| value | default | what it says |", "|---|---|---|", *rows, ""])


def _described(text: str) -> Iterator[tuple[str, str]]:
    """Each key that has a value of its own, with its path and the comment above it."""
    path: list[tuple[int, str]] = []
    comment: list[str] = []
    for line in text.splitlines():
        stripped = line.strip()
        if stripped.startswith("#"):
            comment.append(stripped.lstrip("# "))
            continue
        found = _KEY.match(line)
        if found is not None:
            indent = len(found["indent"])
            path = [each for each in path if each[0] < indent]
            path.append((indent, found["key"]))
            if not found["rest"].strip():
                comment = []
                continue
            yield ".".join(key for _, key in path), " ".join(comment)
        comment = []


def _find(values: Any, path: str) -> Any:
    for key in path.split("."):
        values = values[key]
    return values


def main() -> int:
    target, wanted = CHART / "README.md", readme()
    if "--check" not in sys.argv:
        target.write_text(wanted, encoding="utf-8")
        return 0
    return 0 if target.is_file() and target.read_text(encoding="utf-8") == wanted else 1


if __name__ == "__main__":
    sys.exit(main())
