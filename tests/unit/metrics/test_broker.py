from __future__ import annotations

from tailrace.metrics.broker import (
    BROKER,
    BrokerView,
    DiskFacts,
    FollowerFacts,
    PartitionFacts,
    put_broker,
)
from tailrace.metrics.families import OTHER, Page
from tailrace.metrics.values import BrokerCounts, Traffics


def _leader(topic: str, isr: int, *followers: FollowerFacts, **facts: int) -> PartitionFacts:
    return PartitionFacts(
        topic,
        "leader",
        replicas=3,
        isr=isr,
        min_insync=2,
        log_bytes=facts.get("log_bytes", 100),
        segments=2,
        producers=1,
        uncommitted=facts.get("uncommitted", 0),
        followers=followers,
    )


def _shown(view: BrokerView) -> dict[tuple[str, ...], float]:
    page = Page()
    put_broker(page, view)
    return {
        (each.name.removeprefix("tailrace_"), *each.labels.values()): each.value
        for metric in page.metrics()
        for each in metric.samples
    }


def _full() -> BrokerView:
    counts = BrokerCounts()
    counts.traffic.of("t").bytes_in = 7
    counts.produce_refused["NOT_LEADER"] += 2
    counts.fetch_refused["OFFSET_OUT_OF_RANGE"] += 1
    return BrokerView(
        counts=counts,
        partitions=[
            _leader("t", 3, FollowerFacts(2, 0, 0, connected=True), uncommitted=5),
            _leader("t", 1, FollowerFacts(2, 40, 1_500, connected=True)),
            _leader("t", 2, FollowerFacts(2, None, None, connected=False)),
            PartitionFacts("t", "follower", 3, 1, 2, 50, 1, 0),
        ],
        disks=[DiskFacts("/data", 10, 100, unfit=False), DiskFacts("/new", -1, -1, unfit=True)],
        streams={"produce": 4},
        out_of_service=1,
    )


def test_a_broker_at_work_fills_all_families() -> None:
    page = Page()
    put_broker(page, _full())
    assert {each.name for each in page.metrics()} == {each.name for each in BROKER}


def test_partitions_are_counted_by_what_is_wrong_with_them() -> None:
    shown = _shown(_full())
    assert shown[("replicas", "leader")] == 3
    assert shown[("replicas", "follower")] == 1
    assert shown[("replicas", "offline")] == 0
    # A follower's ISR is hearsay: only leaders count.
    assert shown[("under_replicated_partitions",)] == 2
    assert shown[("under_min_isr_partitions",)] == 1
    assert shown[("at_min_isr_partitions",)] == 1
    assert shown[("replicas_out_of_service",)] == 1
    assert shown[("uncommitted_records_max",)] == 5


def test_topics_are_summed_and_their_worst_is_shown() -> None:
    shown = _shown(_full())
    assert shown[("topic_bytes_in_total", "t")] == 7
    assert shown[("topic_log_bytes", "t")] == 350
    assert shown[("topic_log_segments", "t")] == 7
    assert shown[("topic_replicas", "t")] == 4
    assert shown[("topic_leaders", "t")] == 3
    assert shown[("topic_isr_min", "t")] == 1
    assert shown[("topic_producer_states", "t")] == 3


def test_each_follower_is_shown_where_it_is_worst() -> None:
    shown = _shown(_full())
    assert shown[("follower_lag_records_max", "2")] == 40
    assert shown[("follower_behind_seconds_max", "2")] == 1.5
    assert shown[("follower_away_partitions", "2")] == 1


def test_a_folder_that_was_not_measured_shows_no_room() -> None:
    shown = _shown(_full())
    assert shown[("disk_free_bytes", "/data")] == 10
    assert ("disk_free_bytes", "/new") not in shown
    assert shown[("disk_unfit", "/new")] == 1


def test_what_no_topic_shares_is_not_shown() -> None:
    assert not [labels for labels in _shown(_full()) if OTHER in labels]


def test_topics_beyond_the_limit_are_one() -> None:
    counts = BrokerCounts()
    counts.traffic = Traffics(topics_max=1)
    for topic, size in (("a", 1), ("b", 2), ("c", 3)):
        counts.traffic.of(topic).bytes_in += size
    partitions = [_leader(topic, 3) for topic in ("a", "b", "c")]
    shown = _shown(BrokerView(counts=counts, partitions=partitions))
    assert shown[("topic_bytes_in_total", "a")] == 1
    assert shown[("topic_bytes_in_total", OTHER)] == 5
    assert shown[("topic_log_bytes", OTHER)] == 200
    assert ("topic_log_bytes", "b") not in shown
