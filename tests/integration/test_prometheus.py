"""A real Prometheus scrapes a real cluster: all metrics are there, and alerts fire and clear.

Needs `prometheus` on the PATH, or named by TAILRACE_PROMETHEUS (Debian has it in the package
`prometheus`). The rules are the shipped ones but for their waits, which are cut to seconds.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
import yaml
from prometheus_client import CollectorRegistry, start_http_server

from integration.cluster_harness import start, stop
from tailrace.client.collecting import ClientCollector
from tailrace.client.sync import Producer
from tailrace.client.sync_consumer import Consumer
from tailrace.dev.cluster import DevCluster
from tailrace.metrics.document import sections
from tailrace.metrics.families import Kind

pytestmark = [pytest.mark.integration, pytest.mark.by_hand, pytest.mark.timeout(900)]

ROOT: Final = Path(__file__).resolve().parents[2]
BOARDS: Final = ROOT / "deploy" / "helm" / "tailrace" / "files" / "dashboards"
RULES: Final = ROOT / "deploy" / "prometheus" / "tailrace.rules.yaml"
PATIENCE_S: Final = 90
TOPIC: Final = "orders"

# Families without data in a cluster that is well.
EMPTY: Final = {
    "tailrace_produce_refused": "nothing was refused",
    "tailrace_fetch_refused": "nothing was refused",
    "tailrace_producer_failed_records": "no record was given up",
}
# Panels that may have no data here, by a part of their expressions.
EMPTY_PANELS: Final = {
    "tailrace_operator_": "no operator runs: there is no Kubernetes",
    'kind="reader"': "no Spark query has committed a position",
    "_refused_total": "nothing was refused",
}
RULES_BY_NAME: Final[dict[str, str]] = {
    rule["alert"]: rule["expr"]
    for group in yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    for rule in group["rules"]
}


class Prometheus:
    """One server in a folder of its own."""

    def __init__(self, binary: str, folder: Path, targets: list[str]) -> None:
        folder.mkdir()
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.address = f"127.0.0.1:{free.getsockname()[1]}"
        rules = re.sub(r"for: \d+[ms]\d*s?", "for: 2s", RULES.read_text(encoding="utf-8"))
        (folder / "rules.yaml").write_text(rules, encoding="utf-8")
        config = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": ["rules.yaml"],
            "scrape_configs": [{"job_name": "tailrace", "static_configs": [{"targets": targets}]}],
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


_CLIENTS: Final[list[Producer | Consumer]] = []


@pytest.fixture
def collector() -> Iterator[ClientCollector]:
    found = ClientCollector()
    yield found
    while _CLIENTS:
        _CLIENTS.pop().close(timeout=1.0)


@pytest.fixture
def dev(tmp_path: Path) -> Iterator[DevCluster]:
    # Faults of the disk of broker 3 come from a file: nothing is wrong while it is empty.
    (tmp_path / "faults").write_text("")
    cluster = start(
        tmp_path / "cluster", coordinators=1, debug_disk_faults=str(tmp_path / "faults")
    )
    yield cluster
    stop(cluster)


@pytest.fixture
def prometheus(tmp_path: Path, dev: DevCluster, collector: ClientCollector) -> Iterator[Prometheus]:
    binary = os.environ.get("TAILRACE_PROMETHEUS") or shutil.which("prometheus")
    assert binary, "there is no prometheus: install it, or name it by TAILRACE_PROMETHEUS"
    targets = [each["metrics"] for each in dev.status()["processes"] if each["metrics"]]
    registry = CollectorRegistry()
    registry.register(collector)
    program, thread = start_http_server(0, "127.0.0.1", registry)
    targets.append(f"127.0.0.1:{program.server_port}")
    server = Prometheus(binary, tmp_path / "prometheus", targets)
    yield server
    server.process.kill()
    server.process.wait()
    program.shutdown()
    program.server_close()
    thread.join()


def _use(dev: DevCluster, collector: ClientCollector) -> None:
    """Write, read and commit, so that there is something to see; the clients stay."""
    bootstrap = dev.state.bootstrap
    producer = Producer(bootstrap, client_id="till")
    collector.add(producer)
    for number in range(100):
        producer.send(TOPIC, b"%d" % number)
    producer.flush()
    consumer = Consumer(
        TOPIC,
        bootstrap_servers=bootstrap,
        group_id="billing",
        client_id="kitchen",
        auto_offset_reset="earliest",
    )
    collector.add(consumer)
    _CLIENTS.extend([producer, consumer])
    read = 0
    while read < 50:
        read += len(consumer.poll(timeout=1.0, max_records=50))
    consumer.commit()


def _tailrace(dev: DevCluster, *arguments: str, given: str | None = None) -> None:
    from typer.testing import CliRunner  # noqa: PLC0415

    from tailrace.cli.commands import app  # noqa: PLC0415

    environment = {**os.environ, "TAILRACE_DEV_DIR": str(dev.folder)}
    done = CliRunner().invoke(app, arguments, env=environment, input=given, catch_exceptions=False)
    assert done.exit_code == 0, done.output


def _start(dev: DevCluster, *names: str) -> None:
    for name in names:
        _tailrace(dev, "dev", "start", name)


def _kill(dev: DevCluster, *names: str) -> None:
    for name in names:
        _tailrace(dev, "dev", "kill", name)


def _fill_disk(dev: DevCluster) -> None:
    data = dev.folder / "broker-3" / "data"
    (dev.folder.parent / "faults").write_text(f"full {data}\n")


def _empty_disk(dev: DevCluster) -> None:
    (dev.folder.parent / "faults").write_text("")


class Fault(NamedTuple):
    """Something that is done to a cluster, what must fire then, and how it is undone.

    Of the alerts that wake somebody exactly those that are named may fire.
    """

    does: Callable[[DevCluster], None]
    fires: set[str]
    wakes: set[str]
    undoes: Callable[[DevCluster], None]


FAULTS: Final = {
    "a broker is killed": Fault(
        lambda dev: _kill(dev, "broker-3"),
        {"TailraceServiceDown", "TailraceUnderReplicated"},
        set(),
        lambda dev: _start(dev, "broker-3"),
    ),
    "two brokers are killed": Fault(
        lambda dev: _kill(dev, "broker-2", "broker-3"),
        {"TailraceServiceDown", "TailraceUnderReplicated", "TailraceUnderMinIsr"},
        {"TailraceUnderMinIsr"},
        lambda dev: _start(dev, "broker-2", "broker-3"),
    ),
    "the only replica of a topic is away": Fault(
        lambda dev: _kill(dev, "broker-1"),
        {"TailracePartitionsOffline", "TailraceServiceDown"},
        # Nobody is in sync where nobody leads.
        {"TailracePartitionsOffline", "TailraceUnderMinIsr"},
        lambda dev: _start(dev, "broker-1"),
    ),
    "the coordinator is killed": Fault(
        lambda dev: _kill(dev, "coordinator-1"),
        {"TailraceShardsUnowned", "TailraceServiceDown"},
        {"TailraceShardsUnowned"},
        lambda dev: _start(dev, "coordinator-1"),
    ),
    "both controllers are killed": Fault(
        lambda dev: _kill(dev, "controller-1", "controller-2"),
        {"TailraceNoController", "TailraceServiceDown"},
        {"TailraceNoController"},
        lambda dev: _start(dev, "controller-1", "controller-2"),
    ),
    "etcd is paused": Fault(
        lambda dev: _tailrace(dev, "dev", "pause", "etcd"),
        {"TailraceEtcdSilent", "TailraceEtcdOutOfReach", "TailraceNotReady"},
        {"TailraceEtcdSilent"},
        lambda dev: _tailrace(dev, "dev", "resume", "etcd"),
    ),
    "a disk is full": Fault(
        _fill_disk,
        {"TailraceDiskUnfit"},
        {"TailraceDiskUnfit"},
        _empty_disk,
    ),
}


def test_all_metrics_panels_and_alerts_are_real_and_the_right_alerts_fire_and_clear(
    dev: DevCluster, prometheus: Prometheus, collector: ClientCollector
) -> None:
    _tailrace(dev, "topics", "create", TOPIC, "--replication-factor", "3", "--partitions", "3")
    _use(dev, collector)
    prometheus.until("seven targets are up", lambda: len(prometheus.query("up == 1")) == 7)
    prometheus.until(
        "the group's lag is known", lambda: bool(prometheus.query("tailrace_group_lag_records"))
    )
    families = [family for _, _, found in sections() for family in found]
    missing = [
        family.name
        for family in families
        if not prometheus.query(
            f"{family.name}_count" if family.kind is Kind.HISTOGRAM else family.sample_name
        )
    ]
    assert set(missing) <= set(EMPTY), missing
    lag = prometheus.query(f'sum(tailrace_group_lag_records{{group="billing", topic="{TOPIC}"}})')
    assert 0 <= float(lag[0]["value"][1]) <= 50
    written = prometheus.query(f'sum(tailrace_topic_records_in_total{{topic="{TOPIC}"}})')
    assert float(written[0]["value"][1]) == 100
    assert _without_data(prometheus) == []
    # What comes and goes while a cluster starts has cleared.
    prometheus.until("no alert fires", lambda: not prometheus.firing())

    # One more topic, which lives on broker 1 alone: made late, for it is told apart from the rest.
    plan = json.dumps({"partitions": [{"topic": "single", "partition": 0, "replicas": [1]}]})
    _tailrace(dev, "topics", "create", "single", "--replication-factor", "1")
    _tailrace(dev, "topics", "reassign", "--plan", "-", "--yes", given=plan)
    for what, fault in FAULTS.items():
        began = time.monotonic()
        fault.does(dev)
        prometheus.until(f"{what}: {fault.fires}", _fire(prometheus, fault.fires))
        took = time.monotonic() - began
        # Others would have come by now: their waits are as short.
        time.sleep(4)
        woken = prometheus.query('ALERTS{alertstate="firing", severity="critical"}')
        assert {each["metric"]["alertname"] for each in woken} <= fault.wakes, what
        fault.undoes(dev)
        prometheus.until(f"{what}: cleared", _cleared(prometheus, fault.fires | fault.wakes))
        print(f"{what}: {', '.join(sorted(fault.fires))} after {took:.0f} s, cleared", flush=True)


def _fire(prometheus: Prometheus, names: set[str]) -> Callable[[], bool]:
    return lambda: names <= prometheus.firing()


def _cleared(prometheus: Prometheus, names: set[str]) -> Callable[[], bool]:
    return lambda: not names & prometheus.firing()


def _without_data(prometheus: Prometheus) -> list[str]:
    """Expressions of panels and marks that give nothing, and those of alerts that cannot be asked.

    An alert that does not fire gives nothing: of it the sides of the comparison are asked.
    """
    empty = []
    for path in sorted(BOARDS.glob("*.json")):
        board = json.loads(path.read_text(encoding="utf-8"))
        for panel in board["panels"]:
            for target in panel.get("targets", ()):
                asked = _filled_in(target["expr"])
                excused = any(part in asked for part in EMPTY_PANELS)
                if not prometheus.query(asked) and not excused:
                    empty.append(f"{path.stem}: {panel['title']}: {asked}")
        for mark in board["annotations"]["list"]:
            prometheus.query(_filled_in(mark["expr"]))
    for name, expression in RULES_BY_NAME.items():
        # That of services that are down compares in its middle.
        is_whole = name == "TailraceServiceDown"
        left = expression if is_whole else re.split(r" (?:<|>|==) ", expression)[0]
        if bool(prometheus.query(left)) == is_whole:
            empty.append(f"{name}: {left}")
    return empty


def _filled_in(expression: str) -> str:
    """As Grafana does when all of everything is chosen."""
    named = re.sub(r"\$(job|instance|topic|group)\b", ".*", expression)
    return named.replace("$__rate_interval", "1m")
