"""The hand of a drill: what each kind breaks, and how that is put right.

What does not heal by itself is written down in the drill's status before it is done
(`status.restore`), so an operator that finds a drill of a dead one knows what to put right.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final

from tailrace.errors import TailraceError
from tailrace_operator.clusters import ClusterLink
from tailrace_operator.kube import OWN_VERSION, Kube, KubeError
from tailrace_operator.manifests import BROKER, CONTROLLER, COORDINATOR, workload_name
from tailrace_operator.reconcile import APPS, pods_of
from tailrace_operator.rollout import Pod
from tailrace_operator.spec import CLUSTER_LABEL, ROLE_LABEL, DrillSpec

RESTORE_TRIES: Final = 60
RESTORE_AGAIN_S: Final = 2.0


class CannotStrike(Exception):
    """Nothing was broken; the message says why."""


class Striker:
    """Breaks one cluster in one way."""

    def __init__(self, kube: Kube, link: ClusterLink, spec: DrillSpec, *, topic: str) -> None:
        self._kube = kube
        self._link = link
        self._spec = spec
        self._topic = topic
        # The pods that have to be replaced before all is well again: name → uid.
        self.struck: dict[str, str] = {}
        self._broken: dict[str, Any] = {}
        self._etcd_name = ""

    async def still_away(self) -> str:
        """What was struck beside the cluster's own pods and is not back, in words."""
        if not self._etcd_name:
            return ""
        found = await self._kube.get(APPS, "StatefulSet", self._etcd_name) or {}
        wanted = (found.get("spec") or {}).get("replicas") or 0
        ready = (found.get("status") or {}).get("readyReplicas") or 0
        return "" if wanted and ready >= wanted else f"{self._etcd_name} is not ready"

    async def strike(self, now: str) -> str:
        """Do it; says what was done."""
        try:
            match self._spec.kind:
                case "kill-leader":
                    return await self._kill(BROKER, await self._link.leader(self._topic, 0))
                case "kill-controller":
                    return await self._kill(CONTROLLER, await self._controller())
                case "kill-coordinator":
                    number = await self._link.coordinator(self._topic)
                    return await self._kill(COORDINATOR, number)
                case "kill-broker-and-wipe":
                    return await self._wipe(await self._link.leader(self._topic, 0))
                case "stop-etcd":
                    return await self._stop_etcd()
                case "drain-node":
                    return await self._drain()
                case _:
                    return await self._roll(now)
        except (KubeError, TailraceError) as error:
            raise CannotStrike(str(error)) from error

    async def _kill(self, role: str, number: int) -> str:
        pod = await self._pod(role, number)
        self.struck[pod.name] = pod.uid
        await self._kube.delete("v1", "Pod", pod.name, uid=pod.uid, grace_s=0)
        return f"{pod.name} is deleted by force"

    async def _wipe(self, number: int) -> str:
        pod = await self._pod(BROKER, number)
        claim = await self._kube.get("v1", "PersistentVolumeClaim", f"data-{pod.name}")
        if claim is None:
            raise CannotStrike(f"{pod.name} has no claim data-{pod.name}")
        self.struck[pod.name] = pod.uid
        await self._kube.delete(
            "v1", "PersistentVolumeClaim", f"data-{pod.name}", uid=claim["metadata"]["uid"]
        )
        await self._kube.delete("v1", "Pod", pod.name, uid=pod.uid, grace_s=0)
        return f"{pod.name} is deleted by force, and its volume"

    async def _roll(self, now: str) -> str:
        pods, _ = await pods_of(self._spec.cluster, self._kube)
        self.struck |= {each.name: each.uid for each in pods}
        await self._kube.patch(
            OWN_VERSION, "Cluster", self._spec.cluster, {"spec": {"restartedAt": now}}
        )
        return f"{len(pods)} pods are replaced one at a time"

    async def _stop_etcd(self) -> str:
        name = await self._etcd()
        found = await self._kube.get(APPS, "StatefulSet", name)
        replicas = int(((found or {}).get("spec") or {}).get("replicas") or 0)
        if found is None or not replicas:
            raise CannotStrike(f"there is no StatefulSet {name} here: stop etcd by hand")
        await self._remember({"statefulSet": name, "replicas": replicas})
        self._etcd_name = name
        await self._kube.patch(APPS, "StatefulSet", name, {"spec": {"replicas": 0}})
        return f"{name} is stopped for {self._spec.hold_s} s"

    async def _etcd(self) -> str:
        """The StatefulSet of the first endpoint: `demo-etcd-0.demo-etcd.prod.svc:2379`."""
        cluster = await self._kube.get(OWN_VERSION, "Cluster", self._spec.cluster) or {}
        endpoints = ((cluster.get("spec") or {}).get("etcd") or {}).get("endpoints") or [""]
        labels = str(endpoints[0]).rpartition(":")[0].split(".")
        return labels[1] if len(labels) > 1 else labels[0]

    async def _drain(self) -> str:
        node = self._spec.node or await self._node_of_leader()
        if not node:
            raise CannotStrike("nobody knows on which node the leader is: give spec.node")
        try:
            if await self._kube.is_cordoned(node):
                raise CannotStrike(f"{node} is cordoned already: somebody wants that, so it stays")
        except KubeError as error:
            if error.status != HTTPStatus.FORBIDDEN:
                raise
            needs = "drills of this kind need operator.nodeAccess=true in the chart"
            raise CannotStrike(f"{needs}: {error}") from error
        await self._remember({"node": node})
        await self._kube.cordon(node, on=True)
        found = await self._kube.list("v1", "Pod", f"{CLUSTER_LABEL}={self._spec.cluster}")
        gone = []
        for pod in found:
            name = pod["metadata"]["name"]
            is_ours = ROLE_LABEL in (pod["metadata"].get("labels") or {})
            on_node = (pod.get("spec") or {}).get("nodeName") == node
            if is_ours and on_node and await self._kube.evict(name):
                self.struck[name] = pod["metadata"]["uid"]
                gone.append(name)
        if not gone:
            raise CannotStrike(f"no pod of {self._spec.cluster} could be evicted from {node}")
        return f"{node} is cordoned, and {', '.join(gone)} evicted; budgets keep the others"

    async def _node_of_leader(self) -> str:
        leader = await self._link.leader(self._topic, 0)
        pod = await self._kube.get(
            "v1", "Pod", f"{workload_name(self._spec.cluster, BROKER)}-{leader}"
        )
        return str(((pod or {}).get("spec") or {}).get("nodeName") or "")

    async def _controller(self) -> int:
        health, _ = await self._link.health()
        return health.controller

    async def _pod(self, role: str, number: int) -> Pod:
        pods, _ = await pods_of(self._spec.cluster, self._kube)
        for pod in pods:
            if pod.role == role and pod.ordinal == number:
                return pod
        raise CannotStrike(f"there is no pod of {role} {number}")

    async def _remember(self, what: Mapping[str, Any]) -> None:
        self._broken = dict(what)
        await self._kube.patch_status("Drill", self._spec.name, {"restore": self._broken})

    async def restore(self) -> None:
        """Put right what does not heal by itself; nothing to do is fine."""
        if self._broken:
            await restore(self._kube, self._broken)
            self._broken = {}
            await forget(self._kube, self._spec.name)


async def restore(kube: Kube, broken: Mapping[str, Any], tries: int = RESTORE_TRIES) -> None:
    """Put right what a drill wrote into its status before it broke it; KubeError: not yet."""
    for left in range(tries, 0, -1):
        try:
            if "statefulSet" in broken:
                replicas = {"spec": {"replicas": int(broken["replicas"])}}
                await kube.patch(APPS, "StatefulSet", str(broken["statefulSet"]), replicas)
            if "node" in broken:
                await kube.cordon(str(broken["node"]), on=False)
        except KubeError as error:
            if error.status == HTTPStatus.NOT_FOUND:
                # What is no more needs nothing.
                return
            if left == 1 or error.is_refusal:
                raise
            await asyncio.sleep(RESTORE_AGAIN_S)
        else:
            return


async def forget(kube: Kube, drill: str) -> None:
    """There is nothing to put right any more; the drill itself may be gone."""
    if await kube.get(OWN_VERSION, "Drill", drill) is not None:
        await kube.patch_status("Drill", drill, {"restore": None})
