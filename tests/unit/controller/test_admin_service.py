"""What administrators ask of a controller, on a simulated cluster."""

from __future__ import annotations

from typing import Any

from tailrace.model import TopicPartition
from tailrace.transport import methods
from tailrace.transport.wire import code_name
from tailrace.v1 import controller_pb2 as pb
from unit.controller.cluster import Cluster, simulate

T0 = TopicPartition("t", 0)


async def alter(cluster: Cluster, kind: Any, name: str, **given: Any) -> pb.AlterConfigResponse:
    request = pb.AlterConfigRequest(kind=kind, name=name, **given)
    response: pb.AlterConfigResponse = await cluster.call(methods.CONTROLLER_ALTER_CONFIG, request)
    return response


async def stored(cluster: Cluster, kind: Any, name: str = "") -> dict[str, dict[str, str]]:
    request = pb.DescribeConfigsRequest(kind=kind, name=name)
    response = await cluster.call(methods.CONTROLLER_DESCRIBE_CONFIGS, request)
    assert response.error == 0, response.message
    return {each.name: dict(each.config) for each in response.configs}


def test_settings_of_a_topic_reach_every_replica_without_a_new_epoch() -> None:
    async def main(cluster: Cluster) -> None:
        await cluster.start()
        await cluster.create("t", config={"flush": "ack"})
        response = await alter(
            cluster, pb.CONFIG_KIND_TOPIC, "t", set={"retention.ms": "5000"}, unset=["flush"]
        )
        assert dict(response.config) == {"retention.ms": "5000"}
        wanted = {"retention.ms": "5000"}
        await cluster.until(
            lambda: all(each.told[T0].config == wanted for each in cluster.brokers.values())
        )
        assert cluster.state().leader_epoch == 0
        assert await stored(cluster, pb.CONFIG_KIND_TOPIC) == {"t": wanted}
        refused = await alter(cluster, pb.CONFIG_KIND_TOPIC, "t", set={"retention.ms": "x"})
        assert code_name(refused.error) == "INVALID_CONFIG"
        refused = await alter(cluster, pb.CONFIG_KIND_TOPIC, "u", set={"retention.ms": "1"})
        assert code_name(refused.error) == "UNKNOWN_TOPIC"
        refused = await alter(cluster, pb.CONFIG_KIND_UNSPECIFIED, "t")
        assert code_name(refused.error) == "INVALID_REQUEST"

    simulate(main)


def test_settings_of_brokers_and_clients_are_told_and_told_again_to_who_comes_late() -> None:
    async def main(cluster: Cluster) -> None:
        await cluster.start(brokers=2)
        rate = "leader.replication.throttled.rate"
        for name, value in (("default", "2048"), ("2", "4096")):
            response = await alter(cluster, pb.CONFIG_KIND_BROKER, name, set={rate: value})
            assert response.error == 0, response.message
        await alter(cluster, pb.CONFIG_KIND_CLIENT, "copier", set={"request_rate": "5"})
        await cluster.until(
            lambda: all(each.clients.get("copier") for each in cluster.brokers.values())
        )
        assert cluster.brokers[1].settings[-1] == {rate: "2048"}
        assert cluster.brokers[2].settings[-1] == {rate: "4096"}
        late = await cluster.start_broker(3)
        await cluster.until(lambda: late.settings[-1:] == [{rate: "2048"}])
        assert late.clients == {"copier": {"request_rate": "5"}}
        found = await stored(cluster, pb.CONFIG_KIND_BROKER)
        assert found == {"default": {rate: "2048"}, "2": {rate: "4096"}}
        assert await stored(cluster, pb.CONFIG_KIND_CLIENT, "nobody") == {"nobody": {}}
        await alter(cluster, pb.CONFIG_KIND_BROKER, "default", unset=[rate])
        await cluster.until(lambda: late.settings[-1] == {})
        # Nothing has changed: nothing is told.
        told = len(late.settings)
        await alter(cluster, pb.CONFIG_KIND_BROKER, "default", unset=[rate])
        assert len(late.settings) == told

    simulate(main)


def test_the_next_controller_tells_the_same_settings() -> None:
    async def main(cluster: Cluster) -> None:
        await cluster.start(controllers=2)
        await alter(cluster, pb.CONFIG_KIND_CLIENT, "default", set={"request_rate": "7"})
        wanted = {"default": {"request_rate": "7"}}
        await cluster.until(lambda: cluster.brokers[1].clients == wanted)
        cluster.controllers[1].process.kill()
        cluster.brokers[1].clients = {}
        await cluster.until(lambda: cluster.brokers[1].clients == wanted)

    simulate(main)


def test_partitions_are_added_and_led() -> None:
    async def main(cluster: Cluster) -> None:
        await cluster.start()
        await cluster.create("t", partitions=2)
        request = pb.AddPartitionsRequest(name="t", partitions=4, validate_only=True)
        response = await cluster.call(methods.CONTROLLER_ADD_PARTITIONS, request)
        assert len(response.topic.partitions) == 4
        assert len(cluster.states()) == 2
        request = pb.AddPartitionsRequest(name="t", partitions=4)
        response = await cluster.call(methods.CONTROLLER_ADD_PARTITIONS, request)
        assert response.error == 0, response.message
        assert [each.leader for each in response.topic.partitions] == [1, 2, 3, 1]
        assert cluster.brokers[3].leads("t", 2)
        assert cluster.state("t", 3).isr == (1, 2, 3)
        request = pb.AddPartitionsRequest(name="t", partitions=3)
        response = await cluster.call(methods.CONTROLLER_ADD_PARTITIONS, request)
        assert code_name(response.error) == "INVALID_TOPIC"

    simulate(main)


def test_brokers_are_described_with_what_they_have() -> None:
    async def main(cluster: Cluster) -> None:
        await cluster.start()
        await cluster.create("t", partitions=2)
        request = pb.CordonBrokerRequest(broker_id=3, cordon=True, reason="old")
        assert (await cluster.call(methods.CONTROLLER_CORDON_BROKER, request)).error == 0
        cluster.brokers[2].kill()
        await cluster.until(lambda: 2 not in cluster.image().brokers)
        await cluster.until(lambda: cluster.state("t", 1).leader != 2)
        response = await cluster.call(
            methods.CONTROLLER_DESCRIBE_BROKERS, pb.DescribeBrokersRequest()
        )
        one, two, three = response.brokers
        assert (one.live, one.endpoint.host, one.replicas, one.preferred) == (True, "b1", 2, 1)
        assert (two.live, two.leaders, two.in_sync) == (False, 0, 0)
        assert (three.cordoned, three.cordon_reason, three.in_sync) == (True, "old", 2)
        request = pb.CordonBrokerRequest(broker_id=9, cordon=True)
        response = await cluster.call(methods.CONTROLLER_CORDON_BROKER, request)
        assert code_name(response.error) == "UNKNOWN_BROKER"

    simulate(main)


def test_a_cordoned_broker_leads_only_what_nobody_else_can() -> None:
    async def main(cluster: Cluster) -> None:
        await cluster.start()
        await cluster.create("t")
        await cluster.create("alone", replication_factor=1)
        request = pb.CordonBrokerRequest(broker_id=1, cordon=True, reason="its fan is loud")
        await cluster.call(methods.CONTROLLER_CORDON_BROKER, request)
        await cluster.until(cluster.brokers[2].leads)
        assert cluster.state().isr == (1, 2, 3)
        assert cluster.state("alone").leader == 1
        (change, _) = cluster.history().changes
        assert change.cause == "broker 1 is cordoned: its fan is loud"
        assert change.candidates[0] == "1: in sync, cordoned"
        response = await cluster.create("new", replication_factor=3)
        assert code_name(response.error) == "INVALID_TOPIC"
        response = await cluster.create("new", partitions=2, replication_factor=2)
        assert [list(each.replicas) for each in response.topic.partitions] == [[2, 3], [3, 2]]

    simulate(main)
