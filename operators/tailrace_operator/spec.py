"""What people write into Cluster and Topic resources, as checked values. Pure.

The API server has checked types and ranges by the schemas of the CRDs; here is what a schema cannot
say, with sentences for people. Nothing here knows Kubernetes beyond the shape of a resource.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from tailrace.model import topic_name_problem

GROUP: Final = "tailrace.dev"
VERSION: Final = "v1alpha1"
CLUSTER_LABEL: Final = f"{GROUP}/cluster"
ROLE_LABEL: Final = f"{GROUP}/role"

DRILLS: Final = (
    "kill-leader",
    "kill-controller",
    "kill-coordinator",
    "kill-broker-and-wipe",
    "stop-etcd",
    "drain-node",
    "roll",
)

Json: TypeAlias = Mapping[str, Any]

# Set by the operator itself; a person's value would break the cluster.
_RESERVED: Final = frozenset(
    {
        "broker.id",
        "controller.id",
        "coordinator.id",
        "listeners",
        "link.listeners",
        "control.listeners",
        "advertised.listeners",
        "advertised.link.listeners",
        "advertised.control.listeners",
        "controller.listeners",
        "controller.advertised.listeners",
        "coordinator.listeners",
        "coordinator.advertised.listeners",
        "etcd.endpoints",
        "etcd.namespace",
        "log.dirs",
        "log.dir",
    }
)
_DURATION: Final = re.compile(r"(\d+)(s|m|h|d)")
_SECONDS: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}


class InvalidSpec(Exception):
    """The resource cannot be acted on; the message is for the person who wrote it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    size: str = "10Gi"
    class_name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleSpec:
    """Brokers, controllers or coordinators: how many, with which settings and resources."""

    replicas: int
    settings: Mapping[str, str] = field(default_factory=dict)
    resources: Json = field(default_factory=dict)
    pod: Json = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSpec:
    """One Tailrace cluster."""

    name: str
    namespace: str
    image: str
    pull_policy: str
    brokers: RoleSpec
    controllers: RoleSpec
    coordinators: RoleSpec
    storage: Storage
    etcd_endpoints: tuple[str, ...]
    etcd_namespace: str
    zone_key: str
    network_policy: bool
    replace_after_s: int
    throttle_bytes: int
    restarted_at: str
    paused: bool

    @property
    def bootstrap(self) -> str:
        """Where clients in the same Kubernetes cluster connect."""
        return f"{self.name}-bootstrap.{self.namespace}.svc:9092"


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSpec:
    """One topic of one cluster."""

    cluster: str
    topic: str
    partitions: int
    replicas: int
    config: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class DrillSpec:
    """One drill: what is done to which cluster, and when."""

    name: str
    cluster: str
    kind: str
    schedule: str = ""
    rate: int = 50
    partitions: int = 6
    warmup_s: int = 5
    hold_s: int = 30
    timeout_s: int = 600
    max_unavailable_ms: int = 30_000
    node: str = ""
    keep_topic: bool = False
    suspended: bool = False


def read_cluster(name: str, namespace: str, spec: Json) -> ClusterSpec:
    """The spec of a Cluster resource; InvalidSpec says what is wrong with it."""
    etcd = spec.get("etcd") or {}
    endpoints = tuple(etcd.get("endpoints") or ())
    if not endpoints:
        raise InvalidSpec("spec.etcd.endpoints names no etcd: give host:port of one or more")
    image = spec.get("image") or ""
    if not image:
        raise InvalidSpec("spec.image is empty: which image do the pods run?")
    brokers = _role(spec, "brokers", 3)
    storage = (spec.get("brokers") or {}).get("storage") or {}
    failover = spec.get("failover") or {}
    return ClusterSpec(
        name=name,
        namespace=namespace,
        image=image,
        pull_policy=spec.get("imagePullPolicy") or "IfNotPresent",
        brokers=brokers,
        controllers=_role(spec, "controllers", 2),
        coordinators=_role(spec, "coordinators", 2),
        storage=Storage(
            size=str(storage.get("size") or Storage().size),
            class_name=storage.get("storageClassName") or None,
        ),
        etcd_endpoints=endpoints,
        etcd_namespace=etcd.get("namespace") or f"/{namespace}/{name}",
        zone_key=spec.get("zoneKey") or "topology.kubernetes.io/zone",
        network_policy=bool(spec.get("networkPolicy", True)),
        replace_after_s=read_duration(failover.get("replaceAfter") or "30m"),
        throttle_bytes=int((spec.get("reassignment") or {}).get("throttleBytesPerSecond") or 0),
        restarted_at=str(spec.get("restartedAt") or ""),
        paused=bool(spec.get("paused", False)),
    )


def read_topic(name: str, spec: Json) -> TopicSpec:
    """The spec of a Topic resource; InvalidSpec says what is wrong with it."""
    topic = spec.get("topicName") or name
    problem = topic_name_problem(topic)
    if problem is not None:
        raise InvalidSpec(f"spec.topicName: {problem}")
    if topic.startswith("__"):
        raise InvalidSpec(f"{topic!r} begins with two underscores: such topics are Tailrace's own")
    cluster = spec.get("cluster") or ""
    if not cluster:
        raise InvalidSpec("spec.cluster is empty: name the Cluster of this namespace it belongs to")
    return TopicSpec(
        cluster=cluster,
        topic=topic,
        partitions=int(spec.get("partitions") or 1),
        replicas=int(spec.get("replicas") or 0),
        config={key: str(value) for key, value in sorted((spec.get("config") or {}).items())},
    )


def read_drill(name: str, spec: Json) -> DrillSpec:
    """The spec of a Drill resource; InvalidSpec says what is wrong with it."""
    kind, cluster = spec.get("kind") or "", spec.get("cluster") or ""
    if kind not in DRILLS:
        raise InvalidSpec(f"spec.kind is {kind!r}: there are {', '.join(DRILLS)}")
    if not cluster:
        raise InvalidSpec("spec.cluster is empty: name the Cluster of this namespace to drill")
    known = DrillSpec(name=name, cluster=cluster, kind=kind)
    return DrillSpec(
        name=name,
        cluster=cluster,
        kind=kind,
        schedule=str(spec.get("schedule") or ""),
        rate=int(spec.get("recordsPerSecond") or known.rate),
        partitions=int(spec.get("partitions") or known.partitions),
        warmup_s=read_duration(spec.get("warmup") or f"{known.warmup_s}s"),
        hold_s=read_duration(spec.get("holdFor") or f"{known.hold_s}s"),
        timeout_s=read_duration(spec.get("timeout") or f"{known.timeout_s}s"),
        max_unavailable_ms=1000 * read_duration(spec.get("maxUnavailable") or "30s"),
        node=str(spec.get("node") or ""),
        keep_topic=bool(spec.get("keepTopic", False)),
        suspended=bool(spec.get("suspended", False)),
    )


def read_duration(text: str) -> int:
    """Seconds of "90s", "30m", "2h", "1d"."""
    found = _DURATION.fullmatch(text.strip())
    if found is None:
        raise InvalidSpec(f"{text!r} is no duration: write 90s, 30m, 2h or 1d")
    return int(found.group(1)) * _SECONDS[found.group(2)]


def _role(spec: Json, role: str, replicas: int) -> RoleSpec:
    part = spec.get(role) or {}
    settings = {key: str(value) for key, value in sorted((part.get("settings") or {}).items())}
    taken = sorted(_RESERVED.intersection(settings))
    if taken:
        raise InvalidSpec(f"spec.{role}.settings: {', '.join(taken)} is set by the operator")
    return RoleSpec(
        replicas=int(part.get("replicas", replicas)),
        settings=settings,
        resources=part.get("resources") or {},
        pod=part.get("pod") or {},
    )
