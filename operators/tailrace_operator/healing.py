"""Failover as far as Kubernetes has a part in it: looks, asks `failover`, and does what it says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from tailrace_operator.failover import (
    Act,
    BrokerPod,
    Claim,
    FenceAndForget,
    GiveUpVolume,
    Grow,
    grow,
    heal,
    read_quantity,
)
from tailrace_operator.kube import KubeError
from tailrace_operator.manifests import BROKER, Manifest, workload_name
from tailrace_operator.rollout import Health
from tailrace_operator.spec import CLUSTER_LABEL, ROLE_LABEL, ClusterSpec, InvalidSpec

CLAIM: Final = "PersistentVolumeClaim"
SELECTED_NODE: Final = "volume.kubernetes.io/selected-node"


class Api(Protocol):
    """What is asked of Kubernetes (`kube.Kube`)."""

    async def list(self, api_version: str, kind: str, selector: str = "") -> list[Manifest]: ...
    async def patch(self, api_version: str, kind: str, name: str, patch: Manifest) -> None: ...
    async def delete(
        self, api_version: str, kind: str, name: str, *, uid: str, grace_s: int | None = None
    ) -> None: ...
    async def event(self, about: Manifest, *, reason: str, message: str, warning: bool) -> None: ...
    async def node_is_gone(self, node: str) -> bool: ...


class Link(Protocol):
    """What is asked of a Tailrace cluster (`clusters.ClusterLink`)."""

    async def fence(self, broker_id: int, *, instance: str, reason: str) -> tuple[bool, str]: ...


class _CannotGrow(Exception):
    """Kubernetes refuses a larger claim; the message says why."""


class Healing:
    """One round for one cluster."""

    def __init__(
        self,
        api: Api,
        link: Link,
        spec: ClusterSpec,
        resource: Manifest,
        read_time: Callable[[str], int],
    ) -> None:
        self._api = api
        self._link = link
        self._spec = spec
        self._resource = resource
        self._read_time = read_time

    async def play(self, health: Health, now_ms: int) -> str:
        """Do what is to be done; a sentence about what could not be, the first one."""
        selector = f"{CLUSTER_LABEL}={self._spec.name},{ROLE_LABEL}={BROKER}"
        pods = [self._pod(each) for each in await self._api.list("v1", "Pod", selector)]
        claims = await self._claims(selector, pods)
        troubles = [await self._do(act) for act in heal(pods, claims, health, now_ms=now_ms)]
        troubles.append(await self._grow_all(claims))
        return next(filter(None, troubles), "")

    async def _do(self, act: Act) -> str:
        match act:
            case FenceAndForget(pod, why):
                sure, told = await self._fence(pod, why)
                if not sure:
                    return told
                await self._tell("ForceDelete", f"{why}: {told}, so the pod is struck off")
                await self._api.delete("v1", "Pod", pod.name, uid=pod.uid, grace_s=0)
            case GiveUpVolume(claim, pod, why):
                if pod is not None:
                    sure, told = await self._fence(pod, why)
                    if not sure:
                        return told
                await self._tell("NewVolume", f"{why}: it gets a new one, and copies its replicas")
                await self._api.delete("v1", CLAIM, claim.name, uid=claim.uid)
                if pod is not None:
                    await self._api.delete("v1", "Pod", pod.name, uid=pod.uid, grace_s=0)
        return ""

    async def _grow_all(self, claims: Sequence[Claim]) -> str:
        try:
            for act in grow(claims, self._spec.storage.size):
                await self._grow(act)
        except (InvalidSpec, _CannotGrow) as error:
            # Storage classes that cannot do it are many: the cluster runs on with what it has.
            if str(error) not in str((self._resource.get("status") or {}).get("message")):
                await self._tell("GrowFailed", str(error))
            return str(error)
        return ""

    async def _grow(self, act: Grow) -> None:
        requests = {"spec": {"resources": {"requests": {"storage": act.size}}}}
        try:
            await self._api.patch("v1", CLAIM, act.claim.name, requests)
        except KubeError as error:
            if not error.status:
                raise
            raise _CannotGrow(f"{act.claim.name} cannot grow to {act.size}: {error}") from error
        await self._tell("Grow", f"{act.claim.name} grows to {act.size}")

    async def _fence(self, pod: BrokerPod, why: str) -> tuple[bool, str]:
        return await self._link.fence(pod.ordinal, instance=pod.uid, reason=why)

    async def _tell(self, reason: str, message: str) -> None:
        await self._api.event(
            self._resource, reason=reason, message=message, warning=reason != "Grow"
        )

    def _pod(self, pod: Manifest) -> BrokerPod:
        metadata = pod["metadata"]
        going = metadata.get("deletionTimestamp")
        conditions = (pod.get("status") or {}).get("conditions") or []
        waits = [
            each
            for each in conditions
            if each["type"] == "PodScheduled" and each["status"] == "False"
        ]
        ordinal = metadata["name"].rpartition("-")[2]
        return BrokerPod(
            name=metadata["name"],
            ordinal=int(ordinal) if ordinal.isdigit() else -1,
            uid=metadata["uid"],
            gone_by_ms=None if going is None else self._read_time(going),
            unplaced=str(waits[0].get("message", "")) if waits else "",
            unplaced_since_ms=(
                self._read_time(waits[0]["lastTransitionTime"])
                if waits and waits[0].get("lastTransitionTime")
                else 0
            ),
        )

    async def _claims(self, selector: str, pods: Sequence[BrokerPod]) -> list[Claim]:
        stem = f"data-{workload_name(self._spec.name, BROKER)}-"
        unplaced = {f"data-{pod.name}" for pod in pods if pod.unplaced}
        found = []
        for each in await self._api.list("v1", CLAIM, selector):
            name = each["metadata"]["name"]
            ordinal = name.removeprefix(stem)
            # Volumes of brokers that were scaled away are kept as they are.
            if ordinal.isdigit() and int(ordinal) < self._spec.brokers.replicas:
                found.append(await self._claim(each, ask_node=name in unplaced))
        return found

    async def _claim(self, claim: Manifest, *, ask_node: bool) -> Claim:
        metadata: dict[str, Any] = claim["metadata"]
        node = str((metadata.get("annotations") or {}).get(SELECTED_NODE, ""))
        asked = ((claim.get("spec") or {}).get("resources") or {}).get("requests") or {}
        return Claim(
            name=metadata["name"],
            uid=metadata["uid"],
            phase=str((claim.get("status") or {}).get("phase", "")),
            bytes=read_quantity(str(asked.get("storage", "0"))),
            node=node,
            node_is_gone=bool(node) and ask_node and await self._api.node_is_gone(node),
            going="deletionTimestamp" in metadata,
        )
