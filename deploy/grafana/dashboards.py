"""Makes what the chart ships to look at clusters: dashboards out of `boards.yaml`, alert rules.

Helm reads nothing outside of a chart: so the rules of deploy/prometheus are copied.

python deploy/grafana/dashboards.py          # writes them
python deploy/grafana/dashboards.py --check  # says whether they are as they should be
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import yaml

HERE: Final = Path(__file__).parent
RULES: Final = HERE.parent / "prometheus" / "tailrace.rules.yaml"
FOLDER: Final = HERE.parent / "helm" / "tailrace" / "files"
COLUMNS: Final = 24
HEIGHT: Final = 8
STAT_HEIGHT: Final = 4
MATCHERS: Final = 'job=~"$job"'
JOBS_OF: Final = "tailrace_build_info"

_SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}


# What is marked on every dashboard: a name, an expression, a colour, a text.
MARKS: Final = (
    (
        "Leaders changed",
        "sum(increase(tailrace_leader_changes_total{@}[1m])) > 0",
        "orange",
        "tailrace explain TOPIC PARTITION says why",
    ),
    (
        "Controller changed",
        "sum(increase(tailrace_controller_terms_total{@}[1m])) > 0",
        "purple",
        "the logs of the controllers say why",
    ),
    (
        "Drill ended",
        "sum by (cluster, kind, verdict) (increase(tailrace_operator_drills_total{@}[1m])) > 0",
        "blue",
        "{{cluster}}: {{kind}}, {{verdict}}",
    ),
)
MARK_STEP: Final = "10s"
# Services, operators and programs are scraped by jobs of their own, and a dashboard lets people
# choose among those of one kind: a mark that comes from another kind is of any job.
ANY_JOB: Final = 'job=~".+"'
OPERATOR: Final = "tailrace_operator_"
# Of a number that is neither good nor bad.
NEUTRAL: Final = "blue"

Board = dict[str, Any]
Panel = dict[str, Any]


def boards() -> list[Board]:
    found: list[Board] = yaml.safe_load((HERE / "boards.yaml").read_text(encoding="utf-8"))
    return found


def dashboard(board: Board) -> dict[str, Any]:
    """As Grafana reads it."""
    return {
        "uid": f"tailrace-{board['name']}",
        "title": board["title"],
        "description": board["about"],
        "tags": ["tailrace"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "",
        "annotations": {"list": [_mark(board, *each) for each in MARKS]},
        "links": [
            {
                "type": "dashboards",
                "title": "Tailrace",
                "tags": ["tailrace"],
                "asDropdown": True,
                "keepTime": True,
                "includeVars": True,
            }
        ],
        "templating": {"list": list(_variables(board))},
        "panels": list(_panels(board)),
    }


def _mark(board: Board, name: str, expression: str, color: str, text: str) -> dict[str, Any]:
    is_of_services = board.get("jobs_of", JOBS_OF) == JOBS_OF and OPERATOR not in expression
    return {
        "name": name,
        "datasource": _SOURCE,
        "enable": True,
        "expr": expression.replace("@", MATCHERS if is_of_services else ANY_JOB),
        "iconColor": color,
        # How late a mark may be; Grafana takes longer steps over long times.
        "step": MARK_STEP,
        "titleFormat": name,
        "textFormat": text,
    }


def _variables(board: Board) -> Iterator[dict[str, Any]]:
    yield {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Source"}
    jobs = {"job": f"label_values({board.get('jobs_of', JOBS_OF)}, job)"}
    for name, query in {**jobs, **board.get("variables", {})}.items():
        yield {
            "name": name,
            "label": name.capitalize(),
            "type": "query",
            "datasource": _SOURCE,
            "query": {"query": query, "refId": name},
            "definition": query,
            "refresh": 2,
            "multi": True,
            "includeAll": True,
            "allValue": ".*",
            "current": {"text": "All", "value": "$__all"},
            "sort": 1,
        }


def _panels(board: Board) -> Iterator[dict[str, Any]]:
    identity, y = 0, 0
    for row in board["rows"]:
        identity += 1
        yield {
            "id": identity,
            "type": "row",
            "title": row["title"],
            "collapsed": False,
            "gridPos": {"h": 1, "w": COLUMNS, "x": 0, "y": y},
            "panels": [],
        }
        y, x, tallest = y + 1, 0, 0
        for panel in row["panels"]:
            height, width = (STAT_HEIGHT, 4) if "number" in panel else (HEIGHT, 8)
            width = panel.get("width", width)
            if x + width > COLUMNS:
                y, x, tallest = y + tallest, 0, 0
            identity += 1
            place = {"h": height, "w": width, "x": x, "y": y}
            yield _panel(panel, board.get("matchers", MATCHERS), identity, place)
            x, tallest = x + width, max(tallest, height)
        y += tallest


def _panel(panel: Panel, matchers: str, identity: int, place: dict[str, int]) -> dict[str, Any]:
    is_number = "number" in panel
    lines = {"": panel["number"]} if is_number else panel["lines"]
    return {
        "id": identity,
        "type": "stat" if is_number else "timeseries",
        "title": panel["title"],
        "description": panel["about"],
        "datasource": _SOURCE,
        "gridPos": place,
        "targets": [
            {
                "refId": chr(ord("A") + at),
                "datasource": _SOURCE,
                "expr": expression.replace("@", matchers),
                "legendFormat": legend or "__auto",
                "instant": is_number,
                "range": not is_number,
            }
            for at, (legend, expression) in enumerate(lines.items())
        ],
        "fieldConfig": {"defaults": _looks(panel), "overrides": []},
        "options": _options(panel),
    }


def _looks(panel: Panel) -> dict[str, Any]:
    lowest = "red" if "good_at" in panel else "green" if _is_judged(panel) else NEUTRAL
    steps: list[dict[str, Any]] = [{"color": lowest, "value": None}]
    for name, color in (("good_at", "green"), ("warn_at", "yellow"), ("bad_at", "red")):
        if name in panel:
            steps.append({"color": color, "value": panel[name]})
    looks: dict[str, Any] = {
        "unit": panel.get("unit", "short"),
        "min": 0,
        "thresholds": {"mode": "absolute", "steps": steps},
    }
    if "max" in panel:
        looks["max"] = panel["max"]
    if "number" not in panel:
        looks["color"] = {"mode": "palette-classic"}
        looks["custom"] = {
            "drawStyle": "line",
            "lineWidth": 1,
            # Below lines that cross, colours mix into one that belongs to none of them.
            "fillOpacity": 25 if panel.get("stacked") else 0,
            "showPoints": "never",
            "spanNulls": False,
            "stacking": {"mode": "normal" if panel.get("stacked") else "none", "group": "A"},
        }
    return looks


def _is_judged(panel: Panel) -> bool:
    return "number" not in panel or any(each in panel for each in ("warn_at", "bad_at"))


def _options(panel: Panel) -> dict[str, Any]:
    if "number" in panel:
        # Of the last moment only: a value from before would go on when nobody tells it any more.
        return {
            "colorMode": "background",
            "graphMode": "none",
            "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        }
    return {
        "legend": {"displayMode": "list", "placement": "bottom", "calcs": []},
        "tooltip": {"mode": "multi", "sort": "desc"},
    }


def files() -> dict[str, str]:
    """What should stand in the chart's folder, by name."""
    found = {
        f"dashboards/{board['name']}.json": json.dumps(
            dashboard(board), indent=1, ensure_ascii=False
        )
        + "\n"
        for board in boards()
    }
    return {**found, RULES.name: RULES.read_text(encoding="utf-8")}


def main(arguments: Sequence[str]) -> int:
    wanted = files()
    there = {str(each.relative_to(FOLDER)) for each in FOLDER.rglob("*") if each.is_file()}
    if "--check" in arguments:
        found = {name: (FOLDER / name).read_text(encoding="utf-8") for name in there}
        return int(found != wanted)
    for name in there - wanted.keys():
        (FOLDER / name).unlink()
    for name, text in wanted.items():
        (FOLDER / name).parent.mkdir(parents=True, exist_ok=True)
        (FOLDER / name).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
