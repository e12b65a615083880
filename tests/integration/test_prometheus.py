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
from typing import Any, Final

import pytest
import yaml

from integration.cluster_harness import start, stop
from tailrace.client.sync import Producer
from tailrace.client.sync_consumer import Consumer
from tailrace.dev.cluster import DevCluster
from tailrace.metrics.document import sections
from tailrace.metrics.families import Kind

pytestmark = [pytest.mark.integration, pytest.mark.by_hand, pytest.mark.timeout(300)]

ROOT: Final = Path(__file__).resolve().parents[2]
RULES: Final = ROOT / "deploy" / "prometheus" / "tailrace.rules.yaml"
PATIENCE_S: Final = 90
TOPIC: Final = "orders"

# Families without data in a cluster that is well.
EMPTY: Final = {
    "tailrace_produce_refused": "nothing was refused",
    "tailrace_fetch_refused": "nothing was refused",
    "tailrace_controller_queue": "only the active controller shows it",
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


@pytest.fixture
def dev(tmp_path: Path) -> Iterator[DevCluster]:
    cluster = start(tmp_path / "cluster", coordinators=1)
    yield cluster
    stop(cluster)


@pytest.fixture
def prometheus(tmp_path: Path, dev: DevCluster) -> Iterator[Prometheus]:
    binary = os.environ.get("TAILRACE_PROMETHEUS") or shutil.which("prometheus")
    assert binary, "there is no prometheus: install it, or name it by TAILRACE_PROMETHEUS"
    targets = [each["metrics"] for each in dev.status()["processes"] if each["metrics"]]
    server = Prometheus(binary, tmp_path / "prometheus", targets)
    yield server
    server.process.kill()
    server.process.wait()


def _use(dev: DevCluster) -> None:
    """Write, read and commit, so that there is something to see."""
    bootstrap = dev.state.bootstrap
    with Producer(bootstrap) as producer:
        for number in range(100):
            producer.send(TOPIC, b"%d" % number)
        producer.flush()
    with Consumer(
        TOPIC, bootstrap_servers=bootstrap, group_id="billing", auto_offset_reset="earliest"
    ) as consumer:
        read = 0
        while read < 50:
            read += len(consumer.poll(timeout=1.0, max_records=50))
        consumer.commit()


def _tailrace(dev: DevCluster, *arguments: str) -> None:
    from typer.testing import CliRunner  # noqa: PLC0415

    from tailrace.cli.commands import app  # noqa: PLC0415

    environment = {**os.environ, "TAILRACE_DEV_DIR": str(dev.folder)}
    done = CliRunner().invoke(app, arguments, env=environment, catch_exceptions=False)
    assert done.exit_code == 0, done.output


def test_all_metrics_are_scraped_and_the_right_alerts_fire_and_clear(
    dev: DevCluster, prometheus: Prometheus
) -> None:
    _tailrace(dev, "topics", "create", TOPIC, "--replication-factor", "3", "--partitions", "3")
    _use(dev)
    prometheus.until("six targets are up", lambda: len(prometheus.query("up == 1")) == 6)
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
    # What comes and goes while a cluster starts has cleared.
    prometheus.until("no alert fires", lambda: not prometheus.firing())

    for name in ("broker-2", "broker-3"):
        _tailrace(dev, "dev", "kill", name)
    wanted = {"TailraceServiceDown", "TailraceUnderReplicated", "TailraceUnderMinIsr"}
    prometheus.until(f"{wanted} fire", lambda: wanted <= prometheus.firing())
    critical = prometheus.query('ALERTS{alertstate="firing", severity="critical"}')
    named = {each["metric"]["alertname"] for each in critical}
    assert named == {"TailraceUnderMinIsr"}
    for name in ("broker-2", "broker-3"):
        _tailrace(dev, "dev", "start", name)
    prometheus.until("all alerts have cleared", lambda: not prometheus.firing())
