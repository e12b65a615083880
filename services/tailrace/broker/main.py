"""A broker in a process of its own: the real ports, put together and run until a signal comes.

Nothing is decided here. What ends the broker unasked ends the process with EXIT_BROKEN.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Final

from tailrace.broker.broker import Broker
from tailrace.broker.observing import ObservedBroker
from tailrace.broker.settings import BrokerSettings
from tailrace.clock import Clock, SystemClock
from tailrace.log.disk_faults import FaultsFile, FaultyFiles
from tailrace.log.files import Files, OsFiles
from tailrace.log.report import ManagerReport
from tailrace.meta.measured import MeasuredStore
from tailrace.meta.settings import EtcdSettings, open_store
from tailrace.metrics.endpoint import observing
from tailrace.metrics.watchdog import watched
from tailrace.process import StartAnew, open_files, until_stopped
from tailrace.runtime import Tasks, ThreadBlocking
from tailrace.tracing import open_tracer
from tailrace.transport.addresses import metrics_socket
from tailrace.transport.budget import BudgetLimits
from tailrace.transport.http2.network import Http2Network
from tailrace.transport.limits import ServerLimits
from tailrace.transport.links import SocketLinks
from tailrace.transport.measured import MeasuredNetwork

THREADS_MAX: Final = 8
FILES_SHARE: Final = 2
"""Of the files and connections that a process may have, logs get one in so many."""


async def run_broker(
    settings: BrokerSettings,
    etcd: EtcdSettings,
    stop: asyncio.Event,
    say: Callable[[str], None],
) -> None:
    """Be a broker until `stop` is set; ServiceFailed when it cannot go on."""
    settings = within_limits(settings, open_files().max, say)
    clock = SystemClock()
    store = MeasuredStore(open_store(etcd), clock)
    blocking = ThreadBlocking(threads_max=THREADS_MAX)
    wire = Http2Network(server_limits(settings))
    network = MeasuredNetwork(wire, clock, wire.connections)
    name = f"broker-{settings.broker_id}"
    tracer = open_tracer(settings.tracing, service="tailrace-broker", instance=name, rng=Random())
    broker = Broker(
        settings,
        files=disk_files(settings, clock),
        store=store,
        network=network,
        links=lambda manager: SocketLinks(manager.storage.cache),
        clock=clock,
        blocking=blocking,
        rng=Random(),
        new_id=lambda: str(uuid.uuid4()),
        say=say,
        store_view=store.view,
        tracer=tracer,
    )
    observed = ObservedBroker(broker, settings, store, network, clock)
    network.why_not_ready = observed.why_not_ready
    sock = await metrics_socket(settings.metrics_listen)
    with watched(clock, say, limit_ms=settings.loop_stall_warn_ms) as watchdog:
        async with observing(observed, clock, sock, say, watchdog):
            await _run(broker, stop, say)
    await store.close()
    blocking.close()
    if tracer is not None:
        tracer.close()


async def _run(broker: Broker, stop: asyncio.Event, say: Callable[[str], None]) -> None:
    tasks = Tasks(lambda _, __: None)
    if await _started(broker, tasks, stop, say):
        try:
            await until_stopped(stop, broker.failed.wait(), lambda: broker.failure)
        except StartAnew:
            # Nobody to hand over to: all brokers do the same.
            await broker.stop()
            raise
        await broker.hand_over()
    await broker.stop()
    say("stopped")
    await tasks.close()


def within_limits(
    settings: BrokerSettings, files_max: int, say: Callable[[str], None]
) -> BrokerSettings:
    """The settings, with no more files of logs open than the process can spare."""
    folders, share = settings.folders, max(files_max // FILES_SHARE, 16)
    if folders.open_files_max <= share:
        return settings
    say(
        f"open.files.max={folders.open_files_max} is above what the process may have: "
        f"{share} of {files_max} it is (ulimit -n)"
    )
    return replace(settings, folders=replace(folders, open_files_max=share))


def disk_files(settings: BrokerSettings, clock: Clock) -> Files:
    """The file system; one with faults when that was asked for."""
    files = OsFiles()
    if not settings.debug_disk_faults:
        return files
    return FaultyFiles(files, FaultsFile(files, settings.debug_disk_faults, clock))


def server_limits(settings: BrokerSettings) -> ServerLimits:
    """What the broker's server lets in."""
    return ServerLimits(
        connections_max=settings.max_connections,
        connections_per_ip_max=settings.max_connections_per_ip,
        streams_per_connection_max=settings.max_streams_per_connection,
        request_bytes_max=settings.socket_request_max_bytes,
        idle_ms=settings.connections_max_idle_ms,
        budget=BudgetLimits(
            bytes_max=settings.queued_max_request_bytes, calls_max=settings.max_streams
        ),
    )


async def _started(
    broker: Broker, tasks: Tasks, stop: asyncio.Event, say: Callable[[str], None]
) -> bool:
    """Start it; False when it was stopped before it was up."""
    starting = tasks.spawn("start", broker.start())
    waiting = tasks.spawn("stop before the start", stop.wait())
    await asyncio.wait([starting, waiting], return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        starting.cancel()
        await asyncio.wait([starting])
        return False
    waiting.cancel()
    if starting.exception() is not None:
        await broker.stop()
    for line in _told(starting.result()):
        say(line)
    say(f"listening on {broker.address}")
    return True


def _told(report: ManagerReport) -> list[str]:
    how = "after a clean end" if report.clean else "after a crash"
    if report.tail_may_be_lost:
        how += " of the machine: what was not synced may be gone"
    return [
        f"{len(report.opened)} logs opened {how}",
        *report.notes,
        *(f"{path} cannot be used: {why}" for path, why in report.failed.items()),
        *(f"{partition} is damaged: {error}" for partition, error in report.damaged.items()),
    ]
