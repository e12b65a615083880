"""What a dev cluster says and refuses; whole clusters run in tests/integration/test_dev.py."""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tailrace.dev.cluster import DevCluster, Plan
from tailrace.dev.processes import Life, ProcessIdentity, identify
from tailrace.dev.state import HOST, DevError, DevUsage, Role, lay_out, load, save


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    yield process
    process.kill()
    process.wait()


def _with_broker(folder: Path, process: subprocess.Popen[bytes]) -> DevCluster:
    """A cluster whose first broker is that process."""
    state = lay_out(1, 1, 9_000)
    member = replace(state.member("broker-1"), identity=identify(process.pid))
    save(folder, state.with_member(member))
    return DevCluster(folder)


async def test_a_folder_without_a_cluster(tmp_path: Path) -> None:
    cluster = DevCluster(tmp_path / "none")
    with pytest.raises(DevError, match=r"no cluster in .*none: `tailrace dev up` starts one"):
        cluster.status()
    assert await cluster.down() == []
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("has_data", [False, True])
def test_only_a_cluster_that_left_data_is_one_that_ended_without_down(
    tmp_path: Path, has_data: bool
) -> None:
    """A first start that failed, on a full disk say, is told of as what it is and nothing else."""
    state = lay_out(1, 1, 9_000)
    gone = replace(state.member("etcd"), identity=ProcessIdentity(1, 0, "another boot"))
    save(tmp_path, state.with_member(gone))
    if has_data:
        (tmp_path / Role.ETCD / "data").mkdir(parents=True)
    said: list[str] = []
    DevCluster(tmp_path, say=said.append)._planned(Plan())
    assert [each.partition(":")[0] for each in said] == [
        *(["the last cluster in this folder ended without `down`"] if has_data else []),
    ]


def test_the_status_of_processes_that_ran_before(tmp_path: Path) -> None:
    state = lay_out(1, 1, 9_000)
    gone = replace(state.member("etcd"), identity=ProcessIdentity(1, 0, "another boot"))
    save(tmp_path, state.with_member(gone))
    assert DevCluster(tmp_path).status() == {
        "bootstrap": "127.0.0.1:9000",
        "processes": [
            {
                "name": name,
                "role": role,
                "id": 1,
                "pid": None,
                "address": address,
                "metrics": metrics,
                "state": "exited",
            }
            for name, role, address, metrics in [
                ("broker-1", "broker", "127.0.0.1:9000", "127.0.0.1:9050"),
                ("controller-1", "controller", "127.0.0.1:9200", "127.0.0.1:9210"),
                ("etcd", "etcd", "127.0.0.1:9300", None),
            ]
        ],
    }


async def test_signals_go_to_the_process_itself(
    tmp_path: Path, sleeper: subprocess.Popen[bytes]
) -> None:
    cluster = _with_broker(tmp_path, sleeper)
    assert cluster.status()["processes"][0]["pid"] == sleeper.pid
    await cluster.signal("broker-1", signal.SIGSTOP)
    # To stop is not instant.
    while cluster.life(cluster.state.member("broker-1")) is Life.RUNNING:
        pass
    assert cluster.status()["processes"][0]["state"] == "paused"
    await cluster.signal("broker-1", signal.SIGKILL)
    assert cluster.status()["processes"][0]["state"] == "exited"
    with pytest.raises(DevError, match="broker-1 does not run; `tailrace dev start broker-1`"):
        await cluster.signal("broker-1", signal.SIGKILL)


async def test_down_stops_also_what_is_paused(
    tmp_path: Path, sleeper: subprocess.Popen[bytes]
) -> None:
    cluster = _with_broker(tmp_path, sleeper)
    sleeper.send_signal(signal.SIGSTOP)
    assert await cluster.down() == []
    assert sleeper.wait() == -signal.SIGTERM
    state = load(tmp_path)
    assert state is not None
    assert all(each.identity is None for each in state.members)


async def test_a_cluster_that_runs_is_not_made_into_another(
    tmp_path: Path, sleeper: subprocess.Popen[bytes]
) -> None:
    cluster = _with_broker(tmp_path, sleeper)
    for plan in (Plan(controllers=2), Plan(port_base=7_000), Plan(brokers=5, controllers=2)):
        with pytest.raises(DevError, match=r"another cluster runs in .*`tailrace dev down`"):
            await cluster.up(plan)
    with pytest.raises(DevError, match="broker-1 is running already"):
        await cluster.start("broker-1")
    await cluster.signal("broker-1", signal.SIGSTOP)
    while cluster.life(cluster.state.member("broker-1")) is not Life.PAUSED:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    with pytest.raises(DevError, match="is paused: `tailrace dev resume broker-1`"):
        await cluster.start("broker-1")
    assert sleeper.poll() is None


async def test_a_port_in_use_is_told_before_anything_starts(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(DevError, match=f"port {port} is in use .* broker-1 .*--port-base"):
            await DevCluster(tmp_path).up(Plan(port_base=port))
    assert load(tmp_path) is None


def test_processes_can_be_put_on_hosts_of_their_own(tmp_path: Path) -> None:
    dev = DevCluster(tmp_path, hosts={"broker-2": "192.0.2.7"})
    state = dev._planned(Plan(brokers=2, controllers=1))
    assert state.member("broker-2").address.startswith("192.0.2.7:")
    assert state.member("broker-1").address.startswith(HOST)
    dev._write_configs(state, Plan(), state.members)
    config = (tmp_path / "broker-2" / "broker.properties").read_text()
    assert "link.listeners=192.0.2.7:" in config
    save(tmp_path, state)
    assert load(tmp_path) == state


def test_a_cluster_that_runs_can_grow_and_new_brokers_are_told_the_same(
    tmp_path: Path, sleeper: subprocess.Popen[bytes]
) -> None:
    dev = _with_broker(tmp_path, sleeper)
    old = dev.state
    dev._write_configs(old, Plan(broker_settings={"flush.interval.ms": "77"}), old.members)
    state = dev._planned(Plan(brokers=3))
    assert [each.name for each in state.members if each not in old.members] == [
        *("broker-2", "broker-3"),
    ]
    assert state.member("broker-1") == old.member("broker-1")
    dev._write_configs(state, Plan(), [state.member("broker-3")])
    config = (tmp_path / "broker-3" / "broker.properties").read_text()
    assert "flush.interval.ms=77" in config
    assert "broker.id=3" in config
    # What runs is never asked to have fewer.
    with pytest.raises(DevError, match="another cluster runs"):
        dev._planned(Plan(brokers=3, controllers=2))


async def test_a_missing_etcd_is_told_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TAILRACE_ETCD", "/nowhere/etcd")
    with pytest.raises(DevError, match=r"\$TAILRACE_ETCD is '/nowhere/etcd'"):
        await DevCluster(tmp_path).up()
    assert load(tmp_path) is None


async def test_a_file_where_the_folder_should_be_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(DevUsage, match=rf"no cluster can live in {folder}: a file is in the"):
            await DevCluster(folder).up()
        with pytest.raises(DevUsage, match=rf"{folder} is no folder: a file is in the way"):
            DevCluster(folder).status()


async def test_two_commands_do_not_get_in_each_others_way(tmp_path: Path) -> None:
    cluster = DevCluster(tmp_path)
    with cluster.locked(), pytest.raises(DevError, match="another `tailrace dev` command"):
        await cluster.up()


@pytest.mark.parametrize(
    ("log", "words"),
    [
        ('{"text": "first"}\n{"level": "info", "text": "the last one"}\n', "the last one"),
        ("tailrace: there is no setting 'x'\n", "there is no setting 'x'"),
        (None, "it left no log"),
    ],
)
def test_last_words(tmp_path: Path, log: str | None, words: str) -> None:
    cluster = DevCluster(tmp_path)
    if log is not None:
        path = cluster.log_path("broker-1")
        path.parent.mkdir()
        path.write_text(log)
    assert cluster.last_words("broker-1") == words


def test_wipe_takes_only_what_is_ours(tmp_path: Path) -> None:
    save(tmp_path, lay_out(1, 1, 9_000))
    for name in ("broker-1", "etcd", "logs", "mine"):
        (tmp_path / name).mkdir()
    asyncio.run(DevCluster(tmp_path).down(wipe=True))
    assert [each.name for each in tmp_path.iterdir()] == ["mine"]


async def test_brokers_with_records_are_not_left_out(tmp_path: Path) -> None:
    save(tmp_path, lay_out(4, 1, 9_000))
    for number in (1, 2, 3, 4):
        (tmp_path / f"broker-{number}" / "data").mkdir(parents=True)
    with pytest.raises(DevError, match=r"has 4 brokers, and broker-4 would be left out.*drain"):
        await DevCluster(tmp_path).up(Plan(brokers=3))
    # One that was never used holds nothing.
    (tmp_path / "broker-4" / "data").rmdir()
    state = DevCluster(tmp_path)._planned(Plan(brokers=3, port_base=9_000))
    assert state.count(Role.BROKER) == 3


def test_wipe_takes_also_what_is_no_longer_known(tmp_path: Path) -> None:
    save(tmp_path, lay_out(1, 1, 9_000))
    for name in ("broker-1", "broker-4", "coordinator-2", "etcd", "logs", "broker-notes"):
        (tmp_path / name / "data").mkdir(parents=True)
    asyncio.run(DevCluster(tmp_path).down(wipe=True))
    assert [each.name for each in tmp_path.iterdir()] == ["broker-notes"]


async def test_a_first_start_that_is_broken_off_leaves_no_half_made_data(tmp_path: Path) -> None:
    """An etcd that was killed while it was made is of no use to the next start."""

    class Broken(DevCluster):
        async def _start_all(self, *_: Any, **__: Any) -> None:
            for name in ("etcd/data", "broker-1/data"):
                (tmp_path / name).mkdir(parents=True)
            raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await Broken(tmp_path).up(Plan(brokers=1))
    assert not (tmp_path / "etcd" / "data").exists()
    assert not (tmp_path / "broker-1" / "data").exists()
    # One that ran before keeps all it has.
    for name in ("etcd/data", "broker-1/data"):
        (tmp_path / name).mkdir(parents=True)
    assert DevCluster(tmp_path)._not_there_yet(lay_out(1, 1, 9_000)) == []
