"""House rules that no other tool checks: sizes, mirrored tests, links, and who reads time."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[2]
PACKAGE: Final = ROOT / "services" / "tailrace"
OPERATOR: Final = ROOT / "operators" / "tailrace_operator"
SPARK: Final = ROOT / "spark-jobs" / "tailrace_spark"
GENERATED: Final = PACKAGE / "v1"
# Where the tests of a package are, under tests/unit.
TESTS: Final = {PACKAGE: "", OPERATOR: "operator", SPARK: "spark"}

FUNCTION_LINES_MAX: Final = 70

UNFINISHED: Final = re.compile(r"\b(TO" r"DO|FIX" r"ME|XX" r"X)\b")
LINK: Final = re.compile(r"\]\((?P<target>[^)\s]+)\)")
OUTSIDE: Final = re.compile(r"^([a-z]+:|#)")

# What reads a clock; sleeping and formatting a known moment do not.
CLOCK_READS: Final = {
    "time": {
        *("time", "monotonic", "perf_counter", "process_time", "thread_time", "clock_gettime"),
        *("time_ns", "monotonic_ns", "perf_counter_ns", "process_time_ns", "thread_time_ns"),
    },
    "datetime": {"now", "utcnow", "today"},
    "date": {"today"},
}
NEEDS_NO_TEST: Final = {PACKAGE / "cli" / "main.py"}


def _modules(*folders: Path) -> list[Path]:
    found = {path for folder in folders for path in folder.rglob("*.py")}
    return sorted(path for path in found if GENERATED not in path.parents)


def _name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


SOURCES: Final = _modules(*TESTS)
ALL_PYTHON: Final = [
    *_modules(ROOT / "services", ROOT / "operators", ROOT / "spark-jobs", ROOT / "tests"),
    ROOT / "hatch_build.py",
]
DOCUMENTS: Final = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
TEXTS: Final = [
    *ALL_PYTHON,
    *DOCUMENTS,
    *sorted((ROOT / "proto").rglob("*.proto")),
    ROOT / "Makefile",
]


@pytest.mark.parametrize("path", ALL_PYTHON, ids=_name)
def test_functions_are_short(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    long = [
        f"{node.name} at line {node.lineno} has {lines} lines"
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (lines := (node.end_lineno or node.lineno) - node.lineno + 1) > FUNCTION_LINES_MAX
    ]
    assert long == []


def test_every_module_has_its_test() -> None:
    missing = []
    for source in SOURCES:
        if source.name == "__init__.py" or source in NEEDS_NO_TEST:
            continue
        package = next(each for each in TESTS if each in source.parents)
        inside = source.relative_to(package)
        expected = ROOT / "tests" / "unit" / TESTS[package] / inside.parent / f"test_{inside.name}"
        if not expected.is_file():
            missing.append(_name(expected))
    assert missing == []


@pytest.mark.parametrize("path", DOCUMENTS, ids=_name)
def test_links_lead_to_files(path: Path) -> None:
    targets = [match["target"] for match in LINK.finditer(path.read_text(encoding="utf-8"))]
    files = [target.partition("#")[0] for target in targets if OUTSIDE.match(target) is None]
    assert [target for target in files if not (path.parent / target).exists()] == []


@pytest.mark.parametrize("path", TEXTS, ids=_name)
def test_nothing_is_left_for_later(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    assert [number for number, line in enumerate(lines, 1) if UNFINISHED.search(line)] == []


@pytest.mark.parametrize("path", SOURCES, ids=_name)
def test_only_the_clock_reads_time(path: Path) -> None:
    if path == PACKAGE / "clock.py":
        return
    assert list(_clock_reads(ast.parse(path.read_text(encoding="utf-8")))) == []


@pytest.mark.parametrize(
    "code",
    [
        "import time\nnow = time.time()",
        "import time as t\nnow = t.monotonic_ns()",
        "from time import perf_counter",
        "import datetime\nnow = datetime.datetime.now()",
        "from datetime import date\ntoday = date.today()",
    ],
)
def test_every_way_to_read_time_is_seen(code: str) -> None:
    assert len(list(_clock_reads(ast.parse(code)))) == 1


def test_a_moment_that_is_known_may_be_formatted() -> None:
    code = "import time\nfrom datetime import datetime\ntime.sleep(1)\ndatetime.fromtimestamp(0)"
    assert list(_clock_reads(ast.parse(code))) == []


def _clock_reads(tree: ast.Module) -> Iterator[str]:
    # What this module calls `time`, `datetime.datetime` and `datetime.date`.
    names = {"datetime": "datetime", "date": "date"}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "time":
            for alias in node.names:
                if alias.name in CLOCK_READS["time"]:
                    yield f"line {node.lineno}: from time import {alias.name}"
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= {alias.asname or alias.name: alias.name for alias in node.names}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            owner = names.get(_last_name(node.value), "")
            if node.attr in CLOCK_READS.get(owner, ()):
                yield f"line {node.lineno}: {owner}.{node.attr}"


def _last_name(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""
