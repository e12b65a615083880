"""Topic resources against the shipped controller and brokers, in virtual time."""

from __future__ import annotations

import asyncio
from typing import Any

from simulation.cluster import SimCluster
from simulation.loop import LoopClock, SimLoop
from tailrace.client.admin import AdminCore
from tailrace.client.describing import PartitionDescription, TopicDescription
from tailrace.clock import Clock
from tailrace_operator.clusters import TIMEOUT_MS
from tailrace_operator.spec import read_topic
from tailrace_operator.topic_rounds import ROUND_MAX_MS, TopicRounds, existing
from unit.operator.fake_kubernetes import FakeKubernetes, cluster_resource


class SimLink:
    """As much of a link as topics need."""

    def __init__(self, admin: AdminCore) -> None:
        self._admin = admin

    async def admin(self) -> AdminCore:
        return self._admin


class Bench:
    def __init__(self, admin: AdminCore, clock: Clock) -> None:
        self.admin = admin
        self.clock = clock
        self.api = FakeKubernetes()
        self.cluster = self.api.put(cluster_resource())
        self.topics: dict[str, dict[str, Any]] = {}

    def ask(self, name: str, **spec: Any) -> None:
        resource = {"kind": "Topic", "metadata": {"name": name}, "spec": spec}
        self.topics[name] = self.api.put(resource)

    async def round(self) -> None:
        wanted = [
            (read_topic(name, {"cluster": "events", **each["spec"]}), each)
            for name, each in self.topics.items()
        ]
        link: Any = SimLink(self.admin)
        rounds = TopicRounds(self.api, link, self.cluster, "now", clock=self.clock)  # type: ignore[arg-type]
        await rounds.play(wanted)

    def status(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.api.objects["Topic", name]["status"]
        return found


def test_a_topic_lives_as_its_resource_says() -> None:
    async def main(loop: SimLoop) -> None:
        cluster = SimCluster(loop)
        cluster.start_all()
        await cluster.active_controller()
        process, host, rng = cluster.client_host("operator")

        async def play() -> None:
            admin = AdminCore(cluster.bootstrap, network=host, clock=LoopClock(loop), rng=rng)
            await admin.start()
            bench = Bench(admin, LoopClock(loop))
            await admin.create_topic("stranger", partitions=1)
            bench.ask("orders", partitions=2, replicas=3)
            await bench.round()
            assert bench.status("orders")["partitions"] == 2
            assert bench.status("orders")["isr"] == "6/6"
            bench.ask("orders", partitions=4, config={"retention.ms": 5})
            await bench.round()
            await bench.round()
            # The broker that is asked hears of it a moment after the controller has decided.
            await asyncio.sleep(1)
            topic = await admin.describe_topic("orders")
            assert (len(topic.partitions), topic.config) == (4, {"retention.ms": "5"})
            bench.ask("too-many", replicas=9)
            await bench.round()
            assert "9" in bench.status("too-many")["message"]
            bench.ask("again", topicName="orders")
            await bench.round()
            assert bench.status("again")["message"] == "Topic orders has this topic already"
            # Whatever the order in which they are listed.
            bench.topics = dict(reversed(bench.topics.items()))
            await bench.round()
            assert bench.status("again")["message"] == "Topic orders has this topic already"
            bench.ask("foreign", topicName="stranger")
            await bench.round()
            bench.topics.clear()
            # F38: with its namespace a resource goes, and the topic stays on its volumes.
            bench.api.going = True
            await bench.round()
            assert not (await admin.describe_topic("orders")).deleting
            bench.api.going = False
            await bench.round()
            # What the operator did not make stays, whoever asked for it.
            left = [each for each in await admin.describe_topics() if not each.deleting]
            assert [each.topic for each in left] == ["stranger"]
            await admin.close()

        await process.spawn("operator", play())

    SimLoop(1).run(main)


def test_topics_that_nobody_makes_hold_up_nobody_else_for_long() -> None:
    """With no controller every request runs into its limit, one after the other."""

    async def main(loop: SimLoop) -> None:
        cluster = SimCluster(loop)
        cluster.start_all()
        await cluster.active_controller()
        process, host, rng = cluster.client_host("operator")

        async def play() -> None:
            clock = LoopClock(loop)
            admin = AdminCore(cluster.bootstrap, network=host, clock=clock, rng=rng)
            await admin.start()
            bench = Bench(admin, clock)
            await admin.create_topic("first", partitions=1)
            for number in range(40):
                bench.ask(f"t{number}", partitions=1)
            for each in cluster.controllers:
                each.kill()
            began_ms = clock.monotonic_ms()
            await bench.round()
            assert clock.monotonic_ms() - began_ms <= ROUND_MAX_MS + 2 * TIMEOUT_MS
            assert bench.status("t0")["conditions"][0]["status"] == "False"
            await admin.close()

        await process.spawn("operator", play())

    SimLoop(1).run(main)


def test_a_topic_whose_replicas_move_is_as_wanted() -> None:
    def partition(number: int, replicas: tuple[int, ...], **moves: Any) -> PartitionDescription:
        return PartitionDescription(
            partition=number,
            leader=replicas[0],
            leader_epoch=1,
            replicas=replicas,
            isr=replicas,
            elr=(),
            health=(),
            **moves,
        )

    topic = TopicDescription(
        topic="orders",
        topic_id="id",
        partitions=(
            partition(0, (0, 1, 2)),
            partition(1, (0, 1, 2, 3, 4), adding=(3, 4), removing=(1, 2)),
        ),
        config={},
        min_insync_replicas=2,
    )
    now = existing(topic)
    assert (now.replicas, now.in_sync) == (3, 6)
