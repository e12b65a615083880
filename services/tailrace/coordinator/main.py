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
from tailrace.process import ServiceFailed
from tailrace.runtime import Tasks
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
    tasks = Tasks(lambda _, __: None)
    await coordinator.start()
    say(f"listening on {coordinator.address}")
    failing = tasks.spawn("wait for a failure", coordinator.failed.wait())
    stopping = tasks.spawn("wait for the end", stop.wait())
    await asyncio.wait([failing, stopping], return_when=asyncio.FIRST_COMPLETED)
    if coordinator.failed.is_set():
        # Nothing is tidied up: the controller finds the connection refused and moves the shards.
        error = coordinator.failure
        raise ServiceFailed(f"{type(error).__name__}: {error}" if error else "no reason was given")
    await coordinator.stop()
    say("stopped")
    await tasks.close()
    await store.close()
