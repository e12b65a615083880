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
    release.whole()


def test_f23_a_volume_is_deleted_with_its_pod(release: Release, load: Load) -> None:
    pod = release.pod("broker", load.who("leader"))
    claim = release.kube.get("pvc", f"data-{pod}")["metadata"]["uid"]
    with pause_told(load, "leader deleted with its volume"):
        release.kube.kubectl("delete", "pvc", f"data-{pod}", "--wait=false")
        release.delete_pod(pod, *FORCE)
    release.whole()
    assert release.kube.get("pvc", f"data-{pod}")["metadata"]["uid"] != claim


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
