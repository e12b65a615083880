"""A coordinator as its metrics endpoint sees it: whether it is ready, and what a scrape shows.

Groups are looked at when somebody scrapes, some at a time. Where partitions end is asked for all
the time, since how long a group is behind can only be told from when the ends were where.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Final

from tailrace.clock import Clock
from tailrace.coordinator.coordinator import Coordinator
from tailrace.coordinator.group import Group
from tailrace.coordinator.lags import INTERVAL_MS, Ends
from tailrace.coordinator.records import Position
from tailrace.coordinator.runtime import Runtime
from tailrace.coordinator.settings import CoordinatorSettings
from tailrace.errors import GroupNotFound
from tailrace.meta.measured import MeasuredStore
from tailrace.metrics.common import NetworkView, StoreView, lease_trouble
from tailrace.metrics.coordinator import CoordinatorView, put_coordinator
from tailrace.metrics.families import Page
from tailrace.metrics.lag import Lag
from tailrace.model import TopicPartition
from tailrace.transport.measured import MeasuredNetwork

# So many groups are looked at before the loop gets its turn: about a millisecond.
GROUPS_PER_TURN: Final = 200


class ObservedCoordinator:
    """Asks the parts of one coordinator, on its own loop."""

    role = "coordinator"

    def __init__(
        self,
        coordinator: Coordinator,
        settings: CoordinatorSettings,
        store: MeasuredStore,
        network: MeasuredNetwork,
        clock: Clock,
    ) -> None:
        self._coordinator = coordinator
        self._settings = settings
        self._store = store
        self._network = network
        self._clock = clock
        self._ends = Ends(network, clock)
        self.number = settings.coordinator_id

    def why_not_ready(self) -> str:
        """Ready: it listens, is registered, and the lease was renewed in its time."""
        if not self._coordinator.address:
            return "it does not listen yet"
        if self._coordinator.runtime is None:
            return "it looks for brokers: none is registered, or etcd does not answer"
        if self._coordinator.epoch is None:
            return "it is not registered in etcd"
        return lease_trouble(self.store_view(), self._settings.lease_ttl_ms)

    def store_view(self) -> StoreView:
        return replace(self._store.view(), distrust=self._coordinator.verified.problem)

    def network_view(self) -> NetworkView:
        return self._network.view()

    async def run(self) -> None:
        """Ask where partitions end, again and again."""
        while True:
            await self.look()
            await asyncio.sleep(INTERVAL_MS / 1_000)

    async def look(self) -> None:
        """Ask once where the partitions end that groups have positions in."""
        runtime, metadata = self._coordinator.runtime, self._coordinator.metadata
        if runtime is None or metadata is None:
            return
        wanted: set[TopicPartition] = set()
        async for _, positions in _groups(runtime):
            wanted.update(partition for partition, _ in positions)
        await self._ends.ask(wanted, metadata)

    async def fill(self, page: Page) -> None:
        """Nothing before it has found a broker."""
        runtime = self._coordinator.runtime
        if runtime is None:
            return
        states: Counter[tuple[str, str]] = Counter()
        members = kept = unknown = 0
        lags: list[Lag] = []
        async for group, positions in _groups(runtime):
            states[(group.kind, group.facts.phase.value)] += 1
            members += len(group.facts.members)
            kept += len(positions)
            unknown += sum(partition not in self._ends.known for partition, _ in positions)
            lags += self._lags(group, positions)
        owned = list(runtime.owned.values())
        loaded = sum(each.loaded.is_set() for each in owned)
        asked_ms = self._ends.asked_ms
        put_coordinator(
            page,
            CoordinatorView(
                counts=runtime.counts,
                loaded=loaded,
                loading=len(owned) - loaded,
                groups=states,
                members=members,
                positions=kept,
                parked=sum(each.journal.parked for each in owned),
                batches_skipped=runtime.loader.batches_skipped,
                records_skipped=runtime.loader.records_skipped,
                lags=lags,
                lag_unknown=unknown,
                lag_age_ms=None if asked_ms is None else self._clock.monotonic_ms() - asked_ms,
            ),
        )

    def _lags(self, group: Group, positions: list[tuple[TopicPartition, Position]]) -> list[Lag]:
        """How far a group is behind, topic by topic."""
        now_ms = self._clock.monotonic_ms()
        topics: dict[str, tuple[int, int]] = {}
        for partition, position in positions:
            ends = self._ends.known.get(partition)
            if ends is not None:
                records, ms = topics.get(partition.topic, (0, 0))
                topics[partition.topic] = (
                    records + ends.lag(position.offset),
                    max(ms, ends.lag_ms(position.offset, now_ms)),
                )
        return [
            Lag(group.name, group.kind, topic, records, ms)
            for topic, (records, ms) in topics.items()
        ]


async def _groups(
    runtime: Runtime,
) -> AsyncGenerator[tuple[Group, list[tuple[TopicPartition, Position]]], None]:
    """All groups of the shards that are loaded, with their positions, a few at a time."""
    number = 0
    for owned in list(runtime.owned.values()):
        if not owned.loaded.is_set() or owned.lost is not None:
            continue
        for name in owned.shard.names():
            number += 1
            if number % GROUPS_PER_TURN == 0:
                await asyncio.sleep(0)
            try:
                group = owned.shard.group(name)
            except GroupNotFound:
                continue
            found = owned.shard.positions(name, ())
            yield group, [(each, position) for each, position in found if position is not None]
