"""The command line of `tailrace dev`; clusters are started in tests/integration/test_dev.py."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tailrace.cli.commands import app
from tailrace.dev.state import DevError, lay_out, save
from tailrace.errors import InvalidConfig

RUNNER = CliRunner()


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TAILRACE_DEV_DIR", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    "command",
    [["status"], ["kill", "etcd"], ["start", "etcd"], ["pause", "etcd"], ["resume", "etcd"]],
)
def test_without_a_cluster_there_is_a_sentence(command: list[str]) -> None:
    with pytest.raises(DevError, match="`tailrace dev up` starts one there"):
        RUNNER.invoke(app, ["dev", *command], catch_exceptions=False)


def test_down_without_a_cluster_is_fine(tmp_path: Path) -> None:
    done = RUNNER.invoke(app, ["dev", "down", "--dir", str(tmp_path / "x")], catch_exceptions=False)
    assert (done.exit_code, done.output) == (0, f"No cluster runs in {tmp_path / 'x'}.\n")


def test_status(folder: Path) -> None:
    save(folder, lay_out(1, 1, 9_000))
    done = RUNNER.invoke(app, ["dev", "status"], catch_exceptions=False)
    assert done.exit_code == 0
    assert "broker-1" in done.stdout
    assert "exited" in done.stdout
    assert "bootstrap  127.0.0.1:9000" in done.stdout
    said = json.loads(RUNNER.invoke(app, ["dev", "status", "--json"]).stdout)
    assert [each["name"] for each in said["processes"]] == ["broker-1", "controller-1", "etcd"]


def test_a_cluster_in_another_folder_says_how_commands_find_it(folder: Path) -> None:
    other = folder / "an other"
    for where, options in ((folder, []), (other, ["--dir", str(other)])):
        save(where, lay_out(1, 1, 9_000))
        shown = RUNNER.invoke(app, ["dev", "status", *options], catch_exceptions=False).stdout
        assert ("export TAILRACE_BOOTSTRAP=127.0.0.1:9000" in shown) is (where == other)


def test_signals_have_names(folder: Path) -> None:
    save(folder, lay_out(1, 1, 9_000))
    assert RUNNER.invoke(app, ["dev", "kill", "etcd", "--signal", "LOUD"]).exit_code == 2
    for name in ("term", "SIGTERM", "9KILL"[1:]):
        with pytest.raises(DevError, match="etcd does not run"):
            RUNNER.invoke(app, ["dev", "kill", "etcd", "--signal", name], catch_exceptions=False)


def test_settings_that_nobody_has_are_refused() -> None:
    with pytest.raises(InvalidConfig, match=r"did you mean 'controller.lease.ttl.ms'"):
        RUNNER.invoke(
            app, ["dev", "up", "--set", "controller.lease.ttl.mss=1"], catch_exceptions=False
        )
