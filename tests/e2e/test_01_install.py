"""From nothing to a cluster that takes records."""

from __future__ import annotations

import re

from e2e.release import CLUSTERS, Release

TAILRACE_PODS = "app.kubernetes.io/name=tailrace,app.kubernetes.io/component"


def test_helm_install_makes_a_cluster_that_is_whole(release: Release) -> None:
    status = release.kube.get(CLUSTERS, release.name)["status"]
    pods = release.kube.pods(TAILRACE_PODS)
    print(f"\ne2e install: {len(pods)} pods ready and whole after {release.installed_s:.0f} s")
    assert status["brokers"] == "3/3"
    assert status["message"] == "all is well"
    # Three brokers, two controllers, two coordinators, the operator and an etcd.
    assert len(pods) == 9
    assert not [name for name, each in pods.items() if restarts(each)]


def restarts(pod: dict[str, object]) -> int:
    status = pod["status"]
    assert isinstance(status, dict)
    return sum(each["restartCount"] for each in status.get("containerStatuses") or [])


def test_idle_memory_is_told(release: Release) -> None:
    used = {}
    for name in release.kube.pods(TAILRACE_PODS):
        text = release.kube.kubectl("exec", name, "--", "cat", "/proc/1/status")
        found = re.search(r"VmRSS:\s+(\d+) kB", text)
        assert found is not None
        used[name] = int(found.group(1)) // 1024
    print(f"\ne2e idle memory: {sum(used.values())} MiB in all: {used}")
    # A broker at rest fits well below the chart's limit of 1 GiB.
    assert max(used.values()) < 400


def test_helm_test_writes_and_reads(release: Release) -> None:
    told = release.kube.helm("test", release.name, "--timeout", "120s", timeout_s=150)
    assert "Phase:          Succeeded" in told
