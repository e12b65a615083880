from __future__ import annotations

from typer.testing import CliRunner

from tailrace.cli.commands import app


def test_options_are_told_and_wrong_ones_refused() -> None:
    runner = CliRunner()
    for command in ("produce", "consume"):
        done = runner.invoke(app, ["perf", command, "--help"], env={"COLUMNS": "120"})
        assert done.exit_code == 0
        assert "--records" in done.stdout
    assert runner.invoke(app, ["perf", "produce", "t", "--size", "-1"]).exit_code == 2
    assert runner.invoke(app, ["perf", "produce"]).exit_code == 2
