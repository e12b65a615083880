"""`tailrace groups` on the command line: options reach the commands, mistakes are told."""

from __future__ import annotations

from typing import Any

import pytest
from typer.testing import CliRunner

from tailrace.cli import group_commands, groups
from tailrace.cli.groups import Target
from tailrace.client.group_admin import ResetTo
from tailrace.errors import InvalidConfig

RUNNER = CliRunner()


def run(*arguments: str) -> Any:
    return RUNNER.invoke(group_commands.app, arguments)


def test_options_reach_the_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[Any, ...]] = []
    for name in ("list_all", "describe", "reset", "delete"):
        monkeypatch.setattr(
            groups, name, lambda *given, _name=name, **named: calls.append((_name, given, named))
        )
    assert run("list", "--state", "Stable", "--bootstrap", "a:1").exit_code == 0
    assert run("describe", "g", "--members", "--bootstrap", "a:1", "--json").exit_code == 0
    arguments = ("--topic", "t:1", "--shift-by", "-3", "--execute", "--bootstrap", "a:1")
    assert run("reset", "g", *arguments).exit_code == 0
    assert run("reset", "g", "--to-latest", "--dry-run", "--bootstrap", "a:1").exit_code == 0
    assert run("delete", "g", "h", "--yes", "--bootstrap", "a:1").exit_code == 0
    found = [(name, given[1:], named) for name, given, named in calls]
    assert found == [
        ("list_all", (["Stable"],), {}),
        ("describe", (["g"],), {"members": True}),
        ("reset", ("g", Target(ResetTo.SHIFT, -3), ["t:1"]), {"execute": True}),
        ("reset", ("g", Target(ResetTo.LATEST), []), {"execute": False}),
        ("delete", (["g", "h"],), {"yes": True}),
    ]
    assert calls[1][1][0].as_json


def test_a_reset_must_say_where_to() -> None:
    found = run("reset", "g", "--bootstrap", "a:1")
    assert isinstance(found.exception, InvalidConfig)


def test_help_names_all_commands() -> None:
    shown = run("--help").output
    assert all(name in shown for name in ("list", "describe", "reset", "delete"))
