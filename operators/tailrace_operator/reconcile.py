"""One round for one cluster: look, build, decide, do one thing, say how it stands.

A round reads everything anew and remembers nothing, so it does not matter who made the last one, or
where it died. What is done: objects as the spec wants them (`manifests`), then the one next step
(`rollout`), then the status.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Protocol

from tailrace.errors import TailraceError
from tailrace_operator import healing
from tailrace_operator.healing import Healing
from tailrace_operator.kube import KubeError
from tailrace_operator.manifests import (
    BROKER,
    ROLES,
    Manifest,
    build,
    workload_name,
)
from tailrace_operator.rollout import (
    Health,
    Observed,
    Pod,
    Restart,
    Scale,
    Settled,
    Spread,
    Step,
    Uncordon,
    Wait,
    next_step,
)
from tailrace_operator.spec import (
    CLUSTER_LABEL,
    ROLE_LABEL,
    ClusterSpec,
    InvalidSpec,
    read_cluster,
)

APPS: Final = "apps/v1"
REVISION_LABEL: Final = "controller-revision-hash"
PROBLEM_MAX: Final = 300


class Api(healing.Api, Protocol):
    """What is asked of Kubernetes (`kube.Kube`)."""

    async def get(self, api_version: str, kind: str, name: str) -> Manifest | None: ...
    async def apply(self, manifest: Manifest) -> bool: ...
    async def patch_status(self, kind: str, name: str, status: Manifest) -> None: ...


class SpreadFailed(Exception):
    """Replicas could not be moved; the message says why."""


class Link(healing.Link, Protocol):
    """What is asked of a Tailrace cluster (`clusters.ClusterLink`)."""

    async def health(self) -> tuple[Health, frozenset[int]]: ...
    async def spread(self, brokers: Sequence[int], *, throttle_bytes: int) -> str: ...
    async def uncordon(self, brokers: Sequence[int]) -> None: ...


@dataclass(frozen=True, slots=True)
class Moments:
    """How Kubernetes writes moments, and how they are read back, in ms since 1970."""

    write: Callable[[int], str]
    read: Callable[[str], int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a round did, for the status and for the log."""

    step: Step
    health: Health
    changed: tuple[str, ...] = ()


async def reconcile(
    resource: Manifest, *, api: Api, link: Link, moments: Moments, now_ms: int
) -> Outcome | None:
    """Make one round; None when the resource cannot be acted on, which its status then says."""
    name, now = resource["metadata"]["name"], moments.write(now_ms)
    try:
        spec = read_cluster(name, resource["metadata"]["namespace"], resource.get("spec") or {})
    except InvalidSpec as error:
        await _write_status(api, resource, _invalid(resource, str(error), now))
        return None
    changed, refused = ((), "") if spec.paused else await _apply(spec, resource, api)
    seen, away = await _observe(spec, resource, api, link, now_ms)
    if spec.paused:
        step: Step = Wait("spec.paused is true")
    else:
        trouble = await Healing(api, link, spec, resource, moments.read).play(seen.health, now_ms)
        # With objects that are not as wanted no step leads there.
        step = Wait(refused) if refused else next_step(seen)
        # What could not be mended is told, and keeps nobody from the steps that are safe.
        if trouble and isinstance(step, Wait | Settled):
            step = Wait(trouble)
    since = [{"broker": broker, "sinceMs": since_ms} for broker, since_ms in away.items()]
    status = {**_status(spec, resource, seen, step, now), "away": since}
    extra = await _perform(step, spec, resource, api, link)
    await _write_status(api, resource, {**status, **extra})
    return Outcome(step=step, health=seen.health, changed=changed)


# ---------------------------------------------------------------------------------------- doing


async def _apply(spec: ClusterSpec, resource: Manifest, api: Api) -> tuple[tuple[str, ...], str]:
    """What was changed, and what Kubernetes would not take of it, in words: the first of that."""
    changed, refused = [], ""
    for manifest in build(spec, resource["metadata"]):
        wanted = manifest
        if (
            manifest["kind"] == "StatefulSet"
            and manifest["metadata"]["labels"][ROLE_LABEL] == BROKER
        ):
            wanted = await _with_brokers_as_they_are(manifest, api)
        try:
            if await api.apply(wanted):
                changed.append(f"{manifest['kind']} {manifest['metadata']['name']}")
        except KubeError as error:
            if not error.is_refusal:
                raise
            refused = refused or f"Kubernetes refuses what the spec asks for: {error}"
    return tuple(changed), refused


async def _with_brokers_as_they_are(manifest: Manifest, api: Api) -> Manifest:
    """How many brokers there are changes by steps of its own.

    Which volumes new brokers get cannot be changed at all: their claims grow instead.
    """
    now = await api.get(APPS, "StatefulSet", manifest["metadata"]["name"])
    if now is None:
        return manifest
    kept = {"replicas": now["spec"]["replicas"]}
    before = (now["spec"].get("volumeClaimTemplates") or [{}])[0].get("spec")
    if before is not None:
        template = manifest["spec"]["volumeClaimTemplates"][0]
        same = {
            key: before[key]
            for key in ("accessModes", "resources", "storageClassName")
            if key in before and (key != "storageClassName" or key in template["spec"])
        }
        kept["volumeClaimTemplates"] = [{**template, "spec": same}]
    return {**manifest, "spec": {**manifest["spec"], **kept}}


async def _perform(
    step: Step, spec: ClusterSpec, resource: Manifest, api: Api, link: Link
) -> dict[str, Any]:
    """Do it, and tell of it; gives what is to stand in the status besides."""
    match step:
        case Restart(pod, why):
            await api.event(resource, reason="Restart", message=why, warning=False)
            await api.delete("v1", "Pod", pod.name, uid=pod.uid)
        case Scale(brokers, why):
            await api.event(resource, reason="Scale", message=why, warning=False)
            name = workload_name(spec.name, BROKER)
            await api.patch(APPS, "StatefulSet", name, {"spec": {"replicas": brokers}})
        case Spread(brokers, why):
            try:
                told = await link.spread(brokers, throttle_bytes=spec.throttle_bytes)
            except SpreadFailed as error:
                problem = f"{why}, but their replicas cannot be placed: {error}"
                if (resource.get("status") or {}).get("message") != problem:
                    await api.event(resource, reason="SpreadFailed", message=problem, warning=True)
                return {"message": problem}
            await api.event(resource, reason="Spread", message=f"{why}: {told}", warning=False)
            return {"placedOn": list(brokers)}
        case Uncordon(brokers, why):
            with suppress(TailraceError):
                # One that is not answered is asked again in the next round.
                await link.uncordon(brokers)
        case Wait() | Settled():
            pass
    return {}


# --------------------------------------------------------------------------------------- looking


async def pods_of(cluster: str, api: Api) -> tuple[list[Pod], int]:
    """The pods of a cluster, and how many brokers its StatefulSet has been told to run."""
    found = await api.list("v1", "Pod", f"{CLUSTER_LABEL}={cluster},{ROLE_LABEL}")
    sets = {}
    for role in ROLES:
        sets[role] = await api.get(APPS, "StatefulSet", workload_name(cluster, role)) or {}
    pods = [pod for each in found if (pod := _pod(each, sets)) is not None]
    return pods, int((sets[BROKER].get("spec") or {}).get("replicas") or 0)


async def _observe(
    spec: ClusterSpec, resource: Manifest, api: Api, link: Link, now_ms: int
) -> tuple[Observed, dict[int, int]]:
    """How everything is, and since when which brokers are away."""
    pods, brokers_now = await pods_of(spec.name, api)
    health, holding = await link.health()
    before = resource.get("status") or {}
    placed = before.get("placedOn")
    known = {int(each["broker"]): int(each["sinceMs"]) for each in before.get("away") or []}
    away = _away(known, spec, health, now_ms)
    seen = Observed(
        brokers_wanted=spec.brokers.replicas,
        brokers_now=brokers_now,
        pods=pods,
        health=health,
        placed_on=None if placed is None else frozenset(int(each) for each in placed),
        holding=holding,
        overdue=frozenset(
            broker
            for broker, since_ms in away.items()
            if now_ms - since_ms >= spec.replace_after_s * 1000
        ),
    )
    return seen, away


def _away(
    before: Mapping[int, int], spec: ClusterSpec, health: Health, now_ms: int
) -> dict[int, int]:
    """Since when each broker that should be there is not; a silent cluster says nothing new."""
    if not health.reachable:
        return dict(before)
    missing = sorted(set(range(spec.brokers.replicas)) - health.brokers)
    return {each: before.get(each, now_ms) for each in missing}


def _pod(pod: Manifest, sets: Mapping[str, Manifest]) -> Pod | None:
    metadata = pod["metadata"]
    role = metadata["labels"].get(ROLE_LABEL, "")
    ordinal = metadata["name"].rpartition("-")[2]
    if role not in ROLES or not ordinal.isdigit():
        return None
    wanted = (sets[role].get("status") or {}).get("updateRevision", "")
    conditions = (pod.get("status") or {}).get("conditions") or []
    return Pod(
        name=metadata["name"],
        role=role,
        ordinal=int(ordinal),
        uid=metadata["uid"],
        ready=any(each["type"] == "Ready" and each["status"] == "True" for each in conditions),
        terminating="deletionTimestamp" in metadata,
        outdated=bool(wanted) and metadata["labels"].get(REVISION_LABEL) != wanted,
        problem=_problem(pod),
    )


def _problem(pod: Manifest) -> str:
    """Why a pod does not run: no node, no image, or a process that ends, with its last line."""
    status = pod.get("status") or {}
    for each in status.get("containerStatuses") or []:
        if each.get("ready"):
            continue
        waiting = (each.get("state") or {}).get("waiting") or {}
        ended = (each.get("state") or {}).get("terminated") or {}
        ended = ended or (each.get("lastState") or {}).get("terminated") or {}
        if ended.get("exitCode"):
            lines = str(ended.get("message") or "").strip().splitlines()
            last = f": {lines[-1][:PROBLEM_MAX]}" if lines else ""
            return f"its process ended with {ended['exitCode']}{last}"
        if waiting.get("reason") not in {None, "ContainerCreating", "PodInitializing"}:
            return f"{waiting['reason']}: {str(waiting.get('message', ''))[:PROBLEM_MAX]}"
    for each in status.get("conditions") or []:
        if each["type"] == "PodScheduled" and each["status"] == "False":
            return str(each.get("message", ""))[:PROBLEM_MAX]
    return ""


# ---------------------------------------------------------------------------------------- saying


def _status(
    spec: ClusterSpec, resource: Manifest, seen: Observed, step: Step, now: str
) -> dict[str, Any]:
    health = seen.health
    ready = sum(pod.ready for pod in seen.pods if pod.role == BROKER)
    # A pod that is not ready is found by no client, whatever its broker says.
    up = health.is_whole and min(len(health.brokers), ready) >= spec.brokers.replicas
    message = _sentence(step, seen)
    placed = seen.placed_on
    if placed is None and len(health.brokers) >= spec.brokers.replicas:
        placed = frozenset(range(spec.brokers.replicas))
    say = Conditions(resource, message, now)
    return {
        "observedGeneration": say.generation,
        "bootstrap": spec.bootstrap,
        "brokers": f"{ready}/{spec.brokers.replicas}",
        "brokerCount": seen.brokers_now,
        "registered": sorted(health.brokers),
        "controller": health.controller,
        "partitions": health.partitions,
        "underReplicated": health.under_replicated,
        "underMinIsr": health.under_min_isr,
        "offline": health.offline,
        "moving": health.moving,
        "message": message,
        **({} if placed is None else {"placedOn": sorted(placed)}),
        "conditions": [
            say("Ready", holds=up, reason="Whole" if up else "NotWhole"),
            say("Progressing", holds=not isinstance(step, Settled), reason=type(step).__name__),
        ],
    }


def _invalid(resource: Manifest, message: str, now: str) -> dict[str, Any]:
    say = Conditions(resource, message, now)
    return {
        "observedGeneration": say.generation,
        "message": message,
        "conditions": [say("Ready", holds=False, reason="InvalidSpec")],
    }


class Conditions:
    """Makes conditions whose transition time only changes when they do."""

    def __init__(self, resource: Manifest, message: str, now: str) -> None:
        self.generation = resource["metadata"].get("generation", 0)
        old = (resource.get("status") or {}).get("conditions") or []
        self._before = {each.get("type"): each for each in old}
        self._message = message
        self._now = now

    def __call__(self, kind: str, *, holds: bool, reason: str) -> dict[str, Any]:
        status = "True" if holds else "False"
        before = self._before.get(kind) or {}
        is_same = before.get("status") == status
        return {
            "type": kind,
            "status": status,
            "reason": reason,
            "message": self._message,
            "observedGeneration": self.generation,
            "lastTransitionTime": before["lastTransitionTime"] if is_same else self._now,
        }


def _sentence(step: Step, seen: Observed) -> str:
    health = seen.health
    if not isinstance(step, Settled):
        return step.why
    if not health.reachable:
        told = [f"{pod.name}: {pod.problem}" for pod in seen.pods if pod.problem]
        return f"the cluster does not answer yet{'; ' if told else ''}{''.join(told[:1])}"
    if health.offline:
        return f"{health.offline} partitions are offline"
    if health.under_replicated:
        return f"{health.under_replicated} partitions are under-replicated"
    unready = [pod for pod in seen.pods if not pod.ready]
    if unready:
        because = f": {unready[0].problem}" if unready[0].problem else ""
        return f"{unready[0].name} is not ready yet{because}"
    return "all is well"


async def _write_status(api: Api, resource: Manifest, status: dict[str, Any]) -> None:
    """Only when it says something new: a status that is written wakes everybody who watches."""
    before = resource.get("status") or {}
    if any(before.get(key) != value for key, value in status.items()):
        await api.patch_status("Cluster", resource["metadata"]["name"], status)
