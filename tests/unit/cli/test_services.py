from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from tailrace.cli.commands import app
from tailrace.errors import InvalidConfig

RUNNER = CliRunner()


@pytest.fixture(autouse=True)
def _no_settings_around(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TAILRACE_BROKER_ID", raising=False)


def _printed(*arguments: str) -> dict[str, tuple[str, str]]:
    done = RUNNER.invoke(app, [*arguments, "--print-config"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    lines = [line.split("  # ") for line in done.stdout.splitlines()]
    pairs = [(setting.partition(" = "), origin) for setting, origin in lines]
    return {name.strip(): (text.strip(), origin) for (name, _, text), origin in pairs}


def test_print_config_says_where_each_setting_comes_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "b.properties"
    config.write_text("broker.id=9\nlog.dirs=/data\netcd.username=u\netcd.password=hunter2\n")
    monkeypatch.setenv("TAILRACE_BROKER_RACK", "r1")
    printed = _printed(
        "broker", "--config", str(config), "--broker-id", "3", "--set", "segment.ms=5"
    )
    assert printed["broker.id"] == ("3", "flag --broker-id")
    assert printed["broker.rack"] == ("r1", "environment TAILRACE_BROKER_RACK")
    assert printed["log.dirs"] == ("/data", f"file {config}, line 2")
    assert printed["segment.ms"] == ("5", "flag --set segment.ms")
    assert printed["etcd.password"] == ("(hidden)", f"file {config}, line 4")
    assert printed["etcd.timeout.ms"] == ("2000", "default")


def test_a_controller_has_its_own_settings() -> None:
    printed = _printed("controller", "--controller-id", "2", "--etcd-endpoints", "a:1,b:2")
    assert printed["controller.id"] == ("2", "flag --controller-id")
    assert printed["etcd.endpoints"] == ("a:1,b:2", "flag --etcd-endpoints")
    assert "broker.id" not in printed


def test_a_slip_of_the_pen_in_the_environment_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAILRACE_BROKER_RAKC", "r1")
    done = RUNNER.invoke(app, ["broker", "--broker-id", "1", "--print-config"])
    assert "TAILRACE_BROKER_RAKC is no setting; did you mean TAILRACE_BROKER_RACK?" in done.output


@pytest.mark.parametrize("role", ["broker", "controller"])
def test_bad_settings_are_refused_before_anything_runs(role: str) -> None:
    with pytest.raises(InvalidConfig, match="did you mean"):
        RUNNER.invoke(app, [role, "--set", f"{role}.idd=1"], catch_exceptions=False)
    with pytest.raises(InvalidConfig, match=f"{role}.id is not set"):
        RUNNER.invoke(app, [role], catch_exceptions=False)
