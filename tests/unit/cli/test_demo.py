"""The demo, smaller than people see it, and what happens when something does not hold."""

from __future__ import annotations

import io
import tempfile
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from tailrace.cli import demo as demo_module
from tailrace.cli.commands import app
from tailrace.cli.demo import STEPS, NotHeld, Sizes, Step, Tour, demo, run_demo

SMALL = Sizes(appends=2, crash_after_flushes=1, look_ups=5, updates=20_000, customers=500)


def _tour(folder: Path, *, sizes: Sizes = SMALL) -> tuple[Tour, io.StringIO]:
    out = io.StringIO()
    return Tour(folder, Console(file=out, width=100), sizes), out


@pytest.mark.integration
def test_nothing_is_lost(tmp_path: Path) -> None:
    tour, out = _tour(tmp_path / "data")
    assert run_demo(tour)
    text = out.getvalue()
    for number, step in enumerate(STEPS, 1):
        assert f"{number}. {step.title}" in text
    acknowledged = f"{tour.acknowledged:,} acknowledged"
    assert f"Nothing lost: {acknowledged}, {tour.read_back:,} read back." in text
    assert "kill -9" in text
    assert "become zeros" in text
    assert "all sound" in text
    assert tour.read_back == tour.acknowledged > 0


def test_a_step_that_does_not_hold_ends_the_tour(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(tour: Tour) -> None:
        raise NotHeld("the moon is made of cheese")

    monkeypatch.setattr(demo_module, "STEPS", (Step("Fail", "It fails.", fail),) * 2)
    tour, out = _tour(tmp_path)
    assert not run_demo(tour)
    assert out.getvalue().count("This does not hold: the moon is made of cheese") == 1


def test_losing_a_record_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def lose(tour: Tour) -> None:
        tour.acknowledged, tour.read_back = 10, 9

    monkeypatch.setattr(demo_module, "STEPS", (Step("Lose", "It loses.", lose),))
    tour, out = _tour(tmp_path)
    assert not run_demo(tour)
    assert "Something was lost: 10 acknowledged, 9 read back." in out.getvalue()


def test_the_folder_goes_unless_it_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def write(tour: Tour) -> None:
        tour.folder.mkdir()
        tour.acknowledged = tour.read_back = 1

    monkeypatch.setattr(demo_module, "STEPS", (Step("Write", "It writes.", write),))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert demo(keep=False)
    assert list(tmp_path.iterdir()) == []
    assert demo(keep=True)
    (kept,) = tmp_path.iterdir()
    assert f"tailrace log verify --deep {kept}/data" in capsys.readouterr().out


@pytest.mark.parametrize("holds", [True, False])
def test_the_exit_code_says_whether_it_held(holds: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_module, "demo", lambda *, keep: holds)
    assert CliRunner().invoke(app, ["demo", "log"]).exit_code == (0 if holds else 1)
