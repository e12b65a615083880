from __future__ import annotations

import os
import re
from dataclasses import fields
from pathlib import Path
from typing import Any, Final

import pytest

from tailrace.broker.settings import BrokerSettings
from tailrace.cli import known_settings as module
from tailrace.cli.known_settings import (
    broker_known,
    broker_settings,
    controller_known,
    controller_settings,
    coordinator_known,
    coordinator_settings,
    settings_table,
)
from tailrace.cli.setting_kinds import Own
from tailrace.cli.settings import effective, from_assignments, variable_of
from tailrace.controller.settings import ControllerSettings
from tailrace.coordinator.settings import CoordinatorSettings
from tailrace.errors import InvalidConfig
from tailrace.meta.settings import EtcdSettings

ROOT: Final = Path(__file__).resolve().parents[3]


def _broker(*given: str) -> tuple[BrokerSettings, EtcdSettings]:
    known = broker_known()
    return broker_settings(effective(known, from_assignments(["broker.id=1", *given], known)))


@pytest.mark.parametrize(
    ("kind", "table", "elsewhere"),
    [
        (BrokerSettings, module._BROKER, {"folders", "log_defaults"}),
        (ControllerSettings, module._CONTROLLER, {"log_defaults"}),
        (CoordinatorSettings, module._COORDINATOR, set()),
        (EtcdSettings, module._ETCD, set()),
    ],
)
def test_every_field_has_a_name(
    kind: type[Any], table: tuple[Own, ...], elsewhere: set[str]
) -> None:
    assert sorted(own.field for own in table) == sorted(
        {each.name for each in fields(kind)} - elsewhere
    )


@pytest.mark.parametrize("known", [broker_known(), controller_known(), coordinator_known()])
def test_names_are_there_once_and_so_are_variables(known: tuple[Any, ...]) -> None:
    names = [name for each in known for name in each.names]
    assert len(set(names)) == len(names)
    assert len({variable_of(name) for name in names}) == len(names)
    assert all(each.about and each.allowed for each in known)


def test_a_name_that_both_know_means_the_same_thing() -> None:
    by_name = {each.name: each for each in broker_known()}
    shared = [each for each in controller_known() if each.name in by_name]
    assert "broker.lease.ttl.ms" in {each.name for each in shared}
    assert all(by_name[each.name].default == each.default for each in shared)


def test_without_settings_all_is_as_the_dataclasses_say() -> None:
    assert _broker() == (BrokerSettings(broker_id=1), EtcdSettings())
    known = controller_known()
    given = from_assignments(["controller.id=7"], known)
    made = controller_settings(effective(known, given))
    assert made == (ControllerSettings(controller_id=7), EtcdSettings())
    known = coordinator_known()
    given = from_assignments(["coordinator.id=7"], known)
    found = coordinator_settings(effective(known, given))
    assert found == (CoordinatorSettings(coordinator_id=7), EtcdSettings())


def test_texts_become_values() -> None:
    own, etcd = _broker(
        "listeners=0.0.0.0:9092",
        "advertised.listeners=broker-1:9092",
        "broker.rack=a",
        "broker.lease.ttl.ms=3000",
        "log.dirs=/a,/b",
        "log.retention.hours=2",
        "etcd.endpoints=a:1, [::1]:2",
        "etcd.username=u",
        "etcd.password=p",
    )
    assert (own.listen, own.advertised, own.rack) == ("0.0.0.0:9092", "broker-1:9092", "a")
    assert (own.lease_ttl_ms, own.folders.log_dirs) == (3000, ("/a", "/b"))
    assert own.log_defaults.retention_ms == 2 * 3_600_000
    assert (etcd.endpoints, etcd.username, etcd.password) == (("a:1", "[::1]:2"), "u", "p")


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ("listeners=here", "flag --set listeners: the setting 'listeners' is 'here'; allowed is"),
        ("broker.lease.ttl.ms=999", "allowed is a whole number from 1000 on"),
        ("broker.id=-1", "allowed is a whole number from 0 to 2147483647"),
        ("etcd.endpoints=,", "host:port of one or more servers"),
        ("segment.bytes=1", "flag --set segment.bytes: the setting 'segment.bytes' is '1'"),
        ("etcd.username=u", "etcd.username needs etcd.password"),
        ("broker.rack=" + "r" * 10 + "\0", ""),
    ],
)
def test_a_bad_text_is_one_sentence_that_says_where(given: str, sentence: str) -> None:
    if not sentence:
        assert _broker(given)
        return
    with pytest.raises(InvalidConfig, match=re.escape(sentence)):
        _broker(given)


def test_a_long_bad_text_is_cut() -> None:
    with pytest.raises(InvalidConfig, match="…; allowed is") as refused:
        _broker("produce.bytes.max=" + "9" * 10_000)
    assert len(str(refused.value)) < 300


def test_what_must_be_given_is_asked_for() -> None:
    with pytest.raises(InvalidConfig, match=r"broker\.id is not set.*--broker-id"):
        broker_settings(effective(broker_known()))
    with pytest.raises(InvalidConfig, match=r"controller\.id is not set.*--controller-id"):
        controller_settings(effective(controller_known()))


@pytest.mark.parametrize(
    ("role", "known"),
    [
        ("broker", broker_known()),
        ("controller", controller_known()),
        ("coordinator", coordinator_known()),
    ],
)
def test_the_document_has_the_settings_that_the_code_has(role: str, known: Any) -> None:
    """TAILRACE_REWRITE=1 writes the tables anew; look at the difference."""
    path = ROOT / "docs" / "operations.md"
    text = path.read_text(encoding="utf-8")
    begin, end = f"<!-- settings of a {role} -->\n", f"<!-- end of settings of a {role} -->"
    before, rest = text.split(begin)
    table, after = rest.split(end)
    if os.environ.get("TAILRACE_REWRITE"):
        path.write_text(before + begin + settings_table(known) + end + after, encoding="utf-8")
        return
    assert table == settings_table(known)
