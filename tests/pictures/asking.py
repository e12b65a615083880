"""What a dashboard asks Prometheus, as Grafana asks it: expressions filled in, answers as lines.

`Asked` gives answers to any of these; a real Prometheus is one, a test may have another.
"""

from __future__ import annotations

import json
import math
import re
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

Point = tuple[float, float]
Json = dict[str, Any]

TIMEOUT_S: Final = 20.0
# More than a panel is wide, in pixels, nobody can see.
POINTS_MAX: Final = 400
# Grafana looks back over four scrapes, so that two samples are there when one scrape failed.
RATE_SCRAPES: Final = 4


@dataclass(frozen=True, slots=True)
class Window:
    """What is looked at, in seconds; how often Prometheus scrapes."""

    begin_s: float
    end_s: float
    scrape_s: float

    @property
    def step_s(self) -> float:
        step_s = max(self.scrape_s, (self.end_s - self.begin_s) / POINTS_MAX)
        return math.ceil(step_s / self.scrape_s) * self.scrape_s

    @property
    def rate_s(self) -> float:
        return max(self.step_s + self.scrape_s, RATE_SCRAPES * self.scrape_s)


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a panel, or one number: what the legend says, and values in order of time."""

    label: str
    points: tuple[Point, ...]


@dataclass(frozen=True, slots=True)
class Mark:
    """When something was so that the dashboard marks."""

    name: str
    color: str
    begin_s: float
    end_s: float


Ask = Callable[[str, Mapping[str, str]], Any]


def prometheus(address: str) -> Ask:
    """Asks the server at `host:port`; raises what went wrong, with the expression."""

    def ask(path: str, query: Mapping[str, str]) -> Any:
        url = f"http://{address}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        try:
            with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise ValueError(f"{query}: {error.read().decode(errors='replace')}") from error

    return ask


def filled_in(expression: str, board: Json, window: Window) -> str:
    """As Grafana does when all of everything is chosen."""
    for variable in board["templating"]["list"]:
        if variable["type"] == "query":
            expression = re.sub(rf"\${variable['name']}\b", variable["allValue"], expression)
    return expression.replace("$__rate_interval", f"{window.rate_s:.0f}s")


def lines(ask: Ask, board: Json, panel: Json, window: Window) -> list[Line]:
    """All lines of a panel, in the order of its targets, sorted by name within each."""
    found: list[Line] = []
    for target in panel.get("targets", ()):
        query = {"query": filled_in(target["expr"], board, window)}
        if target["instant"]:
            answer = ask("query", {**query, "time": f"{window.end_s}"})
        else:
            answer = ask("query_range", {**query, **_range(window, window.step_s)})
        of_target = [
            Line(_label(target["legendFormat"], each["metric"]), _points(each))
            for each in answer["result"]
        ]
        found += sorted(of_target, key=lambda each: _natural(each.label))
    return found


def marks(ask: Ask, board: Json, window: Window) -> list[Mark]:
    """Moments that follow each other step by step are one mark."""
    found: list[Mark] = []
    for each in board["annotations"]["list"]:
        step_s = float(each["step"].removesuffix("s"))
        query = {"query": filled_in(each["expr"], board, window)}
        for series in ask("query_range", {**query, **_range(window, step_s)})["result"]:
            moments = [at for at, value in _points(series) if value > 0]
            for begin_s, end_s in _runs(moments, step_s):
                found.append(Mark(each["name"], each["iconColor"], begin_s, end_s))
    return found


def choices(ask: Ask, board: Json, window: Window) -> dict[str, list[str]]:
    """What can be chosen for each variable of a dashboard."""
    found = {}
    for variable in board["templating"]["list"]:
        if variable["type"] != "query":
            continue
        asked = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["definition"])
        if asked is None:
            raise ValueError(f"{variable['definition']} is no label_values(…, name)")
        match = filled_in(asked[1], board, window)
        query = {"match[]": match, "start": f"{window.begin_s}", "end": f"{window.end_s}"}
        found[variable["label"]] = list(ask(f"label/{asked[2]}/values", query))
    return found


def _range(window: Window, step_s: float) -> dict[str, str]:
    begin_s = math.floor(window.begin_s / step_s) * step_s
    end_s = math.floor(window.end_s / step_s) * step_s
    return {"start": f"{begin_s}", "end": f"{end_s}", "step": f"{step_s}"}


def _points(series: Json) -> tuple[Point, ...]:
    found = series.get("values") or [series["value"]]
    return tuple((float(at), float(value)) for at, value in found)


def _label(legend: str, metric: Mapping[str, str]) -> str:
    if legend == "__auto":
        return ", ".join(metric.values()) or "Value"
    return re.sub(r"\{\{(\w+)\}\}", lambda found: metric.get(found[1], ""), legend)


def _natural(label: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdigit() else (0, part) for part in re.split(r"(\d+)", label)]


def _runs(moments: Sequence[float], step_s: float) -> list[tuple[float, float]]:
    runs: list[tuple[float, float]] = []
    for moment in moments:
        if runs and moment - runs[-1][1] <= step_s:
            runs[-1] = (runs[-1][0], moment)
        else:
            runs.append((moment, moment))
    return runs
