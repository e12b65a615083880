from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from tailrace.dev.processes import ProcessIdentity
from tailrace.dev.state import (
    BROKERS_MAX,
    CONTROLLERS_MAX,
    COORDINATORS_MAX,
    PORT_BASE_MAX,
    STATE_FILE,
    DevError,
    Role,
    chosen_bases,
    lay_out,
    load,
    save,
)


def test_the_largest_cluster_has_no_port_twice() -> None:
    state = lay_out(BROKERS_MAX, CONTROLLERS_MAX, 20_000, coordinators=COORDINATORS_MAX)
    ports = [port for each in state.members for port in each.ports]
    others = CONTROLLERS_MAX + COORDINATORS_MAX
    assert len(set(ports)) == len(ports) == 4 * BROKERS_MAX + 2 * others + 2
    assert max(ports) < 20_400


def test_names_addresses_and_bootstrap() -> None:
    state = lay_out(2, 1, 9_000)
    assert [each.name for each in state.members] == ["broker-1", "broker-2", "controller-1", "etcd"]
    assert state.bootstrap == "127.0.0.1:9000,127.0.0.1:9001"
    assert state.count(Role.BROKER) == 2
    assert state.member("controller-1").address == "127.0.0.1:9200"


@pytest.mark.parametrize(
    ("brokers", "controllers", "base", "sentence"),
    [
        (0, 1, 9_000, "brokers, not 0"),
        (BROKERS_MAX + 1, 1, 9_000, "brokers"),
        (1, 0, 9_000, "controllers, not 0"),
        (1, 1, PORT_BASE_MAX + 1, "ports are counted"),
    ],
)
def test_what_cannot_be_is_refused(
    brokers: int, controllers: int, base: int, sentence: str
) -> None:
    with pytest.raises(DevError, match=sentence):
        lay_out(brokers, controllers, base)


def test_a_name_that_is_not_there_is_refused_with_those_that_are() -> None:
    with pytest.raises(DevError, match=r"no process 'broker-9'.*broker-1, controller-1, etcd"):
        lay_out(1, 1, 9_000).member("broker-9")


def test_the_file_gives_back_what_was_saved(tmp_path: Path) -> None:
    assert load(tmp_path) is None
    state = lay_out(2, 1, 9_000)
    member = replace(state.member("broker-2"), identity=ProcessIdentity(7, 8, "boot"))
    changed = state.with_member(member)
    save(tmp_path / "new", changed)
    assert load(tmp_path / "new") == changed != state
    assert [each.name for each in (tmp_path / "new").iterdir()] == [STATE_FILE]


def test_a_file_from_before_there_were_metrics_can_be_read(tmp_path: Path) -> None:
    save(tmp_path, lay_out(1, 1, 9_000))
    path = tmp_path / STATE_FILE
    path.write_text(re.sub(r'"metrics_port": \d+,', "", path.read_text()))
    state = load(tmp_path)
    assert state is not None
    assert [each.metrics_address for each in state.members] == ["", "", ""]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"version": 2}', '{"version": 1}'])
def test_a_file_that_makes_no_sense_is_told(tmp_path: Path, text: str) -> None:
    (tmp_path / STATE_FILE).write_text(text)
    with pytest.raises(DevError, match=r"cannot be read.*remove the file"):
        load(tmp_path)


def test_a_folder_has_its_ports_below_those_of_outgoing_connections() -> None:
    bases = list(chosen_bases(Path("/somewhere")))
    assert bases == list(chosen_bases(Path("/somewhere")))
    assert len(set(bases)) == len(bases) == 30
    assert all(base >= 20_000 and base + 400 <= 32_768 for base in bases)
    assert next(chosen_bases(Path("/elsewhere"))) in bases
