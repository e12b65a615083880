"""The loop: rounds for everything, fences, and whether it still hears."""

from __future__ import annotations

from typing import Any

from simulation.loop import FIRST_WALL_MS
from tailrace_operator.metrics import Metrics
from tailrace_operator.operator import DEAF_AFTER_S, Operator
from unit.operator.fake_kubernetes import MOMENTS, FakeCluster, FakeKubernetes, cluster_resource


class StillClock:
    def __init__(self) -> None:
        self.now_ms = 1_000

    def monotonic_ms(self) -> int:
        return self.now_ms

    def wall_ms(self) -> int:
        return FIRST_WALL_MS + self.now_ms


class Bench:
    def __init__(self) -> None:
        self.api = FakeKubernetes()
        self.link = FakeCluster(self.api)
        self.clock = StillClock()
        self.said: list[str] = []
        self.leads = True
        self.metrics = Metrics()
        self.operator = Operator(
            self.api,  # type: ignore[arg-type]
            clock=self.clock,
            moments=MOMENTS,
            leading=lambda: self.leads,
            metrics=self.metrics,
            say=self.said.append,
            link=lambda _: self.link,  # type: ignore[arg-type,return-value]
        )

    async def rounds(self, number: int) -> None:
        for _ in range(number):
            await self.operator.round()
            self.api.settle()


def topic_resource(name: str, **spec: Any) -> dict[str, Any]:
    return {"kind": "Topic", "metadata": {"name": name}, "spec": spec}


async def test_it_says_what_it_does_once() -> None:
    bench = Bench()
    bench.api.put(cluster_resource())
    await bench.rounds(8)
    assert len(bench.said) == len(set(bench.said))
    assert bench.said[-1] == "events: all is as wanted"


async def test_f22_a_pod_that_is_gone_has_its_broker_fenced_by_the_pods_own_id() -> None:
    bench = Bench()
    bench.api.put(cluster_resource())
    await bench.rounds(3)
    pod = bench.api.pods("broker")[1]
    await bench.operator.pod_gone(pod)
    assert bench.link.fenced == [(1, pod["metadata"]["uid"])]
    await bench.operator.pod_gone(bench.api.pods("controller")[0])
    assert len(bench.link.fenced) == 1


async def test_a_topic_of_no_cluster_and_one_that_cannot_be_are_told_so() -> None:
    bench = Bench()
    bench.api.put(topic_resource("lost", cluster="nowhere"))
    bench.api.put(topic_resource("bad", cluster="nowhere", topicName="a/b"))
    await bench.rounds(1)
    lost = bench.api.objects["Topic", "lost"]["status"]
    assert lost["message"] == "there is no Cluster 'nowhere' in this namespace"
    assert lost["conditions"][0]["status"] == "False"


async def test_f25_an_operator_that_hears_nothing_for_long_is_not_alive() -> None:
    bench = Bench()
    await bench.rounds(1)
    alive = [bench.operator.is_alive]
    bench.clock.now_ms += int(DEAF_AFTER_S * 1000)
    alive.append(bench.operator.is_alive)
    await bench.rounds(1)
    alive.append(bench.operator.is_alive)
    assert alive == [True, False, True]


async def test_the_link_to_a_cluster_that_is_gone_is_closed() -> None:
    bench = Bench()
    bench.api.put(cluster_resource())
    await bench.rounds(1)
    del bench.api.objects["Cluster", "events"]
    await bench.rounds(1)
    assert not bench.link.reachable


async def test_what_is_taken_from_a_cluster_that_is_deleted_is_not_made_anew() -> None:
    bench = Bench()
    bench.api.put(cluster_resource())
    await bench.rounds(3)
    bench.api.objects["Cluster", "events"]["metadata"]["deletionTimestamp"] = "now"
    del bench.api.objects["Service", "events-bootstrap"]
    await bench.rounds(2)
    assert ("Service", "events-bootstrap") not in bench.api.objects


async def test_one_that_stands_by_hears_and_does_nothing() -> None:
    bench = Bench()
    bench.api.put(cluster_resource())
    bench.leads = False
    bench.clock.now_ms += int(DEAF_AFTER_S * 1000)
    await bench.operator.stand_by()
    await bench.operator.round()
    assert bench.operator.is_alive
    assert [kind for kind, _ in bench.api.objects] == ["Cluster"]
    await bench.operator.pod_gone(
        {"metadata": {"name": "events-broker-0", "uid": "u", "labels": {}}}
    )
    assert not bench.link.fenced


async def test_what_it_does_is_counted() -> None:
    bench = Bench()
    bench.api.put(cluster_resource())
    await bench.rounds(6)
    bench.api.objects["Cluster", "events"]["spec"]["restartedAt"] = "again"
    await bench.rounds(4)
    value = bench.metrics.registry.get_sample_value
    restarts = {"cluster": "events", "step": "Restart"}
    assert value("tailrace_operator_steps_total", restarts) == 1
    assert value("tailrace_operator_cluster_brokers", {"cluster": "events"}) == 3
    assert value("tailrace_operator_round_seconds_count") == 10
