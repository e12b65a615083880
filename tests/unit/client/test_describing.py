"""Topics and the cluster as an operator reads them."""

from __future__ import annotations

import json

import pytest

from tailrace.client.describing import Health, describe_cluster, describe_topic, health_of
from tailrace.client.metadata import ClusterPicture, PartitionPicture, TopicPicture


@pytest.mark.parametrize(
    ("leader", "isr", "expected"),
    [
        (0, (0, 1, 2), ()),
        (1, (0, 1, 2), ("leader-not-preferred",)),
        (0, (0, 1), ("under-replicated",)),
        (2, (2,), ("under-replicated", "under-min-isr", "leader-not-preferred")),
        (-1, (0,), ("offline", "under-replicated", "under-min-isr")),
    ],
)
def test_health(leader: int, isr: tuple[int, ...], expected: tuple[str, ...]) -> None:
    assert health_of(PartitionPicture(leader, 3, (0, 1, 2), isr), 2) == expected


@pytest.mark.parametrize(
    ("replicas", "config", "expected"),
    [
        (3, {}, 2),
        (2, {}, 1),
        (3, {"min.insync.replicas": "3"}, 3),
        (3, {"min.insync.replicas": "x"}, 2),
    ],
)
def test_how_many_must_be_in_sync(replicas: int, config: dict[str, str], expected: int) -> None:
    brokers = tuple(range(replicas))
    topic = TopicPicture("id", (PartitionPicture(0, 0, brokers, brokers),), config)
    assert describe_topic("t", topic).min_insync_replicas == expected


def test_everything_can_be_told_as_json() -> None:
    topic = TopicPicture("id", (PartitionPicture(1, 4, (0, 1), (1,), (0,)),))
    assert json.loads(json.dumps(describe_topic("t", topic).as_dict()))["partitions"] == [
        {
            "partition": 0,
            "leader": 1,
            "leader_epoch": 4,
            "replicas": [0, 1],
            "isr": [1],
            "elr": [0],
            "health": ["under-replicated", "leader-not-preferred"],
            "adding": [],
            "removing": [],
            "loss": "",
        }
    ]
    cluster = ClusterPicture(
        revision=9,
        cluster_id="c",
        brokers={1: "b:2", 0: "a:1"},
        controller="x:3",
        controller_id=7,
        topics={"t": topic},
        racks={0: "left"},
    )
    found = describe_cluster(cluster)
    assert found.health[Health.UNDER_REPLICATED] == 1
    told = json.loads(json.dumps(found.as_dict()))
    assert told["brokers"] == [
        {"broker_id": 0, "address": "a:1", "rack": "left", "leaders": 0, "replicas": 1},
        {"broker_id": 1, "address": "b:2", "rack": "", "leaders": 1, "replicas": 1},
    ]
    assert told["health"]["offline"] == 0
