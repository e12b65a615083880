"""Three brokers, five, and three again, under load: placed by the rule each time."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from typing import Final

from e2e.kube import until
from e2e.loads import Load, pause_told, under_load
from e2e.release import CLUSTERS, Release

SCALED_S: Final = 300.0
AWAY: Final = 2
REPLACE_AFTER_S: Final = 15


def test_three_five_three(release: Release) -> None:
    with under_load(release, "scaled", partitions=10) as load:
        for brokers in (5, 3):
            with pause_told(load, f"scaled to {brokers} brokers"):
                release.kube.kubectl("scale", f"{CLUSTERS}/{release.name}", f"--replicas={brokers}")
                release.whole(brokers=brokers, timeout_s=SCALED_S)
                until("the pods are as many", partial(has_brokers, release, brokers), 60)
            placed_by_the_rule(release, "scaled", range(brokers))
            if brokers > 3:
                a_broker_stays_away(release, load, brokers)
    # The volumes of brokers that went are kept, until somebody takes them away.
    release.kube.kubectl("delete", "pvc", *(f"data-{release.pod('broker', n)}" for n in (3, 4)))


def a_broker_stays_away(release: Release, load: Load, brokers: int) -> None:
    """Others hold its replicas, by the rule over those that are left; it gets them back."""
    others = [each for each in range(brokers) if each != AWAY]
    replace_after(release, f"{REPLACE_AFTER_S}s")
    nodes = [each["metadata"]["name"] for each in release.kube.list("nodes")]
    try:
        with pause_told(load, f"broker {AWAY} away for more than {REPLACE_AFTER_S} s"):
            # No node takes new pods: the one that is deleted does not come back.
            release.kube.kubectl("cordon", *nodes)
            release.kube.kubectl("delete", "pod", release.pod("broker", AWAY))
            release.says("others hold their replicas", SCALED_S)
            placed_by_the_rule(release, "scaled", others)
    finally:
        release.kube.kubectl("uncordon", *nodes)
        replace_after(release, "30m")
    with pause_told(load, f"broker {AWAY} comes back"):
        until("it gets them back", partial(is_placed, release, "scaled", range(brokers)), SCALED_S)
        release.whole(brokers=brokers)


def replace_after(release: Release, duration: str) -> None:
    wanted = json.dumps({"spec": {"failover": {"replaceAfter": duration}}})
    release.kube.kubectl("patch", CLUSTERS, release.name, "--type=merge", "-p", wanted)


def has_brokers(release: Release, number: int) -> bool:
    return len(release.uids("broker")) == number


def placed_by_the_rule(release: Release, topic: str, brokers: Sequence[int]) -> None:
    for each in release.topic(topic)["partitions"]:
        number = each["partition"]
        assert each["replicas"] == [brokers[(number + j) % len(brokers)] for j in range(3)]
        assert sorted(each["isr"]) == sorted(each["replicas"])


def is_placed(release: Release, topic: str, brokers: Sequence[int]) -> bool:
    try:
        placed_by_the_rule(release, topic, brokers)
    except AssertionError:
        return False
    return True


def test_fewer_brokers_than_replicas_is_refused(release: Release) -> None:
    release.make_topic("three-copies", partitions=2)
    release.kube.kubectl("scale", f"{CLUSTERS}/{release.name}", "--replicas=2")
    print(f"\ne2e refused: {release.says('cannot be placed')}")
    assert has_brokers(release, 3)
    release.kube.kubectl("scale", f"{CLUSTERS}/{release.name}", "--replicas=3")
    release.whole()
    release.kube.kubectl("delete", "topics.tailrace.dev", "three-copies")
