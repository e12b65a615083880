"""Where a repair finds the store and the brokers: it never guesses."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailrace.cli.stores import dev_control, etcd_settings_of, is_of_dev
from tailrace.dev.state import ClusterState, Member, Role, save
from tailrace.errors import InvalidConfig


@pytest.fixture
def dev_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TAILRACE_DEV_DIR", str(tmp_path))
    monkeypatch.delenv("TAILRACE_ETCD_ENDPOINTS", raising=False)
    return tmp_path


def make_cluster(folder: Path) -> None:
    members = (
        Member(name="broker-1", role=Role.BROKER, number=1, port=5, control_port=7),
        Member(name="broker-2", role=Role.BROKER, number=2, port=6, control_port=8),
        Member(name="etcd", role=Role.ETCD, number=1, port=9),
    )
    save(folder, ClusterState(members=members, port_base=5))


def test_those_of_the_dev_cluster_are_the_default(dev_folder: Path) -> None:
    make_cluster(dev_folder)
    assert dev_control() == "127.0.0.1:7,127.0.0.1:8"
    assert etcd_settings_of(None, None, [], is_dev=True).endpoints == ("127.0.0.1:9",)


def test_without_one_they_must_be_named(dev_folder: Path) -> None:
    with pytest.raises(InvalidConfig, match="--control HOST:PORT"):
        dev_control()
    with pytest.raises(InvalidConfig, match="--etcd HOST:PORT"):
        etcd_settings_of(None, None, [], is_dev=True)


def test_brokers_that_were_named_are_not_those_of_the_dev_cluster(dev_folder: Path) -> None:
    make_cluster(dev_folder)
    with pytest.raises(InvalidConfig, match="which etcd"):
        etcd_settings_of(None, None, [], is_dev=is_of_dev("elsewhere:7"))
    assert is_of_dev("127.0.0.1:8")
    assert not is_of_dev("127.0.0.1:8,elsewhere:7")


def test_a_flag_goes_before_the_environment_before_the_file_of_a_service(
    dev_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_cluster(dev_folder)
    config = dev_folder / "broker.properties"
    config.write_text("broker.id=1\netcd.endpoints=file:1\netcd.namespace=/mine\n")
    found = etcd_settings_of(None, config, [], is_dev=True)
    assert (found.endpoints, found.namespace) == (("file:1",), "/mine")
    monkeypatch.setenv("TAILRACE_ETCD_ENDPOINTS", "environment:1")
    assert etcd_settings_of(None, config, [], is_dev=True).endpoints == ("environment:1",)
    found = etcd_settings_of("flag:1", config, ["etcd.namespace=/other"], is_dev=True)
    assert (found.endpoints, found.namespace) == (("flag:1",), "/other")
