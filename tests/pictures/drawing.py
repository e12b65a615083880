"""Panels as SVG, laid out and coloured much as Grafana does. Pure: values in, text out.

It is not Grafana: no tooltips, no zoom. What it shows is what matters of a dashboard without a
mouse: which lines there are, what they are called, in which unit, and whether they can be read.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, Final

from pictures.asking import Line, Mark, Point, Window
from pictures.formats import formatted, tick_text, ticks

Json = dict[str, Any]

TITLE_HEIGHT: Final = 28
PADDING: Final = 10
AXIS_HEIGHT: Final = 20
CHARACTER_WIDTH: Final = 6.3
LEGEND_HEIGHT: Final = 20
# What a swatch and the room after a name take.
LEGEND_ENTRY: Final = 30
# Grafana gives a legend that much of a panel; what is beyond has to be scrolled to.
LEGEND_SHARE: Final = 0.35
TICKS: Final = 5
TIME_TICKS: Final = 6
TIME_STEPS_S: Final = (5, 10, 15, 30, 60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 21_600, 86_400)
# A sample that is missing is a gap; one that is late is not.
GAP_STEPS: Final = 1.5


@dataclass(frozen=True, slots=True)
class Theme:
    """Colours; those of lines are Grafana's classic palette."""

    name: str
    canvas: str
    panel: str
    border: str
    text: str
    faint: str
    grid: str
    named: dict[str, str]
    lines: tuple[str, ...]


LIGHT: Final = Theme(
    name="light",
    canvas="#f4f5f5",
    panel="#ffffff",
    border="rgba(36,41,46,0.12)",
    text="#24292e",
    faint="rgba(36,41,46,0.75)",
    grid="rgba(36,41,46,0.10)",
    named={
        "green": "#56A64B",
        "yellow": "#F2CC0C",
        "orange": "#FF780A",
        "red": "#E02F44",
        "purple": "#A352CC",
        "blue": "#3274D9",
    },
    lines=(
        *("#56A64B", "#E0B400", "#3274D9", "#FF780A", "#E02F44", "#A352CC"),
        *("#19730E", "#CC9D00", "#1250B0", "#E55400", "#AD0317", "#7C2EA3"),
        *("#96D98D", "#FFEE52", "#8AB8FF", "#FFB357", "#FF7383", "#CA95E5"),
    ),
)
DARK: Final = Theme(
    name="dark",
    canvas="#111217",
    panel="#181b1f",
    border="rgba(204,204,220,0.12)",
    text="#ccccdc",
    faint="rgba(204,204,220,0.65)",
    grid="rgba(204,204,220,0.10)",
    named={
        "green": "#73BF69",
        "yellow": "#FADE2A",
        "orange": "#FF9830",
        "red": "#F2495C",
        "purple": "#B877D9",
        "blue": "#5794F2",
    },
    lines=(
        *("#73BF69", "#F2CC0C", "#5794F2", "#FF9830", "#F2495C", "#B877D9"),
        *("#37872D", "#E0B400", "#1F60C4", "#FA6400", "#C4162A", "#8F3BB8"),
        *("#C8F2C2", "#FFF899", "#C0D8FF", "#FFCB7D", "#FFA6B0", "#DEB6F2"),
    ),
)


@dataclass(frozen=True, slots=True)
class Plot:
    """Where in a panel lines are drawn: from times and values to pixels."""

    left: float
    top: float
    width: float
    height: float
    window: Window
    highest: float

    def x(self, at_s: float) -> float:
        share = (at_s - self.window.begin_s) / (self.window.end_s - self.window.begin_s)
        return self.left + self.width * min(max(share, 0.0), 1.0)

    def y(self, value: float) -> float:
        return self.top + self.height * (1 - min(max(value / self.highest, 0.0), 1.0))


def drawn(
    panel: Json,
    found: Sequence[Line],
    marks: Sequence[Mark],
    window: Window,
    theme: Theme,
    *,
    width: float,
    height: float,
) -> str:
    """One panel, title included."""
    title = (
        f'<text x="{PADDING}" y="19" class="title">{escape(panel["title"])}</text>'
        if panel["type"] != "stat" or not found
        else ""
    )
    if not found:
        body = f'<text x="{width / 2}" y="{height / 2 + 8}" class="none">No data</text>'
    elif panel["type"] == "stat":
        body = _number(panel, found[0], theme, width=width, height=height)
    else:
        body = "".join(_chart(panel, found, marks, window, theme, width=width, height=height))
    return (
        f'<svg width="{width:.0f}" height="{height:.0f}" xmlns="http://www.w3.org/2000/svg">'
        f'<rect x="0.5" y="0.5" width="{width - 1:.1f}" height="{height - 1:.1f}" rx="2" '
        f'fill="{theme.panel}" stroke="{theme.border}"/>{body}{title}</svg>'
    )


def _number(panel: Json, line: Line, theme: Theme, *, width: float, height: float) -> str:
    """The last value, on the colour of the highest threshold that it has reached."""
    value, looks = line.points[-1][1], panel["fieldConfig"]["defaults"]
    steps = looks["thresholds"]["steps"]
    reached = [each for each in steps if each["value"] is None or value >= each["value"]]
    color = theme.named[reached[-1]["color"]]
    ink = "#24292e" if reached[-1]["color"] == "yellow" else "#ffffff"
    shown = formatted(looks["unit"], value)
    return (
        f'<rect width="{width:.0f}" height="{height:.0f}" rx="2" fill="{color}"/>'
        f'<text x="{PADDING}" y="20" class="title" style="fill:{ink}">{escape(panel["title"])}'
        f'</text><text x="{width / 2}" y="{height / 2 + 26}" text-anchor="middle" '
        f'style="fill:{ink};font-size:44px;font-weight:500">{escape(shown)}</text>'
    )


def _chart(
    panel: Json,
    found: Sequence[Line],
    marks: Sequence[Mark],
    window: Window,
    theme: Theme,
    *,
    width: float,
    height: float,
) -> Iterator[str]:
    looks = panel["fieldConfig"]["defaults"]
    stacked = looks["custom"]["stacking"]["mode"] == "normal"
    areas = _stacked(found) if stacked else [(each, ()) for each in found]
    values = [value for line, _ in areas for _, value in line.points if math.isfinite(value)]
    highest = looks.get("max", max(values, default=0.0))
    steps = ticks(looks["unit"], highest, count=TICKS)
    texts = [tick_text(looks["unit"], each) for each in steps]
    left = PADDING + max(len(each) for each in texts) * CHARACTER_WIDTH + 8
    rows = _legend_rows([each.label for each in found], width - 2 * PADDING)
    shown = rows[: max(1, int(height * LEGEND_SHARE / LEGEND_HEIGHT))]
    below = AXIS_HEIGHT + len(shown) * LEGEND_HEIGHT + 6
    plot = Plot(
        left=left,
        top=TITLE_HEIGHT + 6,
        width=width - left - PADDING - 4,
        height=height - TITLE_HEIGHT - 6 - below,
        window=window,
        highest=steps[-1],
    )
    yield from _grid(plot, steps, texts, theme)
    colors = [theme.lines[number % len(theme.lines)] for number in range(len(found))]
    for (line, floor), color in zip(areas, colors, strict=True):
        yield from _curve(plot, line, floor, color, looks["custom"]["fillOpacity"] / 100)
    yield from _marks(plot, marks, theme)
    yield from _legend(shown, rows, colors, top=height - len(shown) * LEGEND_HEIGHT - 4)


def _grid(plot: Plot, steps: Sequence[float], texts: Sequence[str], theme: Theme) -> Iterator[str]:
    right, bottom = plot.left + plot.width, plot.top + plot.height
    for value, text in zip(steps, texts, strict=True):
        y = plot.y(value)
        yield f'<path d="M{plot.left:.1f} {y:.1f}H{right:.1f}" stroke="{theme.grid}"/>'
        yield f'<text x="{plot.left - 6:.1f}" y="{y + 4:.1f}" class="end">{escape(text)}</text>'
    span_s = plot.window.end_s - plot.window.begin_s
    step_s = next((each for each in TIME_STEPS_S if span_s / each <= TIME_TICKS), TIME_STEPS_S[-1])
    first = math.ceil(plot.window.begin_s / step_s)
    for number in range(first, math.floor(plot.window.end_s / step_s) + 1):
        at_s, x = number * step_s, plot.x(number * step_s)
        moment = time.strftime("%H:%M" if step_s >= 60 else "%H:%M:%S", time.gmtime(at_s))
        yield f'<path d="M{x:.1f} {plot.top:.1f}V{bottom:.1f}" stroke="{theme.grid}"/>'
        if plot.left < x < right - 2 * CHARACTER_WIDTH:
            yield f'<text x="{x:.1f}" y="{bottom + 15:.1f}" class="middle">{moment}</text>'


def _curve(
    plot: Plot, line: Line, floor: Sequence[Point], color: str, opacity: float
) -> Iterator[str]:
    """A line for each stretch without a gap, and what is below it."""
    floors = dict(floor)
    for stretch in _stretches(line.points, plot.window.step_s):
        over = " ".join(f"{plot.x(at):.1f},{plot.y(value):.1f}" for at, value in stretch)
        under = " ".join(
            f"{plot.x(at):.1f},{plot.y(floors.get(at, 0.0)):.1f}" for at, _ in reversed(stretch)
        )
        if len(stretch) == 1:
            at, value = stretch[0]
            yield f'<circle cx="{plot.x(at):.1f}" cy="{plot.y(value):.1f}" r="2" fill="{color}"/>'
            continue
        yield f'<polygon points="{over} {under}" fill="{color}" fill-opacity="{opacity}"/>'
        yield f'<polyline points="{over}" fill="none" stroke="{color}" stroke-width="1.2"/>'


def _marks(plot: Plot, marks: Sequence[Mark], theme: Theme) -> Iterator[str]:
    bottom = plot.top + plot.height
    for mark in marks:
        color, begin, end = theme.named[mark.color], plot.x(mark.begin_s), plot.x(mark.end_s)
        yield (
            f'<rect x="{begin:.1f}" y="{plot.top:.1f}" width="{end - begin:.1f}" '
            f'height="{plot.height:.1f}" fill="{color}" fill-opacity="0.08"/>'
        )
        for x in sorted({begin, end}):
            yield (
                f'<path d="M{x:.1f} {plot.top:.1f}V{bottom:.1f}" stroke="{color}" '
                'stroke-dasharray="4 3"/>'
            )
        yield (
            f'<path d="M{begin:.1f} {bottom:.1f}l-4 6h8z" fill="{color}">'
            f"<title>{escape(mark.name)}</title></path>"
        )


def _legend(
    shown: Sequence[Sequence[tuple[int, str]]],
    rows: Sequence[Sequence[tuple[int, str]]],
    colors: Sequence[str],
    *,
    top: float,
) -> Iterator[str]:
    hidden = sum(len(each) for each in rows[len(shown) :])
    for number, row in enumerate(shown):
        x, y = float(PADDING), top + number * LEGEND_HEIGHT + 13
        for at, label in row:
            yield f'<rect x="{x:.1f}" y="{y - 6:.1f}" width="14" height="3" fill="{colors[at]}"/>'
            yield f'<text x="{x + 18:.1f}" y="{y:.1f}">{escape(label)}</text>'
            x += len(label) * CHARACTER_WIDTH + LEGEND_ENTRY
        if hidden and number == len(shown) - 1:
            yield f'<text x="{x:.1f}" y="{y:.1f}" class="more">+{hidden} by scrolling</text>'


def _legend_rows(labels: Sequence[str], width: float) -> list[list[tuple[int, str]]]:
    rows: list[list[tuple[int, str]]] = [[]]
    used = 0.0
    for at, label in enumerate(labels):
        wanted = len(label) * CHARACTER_WIDTH + LEGEND_ENTRY
        if rows[-1] and used + wanted > width:
            rows.append([])
            used = 0.0
        rows[-1].append((at, label))
        used += wanted
    return rows


def _stacked(found: Sequence[Line]) -> list[tuple[Line, tuple[Point, ...]]]:
    """Each line on top of those before it, and what it stands on."""
    heights: dict[float, float] = {}
    areas = []
    for line in found:
        floor = tuple((at, heights.get(at, 0.0)) for at, _ in line.points)
        for at, value in line.points:
            heights[at] = heights.get(at, 0.0) + value
        top = tuple((at, heights[at]) for at, _ in line.points)
        areas.append((Line(line.label, top), floor))
    return areas


def _stretches(points: Sequence[Point], step_s: float) -> list[list[Point]]:
    found: list[list[Point]] = []
    before_s = -math.inf
    for at, value in points:
        # What cannot be computed, such as a quantile of nothing, is a gap.
        if not math.isfinite(value):
            continue
        if at - before_s > GAP_STEPS * step_s:
            found.append([])
        found[-1].append((at, value))
        before_s = at
    return found
