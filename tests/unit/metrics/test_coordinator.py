from __future__ import annotations

from tailrace.metrics.coordinator import COORDINATOR, CoordinatorView, put_coordinator
from tailrace.metrics.families import Page
from tailrace.metrics.lag import Lag
from tailrace.metrics.values import CoordinatorCounts


def test_a_coordinator_at_work_fills_all_families() -> None:
    page = Page()
    view = CoordinatorView(
        counts=CoordinatorCounts(),
        loaded=24,
        loading=1,
        groups={("consumer", "Stable"): 2, ("reader", "Empty"): 1},
        members=5,
        positions=12,
        lags=[Lag("g", "consumer", "t", 40, 1_500), Lag("q", "reader", "t", 0, 0)],
        lag_age_ms=2_000,
    )
    put_coordinator(page, view)
    assert {each.name for each in page.metrics()} == {each.name for each in COORDINATOR}
    shown = {
        (each.name.removeprefix("tailrace_"), *each.labels.values()): each.value
        for metric in page.metrics()
        for each in metric.samples
    }
    assert shown[("coordinator_shards", "loading")] == 1
    assert shown[("groups", "consumer", "Stable")] == 2
    assert shown[("group_lag_records", "g", "consumer", "t")] == 40
    assert shown[("group_lag_seconds", "g", "consumer", "t")] == 1.5
    # Spark's queries are shown beside groups.
    assert shown[("group_lag_seconds", "q", "reader", "t")] == 0
    assert shown[("group_lag_age_seconds",)] == 2


def test_ends_that_were_not_asked_for_have_no_age() -> None:
    page = Page()
    put_coordinator(page, CoordinatorView(counts=CoordinatorCounts()))
    assert "tailrace_group_lag_age_seconds" not in {each.name for each in page.metrics()}
