"""The composition root, as far as it goes without a cluster; test_cluster has the rest."""

from __future__ import annotations

import asyncio
import urllib.error
import urllib.request
from pathlib import Path

from tailrace.broker.main import run_broker, within_limits
from tailrace.broker.settings import BrokerSettings
from tailrace.config import FolderConfig
from tailrace.meta.settings import EtcdSettings
from tailrace.runtime import Tasks


async def test_a_broker_that_waits_for_its_store_can_be_stopped(tmp_path: Path) -> None:
    settings = BrokerSettings(
        broker_id=1,
        listen="127.0.0.1:0",
        link_listen="127.0.0.1:0",
        control_listen="127.0.0.1:0",
        folders=FolderConfig(log_dirs=(str(tmp_path / "data"),)),
    )
    said: list[str] = []
    stop = asyncio.Event()

    def say(text: str) -> None:
        said.append(text)
        if text.startswith("waiting"):
            stop.set()

    # Nobody listens on this port.
    etcd = EtcdSettings(endpoints=("127.0.0.1:1",), timeout_ms=100)
    async with asyncio.timeout(20):
        await run_broker(settings, etcd, stop, say)
    assert said[0].startswith("waiting: the metadata store does not answer")
    assert said[-1] == "stopped"
    assert not (tmp_path / "data").exists()


async def test_while_it_waits_it_lives_and_says_why_it_is_not_ready(tmp_path: Path) -> None:
    settings = BrokerSettings(
        broker_id=1,
        listen="127.0.0.1:0",
        link_listen="127.0.0.1:0",
        control_listen="127.0.0.1:0",
        metrics_listen="127.0.0.1:0",
        folders=FolderConfig(log_dirs=(str(tmp_path / "data"),)),
    )
    said: list[str] = []
    stop, waits = asyncio.Event(), asyncio.Event()

    def say(text: str) -> None:
        said.append(text)
        if text.startswith("waiting"):
            waits.set()

    etcd = EtcdSettings(endpoints=("127.0.0.1:1",), timeout_ms=100)
    tasks = Tasks(lambda _, __: None)
    async with asyncio.timeout(20):
        running = tasks.spawn("broker", run_broker(settings, etcd, stop, say))
        await waits.wait()
        base = said[0].removeprefix("metrics on ").removesuffix("/metrics")
        assert await asyncio.to_thread(_get, base + "/livez") == (200, "ok\n")
        status, why = await asyncio.to_thread(_get, base + "/readyz")
        assert (status, "waits for the cluster's id" in why) == (503, True)
        status, text = await asyncio.to_thread(_get, base + "/metrics")
        assert 'tailrace_store_call_failures_total{call="snapshot"}' in text
        stop.set()
        await running


def _get(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=20) as got:
            return got.status, got.read().decode()
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, refused.read().decode()


def test_logs_leave_half_of_the_files_to_connections() -> None:
    said: list[str] = []
    settings = BrokerSettings(broker_id=1, folders=FolderConfig(open_files_max=600))
    assert within_limits(settings, 1_200, said.append) is settings
    assert not said
    assert within_limits(settings, 1_000, said.append).folders.open_files_max == 500
    assert "open.files.max=600" in said[0]
    assert within_limits(settings, 20, said.append).folders.open_files_max == 16
