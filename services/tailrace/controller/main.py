"""A controller in a process of its own: the real ports, put together and run until a signal comes.

Nothing is decided here. What ends the controller unasked ends the process with EXIT_BROKEN.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random

from tailrace.clock import SystemClock
from tailrace.controller.controller import Controller
from tailrace.controller.observing import ObservedController
from tailrace.controller.settings import ControllerSettings
from tailrace.controller.traces import FailoverTraces
from tailrace.meta.settings import EtcdSettings, open_store
from tailrace.metrics.endpoint import observing
from tailrace.metrics.watchdog import watched
from tailrace.process import StartAnew, until_stopped
from tailrace.tracing import open_tracer
from tailrace.transport.addresses import metrics_socket
from tailrace.transport.http2.network import Http2Network
from tailrace.transport.limits import SERVICE_LIMITS
from tailrace.transport.measured import MeasuredNetwork


async def run_controller(
    settings: ControllerSettings,
    etcd: EtcdSettings,
    stop: asyncio.Event,
    say: Callable[[str], None],
) -> None:
    """Be a controller until `stop` is set; ServiceFailed when it cannot go on."""
    clock = SystemClock()
    store = open_store(etcd)
    wire = Http2Network(SERVICE_LIMITS)
    network = MeasuredNetwork(wire, clock, wire.connections)
    name = f"controller-{settings.controller_id}"
    tracer = open_tracer(
        settings.tracing, service="tailrace-controller", instance=name, rng=Random()
    )
    controller = Controller(
        settings,
        store=store,
        network=network,
        clock=clock,
        rng=Random(),
        say=say,
        traces=None if tracer is None else FailoverTraces(tracer, clock),
    )
    observed = ObservedController(controller, settings, network)
    network.why_not_ready = observed.why_not_ready
    sock = await metrics_socket(settings.metrics_listen)
    with watched(clock, say, limit_ms=settings.loop_stall_warn_ms) as watchdog:
        async with observing(observed, clock, sock, say, watchdog):
            await _run(controller, stop, say)
    await store.close()
    if tracer is not None:
        tracer.close()


async def _run(controller: Controller, stop: asyncio.Event, say: Callable[[str], None]) -> None:
    await controller.start()
    say(f"listening on {controller.address}")
    # When it fails, whoever stands by finds the connection refused, and takes over.
    try:
        await until_stopped(stop, controller.run(), lambda: "it ended by itself")
    except StartAnew:
        await controller.stop()
        raise
    await controller.stop()
    say("stopped")
