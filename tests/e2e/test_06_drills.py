"""Each kind of Drill runs, and its report agrees with a count of our own."""

from __future__ import annotations

from typing import Any, Final

import pytest

from e2e.kube import CommandFailed, Object, until
from e2e.release import Release

DRILLS: Final = "drills.tailrace.dev"
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
    counted = release.inside("count.py", status["topic"])
    assert counted["distinct"] == report["acknowledged"]
    assert counted["records"] - counted["distinct"] == report["duplicated"] == 0
    assert counted["missing"] == report["lost"] == 0
    release.tailrace("topics", "delete", status["topic"], "--yes", "--json")
    release.kube.kubectl("delete", DRILLS, kind)
    release.whole()


def test_a_scheduled_drill_runs_when_it_is_due_and_not_while_suspended(release: Release) -> None:
    spec = {"cluster": release.name, "kind": "kill-coordinator", "schedule": "* * * * *"}
    release.kube.apply(drill("often", **spec))

    def status() -> Object:
        found: Object = release.kube.get(DRILLS, "often").get("status") or {}
        return found

    until("it runs by itself", lambda: status().get("run") == 1, 90)
    began, due = status()["startedAt"], status()["nextAt"]
    print(f"\ne2e drill each minute: began at {began}, the next is due at {due}")
    assert began < due
    assert due.endswith(":00Z")
    release.kube.apply(drill("often", **spec, suspended=True))
    until("it has ended", lambda: status().get("runs"), DRILLED_S)
    assert [(each["run"], each["verdict"]) for each in status()["runs"]] == [(1, "Passed")]
    until("none is due any more", lambda: status().get("nextAt") is None, 30)
    release.kube.kubectl("delete", DRILLS, "often")
    release.whole()


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
