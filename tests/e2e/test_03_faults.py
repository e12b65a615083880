"""Pods are killed under load: nothing is lost, nothing is twice, and each pause is told.

One load runs from the first of these tests to the last, which counts.
"""

from __future__ import annotations

import os
import subprocess
import time
from typing import Final

import pytest

from e2e.kube import CommandFailed, until
from e2e.loads import Load, finish_and_judge, pause_told
from e2e.release import Release

FORCE: Final = ("--force", "--grace-period=0")
API_AWAY_S: Final = 60.0
FOUND_AGAIN_S: Final = 20.0
LOAD: Final = "faults"


@pytest.fixture(scope="module")
def load(release: Release) -> Load:
    made = Load(release, LOAD)
    made.start()
    return made


@pytest.mark.parametrize("how", [(), FORCE], ids=["in-order", "by-force"])
def test_the_leader_is_deleted(release: Release, load: Load, how: tuple[str, ...]) -> None:
    with pause_told(load, f"leader deleted {'by force' if how else 'in order'}"):
        release.delete_pod(release.pod("broker", load.who("leader")), *how)
    release.whole()


@pytest.mark.parametrize("how", [(), FORCE], ids=["in-order", "by-force"])
def test_the_controller_is_deleted(release: Release, load: Load, how: tuple[str, ...]) -> None:
    with pause_told(load, f"controller deleted {'by force' if how else 'in order'}"):
        release.delete_pod(release.pod("controller", load.who("controller")), *how)
    release.whole()


@pytest.mark.parametrize("how", [(), FORCE], ids=["in-order", "by-force"])
def test_the_coordinator_is_deleted(release: Release, load: Load, how: tuple[str, ...]) -> None:
    before = load.report()["consumed"]
    with pause_told(load, f"coordinator deleted {'by force' if how else 'in order'}"):
        release.delete_pod(release.pod("coordinator", load.who("coordinator")), *how)
    until("the group goes on", lambda: load.report()["consumed"] > before + 500, 120)
    release.whole()


def test_etcd_is_deleted(release: Release, load: Load) -> None:
    with pause_told(load, "etcd deleted by force"):
        release.delete_pod(release.pod("etcd", 0), *FORCE)
        began = time.monotonic()
        release.make_topic("after-etcd", partitions=1)
        took_s = time.monotonic() - began
    print(f"\ne2e etcd: a topic can be made {took_s:.0f} s after its pod is ready again")
    # It has another address: whoever looks for that by gRPC's defaults does so after 30 s.
    assert took_s < FOUND_AGAIN_S
    release.whole()
    release.kube.kubectl("delete", "topics.tailrace.dev", "after-etcd")


def test_f23_a_volume_is_deleted_with_its_pod(release: Release, load: Load) -> None:
    pod = release.pod("broker", load.who("leader"))
    claim = release.kube.get("pvc", f"data-{pod}")["metadata"]["uid"]
    with pause_told(load, "leader deleted with its volume"):
        release.kube.kubectl("delete", "pvc", f"data-{pod}", "--wait=false")
        release.delete_pod(pod, *FORCE)
    release.whole()
    assert release.kube.get("pvc", f"data-{pod}")["metadata"]["uid"] != claim


def test_f23_a_volume_is_lost_for_good(release: Release, load: Load) -> None:
    """Its PersistentVolume is no more, and the pod runs on: the operator gives it another."""
    pod = release.pod("broker", load.who("leader"))
    uid = release.kube.get("pod", pod)["metadata"]["uid"]
    volume = release.kube.get("pvc", f"data-{pod}")["spec"]["volumeName"]
    with pause_told(load, "leader's volume lost for good"):
        release.kube.kubectl("delete", "pv", volume, "--wait=false")
        unprotected = '{"metadata":{"finalizers":null}}'
        release.kube.kubectl("patch", "pv", volume, "--type=merge", "-p", unprotected)
        release.replaced(pod, uid)
    release.whole()
    assert release.kube.get("pvc", f"data-{pod}")["spec"]["volumeName"] != volume
    assert [each for each in release.told("NewVolume") if f"data-{pod} is lost" in each]


@pytest.mark.needs("KUBELET_STOP", "KUBELET_GO_ON")
def test_f22_a_pod_hangs_on_a_node_that_nobody_hears_of(release: Release, load: Load) -> None:
    """It should go and cannot: fenced while its process runs on, then struck from the books."""
    pod = release.pod("broker", load.who("leader"))
    uid = release.kube.get("pod", pod)["metadata"]["uid"]
    with pause_told(load, "leader hangs on a silent node"):
        shell(os.environ["KUBELET_STOP"])
        try:
            release.kube.kubectl("delete", "pod", pod, "--grace-period=1", "--wait=false")
            until("it is struck off", lambda: release.uids("broker").get(pod, uid) != uid, 120)
        finally:
            shell(os.environ["KUBELET_GO_ON"])
        release.replaced(pod, uid)
    release.whole()
    assert [each for each in release.told("ForceDelete") if f"{pod} should have been" in each]


@pytest.mark.needs("API_STOP", "API_GO_ON")
def test_f25_the_api_server_is_away_for_a_minute(release: Release, load: Load) -> None:
    with pause_told(load, f"API server stopped for {API_AWAY_S:.0f} s"):
        shell(os.environ["API_STOP"])
        try:
            time.sleep(API_AWAY_S)
        finally:
            shell(os.environ["API_GO_ON"])
        until("the API answers", lambda: answers(release), 60)
    release.whole()
    # The operator hears again: what is asked of it is done.
    release.make_topic("after-the-silence", partitions=1)
    release.kube.kubectl("delete", "topics.tailrace.dev", "after-the-silence")


def shell(command: str) -> None:
    subprocess.run(["bash", "-c", command], check=True, timeout=30)


def answers(release: Release) -> bool:
    try:
        release.kube.kubectl("get", "pods", timeout_s=10)
    except CommandFailed:
        return False
    return True


def test_nothing_is_lost_and_nothing_is_twice(load: Load) -> None:
    finish_and_judge(load)
