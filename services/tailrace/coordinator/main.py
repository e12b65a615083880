"""A coordinator in a process of its own: the real ports, put together and run until a signal comes.

Nothing is decided here. What ends the coordinator unasked ends the process with EXIT_BROKEN.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random

from tailrace.clock import SystemClock
from tailrace.coordinator.coordinator import Coordinator
from tailrace.coordinator.settings import CoordinatorSettings
from tailrace.meta.settings import EtcdSettings, open_store
from tailrace.process import until_stopped
from tailrace.transport.grpc_network import GrpcNetwork


async def run_coordinator(
    settings: CoordinatorSettings,
    etcd: EtcdSettings,
    stop: asyncio.Event,
    say: Callable[[str], None],
) -> None:
    """Be a coordinator until `stop` is set; ServiceFailed when it cannot go on."""
    store = open_store(etcd)
    coordinator = Coordinator(
        settings,
        store=store,
        network=GrpcNetwork(),
        clock=SystemClock(),
        rng=Random(),
        say=say,
    )
    await coordinator.start()
    say(f"listening on {coordinator.address}")
    # When it fails, the controller finds the connection refused and moves the shards.
    await until_stopped(stop, coordinator.failed.wait(), lambda: coordinator.failure)
    await coordinator.stop()
    say("stopped")
    await store.close()
