"""What is asked of the controller: answers, refusals with a sentence, deadlines."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tailrace.meta.keys import NEXT_PRODUCER_ID
from tailrace.model import TopicPartition
from tailrace.transport import methods
from tailrace.transport.wire import code_name
from tailrace.v1 import common_pb2
from tailrace.v1 import controller_pb2 as pb
from unit.controller.cluster import Cluster, simulate


def test_a_topic_is_described_when_it_was_made() -> None:
    async def main(cluster: Cluster) -> None:
        await cluster.start()
        response = await cluster.create("t", partitions=2, config={"min.insync.replicas": "1"})
        assert response.error == 0
        topic = response.topic
        assert (topic.name, len(topic.topic_id)) == ("t", 32)
        assert dict(topic.config) == {"min.insync.replicas": "1"}
        assert [each.leader for each in topic.partitions] == [1, 2]
        assert [list(each.isr) for each in topic.partitions] == [[1, 2, 3], [2, 3, 1]]
        # Its leaders know: a producer may start at once.
        assert cluster.brokers[1].leads("t", 0)
        assert cluster.brokers[2].leads("t", 1)

    simulate(main)


def test_defaults_are_one_partition_and_three_replicas() -> None:
    async def main(cluster: Cluster) -> None:
        await cluster.start(brokers=2)
        topic = (await cluster.create("two")).topic
        assert [list(each.replicas) for each in topic.partitions] == [[1, 2]]
        for number in (3, 4):
            await cluster.start_broker(number)
        await cluster.until(lambda: bool(cluster.brokers[4].full_orders))
        topic = (await cluster.create("three")).topic
        assert [list(each.replicas) for each in topic.partitions] == [[1, 2, 3]]

    simulate(main)


def test_validate_only_makes_nothing() -> None:
    async def main(cluster: Cluster) -> None:
        await cluster.start()
        revision = cluster.etcd.server.revision
        response = await cluster.create("t", partitions=2, validate_only=True)
        assert response.error == 0
        assert [list(each.replicas) for each in response.topic.partitions] == [
            *([1, 2, 3], [2, 3, 1]),
        ]
        assert [each.leader for each in response.topic.partitions] == [-1, -1]
        response = await cluster.create("a b", validate_only=True)
        assert response.error == common_pb2.ERROR_CODE_INVALID_TOPIC
        assert cluster.etcd.server.revision == revision

    simulate(main)


@pytest.mark.parametrize(
    ("name", "fields", "code", "message"),
    [
        ("", {}, "INVALID_TOPIC", "must not be empty"),
        ("x", {"partitions": 10_001}, "INVALID_TOPIC", "not 10001"),
        ("x", {"partitions": -1}, "INVALID_REQUEST", "not below 0"),
        ("x", {"replication_factor": -1}, "INVALID_REQUEST", "not below 0"),
        ("x", {"replication_factor": 4}, "INVALID_TOPIC", "3 are live"),
        ("x", {"config": {"flush": "never"}}, "INVALID_CONFIG", "flush"),
        ("x", {"config": {"min.insync.replicas": "4"}}, "INVALID_CONFIG", "from 1 to 3"),
        ("t", {}, "TOPIC_EXISTS", "'t' exists already"),
    ],
)
def test_bad_topics_are_refused(name: str, fields: dict[str, Any], code: str, message: str) -> None:
    async def main(cluster: Cluster) -> None:
        await cluster.start()
        await cluster.create("t")
        response = await cluster.create(name, **fields)
        assert code_name(response.error) == code
        assert message in response.message
        assert list(cluster.image().topics) == ["t"]

    simulate(main)


def test_f18_with_the_store_away_requests_fail_in_time_and_say_why() -> None:
    async def main(cluster: Cluster) -> None:
        await cluster.start()
        await cluster.create("t")
        cluster.etcd.stop()
        requests = [
            (methods.CONTROLLER_CREATE_TOPIC, pb.CreateTopicRequest(name="u")),
            (methods.CONTROLLER_DELETE_TOPIC, pb.DeleteTopicRequest(name="t")),
            (methods.CONTROLLER_INIT_PRODUCER, pb.InitProducerRequest(name="p")),
            (methods.CONTROLLER_FENCE_BROKER, pb.FenceBrokerRequest(broker_id=1)),
        ]
        for method, request in requests:
            before = cluster.loop.time()
            response = await cluster.call(method, request)
            assert cluster.loop.time() - before <= 5.1
            assert code_name(response.error) == "STORE_UNAVAILABLE"
            assert "the metadata store (etcd) does not answer" in response.message
        cluster.etcd.start()
        await asyncio.sleep(10)
        # Those who were told that it failed do not find it done later.
        assert list(cluster.image().topics) == ["t"]
        assert cluster.image().deletions == {}
        assert sorted(cluster.image().brokers) == [1, 2, 3]

    simulate(main)


def test_a_request_that_takes_too_long_for_another_reason_says_so() -> None:
    async def main(cluster: Cluster) -> None:
        await cluster.start()
        response = await cluster.create("t", partitions=1_000)
        assert code_name(response.error) == "REQUEST_TIMED_OUT"
        assert response.message == "creating topic 't': not done within 20 ms"
        await cluster.until(lambda: len(cluster.states()) == 1_000)

    simulate(main, request_timeout_ms=20)


def test_a_term_that_ends_in_the_middle_of_a_request_is_told() -> None:
    async def main(cluster: Cluster) -> None:
        await cluster.start(controllers=2)
        asked = cluster.loop.create_task(cluster.create("t", partitions=400))
        await cluster.until(lambda: len(cluster.states()) > 60)
        holder = cluster.etcd.server.get("/controller")
        assert holder is not None
        cluster.etcd.server.revoke_lease(holder.lease)
        response = await asked
        assert code_name(response.error) == "NOT_CONTROLLER"
        await cluster.until(lambda: len(cluster.states()) == 400)

    simulate(main)


def test_producers_get_ids_and_named_ones_higher_epochs() -> None:
    async def main(cluster: Cluster) -> None:
        await cluster.start()

        async def init(**fields: Any) -> tuple[int, int]:
            response = await cluster.call(
                methods.CONTROLLER_INIT_PRODUCER, pb.InitProducerRequest(**fields)
            )
            assert response.error == 0, response.message
            return response.producer_id, response.producer_epoch

        assert await init(producer_id=-1, producer_epoch=-1) == (1, 0)
        assert await init() == (2, 0)
        assert await init(producer_id=2, producer_epoch=0) == (2, 1)
        assert await init(name="copier") == (3, 0)
        assert await init(name="copier") == (3, 1)
        entry = cluster.etcd.server.get(NEXT_PRODUCER_ID)
        assert entry is not None
        assert entry.value == b"1001"
        # The next controller takes a block of its own, and knows the names.
        await cluster.controllers[1].controller.stop()
        await cluster.start_controller(2)
        await cluster.until(lambda: cluster.controllers[2].epoch == 2)
        assert await init() == (1_001, 0)
        assert await init(name="copier") == (3, 2)
        response = await cluster.call(
            methods.CONTROLLER_INIT_PRODUCER, pb.InitProducerRequest(name="x" * 201)
        )
        assert code_name(response.error) == "INVALID_REQUEST"

    simulate(main)


def test_explain_tells_the_changes_newest_first() -> None:
    async def main(cluster: Cluster) -> None:
        await cluster.start()
        await cluster.create("t")
        cluster.brokers[1].kill()
        await cluster.until(cluster.brokers[2].leads)
        request = pb.ExplainRequest(partition=common_pb2.TopicPartition(topic="t", partition=0))
        response = await cluster.call(methods.CONTROLLER_EXPLAIN, request)
        assert [(each.old_leader, each.new_leader) for each in response.changes] == [
            *((1, 2), (-1, 1)),
        ]
        newest = response.changes[0]
        assert newest.cause == "broker 1: connection refused, its process is gone"
        assert list(newest.candidates) == [
            "1: in sync, not registered",
            "2: in sync, taken",
            "3: in sync, not taken",
        ]
        assert 0 <= newest.decided_ms - newest.noticed_ms < 100
        for topic, partition in (("t", 1), ("u", 0)):
            where = common_pb2.TopicPartition(topic=topic, partition=partition)
            response = await cluster.call(
                methods.CONTROLLER_EXPLAIN, pb.ExplainRequest(partition=where)
            )
            assert code_name(response.error) == "UNKNOWN_TOPIC"

    simulate(main)


def test_a_fence_is_for_the_life_that_was_named() -> None:
    async def main(cluster: Cluster) -> None:
        await cluster.start()
        await cluster.create("t")
        epoch = cluster.brokers[1].epoch or 0

        async def fence(**fields: Any) -> str:
            response = await cluster.call(
                methods.CONTROLLER_FENCE_BROKER, pb.FenceBrokerRequest(**fields)
            )
            return code_name(response.error)

        assert await fence(broker_id=1, broker_epoch=epoch - 1) == "STALE_BROKER"
        assert cluster.state().leader == 1
        cluster.brokers[1].process.pause()
        assert await fence(broker_id=1, broker_epoch=epoch, reason="the node is dead") == ""
        await cluster.until(cluster.brokers[2].leads, within_s=0.1)
        assert cluster.history().changes[0].cause == "broker 1 was fenced: the node is dead"
        # It is gone already.
        assert await fence(broker_id=1, broker_epoch=epoch) == ""
        assert await fence(broker_id=9) == ""
        assert await fence(broker_id=2) == ""
        await cluster.until(cluster.brokers[3].leads, within_s=1)
        assert "no reason given" in cluster.history().changes[0].cause

    simulate(main)


def test_a_shutdown_of_a_former_life_is_refused() -> None:
    async def main(cluster: Cluster) -> None:
        await cluster.start()
        for broker, epoch in ((1, 1), (9, 1)):
            response = await cluster.call(
                methods.CONTROLLER_CONTROLLED_SHUTDOWN,
                pb.ControlledShutdownRequest(broker_id=broker, broker_epoch=epoch),
            )
            assert code_name(response.error) == "STALE_BROKER"
        assert TopicPartition("t", 0) not in cluster.states()

    simulate(main)


def test_topics_that_are_written_to_are_made_where_that_is_allowed() -> None:
    async def refused(cluster: Cluster) -> None:
        await cluster.start()
        response = await cluster.create("t", automatic=True)
        assert code_name(response.error) == "UNKNOWN_TOPIC"
        assert cluster.states() == {}

    async def allowed(cluster: Cluster) -> None:
        await cluster.start()
        response = await cluster.create("t", automatic=True)
        assert len(response.topic.partitions) == 4
        assert len((await cluster.create("u")).topic.partitions) == 1
        response = await cluster.create("__of_the_cluster", automatic=True)
        assert code_name(response.error) == "UNKNOWN_TOPIC"

    simulate(refused)
    simulate(allowed, auto_create_topics_enable=True, num_partitions=4)
