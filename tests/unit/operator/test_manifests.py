"""The objects of a cluster."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tailrace_operator.manifests import (
    BROKER,
    CONFIG_CHECKSUM,
    CONTROLLER,
    RESTARTED_AT,
    ROLES,
    build,
    fingerprint,
    labels,
    properties,
)
from tailrace_operator.spec import ClusterSpec, read_cluster

SPEC = read_cluster(
    "events",
    "prod",
    {
        "image": "tailrace:1",
        "etcd": {"endpoints": ["etcd-0:2379", "etcd-1:2379"]},
        "brokers": {"replicas": 5, "settings": {"segment.bytes": 1024}},
    },
)
OWNER = {"uid": "u-1"}


def objects(spec: ClusterSpec = SPEC) -> dict[tuple[str, str], dict[str, Any]]:
    return {(each["kind"], each["metadata"]["name"]): each for each in build(spec, OWNER)}


def test_all_of_it_belongs_to_the_resource_and_is_in_its_namespace() -> None:
    for each in objects().values():
        assert each["metadata"]["namespace"] == "prod"
        assert each["metadata"]["ownerReferences"][0]["uid"] == "u-1"


def test_the_same_spec_gives_the_same_objects() -> None:
    assert [fingerprint(each) for each in build(SPEC, OWNER)] == [
        fingerprint(each) for each in build(SPEC, OWNER)
    ]


def test_brokers_keep_their_volumes_and_are_replaced_by_the_operator_alone() -> None:
    spec = objects()["StatefulSet", "events-broker"]["spec"]
    assert spec["replicas"] == 5
    assert spec["updateStrategy"] == {"type": "OnDelete"}
    assert spec["podManagementPolicy"] == "Parallel"
    assert set(spec["persistentVolumeClaimRetentionPolicy"].values()) == {"Retain"}


def test_pods_are_as_restricted_as_kubernetes_knows_to_ask_for() -> None:
    for role in ROLES:
        pod = objects()["StatefulSet", f"events-{role}"]["spec"]["template"]["spec"]
        assert pod["securityContext"]["runAsNonRoot"]
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        (container,) = pod["containers"]
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }


def test_recovery_of_a_log_may_take_an_hour_before_a_pod_is_given_up() -> None:
    template = objects()["StatefulSet", "events-broker"]["spec"]["template"]
    probe = template["spec"]["containers"][0]["startupProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] >= 3_600


def test_probes_ask_the_process_and_leave_brokers_to_clients_while_etcd_is_away() -> None:
    for role in ROLES:
        template = objects()["StatefulSet", f"events-{role}"]["spec"]["template"]
        (container,) = template["spec"]["containers"]
        ports = {each["name"]: each["containerPort"] for each in container["ports"]}
        (listens,) = (e for e in container["env"] if e["name"] == "TAILRACE_METRICS_LISTENERS")
        assert listens["value"] == f"0.0.0.0:{ports['metrics']}"
        for kind in ("startupProbe", "livenessProbe"):
            assert container[kind]["httpGet"] == {"path": "/livez", "port": "metrics"}
        ready = container["readinessProbe"]
        if role == BROKER:
            assert ready["tcpSocket"]["port"] == "clients"
        else:
            assert ready["httpGet"] == {"path": "/readyz", "port": "metrics"}


def test_a_change_of_settings_changes_the_pods_of_that_role_alone() -> None:
    brokers = replace(SPEC.brokers, settings={"segment.bytes": "2048"})
    changed = objects(replace(SPEC, brokers=brokers))
    for role in ROLES:
        before = objects()["StatefulSet", f"events-{role}"]["spec"]["template"]["metadata"]
        after = changed["StatefulSet", f"events-{role}"]["spec"]["template"]["metadata"]
        same = before["annotations"][CONFIG_CHECKSUM] == after["annotations"][CONFIG_CHECKSUM]
        assert same == (role != BROKER)


def test_a_restart_is_asked_for_by_an_annotation() -> None:
    spec = objects(replace(SPEC, restarted_at="today"))["StatefulSet", "events-broker"]["spec"]
    assert spec["template"]["metadata"]["annotations"][RESTARTED_AT] == "today"


def test_settings_of_a_role_are_its_config_file() -> None:
    assert properties(SPEC, BROKER) == (
        "etcd.endpoints=etcd-0:2379,etcd-1:2379\n"
        "etcd.namespace=/prod/events\n"
        "log.dirs=/var/lib/tailrace/data\n"
        "segment.bytes=1024\n"
    )


def test_each_pod_knows_its_number_its_name_and_its_life() -> None:
    template = objects()["StatefulSet", "events-broker"]["spec"]["template"]
    env = {each["name"]: each for each in template["spec"]["containers"][0]["env"]}
    path = env["TAILRACE_BROKER_ID"]["valueFrom"]["fieldRef"]["fieldPath"]
    assert path == "metadata.labels['apps.kubernetes.io/pod-index']"
    assert env["TAILRACE_BROKER_INSTANCE"]["valueFrom"]["fieldRef"]["fieldPath"] == "metadata.uid"
    assert env["TAILRACE_ADVERTISED_LISTENERS"]["value"] == (
        "$(POD_NAME).events-broker.prod.svc:9092"
    )


def test_links_are_open_to_the_cluster_alone() -> None:
    rules = objects()["NetworkPolicy", "events"]["spec"]["ingress"]
    (links,) = [rule for rule in rules if {"port": 9093} in rule["ports"]]
    assert links["from"] == [{"podSelector": {"matchLabels": labels("events", BROKER)}}]
    assert ("NetworkPolicy", "events") not in objects(replace(SPEC, network_policy=False))


def test_a2_only_controllers_reach_the_control_port_of_a_broker() -> None:
    rules = objects()["NetworkPolicy", "events"]["spec"]["ingress"]
    (control,) = [rule for rule in rules if {"port": 9095} in rule["ports"]]
    assert control["from"] == [{"podSelector": {"matchLabels": labels("events", CONTROLLER)}}]
    assert control["ports"] == [{"port": 9095}]
    template = objects()["StatefulSet", "events-broker"]["spec"]["template"]
    env = {each["name"]: each.get("value") for each in template["spec"]["containers"][0]["env"]}
    assert env["TAILRACE_CONTROL_LISTENERS"] == "0.0.0.0:9095"
    assert env["TAILRACE_ADVERTISED_CONTROL_LISTENERS"] == "$(POD_NAME).events-broker.prod.svc:9095"
    bootstrap = objects()["Service", "events-bootstrap"]["spec"]["ports"]
    assert [each["port"] for each in bootstrap] == [9092]


def test_selectors_never_change_with_the_spec() -> None:
    for spec in (SPEC, replace(SPEC, image="tailrace:2", restarted_at="x")):
        found = objects(spec)["StatefulSet", "events-broker"]["spec"]["selector"]
        assert found == {"matchLabels": labels("events", BROKER)}
