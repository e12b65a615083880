"""The command line of operators: help needs no cluster, wrong usage is told apart."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from tailrace.cli.commands import app
from tailrace.cli.operators import complete_kinds
from tailrace.errors import InvalidRequest, TailraceError

RUNNER = CliRunner()


@pytest.mark.parametrize(
    "command",
    [
        ["topics", "alter"],
        ["topics", "add-partitions"],
        ["topics", "delete-records"],
        ["topics", "elect-leaders"],
        ["topics", "reassign"],
        ["brokers", "list"],
        ["brokers", "describe"],
        ["brokers", "strays"],
        ["brokers", "cordon"],
        ["brokers", "uncordon"],
        ["brokers", "drain"],
        ["config", "get"],
        ["config", "set"],
    ],
    ids=" ".join,
)
def test_help_needs_no_cluster(command: list[str]) -> None:
    done = RUNNER.invoke(app, [*command, "--help"], catch_exceptions=False)
    assert done.exit_code == 0
    assert "--json" in done.stdout


@pytest.mark.parametrize(
    "command",
    [
        ["topics", "add-partitions", "t"],
        ["topics", "add-partitions", "t", "0"],
        ["topics", "delete-records", "t"],
        ["topics", "delete-records", "t", "--before", "-2"],
        ["brokers", "cordon", "x"],
        ["brokers", "drain", "-1"],
        # Numbers that no message can carry.
        ["brokers", "cordon", "4294967296"],
        ["topics", "create", "t", "--partitions", "4294967296"],
        ["topics", "add-partitions", "t", "4294967296"],
        ["topics", "delete-records", "t", "--before", "9223372036854775808"],
        ["explain", "t", "4294967296"],
        ["config", "set", "topics"],
    ],
    ids=" ".join,
)
def test_wrong_usage_is_2(command: list[str]) -> None:
    assert RUNNER.invoke(app, command).exit_code == 2


@pytest.mark.parametrize(
    "command",
    [
        ["topics", "alter", "t"],
        ["topics", "reassign"],
        ["topics", "reassign", "--brokers", "1,x"],
        ["topics", "reassign", "--brokers", "1", "--plan", "-"],
        ["topics", "reassign", "--cancel", "--dry-run"],
        ["topics", "reassign", "--cancel", "--status"],
        ["topics", "reassign", "--status", "--brokers", "1"],
        ["config", "get", "users"],
        ["config", "set", "users", "u", "a=b"],
    ],
    ids=" ".join,
)
def test_what_makes_no_sense_is_told_before_anybody_is_asked(command: list[str]) -> None:
    done = RUNNER.invoke(app, command, input="{}")
    assert isinstance(done.exception, TailraceError)


def test_a_plan_that_is_none_says_what_one_looks_like(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text('{"partitions": [{"topic": "a b", "partition": 0, "replicas": [1]}]}')
    done = RUNNER.invoke(app, ["topics", "reassign", "--plan", str(path)])
    assert isinstance(done.exception, InvalidRequest)
    assert '"replicas": [1, 2, 3]' in str(done.exception)


def test_kinds_are_completed() -> None:
    assert complete_kinds("") == ["topics", "brokers", "clients"]
    assert complete_kinds("b") == ["brokers"]
