"""Panels as SVG: numbers on their colours, gaps, stacks, legends, marks."""

from __future__ import annotations

import re
from typing import Any
from xml.etree import ElementTree

from pictures.asking import Line, Mark, Window
from pictures.drawing import DARK, LIGHT, drawn

WINDOW = Window(begin_s=0.0, end_s=60.0, scrape_s=10.0)


def _panel(kind: str = "timeseries", *, stacked: bool = False, **looks: Any) -> dict[str, Any]:
    return {
        "type": kind,
        "title": "Lag <&>",
        "fieldConfig": {
            "defaults": {
                "unit": "short",
                "thresholds": {
                    "steps": [{"color": "green", "value": None}, {"color": "red", "value": 1}]
                },
                "custom": {
                    "fillOpacity": 25,
                    "stacking": {"mode": "normal" if stacked else "none"},
                },
                **looks,
            }
        },
    }


def _drawn(panel: dict[str, Any], *found: Line, marks: tuple[Mark, ...] = ()) -> str:
    text = drawn(panel, found, marks, WINDOW, LIGHT, width=400, height=296)
    # What is not well-formed would be drawn in part.
    ElementTree.fromstring(text)
    return text


def _line(label: str, *values: float, begin: int = 0) -> Line:
    return Line(label, tuple(((begin + at) * 10.0, value) for at, value in enumerate(values)))


def _heights(text: str) -> list[list[float]]:
    """Of each line that is drawn, how far down its points are."""
    found = re.findall(r'<polyline points="([^"]*)"', text)
    return [[float(each.split(",")[1]) for each in line.split()] for line in found]


def test_no_data_is_said_below_the_title() -> None:
    text = _drawn(_panel())
    assert "No data" in text
    assert "Lag &lt;&amp;&gt;" in text


def test_a_number_has_the_colour_of_what_it_has_reached() -> None:
    assert LIGHT.named["green"] in _drawn(_panel("stat"), _line("", 0))
    assert LIGHT.named["red"] in _drawn(_panel("stat"), _line("", 1))


def test_a_missing_sample_is_a_gap_and_a_lonely_one_a_dot() -> None:
    gone = Line("a", ((0.0, 1.0), (10.0, 2.0), (30.0, 3.0), (40.0, float("nan")), (50.0, 3.0)))
    text = _drawn(_panel(), gone)
    assert [len(each) for each in _heights(text)] == [2]
    assert text.count("<circle") == 2


def test_stacked_lines_stand_on_each_other() -> None:
    flat, stacked = (
        _heights(_drawn(_panel(stacked=each), _line("a", 2, 2), _line("b", 2, 2)))
        for each in (False, True)
    )
    assert flat[0] == flat[1]
    assert stacked[0][0] > stacked[1][0]


def test_an_axis_that_has_an_end_keeps_it() -> None:
    text = _drawn(_panel(unit="percentunit", max=1), _line("a", 0.01, 0.02))
    assert "100%" in text


def test_a_legend_beyond_its_share_says_how_much_is_hidden() -> None:
    few = _drawn(_panel(), *(_line(f"client-{each}", 1, 2) for each in range(5)))
    assert "by scrolling" not in few
    many = _drawn(_panel(), *(_line(f"a-very-long-client-{each}", 1, 2) for each in range(30)))
    hidden = re.search(r"\+(\d+) by scrolling", many)
    assert hidden is not None
    assert int(hidden[1]) + many.count('height="3"') == 30


def test_marks_are_drawn_where_they_were() -> None:
    text = _drawn(_panel(), _line("a", 1, 2), marks=(Mark("Moved", "orange", 30.0, 60.0),))
    assert text.count("stroke-dasharray") == 2
    assert "<title>Moved</title>" in text


def test_themes_name_the_same_colours() -> None:
    assert LIGHT.named.keys() == DARK.named.keys()
    assert len(LIGHT.lines) == len(DARK.lines)
