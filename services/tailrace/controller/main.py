"""A controller in a process of its own: the real ports, put together and run until a signal comes.

Nothing is decided here. What ends the controller unasked ends the process with EXIT_BROKEN.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random

from tailrace.clock import SystemClock
from tailrace.controller.controller import Controller
from tailrace.controller.settings import ControllerSettings
from tailrace.meta.settings import EtcdSettings, open_store
from tailrace.process import until_stopped
from tailrace.transport.grpc_network import GrpcNetwork


async def run_controller(
    settings: ControllerSettings,
    etcd: EtcdSettings,
    stop: asyncio.Event,
    say: Callable[[str], None],
) -> None:
    """Be a controller until `stop` is set; ServiceFailed when it cannot go on."""
    store = open_store(etcd)
    controller = Controller(
        settings,
        store=store,
        network=GrpcNetwork(),
        clock=SystemClock(),
        rng=Random(),
        say=say,
    )
    await controller.start()
    say(f"listening on {controller.address}")
    # When it fails, whoever stands by finds the connection refused, and takes over.
    await until_stopped(stop, controller.run(), lambda: "it ended by itself")
    await controller.stop()
    say("stopped")
    await store.close()
