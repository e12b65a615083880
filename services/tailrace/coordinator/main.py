"""A coordinator in a process of its own: the real ports, put together and run until a signal comes.

Nothing is decided here. What ends the coordinator unasked ends the process with EXIT_BROKEN.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random

from tailrace.clock import SystemClock
from tailrace.coordinator.coordinator import Coordinator
from tailrace.coordinator.observing import ObservedCoordinator
from tailrace.coordinator.settings import CoordinatorSettings
from tailrace.coordinator.traces import RebalanceTraces
from tailrace.meta.measured import MeasuredStore
from tailrace.meta.settings import EtcdSettings, open_store
from tailrace.metrics.endpoint import observing
from tailrace.metrics.watchdog import watched
from tailrace.process import StartAnew, until_stopped
from tailrace.tracing import open_tracer
from tailrace.transport.addresses import metrics_socket
from tailrace.transport.http2.network import Http2Network
from tailrace.transport.limits import SERVICE_LIMITS
from tailrace.transport.measured import MeasuredNetwork


async def run_coordinator(
    settings: CoordinatorSettings,
    etcd: EtcdSettings,
    stop: asyncio.Event,
    say: Callable[[str], None],
) -> None:
    """Be a coordinator until `stop` is set; ServiceFailed when it cannot go on."""
    clock = SystemClock()
    store = MeasuredStore(open_store(etcd), clock)
    wire = Http2Network(SERVICE_LIMITS)
    network = MeasuredNetwork(wire, clock, wire.connections)
    name = f"coordinator-{settings.coordinator_id}"
    tracer = open_tracer(
        settings.tracing, service="tailrace-coordinator", instance=name, rng=Random()
    )
    coordinator = Coordinator(
        settings,
        store=store,
        network=network,
        clock=clock,
        rng=Random(),
        say=say,
        traces=None if tracer is None else RebalanceTraces(tracer),
    )
    observed = ObservedCoordinator(coordinator, settings, store, network, clock)
    network.why_not_ready = observed.why_not_ready
    sock = await metrics_socket(settings.metrics_listen)
    with watched(clock, say, limit_ms=settings.loop_stall_warn_ms) as watchdog:
        async with observing(observed, clock, sock, say, watchdog):
            await _run(coordinator, stop, say)
    await store.close()
    if tracer is not None:
        tracer.close()


async def _run(coordinator: Coordinator, stop: asyncio.Event, say: Callable[[str], None]) -> None:
    await coordinator.start()
    say(f"listening on {coordinator.address}")
    # When it fails, the controller finds the connection refused and moves the shards.
    try:
        await until_stopped(stop, coordinator.failed.wait(), lambda: coordinator.failure)
    except StartAnew:
        await coordinator.stop()
        raise
    await coordinator.stop()
    say("stopped")
