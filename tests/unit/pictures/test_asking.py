"""What a dashboard asks, and what is made of the answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pictures.asking import Line, Mark, Window, choices, filled_in, lines, marks
from pictures.render import boards

WINDOW = Window(begin_s=1_000.0, end_s=1_060.0, scrape_s=5.0)
BOARD: dict[str, Any] = {
    "templating": {
        "list": [
            {"type": "datasource", "name": "datasource"},
            {
                "type": "query",
                "name": "job",
                "label": "Job",
                "allValue": ".*",
                "definition": "label_values(up, job)",
            },
        ]
    },
    "annotations": {
        "list": [{"name": "Moved", "iconColor": "orange", "step": "30s", "expr": "moved > 0"}]
    },
}


class Prometheus:
    """Answers from a table, and remembers what it was asked."""

    def __init__(self, **answers: Any) -> None:
        self.answers = answers
        self.asked: list[tuple[str, Mapping[str, str]]] = []

    def __call__(self, path: str, query: Mapping[str, str]) -> Any:
        self.asked.append((path, query))
        return self.answers[path.replace("/", "_")]


def _panel(*legends: str, instant: bool = False) -> dict[str, Any]:
    return {
        "targets": [
            {"expr": 'x{job=~"$job"}', "legendFormat": each, "instant": instant} for each in legends
        ]
    }


def test_everything_is_chosen_and_rates_look_back_over_four_scrapes() -> None:
    asked = filled_in('rate(x{job=~"$job", a="$jobs"}[$__rate_interval])', BOARD, WINDOW)
    assert asked == 'rate(x{job=~".*", a="$jobs"}[20s])'


def test_a_long_window_has_no_more_points_than_can_be_seen() -> None:
    day = Window(begin_s=0, end_s=86_400, scrape_s=15)
    assert day.step_s == 225
    assert day.rate_s == 240


def test_lines_have_their_legends_and_stand_in_order() -> None:
    ask = Prometheus(
        query_range={
            "result": [
                {"metric": {"instance": "broker-10", "le": "1"}, "values": [[1_000, "2"]]},
                {"metric": {"instance": "broker-9"}, "values": [[1_000, "1"], [1_005, "NaN"]]},
            ]
        }
    )
    found = lines(ask, BOARD, _panel("{{instance}} {{le}}"), WINDOW)
    assert [each.label for each in found] == ["broker-9 ", "broker-10 1"]
    assert found[1] == Line("broker-10 1", ((1_000.0, 2.0),))
    path, query = ask.asked[0]
    assert (path, query["step"], query["query"]) == ("query_range", "5.0", 'x{job=~".*"}')


def test_a_number_is_that_of_the_last_moment() -> None:
    ask = Prometheus(query={"result": [{"metric": {}, "value": [1_060, "7"]}]})
    found = lines(ask, BOARD, _panel("__auto", instant=True), WINDOW)
    assert found == [Line("Value", ((1_060.0, 7.0),))]
    assert ask.asked[0][1]["time"] == "1060.0"


def test_moments_in_a_row_are_one_mark() -> None:
    moments = [[990, "1"], [1_020, "3"], [1_140, "1"]]
    ask = Prometheus(query_range={"result": [{"metric": {}, "values": moments}]})
    assert marks(ask, BOARD, WINDOW) == [
        Mark("Moved", "orange", 990.0, 1_020.0),
        Mark("Moved", "orange", 1_140.0, 1_140.0),
    ]


def test_what_can_be_chosen_is_asked_for() -> None:
    ask = Prometheus(label_job_values=["a", "b"])
    assert choices(ask, BOARD, WINDOW) == {"Job": ["a", "b"]}
    assert ask.asked[0][1]["match[]"] == "up"


def test_nothing_that_is_shipped_is_left_to_be_filled_in() -> None:
    for board in boards().values():
        for panel in board["panels"]:
            for target in panel.get("targets", ()):
                assert "$" not in filled_in(target["expr"], board, WINDOW)
        for mark in board["annotations"]["list"]:
            assert "$" not in filled_in(mark["expr"], board, WINDOW)
