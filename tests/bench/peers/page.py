"""The report as a folder: raw data, plots, and one page of what both benches have measured."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from bench.growth import report as growth_report
from bench.growth.measured import Growth
from bench.peers import environment, report
from bench.peers.results import Results

DRAW_S_MAX: Final = 300
RESULTS: Final = "results.json"
GROWTH: Final = "growth.jsonl"
PAGE: Final = "index.md"


def read_results(folder: Path) -> Results:
    path = folder / RESULTS
    return Results.from_json(path.read_text(encoding="utf-8")) if path.exists() else Results()


def read_growth(folder: Path) -> Growth:
    path = folder / GROWTH
    return Growth.from_lines(path.read_text(encoding="utf-8")) if path.exists() else Growth()


def write(folder: Path, *, is_drawn: bool = True) -> None:
    """The page, from the raw data that are there. Drawing takes seconds: not after each workload.

    A plot that cannot be drawn costs the run nothing but the plot.
    """
    results, growth = read_results(folder), read_growth(folder)
    plots = [*report.plots(results), *growth_report.plots(growth)]
    if is_drawn and plots:
        try:
            _draw(plots, folder)
        except (OSError, subprocess.SubprocessError) as error:
            print(f"no plots: {error}", file=sys.stderr, flush=True)
    names = [each["file"] for each in plots if (folder / f"{each['file']}.png").exists()]
    (folder / PAGE).write_text(markdown(results, growth, names), encoding="utf-8")


def markdown(results: Results, growth: Growth, plots: list[str]) -> str:
    """Both parts, or the one that there is."""
    parts = []
    if results.workloads or not growth.measurements:
        parts.append(report.markdown(results, plots))
    if growth.measurements:
        parts.append(growth_report.section(growth, plots))
    return "\n".join(["# Benchmarks", "", *parts])


def _draw(plots: list[dict[str, Any]], folder: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="plots-") as temporary:
        specification = Path(temporary) / "plots.json"
        specification.write_text(json.dumps(plots), encoding="utf-8")
        command = [environment.PYTHON, Path(__file__).with_name("draw.py"), specification, folder]
        subprocess.run(list(map(str, command)), check=True, timeout=DRAW_S_MAX)
