"""A whole dashboard as a page, of answers that are made up; the shipped ones can all be drawn."""

from __future__ import annotations

from pictures.asking import Line, Mark, Window
from pictures.drawing import DARK, LIGHT
from pictures.page import HEAD_HEIGHT, Answers, height, html
from pictures.render import boards, empty

WINDOW = Window(begin_s=0.0, end_s=60.0, scrape_s=10.0)
LINE = Line("one", ((0.0, 1.0), (10.0, 2.0)))


def test_every_shipped_dashboard_can_be_drawn_light_and_dark() -> None:
    for board in boards().values():
        answers = Answers(
            lines={each["id"]: [LINE] for each in board["panels"]},
            marks=[Mark(each["name"], each["iconColor"], 0, 30) for each in _marks(board)],
            choices={"Job": ["a", "b", "c", "d", "e", "f"]},
        )
        assert empty(board, answers) == []
        for theme in (LIGHT, DARK):
            page = html(board, answers, WINDOW, theme)
            assert page.count("<svg") == sum(each["type"] != "row" for each in board["panels"])
            assert "Job: <b>All</b> (a, b, c, d and 2 more)" in page
            assert theme.canvas in page


def test_panels_without_data_are_named() -> None:
    board = boards()["spark"]
    answers = Answers(lines={each["id"]: [] for each in board["panels"]}, marks=[], choices={})
    assert "Time behind" in empty(board, answers)
    assert "No data" in html(board, answers, WINDOW, LIGHT)


def test_panels_are_within_the_page_and_do_not_overlap() -> None:
    for board in boards().values():
        assert height(board) > HEAD_HEIGHT
        taken: set[tuple[int, int]] = set()
        for each in board["panels"]:
            place = each["gridPos"]
            cells = {
                (place["x"] + x, place["y"] + y)
                for x in range(place["w"])
                for y in range(place["h"])
            }
            assert not cells & taken, each["title"]
            assert max(x for x, _ in cells) < 24
            taken |= cells


def _marks(board: dict[str, dict[str, list[dict[str, str]]]]) -> list[dict[str, str]]:
    return board["annotations"]["list"]
