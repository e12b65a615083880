"""Topics and the cluster as an operator reads them."""

from __future__ import annotations

import json

import pytest

from tailrace.client.describing import (
    Health,
    describe_cluster,
    describe_topic,
    health_of,
    with_conditions,
)
from tailrace.client.diagnosing import OutOfService
from tailrace.client.metadata import ClusterPicture, PartitionPicture, TopicPicture
from tailrace.errors import ReplicaOffline
from tailrace.model import TopicPartition
from unit.cli.test_diagnosis import condition


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
            "conflict": "",
            "out_of_service": {},
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


def test_l4_a_partition_that_waits_for_a_person_is_not_well() -> None:
    partition = PartitionPicture(-1, 3, (0, 1), (0, 1), conflict="broker 1 knows more")
    topic = describe_topic("t", TopicPicture("id", (partition,)))
    assert Health.NEEDS_DECISION in topic.partitions[0].health
    assert topic.partitions[0].as_dict()["conflict"] == "broker 1 knows more"


def test_l5_a_replica_out_of_service_is_seen_at_its_partition() -> None:
    """In the ISR or not: it counts for nothing, whatever the metadata say."""
    well = PartitionPicture(0, 3, (0, 1), (0, 1))
    topic = describe_topic("t", TopicPicture("id", (well, well)))
    told = condition(
        1,
        out_of_service=(
            OutOfService(TopicPartition("t", 1), ReplicaOffline("its disk has failed")),
            OutOfService(TopicPartition("other", 0), ReplicaOffline("it too")),
        ),
        out_of_service_count=2,
    )
    first, second = with_conditions(topic, [condition(0), told]).partitions
    assert first.health == ()
    assert second.health == (Health.REPLICA_OUT,)
    assert second.as_dict()["out_of_service"] == {"1": "its disk has failed"}
    assert with_conditions(topic, [condition(0)]) == topic
