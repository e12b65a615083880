"""The alert rules: they ask for metrics that there are, and each has a page to follow."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import pytest
import typer.main
import yaml

from integration.alert_cases import CASES
from tailrace.cli.commands import app
from tailrace.metrics.document import sections
from tailrace.metrics.families import Family, Kind

ROOT: Final = Path(__file__).resolve().parents[3]
RULES: Final = ROOT / "deploy" / "prometheus" / "tailrace.rules.yaml"
TESTS: Final = ROOT / "deploy" / "prometheus" / "tailrace.rules.test.yaml"
RUNBOOKS: Final = ROOT / "docs" / "runbooks"
TESTING: Final = ROOT / "docs" / "testing.md"
# It has a cluster and a test of its own.
FLAKY: Final = "F28 the network is flaky"

ALERTS: Final[list[dict[str, Any]]] = [
    rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]
]


def _samples(family: Family) -> list[str]:
    if family.kind is Kind.HISTOGRAM:
        return [f"{family.name}_{suffix}" for suffix in ("bucket", "sum", "count")]
    return [family.sample_name]


SAMPLES: Final = {
    name: family.labels
    for _, _, families in sections()
    for family in families
    for name in _samples(family)
}


COMMAND: Final[Any] = typer.main.get_command(app)


def _name(alert: dict[str, Any]) -> str:
    return str(alert["alert"])


@pytest.mark.parametrize("alert", ALERTS, ids=_name)
def test_an_alert_asks_for_what_there_is_and_says_what_to_do(alert: dict[str, Any]) -> None:
    asked = re.findall(r"\btailrace_\w+", alert["expr"])
    assert asked
    assert [name for name in asked if name not in SAMPLES] == []
    for name, matchers in re.findall(r"\b(tailrace_\w+)\{([^}]*)\}", alert["expr"]):
        labels = re.findall(r"(\w+)\s*[=!]~?", matchers)
        assert set(labels) <= set(SAMPLES[name])
    assert alert["labels"]["severity"] in {"critical", "warning"}
    assert alert["annotations"]["summary"].endswith(".")
    assert alert["annotations"]["runbook"] == f"docs/runbooks/{_name(alert)}.md"


def test_every_alert_has_its_test_and_its_page_and_no_page_is_left() -> None:
    named = {_name(each) for each in ALERTS}
    assert len(named) == len(ALERTS)
    tested = {
        check["alertname"]
        for test in yaml.safe_load(TESTS.read_text())["tests"]
        for check in test["alert_rule_test"]
        if check["exp_alerts"]
    }
    assert tested == named
    assert {path.stem for path in RUNBOOKS.glob("Tailrace*.md")} == named


def test_the_document_tells_which_alert_notices_which_fault() -> None:
    text = TESTING.read_text(encoding="utf-8").partition("## Which alert notices which fault")[2]
    rows = re.findall(
        r"^\| ([^|]+) \| ([^|]+) \| [^|]*\|$", text.partition("\n## ")[0], re.MULTILINE
    )
    told = {fault: alerts for fault, alerts in rows if fault not in {"fault", "---"}}
    assert told.pop(FLAKY) == "none"
    critical = {_name(each) for each in ALERTS if each["labels"]["severity"] == "critical"}
    assert list(told) == list(CASES)
    for fault, case in CASES.items():
        named = {f"Tailrace{each}" for each in re.findall(r"\w+", told[fault])}
        bold = {f"Tailrace{each}" for each in re.findall(r"\*\*(\w+)\*\*", told[fault])}
        assert named == (case.fires or {"Tailracenone"}), fault
        assert bold == case.fires & critical, fault


@pytest.mark.parametrize("path", sorted(RUNBOOKS.glob("*.md")), ids=lambda path: path.stem)
def test_a_page_names_only_commands_and_metrics_that_there_are(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert [name for name in re.findall(r"\btailrace_\w+", text) if not _is_known(name)] == []
    for words in re.findall(r"`tailrace ([^`]+)`", text):
        command, rest = COMMAND, words.split()
        while commands := getattr(command, "commands", None):
            assert rest, f"{words!r} is not whole"
            assert rest[0] in commands, words
            command = commands[rest.pop(0)]
        options = {option for each in command.params for option in each.opts}
        assert {word for word in rest if word.startswith("--")} <= options


def _is_known(name: str) -> bool:
    return name in SAMPLES or any(each.startswith(f"{name}_") for each in SAMPLES)
