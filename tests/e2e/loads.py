"""The load as a pod: started, looked at, ended, and its verdict."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from e2e.kube import Object, until
from e2e.release import TOPICS, Release

SCRIPT: Final = Path(__file__).with_name("load.py")
CONFIG: Final = "e2e-load"
STARTED_S: Final = 60.0
FINISHED_S: Final = 300.0
# A record that was under way when something was done was sent a little before it.
LOOK_BACK_S: Final = 0.2
# Records that must be acknowledged before anything is done to the cluster.
WARM: Final = 200


class Load:
    """One pod with a producer and a group of two; `finish` ends it and gives its verdict."""

    def __init__(self, release: Release, name: str) -> None:
        self.release = release
        self.kube = release.kube
        self.name = name

    def start(self, *, partitions: int = 6) -> None:
        self.release.make_topic(self.name, partitions=partitions)
        script = {"load.py": SCRIPT.read_text(encoding="utf-8")}
        self.kube.apply(
            {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {"name": CONFIG},
                "data": script,
            },
            self._pod(),
        )
        until("the load is warm", lambda: self.report()["acked"] >= WARM, STARTED_S)

    def report(self) -> Any:
        return json.loads(self.kube.kubectl("exec", self.name, "--", "cat", "/tmp/report.json"))

    def who(self, role: str) -> int:
        """Which broker leads partition 0, which controller is active, which coordinator is ours."""

        def asked() -> int | None:
            found = self.report()["who"].get(role, -1)
            return found + 1 if found >= 0 else None

        try:
            return until(f"it is known who is {role}", asked, 60) - 1
        except AssertionError as error:
            raise AssertionError(f"{error}: {self.report()['problems']}") from error

    def go_on(self, records: int = WARM, timeout_s: float = 120) -> None:
        """Wait until so many more were acknowledged: the cluster takes writes."""
        wanted = self.report()["acked"] + records
        until(f"{records} more records", lambda: self.report()["acked"] >= wanted, timeout_s)

    def finish(self) -> Any:
        self.kube.kubectl("exec", self.name, "--", "touch", "/tmp/stop")

        def ended() -> bool:
            phase = self.kube.get("pod", self.name)["status"]["phase"]
            return phase in {"Succeeded", "Failed"}

        until("the load has its verdict", ended, FINISHED_S)
        told = self.kube.kubectl("logs", self.name)
        verdict = json.loads(told.strip().splitlines()[-1])
        self.kube.kubectl("delete", "pod", self.name, "--wait=false")
        self.kube.kubectl("delete", TOPICS, self.name, "--wait=false")
        return verdict

    def _pod(self) -> Object:
        secured = {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        command = ["python3", "/load/load.py", "--bootstrap", self.release.bootstrap]
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": self.name, "labels": {"app": "e2e-load"}},
            "spec": {
                "restartPolicy": "Never",
                "terminationGracePeriodSeconds": 1,
                "automountServiceAccountToken": False,
                "securityContext": {"runAsNonRoot": True, "runAsUser": 10001},
                "containers": [
                    {
                        "name": "load",
                        "image": self.release.image,
                        "imagePullPolicy": "IfNotPresent",
                        "command": [*command, "--topic", self.name],
                        "securityContext": secured,
                        "volumeMounts": [
                            {"name": "script", "mountPath": "/load"},
                            {"name": "tmp", "mountPath": "/tmp"},
                        ],
                    }
                ],
                "volumes": [
                    {"name": "script", "configMap": {"name": CONFIG}},
                    {"name": "tmp", "emptyDir": {}},
                ],
            },
        }


@contextmanager
def pause_told(load: Load, what: str, *, go_on: bool = True) -> Iterator[None]:
    """Tell how long writes waited at most while this was done, and until all went on."""
    began, at = time.monotonic(), load.report()["now"]
    yield
    if go_on:
        load.go_on()
    waits = [ms for sent, ms in load.report()["waits"] if sent >= at - LOOK_BACK_S]
    took = time.monotonic() - began
    print(f"\ne2e {what}: writes waited {max(waits, default=0):.0f} ms at most, over {took:.0f} s")


@contextmanager
def under_load(release: Release, name: str, *, partitions: int = 6) -> Iterator[Load]:
    """A load around what a test does; in the end nothing is lost, twice, or without a fate."""
    load = Load(release, name)
    load.start(partitions=partitions)
    yield load
    load.go_on()
    finish_and_judge(load)


def finish_and_judge(load: Load) -> None:
    verdict = load.finish()
    print(
        f"\ne2e {load.name}: {verdict['acked']} acknowledged, "
        f"longest wait {verdict['longest']:.0f} ms, "
        f"lost {verdict['lost']}, duplicated {verdict['duplicated']}, "
        f"consumed {verdict['consumed']}, consumed again {verdict['repeated']}"
    )
    wrong = {
        key: verdict[key]
        for key in ("failed", "open", "lost", "duplicated", "elsewhere", "unread", "missed")
        if verdict[key]
    }
    assert not wrong, f"{wrong}: {verdict['problems']}"
