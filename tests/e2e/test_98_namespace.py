"""F38: the whole namespace is deleted, and comes back from its volumes (docs/kubernetes.md)."""

from __future__ import annotations

from typing import Final

from e2e.kube import until
from e2e.release import Release

RECORDS: Final = 5_000
KEPT: Final = '{"spec":{"persistentVolumeReclaimPolicy":"Retain"}}'
FREED: Final = '{"spec":{"claimRef":{"uid":null,"resourceVersion":null}}}'
DROPPED: Final = '{"spec":{"persistentVolumeReclaimPolicy":"Delete"}}'


def test_f38_a_namespace_that_was_deleted_comes_back_from_its_volumes(release: Release) -> None:
    kube = release.kube
    release.make_topic("kept")
    release.inside("numbers.py", "kept", str(RECORDS))
    volumes = [each["spec"]["volumeName"] for each in kube.list("pvc")]
    for each in volumes:
        kube.kubectl("patch", "pv", each, "-p", KEPT)
    kube.kubectl("delete", "namespace", kube.namespace, timeout_s=180)
    until("no claim holds the volumes", lambda: phases(release, volumes) == {"Released"}, 60)
    # They wait for claims of the same names.
    for each in volumes:
        kube.kubectl("patch", "pv", each, "--type=merge", "-p", FREED)
    release.install()
    print(f"\ne2e namespace deleted: whole again {release.installed_s:.0f} s after the install")
    assert {each["spec"]["volumeName"] for each in kube.list("pvc")} == set(volumes)
    found = release.inside("count.py", "kept")
    assert found == {"records": RECORDS, "distinct": RECORDS, "missing": 0}
    for each in volumes:
        kube.kubectl("patch", "pv", each, "-p", DROPPED)


def phases(release: Release, volumes: list[str]) -> set[str]:
    return {release.kube.get("pv", each)["status"]["phase"] for each in volumes}
