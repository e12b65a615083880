"""`helm uninstall` leaves the volumes, and nothing else."""

from __future__ import annotations

from e2e.kube import until
from e2e.release import TOPICS, Release

# What Kubernetes itself puts into every namespace, and what tells of the past.
OF_KUBERNETES = {
    "configmap/kube-root-ca.crt",
    "serviceaccount/default",
}


def test_nothing_is_left_but_volumes(release: Release) -> None:
    # What the tests put there beside the chart goes with them.
    release.kube.kubectl("delete", f"{TOPICS},drills.tailrace.dev", "--all")
    release.kube.kubectl("delete", "pods", "-l", "app=e2e-load")
    release.kube.kubectl("delete", "configmaps", "e2e-load", "--ignore-not-found")
    release.kube.helm("uninstall", release.name, "--wait", timeout_s=120)
    left: set[str] = set()

    def gone() -> bool:
        left.clear()
        left.update(remaining(release))
        return all(each.startswith("persistentvolumeclaim/") for each in left)

    try:
        until("all but the volumes is gone", gone, 120)
    except AssertionError as error:
        raise AssertionError(f"{error}: {sorted(left)}") from error
    assert left >= {
        *(f"persistentvolumeclaim/data-{release.pod('broker', each)}" for each in range(3)),
        f"persistentvolumeclaim/data-{release.pod('etcd', 0)}",
    }


def remaining(release: Release) -> list[str]:
    """The names of everything in the namespace, of whatever kind there is."""
    kinds = release.kube.kubectl("api-resources", "--verbs=list", "--namespaced", "-o", "name")
    asked = [each for each in kinds.split() if not each.startswith("events")]
    names = release.kube.kubectl("get", ",".join(asked), "-o", "name", "--ignore-not-found")
    return [each for each in names.split() if each not in OF_KUBERNETES]
