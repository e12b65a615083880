"""Resources as people write them."""

from __future__ import annotations

import pytest

from tailrace_operator.spec import (
    InvalidSpec,
    TopicSpec,
    read_cluster,
    read_duration,
    read_topic,
)

SPEC = {"image": "tailrace:1", "etcd": {"endpoints": ["etcd:2379"]}}


def test_a_short_spec_has_sane_defaults() -> None:
    spec = read_cluster("events", "prod", SPEC)
    assert (spec.brokers.replicas, spec.controllers.replicas, spec.coordinators.replicas) == (
        3,
        2,
        2,
    )
    assert spec.storage.size == "10Gi"
    assert spec.etcd_namespace == "/prod/events"
    assert spec.bootstrap == "events-bootstrap.prod.svc:9092"
    assert spec.replace_after_s == 1_800


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"image": ""}, "spec.image is empty"),
        ({"etcd": {}}, "names no etcd"),
        ({"brokers": {"settings": {"broker.id": 3}}}, "broker.id is set by the operator"),
        ({"failover": {"replaceAfter": "soon"}}, "'soon' is no duration"),
    ],
)
def test_what_cannot_be_is_told_in_a_sentence(change: dict[str, object], why: str) -> None:
    with pytest.raises(InvalidSpec, match=why):
        read_cluster("events", "prod", {**SPEC, **change})


def test_durations() -> None:
    assert [read_duration(each) for each in ("90s", "30m", "2h", "1d")] == [90, 1800, 7200, 86_400]


def test_a_topic_is_named_by_its_resource_unless_told_otherwise() -> None:
    assert read_topic("orders", {"cluster": "c", "config": {"retention.ms": 5}}) == TopicSpec(
        cluster="c", topic="orders", partitions=1, replicas=0, config={"retention.ms": "5"}
    )
    assert read_topic("orders", {"cluster": "c", "topicName": "Orders_v2"}).topic == "Orders_v2"


@pytest.mark.parametrize(
    ("name", "spec", "why"),
    [
        ("a", {"cluster": "c", "topicName": "no/slash"}, "spec.topicName"),
        ("a", {"cluster": "c", "topicName": "__consumer_offsets"}, "Tailrace's own"),
        ("a", {}, "spec.cluster is empty"),
    ],
)
def test_a_topic_that_cannot_be(name: str, spec: dict[str, str], why: str) -> None:
    with pytest.raises(InvalidSpec, match=why):
        read_topic(name, spec)
