"""A real cluster that a real Prometheus scrapes, a program that uses it, ways to hurt and heal it.

The rules are the shipped ones, hurried: their waits are cut to seconds, and so are the times that
they look back over. What is left is whether the right alert notices, and no other.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, TypeVar

import yaml

from integration import group_worker
from integration.cluster_harness import Cluster, connected
from integration.shifted_clock import Clocks
from tailrace.client.collecting import ClientCollector
from tailrace.client.sync import Producer
from tailrace.client.sync_consumer import Consumer
from tailrace.dev.cluster import DevCluster, Plan
from tailrace.dev.processes import Life
from tailrace.dev.state import DevError, Role
from tailrace.errors import TailraceError
from tailrace.transport.addresses import split_address

ROOT: Final = Path(__file__).resolve().parents[2]
RULES: Final = ROOT / "deploy" / "prometheus" / "tailrace.rules.yaml"
TOPIC: Final = "orders"
GROUP: Final = "billing"
PARTITIONS: Final = 3
PATIENCE_S: Final = 120
SESSION_MS: Final = 3_000
STARTS_MAX: Final = 100

WAIT: Final = "2s"
LOOKS_BACK: Final = "45s"
# It asks for the worst of the last two minutes: with its wait cut it would tell of the last fault.
NOT_HURRIED: Final = {"TailraceLoopLate"}

RULES_BY_NAME: Final[dict[str, dict[str, Any]]] = {
    rule["alert"]: rule
    for group in yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    for rule in group["rules"]
}

T = TypeVar("T")


def hurried(rules: str) -> str:
    """The rules with short waits; that a service was there is remembered as long as before."""
    found = yaml.safe_load(rules)
    for group in found["groups"]:
        for rule in group["rules"]:
            if rule["alert"] in NOT_HURRIED:
                continue
            if "for" in rule:
                rule["for"] = WAIT
            looks = re.sub(r"(?<!build_info)\[\d+[mh]\]", f"[{LOOKS_BACK}]", rule["expr"])
            rule["expr"] = re.sub(r"offset \d+[mh]", f"offset {LOOKS_BACK}", looks)
    return str(yaml.safe_dump(found))


def wakes(names: set[str]) -> set[str]:
    """Those of the alerts for which somebody gets up."""
    return {each for each in names if RULES_BY_NAME[each]["labels"]["severity"] == "critical"}


class Prometheus:
    """One server in a folder of its own. A target that is told with a name is shown by it."""

    def __init__(
        self,
        binary: str,
        folder: Path,
        targets: list[str],
        *,
        named: Mapping[str, Mapping[str, str]] | None = None,
        scrape_s: int = 1,
    ) -> None:
        folder.mkdir()
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.address = f"127.0.0.1:{free.getsockname()[1]}"
        rules = hurried(RULES.read_text(encoding="utf-8"))
        (folder / "rules.yaml").write_text(rules, encoding="utf-8")
        plain = [{"job_name": "tailrace", "static_configs": [{"targets": targets}]}]
        config = {
            "global": {
                "scrape_interval": f"{scrape_s}s",
                "scrape_timeout": "1s",
                "evaluation_interval": "1s",
            },
            "rule_files": ["rules.yaml"],
            "scrape_configs": [
                *(plain if targets else ()),
                *(_job(job, instances) for job, instances in (named or {}).items()),
            ],
        }
        (folder / "prometheus.yml").write_text(yaml.safe_dump(config), encoding="utf-8")
        self.process = subprocess.Popen(
            [
                binary,
                f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address={self.address}",
                "--log.level=warn",
            ]
        )

    def close(self) -> None:
        self.process.kill()
        self.process.wait()

    def get(self, path: str, **query: str) -> Any:
        url = f"http://{self.address}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(url, timeout=20) as answer:
            return json.load(answer)["data"]

    def query(self, expression: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.get("query", query=expression)["result"]
        return found

    def firing(self) -> set[str]:
        alerts = self.get("alerts")["alerts"]
        return {each["labels"]["alertname"] for each in alerts if each["state"] == "firing"}

    def fired_since(self, began_s: float) -> set[str]:
        """Whatever fired since a moment (as `time.monotonic` has it), if only once."""
        ago_s = int(time.monotonic() - began_s) + 1
        found = self.query(f'max_over_time(ALERTS{{alertstate="firing"}}[{ago_s}s])')
        return {each["metric"]["alertname"] for each in found}

    def until(self, what: str, holds: Callable[[], bool]) -> None:
        end = time.monotonic() + PATIENCE_S
        while True:
            try:
                if holds():
                    return
            except OSError:
                assert self.process.poll() is None, "prometheus has ended"
            assert time.monotonic() < end, f"not so: {what}; firing: {self.firing()}"
            time.sleep(0.5)


class WatchedCluster:
    """The cluster; names are those of its processes."""

    def __init__(self, folder: Path) -> None:
        self._clocks = Clocks(folder / "clocks")
        (folder / "clocks").mkdir()
        self._faults = folder / "faults"
        self._faults.write_text("")
        self.folder = folder
        self.dev = DevCluster(folder / "cluster", command_for=self._clocks.command_for)
        self._members: list[subprocess.Popen[bytes]] = []
        self._topics: list[str] = []

    def up(self) -> None:
        lease = {"broker.lease.ttl.ms": "3000"}
        plan = Plan(
            brokers=3,
            controllers=2,
            coordinators=2,
            broker_settings={
                **lease,
                "replica.lag.time.max.ms": "2000",
                "disk.probe.interval.ms": "200",
                "disk.slow.ms": "400",
                "disk.slow.recovery.ms": "3000",
                "debug.disk.faults": str(self._faults),
                # What is written is durable soon, and what is durable is read again and again.
                "flush.interval.ms": "300",
                "checkpoint.interval.ms": "300",
                "log.scrub.interval.ms": "1000",
            },
            controller_settings={**lease, "offsets.topic.num.partitions": "4"},
            coordinator_settings={"coordinator.lease.ms": "3000"},
            etcd_fsync=False,
        )
        asyncio.run(self.dev.up(plan))

    @property
    def targets(self) -> list[str]:
        return [each["metrics"] for each in self.dev.status()["processes"] if each["metrics"]]

    def ask(self, question: Callable[[Cluster], Awaitable[T]]) -> T:
        async def asking() -> T:
            async with connected(self.dev) as cluster:
                return await question(cluster)

        return asyncio.run(asking())

    def leader(self, topic: str = TOPIC) -> str:
        return self.ask(lambda cluster: cluster.leader(topic, 0))

    def follower(self) -> str:
        return self.ask(lambda cluster: cluster.follower(TOPIC, 0))

    def controller(self) -> str:
        return self.ask(lambda cluster: cluster.controller())

    def names(self, role: Role) -> list[str]:
        return self.dev.state.of(role, lambda each: each.name)

    def tailrace(self, *arguments: str, given: str | None = None) -> None:
        from typer.testing import CliRunner  # noqa: PLC0415

        from tailrace.cli.commands import app  # noqa: PLC0415

        environment = {**os.environ, "TAILRACE_DEV_DIR": str(self.dev.folder)}
        done = CliRunner().invoke(
            app, arguments, env=environment, input=given, catch_exceptions=False
        )
        assert done.exit_code == 0, done.output

    def create(self, topic: str, *options: str) -> None:
        """A topic that goes when the cluster is healed."""
        self.tailrace("topics", "create", topic, *options)
        self._topics.append(topic)

    # What hurts.

    def kill(self, *names: str) -> None:
        self._signal(signal.SIGKILL, *names)
        for name in names:
            self._until_exited(name)

    def terminate(self, name: str) -> None:
        self._signal(signal.SIGTERM, name)
        self._until_exited(name)

    def pause(self, *names: str) -> None:
        self._signal(signal.SIGSTOP, *names)

    def start(self, name: str) -> None:
        """Threads of a process that was killed may hold its ports a moment longer than it lives."""
        for _ in range(STARTS_MAX):
            with suppress(DevError):
                return asyncio.run(self.dev.start(name))
            time.sleep(0.1)
        return asyncio.run(self.dev.start(name))

    def shows_metrics(self, name: str) -> bool:
        host, port = split_address(self.dev.state.member(name).metrics_address)
        with suppress(OSError), socket.create_connection((host, port), timeout=1):
            return True
        return False

    def data(self, name: str) -> Path:
        return self.dev.folder / name / "data"

    def disturb(self, *faults: str) -> None:
        """Lines of `debug.disk.faults`."""
        self._faults.write_text("".join(f"{each}\n" for each in faults))

    def set_clock(self, name: str, off_ms: int) -> None:
        self._clocks.set(name, off_ms)

    def join(self, group: str) -> subprocess.Popen[bytes]:
        """A member of a group in a process of its own; gives it once it has partitions."""
        diary = self.folder / f"diary-{len(self._members)}"
        process = subprocess.Popen(
            [
                *(sys.executable, str(group_worker.__file__), self.dev.state.bootstrap),
                *(TOPIC, group, str(diary), "cooperative-sticky", str(SESSION_MS)),
            ]
        )
        self._members.append(process)
        self.until(f"a member of {group} has partitions", lambda: _has_partitions(diary))
        return process

    def until(self, what: str, holds: Callable[[], bool]) -> None:
        end = time.monotonic() + PATIENCE_S
        while not holds():
            assert time.monotonic() < end, f"not so: {what}"
            time.sleep(0.2)

    # What heals.

    def heal(self) -> None:
        """Whatever was done: all processes run, disks and clocks are well, members are gone."""
        self.disturb()
        # The faults of the past are read again within a moment.
        time.sleep(0.3)
        for member in self.dev.state.members:
            if member.role is not Role.ETCD:
                self.set_clock(member.name, 0)
            if self.dev.life(member) is Life.PAUSED:
                self._signal(signal.SIGCONT, member.name)
            elif self.dev.life(member) is Life.EXITED:
                self.start(member.name)
        while self._members:
            process = self._members.pop()
            process.kill()
            process.wait()
        while self._topics:
            self.tailrace("topics", "delete", self._topics.pop(), "--yes")
        self.ask(lambda cluster: cluster.until_well(TOPIC))

    def close(self) -> None:
        for process in self._members:
            process.kill()
            process.wait()
        for member in self.dev.state.members:
            if self.dev.life(member) is not Life.EXITED:
                self._signal(signal.SIGKILL, member.name)

    def _signal(self, number: signal.Signals, *names: str) -> None:
        for name in names:
            asyncio.run(self.dev.signal(name, number))

    def _until_exited(self, name: str) -> None:
        member = self.dev.state.member(name)
        self.until(f"{name} has ended", lambda: self.dev.life(member) is Life.EXITED)


def _job(name: str, instances: Mapping[str, str]) -> dict[str, Any]:
    """Addresses by what the instance is called, which an address says to nobody."""
    return {
        "job_name": name,
        "static_configs": [
            {"targets": [address], "labels": {"instance": instance}}
            for instance, address in instances.items()
        ],
    }


def _has_partitions(diary: Path) -> bool:
    lines = diary.read_text().splitlines() if diary.exists() else []
    return any(each.startswith("A ") and each != "A 0" for each in lines)


class Program:
    """A program that writes, reads and commits all the time, and shows its own metrics."""

    def __init__(self, bootstrap: str, collector: ClientCollector) -> None:
        self._producer = Producer(bootstrap, client_id="till")
        self._consumer = Consumer(
            TOPIC,
            bootstrap_servers=bootstrap,
            group_id=GROUP,
            client_id="kitchen",
            auto_offset_reset="earliest",
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=SESSION_MS // 6,
        )
        collector.add(self._producer)
        collector.add(self._consumer)
        self._ending = threading.Event()
        self._threads = [
            threading.Thread(target=self._write, daemon=True),
            threading.Thread(target=self._read, daemon=True),
        ]
        for each in self._threads:
            each.start()

    def close(self) -> None:
        self._ending.set()
        for each in self._threads:
            each.join()
        self._producer.close(timeout=1.0)
        self._consumer.close(timeout=1.0)

    def _write(self) -> None:
        number = 0
        while not self._ending.wait(0.05):
            number += 1
            # What is refused while something is broken is not what is looked at here.
            with suppress(TailraceError):
                self._producer.send(TOPIC, b"%d" % number, partition=number % PARTITIONS)

    def _read(self) -> None:
        while not self._ending.is_set():
            with suppress(TailraceError):
                self._consumer.poll(timeout=0.5)
                self._consumer.commit(timeout=5.0)
