"""What the console shows, as one value for JSON: brokers, topics, groups. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from tailrace.client.describing import TopicDescription, describe_topic, with_conditions
from tailrace.client.diagnosing import BrokerCondition
from tailrace.client.group_admin import GroupDescription
from tailrace.client.metadata import ClusterPicture

PARTITIONS_SHOWN_MAX: Final = 5_000
"""More would make every push too large; topics beyond it are counted, not shown."""


def cluster(picture: ClusterPicture, conditions: Sequence[BrokerCondition] = ()) -> dict[str, Any]:
    """The cluster at one revision, and what brokers told, as the map and the tables need it."""
    topics: list[dict[str, Any]] = []
    left_out, partitions = 0, 0
    for name in sorted(picture.topics):
        topic = picture.topics[name]
        if topic.deleting:
            continue
        partitions += len(topic.partitions)
        if partitions > PARTITIONS_SHOWN_MAX:
            left_out += 1
            continue
        topics.append(_topic(with_conditions(describe_topic(name, topic), conditions)))
    return {
        "cluster_id": picture.cluster_id,
        "revision": picture.revision,
        "store_problem": picture.store_problem,
        "store_problem_since_ms": picture.store_problem_since_ms,
        "controller_id": picture.controller_id,
        "controller": picture.controller,
        "coordinators": [
            {"id": number, "address": address}
            for number, address in sorted(picture.coordinators.items())
        ],
        "shards": len(picture.group_shards),
        "shards_unowned": sum(
            owner not in picture.coordinators for owner, _ in picture.group_shards
        ),
        "brokers": _brokers(picture),
        "topics": topics,
        "topics_left_out": left_out,
    }


def _brokers(picture: ClusterPicture) -> list[dict[str, Any]]:
    """Those that are registered, and those that replicas are on."""
    held: dict[int, int] = {}
    led: dict[int, int] = {}
    for topic in picture.topics.values():
        for each in topic.partitions:
            led[each.leader] = led.get(each.leader, 0) + 1
            for broker in each.replicas:
                held[broker] = held.get(broker, 0) + 1
    return [
        {
            "id": broker,
            "address": picture.brokers.get(broker, ""),
            "rack": picture.racks.get(broker, ""),
            "live": broker in picture.brokers,
            "leaders": led.get(broker, 0),
            "replicas": held.get(broker, 0),
        }
        for broker in sorted({*picture.brokers, *held})
    ]


def _topic(topic: TopicDescription) -> dict[str, Any]:
    return {
        "name": topic.topic,
        "min_insync": topic.min_insync_replicas,
        "config": topic.config,
        "partitions": [
            {
                "leader": each.leader,
                "epoch": each.leader_epoch,
                "replicas": list(each.replicas),
                "isr": list(each.isr),
                "health": [health.value for health in each.health],
                "adding": list(each.adding),
                "loss": each.loss,
                "conflict": each.conflict,
                "out_of_service": {str(broker): why for broker, why in each.out_of_service.items()},
            }
            for each in topic.partitions
        ],
    }


def group(found: GroupDescription) -> dict[str, Any]:
    """One group: how far it is behind in each of its topics."""
    topics: dict[str, dict[str, Any]] = {}
    for each in found.positions:
        if each.stale:
            continue
        about = topics.setdefault(each.topic, {"topic": each.topic, "lag": 0, "lag_ms": 0})
        about["lag"] += max(each.lag, 0)
        about["lag_ms"] = max(about["lag_ms"], each.lag_ms or 0)
    return {
        "group": found.group,
        "kind": found.kind,
        "state": found.state,
        "generation": found.generation,
        "members": [
            {
                "client_id": each.client_id,
                "host": each.host,
                "partitions": len(each.partitions or ()),
            }
            for each in found.members
        ],
        "lag": found.lag,
        "lag_ms": max((each["lag_ms"] for each in topics.values()), default=0),
        "topics": sorted(topics.values(), key=lambda each: str(each["topic"])),
    }


def drills(listed: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The reports in what `kubectl get drills -o json` gives, the last first."""
    items: Sequence[Any] = listed.get("items") or [listed]
    found = [_drill(each) for each in items if isinstance(each, dict)]
    return sorted(found, key=lambda each: str(each["ended"] or each["started"]), reverse=True)


def _drill(drill: Mapping[str, Any]) -> dict[str, Any]:
    spec, status = drill.get("spec") or {}, drill.get("status") or {}
    report = status.get("report") or {}
    return {
        "name": (drill.get("metadata") or {}).get("name", ""),
        "kind": spec.get("kind", ""),
        "cluster": spec.get("cluster", ""),
        "phase": status.get("phase", "Pending"),
        "started": status.get("startedAt", ""),
        "ended": status.get("endedAt", ""),
        "report": {
            key: value
            for key, value in report.items()
            # These two are beside it.
            if _is_plain(value) and key not in {"verdict", "message"}
        },
        "message": status.get("message", ""),
    }


def _is_plain(value: object) -> bool:
    return isinstance(value, str | int | float | bool)


def matches(search: str, texts: Iterable[str]) -> bool:
    """Whether these are looked for: all words stand in them, whatever their case."""
    together = "\n".join(texts).lower()
    return all(word in together for word in search.lower().split())
