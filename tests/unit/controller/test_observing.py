from __future__ import annotations

import asyncio

from simulation.loop import LoopClock
from tailrace.controller.observing import ObservedController
from tailrace.controller.settings import ControllerSettings
from tailrace.metrics.families import Page
from tailrace.transport.measured import MeasuredNetwork
from unit.controller.cluster import Cluster, simulate

SETTINGS = ControllerSettings(controller_id=1)


def test_a_controller_is_ready_while_its_store_answers() -> None:
    async def main(cluster: Cluster) -> None:
        await cluster.start(controllers=1)
        network = MeasuredNetwork(cluster.admin, LoopClock(cluster.loop))
        observed = ObservedController(cluster.active().controller, SETTINGS, network)
        assert observed.why_not_ready() == ""
        answered = observed.store_view().calls["snapshot"].times.count
        assert answered > 0
        cluster.etcd.cut("c1")
        await asyncio.sleep(11)
        assert "etcd has not answered for" in observed.why_not_ready()
        assert observed.store_view().calls["snapshot"].times.count == answered

    simulate(main)


def test_a_scrape_shows_who_reigns_and_what_failed() -> None:
    async def main(cluster: Cluster) -> None:
        await cluster.start(controllers=2)
        await cluster.create("t", partitions=3, replication_factor=3)

        async def shown(number: int) -> dict[tuple[str, ...], float]:
            clock = LoopClock(cluster.loop)
            observed = ObservedController(
                cluster.controllers[number].controller,
                SETTINGS,
                MeasuredNetwork(cluster.admin, clock),
            )
            page = Page()
            await observed.fill(page)
            return {
                (each.name.removeprefix("tailrace_"), *each.labels.values()): each.value
                for metric in page.metrics()
                for each in metric.samples
            }

        active, standby = await shown(1), await shown(2)
        assert (active[("controller_active",)], standby[("controller_active",)]) == (1, 0)
        assert active[("controller_terms_total",)] == 1
        assert active[("cluster_brokers",)] == 3
        assert active[("cluster_partitions",)] == 3
        assert active[("cluster_offline_partitions",)] == 0
        assert active[("controller_commits_total",)] > 0
        assert active[("leader_changes_total",)] == 0
        cluster.brokers[1].process.kill()
        await cluster.until(lambda: all(each.leader != 1 for each in cluster.states().values()))
        await asyncio.sleep(1)
        active = await shown(1)
        assert active[("leader_changes_total",)] == 1
        assert active[("cluster_brokers",)] == 2
        assert active[("cluster_under_replicated_partitions",)] == 3
        assert active[("controller_queue", "urgent")] == 0

    simulate(main)
