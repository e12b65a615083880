from __future__ import annotations

from tailrace.metrics.common import (
    COMMON,
    STORE_SILENCE_MAX_MS,
    Identity,
    NetworkView,
    ProcessView,
    StoreView,
    lease_trouble,
    put_common,
    store_trouble,
)
from tailrace.metrics.families import Page
from tailrace.metrics.values import Calls, Histogram

WHO = Identity(role="broker", number=7, version="1.2")
PROCESS = ProcessView(
    is_ready=True, wall_ms=1_500, lateness=Histogram(), worst_ms=20, scrapes=3, last_scrape_ms=4
)


def test_a_process_with_a_store_and_a_lease_fills_all_families() -> None:
    calls = Calls()
    calls.done(3)
    page = Page()
    store = StoreView(calls={"txn": calls}, silence_ms=1_500, lease_age_ms=500)
    network = NetworkView(calls={"Join": calls}, opened={"Fetch": 4}, open={"Fetch": 1})
    put_common(page, WHO, PROCESS, store, network)
    assert [each.name for each in page.metrics()] == [each.name for each in COMMON]
    values = {
        (each.name, *each.labels.values()): each.value
        for metric in page.metrics()
        for each in metric.samples
    }
    assert values[("tailrace_build_info", "broker", "7", "1.2")] == 1
    assert values[("tailrace_store_silence_seconds",)] == 1.5
    assert values[("tailrace_wall_time_seconds",)] == 1.5
    assert values[("tailrace_lease_age_seconds",)] == 0.5
    assert values[("tailrace_streams_open", "Fetch")] == 1
    assert values[("tailrace_loop_lag_worst_seconds",)] == 0.02


def test_what_is_not_there_is_not_shown() -> None:
    page = Page()
    put_common(page, WHO, PROCESS, StoreView(), NetworkView())
    shown = {each.name for each in page.metrics()}
    assert shown.isdisjoint({"tailrace_lease_age_seconds", "tailrace_store_silence_seconds"})


def test_a_lease_lives_as_long_as_its_time() -> None:
    assert lease_trouble(StoreView(), 5_000) == "it has no lease in etcd"
    assert lease_trouble(StoreView(lease_age_ms=5_000), 5_000) == ""
    assert "renewed 5001 ms ago" in lease_trouble(StoreView(lease_age_ms=5_001), 5_000)


def test_a_store_answers_as_long_as_it_was_heard_of() -> None:
    assert store_trouble(StoreView()) == "etcd has not answered yet"
    assert store_trouble(StoreView(silence_ms=STORE_SILENCE_MAX_MS)) == ""
    assert "not answered for" in store_trouble(StoreView(silence_ms=STORE_SILENCE_MAX_MS + 1))
