from __future__ import annotations

from tailrace.metrics.controller import (
    CONTROLLER,
    ClusterView,
    PartitionTally,
    put_controller,
)
from tailrace.metrics.families import Page
from tailrace.metrics.values import ControllerCounts


def _shown(page: Page) -> dict[tuple[str, ...], float]:
    return {
        (each.name.removeprefix("tailrace_"), *each.labels.values()): each.value
        for metric in page.metrics()
        for each in metric.samples
    }


def test_the_active_controller_shows_the_cluster() -> None:
    page, counts = Page(), ControllerCounts()
    counts.leader_changes = 4
    cluster = ClusterView(
        epoch=9,
        brokers=3,
        tally=PartitionTally(60, offline=1, under_replicated=2, under_min_isr=1, not_preferred=5),
        queue={"urgent": 1, "requests": 0, "orders": 7},
    )
    put_controller(page, counts, cluster)
    assert {each.name for each in page.metrics()} == {each.name for each in CONTROLLER}
    shown = _shown(page)
    assert shown[("controller_active",)] == 1
    assert shown[("controller_epoch",)] == 9
    assert shown[("controller_queue", "orders")] == 7
    assert shown[("leader_changes_total",)] == 4
    assert shown[("cluster_partitions",)] == 60
    assert shown[("cluster_offline_partitions",)] == 1
    assert shown[("cluster_under_min_isr_partitions",)] == 1


def test_one_that_stands_by_shows_nothing_of_the_cluster() -> None:
    page = Page()
    put_controller(page, ControllerCounts(), None)
    shown = _shown(page)
    assert shown[("controller_active",)] == 0
    assert not [name for name, *_ in shown if name.startswith("cluster_")]
