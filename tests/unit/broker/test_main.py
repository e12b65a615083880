"""The composition root, as far as it goes without a cluster; test_cluster has the rest."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tailrace.broker.main import run_broker
from tailrace.broker.settings import BrokerSettings
from tailrace.config import FolderConfig
from tailrace.meta.settings import EtcdSettings


async def test_a_broker_that_waits_for_its_store_can_be_stopped(tmp_path: Path) -> None:
    settings = BrokerSettings(
        broker_id=1,
        listen="127.0.0.1:0",
        link_listen="127.0.0.1:0",
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
