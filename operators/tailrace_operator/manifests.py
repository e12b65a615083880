"""The Kubernetes objects that a cluster is made of, as plain dictionaries. Pure.

The same spec always gives the same objects. A change of settings changes the ConfigMap, whose
checksum stands in the pods' annotations: so a pod tells whether it runs what is wanted.

Brokers are replaced by the operator, one at a time (`OnDelete`): Kubernetes knows when a pod is
ready, but not when its replicas are in sync again.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any, Final

from tailrace_operator.spec import (
    CLUSTER_LABEL,
    GROUP,
    ROLE_LABEL,
    VERSION,
    ClusterSpec,
    Json,
    RoleSpec,
)

BROKER: Final = "broker"
CONTROLLER: Final = "controller"
COORDINATOR: Final = "coordinator"
ROLES: Final = (BROKER, CONTROLLER, COORDINATOR)

BROKER_PORT: Final = 9092
LINK_PORT: Final = 9093
CONTROL_PORT: Final = 9095
CONTROLLER_PORT: Final = 9090
COORDINATOR_PORT: Final = 9094
METRICS_PORT: Final = 9404
CONFIG_CHECKSUM: Final = f"{GROUP}/config"
RESTARTED_AT: Final = f"{GROUP}/restarted-at"
# How long SIGTERM may take: leaderships are handed over and logs closed within it.
GRACE_S: Final = 60
# Recovery of a large log after a crash takes its time; only after this is a start given up.
STARTUP_S: Final = 3_600
_PROBE_S: Final = 5
_DATA: Final = "/var/lib/tailrace"
_CONFIG: Final = "/etc/tailrace"
_USER: Final = 10_001

Manifest = dict[str, Any]


def workload_name(cluster: str, role: str) -> str:
    return f"{cluster}-{role}"


def labels(cluster: str, role: str) -> dict[str, str]:
    """What selects the pods of a role; never changed, since selectors cannot be."""
    return {CLUSTER_LABEL: cluster, ROLE_LABEL: role}


def build(spec: ClusterSpec, owner: Json) -> list[Manifest]:
    """All objects of a cluster in the order in which they are to be made."""
    built: list[Manifest] = []
    for role in ROLES:
        built += [_config_map(spec, role), _headless(spec, role)]
    built.append(_bootstrap(spec))
    built += [_disruption_budget(spec, role) for role in ROLES]
    if spec.network_policy:
        built.append(_network_policy(spec))
    built += [_stateful_set(spec, role) for role in (CONTROLLER, BROKER, COORDINATOR)]
    for manifest in built:
        manifest["metadata"]["ownerReferences"] = [_owner(spec, owner)]
    return built


def role_of(spec: ClusterSpec, role: str) -> RoleSpec:
    return {
        BROKER: spec.brokers,
        CONTROLLER: spec.controllers,
        COORDINATOR: spec.coordinators,
    }[role]


def properties(spec: ClusterSpec, role: str) -> str:
    """The config file of a role: what differs between its pods comes from their environment."""
    fixed = {
        "etcd.endpoints": ",".join(spec.etcd_endpoints),
        "etcd.namespace": spec.etcd_namespace,
    }
    if role == BROKER:
        fixed["log.dirs"] = f"{_DATA}/data"
    lines = {**role_of(spec, role).settings, **fixed}
    return "".join(f"{name}={value}\n" for name, value in sorted(lines.items()))


def checksum(spec: ClusterSpec, role: str) -> str:
    return hashlib.sha256(properties(spec, role).encode()).hexdigest()[:16]


def fingerprint(manifest: Manifest) -> str:
    """Tells whether an object was applied as it is wanted now."""
    text = json.dumps(manifest, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


# ------------------------------------------------------------------------------------- objects


def _metadata(spec: ClusterSpec, name: str, role: str | None) -> Manifest:
    marks = {
        "app.kubernetes.io/name": "tailrace",
        "app.kubernetes.io/instance": spec.name,
        "app.kubernetes.io/managed-by": "tailrace-operator",
        CLUSTER_LABEL: spec.name,
    }
    if role is not None:
        marks |= {"app.kubernetes.io/component": role, ROLE_LABEL: role}
    return {"name": name, "namespace": spec.namespace, "labels": marks}


def _owner(spec: ClusterSpec, owner: Json) -> Manifest:
    return {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": "Cluster",
        "name": spec.name,
        "uid": owner["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }


def _config_map(spec: ClusterSpec, role: str) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": _metadata(spec, workload_name(spec.name, role), role),
        "data": {"tailrace.properties": properties(spec, role)},
    }


_PORTS: Final = {
    BROKER: {
        "clients": BROKER_PORT,
        "links": LINK_PORT,
        "control": CONTROL_PORT,
        "metrics": METRICS_PORT,
    },
    CONTROLLER: {"grpc": CONTROLLER_PORT, "metrics": METRICS_PORT},
    COORDINATOR: {"grpc": COORDINATOR_PORT, "metrics": METRICS_PORT},
}


def _headless(spec: ClusterSpec, role: str) -> Manifest:
    """A name for each pod, which it has before it is ready too: peers must find it to heal."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(spec, workload_name(spec.name, role), role),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": labels(spec.name, role),
            "ports": [{"name": name, "port": port} for name, port in _PORTS[role].items()],
        },
    }


def _bootstrap(spec: ClusterSpec) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(spec, f"{spec.name}-bootstrap", BROKER),
        "spec": {
            "selector": labels(spec.name, BROKER),
            "ports": [{"name": "clients", "port": BROKER_PORT}],
        },
    }


def _disruption_budget(spec: ClusterSpec, role: str) -> Manifest:
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": _metadata(spec, workload_name(spec.name, role), role),
        "spec": {"maxUnavailable": 1, "selector": {"matchLabels": labels(spec.name, role)}},
    }


def _network_policy(spec: ClusterSpec) -> Manifest:
    """Anybody may reach brokers and coordinators for records.

    Links are between brokers alone, and only controllers give brokers orders.
    """
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": _metadata(spec, spec.name, None),
        "spec": {
            "podSelector": {"matchLabels": {CLUSTER_LABEL: spec.name}},
            "policyTypes": ["Ingress"],
            "ingress": [
                {
                    "ports": [
                        {"port": port}
                        for port in (BROKER_PORT, CONTROLLER_PORT, COORDINATOR_PORT, METRICS_PORT)
                    ]
                },
                {"from": [_pods_of(spec, BROKER)], "ports": [{"port": LINK_PORT}]},
                {"from": [_pods_of(spec, CONTROLLER)], "ports": [{"port": CONTROL_PORT}]},
            ],
        },
    }


def _pods_of(spec: ClusterSpec, role: str) -> Manifest:
    return {"podSelector": {"matchLabels": labels(spec.name, role)}}


def _stateful_set(spec: ClusterSpec, role: str) -> Manifest:
    wanted = role_of(spec, role)
    name = workload_name(spec.name, role)
    manifest: Manifest = {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": _metadata(spec, name, role),
        "spec": {
            "replicas": wanted.replicas,
            "serviceName": name,
            # Brokers need one another to be ready: all at once, or a cold start never ends.
            "podManagementPolicy": "Parallel",
            "updateStrategy": {"type": "OnDelete"},
            "selector": {"matchLabels": labels(spec.name, role)},
            "template": _pod(spec, role),
        },
    }
    if role == BROKER:
        manifest["spec"]["volumeClaimTemplates"] = [_claim(spec)]
        manifest["spec"]["persistentVolumeClaimRetentionPolicy"] = {
            "whenDeleted": "Retain",
            "whenScaled": "Retain",
        }
    return manifest


def _claim(spec: ClusterSpec) -> Manifest:
    claim: Manifest = {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": spec.storage.size}},
    }
    if spec.storage.class_name is not None:
        claim["storageClassName"] = spec.storage.class_name
    return {"metadata": {"name": "data", "labels": labels(spec.name, BROKER)}, "spec": claim}


def _pod(spec: ClusterSpec, role: str) -> Manifest:
    wanted = role_of(spec, role)
    annotations = {CONFIG_CHECKSUM: checksum(spec, role)}
    if spec.restarted_at:
        annotations[RESTARTED_AT] = spec.restarted_at
    pod: Manifest = {
        "terminationGracePeriodSeconds": GRACE_S,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": _USER,
            "runAsGroup": _USER,
            "fsGroup": _USER,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "topologySpreadConstraints": [
            {
                "maxSkew": 1,
                "topologyKey": key,
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": labels(spec.name, role)},
            }
            for key in (spec.zone_key, "kubernetes.io/hostname")
        ],
        "containers": [_container(spec, role)],
        "volumes": [
            {"name": "config", "configMap": {"name": workload_name(spec.name, role)}},
            {"name": "tmp", "emptyDir": {"sizeLimit": "64Mi"}},
        ],
        **{key: wanted.pod[key] for key in sorted(wanted.pod)},
    }
    return {
        "metadata": {"labels": _metadata(spec, "", role)["labels"], "annotations": annotations},
        "spec": pod,
    }


def _container(spec: ClusterSpec, role: str) -> Manifest:
    mounts = [
        {"name": "config", "mountPath": _CONFIG, "readOnly": True},
        {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108 - the container's own, in memory.
    ]
    if role == BROKER:
        mounts.append({"name": "data", "mountPath": _DATA})
    return {
        "name": role,
        "image": spec.image,
        "imagePullPolicy": spec.pull_policy,
        "args": [role, "--config", f"{_CONFIG}/tailrace.properties"],
        "env": _environment(spec, role),
        "ports": [{"name": name, "containerPort": number} for name, number in _PORTS[role].items()],
        "startupProbe": _probe(_ALIVE, failures=STARTUP_S // _PROBE_S),
        "livenessProbe": _probe(_ALIVE, failures=12),
        "readinessProbe": _probe(_READY[role], failures=1),
        # So that Kubernetes, and the status of the Cluster, can say why a process ended.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "resources": dict(role_of(spec, role).resources),
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": mounts,
    }


# A process is alive as soon as it runs, also while logs are recovered.
_ALIVE: Final = {"httpGet": {"path": "/livez", "port": "metrics"}}
_SERVES: Final = {"httpGet": {"path": "/readyz", "port": "metrics"}}
# A broker listens when its logs are recovered. It serves on without etcd, when /readyz says no:
# clients must find it by the bootstrap service all the same.
_READY: Final = {
    BROKER: {"tcpSocket": {"port": "clients"}},
    CONTROLLER: _SERVES,
    COORDINATOR: _SERVES,
}


def _probe(check: Manifest, *, failures: int) -> Manifest:
    return {
        **check,
        "periodSeconds": _PROBE_S,
        "timeoutSeconds": _PROBE_S,
        "failureThreshold": failures,
    }


def _environment(spec: ClusterSpec, role: str) -> list[Manifest]:
    def from_field(name: str, path: str) -> Manifest:
        return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}

    host = f"$(POD_NAME).{workload_name(spec.name, role)}.{spec.namespace}.svc"
    own = {
        BROKER: {
            "LISTENERS": f"0.0.0.0:{BROKER_PORT}",
            "LINK_LISTENERS": f"0.0.0.0:{LINK_PORT}",
            "CONTROL_LISTENERS": f"0.0.0.0:{CONTROL_PORT}",
            "ADVERTISED_LISTENERS": f"{host}:{BROKER_PORT}",
            "ADVERTISED_LINK_LISTENERS": f"{host}:{LINK_PORT}",
            "ADVERTISED_CONTROL_LISTENERS": f"{host}:{CONTROL_PORT}",
        },
        CONTROLLER: {
            "CONTROLLER_LISTENERS": f"0.0.0.0:{CONTROLLER_PORT}",
            "CONTROLLER_ADVERTISED_LISTENERS": f"{host}:{CONTROLLER_PORT}",
        },
        COORDINATOR: {
            "COORDINATOR_LISTENERS": f"0.0.0.0:{COORDINATOR_PORT}",
            "COORDINATOR_ADVERTISED_LISTENERS": f"{host}:{COORDINATOR_PORT}",
        },
    }[role]
    return [
        from_field("POD_NAME", "metadata.name"),
        *([from_field("TAILRACE_BROKER_INSTANCE", "metadata.uid")] if role == BROKER else []),
        from_field(
            f"TAILRACE_{role.upper()}_ID", "metadata.labels['apps.kubernetes.io/pod-index']"
        ),
        {"name": "TAILRACE_METRICS_LISTENERS", "value": f"0.0.0.0:{METRICS_PORT}"},
        *({"name": f"TAILRACE_{name}", "value": value} for name, value in own.items()),
    ]
