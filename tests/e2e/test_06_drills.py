"""Each kind of Drill runs, and its report agrees with a count of our own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pytest

from e2e.kube import CommandFailed, Object, until
from e2e.release import Release

DRILLS: Final = "drills.tailrace.dev"
COUNT: Final = Path(__file__).with_name("count.py")
DRILLED_S: Final = 400.0


def drill(name: str, **spec: Any) -> Object:
    return {
        "apiVersion": "tailrace.dev/v1alpha1",
        "kind": "Drill",
        "metadata": {"name": name},
        "spec": spec,
    }


@pytest.mark.parametrize(
    "kind",
    [
        "kill-leader",
        "kill-controller",
        "kill-coordinator",
        "kill-broker-and-wipe",
        "stop-etcd",
        "drain-node",
        "roll",
    ],
)
def test_a_drill_runs_and_its_report_is_true(release: Release, kind: str) -> None:
    spec = {"cluster": release.name, "kind": kind, "holdFor": "15s", "keepTopic": True}
    release.kube.apply(drill(kind, **spec))

    def ended() -> Object | None:
        status: Object = release.kube.get(DRILLS, kind).get("status") or {}
        return status if status.get("phase") in {"Passed", "Failed", "Aborted"} else None

    status = until(f"the drill {kind} has ended", ended, DRILLED_S)
    report = status.get("report") or {}
    figures = {key: value for key, value in report.items() if key != "timeline"}
    print(f"\ne2e drill {kind}: {figures}")
    assert status["phase"] == "Passed", report
    assert report["isrRecoveryMs"] > 0
    assert report["timeline"]
    # Every number that the probe wrote is in its topic, and we count them ourselves.
    counted = count(release, status["topic"])
    assert counted["distinct"] == report["acknowledged"]
    assert counted["records"] - counted["distinct"] == report["duplicated"] == 0
    assert counted["missing"] == report["lost"] == 0
    release.tailrace("topics", "delete", status["topic"], "--yes", "--json")
    release.kube.kubectl("delete", DRILLS, kind)
    release.whole()


def count(release: Release, topic: str) -> Any:
    """In a pod, by a program of ours that knows nothing of the drill."""
    pod = release.pod("broker", 0)
    words = ("exec", "-i", pod, "--", "python3", "-", release.bootstrap, topic)
    return json.loads(release.kube.kubectl(*words, given=COUNT.read_text(encoding="utf-8")))


def test_a_drill_that_cannot_be_is_refused(release: Release) -> None:
    with pytest.raises(CommandFailed, match="Unsupported value"):
        release.kube.apply(drill("odd", cluster=release.name, kind="pull-plug"))
    release.kube.apply(drill("lost", cluster="nowhere", kind="roll"))
    until(
        "it says why it waits",
        lambda: (
            (release.kube.get(DRILLS, "lost").get("status") or {}).get("message")
            == "there is no Cluster 'nowhere' in this namespace"
        ),
        60,
    )
    release.kube.kubectl("delete", DRILLS, "lost")
