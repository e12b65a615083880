"""A broker as its metrics endpoint sees it: whether it is ready, and what a scrape shows.

All partitions are looked at when somebody scrapes, some at a time, so that nobody waits for it.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Final

from tailrace.broker.broker import Broker
from tailrace.broker.disks import Disk
from tailrace.broker.hosted import Hosted
from tailrace.broker.replicas import Replicas
from tailrace.broker.settings import BrokerSettings
from tailrace.clock import Clock
from tailrace.meta.measured import MeasuredStore
from tailrace.metrics.broker import (
    BrokerView,
    DiskFacts,
    FollowerFacts,
    PartitionFacts,
    put_broker,
)
from tailrace.metrics.common import NetworkView, StoreView, lease_trouble
from tailrace.metrics.families import Page
from tailrace.replication.leader import UNKNOWN, FollowerProgress
from tailrace.transport.measured import MeasuredNetwork

# So many partitions are looked at before the loop gets its turn: about a millisecond.
PARTITIONS_PER_TURN: Final = 64


class ObservedBroker:
    """Asks the parts of one broker, on its own loop."""

    role = "broker"

    def __init__(
        self,
        broker: Broker,
        settings: BrokerSettings,
        store: MeasuredStore,
        network: MeasuredNetwork,
        clock: Clock,
    ) -> None:
        self._broker = broker
        self._settings = settings
        self._store = store
        self._network = network
        self._clock = clock
        self.number = settings.broker_id

    def why_not_ready(self) -> str:
        """Ready: logs recovered, listening, registered, and the lease was renewed in its time."""
        return self._broker.why_not_ready() or lease_trouble(
            self.store_view(), self._settings.lease_ttl_ms
        )

    def store_view(self) -> StoreView:
        return replace(self._store.view(), distrust=self._broker.verified.problem)

    def network_view(self) -> NetworkView:
        return self._network.view()

    async def run(self) -> None:
        """Nothing has to be done between two scrapes."""

    async def fill(self, page: Page) -> None:
        """Nothing before the logs are recovered."""
        replicas = self._broker.replicas
        if replicas is None:
            return
        partitions = await self._partitions(replicas)
        # As of now, not as of when the first partition was looked at.
        replicas.counts.traffic.keep_only({each.partition.topic for each in replicas.hosted()})
        put_broker(page, self._view(replicas, partitions))

    async def _partitions(self, replicas: Replicas) -> list[PartitionFacts]:
        found = []
        for number, hosted in enumerate(replicas.hosted(), 1):
            found.append(_facts(hosted, self._clock.monotonic_ms()))
            if number % PARTITIONS_PER_TURN == 0:
                await asyncio.sleep(0)
        return found

    def _view(self, replicas: Replicas, partitions: list[PartitionFacts]) -> BrokerView:
        broker, settings = self._broker, self._settings
        produce, fetch, cleaning = broker.producing, broker.fetching, broker.housekeeping
        return BrokerView(
            counts=replicas.counts,
            partitions=partitions,
            disks=[_disk(each) for each in broker.disks.disks.values()] if broker.disks else [],
            streams=broker.clients.kinds(),
            cut_off=broker.clients.cut_off,
            out_of_service=len(replicas.out_of_service),
            produce_waiting=len(replicas.waiting),
            produce_bytes=produce.budget.bytes if produce is not None else 0,
            produce_bytes_max=settings.produce_bytes_max,
            produce_overloads=produce.budget.refused if produce is not None else 0,
            fetch_bytes=fetch.sluice.bytes if fetch is not None else 0,
            fetch_bytes_max=settings.fetch_bytes_max,
            fetch_waiting=fetch.sluice.waiting if fetch is not None else 0,
            compaction_passes=cleaning.passes if cleaning is not None else 0,
            compaction_read_bytes=cleaning.bytes_before if cleaning is not None else 0,
            compaction_written_bytes=cleaning.bytes_after if cleaning is not None else 0,
            is_compacting=cleaning is not None and cleaning.now_cleaning is not None,
            strays=replicas.strays.replicas,
            stray_bytes=replicas.strays.size_bytes,
        )


def _facts(hosted: Hosted, now_ms: int) -> PartitionFacts:
    machine, log = hosted.machine, hosted.log
    progress = machine.followers
    return PartitionFacts(
        topic=hosted.partition.topic,
        role=machine.role.value,
        replicas=len(machine.replicas),
        isr=len(machine.isr),
        min_insync=machine.min_insync,
        log_bytes=log.size_bytes,
        segments=len(log.segments),
        producers=len(log.producers),
        uncommitted=max(log.log_end - machine.high_watermark, 0) if progress else 0,
        followers=tuple(_follower(each, log.log_end, now_ms) for each in progress),
    )


def _disk(disk: Disk) -> DiskFacts:
    is_unfit = disk.is_unfit or bool(disk.failure)
    return DiskFacts(disk.path, disk.free_bytes, disk.total_bytes, is_unfit)


def _follower(progress: FollowerProgress, log_end: int, now_ms: int) -> FollowerFacts:
    lag = None if progress.log_end == UNKNOWN else max(log_end - progress.log_end, 0)
    behind_ms = None
    if progress.caught_up_ms is not None:
        # One that has everything was caught up just now, though nobody noted it.
        behind_ms = 0 if lag == 0 else max(now_ms - progress.caught_up_ms, 0)
    return FollowerFacts(int(progress.broker_id), lag, behind_ms, progress.connected)
