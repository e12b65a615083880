from __future__ import annotations

from typing import Any

import pytest

from tailrace.client.diagnosing import OutOfService
from tailrace.client.group_admin import GroupDescription, GroupMemberDescription, GroupPosition
from tailrace.client.metadata import ClusterPicture, PartitionPicture, TopicPicture
from tailrace.console import showing
from tailrace.errors import ReplicaOffline
from tailrace.model import TopicPartition
from unit.cli.test_diagnosis import condition


def picture(**changed: Any) -> ClusterPicture:
    topic = TopicPicture(
        "id", (PartitionPicture(1, 3, (1, 2), (1,)), PartitionPicture(-1, 4, (2, 1), ()))
    )
    return ClusterPicture(
        **{
            "revision": 7,
            "cluster_id": "c",
            "brokers": {1: "b1:1"},
            "topics": {"t": topic, "old": TopicPicture("o", (), deleting=True)},
            "coordinators": {5: "k:1"},
            "group_shards": ((5, 0), (6, 0)),
            **changed,
        }
    )


def test_a_cluster_with_a_broker_that_is_away() -> None:
    shown = showing.cluster(picture())
    assert [
        (each["id"], each["live"], each["leaders"], each["replicas"]) for each in shown["brokers"]
    ] == [
        (1, True, 1, 2),
        (2, False, 0, 2),
    ]
    (topic,) = shown["topics"]
    assert [each["leader"] for each in topic["partitions"]] == [1, -1]
    assert "offline" in topic["partitions"][1]["health"]
    assert shown["shards_unowned"] == 1


def test_topics_beyond_the_limit_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(showing, "PARTITIONS_SHOWN_MAX", 1)
    shown = showing.cluster(picture())
    assert (shown["topics"], shown["topics_left_out"]) == ([], 1)


def test_a_group_is_behind_by_its_topics() -> None:
    def position(
        number: int, lag: int, lag_ms: int | None, *, stale: bool = False
    ) -> GroupPosition:
        return GroupPosition(
            topic="t",
            partition=number,
            offset=1,
            log_start=0,
            log_end=1 + lag,
            lag=lag,
            lag_ms=lag_ms,
            commit_ms=0,
            metadata="",
            member_id="",
            client_id="",
            host="",
            stale=stale,
        )

    member = GroupMemberDescription(
        member_id="m",
        instance_id="",
        client_id="till",
        host="h",
        partitions=(TopicPartition("t", 0),),
    )
    found = GroupDescription(
        group="g",
        state="Stable",
        kind="consumer",
        protocol="range",
        generation=3,
        coordinator_id=5,
        members=(member,),
        positions=(position(0, 4, 90), position(1, 2, None), position(2, 0, None, stale=True)),
    )
    shown = showing.group(found)
    assert shown["topics"] == [{"topic": "t", "lag": 6, "lag_ms": 90}]
    assert (shown["lag"], shown["lag_ms"]) == (6, 90)
    assert shown["members"] == [{"client_id": "till", "host": "h", "partitions": 1}]


def test_drills_as_kubernetes_lists_them() -> None:
    report = {"verdict": "Passed", "message": "well", "lost": 0, "acknowledged": 5, "runs": [1]}
    listed = {
        "items": [
            {
                "metadata": {"name": "a"},
                "status": {"phase": "Passed", "endedAt": "2026-01-01", "report": report},
            },
            {
                "metadata": {"name": "b"},
                "spec": {"kind": "roll"},
                "status": {"startedAt": "2026-01-02"},
            },
            {"metadata": {"name": "c"}},
        ]
    }
    found = showing.drills(listed)
    assert [each["name"] for each in found] == ["b", "a", "c"]
    assert found[1]["report"] == {"lost": 0, "acknowledged": 5}
    assert found[2]["phase"] == "Pending"


def test_records_are_looked_for_by_words() -> None:
    assert showing.matches("", ("anything",))
    assert showing.matches("TEA seven", ("table-seven", "two teas"))
    assert not showing.matches("tea cake", ("tea",))


def test_l1_l5_what_may_be_stale_and_what_is_out_of_service_is_shown() -> None:
    stale = picture(store_problem="it is empty", store_problem_since_ms=77)
    out = (OutOfService(TopicPartition("t", 0), ReplicaOffline("its disk has failed")),)
    shown = showing.cluster(stale, [condition(2, out_of_service=out, out_of_service_count=1)])
    assert (shown["store_problem"], shown["store_problem_since_ms"]) == ("it is empty", 77)
    first, second = shown["topics"][0]["partitions"]
    assert first["out_of_service"] == {"2": "its disk has failed"}
    assert "replica-out-of-service" in first["health"]
    assert second["out_of_service"] == {}
