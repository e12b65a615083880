"""The composition root, as far as it goes without a cluster; test_cluster has the rest."""

from __future__ import annotations

import asyncio
import socket

import pytest

from tailrace.controller.main import run_controller
from tailrace.controller.settings import ControllerSettings
from tailrace.errors import AddressInUse
from tailrace.meta.settings import EtcdSettings

# Nobody listens on this port.
NOWHERE = EtcdSettings(endpoints=("127.0.0.1:1",), timeout_ms=100)


async def test_a_controller_without_a_store_stands_by_until_it_is_stopped() -> None:
    said: list[str] = []
    stop = asyncio.Event()

    def say(text: str) -> None:
        said.append(text)
        if "does not answer" in text:
            stop.set()

    settings = ControllerSettings(controller_id=1, listen="127.0.0.1:0")
    async with asyncio.timeout(20):
        await run_controller(settings, NOWHERE, stop, say)
    assert said[0].startswith("listening on 127.0.0.1:")
    assert said[-1] == "stopped"


async def test_a_port_in_use_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        settings = ControllerSettings(controller_id=1, listen=address)
        with pytest.raises(AddressInUse, match=address):
            await run_controller(settings, NOWHERE, asyncio.Event(), lambda _: None)


async def test_a_port_in_use_for_metrics_is_told_with_its_setting() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        settings = ControllerSettings(controller_id=1, listen="127.0.0.1:0", metrics_listen=address)
        with pytest.raises(AddressInUse, match=rf"metrics\.listeners: .*{address}"):
            await run_controller(settings, NOWHERE, asyncio.Event(), lambda _: None)
