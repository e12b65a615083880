"""Failover on a Kubernetes in memory: fenced first, then forgotten."""

from __future__ import annotations

from typing import Any

from tailrace_operator.failover import STUCK_AFTER_MS, UNPLACED_AFTER_MS
from tailrace_operator.healing import SELECTED_NODE, Healing
from tailrace_operator.reconcile import reconcile
from tailrace_operator.rollout import Health
from tailrace_operator.spec import read_cluster
from unit.operator.fake_kubernetes import MOMENTS, FakeCluster, FakeKubernetes, cluster_resource

NOW_MS = 1_800_000_000_000
WELL = Health(reachable=True, brokers=frozenset({0, 1}), under_replicated=4)


class Bench:
    def __init__(self) -> None:
        self.api = FakeKubernetes()
        self.link = FakeCluster(self.api)
        self.resource = self.api.put(cluster_resource())

    async def ready(self) -> Bench:
        for _ in range(3):
            resource = self.api.objects["Cluster", "events"]
            await reconcile(resource, api=self.api, link=self.link, moments=MOMENTS, now_ms=NOW_MS)
            self.api.settle()
        return self

    async def heal(self, now_ms: int = NOW_MS) -> str:
        spec = read_cluster("events", "prod", self.resource["spec"])
        healing = Healing(self.api, self.link, spec, self.resource, MOMENTS.read)
        return await healing.play(WELL, now_ms)

    def pod(self, number: int) -> dict[str, Any]:
        return self.api.objects["Pod", f"events-broker-{number}"]

    def claim(self, number: int) -> dict[str, Any]:
        return self.api.objects["PersistentVolumeClaim", f"data-events-broker-{number}"]


async def test_all_is_well() -> None:
    bench = await Bench().ready()
    calls = bench.api.calls
    assert await bench.heal() == ""
    assert bench.api.calls == calls + 2
    assert not bench.api.deleted_pods


async def test_f22_a_pod_on_a_silent_node_goes_after_proof_of_fencing_only() -> None:
    bench = await Bench().ready()
    pod = bench.pod(2)
    pod["metadata"]["deletionTimestamp"] = MOMENTS.write(NOW_MS)
    late = NOW_MS + STUCK_AFTER_MS
    bench.link.reachable = False
    assert await bench.heal(late) == "broker 2 was not fenced: nobody answers"
    assert not bench.api.deleted_pods
    bench.link.reachable = True
    assert await bench.heal(late) == ""
    assert bench.link.fenced == [(2, pod["metadata"]["uid"])]
    assert bench.api.deleted_pods == ["events-broker-2"]


async def test_f23_a_node_that_took_its_volume_along_is_replaced() -> None:
    bench = await Bench().ready()
    bench.claim(1)["metadata"]["annotations"] = {SELECTED_NODE: "node-7"}
    bench.pod(1)["status"]["conditions"] = [
        {
            "type": "PodScheduled",
            "status": "False",
            "message": "1 node(s) had volume node affinity conflict",
            "lastTransitionTime": MOMENTS.write(NOW_MS),
        }
    ]
    late = NOW_MS + UNPLACED_AFTER_MS
    assert await bench.heal(late) == ""
    assert not bench.api.deleted_pods
    bench.api.nodes_gone.add("node-7")
    bench.link.reachable = False
    assert "was not fenced" in await bench.heal(late)
    bench.link.reachable = True
    await bench.heal(late)
    assert bench.api.deleted_pods == ["data-events-broker-1", "events-broker-1"]
    assert bench.api.events[-1].startswith("NewVolume: the volume of data-events-broker-1 was on")


async def test_volumes_of_brokers_that_were_scaled_away_are_left_alone() -> None:
    bench = await Bench().ready()
    left = bench.api.put(
        {
            "kind": "PersistentVolumeClaim",
            "metadata": {**bench.claim(0)["metadata"], "name": "data-events-broker-7"},
            "spec": {"resources": {"requests": {"storage": "1Ti"}}},
            "status": {"phase": "Lost"},
        }
    )
    assert await bench.heal() == ""
    assert bench.api.objects["PersistentVolumeClaim", "data-events-broker-7"] == left
