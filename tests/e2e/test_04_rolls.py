"""Upgrades: what was changed rolls everything, whichever operator dies meanwhile."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from functools import partial

import pytest

from e2e.kube import CommandFailed, Object, until
from e2e.loads import pause_told, under_load
from e2e.release import CHART, CLUSTERS, Release

ROLLED_S = 400.0
GROWN = "2Gi"


def test_f24_an_upgrade_rolls_one_at_a_time_though_the_operator_is_killed(release: Release) -> None:
    before = release.uids("broker")
    seen: dict[str, set[str]] = {name: {uid} for name, uid in before.items()}
    with under_load(release, "upgrade") as load:
        with pause_told(load, "helm upgrade, acting operator of two killed in mid-roll"):
            release.upgrade(
                {
                    "cluster.brokers.settings": {"segment.bytes": 67108864},
                    "operator.replicas": 2,
                }
            )
            until("the roll is under way", lambda: looked(release, seen) > len(before), 120)
            release.kube.kubectl("rollout", "status", f"deployment/{release.name}-operator")
            another_takes_over(release)
            until(
                "every broker was replaced",
                lambda: looked(release, seen) == 2 * len(before),
                ROLLED_S,
            )
            release.whole()
        # Each once: nobody begins a roll anew.
        assert looked(release, seen) == 2 * len(before)


@pytest.mark.needs("CONTAINER_KILL")
def test_f24_a_roll_goes_on_though_its_operator_dies_by_sigkill(release: Release) -> None:
    """Nobody gives up a lease, and nothing is put in order: the process is gone in an instant."""
    before = release.uids("broker")
    seen: dict[str, set[str]] = {name: {uid} for name, uid in before.items()}
    with under_load(release, "sigkill") as load:
        with pause_told(load, "roll, acting operator of two killed by SIGKILL"):
            release.upgrade({"cluster.brokers.settings": {"segment.bytes": 33554432}})
            until("the roll is under way", lambda: looked(release, seen) > len(before), 120)
            kill_acting(release)
            until(
                "every broker was replaced",
                lambda: looked(release, seen) == 2 * len(before),
                ROLLED_S,
            )
            release.whole()
        assert looked(release, seen) == 2 * len(before)


def kill_acting(release: Release) -> None:
    """SIGKILL to the process of the operator that acts, as the kernel does when memory ends."""
    pod = acting(release)
    lease = release.kube.get("lease", f"{release.name}-operator")["spec"]
    container = str(operator(release, pod)["containerID"]).rpartition("/")[2]
    began = time.monotonic()
    subprocess.run(
        ["bash", "-c", os.environ["CONTAINER_KILL"]],
        env={**os.environ, "CONTAINER": container},
        check=True,
        timeout=30,
    )

    def others() -> bool:
        now = release.kube.get("lease", f"{release.name}-operator")["spec"]
        return now.get("holderIdentity") not in {None, lease["holderIdentity"]}

    until("another process acts", others, 60)
    print(f"\ne2e operator killed by SIGKILL: another acts after {time.monotonic() - began:.0f} s")
    ended = operator(release, pod)["lastState"]["terminated"]
    assert ended["exitCode"] == 128 + signal.SIGKILL


def operator(release: Release, pod: str) -> Object:
    """What Kubernetes says of the container of an operator."""
    found: Object = release.kube.get("pod", pod)["status"]["containerStatuses"][0]
    return found


def looked(release: Release, seen: dict[str, set[str]]) -> int:
    """How many different pods of brokers there have been."""
    for name, uid in release.uids("broker").items():
        seen.setdefault(name, set()).add(uid)
    return sum(map(len, seen.values()))


def another_takes_over(release: Release) -> None:
    """Kill the operator that acts. Who stood by takes over, or the one made in its place.

    Its process is told to end a moment before it is killed, so it may still give up its lease, and
    then the two race for it.
    """
    first = acting(release)
    stood_by = set(release.kube.pods("app.kubernetes.io/component=operator")) - {first}
    assert stood_by, "another operator stands by"
    began = time.monotonic()
    release.kube.kubectl("delete", "pod", first, "--force", "--grace-period=0")
    second = until("another operator acts", lambda: acting(release).replace(first, ""), 60)
    who = "who stood by" if second in stood_by else "a new one"
    print(f"\ne2e operator killed: {who} acts after {time.monotonic() - began:.0f} s")


def acting(release: Release) -> str:
    """The pod of the operator that acts: what its Lease says, without the life of its process."""
    lease = release.kube.get("lease", f"{release.name}-operator")
    return str(lease["spec"].get("holderIdentity") or "").rpartition("-")[0].rpartition("-")[0]


def test_volumes_grow_and_do_not_shrink(release: Release) -> None:
    claims = [f"data-{name}" for name in release.uids("broker")]
    before = release.uids("broker")
    release.upgrade({"cluster.brokers.storage": {"size": GROWN}})
    until(
        "the volumes have grown",
        lambda: (
            {release.kube.get("pvc", each)["status"]["capacity"]["storage"] for each in claims}
            == {GROWN}
        ),
        120,
    )
    size = '{"spec":{"brokers":{"storage":{"size":"1Gi"}}}}'
    release.kube.kubectl("patch", CLUSTERS, release.name, "--type=merge", "-p", size)
    print(f"\ne2e refused: {release.says('volumes can grow, not shrink')}")
    release.kube.kubectl(
        "patch", CLUSTERS, release.name, "--type=merge", "-p", size.replace("1Gi", GROWN)
    )
    release.whole()
    assert release.uids("broker") == before


def test_a_second_etcd_beside_the_first_is_refused(release: Release) -> None:
    """New servers would not join the old one: half of the cluster would see an empty store."""
    with pytest.raises(CommandFailed, match=r"leave etcd\.replicas as it was"):
        release.upgrade({"etcd.replicas": 3})
    del release.values["etcd.replicas"]


def test_a_second_operator_in_the_namespace_is_refused(release: Release) -> None:
    """Both would look after everything there, and run every drill twice."""
    words = ("install", "another", str(CHART), "--dry-run=server")
    with pytest.raises(CommandFailed, match=r"set operator\.enabled=false"):
        release.kube.helm(*words)
    assert "kind: Cluster" in release.kube.helm(*words, "--set=operator.enabled=false")


@pytest.mark.needs("IMAGE_BEFORE")
def test_f36_to_another_version_and_back_under_load(release: Release) -> None:
    """Brokers, controllers and coordinators of both versions live side by side meanwhile."""
    with under_load(release, "versions") as load:
        for image in (os.environ["IMAGE_BEFORE"], release.image):
            with pause_told(load, f"all pods replaced by those of {image}"):
                release.upgrade({}, image=image)
                until("every pod runs it", partial(runs_only, release, image), ROLLED_S)
                release.whole()


def runs_only(release: Release, image: str) -> bool:
    pods = release.kube.pods("app.kubernetes.io/name=tailrace,app.kubernetes.io/component")
    return {each["spec"]["containers"][0]["image"] for each in pods.values()} == {image}
