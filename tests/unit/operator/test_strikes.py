"""What each kind of drill breaks, and that it can be put right by anybody."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

import pytest

from tailrace_operator.kube import KubeError
from tailrace_operator.reconcile import reconcile
from tailrace_operator.spec import DrillSpec
from tailrace_operator.strikes import CannotStrike, Striker, forget, restore
from unit.operator.fake_kubernetes import MOMENTS, FakeCluster, FakeKubernetes, cluster_resource

ETCD = {
    "kind": "StatefulSet",
    "metadata": {"name": "events-etcd"},
    "spec": {"replicas": 3, "template": {"metadata": {"labels": {"app": "etcd"}}}},
}
ENDPOINT = "events-etcd-0.events-etcd.prod.svc:2379"


class Bench:
    def __init__(self) -> None:
        self.api = FakeKubernetes()
        self.link = FakeCluster(self.api)
        self.api.put(cluster_resource(etcd={"endpoints": [ENDPOINT]}))

    async def ready(self) -> Bench:
        for _ in range(3):
            resource = self.api.objects["Cluster", "events"]
            await reconcile(resource, api=self.api, link=self.link, moments=MOMENTS, now_ms=0)
            self.api.settle()
        return self

    def striker(self, kind: str, **more: Any) -> Striker:
        spec = DrillSpec(name="d", cluster="events", kind=kind, **more)
        self.api.put({"kind": "Drill", "metadata": {"name": "d"}, "status": {}})
        return Striker(self.api, self.link, spec, topic="t")  # type: ignore[arg-type]

    @property
    def broken(self) -> Any:
        return self.api.objects["Drill", "d"]["status"].get("restore")


@pytest.mark.parametrize(
    ("kind", "pod"),
    [
        ("kill-leader", "events-broker-0"),
        ("kill-controller", "events-controller-1"),
        ("kill-coordinator", "events-coordinator-0"),
    ],
)
async def test_the_right_pod_is_killed(kind: str, pod: str) -> None:
    bench = await Bench().ready()
    uid = bench.api.objects["Pod", pod]["metadata"]["uid"]
    striker = bench.striker(kind)
    assert await striker.strike("now") == f"{pod} is deleted by force"
    assert bench.api.deleted_pods == [pod]
    assert striker.struck == {pod: uid}
    assert bench.broken is None


async def test_a_wipe_takes_the_volume_too() -> None:
    bench = await Bench().ready()
    claim = bench.api.objects.pop(("PersistentVolumeClaim", "data-events-broker-0"))
    striker = bench.striker("kill-broker-and-wipe")
    with pytest.raises(CannotStrike, match="has no claim"):
        await striker.strike("now")
    assert not bench.api.deleted_pods
    bench.api.put(claim)
    await striker.strike("now")
    assert bench.api.deleted_pods == ["data-events-broker-0", "events-broker-0"]


async def test_etcd_is_stopped_and_started_again() -> None:
    bench = await Bench().ready()
    with pytest.raises(CannotStrike, match="stop etcd by hand"):
        await bench.striker("stop-etcd").strike("now")
    bench.api.put({**ETCD})
    striker = bench.striker("stop-etcd", hold_s=9)
    assert await striker.strike("now") == "events-etcd is stopped for 9 s"
    etcd = bench.api.objects["StatefulSet", "events-etcd"]
    assert etcd["spec"]["replicas"] == 0
    assert bench.broken == {"statefulSet": "events-etcd", "replicas": 3}
    assert await striker.still_away() == "events-etcd is not ready"
    await striker.restore()
    assert bench.broken is None
    assert bench.api.objects["StatefulSet", "events-etcd"]["spec"]["replicas"] == 3
    assert await striker.still_away() == "events-etcd is not ready"
    bench.api.settle()
    assert await striker.still_away() == ""
    calls = bench.api.calls
    await striker.restore()
    assert bench.api.calls == calls


async def test_a_node_is_drained_as_far_as_budgets_allow() -> None:
    bench = await Bench().ready()
    bench.api.protected = {f"events-broker-{each}" for each in (1, 2)}
    striker = bench.striker("drain-node")
    told = await striker.strike("now")
    assert told.startswith("node-1 is cordoned, and events-controller-0, ")
    assert bench.api.cordoned == {"node-1"}
    assert "events-broker-0" in striker.struck
    assert not bench.api.protected & striker.struck.keys()
    # Another operator knows from the status what to put right.
    await restore(bench.api, bench.broken)  # type: ignore[arg-type]
    await forget(bench.api, "d")  # type: ignore[arg-type]
    assert not bench.api.cordoned
    assert bench.broken is None


async def test_a_node_that_may_not_be_touched_is_not() -> None:
    bench = await Bench().ready()
    bench.api.no_nodes = KubeError("reading node node-1: Forbidden", HTTPStatus.FORBIDDEN)
    striker = bench.striker("drain-node")
    with pytest.raises(CannotStrike, match=r"need operator\.nodeAccess=true in the chart: reading"):
        await striker.strike("now")
    bench.api.no_nodes = None
    bench.api.cordoned.add("node-1")
    with pytest.raises(CannotStrike, match="node-1 is cordoned already"):
        await striker.strike("now")
    # There is nothing to put right, so the cordon of somebody else stays.
    await striker.restore()
    assert bench.broken is None
    assert bench.api.cordoned == {"node-1"}


async def test_what_is_refused_is_not_asked_again_and_what_is_no_more_needs_nothing() -> None:
    bench = await Bench().ready()
    bench.api.no_nodes = KubeError("no", HTTPStatus.FORBIDDEN)
    calls = bench.api.calls
    with pytest.raises(KubeError):
        await restore(bench.api, {"node": "node-1"})  # type: ignore[arg-type]
    assert bench.api.calls == calls + 1
    bench.api.no_nodes = KubeError("there is no such node", HTTPStatus.NOT_FOUND)
    await restore(bench.api, {"node": "node-1"})  # type: ignore[arg-type]


async def test_a_roll_is_asked_of_the_cluster() -> None:
    bench = await Bench().ready()
    striker = bench.striker("roll")
    assert await striker.strike("2026-11-17T03:00:00Z") == "7 pods are replaced one at a time"
    assert bench.api.objects["Cluster", "events"]["spec"]["restartedAt"] == "2026-11-17T03:00:00Z"
    assert len(striker.struck) == 7


async def test_a_pod_that_is_not_there_cannot_be_killed() -> None:
    bench = await Bench().ready()
    del bench.api.objects["Pod", "events-controller-1"]
    with pytest.raises(CannotStrike, match="there is no pod of controller 1"):
        await bench.striker("kill-controller").strike("now")
