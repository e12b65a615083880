"""`tailrace dev` and the client commands as people use them: the command itself, real processes."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tailrace.cli import demo_cluster
from tailrace.cli.commands import app
from tailrace.dev.cluster import DevCluster, Plan
from tailrace.dev.state import DevError
from tailrace.errors import TailraceError

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]


RUNNER = CliRunner()


class Tailrace:
    """The command, in one dev folder. Most of it runs in this process, which saves its start."""

    def __init__(self, folder: Path) -> None:
        self.environment = {
            **os.environ,
            "TAILRACE_DEV_DIR": str(folder),
            "PYTHONPATH": os.pathsep.join(sys.path),
        }

    def fails(self, *arguments: str) -> str:
        """Run what must fail; gives the sentence."""
        done = RUNNER.invoke(app, arguments, env=self.environment)
        assert done.exit_code == 1
        assert isinstance(done.exception, TailraceError)
        return str(done.exception)

    def __call__(self, *arguments: str) -> str:
        done = RUNNER.invoke(app, arguments, env=self.environment, catch_exceptions=False)
        assert done.exit_code == 0, f"{arguments}: {done.output}"
        return done.stdout

    def process(self, *arguments: str) -> subprocess.Popen[str]:
        """The real thing, in a process of its own."""
        return subprocess.Popen(
            [sys.executable, "-m", "tailrace.cli.main", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=self.environment,
        )

    def processes(self) -> dict[str, dict[str, Any]]:
        found = json.loads(self("dev", "status", "--json"))
        return {each["name"]: each for each in found["processes"]}

    def ailments(self) -> set[str]:
        """What the doctor finds wrong, leaving aside how this machine is."""
        done = RUNNER.invoke(app, ["doctor", "--json"], env=self.environment)
        found = [json.loads(line) for line in done.stdout.splitlines()]
        wrong = {each["check"] for each in found if each["severity"] in {"warning", "critical"}}
        assert done.exit_code == bool(wrong), done.output
        return wrong - {"machine", "disks"}

    def until_well(self, topic: str) -> None:
        end = time.monotonic() + 40
        while True:
            described = json.loads(self("topics", "describe", topic, "--json"))
            if sorted(described["partitions"][0]["isr"]) == [1, 2, 3]:
                return
            assert time.monotonic() < end, described
            time.sleep(0.1)


@pytest.fixture
def tailrace(tmp_path: Path) -> Iterator[Tailrace]:
    command = Tailrace(tmp_path / "dev")
    yield command
    RUNNER.invoke(app, ["dev", "down"], env=command.environment)


def _said_until(up: subprocess.Popen[str], last: str) -> str:
    assert up.stdout is not None
    said = ""
    while last not in said:
        line = up.stdout.readline()
        assert line, said
        said += line
    return said


def _is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_a_day_in_the_life_of_a_cluster(tailrace: Tailrace) -> None:
    begun = time.monotonic()
    tailrace("dev", "up", "--detach")
    tailrace("topics", "create", "orders", "--replication-factor", "3")
    assert tailrace("produce", "orders", "--value", "first") == "orders-0 offset 0\n"
    print(f"\nfrom nothing to the first acknowledgement: {time.monotonic() - begun:.1f} s")
    before = tailrace.processes()
    roles = {each["role"] for each in before.values()}
    assert roles == {"broker", "controller", "coordinator", "etcd"}
    assert {each["state"] for each in before.values()} == {"running"}

    # Each service says that it lives and is ready, and what it does.
    for each in before.values():
        if each["metrics"] is None:
            assert each["role"] == "etcd"
            continue
        for page, begins in (("livez", "ok"), ("readyz", "ok"), ("metrics", "# HELP")):
            with urllib.request.urlopen(f"http://{each['metrics']}/{page}", timeout=20) as got:
                assert got.read().decode().startswith(begins)

    assert not tailrace.ailments()

    # Once more is fine, and starts nothing anew.
    assert "runs already" in tailrace("dev", "up", "--detach")
    assert tailrace.processes() == before

    lines = "".join(f"{number % 7}:{number}\n" for number in range(1_000))
    with tailrace.process("produce", "orders", "--key-separator", ":", "--json") as producing:
        said, _ = producing.communicate(lines)
    assert json.loads(said)["partitions"] == {"0": {"first": 1, "last": 1_000}}
    read = tailrace("consume", "orders", "--offset", "1", "--keys").replace("\t", ":")
    assert read == lines
    last = json.loads(tailrace("consume", "orders", "--offset", "1000", "--json"))
    assert (last["offset"], last["key"], last["value"]) == (1_000, "5", "999")

    tailrace("dev", "kill", "broker-1")
    assert tailrace.processes()["broker-1"]["pid"] is None
    assert tailrace("produce", "orders", "--value", "after") == "orders-0 offset 1001\n"
    described = json.loads(tailrace("topics", "describe", "orders", "--json"))
    (partition,) = described["partitions"]
    assert partition["leader"] == 2
    assert partition["health"] == ["under-replicated", "leader-not-preferred"]
    assert tailrace.ailments() == {"dev", "brokers", "partitions"}
    explained = tailrace("explain", "orders", "0")
    assert "leader 1 → 2" in explained
    assert "its process is gone" in explained
    tailrace("dev", "start", "broker-1")
    tailrace.until_well("orders")

    tailrace("dev", "pause", "broker-3")
    assert tailrace.processes()["broker-3"]["state"] == "paused"
    tailrace("dev", "resume", "broker-3")

    assert tailrace.fails("topics", "create", "orders") == "topic 'orders' exists already"
    tailrace("topics", "delete", "orders")
    # It is listed as being deleted until every broker has done so.
    end = time.monotonic() + 30
    while (listed := tailrace("topics", "list")) != "There are no topics.\n":
        assert "being deleted" in listed
        assert time.monotonic() < end, listed
        time.sleep(0.2)
    pids = [each["pid"] for each in tailrace.processes().values()]
    tailrace("dev", "down")
    assert not any(_is_alive(pid) for pid in pids)
    assert {each["state"] for each in tailrace.processes().values()} == {"exited"}


def test_a_cluster_in_the_foreground_and_after_a_crash(tailrace: Tailrace) -> None:
    with tailrace.process("dev", "up", "--brokers", "1", "--controllers", "1") as up:
        _said_until(up, "Ctrl-C stops it.")
        tailrace("topics", "create", "kept")
        tailrace("produce", "kept", "--value", "a record")
        up.kill()
        for each in tailrace.processes().values():
            os.kill(each["pid"], signal.SIGKILL)
    # As many as before, where they were before, with what they had.
    with tailrace.process("dev", "up") as up:
        said = _said_until(up, "Ctrl-C stops it.")
        assert "ended without `down`: going on with its data" in said
        assert tailrace("consume", "kept") == "a record\n"
        pids = [each["pid"] for each in tailrace.processes().values()]
        assert len(pids) == 4
        up.send_signal(signal.SIGINT)
        _said_until(up, "Stopping.")
    assert up.returncode == 0
    assert not any(_is_alive(pid) for pid in pids)


def test_a_cluster_that_cannot_start_leaves_nothing_behind(tailrace: Tailrace) -> None:
    small = ("--brokers", "1", "--controllers", "1", "--detach")
    said = tailrace.fails("dev", "up", *small, "--set", "log.dirs=/proc/nowhere")
    assert said.startswith("broker-1 ended at once: ")
    assert {each["state"] for each in tailrace.processes().values()} == {"exited"}


def test_a_start_that_takes_too_long_names_the_option_and_leaves_nothing_behind(
    tailrace: Tailrace, tmp_path: Path
) -> None:
    small = ("--brokers", "1", "--controllers", "1", "--detach")
    said = tailrace.fails("dev", "up", *small, "--timeout", "0.1")
    assert "within 0.1 s: " in said
    assert "`tailrace dev up --timeout SECONDS` waits longer" in said
    assert {each["state"] for each in tailrace.processes().values()} == {"exited"}
    # One that was ended while it made its first entries would be of no use to the next start.
    assert not (tmp_path / "dev" / "etcd" / "data").exists()
    # What was said of it can be read.
    assert (tmp_path / "dev" / "etcd" / "etcd.log").exists()


async def test_a_cluster_without_controllers_was_not_ready_in_time(tmp_path: Path) -> None:
    def nobody(name: str, command: list[str]) -> list[str]:
        return ["sleep", "60"] if name == "controller-1" else command

    dev = DevCluster(tmp_path, command_for=nobody)
    plan = Plan(brokers=1, controllers=1, coordinators=0, etcd_fsync=False, ready_timeout_ms=3_000)
    with pytest.raises(DevError, match=r"not ready within 3 s: .* --timeout SECONDS` waits longer"):
        await dev.up(plan)
    assert not dev.is_running()


def test_the_demo_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    # The part of Spark is tested apart: here the demo has to do without it.
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    monkeypatch.setattr(demo_cluster, "FLOW_S", 0.5)
    done = RUNNER.invoke(app, ["demo"], catch_exceptions=False)
    assert done.exit_code == 0, done.stdout
    assert "0 lost, 0 twice, 0 in the wrong place, 0 failed" in done.stdout
    assert "the longest wait for an acknowledgement was" in done.stdout
    assert "its process is gone" in done.stdout
    assert "Left out: Spark needs Java 17" in done.stdout


def test_groups_from_the_command_line(tailrace: Tailrace) -> None:
    tailrace("dev", "up", "--detach", "--brokers", "1", "--controllers", "1")
    tailrace("topics", "create", "orders")
    with tailrace.process("produce", "orders") as producing:
        producing.communicate("".join(f"{number}\n" for number in range(20)))
    read = tailrace("consume", "orders", "--group", "readers", "--from-beginning", "--max", "12")
    assert read.splitlines() == [str(number) for number in range(12)]
    (listed,) = map(json.loads, tailrace("groups", "list", "--json").splitlines())
    assert (listed["group"], listed["state"], listed["members"]) == ("readers", "Empty", 0)
    described = json.loads(tailrace("groups", "describe", "readers", "--json"))
    (position,) = described["positions"]
    assert (position["offset"], position["log_end"], position["lag"]) == (12, 20, 8)
    assert position["lag_ms"] > 0
    assert "8 records behind" in tailrace("groups", "describe")
    plan = tailrace("groups", "reset", "readers", "--shift-by", "-2")
    assert "would move: add --execute" in plan
    assert "moved" in tailrace("groups", "reset", "readers", "--to-offset", "15", "--execute")
    read = tailrace("consume", "orders", "--group", "readers", "--max", "5")
    assert read.splitlines() == [str(number) for number in range(15, 20)]
    # A member that is told to end leaves at once, not when its session is over.
    following = ("consume", "orders", "--group", "readers", "--follow", "--from-beginning")
    with tailrace.process(*following) as member:
        _said_until(member, "19")
        member.terminate()
        assert member.wait(20) == 128 + signal.SIGTERM
    described = json.loads(tailrace("groups", "describe", "readers", "--json"))
    assert (described["state"], described["members"]) == ("Empty", [])
    assert tailrace("groups", "delete", "readers", "--yes") == "readers deleted\n"
    assert tailrace("groups", "list", "--json") == ""
    assert "there is no group" in tailrace.fails("groups", "describe", "readers")


async def test_a_port_that_is_taken_while_the_cluster_starts_is_left_to_others(
    tmp_path: Path,
) -> None:
    taken: list[socket.socket] = []

    def take_the_port_of_etcd(_: str, command: list[str]) -> list[str]:
        if not taken:
            etcd = dev.state.member("etcd")
            taken.append(socket.create_server((etcd.host, etcd.port)))
        return command

    dev = DevCluster(tmp_path, command_for=take_the_port_of_etcd)
    try:
        await dev.up(Plan(brokers=1, controllers=1, coordinators=0, etcd_fsync=False))
        assert dev.state.member("etcd").port != taken[0].getsockname()[1]
        assert all(each["state"] == "running" for each in dev.status()["processes"])
    finally:
        await dev.down()
        for each in taken:
            each.close()
