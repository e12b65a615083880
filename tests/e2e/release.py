"""A release of the chart, and what is asked of the cluster that it makes."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any, Final

from e2e.kube import CommandFailed, Kube, Object, condition, until

HERE: Final = Path(__file__).resolve().parent
CHART: Final = HERE.parents[1] / "deploy" / "helm" / "tailrace"
TOPICS: Final = "topics.tailrace.dev"
CLUSTERS: Final = "clusters.tailrace.dev"
READY_S: Final = 300.0
INSIDE_S: Final = 180.0
# What the tests ask for beside the chart's defaults: a machine of two cores runs all of it.
VALUES: Final[Object] = {
    "cluster": {
        "brokers": {
            "replicas": 3,
            "storage": {"size": "1Gi"},
            "resources": {"requests": {"cpu": "20m", "memory": "100Mi"}},
        },
        "controllers": {"resources": {"requests": {"cpu": "10m", "memory": "50Mi"}}},
        "coordinators": {"resources": {"requests": {"cpu": "10m", "memory": "50Mi"}}},
    },
    "etcd": {"storage": {"size": "1Gi"}},
    "operator": {"nodeAccess": True},
}


class Release:
    """What `helm install` made, in a namespace of its own."""

    def __init__(self, name: str, namespace: str) -> None:
        self.name = name
        self.kube = Kube(namespace)
        self.installed_s = 0.0
        # What was changed since, and stays so.
        self.values: Object = {}

    @property
    def bootstrap(self) -> str:
        return f"{self.name}-bootstrap.{self.kube.namespace}.svc:9092"

    @property
    def image(self) -> str:
        return os.environ.get("IMAGE", "tailrace:0.1.0")

    def install(self) -> None:
        """From nothing to all pods ready and every replica in sync."""
        began = time.monotonic()
        self._helm("install", {**VALUES, **self.values}, "--create-namespace")
        self.whole()
        self.installed_s = time.monotonic() - began

    def upgrade(self, values: Object, *, image: str = "") -> None:
        """By `helm upgrade`; what was asked for before stays."""
        self.values |= values
        self._helm("upgrade", values, "--reuse-values", image=image)

    def _helm(self, verb: str, values: Object, *more: str, image: str = "") -> None:
        repository, _, tag = (image or self.image).rpartition(":")
        words = [f"--set=image.repository={repository},image.tag={tag}"]
        words += [f"--set-json={key}={json.dumps(each)}" for key, each in values.items()]
        self.kube.helm(verb, self.name, str(CHART), *words, *more, timeout_s=120)

    def whole(self, *, brokers: int = 3, timeout_s: float = READY_S) -> Object:
        """Wait until everything is as wanted, which the Cluster resource says."""

        def check() -> Object | None:
            found = self.kube.get(CLUSTERS, self.name)
            status = found.get("status") or {}
            is_new = status.get("observedGeneration") == found["metadata"]["generation"]
            settled = condition(found, "Progressing") == "False"
            is_whole = condition(found, "Ready") == "True" and settled
            running = status.get("brokers") == f"{brokers}/{brokers}"
            pods = self.kube.pods("app.kubernetes.io/name=tailrace,app.kubernetes.io/component")
            ready = all(condition(each, "Ready") == "True" for each in pods.values())
            return found if is_new and is_whole and running and ready else None

        try:
            return until("the cluster is whole", check, timeout_s)
        except AssertionError as error:
            status = self.kube.get(CLUSTERS, self.name).get("status")
            told = f"{status}\n{self.kube.kubectl('get', 'pods', '-o', 'wide')}"
            raise AssertionError(f"{error}\n{told}") from error

    def says(self, part: str, timeout_s: float = 60) -> str:
        """Wait until the status of the Cluster says something with these words."""

        def look() -> str:
            message = str(self.kube.get(CLUSTERS, self.name)["status"].get("message", ""))
            return message if part in message else ""

        return until(f"the cluster says {part!r}", look, timeout_s)

    def told(self, reason: str) -> list[str]:
        """What the operator said of itself, by the reason of its events."""
        events = self.kube.list("events")
        return [str(each["message"]) for each in events if each["reason"] == reason]

    def uids(self, role: str) -> dict[str, str]:
        """The pods of a role: which ones they are."""
        found = self.kube.pods(f"tailrace.dev/role={role}")
        return {name: each["metadata"]["uid"] for name, each in found.items()}

    def replaced(self, pod: str, uid: str, timeout_s: float = 120) -> None:
        """Wait until another pod of this name is ready."""

        def check() -> bool:
            found = self.kube.get("pod", pod)
            return found["metadata"]["uid"] != uid and condition(found, "Ready") == "True"

        until(f"{pod} is replaced", check, timeout_s)

    def delete_pod(self, pod: str, *how: str) -> None:
        """And wait until its successor is ready."""
        uid = self.kube.get("pod", pod)["metadata"]["uid"]
        self.kube.kubectl("delete", "pod", pod, *how)
        self.replaced(pod, uid)

    # Who is who.

    def pod(self, role: str, number: int) -> str:
        return f"{self.name}-{role}-{number}"

    def tailrace(self, *words: str) -> Any:
        """Ask with the command line, in the pod of a broker that runs."""
        trouble: Exception = AssertionError("no broker runs")
        for name, pod in self.kube.pods("tailrace.dev/role=broker").items():
            if condition(pod, "Ready") == "True":
                address = f"TAILRACE_BOOTSTRAP={self.bootstrap}"
                try:
                    told = self.kube.kubectl("exec", name, "--", "env", address, "tailrace", *words)
                except CommandFailed as error:
                    trouble = error
                    continue
                return json.loads(told)
        raise trouble

    def inside(self, script: str, *words: str) -> Any:
        """What a program of ours says, in a pod: it knows nothing of what is being tested."""
        pod = self.pod("broker", 0)
        command = ("exec", "-i", pod, "--", "python3", "-", self.bootstrap, *words)
        text = (HERE / script).read_text(encoding="utf-8")
        return json.loads(self.kube.kubectl(*command, given=text, timeout_s=INSIDE_S))

    def topic(self, name: str) -> Any:
        return self.tailrace("topics", "describe", name, "--json")

    def leader(self, topic: str, partition: int = 0) -> int:
        return int(self.topic(topic)["partitions"][partition]["leader"])

    def make_topic(self, name: str, *, partitions: int = 6) -> Object:
        """By a Topic resource, as users do."""
        self.kube.apply(topic_resource(name, cluster=self.name, partitions=partitions))
        return until(
            f"the topic {name} is ready",
            lambda: (
                found
                if condition(found := self.kube.get(TOPICS, name), "Ready") == "True"
                else None
            ),
            60,
        )


def topic_resource(name: str, **spec: Any) -> Object:
    return {
        "apiVersion": "tailrace.dev/v1alpha1",
        "kind": "Topic",
        "metadata": {"name": name},
        "spec": spec,
    }
