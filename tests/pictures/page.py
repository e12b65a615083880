"""A whole dashboard as one HTML page: what can be chosen, marks, panels on their grid. Pure."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, Final

from pictures.asking import Line, Mark, Window
from pictures.drawing import Theme, drawn

Json = dict[str, Any]

WIDTH: Final = 1_440
MARGIN: Final = 16
HEAD_HEIGHT: Final = 76
COLUMNS: Final = 24
# As Grafana's: the height of one step of the grid, and what is free between panels.
STEP: Final = 38
GUTTER: Final = 8
CHOICES_MAX: Final = 4


@dataclass(frozen=True, slots=True)
class Answers:
    """What Prometheus said to all that a dashboard asks; lines are by the id of their panel."""

    lines: Mapping[int, Sequence[Line]]
    marks: Sequence[Mark]
    choices: Mapping[str, Sequence[str]]


def height(board: Json) -> int:
    ends: list[int] = [each["gridPos"]["y"] + each["gridPos"]["h"] for each in board["panels"]]
    return HEAD_HEIGHT + max(ends) * STEP + MARGIN


def html(board: Json, answers: Answers, window: Window, theme: Theme) -> str:
    panels = "".join(_placed(each, answers, window, theme) for each in board["panels"])
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(board["title"])}'
        f"</title><style>{_style(theme)}</style><body>{_head(board, answers, window, theme)}"
        f"{panels}</body></html>\n"
    )


def _style(theme: Theme) -> str:
    return (
        f"body{{margin:0;width:{WIDTH}px;position:relative;background:{theme.canvas};"
        f"color:{theme.text};font:12px Inter,'Liberation Sans','DejaVu Sans',sans-serif}}"
        f"div{{position:absolute}}b{{font-weight:600}}text{{fill:{theme.faint};font-size:11px}}"
        f".title{{fill:{theme.text};font-size:13px;font-weight:600}}.end{{text-anchor:end}}"
        f".middle{{text-anchor:middle}}.none{{text-anchor:middle;font-size:15px}}"
        f".more{{font-style:italic}}.faint{{color:{theme.faint}}}"
        "span{margin-right:18px}i{display:inline-block;width:9px;height:9px;margin-right:5px;border-radius:5px}"
    )


def _head(board: Json, answers: Answers, window: Window, theme: Theme) -> str:
    chosen = "".join(
        f"<span>{escape(name)}: <b>All</b> ({escape(_some(values))})</span>"
        for name, values in answers.choices.items()
    )
    marked = "".join(
        f'<span><i style="background:{theme.named[each["iconColor"]]}"></i>{escape(each["name"])}'
        "</span>"
        for each in board["annotations"]["list"]
    )
    began, ended = (
        time.strftime("%H:%M:%S", time.gmtime(each)) for each in (window.begin_s, window.end_s)
    )
    title = escape(board["title"])
    return (
        f'<div style="left:{MARGIN}px;top:10px;font-size:18px"><b>{title}</b></div>'
        f'<div class="faint" style="right:{MARGIN}px;top:14px">{began} to {ended} UTC</div>'
        f'<div class="faint" style="left:{MARGIN}px;top:36px">{escape(board["description"])}</div>'
        f'<div class="faint" style="left:{MARGIN}px;top:56px">{chosen}{marked}</div>'
    )


def _some(values: Sequence[str]) -> str:
    more = len(values) - CHOICES_MAX
    return ", ".join(values[:CHOICES_MAX]) + (f" and {more} more" if more > 0 else "") or "none"


def _placed(panel: Json, answers: Answers, window: Window, theme: Theme) -> str:
    place, column = panel["gridPos"], (WIDTH - 2 * MARGIN + GUTTER) / COLUMNS
    left, top = MARGIN + place["x"] * column, HEAD_HEIGHT + place["y"] * STEP
    if panel["type"] == "row":
        inner = f'<b style="font-size:14px">{escape(panel["title"])}</b>'
        return f'<div style="left:{left:.0f}px;top:{top + 9}px">{inner}</div>'
    inner = drawn(
        panel,
        answers.lines[panel["id"]],
        answers.marks,
        window,
        theme,
        width=place["w"] * column - GUTTER,
        height=place["h"] * STEP - GUTTER,
    )
    return f'<div style="left:{left:.0f}px;top:{top}px">{inner}</div>'
