"""The command line of the client commands: what is asked for, and that help needs no cluster."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from tailrace.cli.commands import app
from tailrace.errors import InvalidConfig, InvalidRequest, Unreachable

RUNNER = CliRunner()


@pytest.mark.parametrize(
    "command",
    [
        ["topics", "create"],
        ["topics", "list"],
        ["topics", "describe"],
        ["topics", "delete"],
        ["cluster", "describe"],
        ["produce"],
        ["consume"],
        ["explain"],
        ["dev", "up"],
        ["broker"],
    ],
)
def test_help_needs_no_cluster(command: list[str]) -> None:
    done = RUNNER.invoke(app, [*command, "--help"], catch_exceptions=False)
    assert done.exit_code == 0
    assert "Usage" in done.stdout


@pytest.mark.parametrize(
    "command",
    [
        ["topics", "create", "t", "--partitions", "0"],
        ["topics", "create"],
        ["consume", "t", "--max", "0"],
        ["consume", "t", "--partition", "x"],
        ["explain", "t"],
        ["explain", "t", "-1"],
        ["produce"],
        ["topics", "list", "--timeout", "0"],
    ],
)
def test_wrong_usage_is_2(command: list[str]) -> None:
    assert RUNNER.invoke(app, command).exit_code == 2


@pytest.mark.parametrize(
    "command",
    [
        ["topics", "list"],
        ["topics", "create", "t"],
        ["topics", "describe", "t"],
        ["topics", "delete", "t", "--yes"],
        ["cluster", "describe"],
        ["explain", "t", "0"],
        ["consume", "t"],
    ],
)
def test_a_cluster_that_is_not_there_is_told(command: list[str]) -> None:
    where = ["--bootstrap", "127.0.0.1:1", "--timeout", "0.2"]
    with pytest.raises(Unreachable, match=r"no broker of 127\.0\.0\.1:1 answered"):
        RUNNER.invoke(app, [*command, *where], catch_exceptions=False)


def test_the_variable_says_which_cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TAILRACE_DEV_DIR", str(tmp_path))
    with pytest.raises(InvalidConfig, match="which cluster"):
        RUNNER.invoke(app, ["topics", "list"], catch_exceptions=False)
    monkeypatch.setenv("TAILRACE_BOOTSTRAP", "127.0.0.1:1")
    with pytest.raises(Unreachable):
        RUNNER.invoke(app, ["topics", "list", "--timeout", "0.2"], catch_exceptions=False)


def test_what_is_given_wrongly_is_told_before_anybody_is_asked() -> None:
    with pytest.raises(InvalidRequest, match="--offset 'soon'"):
        RUNNER.invoke(app, ["consume", "t", "--offset", "soon"], catch_exceptions=False)
    with pytest.raises(InvalidConfig, match="acks"):
        RUNNER.invoke(app, ["produce", "t", "--acks", "5"], catch_exceptions=False)
    with pytest.raises(InvalidConfig, match="--header 'x'"):
        RUNNER.invoke(app, ["produce", "t", "--header", "x"], catch_exceptions=False)
    with pytest.raises(InvalidConfig, match="'x' is not NAME=VALUE"):
        RUNNER.invoke(app, ["topics", "create", "t", "--config", "x"], catch_exceptions=False)
