"""What the chart renders, and what it refuses. Needs `helm` on the path: `make chart` runs this."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

CHART: Final = Path(__file__).resolve().parents[2] / "deploy" / "helm" / "tailrace"
EXAMPLES: Final = sorted((CHART / "ci").glob("*-values.yaml"))
Objects = dict[tuple[str, str], dict[str, Any]]


def helm(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["helm", *words], capture_output=True, text=True, check=False, timeout=60)


def render(*words: str) -> Objects:
    done = helm("template", "demo", str(CHART), "--namespace", "prod", *words)
    assert done.returncode == 0, done.stderr
    found = [each for each in yaml.safe_load_all(done.stdout) if each]
    return {(each["kind"], each["metadata"]["name"]): each for each in found}


def refused(*words: str) -> str:
    done = helm("template", "demo", str(CHART), *words)
    assert done.returncode != 0
    return done.stderr


@pytest.mark.parametrize("values", [None, *EXAMPLES], ids=lambda each: each.stem if each else "-")
def test_lint(values: Path | None) -> None:
    done = helm("lint", "--strict", str(CHART), *(["-f", str(values)] if values else []))
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("values", [None, *EXAMPLES], ids=lambda each: each.stem if each else "-")
def test_every_pod_is_restricted(values: Path | None) -> None:
    objects = render(*(["-f", str(values)] if values else []))
    pods = [
        each["spec"]["template"]["spec"] if each["kind"] != "Pod" else each["spec"]
        for each in objects.values()
        if each["kind"] in {"Deployment", "StatefulSet", "Pod"}
    ]
    assert pods
    for pod in pods:
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in pod["containers"]:
            secured = container["securityContext"]
            assert secured["readOnlyRootFilesystem"] is True
            assert secured["allowPrivilegeEscalation"] is False
            assert secured["capabilities"] == {"drop": ["ALL"]}


def test_by_default_a_cluster_an_operator_and_an_etcd() -> None:
    objects = render()
    spec = objects["Cluster", "demo"]["spec"]
    assert spec["image"] == "tailrace:0.1.0"
    assert spec["brokers"]["replicas"] == 3
    assert spec["etcd"]["endpoints"] == ["demo-etcd-0.demo-etcd.prod.svc:2379"]
    assert objects["StatefulSet", "demo-etcd"]["spec"]["replicas"] == 1
    assert "ClusterRole" not in {kind for kind, _ in objects}


def test_three_etcds_know_one_another() -> None:
    objects = render("--set", "etcd.replicas=3")
    etcd = objects["StatefulSet", "demo-etcd"]["spec"]
    wanted = ",".join(
        f"demo-etcd-{each}=http://demo-etcd-{each}.demo-etcd.prod.svc:2380" for each in range(3)
    )
    assert f"--initial-cluster={wanted}" in etcd["template"]["spec"]["containers"][0]["args"]
    assert len(objects["Cluster", "demo"]["spec"]["etcd"]["endpoints"]) == 3


def test_an_etcd_of_your_own() -> None:
    objects = render("-f", str(CHART / "ci" / "external-values.yaml"))
    assert ("StatefulSet", "demo-etcd") not in objects
    etcd = objects["Cluster", "demo"]["spec"]["etcd"]
    assert etcd["endpoints"] == ["etcd-0.example:2379", "etcd-1.example:2379"]
    assert etcd["namespace"] == "/prod/events"


def test_the_operator_has_its_namespace_and_its_lease() -> None:
    objects = render()
    rules = objects["Role", "demo-operator"]["rules"]
    leases = next(each for each in rules if "leases" in each["resources"])
    assert leases["resourceNames"] == ["demo-operator"]
    assert "spec" not in objects["Lease", "demo-operator"]
    container = objects["Deployment", "demo-operator"]["spec"]["template"]["spec"]["containers"][0]
    assert {"name": "TAILRACE_OPERATOR_LEASE", "value": "demo-operator"} in container["env"]
    wider = render("--set", "operator.nodeAccess=true")["ClusterRole", "prod-demo-operator-nodes"]
    assert wider["rules"] == [
        {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "patch"]}
    ]


def test_topics_drills_jobs_and_monitoring() -> None:
    objects = render("-f", str(CHART / "ci" / "all-values.yaml"))
    assert objects["Topic", "orders"]["spec"] == {
        "cluster": "demo",
        "partitions": 6,
        "config": {"retention.ms": 86400000},
    }
    assert objects["Drill", "nightly"]["spec"]["cluster"] == "demo"
    job = objects["SparkApplication", "demo-totals"]["spec"]
    assert job["mainApplicationFile"] == "local:///opt/tailrace/jobs/aggregate.py"
    assert job["arguments"][:2] == ["--bootstrap", "demo-bootstrap.prod.svc:9092"]
    assert job["executor"]["instances"] == 2
    assert job["sparkConf"] == {"spark.sql.shuffle.partitions": "4"}
    claim = objects[
        "PersistentVolumeClaim", job["volumes"][0]["persistentVolumeClaim"]["claimName"]
    ]
    assert claim["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    monitor = objects["ServiceMonitor", "demo-operator"]
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    service = objects["Service", "demo-operator"]
    selected = monitor["spec"]["selector"]["matchLabels"].items()
    assert selected <= service["metadata"]["labels"].items()
    for name in ("demo-operator", "demo-operator-clusters"):
        (endpoint,) = objects["ServiceMonitor", name]["spec"]["endpoints"]
        [instance] = endpoint["relabelings"]
        # Two clusters of one name, in two namespaces, must not be taken for one.
        assert instance["targetLabel"] == "instance"
        assert instance["sourceLabels"] == [
            "__meta_kubernetes_namespace",
            "__meta_kubernetes_pod_name",
        ]
    groups = objects["PrometheusRule", "demo-operator"]["spec"]["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert all(each["annotations"]["summary"] for each in rules)
    shipped = yaml.safe_load((CHART / "files" / "tailrace.rules.yaml").read_text("utf-8"))["groups"]
    assert groups[:-1] == shipped
    names = [each["alert"] for each in rules]
    assert len(set(names)) == len(names)
    boards = {name: each for (kind, name), each in objects.items() if name.endswith("-dashboard")}
    assert len(boards) == len(list((CHART / "files" / "dashboards").iterdir())) > 0
    for each in boards.values():
        assert each["metadata"]["labels"]["grafana_dashboard"] == "1"
        ((name, text),) = each["data"].items()
        source = CHART / "files" / "dashboards" / name.removeprefix("tailrace-")
        assert json.loads(text) == json.loads(source.read_text("utf-8"))


def test_without_their_services_clusters_are_watched_through_the_operator() -> None:
    objects = render("--set", "monitoring.prometheusRule.enabled=true")
    (group,) = objects["PrometheusRule", "demo-operator"]["spec"]["groups"]
    assert "TailracePartitionsOffline" in {each["alert"] for each in group["rules"]}
    assert "ServiceMonitor" not in {kind for kind, _ in objects}
    assert not [name for _, name in objects if name.endswith("-dashboard")]


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ("cluster.brokers.replicas=0", "replicas"),
        ("etcd.replicas=2", "etcd"),
        ("cluster.brokers.storage.size=lots", "size"),
        ("cluster.broker.replicas=3", "broker"),
        ("cluster.failover.replaceAfter=soon", "replaceAfter"),
        ("etcd.enabled=false", "which etcd?"),
        ("spark.jobs.x.file=../evil", "file"),
    ],
)
def test_bad_values_are_refused(setting: str, told: str) -> None:
    assert told in refused("--set", setting)


@pytest.mark.parametrize("name", ["9lives", "my.demo", "-"])
def test_a_name_that_no_service_can_have_is_refused(name: str) -> None:
    done = helm("template", "demo", str(CHART), f"--set-string=cluster.name={name}")
    assert done.returncode != 0
    assert "cluster.name" in done.stderr or "/cluster/name" in done.stderr
    done = helm("template", "9lives", str(CHART))
    assert "begins with a small letter" in done.stderr


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("topics.Orders.partitions=3", "topics.Orders: the name of a resource has small letters"),
        ("drills.Mine.kind=roll", "drills.Mine: the name of a resource has small letters"),
        ("topics.orders.topicName=a/b", "/topics/orders/topicName"),
        ("drills.x.kind=pull-plug", "value must be one of 'kill-leader'"),
        ("drills.x.kind=roll,drills.x.hold=5s", "additional properties 'hold' not allowed"),
        ("externalEtcd.endpoints={mine:2379}", "set etcd.enabled=false to use yours"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_made(words: str, sentence: str) -> None:
    assert sentence in refused("--set", words)
