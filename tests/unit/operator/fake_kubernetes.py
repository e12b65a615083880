"""A Kubernetes in memory, as far as the operator asks it: objects, StatefulSets that make pods.

`settle` does what Kubernetes' own controllers would: pods that are missing are made from the
newest template, pods above the number wanted go. `after_each_call` lets a test kill the operator at
any point between two calls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any, Final

from tailrace_operator.kube import KubeError
from tailrace_operator.manifests import Manifest, fingerprint
from tailrace_operator.reconcile import Moments, SpreadFailed
from tailrace_operator.rollout import Health
from tailrace_operator.spec import CLUSTER_LABEL, ROLE_LABEL

MOMENTS: Final = Moments(
    write=lambda ms: datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    read=lambda text: int(datetime.fromisoformat(text).timestamp() * 1000),
)


class OperatorDied(Exception):
    """Raised by a test's `after_each_call`."""


class FakeKubernetes:
    """The same calls as `kube.Kube`."""

    def __init__(self, namespace: str = "prod") -> None:
        self.namespace = namespace
        self.objects: dict[tuple[str, str], Manifest] = {}
        self.events: list[str] = []
        self.deleted_pods: list[str] = []
        self.cordoned: set[str] = set()
        # What the API says when nodes are asked for or changed; None: it does it.
        self.no_nodes: KubeError | None = None
        self.nodes_gone: set[str] = set()
        # Pods that a disruption budget protects.
        self.protected: set[str] = set()
        # Why claims cannot grow; empty: they can.
        self.no_growth = ""
        # Kinds that cannot be applied as they are, and with which answer.
        self.refused: dict[str, KubeError] = {}
        self.going = False
        self.calls = 0
        self.after_each_call: Callable[[], None] = lambda: None
        self._uids = 0

    def _called(self) -> None:
        self.calls += 1
        self.after_each_call()

    def put(self, manifest: Manifest) -> Manifest:
        self._uids += 1
        key = (manifest["kind"], manifest["metadata"]["name"])
        before = self.objects.get(key)
        metadata = {"uid": f"uid-{self._uids}", "namespace": self.namespace, "generation": 1}
        if before is not None:
            metadata["uid"] = before["metadata"]["uid"]
            manifest = {**before, **manifest}
        self.objects[key] = {**manifest, "metadata": {**metadata, **manifest["metadata"]}}
        return self.objects[key]

    async def list(self, api_version: str, kind: str, selector: str = "") -> list[Manifest]:
        self._called()
        wanted = [each.partition("=") for each in selector.split(",") if each]
        return [
            each
            for (of_kind, _), each in self.objects.items()
            if of_kind == kind
            and all(
                name in each["metadata"].get("labels", {})
                and (not equals or each["metadata"]["labels"][name] == value)
                for name, equals, value in wanted
            )
        ]

    async def get(self, api_version: str, kind: str, name: str) -> Manifest | None:
        self._called()
        return self.objects.get((kind, name))

    async def apply(self, manifest: Manifest) -> bool:
        self._called()
        if manifest["kind"] in self.refused:
            raise self.refused[manifest["kind"]]
        now = self.objects.get((manifest["kind"], manifest["metadata"]["name"]))
        mark = fingerprint(manifest)
        if now is not None and now.get("applied") == mark:
            return False
        self.put({**manifest, "applied": mark})
        return True

    async def patch(self, api_version: str, kind: str, name: str, patch: Manifest) -> None:
        self._called()
        if kind == "PersistentVolumeClaim" and self.no_growth:
            raise KubeError(self.no_growth, HTTPStatus.FORBIDDEN)
        found = self.objects[kind, name]
        found["spec"] = {**found["spec"], **patch["spec"]}

    async def patch_status(self, kind: str, name: str, status: Manifest) -> None:
        self._called()
        found = self.objects[kind, name]
        found["status"] = {**(found.get("status") or {}), **status}

    async def delete(
        self, api_version: str, kind: str, name: str, *, uid: str, grace_s: int | None = None
    ) -> None:
        self._called()
        found = self.objects.get((kind, name))
        if found is not None and found["metadata"]["uid"] == uid:
            del self.objects[kind, name]
            self.deleted_pods.append(name)

    async def event(self, about: Manifest, *, reason: str, message: str, warning: bool) -> None:
        self._called()
        self.events.append(f"{reason}: {message}")

    async def evict(self, pod: str) -> bool:
        self._called()
        if pod in self.protected:
            return False
        del self.objects["Pod", pod]
        self.deleted_pods.append(pod)
        return True

    async def is_cordoned(self, node: str) -> bool:
        self._called()
        if self.no_nodes is not None:
            raise self.no_nodes
        return node in self.cordoned

    async def cordon(self, node: str, *, on: bool) -> None:
        self._called()
        if self.no_nodes is not None:
            raise self.no_nodes
        if on:
            self.cordoned.add(node)
        else:
            self.cordoned.discard(node)

    async def node_is_gone(self, node: str) -> bool:
        self._called()
        return node in self.nodes_gone

    async def namespace_is_going(self) -> bool:
        self._called()
        return self.going

    # What Kubernetes does by itself.

    def settle(self) -> None:
        for (kind, name), each in list(self.objects.items()):
            if kind != "StatefulSet":
                continue
            revision = fingerprint(each["spec"]["template"])
            each["status"] = {
                "updateRevision": revision,
                "readyReplicas": each["spec"]["replicas"],
            }
            if self.cordoned:
                continue
            for ordinal in range(each["spec"]["replicas"]):
                self._claims(each, f"{name}-{ordinal}")
                if ("Pod", f"{name}-{ordinal}") not in self.objects:
                    self._pod(each, f"{name}-{ordinal}", revision)
            for pod in [key for key in self.objects if key[0] == "Pod"]:
                stem, _, number = pod[1].rpartition("-")
                if stem == name and int(number) >= each["spec"]["replicas"]:
                    del self.objects[pod]

    def _claims(self, owner: Manifest, pod: str) -> None:
        for template in owner["spec"].get("volumeClaimTemplates") or []:
            name = f"{template['metadata']['name']}-{pod}"
            if ("PersistentVolumeClaim", name) not in self.objects:
                self.put(
                    {
                        "kind": "PersistentVolumeClaim",
                        "metadata": {**template["metadata"], "name": name},
                        "spec": template["spec"],
                        "status": {"phase": "Bound"},
                    }
                )

    def _pod(self, owner: Manifest, name: str, revision: str) -> None:
        labels = {
            **owner["spec"]["template"]["metadata"]["labels"],
            "controller-revision-hash": revision,
        }
        status = {"conditions": [{"type": "Ready", "status": "True"}]}
        self.put(
            {
                "kind": "Pod",
                "metadata": {"name": name, "labels": labels},
                "spec": {"nodeName": "node-1"},
                "status": status,
            }
        )

    def pods(self, role: str) -> Sequence[Manifest]:
        return [
            each
            for (kind, _), each in self.objects.items()
            if kind == "Pod" and each["metadata"]["labels"].get(ROLE_LABEL) == role
        ]


class FakeCluster:
    """A Tailrace cluster whose brokers are the pods that run; replicas come back in a while.

    It is its own administration client, as far as drills ask one.
    """

    bootstrap = "events-bootstrap.prod.svc:9092"

    def __init__(self, kubernetes: FakeKubernetes) -> None:
        self._kubernetes = kubernetes
        self.topics: set[str] = set()
        self.lives: dict[int, str] = {}
        self.behind = 0
        self.holding: frozenset[int] = frozenset()
        self.cordoned: frozenset[int] = frozenset()
        # Brokers whose processes do not come up, whatever their pods look like.
        self.broken: set[int] = set()
        # Fewer brokers than this cannot hold what there is.
        self.replicas = 1
        self.reachable = True
        self.fenced: list[tuple[int, str]] = []

    def _registered(self) -> dict[int, str]:
        found = {}
        for pod in self._kubernetes.pods("broker"):
            number = int(pod["metadata"]["name"].rpartition("-")[2])
            if number in self.broken:
                continue
            found[number] = pod["metadata"]["uid"]
        return found

    async def health(self) -> tuple[Health, frozenset[int]]:
        if not self.reachable:
            return Health(), frozenset()
        now = self._registered()
        if now != self.lives and self.lives:
            # Whoever is new has to catch up first: two looks long.
            self.behind = 2
        self.lives = now
        if not self.holding:
            self.holding = frozenset(now)
        health = Health(
            reachable=True,
            brokers=frozenset(now),
            controller=1,
            partitions=6,
            under_replicated=6 if self.behind or self.holding - now.keys() else 0,
            cordoned=self.cordoned,
        )
        self.behind = max(self.behind - 1, 0)
        return health, self.holding

    async def spread(self, brokers: Sequence[int], *, throttle_bytes: int) -> str:
        if len(brokers) < self.replicas:
            raise SpreadFailed(f"{self.replicas} replicas need as many brokers")
        self.holding = frozenset(brokers)
        self.cordoned = (self.cordoned | self._registered().keys()) - self.holding
        return f"moved to {list(brokers)}"

    async def uncordon(self, brokers: Sequence[int]) -> None:
        self.cordoned -= frozenset(brokers)

    async def fence(self, broker_id: int, *, instance: str, reason: str) -> tuple[bool, str]:
        if not self.reachable:
            return False, f"broker {broker_id} was not fenced: nobody answers"
        self.fenced.append((broker_id, instance))
        return True, f"broker {broker_id} is fenced"

    async def leader(self, topic: str, partition: int) -> int:
        return min(self._registered())

    async def coordinator(self, group: str) -> int:
        return 0

    async def admin(self) -> FakeCluster:
        return self

    async def create_topic(self, name: str, *, partitions: int, timeout_ms: int) -> None:
        self.topics.add(name)

    async def delete_topic(self, name: str, *, timeout_ms: int) -> None:
        self.topics.discard(name)

    async def close(self) -> None:
        self.reachable = False


def cluster_resource(**spec: Any) -> Manifest:
    return {
        "apiVersion": "tailrace.dev/v1alpha1",
        "kind": "Cluster",
        "metadata": {"name": "events", "labels": {CLUSTER_LABEL: "events"}},
        "spec": {"image": "tailrace:1", "etcd": {"endpoints": ["etcd:2379"]}, **spec},
    }
