"""What a query asks of a cluster, and how it is told what is wrong."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest

from tailrace.errors import UnknownTopic
from tailrace_spark.cluster import Cluster, ClusterFailed, cluster_for
from tailrace_spark.options import InvalidOption, Kind, Place, Places, Selection
from unit.spark.conftest import Model

EVERYTHING = Selection(option="subscribePattern", pattern=".*")


def _cluster(model: Model) -> Cluster:
    return cluster_for(model.bootstrap, timeout_ms=10_000)


def test_topics_by_name_and_by_pattern(model: Model) -> None:
    model.create("orders", 3)
    model.create("other", append_time=True)
    found = _cluster(model).topics(EVERYTHING)
    assert {name: each.partitions for name, each in found.items()} == {
        "orders": (0, 1, 2),
        "other": (0,),
    }
    assert [each.is_append_time for each in found.values()] == [False, True]
    one = _cluster(model).topic("orders", "topic")
    assert one == found["orders"]


def test_a_topic_that_is_not_there(model: Model) -> None:
    with pytest.raises(UnknownTopic, match=f"subscribe: there is no topic 'x'.*{model.bootstrap}"):
        _cluster(model).topics(Selection(option="subscribe", names=("x",)))


def test_positions_of_all_kinds(model: Model) -> None:
    model.create("t", 4)
    for number in range(4):
        model.fill("t", number, 5, 5)
    model.log("t", 3).log_start = 5
    cluster = _cluster(model)
    topics = cluster.topics(EVERYTHING)
    places = Places(
        "x",
        None,
        {
            "t": {
                0: Place(Kind.OFFSET, 3),
                1: Place(Kind.LATEST),
                2: Place(Kind.TIME, 11),
                3: Place(Kind.EARLIEST),
            }
        },
    )
    found = cluster.positions(topics, places, too_late_is_end=False)
    assert [at.offset for _, _, at in found.each()] == [3, 10, 6, 5]
    assert [at.offset for _, _, at in cluster.latest(topics).each()] == [10] * 4


def test_a_time_that_no_record_has(model: Model) -> None:
    model.create("t")
    model.fill("t", 0, 4)
    cluster = _cluster(model)
    late = Places("startingTimestamp", Place(Kind.TIME, 10**6))
    with pytest.raises(InvalidOption, match=r"startingTimestamp: t has no record.*\[0\]"):
        cluster.positions(cluster.topics(EVERYTHING), late, too_late_is_end=False)
    found = cluster.positions(cluster.topics(EVERYTHING), late, too_late_is_end=True)
    assert [at.offset for _, _, at in found.each()] == [4]


def test_nobody_there_is_told_with_the_address_in_time() -> None:
    with socket.socket() as taken:
        # Bound and not listening: connections are refused, and nobody else gets the port.
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ClusterFailed, match=rf"bootstrap.servers={address}: no broker"):
            Cluster(address, timeout_ms=500).topics(EVERYTHING)


def test_one_cluster_for_a_process(model: Model) -> None:
    mine = _cluster(model)
    assert _cluster(model) is mine
    assert cluster_for(model.bootstrap, timeout_ms=9_999) is not mine


def test_a_fork_gets_one_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = cluster_for("127.0.0.1:1", timeout_ms=5)
    monkeypatch.setattr("tailrace_spark.cluster.getpid", lambda: -5)
    other = cluster_for("127.0.0.1:1", timeout_ms=5)
    assert other is not mine
    monkeypatch.undo()
    assert cluster_for("127.0.0.1:1", timeout_ms=5) not in {mine, other}


def test_a_process_that_only_plans_imports_no_more_than_it_needs() -> None:
    """Spark starts one for each streaming query, and everybody waits for it."""
    needless = (
        "grpc",
        "tailrace.client.consumer",
        "tailrace.client.group_admin",
        "tailrace.client.producer",
        "tailrace.meta.keys",
        "tailrace.transport.http2.server",
        "tailrace_spark.writing",
    )
    code = (
        "import sys, tailrace_spark.source, tailrace_spark.cluster; "
        f"print([each for each in {needless!r} if each in sys.modules])"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert run.stdout.strip() == "[]"
