"""Whole rounds against a Kubernetes in memory: from nothing to running, rolls, and deaths."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

import pytest

from tailrace_operator.kube import KubeError
from tailrace_operator.reconcile import Outcome, reconcile
from tailrace_operator.rollout import Settled
from unit.operator.fake_kubernetes import (
    MOMENTS,
    FakeCluster,
    FakeKubernetes,
    OperatorDied,
    cluster_resource,
)

ROUNDS_MAX = 60


class Bench:
    def __init__(self, **spec: Any) -> None:
        self.api = FakeKubernetes()
        self.link = FakeCluster(self.api)
        self.resource = self.api.put(cluster_resource(**spec))
        self.now_ms = 1_000_000

    async def round(self) -> Outcome | None:
        resource = self.api.objects["Cluster", "events"]
        outcome = await reconcile(
            resource, api=self.api, link=self.link, moments=MOMENTS, now_ms=self.now_ms
        )
        self.api.settle()
        return outcome

    async def until_settled(self) -> int:
        for number in range(ROUNDS_MAX):
            outcome = await self.round()
            settled = outcome is not None and isinstance(outcome.step, Settled)
            if settled and number > 2 and self.ready() == "True":
                return number
        raise AssertionError(f"never settled: {self.status['message']}")

    def change(self, **spec: Any) -> None:
        resource = self.api.objects["Cluster", "events"]
        resource["spec"] = {**resource["spec"], **spec}
        resource["metadata"]["generation"] += 1

    @property
    def status(self) -> dict[str, Any]:
        status: dict[str, Any] = self.api.objects["Cluster", "events"]["status"]
        return status

    def ready(self) -> str:
        conditions = {each["type"]: each["status"] for each in self.status["conditions"]}
        return str(conditions["Ready"])


async def test_from_nothing_to_running() -> None:
    bench = Bench()
    await bench.until_settled()
    assert bench.status["brokers"] == "3/3"
    assert bench.status["placedOn"] == [0, 1, 2]
    assert bench.ready() == "True"
    assert bench.status["message"] == "all is well"


async def test_a_round_that_changes_nothing_writes_nothing() -> None:
    bench = Bench()
    await bench.until_settled()
    before = dict(bench.api.objects)
    events = list(bench.api.events)
    await bench.round()
    assert bench.api.objects == before
    assert bench.api.events == events


async def test_a_new_setting_rolls_brokers_one_at_a_time_and_nobody_else() -> None:
    bench = Bench()
    await bench.until_settled()
    bench.change(brokers={"settings": {"segment.bytes": 4096}})
    await bench.until_settled()
    assert bench.api.deleted_pods == ["events-broker-0", "events-broker-1", "events-broker-2"]
    assert bench.ready() == "True"


async def test_f24_an_operator_that_dies_anywhere_in_a_roll_is_gone_on_with() -> None:
    """Kill it after every call there is, one run each: each pod is replaced once, no more."""
    dies_at = 1
    while True:
        bench = Bench()
        await bench.until_settled()
        bench.change(image="tailrace:2")
        start = bench.api.calls

        def die(bench: Bench = bench, at: int = start + dies_at) -> None:
            if bench.api.calls == at:
                raise OperatorDied

        bench.api.after_each_call = die
        died = False
        try:
            await bench.until_settled()
        except OperatorDied:
            died = True
            bench.api.settle()
            await bench.until_settled()
        assert sorted(bench.api.deleted_pods) == sorted(set(bench.api.deleted_pods))
        assert len(bench.api.deleted_pods) == 7
        if not died:
            break
        dies_at += 7
    assert dies_at > 100


async def test_scale_out_spreads_and_scale_in_empties_first() -> None:
    bench = Bench()
    await bench.until_settled()
    bench.change(brokers={"replicas": 5})
    await bench.until_settled()
    assert bench.link.holding == {0, 1, 2, 3, 4}
    assert len(bench.api.pods("broker")) == 5
    bench.change(brokers={"replicas": 3})
    await bench.until_settled()
    assert bench.link.holding == {0, 1, 2}
    assert len(bench.api.pods("broker")) == 3
    assert bench.status["placedOn"] == [0, 1, 2]
    # Those that went are not cordoned for ever.
    assert bench.link.cordoned == frozenset()


@pytest.mark.parametrize("spec", [{"image": ""}, {"etcd": {"endpoints": []}}])
async def test_a_resource_that_cannot_be_is_told_so(spec: dict[str, Any]) -> None:
    bench = Bench(**spec)
    assert await bench.round() is None
    assert bench.ready() == "False"
    assert "spec." in bench.status["message"]


async def test_a_paused_cluster_is_watched_and_left_alone() -> None:
    bench = Bench()
    await bench.until_settled()
    bench.change(paused=True, image="tailrace:9")
    for _ in range(3):
        await bench.round()
    assert not bench.api.deleted_pods
    assert bench.status["message"] == "spec.paused is true"


async def test_f25_a_cluster_that_does_not_answer_is_not_touched() -> None:
    bench = Bench()
    await bench.until_settled()
    bench.link.reachable = False
    bench.change(image="tailrace:2")
    for _ in range(5):
        await bench.round()
    assert not bench.api.deleted_pods
    assert bench.ready() == "False"


async def test_replicas_of_a_broker_that_stays_away_go_elsewhere_and_come_back() -> None:
    bench = Bench(failover={"replaceAfter": "10m"}, brokers={"replicas": 4})
    await bench.until_settled()
    bench.link.broken = {2}
    await bench.round()
    assert bench.status["away"] == [{"broker": 2, "sinceMs": bench.now_ms}]
    began = bench.now_ms
    bench.now_ms += 10 * 60_000 - 1
    await bench.round()
    assert bench.link.holding == {0, 1, 2, 3}
    bench.now_ms += 1
    await bench.round()
    assert bench.link.holding == {0, 1, 3}
    assert bench.status["placedOn"] == [0, 1, 3]
    await bench.round()
    assert bench.status["message"] == "brokers 2 are away, and others hold their replicas"
    assert bench.status["away"] == [{"broker": 2, "sinceMs": began}]
    bench.link.broken = set()
    await bench.until_settled()
    assert bench.link.holding == {0, 1, 2, 3}
    assert bench.status["away"] == []


async def test_what_cannot_be_placed_is_refused_and_told_once() -> None:
    bench = Bench(brokers={"replicas": 5})
    await bench.until_settled()
    bench.link.replicas = 4
    bench.change(brokers={"replicas": 3})
    for _ in range(4):
        await bench.round()
    assert len(bench.api.pods("broker")) == 5
    expected = (
        "brokers 3, 4 are to go, but their replicas cannot be placed: "
        "4 replicas need as many brokers"
    )
    assert bench.status["message"] == expected
    assert [each for each in bench.api.events if "SpreadFailed" in each] == [
        f"SpreadFailed: {expected}"
    ]


async def test_a_larger_volume_grows_claims_and_never_the_template() -> None:
    bench = Bench(brokers={"storage": {"size": "1Gi"}})
    await bench.until_settled()
    bench.change(brokers={"storage": {"size": "2Gi"}})
    await bench.until_settled()
    claim = bench.api.objects["PersistentVolumeClaim", "data-events-broker-1"]
    assert claim["spec"]["resources"]["requests"]["storage"] == "2Gi"
    template = bench.api.objects["StatefulSet", "events-broker"]["spec"]["volumeClaimTemplates"][0]
    assert template["spec"]["resources"]["requests"]["storage"] == "1Gi"
    assert not bench.api.deleted_pods
    bench.change(brokers={"storage": {"size": "1Gi"}})
    await bench.round()
    assert "volumes can grow, not shrink" in bench.status["message"]


async def test_claims_that_cannot_grow_are_told_and_nothing_else_waits_for_them() -> None:
    bench = Bench(brokers={"storage": {"size": "1Gi"}})
    await bench.until_settled()
    bench.api.no_growth = "changing it: only claims of a class that allows it can be resized"
    bench.change(image="tailrace:2", brokers={"storage": {"size": "2Gi"}})
    for _ in range(ROUNDS_MAX):
        await bench.round()
    assert len(bench.api.deleted_pods) == 7
    problem = f"data-events-broker-0 cannot grow to 2Gi: {bench.api.no_growth}"
    assert bench.status["message"] == problem
    assert bench.ready() == "True"
    bench.api.events.clear()
    await bench.round()
    assert not bench.api.events
    bench.api.no_growth = ""
    await bench.until_settled()
    assert bench.status["message"] == "all is well"


async def test_what_kubernetes_refuses_is_told_in_the_status_and_stops_no_more_than_it_must() -> (
    None
):
    bench = Bench()
    why = "applying StatefulSet events-broker: Unprocessable Entity: limits.memory: lots"
    bench.api.refused["StatefulSet"] = KubeError(why, HTTPStatus.UNPROCESSABLE_ENTITY)
    await bench.round()
    assert bench.status["message"] == f"Kubernetes refuses what the spec asks for: {why}"
    assert bench.ready() == "False"
    assert ("Service", "events-bootstrap") in bench.api.objects
    bench.api.refused.clear()
    await bench.until_settled()


async def test_an_api_that_is_in_trouble_is_asked_again() -> None:
    bench = Bench()
    bench.api.refused["StatefulSet"] = KubeError("conflict", HTTPStatus.CONFLICT)
    with pytest.raises(KubeError):
        await bench.round()


CRASHED = {"terminated": {"exitCode": 2, "message": "hello\nunknown setting: segment.byts\n"}}
CREATING = {"reason": "ContainerCreating"}
NO_IMAGE = {"reason": "ImagePullBackOff", "message": "no such image"}
UNPLACED = {"type": "PodScheduled", "status": "False", "message": "0/1 nodes are available"}


@pytest.mark.parametrize(
    ("status", "why"),
    [
        ({"state": {"waiting": CREATING}}, ""),
        ({"state": {"waiting": NO_IMAGE}}, ": ImagePullBackOff: no such image"),
        (
            {"state": {"waiting": {"reason": "CrashLoopBackOff"}}, "lastState": CRASHED},
            ": its process ended with 2: unknown setting: segment.byts",
        ),
        ({"state": {"running": {}}, "lastState": CRASHED, "ready": True}, ""),
        ({"state": {"terminated": {"exitCode": 137}}}, ": its process ended with 137"),
        ({"conditions": [UNPLACED]}, ": 0/1 nodes are available"),
    ],
)
async def test_why_a_broker_does_not_come_is_told(status: dict[str, Any], why: str) -> None:
    bench = Bench()
    await bench.until_settled()
    bench.link.broken.add(1)
    bench.change(brokers={"replicas": 3, "settings": {"segment.bytes": 1 << 20}})
    conditions = status.get("conditions", [])
    for _ in range(4):
        await bench.round()
        pod = next(each for each in bench.api.pods("broker") if is_broker(each, 1))
        pod["status"] = {
            "conditions": conditions,
            "containerStatuses": [] if conditions else [status],
        }
    # The one that does not run may go at once; the next waits for it, and says why.
    told = bench.status["message"]
    assert told == f"events-broker-0 is to be replaced, but broker 1 is not registered{why}"


def is_broker(pod: dict[str, Any], number: int) -> bool:
    return bool(pod["metadata"]["name"] == f"events-broker-{number}")


async def test_why_a_cluster_does_not_answer_is_told() -> None:
    bench = Bench()
    await bench.until_settled()
    bench.link.reachable = False
    pod = next(each for each in bench.api.pods("broker") if is_broker(each, 1))
    pod["status"] = {"containerStatuses": [{"state": {"waiting": NO_IMAGE}}]}
    await bench.round()
    assert bench.status["message"] == (
        "the cluster does not answer yet; events-broker-1: ImagePullBackOff: no such image"
    )


@pytest.mark.parametrize("role", ["broker", "controller"])
async def test_a_cluster_whose_pods_are_not_ready_says_so(role: str) -> None:
    bench = Bench()
    await bench.until_settled()
    for pod in bench.api.pods(role):
        pod["status"] = {"conditions": [{"type": "Ready", "status": "False"}]}
    await bench.round()
    assert bench.status["message"] == f"events-{role}-0 is not ready yet"
    # Clients go to brokers: without them nothing can be read or written.
    assert bench.ready() == ("False" if role == "broker" else "True")
