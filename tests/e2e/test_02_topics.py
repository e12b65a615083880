"""Topics as resources, and what is refused, with a sentence."""

from __future__ import annotations

from typing import Any

import pytest

from e2e.kube import CommandFailed, condition, until
from e2e.release import TOPICS, Release, topic_resource


def test_a_topic_follows_its_resource(release: Release) -> None:
    made = release.make_topic("orders", partitions=3)
    assert made["status"]["partitions"] == 3
    assert made["status"]["isr"] == "9/9"
    shown = release.kube.kubectl("get", TOPICS, "orders")
    assert shown.splitlines()[0].split() == [
        *("NAME", "CLUSTER", "PARTITIONS", "REPLICAS", "ISR", "READY", "MESSAGE", "AGE")
    ]
    spec = {"partitions": 5, "config": {"retention.ms": 86400000}}
    release.kube.apply(topic_resource("orders", cluster=release.name, **spec))

    def changed() -> bool:
        now = release.topic("orders")
        return len(now["partitions"]) == 5 and now["config"].get("retention.ms") == "86400000"

    until("the topic has changed", changed, 60)
    release.kube.kubectl("delete", TOPICS, "orders")
    until("the topic is gone", lambda: "orders" not in listed(release), 60)


def test_what_the_operator_did_not_make_it_does_not_delete(release: Release) -> None:
    release.tailrace("topics", "create", "by-hand", "--partitions", "1", "--json")
    release.kube.apply(topic_resource("by-hand", cluster=release.name, partitions=1))
    until(
        "the resource says how the topic is",
        lambda: (release.kube.get(TOPICS, "by-hand").get("status") or {}).get("partitions") == 1,
        60,
    )
    release.kube.kubectl("delete", TOPICS, "by-hand")
    release.make_topic("after", partitions=1)
    assert "by-hand" in listed(release)
    release.kube.kubectl("delete", TOPICS, "after")
    release.tailrace("topics", "delete", "by-hand", "--yes", "--json")


def listed(release: Release) -> str:
    name = release.pod("broker", 0)
    address = f"TAILRACE_BOOTSTRAP={release.bootstrap}"
    return release.kube.kubectl("exec", name, "--", "env", address, "tailrace", "topics", "list")


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ({"partitions": 0}, "spec.partitions in body should be greater than or equal to 1"),
        ({"topicName": "a/b"}, "spec.topicName in body should match"),
        ({"cluster": ""}, "spec.cluster in body should be at least 1 chars long"),
    ],
)
def test_the_api_refuses(release: Release, spec: dict[str, Any], sentence: str) -> None:
    with pytest.raises(CommandFailed, match="is invalid") as refused:
        release.kube.apply(topic_resource("bad", **{"cluster": release.name, **spec}))
    assert sentence in str(refused.value)


def test_the_api_refuses_fewer_partitions(release: Release) -> None:
    release.make_topic("shrinks", partitions=3)
    with pytest.raises(CommandFailed, match="more partitions, but not fewer"):
        release.kube.apply(topic_resource("shrinks", cluster=release.name, partitions=2))
    release.kube.kubectl("delete", TOPICS, "shrinks")


@pytest.mark.parametrize(
    ("name", "spec", "sentence"),
    [
        ("too-many", {"replicas": 7}, "replica"),
        ("no-such-key", {"config": {"retention.moons": 3}}, "retention.moons"),
        ("no-cluster", {"cluster": "nowhere"}, "there is no Cluster 'nowhere'"),
        ("ours", {"topicName": "__mine"}, "begins with two underscores"),
    ],
)
def test_the_status_says_why_not(
    release: Release, name: str, spec: dict[str, Any], sentence: str
) -> None:
    release.kube.apply(topic_resource(name, **{"cluster": release.name, "partitions": 1, **spec}))

    def told() -> str:
        found = release.kube.get(TOPICS, name)
        is_refused = condition(found, "Ready") == "False"
        message = str((found.get("status") or {}).get("message", ""))
        return message if is_refused and sentence in message else ""

    print(f"\ne2e refused: {until(f'{name} is refused', told, 60)}")
    release.kube.kubectl("delete", TOPICS, name)
