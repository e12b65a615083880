"""Three brokers, five, and three again, under load: placed by the rule each time."""

from __future__ import annotations

from functools import partial

from e2e.kube import until
from e2e.loads import pause_told, under_load
from e2e.release import CLUSTERS, Release

SCALED_S = 300.0


def test_three_five_three(release: Release) -> None:
    with under_load(release, "scaled", partitions=10) as load:
        for brokers in (5, 3):
            with pause_told(load, f"scaled to {brokers} brokers"):
                release.kube.kubectl("scale", f"{CLUSTERS}/{release.name}", f"--replicas={brokers}")
                release.whole(brokers=brokers, timeout_s=SCALED_S)
                until("the pods are as many", partial(has_brokers, release, brokers), 60)
            placed_by_the_rule(release, "scaled", brokers)


def has_brokers(release: Release, number: int) -> bool:
    return len(release.uids("broker")) == number


def placed_by_the_rule(release: Release, topic: str, brokers: int) -> None:
    for each in release.topic(topic)["partitions"]:
        number = each["partition"]
        assert each["replicas"] == [(number + j) % brokers for j in range(3)]
        assert sorted(each["isr"]) == sorted(each["replicas"])


def test_fewer_brokers_than_replicas_is_refused(release: Release) -> None:
    release.make_topic("three-copies", partitions=2)
    release.kube.kubectl("scale", f"{CLUSTERS}/{release.name}", "--replicas=2")

    def told() -> str:
        message = str(release.kube.get(CLUSTERS, release.name)["status"].get("message", ""))
        return message if "cannot be placed" in message else ""

    print(f"\ne2e refused: {until('the cluster says why not', told, 60)}")
    assert has_brokers(release, 3)
    release.kube.kubectl("scale", f"{CLUSTERS}/{release.name}", "--replicas=3")
    release.whole()
    release.kube.kubectl("delete", "topics.tailrace.dev", "three-copies")
