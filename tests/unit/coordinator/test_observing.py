from __future__ import annotations

import asyncio
from typing import Any

from simulation.cluster import SimCluster
from simulation.loop import LoopClock, SimLoop
from tailrace.coordinator.observing import ObservedCoordinator
from tailrace.coordinator.settings import CoordinatorSettings
from tailrace.meta.measured import MeasuredStore
from tailrace.metrics.families import Page
from tailrace.transport.measured import MeasuredNetwork
from unit.coordinator.world import TOPIC, World, simulate

SETTINGS = CoordinatorSettings(coordinator_id=200)


def test_a_coordinator_is_ready_when_it_is_registered() -> None:
    async def main(loop: SimLoop) -> None:
        cluster = SimCluster(loop, controllers=1, coordinators=1)
        node = cluster.coordinators[0]
        node.start()
        await asyncio.sleep(2)
        assert node.coordinator is not None
        store = MeasuredStore(cluster.etcd.connect("metrics"), LoopClock(loop))
        network = MeasuredNetwork(cluster.client_host("metrics")[1], LoopClock(loop))
        observed = ObservedCoordinator(node.coordinator, SETTINGS, store, network, LoopClock(loop))
        assert "it looks for brokers" in observed.why_not_ready()
        cluster.start_all()
        await asyncio.sleep(5)
        assert observed.why_not_ready() == "it has no lease in etcd"
        await store.grant_lease(SETTINGS.lease_ttl_ms)
        assert observed.why_not_ready() == ""

    SimLoop(1).run(main)


def test_a_scrape_shows_groups_readers_and_how_far_they_are_behind() -> None:
    async def main(world: World) -> None:
        clock = LoopClock(world.loop)
        coordinator = world.cluster.coordinators[0].coordinator
        assert coordinator is not None
        process, host, _ = world.cluster.client_host("metrics")
        observed = ObservedCoordinator(
            coordinator,
            SETTINGS,
            MeasuredStore(world.cluster.etcd.connect("metrics"), clock),
            MeasuredNetwork(host, clock),
            clock,
        )

        async def shown() -> dict[tuple[str, ...], float]:
            page = Page()
            await process.spawn("look", observed.look())
            await observed.fill(page)
            return {
                (each.name.removeprefix("tailrace_"), *each.labels.values()): each.value
                for metric in page.metrics()
                for each in metric.samples
            }

        assert (await world.join("live")).generation == 1
        await world.commit("g", 0)
        await world.commit("query", 3, kind="reader")
        first = await shown()
        assert first[("groups", "consumer", "Empty")] == 1
        assert first[("groups", "reader", "Empty")] == 1
        assert first[("group_members",)] == 1
        assert first[("group_rebalances_total",)] == 1
        assert first[("group_positions",)] == 2
        assert first[("group_lag_records", "g", "consumer", TOPIC)] == 0
        assert first[("group_lag_unknown_partitions",)] == 0
        assert first[("coordinator_shards", "loaded")] > 0

        writer, make = world.cluster.producer("p")

        async def write() -> None:
            producer: Any = make()
            for number in range(5):
                await (await producer.send(TOPIC, b"%d" % number, partition=0))

        await writer.spawn("write", write())
        await shown()
        await asyncio.sleep(20)
        late = await shown()
        assert late[("group_lag_records", "g", "consumer", TOPIC)] == 5
        assert late[("group_lag_records", "query", "reader", TOPIC)] == 2
        assert 20 <= late[("group_lag_seconds", "g", "consumer", TOPIC)] <= 30
        await world.commit("g", 5)
        assert (await shown())[("group_lag_seconds", "g", "consumer", TOPIC)] == 0

    simulate(main)
