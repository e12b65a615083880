"""The dashboards: they ask for metrics and labels that there are, and lie where the chart is."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

from tailrace.metrics.document import sections
from tailrace.metrics.families import Kind
from unit.metrics.test_alerts import ROOT, SAMPLES
from unit.metrics.test_document import OPERATOR

SCRIPT: Final = ROOT / "deploy" / "grafana" / "dashboards.py"
FOLDER: Final = ROOT / "deploy" / "helm" / "tailrace" / "files" / "dashboards"
PATHS: Final = sorted(FOLDER.glob("*.json"))
# What Prometheus, and the rules of the chart, add to every series of a process.
ADDED: Final = {"job", "instance", "tailrace_dev_cluster", "namespace", "le"}
PROCESS: Final = {
    "process_cpu_seconds_total": (),
    "process_resident_memory_bytes": (),
}


def _operator() -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for family in OPERATOR:
        names = [family.sample_name]
        if family.kind is Kind.HISTOGRAM:
            names = [f"{family.name}_{suffix}" for suffix in ("bucket", "sum", "count")]
        found.update(dict.fromkeys(names, family.labels))
    return found


KNOWN: Final = {**SAMPLES, **PROCESS, **_operator()}


def expressions(board: dict[str, Any]) -> list[str]:
    """Those of panels and of marks."""
    panels = [target["expr"] for panel in board["panels"] for target in panel.get("targets", ())]
    return [*panels, *(each["expr"] for each in board["annotations"]["list"])]


def boards() -> dict[str, dict[str, Any]]:
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in PATHS}


def test_they_are_made_of_their_source() -> None:
    done = subprocess.run([sys.executable, str(SCRIPT), "--check"], check=False)
    assert done.returncode == 0, "run `make dashboards`"


@pytest.mark.parametrize("name", boards())
def test_a_dashboard_asks_for_what_there_is(name: str) -> None:
    board = boards()[name]
    variables = {each["name"] for each in board["templating"]["list"]}
    for expression in expressions(board):
        metrics = re.findall(r"\b((?:tailrace|process)_\w+)\{([^}]*)\}", expression)
        # Every metric has matchers: at least the job.
        assert len(metrics) == len(re.findall(r"\b(?:tailrace|process)_\w+", expression))
        labels: set[str] = set()
        for metric, matchers in metrics:
            assert metric in KNOWN, expression
            labels |= {*KNOWN[metric]}
            used = re.findall(r"(\w+)\s*[=!]~?\s*\"", matchers)
            assert "job" in used
            assert {*used} <= {*KNOWN[metric]} | ADDED, expression
        for grouped in re.findall(r"by \(([^)]*)\)", expression):
            assert {each.strip() for each in grouped.split(",")} <= labels | ADDED, expression
        names = {each for each in re.findall(r"\$(\w+)", expression) if each != "__rate_interval"}
        assert names <= variables, expression


@pytest.mark.parametrize("name", boards())
def test_a_legend_names_labels_that_are_left(name: str) -> None:
    for panel in boards()[name]["panels"]:
        for target in panel.get("targets", ()):
            wanted = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            grouped = re.search(r"by \(([^)]*)\)", target["expr"])
            if grouped is not None:
                assert wanted <= {each.strip() for each in grouped[1].split(",")}, panel["title"]


@pytest.mark.parametrize("name", boards())
def test_panels_have_their_places_and_say_what_to_look_for(name: str) -> None:
    taken: dict[tuple[int, int], str] = {}
    identities = [panel["id"] for panel in boards()[name]["panels"]]
    assert len(set(identities)) == len(identities)
    for panel in boards()[name]["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                assert (x, y) not in taken, (panel["title"], taken[x, y])
                taken[x, y] = panel["title"]
        assert panel["type"] == "row" or panel["description"].endswith("."), panel["title"]


def test_what_the_issue_names_has_a_dashboard() -> None:
    wanted = {
        *("cluster", "broker", "topics", "groups", "controller", "operator", "clients", "spark"),
    }
    assert set(boards()) == wanted
    assert Path(FOLDER / "cluster.json").exists()


def test_what_happened_to_leaders_and_in_drills_is_marked_on_each() -> None:
    for name, board in boards().items():
        marks = {each["name"]: each["expr"] for each in board["annotations"]["list"]}
        assert set(marks) == {"Leaders changed", "Controller changed", "Drill ended"}
        # Where the jobs to choose from are those of operators, or of programs, services are not.
        has_services = name not in {"operator", "clients"}
        assert ("$job" in marks["Leaders changed"]) is has_services
        assert "$job" not in marks["Drill ended"]


def test_every_metric_of_a_client_is_shown() -> None:
    shown = " ".join(expressions(boards()["clients"]))
    families = [family for title, _, found in sections() if title == "Clients" for family in found]
    assert families
    assert [each.name for each in families if each.name not in shown] == []
