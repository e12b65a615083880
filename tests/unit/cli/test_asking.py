from __future__ import annotations

from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from tailrace.cli.asking import TIMEOUT_S, Asking, asks

RUNNER = CliRunner()
CALLS: list[tuple[Asking, str, int]] = []

app = typer.Typer()


@app.command()
@asks
def look(
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    *,
    depth: Annotated[int, typer.Option("--depth", min=1)] = 3,
    asking: Asking,
) -> None:
    """Look at a topic."""
    CALLS.append((asking, topic, depth))


@pytest.fixture(autouse=True)
def nobody_called() -> None:
    CALLS.clear()


def test_the_options_of_all_come_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (
        RUNNER.invoke(app, ["t", "--bootstrap", "a:1", "--json", "--timeout", "2"]).exit_code == 0
    )
    monkeypatch.setenv("TAILRACE_BOOTSTRAP", "b:2")
    assert RUNNER.invoke(app, ["t", "--depth", "5"]).exit_code == 0
    assert [
        (Asking("a:1", 2.0, True), "t", 3),
        (Asking("b:2", TIMEOUT_S, False), "t", 5),
    ] == CALLS


def test_help_shows_them_after_its_own() -> None:
    shown = RUNNER.invoke(app, ["--help"], env={"COLUMNS": "120", "TERM": "dumb"}).output
    places = [shown.index(each) for each in ("--depth", "--bootstrap", "--timeout", "--json")]
    assert places == sorted(places)
    assert "Look at a topic." in shown
    assert "--asking" not in shown


@pytest.mark.parametrize("wrong", [["t", "--timeout", "0"], ["t", "--depth", "0"], []])
def test_wrong_usage_is_still_seen(wrong: list[str]) -> None:
    assert RUNNER.invoke(app, wrong).exit_code == 2
    assert CALLS == []
