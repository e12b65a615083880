"""Pods are killed under load: nothing is lost, nothing is twice, and the pause is told."""

from __future__ import annotations

import pytest

from e2e.loads import under_load
from e2e.release import Release

FORCE = ("--force", "--grace-period=0")


@pytest.mark.parametrize("how", [(), FORCE], ids=["in-order", "by-force"])
def test_the_leader_is_deleted(release: Release, how: tuple[str, ...]) -> None:
    name = "leader-by-force" if how else "leader-in-order"
    with under_load(release, name) as load:
        leader = release.leader(name)
        release.kube.kubectl("delete", "pod", release.pod("broker", leader), *how)
        load.go_on()
        release.whole()
